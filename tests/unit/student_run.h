/* SPDX-License-Identifier: Apache-2.0 */
/* student_run - runs a student in tests: random micro batches through all of its stages, with a
 * loss of the residual stream behind the last layer:
 *     loss = sum_i,c u[i,c] y[i,c] + y[i,c]^2 / 4        u random, fixed by its index
 * For tests of engine/distill. Threads: the test's. */
#ifndef QUIRE_TESTS_UNIT_STUDENT_RUN_H
#define QUIRE_TESTS_UNIT_STUDENT_RUN_H
#include <math.h>
#include <stdlib.h>
#include "check.h"
#include "common/file.h"
#include "engine/distill/student.h"

#define TEST_ROWS_MAX     640u
#define TEST_SEGMENTS_MAX 8u
#define TEST_STAGES_MAX   4u

struct test_batch {
    uint32_t ids[TEST_ROWS_MAX], positions[TEST_ROWS_MAX];
    int32_t labels[TEST_ROWS_MAX];
    struct train_segment segments[TEST_SEGMENTS_MAX];
    struct micro_batch b;
};

static inline uint32_t test_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
    return (uint32_t)(*state >> 33);
}

static inline float test_uniform(uint64_t *state)
{
    return (float)((int32_t)(test_random(state) % 2001) - 1000) / 1000;
}

/* lengths: of the segments, up to a 0. */
static inline void test_batch_fill(struct test_batch *t, const uint32_t *lengths, uint32_t vocab,
                                   uint64_t seed)
{
    uint32_t n = 0, n_segment = 0;
    for (; lengths[n_segment]; n_segment++) {
        t->segments[n_segment] = (struct train_segment){n, lengths[n_segment]};
        for (uint32_t i = 0; i < lengths[n_segment]; i++, n++) {
            t->ids[n] = test_random(&seed) % vocab;
            t->positions[n] = i;
            t->labels[n] = -1;
        }
    }
    assert_true(n <= TEST_ROWS_MAX && n_segment <= TEST_SEGMENTS_MAX);
    t->b = (struct micro_batch){
        .n_row = n,
        .n_segment = n_segment,
        .ids = t->ids,
        .positions = t->positions,
        .segments = t->segments,
        .labels = t->labels,
    };
}

struct test_options { /* of a student; zeros: one f32 stage, one thread, the machine's kernels */
    const char *dir;
    uint32_t n_thread, n_cut; /* n_cut: layers of each stage; 0: one stage */
    uint32_t n_slot;
    enum dtype compute;
    bool recompute, has_no_head;
    uint32_t isa_set, isa; /* kernels of `isa` when set */
    struct tensor_group group;
};

struct test_student {
    struct kern_table kern;
    struct team *team;
    struct student *s;
    uint32_t n_stage, hidden, n_layer;
};

static inline uint32_t test_layers_of(const char *dir)
{
    struct model_config *c = malloc(sizeof *c); /* ranks are threads: nothing static */
    struct q_err e = Q_ERR_INIT;
    const uint32_t n = model_config_load(c, NULL, dir, &e) == Q_OK ? c->n_layer : 1;
    free(c);
    return n;
}

static inline enum q_code test_student_open(struct test_student *t, const struct test_options *o,
                                            struct q_err *e)
{
    struct stage_layers stages[TEST_STAGES_MAX];
    *t = (struct test_student){.n_layer = test_layers_of(o->dir)};
    const uint32_t cut = o->n_cut ? o->n_cut : t->n_layer;
    kern_table_cpu(&t->kern, o->isa_set ? o->isa : kern_caps_machine());
    if (o->n_thread > 1)
        assert_ok(team_new(&t->team, o->n_thread, false, e), e);
    for (uint32_t first = 0; first < t->n_layer; first += cut) {
        const bool is_last = t->n_layer - first <= cut;
        assert_true(t->n_stage < TEST_STAGES_MAX);
        stages[t->n_stage++] = (struct stage_layers){
            .first = first,
            .n = is_last ? t->n_layer - first : cut,
            .has_embedding = first == 0,
            .has_head = is_last && !o->has_no_head,
        };
    }
    const enum q_code rc = student_load(&t->s,
                                        &(struct student_options){
                                            .dir = o->dir,
                                            .kern = &t->kern,
                                            .team = t->team,
                                            .compute = o->compute,
                                            .stages = stages,
                                            .n_stage = t->n_stage,
                                            .n_slot = o->n_slot ? o->n_slot : 1,
                                            .n_row_max = TEST_ROWS_MAX,
                                            .recompute = o->recompute,
                                            .no_optimizer = true,
                                            .tensor_parallel = o->group,
                                        },
                                        e);
    if (!rc)
        t->hidden = student_config(t->s)->hidden_size;
    return rc;
}

static inline void test_student_close(struct test_student *t)
{
    student_free(t->s);
    team_free(t->team);
    *t = (struct test_student){0};
}

/* y: [n_row, hidden], the stream behind the last layer. */
static inline void test_forward(struct test_student *t, const struct micro_batch *b, uint32_t slot,
                                float *y)
{
    struct q_err e = Q_ERR_INIT;
    const float *x = NULL;
    for (uint32_t i = 0; i < t->n_stage; i++)
        assert_ok(student_forward(t->s, &(struct student_pass){i, slot, b}, x, &x, &e), &e);
    for (size_t i = 0; i < (size_t)b->n_row * t->hidden; i++)
        y[i] = x ? x[i] : NAN;
}

static inline void test_backward(struct test_student *t, const struct micro_batch *b, uint32_t slot,
                                 float *dy)
{
    struct q_err e = Q_ERR_INIT;
    float *dx = dy;
    for (uint32_t i = t->n_stage; i-- > 0;)
        assert_ok(student_backward(t->s, &(struct student_pass){i, slot, b}, dx, &dx, &e), &e);
    assert_null(dx);
}

static inline float test_u(size_t i)
{
    return (float)((int32_t)(i * 2654435761u % 2001) - 1000) / 1000;
}

static inline double test_loss(const float *y, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)test_u(i) * y[i] + (double)y[i] * y[i] / 4;
    return sum;
}

static inline void test_loss_grad(float *dy, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dy[i] = test_u(i) + y[i] / 2;
}

/* Loss and gradients (added) of a micro batch. */
static inline double test_step(struct test_student *t, const struct micro_batch *b, uint32_t slot)
{
    static float y[TEST_ROWS_MAX * 256], dy[TEST_ROWS_MAX * 256];
    const size_t n = (size_t)b->n_row * t->hidden;
    assert_true(t->hidden <= 256);
    test_forward(t, b, slot, y);
    test_loss_grad(dy, y, n);
    test_backward(t, b, slot, dy);
    return test_loss(y, n);
}

#endif
