/* SPDX-License-Identifier: Apache-2.0 */
/* ops_train - arguments of the operations of a backward pass and of the optimiser. All arrays are
 * f32 unless said otherwise, strides are in elements, gradients have the shape of what they belong
 * to. The loss: ops_distill.h.
 *
 * Products use `linear`. For y = x Wᵀ with x: [n_token, n_in], W: [n_out, n_in]:
 *     dx  = dy W     rows dy;   weights packed from W by pack_columns: outputs n_in, inputs n_out
 *     dW += dyᵀ x    rows dyᵀ, from transpose;   weights packed from x by pack_columns: outputs
 *                    n_in, inputs n_token;   y = dW with accumulate
 *     db += column sums of dy (column_sums)
 * so a sum over tokens is one f32 accumulator, tokens ascending, then + the old dW. In bf16 the
 * rows are rounded by transpose and convert, the weights by pack_columns; sums stay f32.
 * rope: the gradient is rope itself with a table whose sines are negated (it is a rotation).
 *
 * Threads: as ops.h. Every element of an output is one thread's, in an order that the shapes alone
 * give: the same bits with any number of threads. Ownership: the caller's, all of it. */
#ifndef QUIRE_KERNELS_OPS_OPS_TRAIN_H
#define QUIRE_KERNELS_OPS_OPS_TRAIN_H
#include "kernels/ops/ops.h"
#include "kernels/ops/ops_elementwise.h"

/* y[c,i] = x[i,c].   y may not overlap x. */
struct transpose_args {
    void *y;                     /* [n_col, n_row], row stride y_stride */
    const void *x;               /* [n_row, n_col], row stride x_stride */
    enum dtype y_dtype, x_dtype; /* F32 or BF16 each; rounded to nearest even */
    uint32_t n_row, n_col;
    size_t x_stride, y_stride;
};

/* y[i,c] = x[i,c] in another type. */
struct convert_args {
    void *y;
    const void *x;
    enum dtype y_dtype, x_dtype; /* F32 or BF16 each */
    uint32_t n_row, n_col;
    size_t x_stride, y_stride;
};

/* Pack the transpose of a matrix: dst is packed weights (ops.h) with W[o,k] = src[k,o]. */
struct pack_columns_args {
    void *dst;            /* packed_bytes(dst_dtype, n_out, n_in), whole: padding is zeroed */
    enum dtype dst_dtype; /* F32 or BF16 */
    const void *src;      /* [n_in, n_out], row stride src_stride */
    enum dtype src_dtype; /* F32 or BF16 */
    uint32_t n_out, n_in;
    size_t src_stride;
};

/* Segments: sequences packed one after another in the rows of one batch. */
struct train_segment {
    uint32_t row, n_row; /* first row, rows */
};

/* Attention within each segment, causal. For row i (i-th of its segment), head h, g = h * n_kv_head
 * / n_head, c = max(0, i + 1 - window) … i (window 0 = all):
 *     s[c] = scale * q[i,h,:]·k[c,g,:]   (slopes: s = s - slopes[h] * (i - c);
 *                                         soft_cap > 0: s = soft_cap * tanh(s / soft_cap))
 *     lse[i,h] = log sum_c exp(s[c]);    out[i,h,:] = sum_c exp(s[c] - lse) * v[c,g,:]
 * Keys go in tiles of KERN_TRAIN_TILE rows of the segment with an online softmax
 * (arXiv:2205.14135); ref/attention_train.c has the order. With compute BF16 both factors of a
 * product are rounded to bf16 (q, k, v, exp(s - m); in the gradient dout, p, ds too); sums, softmax
 * and delta are f32. Memory: what is named here and kern_train_scratch_bytes. All of q, k, v of a
 * segment are finite; else all of its rows may be NaN. Rows in no segment are neither read nor
 * written. */
#define KERN_TRAIN_TILE 48u /* 8 x 6 rows of a register tile, 3 x 16 lanes */
struct attention_train_args {
    float *out;         /* [rows][n_head][head_dim], row stride out_stride */
    float *lse;         /* [rows][n_head] */
    const float *q;     /* [rows][n_head][head_dim], row stride q_stride */
    const float *k, *v; /* [rows][n_kv_head][head_dim], row stride kv_stride */
    size_t out_stride, q_stride, kv_stride;
    const struct train_segment *segments;
    uint32_t n_segment, n_head, n_kv_head, head_dim; /* head_dim <= KERN_TRAIN_HEAD_MAX */
    float scale, soft_cap;
    uint32_t window;
    enum dtype compute;  /* of products: F32 or BF16 */
    const float *slopes; /* [n_head] of ALiBi (ops_attention.h), or NULL */
};
#define KERN_TRAIN_HEAD_MAX 256u

/* Its gradient. With p = exp(s - lse) and delta[i,h] = sum_d dout * out:
 *     dv[c,g,:] = sum_{h of g} sum_i p dout[i,h,:]
 *     ds = p * (dout[i,h,:]·v[c,g,:] - delta)   (soft_cap: * (1 - (s / soft_cap)^2)),  * scale
 *     dq[i,h,:] = sum_c ds k[c,g,:];   dk[c,g,:] = sum_{h of g} sum_i ds q[i,h,:]
 * One f32 accumulator per element from +0, fused multiply-adds: dq over c ascending, dk and dv over
 * the heads of the group ascending, in each over i ascending (BF16: in pairs, as the products of
 * ref/linear.c). s is computed again; memory as above. dq, dk, dv are written in the shapes of q,
 * k, v; none overlaps an input. */
