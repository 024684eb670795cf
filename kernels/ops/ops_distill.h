/* SPDX-License-Identifier: Apache-2.0 */
/* ops_distill - arguments of the loss of distillation: the logits of a teacher and of a student in,
 * the loss of each row and the gradient of the student's logits out.
 *
 * A caller goes through the rows in chunks: product with the teacher's head, product with the
 * student's head, distill_loss, products of the gradient; so the logits of a whole batch never
 * exist. N, the positions that count in the whole global batch, is known before the first chunk.
 * Threads: as ops.h; a row is one thread's. Scratch: kern_train_scratch_bytes (kern.h). */
#ifndef QUIRE_KERNELS_OPS_OPS_DISTILL_H
#define QUIRE_KERNELS_OPS_OPS_DISTILL_H
#include "kernels/ops/ops.h"

#define KERN_TOP_K_MAX 1024u

enum distill_kind {
    DISTILL_FKL, /* forward KL: D = sum_v P (log P - log Q). Source: arXiv:1503.02531 */
    DISTILL_RKL, /* reverse KL: D = sum_v Q (log Q - log P). Source: arXiv:2306.08543 */
    DISTILL_JSD, /* generalized Jensen-Shannon, M = beta P + (1 - beta) Q:
                    D = beta KL(P||M) + (1 - beta) KL(Q||M). Source: arXiv:2306.13649 */
    DISTILL_KINDS
};

/* Of row i with label l = labels[i] >= 0, over the V = min(n_teacher, n_student) columns that both
 * have, T = temperature, t2 = T^2 or 1:
 *     P = softmax(zt[i,:V] / T), Q = softmax(zs[i,:V] / T)
 *     kd[i] = t2 * D(P, Q)
 *     ce[i] = -log softmax(zs[i,:n_student])[l]
 *     agree[i] = 1 when the largest zt and the largest zs of the V columns are in the same one
 *                (the lowest of equal ones), else 0
 *     zs[i,v] = kd_weight / N * dkd[i]/dzs[i,v] + ce_weight / N * dce[i]/dzs[i,v]
 * A row with labels[i] < 0 does not count: kd, ce, agree and the whole row of zs become 0.
 *
 * top_k > 0: K = the top_k largest zt of the V columns, of equal ones those with the lowest ids;
 * P is the softmax over K alone. Q is over all V columns and D = sum over K (DISTILL_FKL only:
 * reverse KL has no value there, and the caller refuses the others), or, with renorm, over K alone
 * (any kind). ids: K is given instead, zt[i,j] is the logit or the log-probability of column
 * ids[i,j], j < top_k; ids of a row are different, ascending, and below n_student.
 *
 * soft_cap > 0: zs was capped by soft_cap (ops_elementwise.h), and the gradient is that of the
 * logits before it: times 1 - (zs / soft_cap)^2.
 *
 * Order: every sum over columns is 16 f64 lanes, lane l adds the f32 terms of columns l, l + 16, …
 * (of K: of its members by ascending id), folded by halves; ref/distill_loss.c has the terms. All
 * exponents are of differences to the row's maximum, so logits of any size are safe. zt may hold
 * -inf. A NaN in zt or zs makes the row's results NaN. */
struct distill_loss_args {
    float *zs;             /* [n_row, n_student], row stride zs_stride; overwritten */
    const float *zt;       /* [n_row, n_teacher or top_k], zt_stride; NULL: kd and agree are 0 */
    const uint32_t *ids;   /* [n_row, top_k], row stride zt_stride, or NULL */
    const int32_t *labels; /* [n_row], each < n_student */
    size_t zs_stride, zt_stride; /* elements */
    uint32_t n_row, n_student, n_teacher;
    enum distill_kind kind;
    float temperature, beta; /* above 0; 0 < beta < 1 */
    int t2;                  /* 1: kd is multiplied by T^2 */
    uint32_t top_k;          /* 0 = all; at most KERN_TOP_K_MAX */
    int renorm;
    float soft_cap;
    double kd_weight, ce_weight, n_position; /* n_position = N above */
    double *kd, *ce;                         /* [n_row]; without weight and N */
    uint32_t *agree;                         /* [n_row] */
};

#endif
