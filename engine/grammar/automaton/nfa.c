/* SPDX-License-Identifier: Apache-2.0 */
/* Thompson's construction with two additions: code points become bytes (UTF-8, or the escapes of a
 * JSON string), and a repetition that would need many states becomes a counted call of a rule. */
#include "engine/grammar/automaton/nfa.h"
#include <stdio.h>
#include <string.h>
#include "common/utf8.h"

#define NFA_STATES_MAX 2000000u
#define COUNT_WEIGHT   192u /* states that a repetition may take before it becomes a counted call */

static void add_expr(struct nfa *a, const struct expr *x, uint32_t from, uint32_t to);

static bool room(struct nfa *a, void *items, size_t *cap, size_t n, size_t size)
{
    struct q_err e = Q_ERR_INIT;
    if (!build_work(a->b, 1))
        return false;
    if (n < *cap || !build_grown(a->b, q_grow(items, cap, n + 1, size, NFA_STATES_MAX, &e)))
        return true;
    expr_fail(a->b, Q_TOO_LARGE, "the grammar is too large: its automata have too many states");
    return false;
}

static uint32_t add_state(struct nfa *a)
{
    if (!room(a, &a->states, &a->state_cap, a->n_state, sizeof *a->states))
        return 0;
    a->states[a->n_state] = (struct nfa_state){NFA_NONE, NFA_NONE};
    return (uint32_t)a->n_state++;
}

static void add_edge(struct nfa *a, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    if (!room(a, &a->edges, &a->edge_cap, a->n_edge, sizeof *a->edges))
        return;
    a->edges[a->n_edge] = (struct nfa_edge){{lo, hi, to}, a->states[from].edge};
    a->states[from].edge = (uint32_t)a->n_edge++;
}

static void add_jump(struct nfa *a, uint32_t from, const struct fsm_jump *j)
{
    if (!room(a, &a->jumps, &a->jump_cap, a->n_jump, sizeof *a->jumps))
        return;
    a->jumps[a->n_jump] = (struct nfa_jump){*j, a->states[from].jump};
    a->states[from].jump = (uint32_t)a->n_jump++;
}

static void add_goto(struct nfa *a, uint32_t from, uint32_t to)
{
    if (from != to)
        add_jump(a, from, &(struct fsm_jump){.kind = FSM_GOTO, .to = to});
}

static void add_bytes(struct nfa *a, const unsigned char *s, size_t n, uint32_t from, uint32_t to)
{
    for (size_t i = 0; i < n && build_ok(a->b); i++) {
        uint32_t next = i + 1 == n ? to : add_state(a);
        add_edge(a, from, next, s[i], s[i]);
        from = next;
    }
}

static void add_code_points(struct nfa *a, const char *s, size_t n, uint32_t from, uint32_t to)
{
    for (size_t i = 0; i < n && build_ok(a->b);) {
        uint32_t c;
        i += utf8_decode(s + i, n - i, &c);
        uint32_t next = i >= n ? to : add_state(a);
        add_edge(a, from, next, c, c);
        from = next;
    }
}

/* A state that only goes on to one other is made once: by its edge, or (lo EXPR_INF) by its TICK's
 * min, which is `hi`. */
static struct fsm_edge link_of(const struct nfa *a, uint32_t state)
{
    if (a->states[state].edge != NFA_NONE)
        return a->edges[a->states[state].edge].is;
    const struct fsm_jump *j = &a->jumps[a->states[state].jump].is;
    return (struct fsm_edge){EXPR_INF, j->min, j->to};
}

static size_t hash_link(struct fsm_edge e)
{
    uint64_t h = ((uint64_t)e.to << 24 ^ (uint64_t)e.lo << 12 ^ e.hi) * 0x9E3779B97F4A7C15u;
    return (size_t)(h ^ h >> 32);
}

