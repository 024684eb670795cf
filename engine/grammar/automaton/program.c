/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/automaton/program.h"
#include "engine/grammar/automaton/fsm_measure.h"

static FALLIBLE damaged(const char *what, struct q_err *e)
{
    return q_fail(e, Q_CORRUPT, "grammar: the compiled program has %s", what);
}

static bool slice_fits(uint32_t at, uint32_t n, uint32_t n_all)
{
    return at <= n_all && n <= n_all - at;
}

FALLIBLE program_view(struct program *p, const uint32_t *words, size_t n_word, struct q_err *e)
{
    const struct program_head *h = (const struct program_head *)words;
    if (n_word < sizeof *h / 4 || h->magic != PROGRAM_MAGIC || h->n_word != n_word ||
        n_word > PROGRAM_WORDS_MAX)
        return damaged("a bad header", e);
    uint64_t need =
        sizeof *h / 4 + h->n_rule + 4ull * h->n_state + 2ull * h->n_edge + 5ull * h->n_jump;
    if (need != n_word || h->n_rule == 0 || h->before > h->n_rule)
        return damaged("wrong sizes", e);
    *p = (struct program){.head = h, .rules = words + sizeof *h / 4};
    p->states = (const struct program_state *)(p->rules + h->n_rule);
    p->edges = (const struct program_edge *)(p->states + h->n_state);
    p->jumps = (const struct program_jump *)(p->edges + h->n_edge);
    for (uint32_t i = 0; i < h->n_rule; i++)
        if (p->rules[i] >= h->n_state)
            return damaged("a rule without a valid start state", e);
    for (uint32_t i = 0; i < h->n_state; i++) {
        const struct program_state *s = &p->states[i];
        if (!slice_fits(s->edge, s->n_edge & ~PROGRAM_FINAL, h->n_edge) ||
            !slice_fits(s->jump, s->n_jump, h->n_jump))
            return damaged("a state without edges", e);
    }
    for (uint32_t i = 0; i < h->n_edge; i++)
        if (p->edges[i].to >= h->n_state || p->edges[i].bytes > 0xFFFF)
            return damaged("an edge to a state out of range", e);
    for (uint32_t i = 0; i < h->n_jump; i++) {
        const struct program_jump *j = &p->jumps[i];
        if (j->to >= h->n_state || j->kind > FSM_TICK ||
            (j->kind != FSM_GOTO && j->rule >= h->n_rule) ||
            (j->kind == FSM_COUNT && (j->max == 0 || j->min > j->max)))
            return damaged("a jump to a state out of range", e);
    }
    return Q_OK;
}
