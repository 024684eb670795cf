/* SPDX-License-Identifier: Apache-2.0 */
/* Store rows, rounded to the cache's type; layout of the cache: ops_mla.h. */
#include "kernels/ops/e4m3.h"
#include "kernels/ops/ops_mla.h"
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void mla_store_ref(const struct mla_store_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *from = a->x + i * a->x_stride;
        const size_t at = (size_t)a->slot[i] * a->n_key;
        for (uint32_t d = 0; a->slot[i] != KERN_NO_SLOT && d < a->n_key; d++)
            if (a->kv_dtype == DT_F8_E4M3)
                ((uint8_t *)a->cache)[at + d] = f32_to_e4m3(from[d]);
            else
                element_set(a->cache, a->kv_dtype, at + d, from[d]);
    }
}
