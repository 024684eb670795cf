/* SPDX-License-Identifier: Apache-2.0 */
#include "product.h"

static void rows_alone(struct kcheck *k, const struct kc_product *p, const float *batch,
                       const float *before)
{
    float *y = kc_buf(k, p->n_out * sizeof *y);
    for (uint32_t i = 0; i < p->n_row; i += 1 + p->n_row / 9) {
        memcpy(y, before + i * p->y_stride, p->n_out * sizeof *y);
        kc_run(k, k->variant, p->row(p, i, y), kc_range(k, 1, 9));
        kc_same_bits(k, "row alone",
                     (struct kc_bits){y, batch + i * p->y_stride, DT_F32, p->n_out});
    }
}

/* The same weights as gate and up, against silu_mul or activate of the sums; rows alone, too. */
static void gated(struct kcheck *k, const struct kc_product *p)
{
    const size_t n = p->n_row * p->y_stride, n_col = p->n_out / 2;
    const enum dtype y_dtype = kc_chance(k, 50) ? DT_BF16 : DT_F32;
    const bool other = p->act && kc_chance(k, 50);
    const enum kern_act act = other ? (enum kern_act)kc_range(k, 1, KERN_ACTS - 1) : KERN_SILU;
    float *sums = kc_buf(k, n * sizeof *sums);
    void *y = kc_buf(k, n * sizeof *sums), *one = kc_buf(k, p->y_stride * sizeof *sums);
    *p->accumulate = 0;
    *p->y = sums;
    kc_run(k, k->variant, p->args, kc_range(k, 1, 9));
    *p->gated = 1;
    if (p->act)
        *p->act = act;
    *p->y_dtype = y_dtype;
    *p->y = y;
    kc_run(k, k->variant, p->args, kc_range(k, 1, 9));
    for (uint32_t i = 0; i < p->n_row; i++)
        kc_gated(k, &(struct kc_sums){sums + i * p->y_stride, y_dtype, n_col, act},
                 (char *)y + i * p->y_stride * (dtype_bits(y_dtype) / 8));
    for (uint32_t i = 0; i < p->n_row; i += 1 + p->n_row / 3) {
        kc_run(k, k->variant, p->row(p, i, one), kc_range(k, 1, 9));
        kc_gated(k, &(struct kc_sums){sums + i * p->y_stride, y_dtype, n_col, act}, one);
    }
}

void kc_product_check(struct kcheck *k, const struct kc_product *p)
{
    const size_t n_y = p->n_row ? (p->n_row - 1) * p->y_stride + p->n_out : 0;
    float *before = kc_buf(k, n_y * sizeof *before);
    kc_fill(k, before, n_y);
    float *want = kc_copy(k, before, n_y * sizeof *want),
          *got = kc_copy(k, before, n_y * sizeof *got);
    *p->y = want;
    kc_run(k, p->definition, p->args, 1);
    if (!k->specials)
        p->near(k, p, want, before);
    *p->y = got;
    kc_run(k, k->variant, p->args, kc_range(k, 1, 9));
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, p->n_row, p->n_out, p->y_stride},
               &(struct kc_array){want, DT_F32, p->n_row, p->n_out, p->y_stride});
    if (p->sibling) {
        *p->y = want;
        memcpy(want, before, n_y * sizeof *want);
        kc_same_as_sibling(k, p->args, (struct kc_bits){want, got, DT_F32, n_y});
    }
    rows_alone(k, p, got, before);
    if (p->n_out % (2 * KERN_GATE_INTERLEAVE) == 0)
        gated(k, p);
}

uint32_t kc_product_outputs(struct kcheck *k, uint32_t most)
{
    uint32_t n = kc_range(k, 1, most), interleaved = n / (2 * KERN_GATE_INTERLEAVE);
    return interleaved && kc_chance(k, 40) ? interleaved * 2 * KERN_GATE_INTERLEAVE : n;
}

const float *kc_product_bias(struct kcheck *k, uint32_t n_out)
{
    float *bias = kc_chance(k, 50) ? kc_buf(k, n_out * sizeof *bias) : NULL;
    if (bias)
        kc_fill(k, bias, n_out);
    return bias;
}
