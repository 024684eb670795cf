/* SPDX-License-Identifier: Apache-2.0 */
/* adamw and sum_squares: the step of the optimiser. */
#include "kcheck.h"
#include <math.h>

/* The step in f64, from the values before it. The relative error of the quotient is a few
 * roundings; what it is taken from may cancel. */
static void adamw_near(struct kcheck *k, const struct adamw_args *before,
                       const struct adamw_args *a, size_t i)
{
    const double g = a->grad_scale * before->g[i];
    const double m = a->beta1 * before->m[i] + (1 - a->beta1) * g;
    const double v = a->beta2 * before->v[i] + (1 - a->beta2) * g * g;
    const double m_size = fabs(a->beta1 * before->m[i]) + fabs((1 - a->beta1) * g);
    const double rate = a->lr / a->bias1 / (sqrt(v / a->bias2) + a->eps);
    const double w = before->w[i] * (1 - a->lr * a->weight_decay) - rate * m;
    kc_near(k, "m", a->m[i], m, m_size * 4 * 0x1p-24 + 1e-37);
    kc_near(k, "v", a->v[i], v, v * 8 * 0x1p-24 + 1e-37);
    kc_near(k, "w", a->w[i], w,
            (4 * fabs((double)before->w[i]) + 16 * rate * m_size) * 0x1p-24 + 1e-30);
}

void kcheck_adamw(struct kcheck *k)
{
    k->specials = false;
    const size_t n = kc_range(k, 0, 300), bytes = n * sizeof(float);
    const double step = kc_range(k, 1, 100);
    const bool with_bf16 = kc_chance(k, 50);
    float *w = kc_buf(k, bytes), *m = kc_buf(k, bytes), *v = kc_buf(k, bytes),
          *g = kc_buf(k, bytes);
    kc_fill(k, w, n);
    kc_fill(k, m, n);
    kc_fill(k, g, n);
    for (size_t i = 0; i < n; i++) {
        v[i] = fabsf(kc_f32(k));
        if (kc_chance(k, 20)) /* a row of an embedding that no token uses */
            g[i] = m[i] = v[i] = 0;
    }
    const struct adamw_args start = {
        .w = w,
        .m = m,
        .v = v,
        .g = g,
        .n = n,
        .lr = 1e-3,
        .beta1 = 0.9,
        .beta2 = kc_chance(k, 50) ? 0.95 : 0.999,
        .eps = 1e-8,
        .weight_decay = kc_chance(k, 50) ? 0.1 : 0,
        .grad_scale = kc_chance(k, 50) ? 1 : 0.37,
    };
    struct adamw_args a = start;
    a.bias1 = 1 - pow(a.beta1, step);
    a.bias2 = 1 - pow(a.beta2, step);
    kc_shape(k, "n %zu step %g%s", n, step, with_bf16 ? " bf16" : "");
    float *out[2][3];
    uint16_t *half[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++) {
        a.w = out[i][0] = kc_copy(k, w, bytes);
        a.m = out[i][1] = kc_copy(k, m, bytes);
        a.v = out[i][2] = kc_copy(k, v, bytes);
        a.w_bf16 = half[i] = with_bf16 ? kc_buf(k, n * 2) : NULL;
        kc_run(k, i ? k->variant : k->ref, &a, i ? kc_range(k, 1, 5) : 1);
        for (size_t j = 0; j < n && i == 0; j++)
            adamw_near(k, &start, &a, j);
    }
    for (int j = 0; j < 3; j++)
        kc_same_bits(k, "w, m or v", (struct kc_bits){out[0][j], out[1][j], DT_F32, n});
    for (size_t j = 0; j < n && with_bf16; j++)
        if (half[1][j] != f32_to_bf16(out[1][0][j]) || half[0][j] != half[1][j])
            kc_fail(k, "bf16 of element %zu", j);
}

void kbench_adamw(struct kc_bench *b)
{
    const size_t n = (size_t)8 << 20;
    struct adamw_args a = {
        .n = n,
        .lr = 1e-5,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .eps = 1e-8,
        .weight_decay = 0.1,
        .bias1 = 0.5,
        .bias2 = 0.5,
        .grad_scale = 1,
    };
    float *g = kc_buf(b->k, n * 4);
    kc_fill(b->k, g, n);
    a.g = g;
    a.w = kc_copy(b->k, g, n * 4);
    a.m = kc_copy(b->k, g, n * 4);
    a.v = kc_buf(b->k, n * 4);
    for (size_t i = 0; i < n; i++)
        a.v[i] = g[i] * g[i];
    kc_print_bytes(b, "8 Mi weights", kc_time(b, &a), (double)n * 28);
    a.w_bf16 = kc_buf(b->k, n * 2);
    kc_print_bytes(b, "8 Mi weights, and bf16", kc_time(b, &a), (double)n * 30);
}

void kcheck_sum_squares(struct kcheck *k)
{
    const size_t n = kc_chance(k, 50) ? kc_range(k, 0, 300) : kc_range(k, 1, 4 * KERN_SUM_BLOCK);
    const size_t n_sum = (n + KERN_SUM_BLOCK - 1) / KERN_SUM_BLOCK;
    float *x = kc_buf(k, n * sizeof *x);
    double *want = kc_buf(k, n_sum * sizeof *want), *got = kc_buf(k, n_sum * sizeof *got);
    kc_shape(k, "n %zu", n);
    kc_fill(k, x, n);
    if (k->specials && n)
        x[kc_range(k, 0, (uint32_t)n - 1)] = 3e38f;
    struct sum_squares_args a = {.x = x, .n = n, .sums = want};
    kc_run(k, k->ref, &a, 1);
    for (size_t b = 0; b < n_sum; b++) { /* not finite if and only if an element is not */
        double sum = 0;
        bool finite = true;
        for (size_t i = b * KERN_SUM_BLOCK; i < n && i < (b + 1) * KERN_SUM_BLOCK; i++) {
            finite &= isfinite(x[i]) != 0;
            sum += (double)x[i] * x[i];
        }
        if (finite != (isfinite(want[b]) != 0))
            kc_fail(k, "block %zu: sum %g", b, want[b]);
        kc_near(k, "sum", want[b], sum, sum * 0x1p-40);
    }
    a.sums = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    for (size_t b = 0; b < n_sum; b++)
        if (got[b] != want[b] && !(isnan(got[b]) && isnan(want[b])))
            kc_fail(k, "block %zu: %a, wanted %a", b, got[b], want[b]);
    k->n_compared += n_sum;
}

void kbench_sum_squares(struct kc_bench *b)
{
    const size_t n = (size_t)16 << 20;
    struct sum_squares_args a = {.n = n};
    float *x = kc_buf(b->k, n * 4);
    kc_fill(b->k, x, n);
    a.x = x;
    a.sums = kc_buf(b->k, n / KERN_SUM_BLOCK * sizeof *a.sums);
    kc_print_bytes(b, "16 Mi", kc_time(b, &a), (double)n * 4);
}
