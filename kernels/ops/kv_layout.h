/* SPDX-License-Identifier: Apache-2.0 */
/* kv_layout - sizes within a block of the KV cache. Private to kernels/; the picture is in ops.h.
 *
 * int8: each token's K, and its V, of one head has one f32 scale, so that a token's bytes depend on
 * that token only, not on tokens stored before or after it (int8.h). Threads: pure functions. */
#ifndef QUIRE_KERNELS_OPS_KV_LAYOUT_H
#define QUIRE_KERNELS_OPS_KV_LAYOUT_H
#include "kernels/ops/ops.h"

/* Of one element of K or V. */
static inline size_t kv_element_bytes(enum dtype kv_dtype)
{
    if (kv_dtype == DT_I8)
        return 1;
    return kv_dtype == DT_BF16 ? 2 : 4;
}

/* K (or V) of one block and one head. */
static inline size_t kv_head_bytes(enum dtype kv_dtype, uint32_t head_dim)
{
    size_t dim = kv_dtype == DT_BF16 ? ((size_t)head_dim + 1) / 2 * 2 : head_dim;
    size_t scales = kv_dtype == DT_I8 ? KERN_BLOCK * sizeof(float) : 0;
    return KERN_BLOCK * dim * kv_element_bytes(kv_dtype) + scales;
}

/* int8 only: from the start of a block and head to its scales. */
static inline size_t kv_scales_at(uint32_t head_dim)
{
    return (size_t)KERN_BLOCK * head_dim;
}

#endif
