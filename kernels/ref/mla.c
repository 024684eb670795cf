/* SPDX-License-Identifier: Apache-2.0 */
/* Formula: ops_mla.h. Order, all f32 (the cache's numbers are expanded exactly):
 *   s[c]   16 lanes from +0, lane l takes columns l, l + 16, … by fused multiply-adds; by halves;
 *          * scale
 *   m      largest s (a NaN never is)
 *   p[c]   exp(s[c] - m)
 *   sum    16 lanes from +0, lane l adds p of the positions c with c % 16 == l, ascending; by
 *          halves
 *   out    one accumulator per column from +0, fused multiply-adds over c ascending; * (1 / sum)
 * None of it depends on the other rows of the batch. */
#include <math.h>
#include "kernels/ops/e4m3.h"
#include "kernels/ops/ops_mla.h"
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static float cached(const struct mla_args *a, const struct attention_seq *s, uint32_t c, uint32_t d)
{
    const size_t at = ((size_t)s->blocks[c / KERN_BLOCK] * KERN_BLOCK + c % KERN_BLOCK) * a->n_key;
    if (a->kv_dtype == DT_F8_E4M3)
        return e4m3_to_f32(((const uint8_t *)a->cache)[at + d]);
    return element_f32(a->cache, a->kv_dtype, at + d);
}

static float score(const struct mla_args *a, const struct attention_seq *s, const float *q,
                   uint32_t c)
{
    float lane[16] = {0};
    for (uint32_t d = 0; d < a->n_key; d++)
        lane[d % 16] = fmaf(q[d], cached(a, s, c, d), lane[d % 16]);
    return fold16(lane) * a->scale;
}

/* y: [n_value] */
static void attend_row(const struct mla_args *a, const struct attention_seq *s, size_t i, float *y)
{
    const uint32_t token = (uint32_t)(i / a->n_head), head = (uint32_t)(i % a->n_head);
    const uint32_t end = s->start + token + 1;
    const float *q = a->q + (s->row + token) * a->q_stride + (size_t)head * a->n_key;
    const size_t out = (s->row + token) * a->out_stride + (size_t)head * a->n_value;
    float max = -INFINITY, lane[16] = {0};
    memset(y, 0, a->n_value * sizeof *y);
    for (uint32_t c = 0; c < end; c++) {
        const float x = score(a, s, q, c);
        max = x > max ? x : max;
    }
    for (uint32_t c = 0; c < end; c++) {
        const float p = expf(score(a, s, q, c) - max);
        lane[c % 16] += p;
        for (uint32_t d = 0; d < a->n_value; d++)
            y[d] = fmaf(p, cached(a, s, c, d), y[d]);
    }
    const float inverse = 1.0f / fold16(lane);
    for (uint32_t d = 0; d < a->n_value; d++)
        element_set(a->out, a->out_dtype, out + d, y[d] * inverse);
}

void mla_ref(const struct mla_args *a, const struct kern_exec *x)
{
    for (uint32_t i_seq = 0; i_seq < a->n_seq; i_seq++) {
        const struct range rows = split((size_t)a->seqs[i_seq].n_query * a->n_head, x);
        for (size_t i = rows.begin; i < rows.end; i++)
            attend_row(a, &a->seqs[i_seq], i, x->scratch);
    }
}
