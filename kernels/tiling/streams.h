/* SPDX-License-Identifier: Apache-2.0 */
/* streams - the few numbers of a row of ops_streams.h, which all variants compute alike.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_STREAMS_H
#define QUIRE_KERNELS_TILING_STREAMS_H
#include <math.h>
#include "kernels/ops/ops_streams.h"

/* to[j] = sum_k w[j,k] tanh(scores[k]), j < n_out. */
static inline void stream_factors(float *to, uint32_t n_out, const float *w, const float *scores,
                                  uint32_t n)
{
    float m[KERN_STREAMS_MAX];
    for (uint32_t k = 0; k < n; k++)
        m[k] = tanhf(scores[k]);
    for (uint32_t j = 0; j < n_out; j++) {
        to[j] = w[(size_t)j * n] * m[0];
        for (uint32_t k = 1; k < n; k++)
            to[j] = fmaf(w[(size_t)j * n + k], m[k], to[j]);
    }
}

#endif
