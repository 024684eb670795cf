/* SPDX-License-Identifier: Apache-2.0 */
/* The subset construction over ranges instead of single letters: the edges of all states of a
 * subset are sorted by their lower ends, and between two ends every letter leads to the same
 * subset. Jumps are letters too. Subsets are stored in one pool and found by hash.
 *
 * A deterministic automaton can be exponentially larger. For code points that is an error, because
 * the products need a deterministic automaton; for bytes the automaton is then used as it is, with
 * GOTOs: the matcher can be in several states at once. */
#include "engine/grammar/automaton/fsm.h"
#include <stdlib.h>
#include <string.h>
#include "engine/grammar/automaton/nfa.h"
#include "engine/grammar/automaton/program.h"

#define BYTE_STATES_MAX (PROGRAM_WORDS_MAX / 6) /* each has an edge or a jump at least */
#define POOL_MAX        32000000u

struct subset {
    uint32_t at, n; /* in the pool */
};
struct maker {
    struct build *b;
    const struct nfa *nfa;
    uint32_t n_state_max, n_word_max; /* of the outcome in a program */
    bool too_many;
    uint32_t *pool; /* sorted nfa states of all subsets */
    struct subset *subsets;
    uint32_t *index; /* [index_size] subset + 1 */
    struct fsm_state *states;
    struct fsm_edge *edges;
    struct fsm_jump *jumps;
    size_t n_pool, n_subset, n_edge, n_jump;
    size_t pool_cap, subset_cap, state_cap, edge_cap, jump_cap, index_size;
    uint32_t *mark; /* [nfa->n_state] the closure it was last in */
    uint32_t n_mark;
    uint32_t *stack, *found; /* [nfa->n_state] */
    uint32_t n_found;
    struct fsm_edge *sweep; /* edges of one subset */
    uint32_t *active, *targets;
    size_t n_sweep, sweep_cap, active_cap, target_cap;
};

static bool grow(struct maker *m, void *items, size_t *cap, size_t need, size_t size)
{
    struct q_err e = Q_ERR_INIT;
    if (need <= *cap)
        return true;
    if (!build_grown(m->b, q_grow(items, cap, need, size, POOL_MAX, &e)))
        return true;
    m->too_many = true;
    return false;
}

static void visit(struct maker *m, uint32_t s, uint32_t *n_stack)
{
    if (m->mark[s] == m->n_mark)
        return;
    m->mark[s] = m->n_mark;
    m->stack[(*n_stack)++] = s;
}

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* found: what is reached from the states without reading, as far as something happens there. */
static void close_over(struct maker *m, const uint32_t *from, size_t n)
{
    uint32_t n_stack = 0;
    uint64_t n_look = n + 6;
    m->n_mark++;
    m->n_found = 0;
    for (size_t i = 0; i < n; i++)
        visit(m, from[i], &n_stack);
    while (n_stack) {
        uint32_t s = m->stack[--n_stack];
        n_look++;
        bool keep = s == 1 || m->nfa->states[s].edge != NFA_NONE;
        for (uint32_t j = m->nfa->states[s].jump; j != NFA_NONE; j = m->nfa->jumps[j].next) {
            n_look++;
            if (m->nfa->jumps[j].is.kind == FSM_GOTO)
                visit(m, m->nfa->jumps[j].is.to, &n_stack);
            else
                keep = true;
        }
        if (keep)
            m->found[m->n_found++] = s;
    }
    build_work(m->b, m->n_found + n_look);
    qsort(m->found, m->n_found, sizeof *m->found, by_number);
}

static uint32_t hash_of(const uint32_t *s, uint32_t n)
{
    uint32_t h = 2166136261u;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ s[i]) * 16777619u ^ h >> 15;
    return h;
}

static bool rehash(struct maker *m)
{
    size_t size = m->index_size ? m->index_size * 2 : 256;
    uint32_t *index = q_calloc(size, sizeof *index);
    if (!index) {
        build_fail(m->b, Q_NO_MEMORY, "out of memory for an automaton");
        m->too_many = true;
        return false;
    }
    for (uint32_t i = 0; i < m->n_subset; i++) {
        const struct subset *s = &m->subsets[i];
        size_t at = hash_of(m->pool + s->at, s->n) & (size - 1);
        while (index[at])
            at = (at + 1) & (size - 1);
        index[at] = i + 1;
    }
    q_free(m->index);
    m->index = index;
    m->index_size = size;
    return true;
}

