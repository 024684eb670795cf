/* SPDX-License-Identifier: Apache-2.0 */
/* From rules to a program: the rules that have a text and those that may be empty (fixpoints),
 * removal of direct left recursion, then an automaton for each rule that is reached.
 *
 * A matcher that follows rules top down would call a left-recursive rule without end. A rule A = A
 * x | y is rewritten to A = y x*, which is the same language; recursion through other rules or
 * after an empty text is refused with the name of the rule. */
#include <string.h>
#include "engine/grammar/automaton/fsm.h"
#include "engine/grammar/automaton/nfa.h"
#include "engine/grammar/automaton/program.h"

struct emitter {
    struct build *b;
    bool *nullable, *productive; /* [room] */
    uint32_t *number;            /* [room] rule -> its place in the program + 1; 0 = not reached */
    const struct fsm **fsms;     /* [room] by place */
    uint32_t *order;             /* [n_order] place -> rule */
    size_t n_order, room;
    const struct expr **counted; /* [n_counted] bodies of rules made for counted loops */
    uint32_t *counted_loop_rule;
    size_t n_counted_loop, counted_loop_cap, counted_loop_rule_cap;
};

static bool is_productive(struct build *b, const struct expr *x, const bool *rules)
{
    bool any = false;
    if (!build_work(b, 1))
        return false;
    switch (x->kind) {
    case EXPR_NEVER:
        return false;
    case EXPR_FSM:
        return !fsm_is_empty(x->fsm);
    case EXPR_SEQ:
        for (uint32_t i = 0; i < x->n; i++)
            if (!is_productive(b, x->kids[i], rules))
                return false;
        return true;
    case EXPR_ALT:
        for (uint32_t i = 0; i < x->n && !any; i++)
            any = is_productive(b, x->kids[i], rules);
        return any;
    case EXPR_WITHIN:
        return is_productive(b, x->kids[0], rules);
    case EXPR_REPEAT:
        return x->min == 0 || is_productive(b, x->kids[0], rules);
    case EXPR_RULE:
        return rules[x->rule];
    default:
        return true;
    }
}

static void find_properties(struct emitter *m)
{
    struct build *b = m->b;
    size_t n = b->n_rule;
    for (bool more = true, down = true; more && build_ok(b); down = !down) {
        more = false; /* to and fro: a chain of rules is known after two passes either way */
        for (size_t k = 0; k < n; k++) {
            size_t i = down ? n - 1 - k : k;
            const struct expr *body = b->rules[i].body;
            bool productive = !m->productive[i] && is_productive(b, body, m->productive);
            bool nullable = !m->nullable[i] && expr_nullable(body, m->nullable);
            m->productive[i] |= productive;
            m->nullable[i] |= nullable;
            more |= productive | nullable;
            if (!build_work(b, 1 + body->n))
                return;
        }
    }
}

/* Does x begin with a call of rule r? Then *rest is what follows it. */
static bool begins_with(struct build *b, const struct expr *x, uint32_t r, const struct expr **rest)
{
    if (x->kind == EXPR_RULE && x->rule == r) {
        *rest = &expr_empty;
        return true;
    }
    if (x->kind != EXPR_SEQ || x->kids[0]->kind != EXPR_RULE || x->kids[0]->rule != r)
        return false;
    *rest = expr_seq(b, x->kids + 1, x->n - 1);
    return true;
}

static void unroll(struct build *b, uint32_t r)
{
    const struct expr *body = b->rules[r].body, *rest;
    if (body->kind != EXPR_ALT)
        return;
    struct expr_list first = {0}, more = {0};
    for (uint32_t i = 0; i < body->n; i++)
        if (begins_with(b, body->kids[i], r, &rest))
            expr_add(b, &more, rest);
        else
            expr_add(b, &first, body->kids[i]);
    if (more.n && build_ok(b))
        b->rules[r].body = expr_seq2(b, expr_alt(b, first.items, first.n),
                                     expr_repeat(b, expr_alt(b, more.items, more.n), 0, EXPR_INF));
}

enum { UNSEEN, OPEN, DONE };
struct left_walk {
    struct emitter *m;
    uint8_t *seen; /* [n_rule] */
    uint32_t depth;
};

