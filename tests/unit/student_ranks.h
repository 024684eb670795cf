/* SPDX-License-Identifier: Apache-2.0 */
/* student_ranks - tensor-parallel ranks of a student as threads of a test: their sums, and the
 * whole tensors of their parts. Threads: a test_meeting is shared by its ranks. */
#ifndef QUIRE_TESTS_UNIT_STUDENT_RANKS_H
#define QUIRE_TESTS_UNIT_STUDENT_RANKS_H
#include <pthread.h>
#include "student_run.h"

#define TEST_RANKS_MAX 4u

struct test_meeting { /* of the ranks */
    pthread_barrier_t barrier;
    const float *x[TEST_RANKS_MAX];
    uint32_t size;
};
struct test_rank {
    struct test_meeting *m;
    uint32_t i;
};

static inline enum q_code test_gather(void *ctx, const float *x, size_t n, float *out,
                                      struct q_err *e)
{
    const struct test_rank *r = ctx;
    (void)e;
    r->m->x[r->i] = x;
    pthread_barrier_wait(&r->m->barrier);
    for (uint32_t k = 0; k < r->m->size; k++)
        memcpy(out + k * n, r->m->x[k], n * sizeof *out);
    pthread_barrier_wait(&r->m->barrier);
    return Q_OK;
}

static inline enum q_code test_sum(void *ctx, float *x, size_t n, struct q_err *e)
{
    const struct test_rank *r = ctx;
    float *all = malloc((n ? n : 1) * r->m->size * sizeof *all);
    const enum q_code rc = test_gather(ctx, x, n, all, e);
    for (size_t i = 0; i < n; i++) {
        float sum = all[i];
        for (uint32_t k = 1; k < r->m->size; k++)
            sum += all[k * n + i];
        x[i] = sum;
    }
    free(all);
    return rc;
}

static inline struct tensor_group test_group_of(struct test_rank *r)
{
    return (struct tensor_group){r->i, r->m->size, test_sum, test_gather, r};
}

static inline void test_put_part(float *out, const float *g, const struct param_tensor *t)
{
    struct param_walk walk = {.t = t};
    struct param_piece piece;
    while (param_next_piece(&piece, &walk))
        for (size_t i = 0; i < piece.n; i++) {
            const float x = g[piece.of + i * piece.step];
            if (t->is_copy)
                assert_memory_equal(&out[piece.at + i], &x, sizeof x);
            out[piece.at + i] = x;
        }
}

/* A rank's part of a tensor's gradient into the whole, as it is stored; a copy has the bits of the
 * original, which an earlier rank has put there. */
static inline void test_put(float *out, const struct params *p, const char *name)
{
    for (uint32_t i = 0; i < p->n; i++)
        for (uint32_t j = 0; j < p->all[i].n_tensor; j++) {
            const struct param_tensor *t = &p->all[i].tensors[j];
            if (strcmp(t->name, name) == 0)
                test_put_part(out, p->g + p->all[i].at + (size_t)t->row * t->n_col, t);
        }
}

#endif
