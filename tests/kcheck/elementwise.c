/* SPDX-License-Identifier: Apache-2.0 */
/* add_rows, soft_cap and gate_rows. */
#include "kcheck.h"
#include <math.h>

void kcheck_add_rows(struct kcheck *k)
{
    const uint32_t n_row = kc_range(k, 0, 6), n_col = kc_range(k, 1, 300);
    const size_t x_stride = n_col + kc_range(k, 0, 9), y_stride = n_col + kc_range(k, 0, 9);
    const size_t n = n_row * y_stride;
    const float scale = kc_chance(k, 50) ? 1 : 0.22f;
    const bool grows = kc_chance(k, 30), has_by = kc_chance(k, 30);
    kc_shape(k, "n_row %u n_col %u scale %g%s%s", n_row, n_col, (double)scale,
             grows ? " grows" : "", has_by ? " by a number" : "");
    float *by = kc_buf(k, sizeof *by);
    *by = has_by ? 0.5f + kc_f32(k) * kc_f32(k) : 1;
    uint32_t *positions = kc_buf(k, (n_row + 1) * sizeof *positions);
    for (uint32_t i = 0; i < n_row; i++)
        positions[i] = kc_range(k, 0, 100000);
    float *x = kc_buf(k, n_row * x_stride * sizeof *x), *y = kc_buf(k, n * sizeof *y);
    kc_fill(k, x, n_row * x_stride);
    kc_fill(k, y, n);
    float *want = kc_copy(k, y, n * sizeof *y), *got = kc_copy(k, y, n * sizeof *y);
    struct add_rows_args a = {
        .y = want,
        .x = x,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = x_stride,
        .y_stride = y_stride,
        .scale = scale,
        .by = has_by ? by : NULL,
        .positions = grows ? positions : NULL,
        .first = kc_range(k, 0, 1),
        .growth = 0.1f,
        .length = 96,
        .set = kc_chance(k, 30),
    };
    kc_run(k, k->ref, &a, 1);
    for (uint32_t i = 0; i < n_row && !k->specials; i++)
        for (uint32_t c = 0; c < n_col; c++) {
            const double more =
                grows ? 1 + 0.1f * log1p(floor((positions[i] + a.first) / 96.0)) : 1;
            const double part = (double)scale * *by * more * x[i * x_stride + c],
                         old = a.set ? 0 : y[i * y_stride + c];
            kc_near(k, "y", want[i * y_stride + c], old + part,
                    (fabs(part) + fabs(old)) *
                            (grows    ? 9
                             : has_by ? 3.1
                                      : 2.1) *
                            0x1p-24 +
                        1e-37);
        }
    a.y = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, n_row, n_col, y_stride},
               &(struct kc_array){want, DT_F32, n_row, n_col, y_stride});
}

static double capped(double x, double cap, int hard)
{
    return hard ? fmin(fmax(x, -cap), cap) : cap * tanh(x / cap);
}

