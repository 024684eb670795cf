/* SPDX-License-Identifier: Apache-2.0 */
/* The smallest automaton for the same texts (Moore): states are divided into classes, first by
 * whether they are final, then repeatedly by the classes that their edges lead to, until no class
 * is divided. Each round costs as much as the size of the automaton, and long chains need as many
 * rounds as they have states: after ROUNDS_MAX the automaton is left unchanged. */
#include <string.h>
#include "common/mem.h"
#include "engine/grammar/automaton/fsm.h"

#define ROUNDS_MAX 300u

struct classes {
    struct build *b;
    const struct fsm *f;
    uint32_t *of, *next; /* [n_state] class of each state, in this round and the next */
    uint32_t *slots;     /* [size] state + 1, by hash */
    size_t size;
    uint32_t n;
};

/* The next stretch of letters that lead from a state to one class. False: there is none. */
static bool stretch(const struct classes *c, const struct fsm_state *s, uint32_t *i,
                    struct fsm_edge *out)
{
    const struct fsm_edge *e = c->f->edges + s->edge;
    if (*i == s->n_edge)
        return false;
    *out = (struct fsm_edge){e[*i].lo, e[*i].hi, c->of[e[*i].to]};
    for (++*i; *i < s->n_edge && e[*i].lo == out->hi + 1 && c->of[e[*i].to] == out->to; ++*i)
        out->hi = e[*i].hi;
    return true;
}

static uint64_t hash_of(const struct classes *c, uint32_t state)
{
    uint64_t h = c->of[state] + 1;
    struct fsm_edge e;
    for (uint32_t i = 0; stretch(c, &c->f->states[state], &i, &e);) {
        h = (h ^ ((uint64_t)e.lo << 32 | e.hi)) * 0x9E3779B97F4A7C15u;
        h = (h ^ h >> 29 ^ e.to) * 0x9E3779B97F4A7C15u;
    }
    return h ^ h >> 31;
}

static bool alike(const struct classes *c, uint32_t x, uint32_t y)
{
    struct fsm_edge e, g;
    uint32_t i = 0, k = 0;
    bool more = c->of[x] == c->of[y], also = more;
    while (more && also) {
        more = stretch(c, &c->f->states[x], &i, &e);
        also = stretch(c, &c->f->states[y], &k, &g);
        if (more && also && (e.lo != g.lo || e.hi != g.hi || e.to != g.to))
            return false;
        if (!more && !also)
            return true;
    }
    return false;
}

/* One round; false: no class fell apart. */
static bool divide(struct classes *c)
{
    uint32_t n = 0;
    memset(c->slots, 0, c->size * sizeof *c->slots);
    for (uint32_t i = 0; i < c->f->n_state; i++) {
        size_t at = hash_of(c, i) & (c->size - 1);
        while (c->slots[at] && !alike(c, c->slots[at] - 1, i))
            at = (at + 1) & (c->size - 1);
        if (c->slots[at]) {
            c->next[i] = c->next[c->slots[at] - 1];
        } else {
            c->slots[at] = i + 1;
            c->next[i] = n++;
        }
    }
    uint32_t *of = c->of;
    c->of = c->next;
    c->next = of;
    bool more = n > c->n;
    c->n = n;
    return more;
}

/* One state for each class; that of state 0 is the first, as it is met first. */
static const struct fsm *merged(struct classes *c)
{
    const struct fsm *f = c->f;
    struct build *b = c->b;
    struct fsm_jump none;
    struct fsm parts = {build_alloc(b, c->n, sizeof *parts.states),
                        build_alloc(b, f->n_edge, sizeof *parts.edges),
                        &none,
                        0,
                        0,
                        0};
    if (!parts.states || !parts.edges)
        return NULL;
    for (uint32_t i = 0; i < f->n_state; i++) {
        struct fsm_edge e;
        if (c->of[i] != parts.n_state)
            continue;
        struct fsm_state *s = &parts.states[parts.n_state++];
        *s = (struct fsm_state){.edge = parts.n_edge, .final = f->states[i].final};
        for (uint32_t k = 0; stretch(c, &f->states[i], &k, &e);)
            parts.edges[parts.n_edge++] = e;
        s->n_edge = parts.n_edge - s->edge;
    }
    return fsm_finish(b, &parts);
}

const struct fsm *fsm_minimal(struct build *b, const struct fsm *f)
{
    struct classes c = {.b = b, .f = f, .size = 64, .n = 1};
    const struct fsm *out = f;
    if (!f || !build_ok(b))
        return NULL;
    while (c.size < f->n_state * 2ull)
        c.size *= 2;
    c.of = q_calloc(f->n_state, sizeof *c.of);
    c.next = q_calloc(f->n_state, sizeof *c.next);
    c.slots = q_calloc(c.size, sizeof *c.slots);
    bool more = c.of && c.next && c.slots, has_all = more;
    for (uint32_t i = 0; has_all && i < f->n_state; i++)
        c.of[i] = f->states[i].final;
    for (uint32_t i = 0; more && i < ROUNDS_MAX; i++)
        more = build_work(b, (f->n_state + f->n_edge) / 2) && divide(&c);
    if (!has_all)
        expr_fail(b, Q_NO_MEMORY, "out of memory for an automaton");
    else if (!more && c.n < f->n_state)
        out = merged(&c);
    q_free(c.of);
    q_free(c.next);
    q_free(c.slots);
    return build_ok(b) ? out : NULL;
}
