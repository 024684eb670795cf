/* SPDX-License-Identifier: Apache-2.0 */
/* int8 - kernels/ops/int8.h for the device: the same bits. Private to kernels/cuda. */
#ifndef QUIRE_KERNELS_CUDA_INT8_CUH
#define QUIRE_KERNELS_CUDA_INT8_CUH
#include "kernels/cuda/launch.cuh"
extern "C" {
#include "kernels/ops/int8.h"
}

/* int8_scale() of kernels/ops/int8.h. */
static __device__ __forceinline__ struct int8_scale int8_scale_for(float most)
{
    struct int8_scale s = {most / INT8_MOST, INT8_MOST / most};
    if (!(most < INFINITY)) {
        s.scale = NAN;
        s.inverse = 0;
    } else if (most < INT8_LEAST) {
        s.scale = s.inverse = 0;
    }
    return s;
}

/* NaN is stored as 0. */
static __device__ __forceinline__ int8_t int8_of(float x, float inverse)
{
    const float y = x * inverse;
    return y != y ? (int8_t)0 : (int8_t)(int)rintf(y);
}

#endif
