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
#define KERN_MLA_HEADS   4u /* that are computed together on the CPU */

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
    const void *plan_host; /* as attention_args.plan_host */
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

/* A product for each head, with rows of one matrix as the checkpoint has them:
 *     plain       y[i,h,o] = sum_k x[i,h,k] * W[h * w_rows + w_first + o, k]   o < n_w, k < n_col
 *     transposed  y[i,h,o] = sum_k x[i,h,k] * W[h * w_rows + w_first + k, o]   k < n_w, o < n_col
 * and the n_kept numbers behind x[i,h]'s inputs are copied behind the outputs of y[i,h] (F32 only).
 * plain: 16 f32 lanes, lane l adds k = l, l + 16, …, folded by halves; transposed: one f32
 * accumulator, k ascending; fused multiply-adds both. Threads: as ops.h. */
struct head_linear_args {
    void *y;                   /* [n_row][n_head], y_head elements from head to head */
    enum dtype y_dtype;        /* F32 or BF16 */
    const float *x;            /* [n_row][n_head], x_head likewise */
    size_t y_stride, x_stride; /* elements between rows */
    uint32_t y_head, x_head;
    const void *w;      /* [n_head * w_rows, n_col]; need not be aligned beyond its element size */
    enum dtype w_dtype; /* F32, F16 or BF16 */
    uint32_t w_rows, w_first, n_w, n_col;
    int transposed;
    uint32_t n_row, n_head, n_kept;
};

#endif
