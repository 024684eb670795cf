/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/automaton/fsm_measure.h"

struct ways {     /* edges and jumps by their ends, for going backwards */
    uint32_t *at; /* [n_state + 1] what leads to i comes from from[at[i] … at[i + 1]) */
    uint32_t *from;
};

static void note_way(const struct ways *w, uint32_t from, uint32_t to, bool counts)
{
    if (counts)
        w->at[to]++;
    else
        w->from[--w->at[to]] = from;
}

static void note_ways(const struct fsm *f, const struct ways *w, bool counts)
{
    for (uint32_t i = 0; i < f->n_state; i++) {
        const struct fsm_state *s = &f->states[i];
        for (uint32_t k = 0; k < s->n_edge; k++)
            note_way(w, i, f->edges[s->edge + k].to, counts);
        for (uint32_t k = 0; k < s->n_jump; k++)
            note_way(w, i, f->jumps[s->jump + k].to, counts);
    }
}

bool fsm_mark_alive(struct build *b, const struct fsm *f, uint32_t *alive)
{
    size_t n_way = (size_t)f->n_edge + f->n_jump;
    struct ways w = {q_calloc(f->n_state + 1u, 4), q_alloc((n_way + 1) * 4)};
    uint32_t *queue = q_alloc((f->n_state + 1u) * 4), n = 0;
    bool ok = w.at && w.from && queue && build_work(b, (f->n_state + n_way) / 4);
    if (ok) {
        note_ways(f, &w, true);
        for (uint32_t i = 0, total = 0; i <= f->n_state; i++)
            w.at[i] = total += w.at[i];
        note_ways(f, &w, false); /* each `at` counts down from the end of its run to the start */
    }
    for (uint32_t i = 0; ok && i < f->n_state; i++)
        if (f->states[i].final) {
            alive[i] = 1;
            queue[n++] = i;
        }
    for (uint32_t at = 0; at < n; at++) {
        uint32_t i = queue[at];
        for (uint32_t k = w.at[i]; k < w.at[i + 1]; k++)
            if (!alive[w.from[k]]) {
                alive[w.from[k]] = alive[i] + 1;
                queue[n++] = w.from[k];
            }
    }
    q_free(w.at);
    q_free(w.from);
    q_free(queue);
    return ok;
}

uint32_t fsm_distances(struct build *b, const struct fsm *f, uint32_t *out)
{
    uint32_t most = 0;
    if (!fsm_mark_alive(b, f, out)) {
        build_fail(b, Q_NO_MEMORY, "out of memory for an automaton");
        return 0;
    }
    for (uint32_t i = 0; i < f->n_state; i++) {
        out[i] -= out[i] > 0;
        most = out[i] > most ? out[i] : most;
    }
    return most;
}

bool fsm_is_empty(const struct fsm *f)
{
    return !f->states[0].final && f->states[0].n_edge == 0 && f->states[0].n_jump == 0;
}

struct lengths { /* by state */
    uint32_t *entries, *queue, *low, *high;
};

/* The states in an order in which every edge leads on, as far as there is one: those on and behind
 * a loop are left out. */
static uint32_t in_order(const struct fsm *f, struct lengths *l)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < f->n_edge; i++)
        l->entries[f->edges[i].to]++;
    for (uint32_t i = 0; i < f->n_state; i++)
        if (!l->entries[i])
            l->queue[n++] = i;
    for (uint32_t i = 0; i < n; i++) {
        const struct fsm_state *s = &f->states[l->queue[i]];
        for (uint32_t k = 0; k < s->n_edge; k++) {
            uint32_t to = f->edges[s->edge + k].to;
            if (l->high[l->queue[i]] + 1 > l->high[to])
                l->high[to] = l->high[l->queue[i]] + 1;
            if (--l->entries[to] == 0)
                l->queue[n++] = to;
        }
    }
    return n;
}

/* Letters to each state from the start, by breadth. */
static void by_breadth(const struct fsm *f, struct lengths *l)
{
    uint32_t n = 1;
    for (uint32_t i = 0; i < f->n_state; i++)
        l->low[i] = i ? EXPR_INF : 0;
    l->queue[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct fsm_state *s = &f->states[l->queue[i]];
        for (uint32_t k = 0; k < s->n_edge; k++) {
            uint32_t to = f->edges[s->edge + k].to;
            if (l->low[to] == EXPR_INF) {
                l->low[to] = l->low[l->queue[i]] + 1;
                l->queue[n++] = to;
            }
        }
    }
}

bool fsm_lengths(struct build *b, const struct fsm *f, uint32_t *shortest, uint32_t *longest)
{
    struct lengths l = {build_alloc(b, f->n_state, 4), build_alloc(b, f->n_state, 4),
                        build_alloc(b, f->n_state, 4), build_alloc(b, f->n_state, 4)};
    if (!build_work(b, 1 + (f->n_state + f->n_edge) / 8) || !l.high)
        return false;
    bool finite = in_order(f, &l) == f->n_state, any = false;
    by_breadth(f, &l);
    *shortest = *longest = 0;
    for (uint32_t i = 0; i < f->n_state; i++) {
        if (!f->states[i].final || l.low[i] == EXPR_INF)
            continue;
        *shortest = !any || l.low[i] < *shortest ? l.low[i] : *shortest;
        *longest = l.high[i] > *longest ? l.high[i] : *longest;
        any = true;
    }
    if (!finite)
        *longest = EXPR_INF;
    return true;
}