/* The state of the subset in found; a new one when there is none yet. */
static uint32_t intern(struct maker *m)
{
    if (m->n_subset * 2 >= m->index_size && !rehash(m))
        return 0;
    size_t at = hash_of(m->found, m->n_found) & (m->index_size - 1);
    for (; m->subsets && m->index[at]; at = (at + 1) & (m->index_size - 1)) {
        const struct subset *s = &m->subsets[m->index[at] - 1];
        if (s->n == m->n_found &&
            (!s->n || !memcmp(m->pool + s->at, m->found, s->n * sizeof *m->found)))
            return m->index[at] - 1;
    }
    if (m->n_subset >= m->n_state_max)
        m->too_many = true;
    if (m->too_many || !grow(m, &m->pool, &m->pool_cap, m->n_pool + m->n_found, 4) ||
        !grow(m, &m->subsets, &m->subset_cap, m->n_subset + 1, sizeof *m->subsets))
        return 0;
    if (m->n_found)
        memcpy(m->pool + m->n_pool, m->found, m->n_found * sizeof *m->found);
    m->subsets[m->n_subset] = (struct subset){(uint32_t)m->n_pool, m->n_found};
    m->n_pool += m->n_found;
    m->index[at] = (uint32_t)++m->n_subset;
    return (uint32_t)m->n_subset - 1;
}

static int by_lower_end(const void *a, const void *b)
{
    const struct fsm_edge *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static bool gather_edges(struct maker *m, struct subset s)
{
    m->n_sweep = 0;
    for (uint32_t i = 0; i < s.n; i++) {
        uint32_t e = m->nfa->states[m->pool[s.at + i]].edge;
        for (; e != NFA_NONE; e = m->nfa->edges[e].next) {
            if (!grow(m, &m->sweep, &m->sweep_cap, m->n_sweep + 1, sizeof *m->sweep))
                return false;
            m->sweep[m->n_sweep++] = m->nfa->edges[e].is;
        }
    }
    if (m->n_sweep)
        qsort(m->sweep, m->n_sweep, sizeof *m->sweep, by_lower_end);
    return build_work(m->b, m->n_sweep) && grow(m, &m->active, &m->active_cap, m->n_sweep, 4) &&
           grow(m, &m->targets, &m->target_cap, m->n_sweep, 4);
}

static void put_edge(struct maker *m, struct fsm_state *s, struct fsm_edge e)
{
    struct fsm_edge *last = s->n_edge && m->edges ? &m->edges[m->n_edge - 1] : NULL;
    if (last && last->to == e.to && last->hi + 1 == e.lo) {
        last->hi = e.hi;
        return;
    }
    if (!grow(m, &m->edges, &m->edge_cap, m->n_edge + 1, sizeof *m->edges) || !m->edges)
        return;
    m->edges[m->n_edge++] = e;
    s->n_edge++;
}

/* One segment [lo, hi] in which the active edges hold. */
static void put_segment(struct maker *m, struct fsm_state *s, uint32_t lo, uint32_t hi,
                        uint32_t n_active)
{
    for (uint32_t i = 0; i < n_active; i++)
        m->targets[i] = m->sweep[m->active[i]].to;
    close_over(m, m->targets, n_active);
    uint32_t to = intern(m);
    if (!m->too_many)
        put_edge(m, s, (struct fsm_edge){lo, hi, to});
}

static void make_edges(struct maker *m, struct fsm_state *s)
{
    uint32_t n_active = 0, at = 0;
    for (size_t i = 0; (i < m->n_sweep || n_active) && !m->too_many && build_ok(m->b);) {
        if (!n_active)
            at = m->sweep[i].lo;
        while (i < m->n_sweep && m->sweep[i].lo == at)
            m->active[n_active++] = (uint32_t)i++;
        uint32_t hi = i < m->n_sweep ? m->sweep[i].lo - 1 : UINT32_MAX, n_left = 0;
        for (uint32_t k = 0; k < n_active; k++)
            hi = m->sweep[m->active[k]].hi < hi ? m->sweep[m->active[k]].hi : hi;
        put_segment(m, s, at, hi, n_active);
        for (uint32_t k = 0; k < n_active; k++)
            if (m->sweep[m->active[k]].hi > hi)
                m->active[n_left++] = m->active[k];
        n_active = n_left;
        at = hi + 1;
    }
}

static bool same_jump(const struct fsm_jump *x, const struct fsm_jump *y)
{
    return x->kind == y->kind && x->rule == y->rule && x->min == y->min && x->max == y->max;
}

/* Jumps that do the same become one, to the subset of their targets. */
static void make_jumps(struct maker *m, struct fsm_state *s, struct subset from)
{
    size_t first = m->n_jump;
    for (uint32_t i = 0; i < from.n; i++) {
        uint32_t j = m->nfa->states[m->pool[from.at + i]].jump;
        for (; j != NFA_NONE; j = m->nfa->jumps[j].next) {
            size_t k = first;
            if (m->nfa->jumps[j].is.kind == FSM_GOTO)
                continue;
            while (k < m->n_jump && !same_jump(&m->jumps[k], &m->nfa->jumps[j].is))
                k++;
            build_work(m->b, k - first);
            if (k < m->n_jump || !grow(m, &m->jumps, &m->jump_cap, m->n_jump + 1, sizeof *m->jumps))
                continue;
            m->jumps[m->n_jump++] = m->nfa->jumps[j].is;
        }
    }
    s->n_jump = (uint32_t)(m->n_jump - first);
    for (size_t k = first; k < m->n_jump && !m->too_many && build_work(m->b, from.n); k++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < from.n; i++) {
            uint32_t j = m->nfa->states[m->pool[from.at + i]].jump;
            for (; j != NFA_NONE; j = m->nfa->jumps[j].next)
                if (same_jump(&m->jumps[k], &m->nfa->jumps[j].is) &&
                    grow(m, &m->targets, &m->target_cap, n + 1, 4))
                    m->targets[n++] = m->nfa->jumps[j].is.to;
        }
        close_over(m, m->targets, n);
        m->jumps[k].to = intern(m);
    }
}

