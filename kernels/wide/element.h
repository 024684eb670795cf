/* SPDX-License-Identifier: Apache-2.0 */
/* element - up to 16 elements of any float type as f32.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_WIDE_ELEMENT_H
#define QUIRE_KERNELS_WIDE_ELEMENT_H
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

/* n <= 16 elements from p, which need not be aligned. */
INLINE struct vec wide_element(const char *p, enum dtype dtype, uint32_t n)
{
    uint16_t half[16] = {0};
    if (dtype == DT_F32)
        return vec_load_n((const float *)(const void *)p, n);
    if (n == 16)
        return dtype == DT_F16 ? vec_load_f16((const uint16_t *)(const void *)p)
                               : vec_load_bf16((const uint16_t *)(const void *)p);
    memcpy(half, p, 2 * (size_t)n);
    return dtype == DT_F16 ? vec_load_f16(half) : vec_load_bf16(half);
}

#endif
#endif
