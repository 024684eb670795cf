/* SPDX-License-Identifier: Apache-2.0 */
/* element - one element of an array of any float type, or int8, by index; for the reference
 * kernels.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_REF_ELEMENT_H
#define QUIRE_KERNELS_REF_ELEMENT_H
#include <string.h>
#include "kernels/ops/ops.h"

/* p may have any alignment (weights are read from mapped files). */
static inline float element_f32(const void *p, enum dtype dtype, size_t i)
{
    float f;
    uint16_t h;
    if (dtype == DT_F32) {
        memcpy(&f, (const char *)p + 4 * i, 4);
        return f;
    }
    if (dtype == DT_I8)
        return ((const int8_t *)p)[i];
    memcpy(&h, (const char *)p + 2 * i, 2);
    return dtype == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

static inline void element_set(void *p, enum dtype dtype, size_t i, float f)
{
    if (dtype == DT_F32)
        ((float *)p)[i] = f;
    else
        ((uint16_t *)p)[i] = dtype == DT_F16 ? f32_to_f16(f) : f32_to_bf16(f);
}

/* Index of W[o,k] in the packed layout of ops.h, in elements. */
static inline size_t packed_index(enum dtype dtype, uint32_t n_in, uint32_t o, uint32_t k)
{
    size_t panel = o / KERN_PANEL, lane = o % KERN_PANEL;
    if (dtype == DT_BF16) {
        size_t n_pair = ((size_t)n_in + 1) / 2;
        return ((panel * n_pair + k / 2) * KERN_PANEL + lane) * 2 + k % 2;
    }
    return (panel * n_in + k) * KERN_PANEL + lane;
}

/* Index of K[d] of one token in the cache, in elements from the start of its block and head. int8
 * has the layout of f32. */
static inline size_t k_index(enum dtype dtype, uint32_t d, uint32_t offset)
{
    if (dtype == DT_BF16)
        return ((size_t)(d / 2) * KERN_BLOCK + offset) * 2 + d % 2;
    return (size_t)d * KERN_BLOCK + offset;
}

/* Sum of 16 lanes by halves: lane l takes lane l + 8, then + 4, + 2, + 1. */
static inline float fold16(float *lane)
{
    for (uint32_t half = 8; half; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

#endif
