/* SPDX-License-Identifier: Apache-2.0 */
/* embed on 16 lanes. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_EMBED_H
#define QUIRE_KERNELS_WIDE_EMBED_H
#include "kernels/wide/columns.h"
#include "kernels/wide/element.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

INLINE void wide_embed(const struct embed_args *a, const struct kern_exec *x)
{
    struct range chunks = split(chunk_count(a->n_row, a->n_col), x);
    const size_t element = a->dtype == DT_F32 ? 4 : 2;
    const struct vec scale = vec_set(a->scale);
    for (size_t i = chunks.begin; i < chunks.end; i++) {
        struct chunk k = chunk_at(i, a->n_col);
        const char *from = (const char *)a->table + (size_t)a->ids[k.row] * a->n_col * element;
        for (uint32_t c = k.begin; c < k.end; c += 16) {
            uint32_t n = k.end - c < 16 ? k.end - c : 16;
            vec_store_n(a->y + k.row * a->n_col + c,
                        vec_mul(wide_element(from + c * element, a->dtype, n), scale), n);
        }
    }
}

#endif
#endif
