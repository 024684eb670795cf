/* SPDX-License-Identifier: Apache-2.0 */
/* The optimiser against its formulas in f64, and its sums: which parameters count, and the same
 * bits with any number of threads and stages. */
#include <math.h>
#include "check.h"
#include "engine/distill/optimizer.h"
#include "engine/model/forward/program.h"

#define N_LAYER 2u
enum { EMBED, NORM, MATRIX, MATRIX_1, FINAL, HEAD, N_PARAM };
enum { N_STEP = 10, N_ELEMENT = 3 * 5008 + 3 * 48 };

static const struct optimizer_options options = {
    .lr = 1e-3,
    .min_lr = 1e-4,
    .beta1 = 0.9,
    .beta2 = 0.95,
    .eps = 1e-8,
    .weight_decay = 0.1,
    .max_grad_norm = 1,
    .warmup_steps = 3,
    .n_step = N_STEP,
};

struct fixture {
    struct param all[N_PARAM];
    struct params params;
    float w[N_ELEMENT], g[N_ELEMENT], m[N_ELEMENT], v[N_ELEMENT];
    struct kern_table kern;
    struct team *team;
    struct optimizer *optimizer;
};

static uint64_t random_state;

static float draw(void) /* -1 … 1 */
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(random_state >> 32) * 0x1p-31f;
}

static void add(struct fixture *f, uint32_t i, enum program_weight w, uint32_t layer)
{
    const bool is_vector = i == NORM || i == FINAL;
    struct param *p = &f->all[i];
    const size_t at = i ? p[-1].at + ((size_t)p[-1].n_row * p[-1].n_col + 15) / 16 * 16 : 0;
    *p = (struct param){
        .weight = w,
        .layer = layer,
        .n_row = is_vector ? 37 : 1001,
        .n_col = is_vector ? 1 : 5,
        .at = at,
        .decays = !is_vector,
    };
    p->n_tensor = is_vector ? 1 : 2; /* as gate and up */
    p->tensors[0] = (struct param_tensor){.n_row = is_vector ? 37 : 900, .n_col = p->n_col};
    p->tensors[1] = (struct param_tensor){.row = 900, .n_row = 101, .n_col = p->n_col};
}

static struct fixture *fixture_new(uint32_t n_thread, const char *isa)
{
    struct fixture *f = test_calloc(1, sizeof *f);
    struct q_err e = Q_ERR_INIT;
    uint32_t caps = 0;
    add(f, EMBED, PROGRAM_W_EMBED, PROGRAM_NO_LAYER);
    add(f, NORM, PROGRAM_W_ATTN_NORM, 0);
    add(f, MATRIX, PROGRAM_W_QKV, 0);
    add(f, MATRIX_1, PROGRAM_W_QKV, 1);
    add(f, FINAL, PROGRAM_W_FINAL_NORM, PROGRAM_NO_LAYER);
    f->params = (struct params){
        .all = f->all,
        .n = FINAL + 1,
        .n_element = N_ELEMENT,
        .w = f->w,
        .g = f->g,
        .m = f->m,
        .v = f->v,
    };
    random_state = 7;
    for (size_t i = 0; i < N_ELEMENT; i++) {
        f->w[i] = draw();
        f->g[i] = 0.01f * draw();
    }
    assert_ok(kern_caps_parse(&caps, isa, &e), &e);
    kern_table_cpu(&f->kern, caps);
    assert_ok(team_new(&f->team, n_thread, false, &e), &e);
    assert_ok(optimizer_new(&f->optimizer, &options, &f->params, &f->kern, f->team, &e), &e);
    return f;
}

static void fixture_free(struct fixture *f)
{
    optimizer_free(f->optimizer);
    team_free(f->team);
    test_free(f);
}

static double norm_of(struct fixture *f)
{
    double sums[OPTIMIZER_SUMS(N_LAYER)], sum = 0;
    optimizer_square_sums(f->optimizer, N_LAYER, sums);
    for (uint32_t i = 0; i < OPTIMIZER_SUMS(N_LAYER); i++)
        sum += sums[i];
    return sqrt(sum);
}

static void test_rate(void **state)
{
    (void)state;
    const struct optimizer_options *o = &options;
    const struct optimizer_options flat = {.lr = 2, .min_lr = 1, .warmup_steps = 0, .n_step = 4};
    const struct optimizer_options warm = {.lr = 2, .min_lr = 1, .warmup_steps = 4, .n_step = 4};
    assert_true(fabs(optimizer_lr(o, 1) - 1e-3 / 3) < 1e-18);
    assert_true(fabs(optimizer_lr(o, 3) - 1e-3) < 1e-18);
    assert_true(fabs(optimizer_lr(o, 4) - 0.0009554359905560886) < 1e-16); /* of a golden */
    assert_true(fabs(optimizer_lr(o, 10) - 1e-4) < 1e-18);
    assert_true(fabs(optimizer_lr(&flat, 1) - (1 + 0.5 * (1 + cos(M_PI / 4)))) < 1e-12);
    assert_true(fabs(optimizer_lr(&flat, 4) - 1) < 1e-12);
    assert_true(fabs(optimizer_lr(&flat, 9) - 1) < 1e-12); /* beyond the last one */
    assert_true(fabs(optimizer_lr(&warm, 4) - 2) < 1e-12);
    assert_true(fabs(optimizer_lr(&warm, 5) - 1) < 1e-12);
}

static void test_clip(void **state)
{
    (void)state;
    struct optimizer_options o = options;
    assert_true(fabs(optimizer_clip(&o, 4) - 1 / (4 + 1e-6)) < 1e-15);
    assert_true(optimizer_clip(&o, 0.5) == 1);
    o.max_grad_norm = 0;
    assert_true(optimizer_clip(&o, 4) == 1);
}

