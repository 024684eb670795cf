/* SPDX-License-Identifier: Apache-2.0 */
/* distill_pair - what the loops over columns of distill_loss are given, and which loops a variant
 * has. Names: ref/distill_loss.c. Private to kernels/. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_TILING_DISTILL_PAIR_H
#define QUIRE_KERNELS_TILING_DISTILL_PAIR_H
#include "kernels/tiling/top_k.h"

enum distill_slope {
    SLOPE_FKL = DISTILL_FKL,
    SLOPE_RKL = DISTILL_RKL,
    SLOPE_JSD = DISTILL_JSD,
    SLOPE_Q,   /* Q, the part of all columns when P is over K, */
    SLOPE_P,   /* and -P, that of K */
    SLOPE_NONE /* 0 */
};

/* All that a loop needs of one pair of rows; names as in ref/distill_loss.c. */
struct distill_pair {
    enum distill_slope slope;
    const float *zt;
    float *zs;
    uint32_t n; /* columns of both */
    float inverse, mt, ms, pt, ps, c;
    float off, weight; /* what is taken from the ratio; what dD/db is multiplied by */
    float log_beta, log_rest, logit;
    double sum_t, sum_s; /* Zt, Zs */
    /* for what is written besides, over n_all >= n columns */
    uint32_t n_all;
    double ce_sum;                       /* of e^(zs - ce_most) */
    float ce_most, ce_p, ce_weight, cap; /* weight 0, cap 0: none */
};

struct distill_loops {
    float (*most)(const float *row, uint32_t n); /* -inf when nothing is above */
    uint32_t (*first_equal)(const float *row, uint32_t n, float value);
    double (*sum_exp)(const float *row, uint32_t n, float most, float inverse);
    double (*sum_cross)(const struct distill_pair *p);               /* A */
    void (*sum_mixed)(const struct distill_pair *p, double sums[2]); /* sum P (x + d), sum Q x */
    void (*offer)(struct top_k *top, const float *row, uint32_t n);
    void (*write)(const struct distill_pair *p); /* the gradient over zs */
};

struct distill_row {
    const struct distill_loss_args *a;
    const struct distill_loops *loops;
    struct top_k_scratch *chosen;
    const float *zt;
    float *zs;
    uint32_t i;
};

static inline float distill_cap(const struct distill_loss_args *a, float z)
{
    const float t = z / a->soft_cap;
    return a->soft_cap > 0 ? 1.0f - t * t : 1.0f;
}

static inline uint32_t distill_common(const struct distill_loss_args *a)
{
    return a->n_teacher < a->n_student ? a->n_teacher : a->n_student;
}

#endif
