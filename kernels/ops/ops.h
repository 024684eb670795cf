/* SPDX-License-Identifier: Apache-2.0 */
/* ops - the arguments of every kernel: plain arrays and numbers, no model.
 *
 * An operation `op` has one definition, kernels/ref/op.c, and any number of faster variants;
 * kernels.def has a line for each. Callers hold a `struct kern_table` (kern.h) and write
 * k->op(&args, &exec). All threads of a team call the kernel with the same args and their own ith;
 * one thread computes each output element, in an order that depends on that row's own problem only,
 * never on n_row, the rest of the batch or nth: a row has the same bits alone and in a batch.
 * Kernels allocate nothing and do not synchronise: the caller puts a barrier between dependent ops.
 *
 * Packed weights. W: [n_out, n_in] is stored in panels of KERN_PANEL = 64 outputs, the last
 * panel zero-padded, so that decoding streams each panel from first byte to last:
 *     f32, f16:  panel[p][k][64]             k = 0 … n_in-1
 *     bf16:      panel[p][k/2][64][2]        pairs along k, of which an odd n_in fills one with 0
 * A thread computes whole panels: its own, and some of slower threads (tiling/share.h).
 *
 * Gated weights: gate and up, [n, n_in] each, are one W whose outputs are interleaved by
 * KERN_GATE_INTERLEAVE = 16: 16 of gate, the same 16 of up, the next 16 of gate … Past n each part
 * ends with zeros up to a whole group, so n_out = 2 n rounded up to 32. The product's output is
 * then
 *     y[i,c] = silu(gate[i,c]) * up[i,c],  c = 0 … n_out/2 - 1,  silu(z) = z / (1 + exp(-z))
 * of the finished sums with their bias; columns past n are 0. On the CPU gate may have another
 * activation than silu (packed.act).
 *
 * KV cache of one layer, blocks of KERN_BLOCK = 16 tokens, a lane each when scores are computed:
 *     k: [n_block][n_kv_head] of f32: [head_dim][16]   bf16: [ceil(head_dim/2)][16][2]
 *                                int8: [head_dim][16], then f32 scales [16]
 *     v: [n_block][n_kv_head] of [16][head_dim]        int8: then f32 scales [16]
 * int8 is symmetric with a scale for each token, head, and of K and V: scale = max |x| / 127,
 * stored = x * (127 / max |x|) rounded to the nearest integer (int8.h has the corner cases).
 * Lanes past the context length may hold any bits; no result depends on them. */
#ifndef QUIRE_KERNELS_OPS_OPS_H
#define QUIRE_KERNELS_OPS_OPS_H
#include <stddef.h>
#include <stdint.h>
#include "common/dtype.h"

#define KERN_PANEL           64u
#define KERN_BLOCK           16u
#define KERN_GATE_INTERLEAVE 16u        /* outputs of gate, then of up, in gated weights */
#define KERN_NO_SLOT         UINT32_MAX /* kv_store: leave this row out */
#define KERN_NO_ROW          UINT32_MAX /* embed: the same */

struct kern_share;
struct kern_exec {                /* on a device: thread 0 of 1, all arrays in its memory */
    uint32_t ith, nth;            /* number of this thread and number of threads */
    void *scratch;                /* private to this thread, 64-byte aligned */
    size_t scratch_bytes;         /* at least kern_scratch_bytes() of the worst case */
    struct device_stream *stream; /* a device's (device.h); NULL on the CPU */
    struct kern_share *shares;    /* [nth] (ops_share.h), or NULL: a thread that is done with its
                                   * panels takes others' panels of product number `product` */
    uint64_t product; /* below 2^40; the same in all threads, and no other between two barriers */
};

struct packed_codes { /* how a matrix of codes is packed, ops_codes.h; all 0: it is none */
    uint8_t kind;     /* enum kern_codes */
    uint8_t scales;   /* enum kern_scales */
    uint8_t has_min;
    uint8_t group;   /* inputs that share a scale: 16, 32, 64 or 128 */
    uint8_t by_ints; /* 1: x is rounded to integers, ops_codes.h; 0: products of f32 */
};

struct packed {       /* a weight matrix in the layout above */
    const void *data; /* 64-byte aligned */
    uint32_t n_out, n_in;
    enum dtype dtype; /* DT_F32, DT_F16, DT_BF16; I8: ops_int8.h */
    uint32_t group;   /* above 0: 4-bit weights, inputs per scale (ops_int4.h) */
    uint32_t gated;   /* 1: gate and up interleaved, see above */
    float x_scale;    /* of F8_E4M3: that of x (ops_fp8.h); 0: each row of x has its own */
    /* [n_in] or NULL: input k of W is input order[k] of the model's; x comes in W's order already
     * (quant_rows). So the inputs of a 4-bit group are adjacent with act-order too. */
    const uint32_t *order;
    uint32_t blocks; /* 1: F8_E4M3 with scales of blocks, ops_fp8.h */
    uint32_t act;    /* of gated weights: enum kern_act, 0 is silu; on a device silu always */
    struct packed_codes codes; /* of dtype F32 */
};

/* Pack rows of a row-major W into panels. dst: packed_bytes(dtype, n_out, n_in). Each thread
 * packs its own panels. Row i of the result is src row i; src dtype F32, F16 or BF16 is
 * converted (round to nearest even) to dst dtype. */
struct pack_args {
    void *dst;
    enum dtype dst_dtype;
    const void *src; /* [n_out, n_in] row-major; need not be aligned */
    enum dtype src_dtype;
    uint32_t n_out, n_in;
    uint32_t row_start;   /* first output of dst that src holds (fused q,k,v; gate,up) */
    uint32_t n_out_total; /* outputs of the whole dst */
};

