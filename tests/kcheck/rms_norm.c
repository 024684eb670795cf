/* SPDX-License-Identifier: Apache-2.0 */
#include "kcheck.h"
#include <math.h>

/* The formula in f64, for the reference itself: f32 sums of n squares are off by less than n *
 * 2^-24. */
static void near_f64(struct kcheck *k, const struct rms_norm_args *a, const float *x,
                     const float *y)
{
    for (uint32_t i = 0; i < a->n_row; i++) {
        double sum = 0;
        for (uint32_t c = 0; c < a->n_col; c++)
            sum += (double)x[i * a->x_stride + c] * x[i * a->x_stride + c];
        double r = 1 / sqrt(sum / a->n_col + a->eps);
        for (uint32_t c = 0; c < a->n_col; c++) {
            double want = x[i * a->x_stride + c] * r * a->w[c];
            kc_near(k, "y", y[i * a->y_stride + c], want,
                    fabs(want) * (a->n_col + 8) * 0x1p-24 + 1e-37);
        }
    }
}

void kcheck_rms_norm(struct kcheck *k)
{
    uint32_t n_row = kc_range(k, 0, 7), n_col = kc_range(k, 1, 400);
    enum dtype y_dtype = kc_chance(k, 50) ? DT_F32 : DT_BF16;
    bool in_place = y_dtype == DT_F32 && kc_chance(k, 40);
    size_t x_stride = n_col + kc_range(k, 0, 20),
           y_stride = in_place ? x_stride : n_col + kc_range(k, 0, 9);
    size_t n = n_row * (in_place ? x_stride : y_stride), element = dtype_bits(y_dtype) / 8;
    kc_shape(k, "n_row %u n_col %u %s%s", n_row, n_col, dtype_name(y_dtype),
             in_place ? " in place" : "");
    float *x = kc_buf(k, n_row * x_stride * sizeof *x), *w = kc_buf(k, n_col * sizeof *w);
    kc_fill(k, x, n_row * x_stride);
    kc_fill(k, w, n_col);
    void *got = in_place ? kc_copy(k, x, n * 4) : kc_buf(k, n * element);
    void *want = in_place ? kc_copy(k, x, n * 4) : kc_buf(k, n * element);
    struct rms_norm_args a = {
        .y = want,
        .y_dtype = y_dtype,
        .x = in_place ? want : x,
        .w = w,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = x_stride,
        .y_stride = y_stride,
        .eps = 1e-5f,
    };
    kc_run(k, k->ref, &a, 1);
    if (y_dtype == DT_F32 && !k->specials)
        near_f64(k, &a, x, want);
    a.y = got;
    a.x = in_place ? got : x;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "y", &(struct kc_array){got, y_dtype, n_row, n_col, y_stride},
               &(struct kc_array){want, y_dtype, n_row, n_col, y_stride});
    for (uint32_t i = 0; i < n_row; i++) { /* a row alone gives the same bits */
        struct rms_norm_args one = a;
        one.n_row = 1;
        one.x = x + i * x_stride;
        one.y = kc_buf(k, n_col * element);
        kc_run(k, k->variant, &one, 1);
        kc_same_bits(k, "row alone",
                     (struct kc_bits){one.y, (char *)got + i * y_stride * element, y_dtype, n_col});
    }
}

void kbench_rms_norm(struct kc_bench *b)
{
    const uint32_t n_row = 512, n_col = 896;
    struct rms_norm_args a = {
        .y_dtype = DT_BF16,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = n_col,
        .y_stride = n_col,
        .eps = 1e-6f,
    };
    float *x = kc_buf(b->k, n_row * n_col * sizeof *x), *w = kc_buf(b->k, n_col * sizeof *w);
    kc_fill(b->k, x, n_row * n_col);
    kc_fill(b->k, w, n_col);
    a.x = x;
    a.w = w;
    a.y = kc_buf(b->k, n_row * n_col * 2);
    kc_print_bytes(b, "512 x 896 -> bf16", kc_time(b, &a), n_row * (double)n_col * 6);
}
