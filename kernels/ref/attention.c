/* SPDX-License-Identifier: Apache-2.0 */
/* out[t,h,:] = sum_c softmax_c(scale * q[t,h,:]·K[c,g,:])[c] * V[c,g,:]
 * with c from max(0, pos + 1 - window) to pos; chunked: from pos / window * window; both ways: to
 * the end of the sequence or the window.
 *
 * Order, all f32 (bf16 and int8 K and V are expanded exactly). In each split of 512 positions of
 * the sequence (attention_split.h) that contains positions of the row's context:
 *   s[c]   one accumulator from +0, fused multiply-adds over d = 0, 1, …; int8: * scale of K; *
 *          scale; slopes: a fused multiply-add of -slope and |pos - c|; the soft cap
 *   m      largest s (a NaN never is)
 *   p[c]   exp(s[c] - m)
 *   total  16 lanes from +0, lane l adds p of the positions c with c % 16 == l, ascending;
 *          folded by halves; int8: then p[c] = p[c] * scale of V
 *   sum    one accumulator per element from +0, fused multiply-adds over c ascending
 * A row starts with the first split's m, total and sum; later splits (m', total', sum') join them,
 * one fused multiply-add an element:
 *   m' > m    f = exp(m - m'):  total = total f + total', sum = sum f + sum', m = m'
 *   else      f = exp(m' - m):  total = total' f + total, sum = sum' f + sum
 * with sinks then total = total + exp(sink - m); and out = sum * (1 / total). None of it depends on
 * the other rows of the batch, so a prompt gives the same bits in one chunk or in many. */
#include <math.h>
#include "kernels/tiling/attention_split.h"
#include "kernels/ops/kv_layout.h"
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

struct row { /* one token of one head */
    const struct attention_seq *seq;
    const float *q;
    size_t out; /* element of a->out */
    uint32_t kv_head, head, pos;
    uint32_t begin, end; /* context positions, of one split */
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
    if (a->slopes)
        s = fmaf(-a->slopes[r->head], c > r->pos ? (float)(c - r->pos) : (float)(r->pos - c), s);
    return a->soft_cap > 0 ? a->soft_cap * tanhf(s / a->soft_cap) : s;
}

/* One split of the row. p: [ATTENTION_SPLIT]. */
static void split_partial(const struct attention_args *a, const struct row *r, float *p,
                          struct partial_row *out)
{
    float max = -INFINITY, lane[16] = {0};
    for (uint32_t c = r->begin; c < r->end; c++) {
        float s = p[c % ATTENTION_SPLIT] = score(a, r, c);
        max = s > max ? s : max;
    }
    for (uint32_t c = r->begin; c < r->end; c++) {
        float *at = &p[c % ATTENTION_SPLIT];
        *at = expf(*at - max);
        lane[c % 16] += *at;
        if (a->kv_dtype == DT_I8)
            *at *= scale_in(block_of(a->v_cache, a, r, c), a, c);
    }
    out->max = max;
    out->total = fold16(lane);
    for (uint32_t d = 0; d < a->head_dim; d++) {
        float sum = 0;
        for (uint32_t c = r->begin; c < r->end; c++) {
            size_t at = (size_t)(c % KERN_BLOCK) * a->head_dim + d;
            const float v = element_f32(block_of(a->v_cache, a, r, c), a->kv_dtype, at);
            sum = fmaf(p[c % ATTENTION_SPLIT], v, sum);
        }
        out->sum[d] = sum;
    }
}

static void join(const struct attention_args *a, struct partial_row *to,
                 const struct partial_row *from)
{
    const bool above = from->max > to->max;
    const float f = above ? expf(to->max - from->max) : expf(from->max - to->max);
    to->total = above ? fmaf(to->total, f, from->total) : fmaf(from->total, f, to->total);
    for (uint32_t d = 0; d < a->head_dim; d++)
        to->sum[d] = above ? fmaf(to->sum[d], f, from->sum[d]) : fmaf(from->sum[d], f, to->sum[d]);
    to->max = above ? from->max : to->max;
}

static void attend_row(const struct attention_args *a, const struct row *r, float *scratch)
{
    struct partial_row all = {.sum = scratch}, one = {.sum = all.sum + partial_dim(a->head_dim)};
    float *p = one.sum + partial_dim(a->head_dim);
    for (uint32_t c = r->begin / ATTENTION_SPLIT * ATTENTION_SPLIT; c < r->end;
         c += ATTENTION_SPLIT) {
        struct row of = *r;
        of.begin = c > r->begin ? c : r->begin;
        of.end = c + ATTENTION_SPLIT < r->end ? c + ATTENTION_SPLIT : r->end;
        split_partial(a, &of, p, of.begin == r->begin ? &all : &one);
        if (of.begin != r->begin)
            join(a, &all, &one);
    }
    if (a->sinks)
        all.total += expf(a->sinks[r->head] - all.max);
    float inverse = 1.0f / all.total;
    for (uint32_t d = 0; d < a->head_dim; d++)
        element_set(a->out, a->out_dtype, r->out + d, all.sum[d] * inverse);
}

void attention_ref(const struct attention_args *a, const struct kern_exec *x)
{
    for (uint32_t i_seq = 0; i_seq < a->n_seq; i_seq++) {
        const struct attention_seq *seq = &a->seqs[i_seq];
        struct range rows = split((size_t)seq->n_query * a->n_head, x);
        for (size_t i = rows.begin; i < rows.end; i++) {
            uint32_t token = (uint32_t)(i / a->n_head), head = (uint32_t)(i % a->n_head);
            const uint32_t pos = seq->start + token;
            struct row r = {
                .seq = seq,
                .q = a->q + (seq->row + token) * a->q_stride + (size_t)head * a->head_dim,
                .out = (seq->row + token) * a->out_stride + (size_t)head * a->head_dim,
                .kv_head = head / (a->n_head / a->n_kv_head),
                .head = head,
                .pos = pos,
                .begin = attention_begin(a, pos),
                .end = attention_end(a, seq, pos),
            };
            attend_row(a, &r, x->scratch);
        }
    }
}

/* The definition never splits. */
void attention_join_ref(const struct attention_join_args *a, const struct kern_exec *x)
{
    (void)a;
    (void)x;
}