void kcheck_soft_cap(struct kcheck *k)
{
    const uint32_t n_row = kc_range(k, 0, 6), n_col = kc_range(k, 1, 300);
    const size_t stride = n_col + kc_range(k, 0, 9), n = n_row * stride;
    const float cap = kc_chance(k, 50) ? 30 : 1.5f;
    const int hard = kc_chance(k, 30);
    kc_shape(k, "n_row %u n_col %u cap %g%s", n_row, n_col, (double)cap, hard ? " hard" : "");
    float *x = kc_buf(k, n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = kc_f32(k) * (kc_chance(k, 20) ? 0.5f : 100);
    float *want = kc_copy(k, x, n * sizeof *x), *got = kc_copy(k, x, n * sizeof *x);
    struct soft_cap_args a = {
        .x = want,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = stride,
        .cap = cap,
        .hard = hard,
    };
    kc_run(k, k->ref, &a, 1);
    for (uint32_t i = 0; i < n_row && !k->specials; i++)
        for (uint32_t c = 0; c < n_col; c++) {
            const double y = capped(x[i * stride + c], cap, hard);
            kc_near(k, "x", want[i * stride + c], y, fabs(y) * 5 * 0x1p-24 + 1e-37);
        }
    a.x = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    for (uint32_t i = 0; i < n_row && !k->specials; i++)
        for (uint32_t c = 0; c < n_col; c++) {
            const double y = capped(x[i * stride + c], cap, hard);
            kc_near(k, "x", got[i * stride + c], y, fabs(y) * 6 * 0x1p-24 + 1e-37);
        }
    kc_compare(k, "x", &(struct kc_array){got, DT_F32, n_row, n_col, stride},
               &(struct kc_array){want, DT_F32, n_row, n_col, stride});
}

void kbench_add_rows(struct kc_bench *b)
{
    const uint32_t n_row = 256, n_col = 2304;
    float *x = kc_buf(b->k, (size_t)n_row * n_col * 4),
          *y = kc_buf(b->k, (size_t)n_row * n_col * 4);
    const struct add_rows_args a = {
        .y = y,
        .x = x,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = n_col,
        .y_stride = n_col,
        .scale = 1,
    };
    kc_fill(b->k, x, (size_t)n_row * n_col);
    kc_fill(b->k, y, (size_t)n_row * n_col);
    kc_print_bytes(b, "256 x 2304", kc_time(b, &a), n_row * (double)n_col * 12);
}

void kbench_soft_cap(struct kc_bench *b)
{
    const uint32_t n_col = 256000;
    float *x = kc_buf(b->k, n_col * sizeof *x);
    const struct soft_cap_args a = {
        .x = x,
        .n_row = 1,
        .n_col = n_col,
        .x_stride = n_col,
        .cap = 30,
    };
    kc_fill(b->k, x, n_col);
    kc_print_bytes(b, "1 x 256000", kc_time(b, &a), n_col * 8.0);
}

void kcheck_gate_rows(struct kcheck *k)
{
    const uint32_t n_row = kc_range(k, 0, 6), n_col = kc_range(k, 1, 300);
    const size_t stride = 2 * n_col + kc_range(k, 0, 9), y_stride = n_col + kc_range(k, 0, 9);
    kc_shape(k, "n_row %u n_col %u", n_row, n_col);
    float *x = kc_buf(k, n_row * stride * sizeof *x);
    float *want = kc_buf(k, n_row * y_stride * sizeof *x);
    float *got = kc_buf(k, n_row * y_stride * sizeof *x);
    kc_fill(k, x, n_row * stride);
    struct gate_rows_args a = {
        .y = want,
        .x = x,
        .gate = x + n_col,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = stride,
        .gate_stride = stride,
        .y_stride = y_stride,
        .by = (enum kern_gate)kc_range(k, KERN_GATE_SIGMOID, KERN_GATE_PRODUCT),
    };
    kc_run(k, k->ref, &a, 1);
    for (uint32_t i = 0; i < n_row && !k->specials; i++)
        for (uint32_t c = 0; c < n_col; c++) {
            const double gate = a.gate[i * stride + c];
            const double by = a.by == KERN_GATE_SIGMOID ? 1 : gate;
            const double part = a.by == KERN_GATE_PRODUCT ? 1 : 1 + exp(-gate);
            const double y = x[i * stride + c] * by / part;
            kc_near(k, "y", want[i * y_stride + c], y, fabs(y) * 5 * 0x1p-24 + 1e-37);
        }
    a.y = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, n_row, n_col, y_stride},
               &(struct kc_array){want, DT_F32, n_row, n_col, y_stride});
}

void kbench_gate_rows(struct kc_bench *b)
{
    const uint32_t n_row = 256, n_col = 4096;
    const size_t n = (size_t)n_row * n_col;
    float *x = kc_buf(b->k, 2 * n * sizeof *x), *y = kc_buf(b->k, n * sizeof *y);
    const struct gate_rows_args a = {
        .y = y,
        .x = x,
        .gate = x + n_col,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = 2 * n_col,
        .gate_stride = 2 * n_col,
        .y_stride = n_col,
    };
    kc_fill(b->k, x, 2 * n);
    kc_print_bytes(b, "256 x 4096", kc_time(b, &a), (double)n * 12);
}
