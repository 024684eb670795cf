/* SPDX-License-Identifier: Apache-2.0 */
/* fp8 - kernels/ops/fp8.h for the device: the same bits. Private to kernels/cuda. */
#ifndef QUIRE_KERNELS_CUDA_FP8_CUH
#define QUIRE_KERNELS_CUDA_FP8_CUH
#include "kernels/cuda/launch.cuh"
extern "C" {
#include "kernels/ops/fp8.h"
}

/* fp8_scale() of kernels/ops/fp8.h. */
static __device__ __forceinline__ struct fp8_scale fp8_scale_for(float most, float fixed)
{
    struct fp8_scale s = {most / FP8_MOST, FP8_MOST / most};
    if (!(most < INFINITY)) {
        s.scale = NAN;
        s.inverse = 0;
    } else if (fixed > 0) {
        s.scale = fixed;
        s.inverse = 1 / fixed;
    } else if (most < FP8_LEAST) {
        s.scale = s.inverse = 0;
    }
    return s;
}

/* NaN is stored as 0. */
static __device__ __forceinline__ uint8_t fp8_of(float x, float inverse)
{
    const float y = x * inverse;
    return y != y ? (uint8_t)0 : e4m3_of(y);
}

/* Four neighbours, as they lie in memory. */
static __device__ __forceinline__ uint32_t fp8_of_four(float4 v, float inverse)
{
    return fp8_of(v.x, inverse) | (uint32_t)fp8_of(v.y, inverse) << 8 |
           (uint32_t)fp8_of(v.z, inverse) << 16 | (uint32_t)fp8_of(v.w, inverse) << 24;
}

/* The largest magnitude of them; NaN where one is. */
static __device__ __forceinline__ float most_of_four(float4 v)
{
    return most_of(most_of(fabsf(v.x), fabsf(v.y)), most_of(fabsf(v.z), fabsf(v.w)));
}

#endif