struct attention_grad_args {
    struct attention_train_args of; /* as it was called; out and lse are read */
    const float *dout;              /* as out, row stride dout_stride */
    float *dq, *dk, *dv;            /* row strides dq_stride, dkv_stride, dkv_stride */
    size_t dout_stride, dq_stride, dkv_stride;
};

/* Of y = x * r * w, r = 1 / sqrt(mean_c(x^2) + eps) (ops.h, rms_norm), with g = dy * w:
 *     dx[c] = r * (g[c] - x[c] * r^2 * mean_c(g x))
 * A row has n_unit units of n_col columns one after another, each normalised by itself with the
 * same w (the norm of q's or k's heads; else n_unit = 1). dw: column_sums with z = x and this r.
 * dx may be dy. Sums as rms_norm: 16 f32 lanes, fused multiply-adds, folded by halves. */
struct rms_norm_grad_args {
    float *dx;
    int accumulate; /* 1: dx[c] + the above */
    const float *dy, *x, *w;
    float *r; /* [n_row * n_unit], written */
    uint32_t n_row, n_unit, n_col;
    size_t dx_stride, dy_stride, x_stride;
    float eps;
};

/* Of y = d * r * w + b, d = x - mean_c(x), r = 1 / sqrt(mean_c(d^2) + eps) (ops.h, layer_norm),
 * with g = dy * w:
 *     dx[c] = r * (g[c] - mean_c(g) - d[c] * r^2 * mean_c(g d))
 * Units, accumulate, dx and sums as rms_norm_grad. dw: column_sums with z = x, shift = mean and
 * this r; db: column_sums of dy alone. */
struct layer_norm_grad_args {
    float *dx;
    int accumulate; /* 1: dx[c] + the above */
    const float *dy, *x, *w;
    float *mean, *r; /* [n_row * n_unit], written */
    uint32_t n_row, n_unit, n_col;
    size_t dx_stride, dy_stride, x_stride;
    float eps;
};

/* y[c] += sum over rows i and units u of x[i,u,c], or of (x[i,u,c] * z[i,u,c]) * r[i * n_unit + u],
 * with shift of (x[i,u,c] * (z[i,u,c] - shift[i * n_unit + u])) * r[i * n_unit + u].
 * Rows (and in them units) ascending, in blocks of KERN_COLUMN_BLOCK: one f32 accumulator from +0
 * in each block, the blocks' sums added up in ascending order, then + y. */
#define KERN_COLUMN_BLOCK 64u
struct column_sums_args {
    float *y;           /* [n_col] */
    const float *x, *z; /* rows of n_unit * n_col; z may be NULL, then without r */
    const float *r;
    uint32_t n_row, n_unit, n_col;
    size_t x_stride, z_stride;
    const float *shift; /* with z; or NULL */
};

/* Of y = act(x) or act(gate) * up (activate, silu_mul; gate = x[i, :n_col], up = x[i, n_col:]):
 *     dx = dy * act'(x);   gated: dgate = (dy * up) * act'(gate), dup = dy * act(gate)
 * dx may be x. At 0 the derivative of relu is 0. No sums. */
struct activate_grad_args {
    enum kern_act act;
    int gated;
    float *dx;       /* [n_row, n_col], gated: [n_row, 2 * n_col] */
    const float *dy; /* [n_row, n_col] */
    const float *x;  /* as dx */
    uint32_t n_row, n_col;
    size_t dx_stride, dy_stride, x_stride;
};

/* dtable[ids[i],:] += scale * dy[i,:], i ascending, a fused multiply-add each. */
struct embed_grad_args {
    float *dtable;       /* [n_vocab, n_col] */
    const float *dy;     /* [n_row, n_col], row stride dy_stride */
    const uint32_t *ids; /* [n_row], each < n_vocab */
    uint32_t n_row, n_col;
    size_t dy_stride;
    float scale;
};

/* AdamW. Source: arXiv:1711.05101. g' = grad_scale * g; each step rounded, products not fused:
 *     w = w * (1 - lr * weight_decay);   m = b1 m + (1 - b1) g';   v = b2 v + ((1 - b2) g') g'
 *     w = w - (lr / bias1) * m / (sqrt(v / bias2) + eps)
 * The scalars 1 - b1, lr / bias1, 1 / sqrt(bias2) … are formed in f64 and rounded once;
 * sqrt(v / bias2) is sqrt(v) * (1 / sqrt(bias2)). bias1 = 1 - b1^step, bias2 = 1 - b2^step. */
struct adamw_args {
    float *w, *m, *v; /* [n] */
    const float *g;   /* [n] */
    uint16_t *w_bf16; /* [n] or NULL: w rounded */
    size_t n;
    double lr, beta1, beta2, eps, weight_decay, bias1, bias2, grad_scale;
};

/* sums[b] = the sum of x^2 in block b of KERN_SUM_BLOCK elements: 16 f64 lanes, lane l adds
 * elements l, l + 16, …, folded by halves. Added in ascending order they give the square of the
 * norm, whatever the threads. The squares of floats do not overflow an f64: a block's sum is not
 * finite if and only if one of its elements is not. */
#define KERN_SUM_BLOCK 4096u
struct sum_squares_args {
    const float *x;
    size_t n;
    double *sums; /* [ceil(n / KERN_SUM_BLOCK)] */
};

#endif
