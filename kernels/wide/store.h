/* SPDX-License-Identifier: Apache-2.0 */
/* store - up to 16 neighbours of an array of f32 or bf16, by index. Threads: pure functions. */
#ifndef QUIRE_KERNELS_WIDE_STORE_H
#define QUIRE_KERNELS_WIDE_STORE_H
#include "kernels/wide/element.h"
#ifdef VEC_SUMS

INLINE struct vec wide_load_at(const void *p, enum dtype dtype, size_t i, uint32_t n)
{
    if (dtype == DT_F32 && n == 16)
        return vec_load((const float *)p + i);
    if (dtype == DT_BF16 && n == 16)
        return vec_load_bf16((const uint16_t *)p + i);
    return wide_element((const char *)p + i * (dtype == DT_F32 ? 4 : 2), dtype, n);
}

INLINE void wide_store_at(void *p, enum dtype dtype, size_t i, struct vec v, uint32_t n)
{
    if (dtype == DT_BF16)
        vec_store_bf16_n((uint16_t *)p + i, v, n);
    else if (n == 16)
        vec_store((float *)p + i, v);
    else
        vec_store_n((float *)p + i, v, n);
}

#endif
#endif
