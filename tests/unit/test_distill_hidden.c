/* SPDX-License-Identifier: Apache-2.0 */
/* The loss of hidden states against its formulas in f64, with a projection and without, rows of
 * zeros among them; the same bits with any number of threads. */
#include <math.h>
#include <string.h>
#include "check.h"
#include "common/mem.h"
#include "engine/distill/hidden_loss.h"
#include "engine/distill/row_product.h"

enum { N_ROW = 19, N_TEACHER = 24, N_STUDENT = 40, WIDTH_MAX = 40 };
#define N_POSITION 50.0
#define WEIGHT     0.7

struct fixture {
    float h[N_ROW * WIDTH_MAX], t[N_ROW * N_TEACHER], p[N_TEACHER * WIDTH_MAX];
    float dh[N_ROW * WIDTH_MAX], dp[N_TEACHER * WIDTH_MAX]; /* of the functions under test */
    double want_dh[N_ROW * WIDTH_MAX], want_dp[N_TEACHER * WIDTH_MAX], sum, want_sum;
};

static uint64_t random_state;

static float draw(void) /* -1 … 1 */
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(random_state >> 32) * 0x1p-31f;
}

static void fill(struct fixture *f)
{
    random_state = 1;
    for (size_t i = 0; i < sizeof f->h / sizeof *f->h; i++)
        f->h[i] = draw();
    for (size_t i = 0; i < sizeof f->t / sizeof *f->t; i++)
        f->t[i] = draw();
    for (size_t i = 0; i < sizeof f->p / sizeof *f->p; i++)
        f->p[i] = draw() / 4;
    memset(f->t + 3 * N_TEACHER, 0, N_TEACHER * sizeof *f->t);
    memset(f->dh, 0, sizeof f->dh);
    memset(f->dp, 0, sizeof f->dp);
}

/* ---- the formulas ---- */

static double row_loss(enum hidden_kind kind, const double *p, const float *t, double *d)
{
    double pp = 0, tt = 0, pt = 0, sum = 0;
    for (uint32_t i = 0; i < N_TEACHER; i++) {
        pp += p[i] * p[i];
        tt += (double)t[i] * t[i];
        pt += p[i] * t[i];
        sum += (p[i] - t[i]) * (p[i] - t[i]);
    }
    for (uint32_t i = 0; i < N_TEACHER; i++)
        if (kind == HIDDEN_MSE)
            d[i] = 2 * (p[i] - t[i]) / N_TEACHER;
        else
            d[i] = pp > 0 && tt > 0 ? (pt / pp * p[i] - t[i]) / sqrt(pp * tt) : 0;
    if (kind == HIDDEN_MSE)
        return sum / N_TEACHER;
    return pp > 0 && tt > 0 ? 1 - pt / sqrt(pp * tt) : 1;
}

/* n: columns of h. */
static void compute(struct fixture *f, enum hidden_kind kind, uint32_t n, bool projected)
{
    memset(f->want_dh, 0, sizeof f->want_dh);
    memset(f->want_dp, 0, sizeof f->want_dp);
    f->want_sum = 0;
    for (uint32_t r = 0; r < N_ROW; r++) {
        double p[N_TEACHER] = {0}, d[N_TEACHER];
        for (uint32_t i = 0; i < N_TEACHER; i++)
            for (uint32_t k = 0; k < n; k++)
                p[i] += (projected ? (double)f->p[i * n + k] : i == k) * f->h[r * n + k];
        f->want_sum += row_loss(kind, p, f->t + (size_t)r * N_TEACHER, d);
        for (uint32_t i = 0; i < N_TEACHER; i++)
            for (uint32_t k = 0; k < n; k++) {
                const double g = d[i] * WEIGHT / N_POSITION;
                f->want_dh[r * n + k] += g * (projected ? (double)f->p[i * n + k] : i == k);
                f->want_dp[i * n + k] += g * f->h[r * n + k];
            }
    }
}

/* ---- the functions ---- */

struct packs {
    void *w, *columns, *h, *slices;
};

