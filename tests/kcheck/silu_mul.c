/* SPDX-License-Identifier: Apache-2.0 */
#include "kcheck.h"
#include <math.h>
#include <string.h>

/* The formula in f64. exp is within 1.01 ulp, so at most 2.02 * 2^-24; sum, quotient and product
 * round by 2^-24 each. Below z = -88.7 exp overflows and y is 0 instead of at most 89 * e^-88.7
 * * 110. */
static void near_f64(struct kcheck *k, const struct silu_mul_args *a, const void *y)
{
    if (a->y_dtype != DT_F32 || k->specials)
        return;
    for (uint32_t i = 0; i < a->n_row; i++)
        for (uint32_t c = 0; c < a->n_col; c++) {
            double z = a->x[i * a->x_stride + c], up = a->x[i * a->x_stride + a->n_col + c];
            double want = z / (1 + exp(-z)) * up;
            kc_near(k, "y", ((const float *)y)[i * a->y_stride + c], want,
                    fabs(want) * 5.1 * 0x1p-24 + 1e-34);
        }
}

void kcheck_silu_mul(struct kcheck *k)
{
    static const uint32_t types[] = {DT_F32, DT_BF16, DT_F16}; /* the last on devices */
    const bool is_cuda = strcmp(k->variant->name, "cuda") == 0;
    uint32_t n_row = kc_range(k, 0, 6), n_col = kc_range(k, 1, 300);
    enum dtype y_dtype = (enum dtype)kc_pick(k, types, is_cuda ? 3 : 2);
    size_t x_stride = 2 * n_col + kc_range(k, 0, 9), y_stride = n_col + kc_range(k, 0, 9);
    size_t element = dtype_bits(y_dtype) / 8, n = n_row * y_stride;
    kc_shape(k, "n_row %u n_col %u -> %s", n_row, n_col, dtype_name(y_dtype));
    float *x = kc_buf(k, n_row * x_stride * sizeof *x);
    float wide =
        kc_chance(k, 30) ? 110.0f : 8.0f; /* past where exp over- and underflows, or the usual */
    for (size_t i = 0; i < n_row * x_stride; i++)
        x[i] = kc_f32(k) * wide;
    void *got = kc_buf(k, n * element), *want = kc_buf(k, n * element);
    struct silu_mul_args a = {
        .y = want,
        .y_dtype = y_dtype,
        .x = x,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = x_stride,
        .y_stride = y_stride,
    };
    kc_run(k, k->ref, &a, 1);
    near_f64(k, &a, want);
    a.y = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    near_f64(k, &a, got);
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

/* All variants except the reference have the same exp, so any of them gives the expected bits. */
void kc_gated(struct kcheck *k, const struct kc_sums *of, const void *got)
{
    const size_t n_col = of->n_col;
    float *x = kc_buf(k, 2 * n_col * sizeof *x);
    void *want = kc_buf(k, n_col * sizeof *x);
    struct kern_table t;
    kern_table_cpu(&t, k->variant->caps ? CAP_AVX2 : CAP_NONE);
    for (size_t c = 0; c < 2 * n_col; c++) {
        size_t at =
            c / (2 * KERN_GATE_INTERLEAVE) * KERN_GATE_INTERLEAVE + c % KERN_GATE_INTERLEAVE;
        x[at + (c / KERN_GATE_INTERLEAVE % 2 ? n_col : 0)] = of->sums[c];
    }
    const struct silu_mul_args silu = {
        .y = want,
        .y_dtype = of->dtype,
        .x = x,
        .n_row = 1,
        .n_col = (uint32_t)n_col,
        .x_stride = 2 * n_col,
        .y_stride = n_col,
    };
    const struct activate_args other = {
        .act = of->act,
        .gated = 1,
        .y = want,
        .y_dtype = of->dtype,
        .x = x,
        .n_row = 1,
        .n_col = (uint32_t)n_col,
        .x_stride = 2 * n_col,
        .y_stride = n_col,
    };
    if (of->act == KERN_SILU)
        t.silu_mul(&silu, &(struct kern_exec){.nth = 1});
    else
        t.activate(&other, &(struct kern_exec){.nth = 1});
    kc_same_bits(k, "gated", (struct kc_bits){want, got, of->dtype, n_col});
    kc_drop(k, 2);
}

void kbench_silu_mul(struct kc_bench *b)
{
    const uint32_t n_row = 256, n_col = 4864;
    struct silu_mul_args a = {
        .y_dtype = DT_BF16,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = 2 * n_col,
        .y_stride = n_col,
    };
    float *x = kc_buf(b->k, (size_t)n_row * n_col * 8);
    kc_fill(b->k, x, (size_t)n_row * n_col * 2);
    a.x = x;
    a.y = kc_buf(b->k, (size_t)n_row * n_col * 2);
    kc_print_bytes(b, "256 x 4864 -> bf16", kc_time(b, &a), n_row * (double)n_col * 10);
}
