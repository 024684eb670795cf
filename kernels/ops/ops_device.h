/* SPDX-License-Identifier: Apache-2.0 */
/* ops_device - arguments of the fused operations of the device executor: one launch instead of
 * several operations, which the CPU executes row by row while the rows are in its caches. Each is
 * defined in ref/ like every other. Arrays are in device memory. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_OPS_OPS_DEVICE_H
#define QUIRE_KERNELS_OPS_OPS_DEVICE_H
#include "kernels/ops/ops_attention.h"
#include "kernels/ops/ops_fp8.h"

/* r = rows ? rows[i] : i;   x[r,:] += add[r,:] when there is add
 * y[i,c] = x[r,c] / sqrt(mean_c(x[r,:]^2) + eps) * w[c], sums in the order of rms_norm; as bytes
 * when y_dtype is I8 (y and quant as quant_rows makes them of that row, without sums) or F8_E4M3
 * (as quant_rows_fp8, with its `scale`, or with scales as quant_rows_fp8_block). y must not overlap
 * x. rows: ascending. */
struct norm_rows_args {
    void *y;
    enum dtype y_dtype;      /* F32, BF16, F16, I8 or F8_E4M3 */
    struct quant_row *quant; /* [n_row] of bytes without scales */
    float *scales;           /* [n_row][scale_stride] of e4m3 by 128 columns; NULL: one a row */
    size_t scale_stride;     /* floats */
    float scale;             /* of e4m3 without scales: above 0 that of all rows */
    float *x;                /* the residual stream */
    const void *add;         /* NULL: nothing */
    enum dtype add_dtype;    /* F32, BF16, F16 */
    const uint32_t *rows;    /* [n_row] or NULL */
    const float *w;          /* [n_col] */
    uint32_t n_row, n_col;
    size_t x_stride, add_stride, y_stride; /* elements; bytes: as quant_rows */
    float eps;
};

#define KERN_DEVICE_HEAD_MAX 512u /* elements of a head of qkv_epilogue and attention there */

/* Each unit of a row as rms_norm does a row, in its order: the heads of a mixer, its groups of
 * heads. With `apart` every unit has weights of its own. y may be x. */
struct norm_units_args {
    void *y;
    enum dtype y_dtype; /* F32, BF16, F16 */
    const float *x;     /* [n_row, n_unit * unit] */
    const float *w;     /* [unit], apart: [n_unit * unit] */
    uint32_t n_row, n_unit, unit;
    size_t x_stride, y_stride; /* elements */
    float eps;
    int apart;
};

/* The steps on a row of q,k,v between the matrix product and attention: norm of the heads of q and
 * k (rms_norm, in its order; q_norm and k_norm NULL: none) and of v (v_norm), rotation of q and k
 * in place (rope; n_rot 0: none), store of K and V (kv_store). x: [n_row] rows of q heads, k heads,
 * v heads. n_kv_head 0: of q alone, where another layer has K and V; nothing is stored. */
struct qkv_epilogue_args {
    float *x;
    size_t x_stride;
    const float *q_norm, *k_norm; /* [head_dim] or NULL, both or neither */
    const float *v_norm;          /* [head_dim] or NULL */
    float eps;
    const float *table;  /* [n_pos][n_rot/2][2] (cos, sin); NULL when n_rot is 0 */
    const uint32_t *pos; /* [n_row] row of the table */
    void *k_cache, *v_cache;
    enum dtype kv_dtype;
    const uint32_t *slot; /* [n_row] or KERN_NO_SLOT: not stored */
    uint32_t n_row, n_head, n_kv_head, head_dim, n_rot;
    int interleaved;
};

/* One row of each sequence, or a sum or the maximum of its rows. y[i,c] = x[rows[i],c], or, of the
 * rows x[1,c] … x[n,c] of the sequence that has rows[i], k ascending:
 *     MEAN           (x[1,c] + … + x[n,c]) / n, from +0
 *     MAX            m = x[1,c]; then m = x[k,c] where x[k,c] > m or is NaN
 *     WEIGHTED_MEAN  s = fma(k, x[k,c], s) from +0; s / (n (n + 1) / 2)
 *     MEAN_SQRT_LEN  (x[1,c] + … + x[n,c]) / sqrt(n)
 * y must not overlap x. Source: sentence-transformers' Pooling. */