static bool links_room(struct nfa *a)
{
    struct nfa_links *l = &a->links;
    if ((l->n + 1) * 2 < l->size)
        return true;
    size_t size = l->size ? l->size * 2 : 256;
    uint32_t *slots = q_calloc(size, sizeof *slots);
    if (!slots) {
        expr_fail(a->b, Q_NO_MEMORY, "out of memory for an automaton");
        return false;
    }
    for (size_t i = 0; i < l->size; i++) {
        if (!l->slots[i])
            continue;
        size_t at = hash_link(link_of(a, l->slots[i] - 1)) & (size - 1);
        while (slots[at])
            at = (at + 1) & (size - 1);
        slots[at] = l->slots[i];
    }
    q_free(l->slots);
    l->slots = slots;
    l->size = size;
    return true;
}

/* So characters of several bytes that lead to one state share their last bytes. */
static uint32_t link_to(struct nfa *a, uint32_t lo, uint32_t hi, uint32_t to)
{
    struct fsm_edge e = {lo, hi, to};
    if (!build_ok(a->b) || !links_room(a))
        return 0;
    size_t at = hash_link(e) & (a->links.size - 1);
    for (; a->links.slots[at]; at = (at + 1) & (a->links.size - 1)) {
        struct fsm_edge f = link_of(a, a->links.slots[at] - 1);
        if (f.lo == lo && f.hi == hi && f.to == to)
            return a->links.slots[at] - 1;
    }
    uint32_t state = add_state(a);
    if (lo == EXPR_INF)
        add_jump(a, state, &(struct fsm_jump){.kind = FSM_TICK, .min = hi, .to = to});
    else
        add_edge(a, state, to, lo, hi);
    if (build_ok(a->b)) {
        a->links.slots[at] = state + 1;
        a->links.n++;
    }
    return state;
}

/* Code points lo … hi whose UTF-8 has the same number of bytes. */
static void add_same_length(struct nfa *a, uint32_t from, uint32_t to, struct range r)
{
    unsigned char lo[4], hi[4];
    uint32_t n = (uint32_t)utf8_encode(r.lo, (char *)lo), same = 0;
    utf8_encode(r.hi, (char *)hi);
    while (same < n && lo[same] == hi[same])
        same++;
    same -= same == n;
    uint32_t rest = n - same - 1; /* bytes after the first that differs */
    uint32_t unit = 1u << 6 * rest, mask = unit - 1;
    if (rest && (r.lo & mask) != 0 && (r.lo | mask) < r.hi) { /* cut off the unaligned start */
        add_same_length(a, from, to, (struct range){r.lo, r.lo | mask});
        add_same_length(a, from, to, (struct range){(r.lo | mask) + 1, r.hi});
        return;
    }
    if (rest && (r.hi & mask) != mask && (r.hi & ~mask) > r.lo) {
        add_same_length(a, from, to, (struct range){r.lo, (r.hi & ~mask) - 1});
        add_same_length(a, from, to, (struct range){r.hi & ~mask, r.hi});
        return;
    }
    for (uint32_t i = 0; i < rest; i++)
        to = link_to(a, 0x80, 0xBF, to);
    for (uint32_t i = same; i > 0; i--)
        to = link_to(a, lo[i], hi[i], to);
    add_edge(a, from, to, lo[0], hi[0]);
}

static void add_utf8(struct nfa *a, uint32_t from, uint32_t to, struct range r)
{
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xFFFF, EXPR_CHAR_MAX};
    for (int i = 0; i < 4 && r.lo <= r.hi; i++) {
        if (r.lo > ends[i])
            continue;
        uint32_t hi = r.hi < ends[i] ? r.hi : ends[i];
        add_same_length(a, from, to, (struct range){r.lo, hi});
        r.lo = hi + 1;
    }
}

/* A character that JSON wants escaped. */
static void add_escape(struct nfa *a, uint32_t from, uint32_t to, uint32_t c)
{
    static const char letters[] = "btnvfr"; /* of 8 … 13 */
    char text[8];
    int n = 2;
    if (c == '"' || c == '\\')
        snprintf(text, sizeof text, "\\%c", (char)c);
    else if (c >= 8 && c <= 13 && c != 11)
        snprintf(text, sizeof text, "\\%c", letters[c - 8]);
    else
        n = snprintf(text, sizeof text, "\\u%04x", c);
    add_bytes(a, (const unsigned char *)text, (size_t)n, from, to);
}

