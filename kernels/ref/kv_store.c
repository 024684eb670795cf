/* SPDX-License-Identifier: Apache-2.0 */
/* One token's keys go to lane `offset` of each row of its block, its values to row `offset`. The
 * second half of the last K pair of an odd head_dim is zeroed, so that reading the pair is
 * harmless. */
#include "kernels/ref/element.h"
#include "kernels/split.h"
#include "kernels/variants.h"

static void store_head(const struct kv_store_args *a, size_t row, uint32_t head)
{
    size_t block = a->slot[row] / KERN_BLOCK;
    uint32_t offset = a->slot[row] % KERN_BLOCK;
    size_t at = (block * a->n_kv_head + head) * kv_head_elements(a->kv_dtype, a->head_dim);
    const float *k = a->k + row * a->k_stride + (size_t)head * a->head_dim;
    const float *v = a->v + row * a->v_stride + (size_t)head * a->head_dim;
    for (uint32_t d = 0; d < a->head_dim; d++) {
        element_set(a->k_cache, a->kv_dtype, at + k_index(a->kv_dtype, d, offset), k[d]);
        element_set(a->v_cache, a->kv_dtype, at + (size_t)offset * a->head_dim + d, v[d]);
    }
    if (a->kv_dtype == DT_BF16 && a->head_dim % 2)
        element_set(a->k_cache, DT_BF16, at + k_index(DT_BF16, a->head_dim, offset), 0);
}

void kv_store_ref(const struct kv_store_args *a, const struct kern_exec *x)
{
    struct range heads = split((size_t)a->n_row * a->n_kv_head, x);
    for (size_t i = heads.begin; i < heads.end; i++)
        store_head(a, i / a->n_kv_head, (uint32_t)(i % a->n_kv_head));
}