enum pool_rows_kind {
    POOL_ROWS_ONE,
    POOL_ROWS_MEAN,
    POOL_ROWS_MAX,
    POOL_ROWS_WEIGHTED_MEAN,
    POOL_ROWS_MEAN_SQRT_LEN,
    POOL_ROWS_KINDS
};
struct pool_rows_args {
    float *y;
    const float *x;
    const uint32_t *rows;             /* [n_row] each of one of the sequences */
    const struct attention_seq *seqs; /* [n_seq] ascending by row; blocks and start are not read */
    uint32_t n_row, n_seq, n_col;
    size_t x_stride, y_stride; /* elements */
    enum pool_rows_kind kind;
};

/* dst[at ? at[i] : i] = v < limit ? v : 0, v = value[from ? from[i] : i * step], i < n; no store
 * where at[i] is KERN_NO_SLOT. No index occurs twice. Updates the block tables and histories of
 * sequences on the device: a step sends their changes, reads its tokens from them, and stores the
 * tokens it sampled. */
struct scatter_args {
    uint32_t *dst;
    const uint32_t *at; /* [n] or NULL */
    const uint32_t *value;
    const uint32_t *from; /* [n] or NULL */
    uint32_t n;
    uint32_t step;  /* elements; 0 acts as 1 */
    uint32_t limit; /* 0: none */
};

/* Sampling: from rows of logits to tokens. The fields, the order of their application, ties, NaN
 * and the draw (Philox) are defined in proto/sampling.h and engine/worker/sample.c. */
#define SAMPLE_TOP_MAX 20u
#define SAMPLE_NO_MASK UINT32_MAX
enum sample_flags {
    SAMPLE_SKIP = 1,     /* ignore this row (it pads a graph, or the host samples it) */
    SAMPLE_LOGPROB = 2,  /* rank, logprob and n_top alternatives */
    SAMPLE_KNOWN = 4,    /* the token is `token`: only SAMPLE_LOGPROB */
    SAMPLE_ADJUSTED = 8, /* logprobs of the logits after masks, bias and penalties */
};
struct sample_row {
    uint64_t seed;
    float temperature, top_p, min_p; /* 0 = greedy; 1 = off; 0 = off */
    uint32_t top_k;                  /* 0 = off */
    float repetition, presence, frequency, top_n_sigma;
    uint32_t flags, token;
    uint32_t history;            /* row of histories */
    uint32_t n_known, n_prompt;  /* tokens in it; the new token's position is n_known */
    uint32_t mask;               /* row of masks; SAMPLE_NO_MASK: every token is allowed */
    uint32_t bias_start, n_bias; /* in bias_ids and bias; -inf: not allowed. No id occurs twice */
    uint32_t n_top;              /* 0 … SAMPLE_TOP_MAX */
};
struct sample_pick {
    uint32_t token; /* UINT32_MAX: the row cannot be sampled */
    /* With SAMPLE_LOGPROB: 1 = the most likely token. Without a token: UINT32_MAX = the logits have
     * a NaN; UINT32_MAX - 1 = all are -inf. */
    uint32_t rank;
    float logprob;
    uint32_t n_top;
};
struct sample_args {
    float *x; /* [n_row, n_vocab] logits; may be overwritten */
    size_t x_stride;
    const struct sample_row *rows; /* [n_row] */
    uint32_t n_row, n_vocab;
    const uint32_t *histories; /* [][history_stride] token ids */
    size_t history_stride;
    const uint32_t
        *masks; /* [][ceil(n_vocab / 32)] bit id % 32 of word id / 32: the token is allowed */
    const uint32_t *bias_ids;
    const float *bias;
    struct sample_pick *out; /* [n_row]; rows skipped are not written */
    uint32_t *top_ids;       /* [n_row][SAMPLE_TOP_MAX] */
    float *top_logprobs;     /* likewise */
};

#endif