static void add_range(struct nfa *a, uint32_t from, uint32_t to, struct range r,
                      enum expr_form form)
{
    static const struct range plain[] = {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, EXPR_CHAR_MAX}};
    if (!a->rules || form == EXPR_RAW) {
        add_edge(a, from, to, r.lo, r.hi);
        return;
    }
    if (form == EXPR_UTF8) {
        add_utf8(a, from, to, r);
        return;
    }
    for (uint32_t c = r.lo; c <= r.hi && c < 0x5D; c++)
        if (c < 0x20 || c == '"' || c == '\\')
            add_escape(a, from, to, c);
    for (int i = 0; i < 3; i++) {
        uint32_t lo = r.lo > plain[i].lo ? r.lo : plain[i].lo;
        uint32_t hi = r.hi < plain[i].hi ? r.hi : plain[i].hi;
        if (lo <= hi)
            add_utf8(a, from, to, (struct range){lo, hi});
    }
}

/* An edge of the fsm to a state that is `left` letters from an end. A letter is counted behind its
 * first byte, so that none is begun that may not be read. */
static void add_counted(struct nfa *a, uint32_t from, const struct fsm_edge *t, uint32_t left,
                        enum expr_form form)
{
    uint32_t old = a->states[from].edge;
    add_range(a, from, t->to, (struct range){t->lo, t->hi}, form);
    for (uint32_t k = a->states[from].edge; k != old && build_ok(a->b); k = a->edges[k].next) {
        uint32_t next = link_to(a, EXPR_INF, left, a->edges[k].is.to);
        a->edges[k].is.to = next;
    }
}

static void add_fsm(struct nfa *a, const struct expr *x, uint32_t from, uint32_t to)
{
    const struct fsm *f = x->fsm;
    uint32_t base = (uint32_t)a->n_state;
    uint32_t *left = x->ticks ? build_alloc(a->b, f->n_state, sizeof *left) : NULL;
    if (left)
        fsm_distances(a->b, f, left);
    for (uint32_t i = 0; i < f->n_state; i++)
        add_state(a);
    add_goto(a, from, base);
    for (uint32_t i = 0; i < f->n_state && build_ok(a->b); i++) {
        const struct fsm_state *s = &f->states[i];
        if (s->final)
            add_goto(a, base + i, to);
        for (uint32_t k = 0; k < s->n_edge && build_ok(a->b); k++) {
            struct fsm_edge t = f->edges[s->edge + k];
            uint32_t n_left = left ? left[t.to] : 0;
            t.to += base;
            if (left)
                add_counted(a, base + i, &t, n_left, x->form);
            else
                add_range(a, base + i, t.to, (struct range){t.lo, t.hi}, x->form);
        }
    }
}

static void add_within(struct nfa *a, const struct expr *x, uint32_t from, uint32_t to)
{
    const struct fsm *f = x->kids[0]->fsm;
    struct fsm_jump j = {.kind = FSM_WITHIN, .max = x->max, .to = to};
    uint32_t *left = build_alloc(a->b, f->n_state, sizeof *left);
    if (!a->rules)
        expr_fail(a->b, Q_UNSUPPORTED, "a length limit is not supported inside a terminal");
    if (!left || !a->rules || !build_ok(a->b))
        return;
    j.min = fsm_distances(a->b, f, left);
    j.rule = a->rules->rule_of(a->rules->ctx, x->kids[0]);
    add_jump(a, from, &j);
}

