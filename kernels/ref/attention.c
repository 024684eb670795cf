/* SPDX-License-Identifier: Apache-2.0 */
/* out[t,h,:] = sum_c softmax_c(scale * q[t,h,:]·K[c,g,:])[c] * V[c,g,:]
 * with c from max(0, pos + 1 - window) to pos.
 *
 * Order, all f32 (bf16 and int8 K and V are expanded exactly):
 *   s[c]   one accumulator from +0, fused multiply-adds over d = 0, 1, …; int8: * scale of K; *
 *          scale; the soft cap
 *   m      largest s (a NaN never is)
 *   p[c]   exp(s[c] - m)
 *   sum    16 lanes from +0, lane l adds p of the positions c with c % 16 == l, ascending;
 *          folded by halves; int8: then p[c] = p[c] * scale of V
 *   out    one accumulator per element from +0, fused multiply-adds over c ascending; * (1 / sum)
 * None of it depends on the other rows of the batch, so a prompt gives the same bits in one chunk
 * or in many. */
#include <math.h>
#include "kernels/kv_layout.h"
#include "kernels/ref/element.h"
#include "kernels/split.h"
#include "kernels/variants.h"

struct row { /* one token of one head */
    const struct attention_seq *seq;
    const float *q;
    size_t out; /* element of a->out */
    uint32_t kv_head;
    uint32_t begin, end; /* context positions */
};

/* The block that holds position c in a cache, for this row's head. */
static const char *block_of(const void *cache, const struct attention_args *a, const struct row *r,
                            uint32_t c)
{
    size_t block = r->seq->blocks[c / KERN_BLOCK];
    return (const char *)cache +
           (block * a->n_kv_head + r->kv_head) * kv_head_bytes(a->kv_dtype, a->head_dim);
}

/* int8: the scale of position c, from its block. */
static float scale_in(const char *block, const struct attention_args *a, uint32_t c)
{
    return element_f32(block + kv_scales_at(a->head_dim), DT_F32, c % KERN_BLOCK);
}

static float score(const struct attention_args *a, const struct row *r, uint32_t c)
{
    const char *k = block_of(a->k_cache, a, r, c);
    float s = 0;
    for (uint32_t d = 0; d < a->head_dim; d++)
        s = fmaf(r->q[d], element_f32(k, a->kv_dtype, k_index(a->kv_dtype, d, c % KERN_BLOCK)), s);
    if (a->kv_dtype == DT_I8)
        s *= scale_in(k, a, c);
    s *= a->scale;
    return a->soft_cap > 0 ? a->soft_cap * tanhf(s / a->soft_cap) : s;
}

static void attend(const struct attention_args *a, const struct row *r, float *p)
{
    float max = -INFINITY, lane[16] = {0};
    for (uint32_t c = r->begin; c < r->end; c++) {
        p[c] = score(a, r, c);
        max = p[c] > max ? p[c] : max;
    }
    for (uint32_t c = r->begin; c < r->end; c++) {
        p[c] = expf(p[c] - max);
        lane[c % 16] += p[c];
        if (a->kv_dtype == DT_I8)
            p[c] *= scale_in(block_of(a->v_cache, a, r, c), a, c);
    }
    float inverse = 1.0f / fold16(lane);
    for (uint32_t d = 0; d < a->head_dim; d++) {
        float sum = 0;
        for (uint32_t c = r->begin; c < r->end; c++) {
            size_t at = (size_t)(c % KERN_BLOCK) * a->head_dim + d;
            sum = fmaf(p[c], element_f32(block_of(a->v_cache, a, r, c), a->kv_dtype, at), sum);
        }
        element_set(a->out, a->out_dtype, r->out + d, sum * inverse);
    }
}

void attention_ref(const struct attention_args *a, const struct kern_exec *x)
{
    for (uint32_t i_seq = 0; i_seq < a->n_seq; i_seq++) {
        const struct attention_seq *seq = &a->seqs[i_seq];
        struct range rows = split((size_t)seq->n_query * a->n_head, x);
        for (size_t i = rows.begin; i < rows.end; i++) {
            uint32_t token = (uint32_t)(i / a->n_head), head = (uint32_t)(i % a->n_head);
            uint32_t end = seq->start + token + 1;
            struct row r = {
                .seq = seq,
                .q = a->q + (seq->row + token) * a->q_stride + (size_t)head * a->head_dim,
                .out = (seq->row + token) * a->out_stride + (size_t)head * a->head_dim,
                .kv_head = head / (a->n_head / a->n_kv_head),
                .begin = a->window && end > a->window ? end - a->window : 0,
                .end = end,
            };
            attend(a, &r, x->scratch);
        }
    }
}
