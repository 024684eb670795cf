/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on automata over code points: products (of the pairs of states that are reached),
 * anchors, and acceptance of a text. The edges of a state are sorted and do not overlap, so the
 * edges of two states are merged in one pass and the edge of a letter is found by binary search. */
#include <stdlib.h>
#include "common/utf8.h"
#include "engine/grammar/automaton/fsm.h"

#define POOL_MAX 8000000u

/* The state's edge that reads c; NULL: none does. */
static const struct fsm_edge *edge_of(const struct fsm *f, uint32_t state, uint32_t c)
{
    const struct fsm_state *s = &f->states[state];
    uint32_t lo = 0, hi = s->n_edge;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (f->edges[s->edge + mid].hi < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    const struct fsm_edge *e = &f->edges[s->edge + lo];
    return lo < s->n_edge && e->lo <= c ? e : NULL;
}

bool fsm_accepts(const struct fsm *f, const char *text, size_t n)
{
    uint32_t at = 0;
    for (size_t i = 0; i < n;) {
        uint32_t c;
        i += utf8_decode(text + i, n - i, &c);
        const struct fsm_edge *e = edge_of(f, at, c);
        if (!e)
            return false;
        at = e->to;
    }
    return f->states[at].final;
}

/* Where f is after reading c as often as that leads on to another state. */
static uint32_t drain(struct build *b, const struct fsm *f, uint32_t at, uint32_t c)
{
    for (uint32_t n = 0; n < f->n_state && build_work(b, 1); n++) {
        const struct fsm_edge *e = edge_of(f, at, c);
        if (!e || e->to == at)
            break;
        at = e->to;
    }
    return at;
}

const struct fsm *fsm_resolve_anchors(struct build *b, const struct fsm *f)
{
    if (!f || !build_ok(b))
        return NULL;
    struct fsm parts = *f;
    uint32_t start = drain(b, f, 0, FSM_BEGIN);
    parts.states = build_alloc(b, f->n_state, sizeof *parts.states);
    parts.edges = build_alloc(b, f->n_edge, sizeof *parts.edges);
    if (!parts.states || !parts.edges)
        return NULL;
    parts.n_edge = 0;
    for (uint32_t i = 0; i < f->n_state; i++) { /* the start changes places with state 0 */
        const struct fsm_state *s = &f->states[i == 0 ? start : i == start ? 0 : i];
        struct fsm_state *to = &parts.states[i];
        *to = (struct fsm_state){.edge = parts.n_edge};
        to->final = s->final || f->states[drain(b, f, (uint32_t)(s - f->states), FSM_FINISH)].final;
        for (uint32_t k = 0; k < s->n_edge; k++) {
            struct fsm_edge e = f->edges[s->edge + k];
            if (e.lo > EXPR_CHAR_MAX)
                continue;
            e.hi = e.hi < EXPR_CHAR_MAX ? e.hi : EXPR_CHAR_MAX;
            e.to = e.to == 0 ? start : e.to == start ? 0 : e.to;
            parts.edges[parts.n_edge++] = e;
        }
        to->n_edge = parts.n_edge - to->edge;
    }
    return build_ok(b) ? fsm_finish(b, &parts) : NULL;
}

/* Products: pairs of states, found by hash; y's state n_state is where y has failed. */
struct pairing {
    struct build *b;
    const struct fsm *x, *y;
    bool minus;
    uint64_t *pairs; /* [n_pair] */
    uint32_t *index; /* [index_size] pair + 1 */
    struct fsm_state *states;
    struct fsm_edge *edges;
    size_t n_pair, n_edge, pair_cap, state_cap, edge_cap, index_size;
};

static bool pairing_grow(struct pairing *p, void *items, size_t *cap, size_t need, size_t size)
{
    struct q_err e = Q_ERR_INIT;
    if (need <= *cap || !build_grown(p->b, q_grow(items, cap, need, size, POOL_MAX, &e)))
        return true;
    expr_fail(p->b, Q_TOO_LARGE,
              "the grammar is too large: constraints that apply to one "
              "string together make an automaton of too many states");
    return false;
}

static uint32_t pair_of(struct pairing *p, uint32_t x, uint32_t y)
{
    uint64_t pair = (uint64_t)x << 32 | y;
    if (p->n_pair * 2 >= p->index_size) {
        size_t size = p->index_size ? p->index_size * 2 : 256;
        uint32_t *index = q_calloc(size, sizeof *index);
        if (!index) {
            expr_fail(p->b, Q_NO_MEMORY, "out of memory for an automaton");
            return 0;
        }
        for (size_t i = 0; i < p->n_pair; i++) {
            size_t at = (p->pairs[i] * 0x9E3779B97F4A7C15u >> 32) & (size - 1);
            while (index[at])
                at = (at + 1) & (size - 1);
            index[at] = (uint32_t)i + 1;
        }
        q_free(p->index);
        p->index = index;
        p->index_size = size;
    }
    size_t at = (pair * 0x9E3779B97F4A7C15u >> 32) & (p->index_size - 1);
    for (; p->pairs && p->index[at]; at = (at + 1) & (p->index_size - 1))
        if (p->pairs[p->index[at] - 1] == pair)
            return p->index[at] - 1;
    if (p->n_pair >= FSM_STATES_MAX * 2)
        expr_fail(p->b, Q_TOO_LARGE,
                  "the grammar is too large: constraints that apply to one "
                  "string together need more than %u states",
                  FSM_STATES_MAX * 2);
    if (!build_work(p->b, 8) || !pairing_grow(p, &p->pairs, &p->pair_cap, p->n_pair + 1, 8) ||
        !p->pairs)
        return 0;
    p->pairs[p->n_pair] = pair;
    p->index[at] = (uint32_t)++p->n_pair;
    return (uint32_t)p->n_pair - 1;
}

static void pair_edge(struct pairing *p, struct fsm_state *s, struct fsm_edge e, uint32_t y)
{
    if (e.lo > e.hi || !pairing_grow(p, &p->edges, &p->edge_cap, p->n_edge + 1, sizeof *p->edges))
        return;
    e.to = pair_of(p, e.to, y);
    p->edges[p->n_edge++] = e;
    s->n_edge++;
}

/* x's edge e against the edges of y's state from *k on; those that end before e does are done. */
static void pair_edges(struct pairing *p, struct fsm_state *s, struct fsm_edge e, uint32_t y,
                       uint32_t *k)
{
    uint32_t n = y < p->y->n_state ? p->y->states[y].n_edge : 0, lo = e.lo;
    while (*k < n && lo <= e.hi && build_work(p->b, 1)) {
        const struct fsm_edge *f = &p->y->edges[p->y->states[y].edge + *k];
        if (f->lo > e.hi)
            break;
        *k += f->hi <= e.hi; /* the next edge of x may go on in f */
        if (f->hi < lo)
            continue;
        if (p->minus && f->lo > lo)
            pair_edge(p, s, (struct fsm_edge){lo, f->lo - 1, e.to}, p->y->n_state);
        lo = f->lo > lo ? f->lo : lo;
        uint32_t hi = f->hi < e.hi ? f->hi : e.hi;
        pair_edge(p, s, (struct fsm_edge){lo, hi, e.to}, f->to);
        lo = hi + 1;
    }
    if (p->minus && lo <= e.hi)
        pair_edge(p, s, (struct fsm_edge){lo, e.hi, e.to}, p->y->n_state);
}

static const struct fsm *product(struct build *b, const struct fsm *x, const struct fsm *y,
                                 bool minus)
{
    struct pairing p = {.b = b, .x = x, .y = y, .minus = minus};
    const struct fsm *out = NULL;
    if (!x || !y || !build_ok(b))
        return NULL;
    pair_of(&p, 0, 0);
    for (size_t i = 0; i < p.n_pair && build_ok(b); i++) {
        uint32_t sx = (uint32_t)(p.pairs[i] >> 32), sy = (uint32_t)p.pairs[i];
        bool in_y = sy < y->n_state && y->states[sy].final;
        struct fsm_state s = {
            .edge = (uint32_t)p.n_edge,
            .final = x->states[sx].final && in_y != minus,
        };
        for (uint32_t k = 0, at = 0; k < x->states[sx].n_edge && build_ok(b); k++)
            pair_edges(&p, &s, x->edges[x->states[sx].edge + k], sy, &at);
        if (pairing_grow(&p, &p.states, &p.state_cap, i + 1, sizeof s))
            p.states[i] = s;
    }
    if (build_ok(b)) {
        struct fsm_jump none;
        out = fsm_finish(
            b, &(struct fsm){p.states, p.edges, &none, (uint32_t)p.n_pair, (uint32_t)p.n_edge, 0});
    }
    q_free(p.pairs);
    q_free(p.index);
    q_free(p.states);
    q_free(p.edges);
    return out;
}

const struct fsm *fsm_and(struct build *b, const struct fsm *x, const struct fsm *y)
{
    return product(b, x, y, false);
}

const struct fsm *fsm_minus(struct build *b, const struct fsm *x, const struct fsm *y)
{
    return product(b, x, y, true);
}