/* One element in f64, as ops_train.h and optimizer.h have it. */
struct element {
    double w, m, v;
};

static void step_f64(struct element *x, double g, double decay, uint64_t s)
{
    const double lr = optimizer_lr(&options, s);
    x->w *= 1 - lr * decay;
    x->m = 0.9 * x->m + 0.1 * g;
    x->v = 0.95 * x->v + 0.05 * g * g;
    x->w -=
        lr / (1 - pow(0.9, (double)s)) * x->m / (sqrt(x->v / (1 - pow(0.95, (double)s))) + 1e-8);
}

static void test_steps(void **state)
{
    static const char *const levels[] = {"none", "avx2", "avx512", "auto"};
    (void)state;
    for (size_t l = 0; l < sizeof levels / sizeof *levels; l++) {
        struct fixture *f = fixture_new(2, levels[l]);
        struct element *want = test_calloc(N_ELEMENT, sizeof *want);
        for (size_t i = 0; i < N_ELEMENT; i++)
            want[i].w = (double)f->w[i];
        for (uint64_t s = 1; s <= N_STEP; s++) {
            const double norm = norm_of(f), clip = optimizer_clip(&options, norm);
            for (uint32_t i = 0; i < f->params.n; i++)
                for (size_t j = 0; j < (size_t)f->all[i].n_row * f->all[i].n_col; j++)
                    step_f64(&want[f->all[i].at + j], clip * (double)f->g[f->all[i].at + j],
                             f->all[i].decays ? 0.1 : 0, s);
            optimizer_step(f->optimizer, s, s, norm);
            for (size_t i = 0; i < N_ELEMENT; i++)
                f->g[i] = (s == 5 ? 3.f : 0.02f) * draw(); /* clipped once */
        }
        for (uint32_t i = 0; i < f->params.n; i++)
            for (size_t j = 0; j < (size_t)f->all[i].n_row * f->all[i].n_col; j++) {
                const size_t at = f->all[i].at + j;
                if (fabs((double)f->w[at] - want[at].w) > 2e-6)
                    fail_msg("%s: parameter %u, element %zu: %.9g, in f64 %.9g", levels[l], i, j,
                             (double)f->w[at], want[at].w);
            }
        test_free(want);
        fixture_free(f);
    }
}

static void test_threads(void **state)
{
    (void)state;
    struct fixture *one = fixture_new(1, "auto"), *three = fixture_new(3, "auto");
    for (uint64_t s = 1; s <= 3; s++) {
        const double a = norm_of(one), b = norm_of(three);
        assert_memory_equal(&a, &b, sizeof a);
        optimizer_step(one->optimizer, s, s, a);
        optimizer_step(three->optimizer, s, s, b);
    }
    assert_memory_equal(one->w, three->w, sizeof one->w);
    assert_memory_equal(one->v, three->v, sizeof one->v);
    fixture_free(one);
    fixture_free(three);
}

static void test_what_counts(void **state)
{
    (void)state;
    struct fixture *f = fixture_new(1, "auto");
    double all[OPTIMIZER_SUMS(N_LAYER)], some[OPTIMIZER_SUMS(N_LAYER)] = {0};
    optimizer_square_sums(f->optimizer, N_LAYER, all);
    for (uint32_t i = 0; i < f->params.n; i++) {
        double sum = 0;
        for (size_t j = 0; j < (size_t)f->all[i].n_row * f->all[i].n_col; j++)
            sum += (double)f->g[f->all[i].at + j] * (double)f->g[f->all[i].at + j];
        const uint32_t place = i == EMBED ? 0 : i == FINAL ? N_LAYER + 1 : 1 + f->all[i].layer;
        some[place] += sum;
    }
    for (uint32_t i = 0; i < OPTIMIZER_SUMS(N_LAYER); i++)
        assert_true(fabs(all[i] - some[i]) <= 1e-12 * some[i] && some[i] > 0);
    /* of a tensor-parallel rank that is not the first: no norm, a part of a matrix */
    f->all[NORM].tensors[0].is_copy = f->all[MATRIX].tensors[1].is_copy = true;
    f->all[EMBED].tensors[0].is_copy = f->all[EMBED].tensors[1].is_copy = true;
    optimizer_square_sums(f->optimizer, N_LAYER, some);
    double sum = 0;
    for (size_t j = 0; j < 900 * 5; j++)
        sum += (double)f->g[f->all[MATRIX].at + j] * (double)f->g[f->all[MATRIX].at + j];
    assert_true(some[0] == 0 && fabs(some[1] - sum) <= 1e-12 * sum);
    assert_true(some[2] == all[2] && some[3] == all[3]);
    f->g[f->all[MATRIX_1].at + 5000] = NAN; /* in the last, partly filled block */
    optimizer_square_sums(f->optimizer, N_LAYER, some);
    assert_true(isnan(some[2]) && some[3] == all[3]);
    fixture_free(f);
}

/* A skipped step moves the rate on, but not the moments' bias. */
static void test_skipped(void **state)
{
    (void)state;
    struct fixture *f = fixture_new(1, "auto");
    struct element want = {.w = (double)f->w[0]};
    const double g = (double)f->g[0], lr = optimizer_lr(&options, 2);
    optimizer_step(f->optimizer, 2, 1, 0.5);
    want.w = want.w * (1 - lr * 0.1) - lr * g / (fabs(g) + 1e-8);
    assert_true(fabs((double)f->w[0] - want.w) < 1e-7);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate),        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_steps),       cmocka_unit_test(test_threads),
        cmocka_unit_test(test_what_counts), cmocka_unit_test(test_skipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