/* Follow what may be called before anything is read. */
static void walk_left(struct left_walk *w, const struct expr *x)
{
    struct build *b = w->m->b;
    if (!build_work(b, 1))
        return;
    if (x->kind == EXPR_RULE) {
        const struct expr_rule *r = &b->rules[x->rule];
        if (w->seen[x->rule] == OPEN || w->depth > 2000) {
            expr_fail(
                b, Q_INVALID,
                "left recursion: rule \"%.80s\" begins with itself%s; write it with a repetition",
                *r->name ? r->name : "(unnamed)",
                w->depth > 2000 ? " or calls too deeply" : " through other rules");
        } else if (w->seen[x->rule] == UNSEEN && w->m->productive[x->rule]) {
            w->seen[x->rule] = OPEN;
            w->depth++;
            walk_left(w, r->body);
            w->depth--;
            w->seen[x->rule] = DONE;
        }
        return;
    }
    bool inner = x->kind == EXPR_SEQ || x->kind == EXPR_ALT || x->kind == EXPR_REPEAT;
    for (uint32_t i = 0; inner && i < x->n && build_ok(b); i++) {
        walk_left(w, x->kids[i]);
        if (x->kind == EXPR_SEQ && !expr_nullable(x->kids[i], w->m->nullable))
            break;
    }
}

static void check_left(struct emitter *m, uint32_t start)
{
    struct build *b = m->b;
    struct left_walk w = {.m = m, .seen = build_alloc(b, b->n_rule, 1)};
    const struct expr *from = expr_ref(b, start);
    if (!build_ok(b))
        return;
    walk_left(&w, from);
    for (uint32_t i = 0; i < b->n_rule && build_ok(b); i++) {
        const struct expr ref = {.kind = EXPR_RULE, .rule = i};
        if (w.seen[i] == UNSEEN)
            walk_left(&w, &ref);
    }
}

static bool emitter_grow(struct emitter *m)
{
    size_t room = m->b->n_rule * 2 + 64;
    bool *nullable = build_alloc(m->b, room, 1), *productive = build_alloc(m->b, room, 1);
    uint32_t *number = build_alloc(m->b, room, 4), *order = build_alloc(m->b, room, 4);
    const struct fsm **fsms = build_alloc(m->b, room, sizeof *fsms);
    if (!build_ok(m->b))
        return false;
    if (m->room) {
        memcpy(nullable, m->nullable, m->room);
        memcpy(productive, m->productive, m->room);
        memcpy(number, m->number, m->room * 4);
        memcpy(order, m->order, m->room * 4);
        memcpy(fsms, m->fsms, m->room * sizeof *fsms);
    }
    m->nullable = nullable;
    m->productive = productive;
    m->number = number;
    m->order = order;
    m->fsms = fsms;
    m->room = room;
    return true;
}

/* The body of a counted loop becomes a rule; equal bodies (the same expression) the same one. */
static uint32_t counted_loop_rule(void *ctx, const struct expr *body)
{
    struct emitter *m = ctx;
    struct build *b = m->b;
    struct q_err e = Q_ERR_INIT;
    build_work(b, m->n_counted_loop / 4);
    for (size_t i = 0; i < m->n_counted_loop; i++)
        if (m->counted[i] == body)
            return m->counted_loop_rule[i];
    if (body->kind == EXPR_RULE)
        return body->rule;
    uint32_t rule = expr_rule_new(b, "");
    if (!build_ok(b) || (b->n_rule > m->room && !emitter_grow(m)))
        return 0;
    if (q_grow(&m->counted, &m->counted_loop_cap, m->n_counted_loop + 1, sizeof *m->counted,
               1u << 20, &e) ||
        q_grow(&m->counted_loop_rule, &m->counted_loop_rule_cap, m->n_counted_loop + 1, 4, 1u << 20,
               &e)) {
        expr_fail(b, Q_NO_MEMORY, "out of memory for a grammar");
        return 0;
    }
    b->rules[rule].body = body;
    m->nullable[rule] = false;
    m->productive[rule] = is_productive(b, body, m->productive);
    m->counted[m->n_counted_loop] = body;
    m->counted_loop_rule[m->n_counted_loop++] = rule;
    return rule;
}

static uint32_t place_of(struct emitter *m, uint32_t rule)
{
    if (!m->number[rule]) {
        m->order[m->n_order] = rule;
        m->number[rule] = (uint32_t)++m->n_order;
    }
    return m->number[rule] - 1;
}

/* An automaton for every rule that is reached from `start`. */
static void make_fsms(struct emitter *m, uint32_t start)
{
    struct build *b = m->b;
    place_of(m, start);
    for (size_t i = 0; i < m->n_order && build_ok(b); i++) {
        struct fsm_rules rules = {m->nullable, m->productive, counted_loop_rule, m};
        b->scope = b->rules[m->order[i]].scope;
        const struct fsm *f = fsm_of_bytes(b, b->rules[m->order[i]].body, &rules);
        if (!build_ok(b) && b->scope)
            (void)q_wrap(&b->err, "%s", b->scope->name);
        if (!f || !build_ok(b))
            return;
        m->fsms[i] = f;
        for (uint32_t k = 0; k < f->n_jump; k++)
            if (f->jumps[k].kind != FSM_GOTO && f->jumps[k].kind != FSM_TICK)
                f->jumps[k].rule = place_of(m, f->jumps[k].rule);
    }
}

