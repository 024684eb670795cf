/* SPDX-License-Identifier: Apache-2.0 */
/* head_linear: the reference against f64, variants against the reference, a row alone against the
 * row among others, and nothing written between the outputs of two heads. */
#include "kcheck.h"
#include <math.h>
#include <string.h>
#include "kernels/variants.h"

static uint32_t n_out(const struct head_linear_args *a)
{
    return a->transposed ? a->n_col : a->n_w;
}

static uint32_t n_in(const struct head_linear_args *a)
{
    return a->transposed ? a->n_w : a->n_col;
}

static void near_f64(struct kcheck *k, const struct head_linear_args *a, uint32_t i, uint32_t h)
{
    const float *x = a->x + i * a->x_stride + (size_t)h * a->x_head;
    const size_t at = i * a->y_stride + (size_t)h * a->y_head;
    for (uint32_t o = 0; o < n_out(a); o++) {
        double sum = 0, size = 0;
        for (uint32_t c = 0; c < n_in(a); c++) {
            const size_t row = (size_t)h * a->w_rows + a->w_first + (a->transposed ? c : o);
            const double w = kc_get(a->w, a->w_dtype, row * a->n_col + (a->transposed ? o : c));
            sum += x[c] * w;
            size += fabs(x[c] * w);
        }
        const double rounding = a->y_dtype == DT_F32 ? 0 : fabs(sum) * 0x1p-8;
        kc_near(k, "y", kc_get(a->y, a->y_dtype, at + o), sum,
                size * (n_in(a) + 4) * 0x1p-24 + rounding);
    }
    for (uint32_t c = 0; c < a->n_kept; c++)
        kc_near(k, "copied", kc_get(a->y, a->y_dtype, at + n_out(a) + c), x[n_in(a) + c], 0);
}

static void choose_case(struct kcheck *k, struct head_linear_args *a)
{
    static const uint32_t dtypes[] = {DT_F32, DT_F16, DT_BF16};
    *a = (struct head_linear_args){
        .y_dtype = kc_chance(k, 60) ? DT_F32 : DT_BF16,
        .w_dtype = (enum dtype)kc_pick(k, dtypes, 3),
        .n_w = kc_range(k, 1, 140),
        .n_col = kc_chance(k, 30) ? 512 : kc_range(k, 1, 150),
        .transposed = kc_chance(k, 50),
        .n_row = kc_range(k, 0, 9),
        .n_head = kc_range(k, 1, 5),
    };
    a->w_first = kc_range(k, 0, 5);
    a->w_rows = a->w_first + a->n_w + kc_range(k, 0, 5);
    a->n_kept = a->y_dtype == DT_F32 && kc_chance(k, 50) ? kc_range(k, 1, 70) : 0;
    a->x_head = n_in(a) + a->n_kept;
    a->y_head = n_out(a) + a->n_kept + kc_range(k, 0, 2);
    a->x_stride = (size_t)a->n_head * a->x_head + kc_range(k, 0, 5);
    a->y_stride = (size_t)a->n_head * a->y_head + kc_range(k, 0, 5);
    kc_shape(k, "%s rows %u heads %u, %u to %u, %u copied%s", dtype_name(a->w_dtype), a->n_row,
             a->n_head, n_in(a), n_out(a), a->n_kept, a->transposed ? ", transposed" : "");
}

void kcheck_head_linear(struct kcheck *k)
{
    struct head_linear_args a;
    k->specials = false;
    choose_case(k, &a);
    const size_t n_w = (size_t)a.n_head * a.w_rows * a.n_col, n_y = a.n_row * a.y_stride;
    const size_t element = dtype_bits(a.w_dtype) / 8, width = dtype_bits(a.y_dtype) / 8;
    float *x = kc_buf(k, (a.n_row * a.x_stride + 1) * sizeof *x);
    char *w = (char *)kc_buf(k, (n_w + 1) * element) + kc_range(k, 0, 1) * element;
    kc_fill(k, x, a.n_row * a.x_stride);
    kc_fill_dtype(k, w, a.w_dtype, n_w);
    a.x = x;
    a.w = w;
    void *want = a.y = kc_buf(k, (n_y + 1) * width);
    memset(want, 0, n_y * width);
    kc_run(k, k->ref, &a, 1);
    for (uint32_t i = 0; i < a.n_row; i++)
        near_f64(k, &a, i, kc_range(k, 0, a.n_head - 1));
    char *got = a.y = kc_buf(k, (n_y + 1) * width);
    memset(got, 0, n_y * width);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    const struct kc_array rows[] = {
        {got, a.y_dtype, a.n_row, a.y_stride, a.y_stride},
        {want, a.y_dtype, a.n_row, a.y_stride, a.y_stride},
    };
    kc_compare(k, "y", &rows[0], &rows[1]);
    struct head_linear_args one = a;
    one.n_row = 1;
    one.y = kc_buf(k, a.y_stride * width);
    for (uint32_t i = 0; i < a.n_row; i++) {
        one.x = x + i * a.x_stride;
        memset(one.y, 0, a.y_stride * width);
        kc_run(k, k->variant, &one, 1);
        kc_same_bits(k, "row alone",
                     (struct kc_bits){one.y, got + i * a.y_stride * width, a.y_dtype, a.y_stride});
    }
}

void kbench_head_linear(struct kc_bench *b)
{
    const uint32_t n_head = 16, rank = 512, nope = 128;
    struct head_linear_args a = {
        .y_dtype = DT_F32,
        .w_dtype = DT_BF16,
        .x_stride = (size_t)n_head * rank,
        .y_stride = (size_t)n_head * rank,
        .x_head = rank,
        .y_head = rank,
        .w_rows = nope,
        .n_w = nope,
        .n_col = rank,
        .n_row = 1,
        .n_head = n_head,
    };
    const double bytes = 2.0 * n_head * nope * rank;
    float *x = kc_buf(b->k, 64 * a.x_stride * sizeof *x);
    kc_fill(b->k, x, 64 * a.x_stride);
    a.x = x;
    a.y = kc_buf(b->k, 64 * a.y_stride * sizeof(float));
    a.w = kc_buf(b->k, (size_t)n_head * nope * rank * 2);
    for (a.transposed = 0; a.transposed < 2; a.transposed++) {
        a.n_row = 1;
        kc_print_bytes(b, a.transposed ? "1 x 16 heads 128 to 512" : "1 x 16 heads 512 to 128",
                       kc_time(b, &a), bytes);
        a.n_row = 64;
        kc_print_flop(b, a.transposed ? "64 x 16 heads 128 to 512" : "64 x 16 heads 512 to 128",
                      kc_time(b, &a), 64 * bytes);
    }
}
