/* SPDX-License-Identifier: Apache-2.0 */
/* philox - engine/worker/philox.h for the device: the same numbers. Philox 4x32 with 10 rounds;
 * source: Salmon et al., SC 2011. Private to kernels/cuda. */
#ifndef QUIRE_KERNELS_CUDA_PHILOX_CUH
#define QUIRE_KERNELS_CUDA_PHILOX_CUH
#include "kernels/cuda/launch.cuh"

/* The draw for the token at `position`: uniform in [0, 1), 53 random bits. */
static __device__ __forceinline__ double philox_uniform(uint64_t seed, uint32_t position)
{
    uint32_t c0 = position, c1 = 0, c2 = 0, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < 10; i++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const uint64_t bits = ((uint64_t)c0 << 32 | c1) >> 11;
    return (double)bits * 0x1p-53;
}

#endif