/* Equal rules become one. Rules are equal when their automata are, with the rules that they call
 * seen as those they are equal to; a pass may make callers equal, so passes are made until one
 * finds nothing. Recursive rules that would only be equal all at once stay apart. */
struct merging {
    struct emitter *m;
    uint32_t *as;    /* [n_order] the place of the equal rule that stays */
    uint32_t *slots; /* [size] place + 1, by hash */
    size_t size;
};

static uint64_t mix_word(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

static uint64_t hash_fsm(const struct merging *g, const struct fsm *f)
{
    uint64_t h = f->n_state;
    for (uint32_t i = 0; i < f->n_state; i++)
        h = mix_word(h, (uint64_t)f->states[i].n_edge << 33 | (uint64_t)f->states[i].n_jump << 1 |
                            f->states[i].final);
    for (uint32_t i = 0; i < f->n_edge; i++)
        h = mix_word(h, (uint64_t)f->edges[i].to << 16 | f->edges[i].lo << 8 | f->edges[i].hi);
    for (uint32_t i = 0; i < f->n_jump; i++) {
        const struct fsm_jump *j = &f->jumps[i];
        h = mix_word(mix_word(h, (uint64_t)j->to << 32 | g->as[j->rule]),
                     (uint64_t)j->min << 32 | j->max);
    }
    return h;
}

static bool same_fsm(const struct merging *g, const struct fsm *x, const struct fsm *y)
{
    if (x->n_state != y->n_state || x->n_edge != y->n_edge || x->n_jump != y->n_jump)
        return false;
    for (uint32_t i = 0; i < x->n_state; i++) {
        const struct fsm_state *s = &x->states[i], *t = &y->states[i];
        if (s->edge != t->edge || s->n_edge != t->n_edge || s->jump != t->jump ||
            s->n_jump != t->n_jump || s->final != t->final)
            return false;
    }
    for (uint32_t i = 0; i < x->n_jump; i++) {
        const struct fsm_jump *j = &x->jumps[i], *k = &y->jumps[i];
        if (j->kind != k->kind || g->as[j->rule] != g->as[k->rule] || j->min != k->min ||
            j->max != k->max || j->to != k->to)
            return false;
    }
    return !x->n_edge || !memcmp(x->edges, y->edges, x->n_edge * sizeof *x->edges);
}

/* False: nothing more is equal. */
static bool merge_pass(struct merging *g)
{
    struct emitter *m = g->m;
    bool found = false;
    memset(g->slots, 0, g->size * sizeof *g->slots);
    for (uint32_t i = 0; i < m->n_order; i++) {
        const struct fsm *f = m->fsms[i];
        if (g->as[i] != i || !build_work(m->b, 1 + (f->n_state + f->n_edge + f->n_jump) / 16))
            continue;
        size_t at = hash_fsm(g, f) & (g->size - 1);
        while (g->slots[at] && !same_fsm(g, m->fsms[g->slots[at] - 1], f))
            at = (at + 1) & (g->size - 1);
        found |= g->slots[at] != 0;
        g->as[i] = g->slots[at] ? g->slots[at] - 1 : i;
        g->slots[at] = g->as[i] + 1;
    }
    for (uint32_t i = 0; i < m->n_order; i++) /* what it is equal to may have gone itself */
        g->as[i] = g->as[g->as[i]];
    return found && build_ok(m->b);
}

static void merge_rules(struct emitter *m)
{
    struct merging g = {.m = m, .size = 64};
    uint32_t n = 0, before = m->b->before ? m->number[m->b->before - 1] : 0;
    while (g.size < m->n_order * 2)
        g.size *= 2;
    g.as = build_alloc(m->b, m->n_order, sizeof *g.as);
    g.slots = build_alloc(m->b, g.size, sizeof *g.slots);
    if (!build_ok(m->b))
        return;
    for (uint32_t i = 0; i < m->n_order; i++)
        g.as[i] = i;
    while (merge_pass(&g))
        ;
    uint32_t *place = g.slots; /* of those that stay */
    for (uint32_t i = 0; i < m->n_order; i++) {
        place[i] = n;
        if (g.as[i] != i)
            continue;
        m->order[n] = m->order[i];
        m->fsms[n++] = m->fsms[i];
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < m->fsms[i]->n_jump; k++) {
            struct fsm_jump *j = &m->fsms[i]->jumps[k];
            j->rule = place[g.as[j->rule]];
        }
    if (before)
        m->number[m->b->before - 1] = place[g.as[before - 1]] + 1;
    m->n_order = n;
}

static void copy_fsm(const struct fsm *f, const struct program *p, uint32_t at[3])
{
    struct program_state *states = (struct program_state *)p->states + at[0];
    struct program_edge *edges = (struct program_edge *)p->edges + at[1];
    struct program_jump *jumps = (struct program_jump *)p->jumps + at[2];
    for (uint32_t i = 0; i < f->n_state; i++) {
        const struct fsm_state *s = &f->states[i];
        states[i] = (struct program_state){s->edge + at[1], s->jump + at[2],
                                           s->n_edge | (s->final ? PROGRAM_FINAL : 0), s->n_jump};
    }
    for (uint32_t i = 0; i < f->n_edge; i++)
        edges[i] =
            (struct program_edge){f->edges[i].lo | f->edges[i].hi << 8, f->edges[i].to + at[0]};
    for (uint32_t i = 0; i < f->n_jump; i++) {
        const struct fsm_jump *j = &f->jumps[i];
        jumps[i] = (struct program_jump){j->kind, j->rule, j->min, j->max, j->to + at[0]};
    }
    at[0] += f->n_state;
    at[1] += f->n_edge;
    at[2] += f->n_jump;
}

static uint64_t fsm_words(const struct fsm *f)
{
    return 1 + 4ull * f->n_state + 2ull * f->n_edge + 5ull * f->n_jump;
}

/* Too many words; the message begins with the largest part that has a name. */
static FALLIBLE too_many_words(const struct emitter *m, uint64_t n, struct q_err *e)
{
    const struct build_scope *largest = NULL;
    for (size_t i = 0; i < m->n_order; i++) {
        struct build_scope *scope = m->b->rules[m->order[i]].scope;
        if (scope)
            scope->n_word += fsm_words(m->fsms[i]);
        if (scope && (!largest || scope->n_word > largest->n_word))
            largest = scope;
    }
    enum q_code rc = q_fail(e, Q_TOO_LARGE,
                            "the grammar is too large: it compiles to %llu KB, the limit is %u KB",
                            (unsigned long long)(n * 4 >> 10), PROGRAM_WORDS_MAX * 4 >> 10);
    return largest ? q_wrap(e, "%s, the largest part with %llu KB", largest->name,
                            (unsigned long long)(largest->n_word * 4 >> 10))
                   : rc;
}

static FALLIBLE write_words(uint32_t **words, uint32_t *n_word, const struct emitter *m,
                            struct q_err *e)
{
    uint64_t n_state = 0, n_edge = 0, n_jump = 0, n = sizeof(struct program_head) / 4;
    for (size_t i = 0; i < m->n_order; i++) {
        n_state += m->fsms[i]->n_state;
        n_edge += m->fsms[i]->n_edge;
        n_jump += m->fsms[i]->n_jump;
        n += fsm_words(m->fsms[i]);
    }
    if (n > PROGRAM_WORDS_MAX)
        return too_many_words(m, n, e);
    uint32_t *w = q_calloc(n, sizeof *w), at[3] = {0};
    if (!w)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a grammar");
    struct program_head *h = (struct program_head *)w;
    *h = (struct program_head){PROGRAM_MAGIC,
                               (uint32_t)n,
                               (uint32_t)m->n_order,
                               (uint32_t)n_state,
                               (uint32_t)n_edge,
                               (uint32_t)n_jump,
                               m->b->before ? m->number[m->b->before - 1] : 0};
    uint32_t *rules = w + sizeof *h / 4;
    struct program p = {.states = (struct program_state *)(rules + m->n_order)};
    p.edges = (const struct program_edge *)(p.states + n_state);
    p.jumps = (const struct program_jump *)(p.edges + n_edge);
    for (size_t i = 0; i < m->n_order; i++) {
        rules[i] = at[0];
        copy_fsm(m->fsms[i], &p, at);
    }
    *words = w;
    *n_word = (uint32_t)n;
    return Q_OK;
}

static void no_text(struct emitter *m)
{
    const struct build_scope *named = NULL;
    for (const struct build_scope *s = m->b->scopes; s; s = s->next) /* the first of them */
        named = m->productive[s->rule] ? named : s;
    expr_fail(m->b, Q_INVALID, "no text can satisfy the grammar");
    if (named)
        (void)q_wrap(&m->b->err, "%s", named->name);
}

FALLIBLE program_emit(uint32_t **words, uint32_t *n_word, struct build *b, uint32_t start,
                      struct q_err *e)
{
    struct emitter m = {.b = b};
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < b->n_rule && build_ok(b); i++)
        unroll(b, i);
    if (build_ok(b) && emitter_grow(&m)) {
        find_properties(&m);
        if (build_ok(b) && !m.productive[start])
            no_text(&m);
        check_left(&m, start);
        make_fsms(&m, start);
        if (build_ok(b))
            merge_rules(&m);
    }
    if (!build_ok(b)) {
        *e = b->err;
        rc = b->err.code;
    } else {
        rc = write_words(words, n_word, &m, e);
    }
    q_free(m.counted);
    q_free(m.counted_loop_rule);
    return rc;
}