static void make_packs(struct packs *k, struct head_weights *w, const struct fixture *f)
{
    const struct kern_exec one = {.ith = 0, .nth = 1};
    const uint32_t n = w->hidden;
    k->w = q_alloc_huge(packed_bytes(DT_F32, N_TEACHER, n));
    k->columns = q_alloc_huge(packed_bytes(DT_F32, n, N_TEACHER));
    w->kern->pack(
        &(struct pack_args){
            .dst = k->w,
            .dst_dtype = DT_F32,
            .src = f->p,
            .src_dtype = DT_F32,
            .n_out = N_TEACHER,
            .n_in = n,
            .n_out_total = N_TEACHER,
        },
        &one);
    w->kern->pack_columns(
        &(struct pack_columns_args){
            .dst = k->columns,
            .dst_dtype = DT_F32,
            .src = f->p,
            .src_dtype = DT_F32,
            .n_out = n,
            .n_in = N_TEACHER,
            .src_stride = n,
        },
        &one);
    w->projection = (struct packed){
        .data = k->w,
        .n_out = N_TEACHER,
        .n_in = n,
        .dtype = DT_F32,
    };
    w->projection_columns = (struct packed){
        .data = k->columns,
        .n_out = n,
        .n_in = N_TEACHER,
        .dtype = DT_F32,
    };
}

static void pack_h(struct packs *k, const struct head_weights *w, const struct fixture *f)
{
    const struct kern_exec one = {.ith = 0, .nth = 1};
    k->h = q_alloc_huge(packed_bytes(DT_F32, w->hidden, N_ROW));
    k->slices = q_alloc_huge(4 * ROW_PRODUCT_SLICE * 32 * sizeof(float));
    w->kern->pack_columns(
        &(struct pack_columns_args){
            .dst = k->h,
            .dst_dtype = DT_F32,
            .src = f->h,
            .src_dtype = DT_F32,
            .n_out = w->hidden,
            .n_in = N_ROW,
            .src_stride = w->hidden,
        },
        &one);
}

static void run(struct fixture *f, enum hidden_kind kind, uint32_t n, uint32_t n_thread)
{
    struct q_err e = Q_ERR_INIT;
    struct kern_table kern;
    struct team *team = NULL;
    struct hidden_loss *l = NULL;
    struct packs k = {NULL, NULL, NULL, NULL};
    const struct hidden_options o = {kind, WEIGHT, N_TEACHER};
    kern_table_cpu(&kern, kern_caps_machine());
    assert_ok(team_new(&team, n_thread, false, &e), &e);
    struct head_weights w = {
        .kern = &kern,
        .team = team,
        .compute = DT_F32,
        .hidden = n,
        .projection_grad = f->dp,
    };
    fill(f);
    pack_h(&k, &w, f);
    if (hidden_projection_rows(&o, n))
        make_packs(&k, &w, f);
    assert_ok(hidden_loss_new(&l, &w, &o, N_ROW, &e), &e);
    assert_true(hidden_loss_bytes(l) > 0);
    f->sum = hidden_loss_forward(l, &(struct hidden_rows){N_ROW, f->h, f->t, N_POSITION});
    hidden_loss_backward(l, &(struct hidden_grads){N_ROW, f->dh, k.h, k.slices, 32});
    hidden_loss_free(l);
    team_free(team);
    q_free(k.w);
    q_free(k.columns);
    q_free(k.h);
    q_free(k.slices);
}

static void assert_near(const float *got, const double *want, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs(want[i]));
    for (size_t i = 0; i < n; i++)
        assert_true(fabs(got[i] - want[i]) <= 1e-5 * most + 1e-12);
}

static void test_formulas(void **state)
{
    static struct fixture f, again;
    static const uint32_t widths[] = {N_TEACHER, N_STUDENT};
    static const enum hidden_kind kinds[] = {HIDDEN_COSINE, HIDDEN_MSE};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        const uint32_t n = widths[i % 2];
        const enum hidden_kind kind = kinds[i / 2];
        run(&f, kind, n, 1);
        compute(&f, kind, n, n != N_TEACHER);
        assert_true(fabs(f.sum - f.want_sum) <= 1e-6 * f.want_sum);
        assert_near(f.dh, f.want_dh, (size_t)N_ROW * n);
        if (n != N_TEACHER)
            assert_near(f.dp, f.want_dp, (size_t)N_TEACHER * n);
        run(&again, kind, n, 3);
        assert_true(again.sum == f.sum);
        assert_memory_equal(again.dh, f.dh, sizeof f.dh);
        assert_memory_equal(again.dp, f.dp, sizeof f.dp);
    }
}

static void test_projection(void **state)
{
    (void)state;
    assert_int_equal(hidden_projection_rows(&(struct hidden_options){HIDDEN_MSE, 1, 24}, 24), 0);
    assert_int_equal(hidden_projection_rows(&(struct hidden_options){HIDDEN_MSE, 1, 24}, 16), 24);
    assert_int_equal(hidden_projection_rows(&(struct hidden_options){HIDDEN_NONE, 1, 24}, 16), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_projection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
