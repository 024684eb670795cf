/* SPDX-License-Identifier: Apache-2.0 */
/* pool_kinds - what the kernel pool_rows does for each kind of pooling. Threads: pure. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_POOL_KINDS_H
#define QUIRE_ENGINE_MODEL_FORWARD_POOL_KINDS_H
#include "common/hub/pooling_kind.h"
#include "kernels/ops/ops_device.h"

/* LAST, CLS: the row that the batch asks for. */
static inline enum pool_rows_kind pool_kind_of(enum pooling_kind kind)
{
    static const enum pool_rows_kind of[POOLING_KINDS] = {
        [POOLING_LAST] = POOL_ROWS_ONE,
        [POOLING_CLS] = POOL_ROWS_ONE,
        [POOLING_MEAN] = POOL_ROWS_MEAN,
        [POOLING_MAX] = POOL_ROWS_MAX,
        [POOLING_WEIGHTED_MEAN] = POOL_ROWS_WEIGHTED_MEAN,
        [POOLING_MEAN_SQRT_LEN] = POOL_ROWS_MEAN_SQRT_LEN,
    };
    return of[kind];
}

#endif
