/* SPDX-License-Identifier: Apache-2.0 */
/* ops_streams - arguments of the operations of models with several residual streams (Gemma 3n).
 * Sources: arXiv:2301.13310 (AltUp); sparse gates: the Gemma 3n model card. Threads: as ops.h.
 *
 * Of n streams x holds the first, which a layer's attention and MLP read and change, and s has n
 * parts of n_col columns: part 0 what was predicted for the first one, part j stream j.
 * m[k] = tanh(scores[i,k]) are n numbers of a row. Sums begin with the first term and go on
 * ascending, one fused multiply-add each. */
#ifndef QUIRE_KERNELS_OPS_OPS_STREAMS_H
#define QUIRE_KERNELS_OPS_OPS_STREAMS_H
#include "kernels/ops/ops.h"

#define KERN_STREAMS_MAX  4u
#define KERN_STREAM_LEAST 1e-5f /* of a mean of squares that is divided by */

/* s[i,j,:] = s[i,j,:] * sqrt(mean(x[i,:]^2)) / sqrt(max(mean(s[i,j,:]^2), KERN_STREAM_LEAST)),
 * each step rounded, sums as in rms_norm: parts get the magnitude of x. */
struct stream_match_args {
    float *s;       /* [n_row, n_part * n_col] */
    const float *x; /* [n_row, n_col] */
    uint32_t n_row, n_part, n_col;
    size_t s_stride, x_stride; /* elements */
};

struct stream_args {     /* of the next two */
    float *x;            /* [n_row, n_col] */
    float *s;            /* [n_row, n * n_col] */
    const float *scores; /* [n_row, n] */
    const float *w;
    uint32_t n_row, n, n_col;
    size_t x_stride, s_stride, scores_stride; /* elements */
};

/* With h_0 = x, h_j = part j:  p_j = h_j + sum_i (sum_k w[j * n + i, k] m[k]) h_i;  part j = p_j,
 * and x = p_0. */
struct stream_predict_args {
    struct stream_args by; /* w: [n * n, n]; part 0 is not read */
};

/* d = x - part 0;  h_j = part j + d (1 + sum_k w[j,k] m[k]);  x = h_0, part j = h_j, and
 * part 0 = h_0, times scale where there is one. */
struct stream_correct_args {
    struct stream_args by; /* w: [n, n] */
    const float *scale;    /* [n_col] or NULL */
};

/* x[i,c] = max(x[i,c] - t, 0), t = mean + sqrt(variance) * cutoff of the row, NaN stays; the
 * variance is that of the row itself (divided by n_col), of the differences from the mean. Sums in
 * 16 lanes as in rms_norm. */
struct sparse_gate_args {
    float *x;
    uint32_t n_row, n_col;
    size_t x_stride; /* elements */
    float cutoff;    /* standard deviations */
};

#endif
