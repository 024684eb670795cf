/* SPDX-License-Identifier: Apache-2.0 */
/* kv_store: values are converted 16 at a time; keys go out one 4-byte cell (an f32, or a bf16
 * pair) per row of their block, 64 bytes apart. Layout: ops.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_KV_STORE_H
#define QUIRE_KERNELS_WIDE_KV_STORE_H
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

INLINE void wide_store_f32(float *k_cache, float *v_cache, const float *k, const float *v,
                           uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d++)
        k_cache[(size_t)d * KERN_BLOCK] = k[d];
    memcpy(v_cache, v, dim * sizeof *v);
}

INLINE void wide_store_bf16(uint16_t *k_cache, uint16_t *v_cache, const float *k, const float *v,
                            uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d += 16) {
        uint32_t n = dim - d < 16 ? dim - d : 16;
        uint16_t cells[16];
        vec_store_bf16_n(v_cache + d, vec_load_n(v + d, n), n);
        vec_store_bf16_n(cells, vec_load_n(k + d, n),
                         16); /* zeros after n: the odd half of a last pair */
        for (uint32_t j = 0; j < n; j += 2)
            memcpy(k_cache + (size_t)(d + j) * KERN_BLOCK, cells + j, 4);
    }
}

INLINE void wide_kv_store(const struct kv_store_args *a, const struct kern_exec *x)
{
    struct range heads = split((size_t)a->n_row * a->n_kv_head, x);
    const int bf16 = a->kv_dtype == DT_BF16;
    const size_t head_elements =
        (bf16 ? ((size_t)a->head_dim + 1) / 2 * 2 : a->head_dim) * KERN_BLOCK;
    for (size_t i = heads.begin; i < heads.end; i++) {
        size_t row = i / a->n_kv_head, head = i % a->n_kv_head, offset = a->slot[row] % KERN_BLOCK;
        size_t at = (a->slot[row] / KERN_BLOCK * a->n_kv_head + head) * head_elements;
        const float *k = a->k + row * a->k_stride + head * a->head_dim;
        const float *v = a->v + row * a->v_stride + head * a->head_dim;
        if (bf16)
            wide_store_bf16((uint16_t *)a->k_cache + at + 2 * offset,
                            (uint16_t *)a->v_cache + at + offset * a->head_dim, k, v, a->head_dim);
        else
            wide_store_f32((float *)a->k_cache + at + offset,
                           (float *)a->v_cache + at + offset * a->head_dim, k, v, a->head_dim);
    }
}

#endif
#endif