/* x{min,max} as min copies, then a loop or copies that may be left out. */
static void add_copies(struct nfa *a, const struct expr *x, uint32_t from, uint32_t to)
{
    const struct expr *kid = x->kids[0];
    uint32_t at = from;
    for (uint32_t i = 0; i < x->min && build_ok(a->b); i++) {
        uint32_t next = add_state(a);
        add_expr(a, kid, at, next);
        at = next;
    }
    if (x->max == EXPR_INF) {
        uint32_t loop = add_state(a), end = add_state(a);
        add_goto(a, at, loop);
        add_expr(a, kid, loop, end);
        add_goto(a, end, loop);
        add_goto(a, loop, to);
        return;
    }
    for (uint32_t i = x->min; i < x->max && build_ok(a->b); i++) {
        uint32_t next = add_state(a);
        add_goto(a, at, to);
        add_expr(a, kid, at, next);
        at = next;
    }
    add_goto(a, at, to);
}

static void add_repeat(struct nfa *a, const struct expr *x, uint32_t from, uint32_t to)
{
    const struct expr *kid = x->kids[0];
    bool many = x->max == EXPR_INF ? x->min > 1 : x->max > 1;
    bool nullable = expr_nullable(kid, a->rules ? a->rules->nullable : NULL);
    struct expr loop = *x;
    if (nullable) /* then leaving out is as good as the empty text */
        loop.min = 0;
    if (nullable && x->max != EXPR_INF && x->weight > 100000) {
        expr_fail(a->b, Q_TOO_LARGE,
                  "the grammar repeats an expression that may be empty up to %u times; repeat it "
                  "without a limit instead",
                  x->max);
        return;
    }
    if (!a->rules || !many || nullable || x->weight <= COUNT_WEIGHT) {
        add_copies(a, &loop, from, to);
        return;
    }
    struct fsm_jump j = {.kind = FSM_COUNT, .min = x->min, .max = x->max, .to = to};
    j.rule = a->rules->rule_of(a->rules->ctx, kid);
    add_jump(a, from, &j);
}

static void add_expr(struct nfa *a, const struct expr *x, uint32_t from, uint32_t to)
{
    if (!build_ok(a->b))
        return;
    switch (x->kind) {
    case EXPR_NEVER:
        break;
    case EXPR_EMPTY:
        add_goto(a, from, to);
        break;
    case EXPR_BYTES:
        if (a->rules)
            add_bytes(a, (const unsigned char *)x->bytes, x->n, from, to);
        else
            add_code_points(a, x->bytes, x->n, from, to);
        break;
    case EXPR_CHARS:
        for (uint32_t i = 0; i < x->set->n && build_ok(a->b); i++)
            add_range(a, from, to, x->set->ranges[i], x->form);
        break;
    case EXPR_FSM:
        add_fsm(a, x, from, to);
        break;
    case EXPR_SEQ:
        for (uint32_t i = 0; i < x->n && build_ok(a->b); i++) {
            uint32_t next = i + 1 == x->n ? to : add_state(a);
            add_expr(a, x->kids[i], from, next);
            from = next;
        }
        break;
    case EXPR_ALT:
        for (uint32_t i = 0; i < x->n; i++)
            add_expr(a, x->kids[i], from, to);
        break;
    case EXPR_REPEAT:
        add_repeat(a, x, from, to);
        break;
    case EXPR_WITHIN:
        add_within(a, x, from, to);
        break;
    case EXPR_RULE:
        if (!a->rules)
            expr_fail(a->b, Q_UNSUPPORTED, "a rule reference is not supported inside a terminal");
        else if (a->rules->productive[x->rule])
            add_jump(a, from, &(struct fsm_jump){.kind = FSM_CALL, .rule = x->rule, .to = to});
        break;
    }
}

void nfa_make(struct nfa *a, struct build *b, const struct expr *x, const struct fsm_rules *r)
{
    *a = (struct nfa){.b = b, .rules = r};
    add_state(a);
    uint32_t to = add_state(a);
    if (build_ok(b))
        add_expr(a, x, 0, to);
}

void nfa_release(struct nfa *a)
{
    q_free(a->states);
    q_free(a->edges);
    q_free(a->jumps);
    q_free(a->links.slots);
}
