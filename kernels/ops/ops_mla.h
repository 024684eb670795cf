/* SPDX-License-Identifier: Apache-2.0 */
/* ops_mla - arguments of attention over a cache of latents (multi-head latent attention,
 * arXiv:2405.04434), with K's up-projection multiplied into q; V's up-projection is applied by the
 * caller.
 *
 * A token has one vector for all heads, C[c,:]: its latent, n_value columns, then the rotated part
 * of its key, n_key - n_value columns. With b = 0 … pos, the position of token t:
 *     s[c] = scale * q[t,h,:]·C[c,:]
 *     out[t,h,:] = sum_c softmax(s)[c] * C[c, 0 … n_value-1]
 * q[t,h,:] is the head's q without rotation times its K up-projection (n_value columns), then its
 * rotated part. Cache of one layer: [n_block][KERN_BLOCK][n_key], F32, BF16 or F8_E4M3 (no scale;
 * magnitudes above 448 become 448). f32 throughout, order: ref/mla.c. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_OPS_OPS_MLA_H
#define QUIRE_KERNELS_OPS_OPS_MLA_H
#include "kernels/ops/ops_attention.h"

#define KERN_MLA_KEY_MAX 1024u

struct mla_args {
    void *out;            /* [rows][n_head][n_value], row stride out_stride */
    enum dtype out_dtype; /* F32 or BF16 */
    const float *q;       /* [rows][n_head][n_key], row stride q_stride */
    size_t out_stride, q_stride;
    const void *cache;
    enum dtype kv_dtype;
    const struct attention_seq *seqs;
    uint32_t n_seq, n_head, n_key, n_value;
    uint32_t context_max;
    float scale;
    const void *plan; /* on a device: of limits with n_kv_head 1 and head_dim n_value */
    uint32_t n_row;
};

/* Store row i of x at position slot[i] of the cache (KERN_NO_SLOT: not stored). */
struct mla_store_args {
    void *cache;
    enum dtype kv_dtype;
    const float *x; /* [n_row, n_key], row stride x_stride */
    size_t x_stride;
    const uint32_t *slot; /* [n_row] */
    uint32_t n_row, n_key;
};

#endif
