/* SPDX-License-Identifier: Apache-2.0 */
#include "kcheck.h"
#include <math.h>

/* One row by the definition of ops.h, in f64. */
static void near_f64(struct kcheck *k, const float *x, uint32_t n_col,
                     const struct softmax_stats_args *a, uint32_t i)
{
    float max = -INFINITY;
    uint32_t argmax = 0;
    double sum = 0;
    for (uint32_t c = 0; c < n_col; c++)
        if (x[c] > max) {
            max = x[c];
            argmax = c;
        }
    for (uint32_t c = 0; c < n_col && max > -INFINITY; c++)
        sum += isnan(x[c]) ? 0 : x[c] == max ? 1 : exp((double)(x[c] - max));
    if (a->max[i] != max || a->argmax[i] != argmax)
        kc_fail(k, "row %u: max %g at %u, wanted %g at %u", i, a->max[i], a->argmax[i], max,
                argmax);
    kc_near(k, "sumexp", a->sumexp[i], sum, sum * k->variant->tolerance * 0x1p-24);
}

void kcheck_softmax_stats(struct kcheck *k)
{
    uint32_t n_row = kc_range(k, 0, 5), n_col = kc_range(k, 1, 700);
    size_t stride = n_col + kc_range(k, 0, 20);
    kc_shape(k, "n_row %u n_col %u", n_row, n_col);
    float *x = kc_buf(k, n_row * stride * sizeof *x), wide = kc_chance(k, 30) ? 200.0f : 10.0f;
    for (size_t i = 0; i < n_row * stride; i++)
        x[i] = kc_f32(k) * wide;
    for (uint32_t i = 0; i < n_row; i++) { /* rows that are all -inf or NaN, or have equal maxima */
        uint32_t kind = kc_range(k, 0, 5);
        for (uint32_t c = 0; c < n_col && kind < 2; c++)
            x[i * stride + c] = kind == 0 ? -INFINITY : NAN;
        for (uint32_t j = 0; j < 4 && kind == 2; j++)
            x[i * stride + kc_range(k, 0, n_col - 1)] = 300;
    }
    struct softmax_stats_args a = {
        .x = x,
        .x_stride = stride,
        .n_row = n_row,
        .n_col = n_col,
        .max = kc_buf(k, n_row * sizeof(float)),
        .argmax = kc_buf(k, n_row * sizeof(uint32_t)),
        .sumexp = kc_buf(k, n_row * sizeof(double)),
    };
    kc_run(k, k->variant, &a, kc_range(k, 1, 4));
    struct softmax_stats_args b = a;
    b.sumexp = kc_buf(k, n_row * sizeof(double));
    kc_same_as_sibling(k, &b, (struct kc_bits){b.sumexp, a.sumexp, DT_F64, n_row});
    for (uint32_t i = 0; i < n_row; i++) {
        near_f64(k, x + i * stride, n_col, &a, i);
        struct softmax_stats_args one = a;
        one.n_row = 1;
        one.x = x + i * stride;
        one.max = kc_buf(k, sizeof(float));
        one.argmax = kc_buf(k, sizeof(uint32_t));
        one.sumexp = kc_buf(k, sizeof(double));
        kc_run(k, k->variant, &one, 1);
        kc_same_bits(k, "row alone", (struct kc_bits){one.sumexp, &a.sumexp[i], DT_F64, 1});
    }
}

void kbench_softmax_stats(struct kc_bench *b)
{
    static float max[8];
    static uint32_t argmax[8];
    static double sumexp[8];
    const uint32_t n_row = 8, n_col = 151936;
    struct softmax_stats_args a = {
        .x_stride = n_col,
        .n_row = n_row,
        .n_col = n_col,
        .max = max,
        .argmax = argmax,
        .sumexp = sumexp,
    };
    float *x = kc_buf(b->k, (size_t)n_row * n_col * 4);
    kc_fill(b->k, x, (size_t)n_row * n_col);
    a.x = x;
    kc_print_bytes(b, "8 x 151936", kc_time(b, &a), n_row * (double)n_col * 4);
}