static bool maker_init(struct maker *m, struct build *b, const struct nfa *a, uint32_t n_state_max)
{
    *m = (struct maker){.b = b, .nfa = a, .n_state_max = n_state_max};
    m->n_word_max = a->rules ? PROGRAM_WORDS_MAX : UINT32_MAX;
    m->mark = q_calloc(a->n_state + 1, sizeof *m->mark);
    m->stack = q_alloc((a->n_state + 1) * sizeof *m->stack);
    m->found = q_alloc((a->n_state + 1) * sizeof *m->found);
    return m->mark && m->stack && m->found;
}

static void maker_release(struct maker *m)
{
    void *const memory[] = {m->pool, m->subsets, m->index, m->states, m->edges,  m->jumps,
                            m->mark, m->stack,   m->found, m->sweep,  m->active, m->targets};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        q_free(memory[i]);
}

static bool determinize(struct maker *m)
{
    uint32_t start = 0;
    close_over(m, &start, 1);
    intern(m);
    for (uint32_t i = 0; i < m->n_subset && !m->too_many && build_ok(m->b); i++) {
        struct subset from = m->subsets[i];
        struct fsm_state s = {.edge = (uint32_t)m->n_edge, .jump = (uint32_t)m->n_jump};
        for (uint32_t k = 0; k < from.n; k++)
            s.final |= m->pool[from.at + k] == 1;
        if (!gather_edges(m, from))
            break;
        make_edges(m, &s);
        make_jumps(m, &s, from);
        if (!grow(m, &m->states, &m->state_cap, i + 1, sizeof *m->states))
            break;
        m->states[i] = s;
        m->too_many |= 4 * (uint64_t)i + 2 * m->n_edge + 5 * m->n_jump > m->n_word_max;
    }
    return !m->too_many && build_ok(m->b);
}

/* Only the states that reach a final one stay, and state 0. In place. */
static void trim(struct build *b, struct fsm *f, uint32_t *alive)
{
    if (!fsm_mark_alive(b, f, alive)) {
        expr_fail(b, Q_NO_MEMORY, "out of memory for an automaton");
        return;
    }
    if (!alive[0]) {
        f->states[0] = (struct fsm_state){.final = false};
        f->n_state = 1;
        f->n_edge = f->n_jump = 0;
        return;
    }
    uint32_t n = 1;
    for (uint32_t i = 1; i < f->n_state; i++)
        if (alive[i])
            alive[i] = ++n; /* new number + 1 */
    alive[0] = 1;
    n = 0;
    f->n_edge = f->n_jump = 0;
    for (uint32_t i = 0; i < f->n_state; i++) {
        struct fsm_state s = f->states[i], kept = {.edge = f->n_edge, .jump = f->n_jump};
        if (!alive[i])
            continue;
        kept.final = s.final;
        for (uint32_t k = 0; k < s.n_edge; k++) {
            struct fsm_edge e = f->edges[s.edge + k];
            if (alive[e.to])
                f->edges[f->n_edge++] = (struct fsm_edge){e.lo, e.hi, alive[e.to] - 1};
        }
        for (uint32_t k = 0; k < s.n_jump; k++) {
            struct fsm_jump j = f->jumps[s.jump + k];
            if (!alive[j.to])
                continue;
            j.to = alive[j.to] - 1;
            f->jumps[f->n_jump++] = j;
        }
        kept.n_edge = f->n_edge - kept.edge;
        kept.n_jump = f->n_jump - kept.jump;
        f->states[n++] = kept;
    }
    f->n_state = n;
}

