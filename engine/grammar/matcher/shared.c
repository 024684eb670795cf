/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/grammar/matcher/shared.h"
#include <string.h>
#include "common/mem.h"
#include "engine/grammar/matcher/counted_table.h"

static bool put_word(struct shared_key *k, uint32_t word)
{
    if (k->n == SHARED_KEY_MAX)
        return false;
    k->words[k->n++] = word;
    return true;
}

bool shared_key_add(struct shared_key *k, const struct program *p, uint32_t state)
{
    uint32_t states[SHARED_STATES_MAX] = {state}, n = 1;
    for (uint32_t i = 0; i < n; i++) {
        const struct program_state *s = &p->states[states[i]];
        if (s->n_jump || !put_word(k, s->n_edge))
            return false;
        for (uint32_t j = 0; j < (s->n_edge & ~PROGRAM_FINAL); j++) {
            const struct program_edge *t = &p->edges[s->edge + j];
            uint32_t to = 0;
            while (to < n && states[to] != t->to)
                to++;
            if (to == SHARED_STATES_MAX || !put_word(k, t->bytes) || !put_word(k, to))
                return false;
            if (to == n)
                states[n++] = t->to;
        }
    }
    return put_word(k, UINT32_MAX);
}

void shared_drop(struct shared_walk *x)
{
    q_free(x->key);
    q_free(x->bits);
    q_free(x->outs);
    counted_loop_table_unref(x->table);
    *x = (struct shared_walk){.key = NULL};
}

void shared_walks_free(struct shared_walks *w)
{
    for (uint32_t i = 0; w && i < SHARED_WALKS_MAX; i++)
        shared_drop(&w->items[i]);
    q_free(w);
}

struct shared_walk *shared_find(struct shared_walks *w, const struct shared_key *k)
{
    for (uint32_t i = 0; i < SHARED_WALKS_MAX; i++) {
        struct shared_walk *x = &w->items[i];
        if (x->n_key == k->n && x->key && !memcmp(x->key, k->words, k->n * sizeof *k->words)) {
            x->used = ++w->n_use;
            return x;
        }
    }
    return NULL;
}

struct shared_walk *shared_add(struct shared_walks *w, const struct shared_key *k)
{
    struct shared_walk *x = &w->items[0];
    for (uint32_t i = 1; i < SHARED_WALKS_MAX; i++)
        if (w->items[i].used < x->used)
            x = &w->items[i];
    shared_drop(x);
    x->key = q_alloc(k->n * sizeof *x->key);
    if (!x->key)
        return NULL;
    memcpy(x->key, k->words, k->n * sizeof *x->key);
    x->n_key = k->n;
    x->used = ++w->n_use;
    return x;
}
