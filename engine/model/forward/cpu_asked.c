/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/cpu_asked.h"

/* Does another row, a later step or another stage read what it makes? A plugin's operation may. */
static bool is_for_others(const struct program_op *op)
{
    switch (op->kind) {
    case PROGRAM_STORE:
    case PROGRAM_STORE_LATENT:
    case PROGRAM_OWN:
    case PROGRAM_SEND:
        return true;
    case PROGRAM_POOL:
        return pooling_takes_all(op->pool);
    default:
        return program_state_floats(op) > 0;
    }
}

static bool pass_is_for_others(const struct layer_program *p, const struct program_pass *pass)
{
    for (uint32_t i = pass->first; i < pass->first + pass->n; i++) {
        const struct program_stage *s = &p->stages[i];
        for (uint32_t j = s->first; j < s->first + s->n; j++)
            if (is_for_others(&p->ops[j]))
                return true;
    }
    return false;
}

uint32_t cpu_asked_pass(const struct layer_program *p)
{
    uint32_t i = p->n_pass;
    while (i && !pass_is_for_others(p, &p->passes[i - 1]))
        i--;
    return i ? i : p->n_pass; /* nothing is stored: no layer that is known */
}

/* Rows `from` … of the sequence, of which there is one at least. */
static void add_rows(struct cpu_spans *s, const struct attention_seq *q, uint32_t from)
{
    struct cpu_rows *last = s->n_row ? &s->rows[s->n_row - 1] : NULL;
    const uint32_t end = q->row + q->n_query;
    if (last && last->at + last->n == from)
        last->n = end - last->at;
    else
        s->rows[s->n_row++] = (struct cpu_rows){from, end - from};
    s->seqs[s->n_seq++] = (struct attention_seq){
        .blocks = q->blocks,
        .row = from,
        .n_query = end - from,
        .start = q->start + (from - q->row),
    };
}

/* Sequences i … before `until`, none of which is asked for, whole. */
static void add_whole(struct cpu_spans *s, const struct batch *b, uint32_t i, uint32_t until)
{
    for (; i < until; i++)
        if (b->seqs[i].n_query)
            add_rows(s, &b->seqs[i], b->seqs[i].row);
}

void cpu_spans_make(struct cpu_spans *s, const struct batch *b)
{
    uint32_t logit = 0, behind = 0; /* behind: the first sequence that no span has */
    s->n_row = s->n_seq = 0;
    for (uint32_t i = 0; i < b->n_seq && logit < b->n_logit; i++) {
        const struct attention_seq *q = &b->seqs[i];
        const uint32_t end = q->row + q->n_query;
        uint32_t from = b->logit_rows[logit];
        if (from >= end)
            continue;
        while (logit < b->n_logit && b->logit_rows[logit] < end)
            logit++;
        const struct cpu_rows *last = s->n_row ? &s->rows[s->n_row - 1] : NULL;
        if (last && from - (last->at + last->n) < CPU_SPAN_GAP) {
            add_whole(s, b, behind, i);
            from = q->row;
        }
        add_rows(s, q, from);
        behind = i + 1;
    }
}