/* y[i,:] = f32(table[r,:]) * scale (+ y[i,:] as it was, when accumulate), r = ids[i], or
 * (ids[i] / div) % mod when mod is above 0. A row whose id is KERN_NO_ROW is left as it was.
 * table: [n_vocab, n_col], row-major or in panels; y: [n_row, n_col] f32 */
struct embed_args {
    float *y;
    const void *table;   /* need not be aligned beyond its element size */
    enum dtype dtype;    /* F32, F16, BF16 */
    int packed;          /* 1: packed weights with n_vocab outputs (a table tied to the logits) */
    const uint32_t *ids; /* [n_row], r < n_vocab, or KERN_NO_ROW */
    uint32_t n_row, n_col;
    float scale;
    int accumulate;
    uint32_t div, mod, limit; /* limit: r of this or more is 0; mod, limit 0: none */
};

/* y[i,c] = x[i,c] / sqrt(mean_c(x[i,:]^2) + eps) * w[c].   Source: arXiv:1910.07467.
 * Sum in f32. y may equal x. Rows are x + i * x_stride (elements). y is written as f32, or rounded
 * to bf16 when y_dtype is DT_BF16. */
struct rms_norm_args {
    void *y;
    enum dtype y_dtype; /* F32 or BF16 */
    const float *x;
    const float *w; /* [n_col] */
    uint32_t n_row, n_col;
    size_t x_stride, y_stride; /* elements */
    float eps;
};

/* r = rows ? rows[i] : i;   d = x[r,:] - mean_c(x[r,:])
 * y[i,c] = d[c] / sqrt(mean_c(d^2) + eps) * w[c] (+ b[c]).   Source: arXiv:1607.06450. Sums in f32.
 * y may equal x when there are no rows. */
struct layer_norm_args {
    void *y;
    enum dtype y_dtype; /* F32 or BF16; F16 on a device and in ref/ */
    const float *x;
    const uint32_t *rows; /* [n_row] or NULL */
    const float *w, *b;   /* [n_col]; b may be NULL */
    uint32_t n_row, n_col;
    size_t x_stride, y_stride; /* elements */
    float eps;
};

/* y[i,o] = sum_k x[i,k] * W[o,k] + bias[o] (+ y[i,o] as it was, when accumulate), or silu(gate) *
 * up of such sums, when W is gated; as f32, or rounded to bf16 (then without accumulate).
 * x: [n_row, n_in] f32, or bf16 (W must then be bf16; the arithmetic is that of vdpbf16ps), or f16
 * (on a device and in ref/; W must then be f16, and y may be f16).
 * One f32 accumulator per output, k ascending, for any n_row; exact order: ref/linear.c.
 * y must not overlap x: a block of rows is finished before the next is read. */
struct linear_args {
    void *y;            /* [n_row, n_out], row stride y_stride; gated: [n_row, n_out / 2] */
    enum dtype y_dtype; /* F32, BF16 or F16, see above */
    const void *x;      /* row stride x_stride */
    enum dtype x_dtype; /* likewise */
    struct packed w;
    const float *bias; /* [n_out] or NULL; gated: interleaved, as the outputs are */
    uint32_t n_row;
    size_t x_stride, y_stride; /* elements */
    int accumulate;            /* not with gated weights */
};

/* Rotate the first n_rot (even) elements of each head, in place. Source: arXiv:2104.09864.
 *     (a, b) = elements (j, j + n_rot/2), or (2j, 2j + 1) when interleaved
 *     a' = a*cos - b*sin, b' = b*cos + a*sin   with cos,sin = table[pos[i]][j]
 * x: n_row rows of n_head heads of head_dim; table: [n_pos][n_rot/2][2] f32 (cos, sin). */
struct rope_args {
    float *x;
    size_t x_stride; /* elements between rows */
    const float *table;
    const uint32_t *pos; /* [n_row], each < n_pos */
    uint32_t n_row, n_head, head_dim, n_rot;
    int interleaved;
};

/* Write keys and values of n_row tokens into the cache. slot[i] = block * KERN_BLOCK + offset, or
 * KERN_NO_SLOT: row i is not written (it is already in the cache, in a shared block). k, v: rows of
 * n_kv_head * head_dim f32 with strides. */
struct kv_store_args {
    void *k_cache, *v_cache;
    enum dtype kv_dtype; /* F32, BF16 or I8 */
    const float *k, *v;
    size_t k_stride, v_stride;
    const uint32_t *slot; /* [n_row] */
    uint32_t n_row, n_kv_head, head_dim;
};

/* y[i,c] = silu(x[i,c]) * x[i, n_col + c],  silu(z) = z / (1 + exp(-z)).  x: [n_row, 2*n_col] f32.
 * y: f32 or bf16; f16 on a device and in ref/. Source: arXiv:2002.05202. */
struct silu_mul_args {
    void *y;
    enum dtype y_dtype;
    const float *x;
    uint32_t n_row, n_col;
    size_t x_stride, y_stride;
};

/* For each row of logits x: [n_row, n_col] f32
 *     max[i] = largest value, argmax[i] = its lowest index
 *     sumexp[i] = sum_c exp(x[i,c] - max[i]), summed in f64 in a fixed order
 * NaN is treated as -inf; a row of all -inf gives argmax 0 and sumexp 0. */
struct softmax_stats_args {
    const float *x;
    size_t x_stride;
    uint32_t n_row, n_col;
    float *max;
    uint32_t *argmax;
    double *sumexp;
};

#endif
