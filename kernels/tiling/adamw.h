/* SPDX-License-Identifier: Apache-2.0 */
/* adamw - the scalars of an optimiser step as f32; private to kernels/. Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_ADAMW_H
#define QUIRE_KERNELS_TILING_ADAMW_H
#include <math.h>
#include "kernels/ops/ops_train.h"

struct adamw_scalars {
    float decay, beta1, rest1, beta2, rest2, rate, root, eps, grad_scale;
};

static inline struct adamw_scalars adamw_scalars(const struct adamw_args *a)
{
    return (struct adamw_scalars){
        .decay = (float)(1 - a->lr * a->weight_decay),
        .beta1 = (float)a->beta1,
        .rest1 = (float)(1 - a->beta1),
        .beta2 = (float)a->beta2,
        .rest2 = (float)(1 - a->beta2),
        .rate = (float)(a->lr / a->bias1),
        .root = (float)(1 / sqrt(a->bias2)),
        .eps = (float)a->eps,
        .grad_scale = (float)a->grad_scale,
    };
}

#endif
