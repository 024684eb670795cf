/* SPDX-License-Identifier: Apache-2.0 */
/* ops_state - arguments of operations that keep a state for each sequence beside its K and V: a
 * number of floats that every row reads and replaces.
 *
 * States lie in rows of a pool, and an operation has some columns of each row. Its rows of the
 * step come in parts: neighbouring rows of one sequence, in their order. Before the first row of a
 * part the state may be copied from another row of the pool (a snapshot) or be set to zero, and
 * behind the last one it may be copied to another: so a chunk of a prompt leaves a snapshot in its
 * middle without being computed in two steps. Parts come in the order of their rows, those of a
 * sequence beside one another. Behind them all may be parts without rows: they belong to no
 * sequence and pad a step to the number of parts of a recorded one; nothing else of them is read.
 *
 * Each state's columns are independent of one another in what they sum, so threads divide columns
 * and go through all parts in order, and a row's numbers depend on its own sequence alone. Sums are
 * in ascending order, each product rounded before it is added, unless it says otherwise.
 * On a device parts and pool are in its memory, a launch is sized by n_part and n_row, and no two
 * sequences of a step have the same state.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_OPS_OPS_STATE_H
#define QUIRE_KERNELS_OPS_OPS_STATE_H
#include "kernels/ops/ops.h"

#define KERN_STATE_NONE UINT32_MAX        /* state_part.to: no copy */
#define KERN_STATE_ZERO (UINT32_MAX - 1u) /* state_part.from: zeros; as in proto/step.h */
#define KERN_CONV_MAX   8u                /* width of a convolution */
#define KERN_DELTA_MAX  256u              /* elements of a head of keys or values */
#define KERN_SCAN_MAX   256u              /* elements of a head, and of its state */

struct state_part {
    uint32_t row, n_row; /* of the step; n_row 0: a part that pads */
    uint32_t state;      /* the sequence's row of the pool */
    uint32_t from;       /* what it is before: a copy of this row, or zeros; `state`: as it is */
    uint32_t to;         /* the row that it is copied to behind the last row, or none */
};
struct state_rows {                 /* of an operation, of all parts of a step */
    const struct state_part *parts; /* [n_part] */
    uint32_t n_part;
    float *pool;    /* the operation's columns of row 0 */
    size_t stride;  /* floats from a row of the pool to the next */
    uint32_t n_row; /* of the step: at least the rows of all parts */
};

/* A causal convolution of each column, arXiv:2312.00752:
 * y[r,c] = post[r,c] * (bias[c] + sum over j of w[c,j] * u[r - width + 1 + j, c]), u = x * pre.
 * Rows before the first are those of the state, [width - 1, n_col]: u of the last rows, the oldest
 * first. y may not overlap the inputs. */
struct state_conv_args {
    float *y;                  /* [n_row, n_col] */
    const float *x;            /* [n_row, n_col] */
    const float *pre, *post;   /* like x, with its stride; NULL: 1 */
    size_t y_stride, x_stride; /* elements */
    const float *w;            /* [n_col, width] */
    const float *bias;         /* [n_col], NULL: 0 */
    uint32_t n_col, width;     /* 2 … KERN_CONV_MAX */
    struct state_rows states;
};

/* The gated delta rule, arXiv:2412.06464. Of each head of values, with the keys of its group of
 * heads, S [key_dim, value_dim] and v, k, q of the row, k and q made of length 1
 * (x / sqrt(sum x^2 + 1e-6)), q / sqrt(key_dim):
 *     S = decay S;  S += k (beta (v - k S));  y = q S
 *     beta = beta_max sigmoid(b), decay = exp(-exp(log_rate) softplus(a + rate_bias))
 * Sums of squares are 16 lanes by the element's number, folded by halves. y may not overlap the
 * inputs. */
struct state_delta_args {
    float *y;           /* [n_row, n_value_head * value_dim] */
    const float *x;     /* [n_row, all of q, then of k (key heads), then of v (value heads)] */
    const float *gates; /* [n_row, b of each value head, then a] */
    size_t y_stride, x_stride, gate_stride; /* elements */
    const float *log_rate, *rate_bias;      /* [n_value_head] */
    uint32_t n_key_head, n_value_head;      /* the second a multiple of the first */
    uint32_t key_dim, value_dim;            /* at most KERN_DELTA_MAX */
    float beta_max;           /* 1; 2: S may have negative eigenvalues, arXiv:2411.12537 */
    struct state_rows states; /* [n_value_head, key_dim, value_dim] */
};

/* The selective scan of a state space model: of each head, with x [head_dim] of the row, and with b
 * and c [n_state] of its group of heads, S [n_state, head_dim]:
 *     S[i,:] = S[i,:] exp(-t exp(log_rate[i])) + b[i] (t x);  y = sum of c[i] S[i,:], + skip x
 *     t = softplus(step + step_bias), limited to step_min … step_max
 * Mamba 2 (SSD, arXiv:2405.21060) has one log_rate for a head. Mamba (arXiv:2312.00752) has one for
 * each element of the state, and heads of one column (by_state): its S is [n_state, n_head]. Sums
 * are in ascending order of i. y may not overlap the inputs. */
struct state_scan_args {
    float *y;                                         /* [n_row, n_head * head_dim] */
    const float *x;                                   /* likewise */
    const float *b, *c;                               /* [n_row, n_group * n_state] */
    const float *step;                                /* [n_row, n_head] */
    size_t y_stride, x_stride, b_stride, step_stride; /* elements; c's is b's */
    const float *log_rate;                            /* [n_head]; by_state: [n_head, n_state] */
    const float *step_bias, *skip;                    /* [n_head] */
    float step_min, step_max;                         /* 0 <= step_min <= step_max, may be inf */
    uint32_t n_head, head_dim, n_group, n_state;      /* n_group divides n_head */
    int by_state;                                     /* then head_dim and n_group are 1 */
    struct state_rows states; /* [n_head, n_state, head_dim]; by_state: [n_state, n_head] */
};

#endif
