/* SPDX-License-Identifier: Apache-2.0 */
/* ops_attention - arguments of attention over the paged cache of ops.h.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_OPS_OPS_ATTENTION_H
#define QUIRE_KERNELS_OPS_OPS_ATTENTION_H
#include "kernels/ops/ops.h"

/* Attention over the paged cache, causal unless both_ways. For token t of a sequence at position
 * pos (0-based), head h, its KV head g = h / (n_head / n_kv_head), context c = max(0, pos + 1 -
 * window) … pos (window 0 = all), or (chunked) c = pos / window * window … pos:
 *     s[c] = scale * q[t,h,:]·K[c,g,:]   (slopes: s = s - slopes[h] * |pos - c|;
 *                                         soft_cap > 0: s = soft_cap * tanh(s / soft_cap))
 *     out[t,h,:] = sum_c softmax(s)[c] * V[c,g,:]
 * slopes: ALiBi, arXiv:2108.12409. both_ways: the context is that of the sequence as this call
 * sees it: max(0, pos + 1 - window) … min(start + n_query, pos + window) - 1, so that a sequence
 * must be in one call.
 * sinks: the softmax's sum has exp(sinks[h]) as one more term, whose V is 0 (arXiv:2309.17453, as
 * gpt-oss learns it); neither scale nor soft_cap apply to it.
 * In int8, K[c,g,:] is k_scale[c,g] * k[c,g,:], with the scale applied after the sum over the head;
 * V's scale is multiplied into the softmax weight.
 * f32 throughout, positions in ascending order, a softmax for each 512 positions of the sequence,
 * which are then joined: ref/attention.c has the order. By dot-product instructions q and the
 * softmax's weights are bf16: avx512/attention_dot.h.
 * With memory for partial results (`parts`) a long context may be split over threads; then its rows
 * of `out` are written by attention_join, after a barrier. kern_attention_splits (kern.h) returns
 * whether any context is split. The bits are the same in both cases.
 * The cache already holds the new tokens' K and V (kv_store first). */
struct attention_seq {
    const uint32_t *blocks; /* block table: [ceil((start + n_query) / KERN_BLOCK)] */
    uint32_t row;           /* first row of q and out */
    uint32_t n_query;       /* rows of this sequence in the batch */
    uint32_t start;         /* position of the first of them */
};
struct attention_args {
    void *out;            /* [rows][n_head][head_dim], row stride out_stride */
    enum dtype out_dtype; /* F32, or BF16 (a device: or F16): the same numbers rounded */
    const float *q;       /* the same shape, row stride q_stride; already rotated */
    size_t out_stride, q_stride;
    const void *k_cache, *v_cache;
    enum dtype kv_dtype; /* F32, BF16 or I8 */
    const struct attention_seq *seqs;
    uint32_t n_seq, n_head, n_kv_head, head_dim;
    uint32_t context_max; /* longest start + n_query, for scratch */
    float scale, soft_cap;
    uint32_t window;
    int both_ways;
    int chunked;         /* the window is a chunk of positions; not both ways */
    const float *sinks;  /* [n_head] or NULL */
    const float *slopes; /* the same */
    float *parts;     /* [n_part] 64-byte aligned, kern_attention_parts(); NULL: nothing is split */
    size_t n_part;    /* floats */
    const void *plan; /* on a device: the plan of device_table.plan, in device memory */
    /* The same in host memory, read during the call: kernels without work are not launched. NULL
     * (a launch that is recorded for many plans): all that n_row and n_seq leave possible are. */
    const void *plan_host;
    uint32_t n_row; /* rows of q, for a device; n_seq if no sequence has more. context_max is
                       * then an upper limit */
};

/* Join the partial results that attention, called with `of` and the same number of threads, left in
 * parts; write `out`. */
struct attention_join_args {
    const struct attention_args *of;
};

#endif
