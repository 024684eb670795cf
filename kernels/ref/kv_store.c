/* SPDX-License-Identifier: Apache-2.0 */
/* One token's keys go to lane `offset` of each row of its block, its values to row `offset`. The
 * second half of the last K pair of an odd head_dim is zeroed, so that reading the pair is
 * harmless.
 *
 * int8: most = max |x| (NaN or infinite when one x is), scale and inverse as int8.h makes them;
 * stored = x * inverse in f32, to the nearest integer, ties to even; a NaN is stored as 0. */
#include "kernels/ops/kv_layout.h"
#include "kernels/ref/element.h"
#include "kernels/ref/int8.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

struct place {       /* one token's K and V of one head */
    char *k, *v;     /* start of the block and head */
    uint32_t offset; /* of the token in the block */
    uint32_t head_dim;
};

static void store_float(const struct place *p, enum dtype dtype, const float *k, const float *v)
{
    for (uint32_t d = 0; d < p->head_dim; d++) {
        element_set(p->k, dtype, k_index(dtype, d, p->offset), k[d]);
        element_set(p->v, dtype, (size_t)p->offset * p->head_dim + d, v[d]);
    }
    if (dtype == DT_BF16 && p->head_dim % 2)
        element_set(p->k, DT_BF16, k_index(DT_BF16, p->head_dim, p->offset), 0);
}

static void store_int8(const struct place *p, const float *k, const float *v)
{
    struct int8_scale of_k = int8_scale_of(k, p->head_dim), of_v = int8_scale_of(v, p->head_dim);
    int8_t *to_k = (int8_t *)p->k, *to_v = (int8_t *)p->v + (size_t)p->offset * p->head_dim;
    for (uint32_t d = 0; d < p->head_dim; d++) {
        to_k[k_index(DT_I8, d, p->offset)] = int8_of(k[d], of_k.inverse);
        to_v[d] = int8_of(v[d], of_v.inverse);
    }
    element_set(p->k + kv_scales_at(p->head_dim), DT_F32, p->offset, of_k.scale);
    element_set(p->v + kv_scales_at(p->head_dim), DT_F32, p->offset, of_v.scale);
}

void kv_store_ref(const struct kv_store_args *a, const struct kern_exec *x)
{
    struct range heads = split((size_t)a->n_row * a->n_kv_head, x);
    for (size_t i = heads.begin; i < heads.end; i++) {
        size_t row = i / a->n_kv_head, head = i % a->n_kv_head, block = a->slot[row] / KERN_BLOCK;
        if (a->slot[row] == KERN_NO_SLOT)
            continue;
        size_t at = (block * a->n_kv_head + head) * kv_head_bytes(a->kv_dtype, a->head_dim);
        struct place p = {
            .k = (char *)a->k_cache + at,
            .v = (char *)a->v_cache + at,
            .offset = a->slot[row] % KERN_BLOCK,
            .head_dim = a->head_dim,
        };
        const float *k = a->k + row * a->k_stride + head * a->head_dim;
        const float *v = a->v + row * a->v_stride + head * a->head_dim;
        if (a->kv_dtype == DT_I8)
            store_int8(&p, k, v);
        else
            store_float(&p, a->kv_dtype, k, v);
    }
}
