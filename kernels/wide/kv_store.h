/* SPDX-License-Identifier: Apache-2.0 */
/* kv_store: values are converted 16 at a time; keys are stored as one 4-byte word (an f32, or a
 * bf16 pair) per row of their block, 64 bytes apart, an int8 key as one byte per row, 16 bytes
 * apart. Layout: ops.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_KV_STORE_H
#define QUIRE_KERNELS_WIDE_KV_STORE_H
#include "kernels/ops/kv_layout.h"
#include "kernels/wide/int8.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

struct kv_token {         /* one token, one head */
    const float *k, *v;   /* [dim] */
    char *to_k, *to_v;    /* its block and head in the caches */
    uint32_t offset, dim; /* offset: of the token in the block */
};

INLINE void wide_store_f32(const struct kv_token *t)
{
    float *k = (float *)(void *)t->to_k + t->offset;
    for (uint32_t d = 0; d < t->dim; d++)
        k[(size_t)d * KERN_BLOCK] = t->k[d];
    memcpy((float *)(void *)t->to_v + (size_t)t->offset * t->dim, t->v, t->dim * sizeof *t->v);
}

INLINE void wide_store_bf16(const struct kv_token *t)
{
    uint16_t *k = (uint16_t *)(void *)t->to_k + 2 * (size_t)t->offset;
    uint16_t *v = (uint16_t *)(void *)t->to_v + (size_t)t->offset * t->dim;
    for (uint32_t d = 0; d < t->dim; d += 16) {
        uint32_t n = t->dim - d < 16 ? t->dim - d : 16;
        uint16_t cells[16];
        vec_store_bf16_n(v + d, vec_load_n(t->v + d, n), n);
        vec_store_bf16_n(cells, vec_load_n(t->k + d, n),
                         16); /* zeros after n: the odd half of a last pair */
        for (uint32_t j = 0; j < n; j += 2)
            memcpy(k + (size_t)(d + j) * KERN_BLOCK, cells + j, 4);
    }
}

INLINE void wide_store_int8(const struct kv_token *t)
{
    const struct int8_scale k = wide_int8_scale(t->k, t->dim), v = wide_int8_scale(t->v, t->dim);
    int8_t *to_k = (int8_t *)t->to_k + t->offset;
    int8_t *to_v = (int8_t *)t->to_v + (size_t)t->offset * t->dim;
    for (uint32_t d = 0; d < t->dim; d += 16) {
        uint32_t n = t->dim - d < 16 ? t->dim - d : 16;
        int8_t cells[16];
        wide_int8(to_v + d, t->v + d, v.inverse, n);
        wide_int8(cells, t->k + d, k.inverse, n);
        for (uint32_t j = 0; j < n; j++)
            to_k[(size_t)(d + j) * KERN_BLOCK] = cells[j];
    }
    ((float *)(void *)(t->to_k + kv_scales_at(t->dim)))[t->offset] = k.scale;
    ((float *)(void *)(t->to_v + kv_scales_at(t->dim)))[t->offset] = v.scale;
}

INLINE void wide_kv_store(const struct kv_store_args *a, const struct kern_exec *x)
{
    struct range heads = split((size_t)a->n_row * a->n_kv_head, x);
    const size_t head_bytes = kv_head_bytes(a->kv_dtype, a->head_dim);
    for (size_t i = heads.begin; i < heads.end; i++) {
        size_t row = i / a->n_kv_head, head = i % a->n_kv_head;
        if (a->slot[row] == KERN_NO_SLOT)
            continue;
        size_t at = (a->slot[row] / KERN_BLOCK * a->n_kv_head + head) * head_bytes;
        const struct kv_token t = {
            .k = a->k + row * a->k_stride + head * a->head_dim,
            .v = a->v + row * a->v_stride + head * a->head_dim,
            .to_k = (char *)a->k_cache + at,
            .to_v = (char *)a->v_cache + at,
            .offset = a->slot[row] % KERN_BLOCK,
            .dim = a->head_dim,
        };
        if (a->kv_dtype == DT_BF16)
            wide_store_bf16(&t);
        else if (a->kv_dtype == DT_I8)
            wide_store_int8(&t);
        else
            wide_store_f32(&t);
    }
}

#endif
#endif