/* Copies what the parts point to into the build, without dead states. */
const struct fsm *fsm_finish(struct build *b, const struct fsm *parts)
{
    struct fsm *f = build_alloc(b, 1, sizeof *f);
    uint32_t *alive = q_calloc(parts->n_state + 1, sizeof *alive);
    if (f && alive) {
        *f = *parts;
        f->states = build_alloc(b, f->n_state, sizeof *f->states);
        f->edges = build_alloc(b, f->n_edge, sizeof *f->edges);
        f->jumps = build_alloc(b, f->n_jump, sizeof *f->jumps);
    }
    if (f && alive && f->states && f->edges && f->jumps) {
        if (parts->states)
            memcpy(f->states, parts->states, f->n_state * sizeof *f->states);
        if (f->n_edge)
            memcpy(f->edges, parts->edges, f->n_edge * sizeof *f->edges);
        if (f->n_jump)
            memcpy(f->jumps, parts->jumps, f->n_jump * sizeof *f->jumps);
        trim(b, f, alive);
    } else {
        expr_fail(b, Q_NO_MEMORY, "out of memory for an automaton");
        f = NULL;
    }
    q_free(alive);
    return f;
}

/* The NFA as it is. Its state 1 is the final one. */
static const struct fsm *flatten(struct build *b, const struct nfa *a)
{
    struct fsm f = {.n_state = (uint32_t)a->n_state};
    f.states = build_alloc(b, a->n_state, sizeof *f.states);
    f.edges = build_alloc(b, a->n_edge, sizeof *f.edges);
    f.jumps = build_alloc(b, a->n_jump, sizeof *f.jumps);
    if (!f.states || !f.edges || !f.jumps)
        return NULL;
    for (uint32_t i = 0; i < f.n_state; i++) {
        struct fsm_state *s = &f.states[i];
        s->final = i == 1;
        s->edge = f.n_edge;
        s->jump = f.n_jump;
        for (uint32_t k = a->states[i].edge; k != NFA_NONE; k = a->edges[k].next)
            f.edges[f.n_edge++] = a->edges[k].is;
        for (uint32_t k = a->states[i].jump; k != NFA_NONE; k = a->jumps[k].next)
            f.jumps[f.n_jump++] = a->jumps[k].is;
        s->n_edge = f.n_edge - s->edge;
        s->n_jump = f.n_jump - s->jump;
    }
    return fsm_finish(b, &f);
}

/* n_state_max 0: at most some times as many as the NFA has. NULL without a failure kept: too many.
 */
static const struct fsm *make(struct build *b, const struct nfa *a, uint32_t n_state_max)
{
    struct maker m;
    const struct fsm *f = NULL;
    if (maker_init(&m, b, a, n_state_max)) {
        if (determinize(&m))
            f = fsm_finish(b, &(struct fsm){m.states, m.edges, m.jumps, (uint32_t)m.n_subset,
                                            (uint32_t)m.n_edge, (uint32_t)m.n_jump});
    } else {
        expr_fail(b, Q_NO_MEMORY, "out of memory for an automaton");
    }
    maker_release(&m);
    return f;
}

const struct fsm *fsm_of_chars(struct build *b, const struct expr *x, const char *what)
{
    struct nfa a;
    nfa_make(&a, b, x, NULL);
    const struct fsm *f = build_ok(b) ? make(b, &a, FSM_STATES_MAX) : NULL;
    nfa_release(&a);
    if (!f && what)
        expr_fail(b, Q_TOO_LARGE, "%s: the automaton needs more than %u states", what,
                  FSM_STATES_MAX);
    return f;
}

const struct fsm *fsm_of_bytes(struct build *b, const struct expr *x, const struct fsm_rules *r)
{
    struct nfa a;
    const struct fsm *f = NULL;
    nfa_make(&a, b, x, r);
    if (build_ok(b)) {
        size_t n = a.n_state * 3 + 64;
        f = make(b, &a, n < BYTE_STATES_MAX ? (uint32_t)n : BYTE_STATES_MAX);
    }
    if (!f && build_ok(b))
        f = flatten(b, &a);
    nfa_release(&a);
    return f;
}
