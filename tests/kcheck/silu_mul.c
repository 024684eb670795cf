/* SPDX-License-Identifier: Apache-2.0 */
#include "kcheck.h"
#include <math.h>

void kcheck_silu_mul(struct kcheck *k)
{
    uint32_t n_row = kc_range(k, 0, 6), n_col = kc_range(k, 1, 300);
    enum dtype y_dtype = kc_chance(k, 50) ? DT_F32 : DT_BF16;
    size_t x_stride = 2 * n_col + kc_range(k, 0, 9), y_stride = n_col + kc_range(k, 0, 9);
    size_t element = dtype_bits(y_dtype) / 8, n = n_row * y_stride;
    kc_shape(k, "n_row %u n_col %u -> %s", n_row, n_col, dtype_name(y_dtype));
    float *x = kc_buf(k, n_row * x_stride * sizeof *x);
    float wide =
        kc_chance(k, 30) ? 110.0f : 8.0f; /* past where exp over- and underflows, or the usual */
    for (size_t i = 0; i < n_row * x_stride; i++)
        x[i] = kc_f32(k) * wide;
    void *got = kc_buf(k, n * element), *want = kc_buf(k, n * element);
    struct silu_mul_args a = {.y = want,
                              .y_dtype = y_dtype,
                              .x = x,
                              .n_row = n_row,
                              .n_col = n_col,
                              .x_stride = x_stride,
                              .y_stride = y_stride};
    kc_run(k, k->ref, &a, 1);
    /* below z = -88.7 exp overflows and y is 0 instead of at most 89 * e^-88.7 * 110 = 3e-35 */
    for (uint32_t i = 0; i < n_row && y_dtype == DT_F32 && !k->specials; i++)
        for (uint32_t c = 0; c < n_col; c++) {
            double z = x[i * x_stride + c], y = z / (1 + exp(-z)) * x[i * x_stride + n_col + c];
            kc_near(k, "y", ((float *)want)[i * y_stride + c], y, fabs(y) * 0x1p-21 + 1e-34);
        }
    a.y = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "y", &(struct kc_array){got, y_dtype, n_row, n_col, y_stride},
               &(struct kc_array){want, y_dtype, n_row, n_col, y_stride});
    a.y = want;
    kc_same_as_sibling(k, &a, (struct kc_bits){want, got, y_dtype, n});
    for (uint32_t i = 0; i < n_row; i++) {
        struct silu_mul_args one = a;
        one.n_row = 1;
        one.x = x + i * x_stride;
        one.y = kc_buf(k, n_col * element);
        kc_run(k, k->variant, &one, kc_range(k, 1, 5));
        kc_same_bits(k, "row alone",
                     (struct kc_bits){one.y, (char *)got + i * y_stride * element, y_dtype, n_col});
    }
}

void kbench_silu_mul(struct kc_bench *b)
{
    const uint32_t n_row = 256, n_col = 4864;
    struct silu_mul_args a = {.y_dtype = DT_BF16,
                              .n_row = n_row,
                              .n_col = n_col,
                              .x_stride = 2 * n_col,
                              .y_stride = n_col};
    float *x = kc_buf(b->k, (size_t)n_row * n_col * 8);
    kc_fill(b->k, x, (size_t)n_row * n_col * 2);
    a.x = x;
    a.y = kc_buf(b->k, (size_t)n_row * n_col * 2);
    kc_print_bytes(b, "256 x 4864 -> bf16", kc_time(b, &a), n_row * (double)n_col * 10);
}
