/* SPDX-License-Identifier: Apache-2.0 */
#include "kcheck.h"
#include <math.h>
#include <string.h>

/* The formula in f64. d is off by the mean's error, which n sums of the row's magnitude make. */
static void near_f64(struct kcheck *k, const struct layer_norm_args *a, const float *x)
{
    for (uint32_t i = 0; i < a->n_row; i++) {
        const float *row = x + (a->rows ? a->rows[i] : i) * a->x_stride;
        double mean = 0, sum = 0, most = 0;
        for (uint32_t c = 0; c < a->n_col; c++) {
            mean += (double)row[c] / a->n_col;
            most = fmax(most, fabs((double)row[c]));
        }
        for (uint32_t c = 0; c < a->n_col; c++)
            sum += (row[c] - mean) * (row[c] - mean);
        const double r = 1 / sqrt(sum / a->n_col + a->eps);
        for (uint32_t c = 0; c < a->n_col; c++) {
            const double want = (row[c] - mean) * r * a->w[c] + (a->b ? a->b[c] : 0);
            const double slack = (most * r * fabs((double)a->w[c]) * (1 + most * r) + fabs(want)) *
                                 (a->n_col + 16) * 0x1p-24;
            kc_near(k, "y", ((const float *)a->y)[i * a->y_stride + c], want, slack + 1e-37);
        }
    }
}

static void check_rows_alone(struct kcheck *k, const struct layer_norm_args *a, const float *x,
                             size_t element)
{
    for (uint32_t i = 0; i < a->n_row; i++) {
        struct layer_norm_args one = *a;
        one.n_row = 1;
        one.rows = NULL;
        one.x = x + (a->rows ? a->rows[i] : i) * a->x_stride;
        one.y = kc_buf(k, a->n_col * element);
        kc_run(k, k->variant, &one, 1);
        kc_same_bits(k, "row alone",
                     (struct kc_bits){one.y, (const char *)a->y + i * a->y_stride * element,
                                      a->y_dtype, a->n_col});
    }
}

void kcheck_layer_norm(struct kcheck *k)
{
    const uint32_t n_row = kc_range(k, 0, 7), n_col = kc_range(k, 1, 400);
    const enum dtype y_dtype = kc_chance(k, 50) ? DT_F32 : DT_BF16;
    const bool in_place = y_dtype == DT_F32 && kc_chance(k, 40);
    const bool picks = !in_place && kc_chance(k, 40), has_bias = kc_chance(k, 60);
    const size_t x_stride = n_col + kc_range(k, 0, 20), element = dtype_bits(y_dtype) / 8;
    const size_t y_stride = in_place ? x_stride : n_col + kc_range(k, 0, 9);
    const size_t n = n_row * y_stride;
    kc_shape(k, "n_row %u n_col %u %s%s%s%s", n_row, n_col, dtype_name(y_dtype),
             in_place ? " in place" : "", picks ? " picked" : "", has_bias ? " bias" : "");
    float *x = kc_buf(k, n_row * x_stride * sizeof *x), *w = kc_buf(k, n_col * sizeof *w);
    float *b = kc_buf(k, n_col * sizeof *b);
    uint32_t *rows = kc_buf(k, (n_row + 1) * sizeof *rows);
    kc_fill(k, x, n_row * x_stride);
    kc_fill(k, w, n_col);
    kc_fill(k, b, n_col);
    for (uint32_t i = 0; i < n_row; i++)
        rows[i] = kc_range(k, 0, n_row - 1);
    void *got = in_place ? kc_copy(k, x, n * 4) : kc_buf(k, n * element);
    void *want = in_place ? kc_copy(k, x, n * 4) : kc_buf(k, n * element);
    struct layer_norm_args a = {
        .y = want,
        .y_dtype = y_dtype,
        .x = in_place ? want : x,
        .rows = picks ? rows : NULL,
        .w = w,
        .b = has_bias ? b : NULL,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = x_stride,
        .y_stride = y_stride,
        .eps = 1e-5f,
    };
    kc_run(k, k->ref, &a, 1);
    if (y_dtype == DT_F32 && !k->specials)
        near_f64(k, &a, x);
    a.y = got;
    a.x = in_place ? got : x;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "y", &(struct kc_array){got, y_dtype, n_row, n_col, y_stride},
               &(struct kc_array){want, y_dtype, n_row, n_col, y_stride});
    check_rows_alone(k, &a, x, element);
}

void kbench_layer_norm(struct kc_bench *b)
{
    const uint32_t n_row = 512, n_col = 896;
    struct layer_norm_args a = {
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
    a.w = a.b = w;
    a.y = kc_buf(b->k, n_row * n_col * 2);
    kc_print_bytes(b, "512 x 896 -> bf16", kc_time(b, &a), n_row * (double)n_col * 6);
}
