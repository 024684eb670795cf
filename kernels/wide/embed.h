/* SPDX-License-Identifier: Apache-2.0 */
/* embed on 16 lanes. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_EMBED_H
#define QUIRE_KERNELS_WIDE_EMBED_H
#include "kernels/wide/columns.h"
#include "kernels/wide/element.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

/* Elements c … c + n - 1 of output `id` of packed weights, made contiguous; c is even. */
INLINE void wide_unpack(char out[64], const struct embed_args *a, uint32_t id, uint32_t c,
                        uint32_t n)
{
    const uint32_t pair = a->dtype == DT_BF16 ? 2 : 1; /* elements that lie together */
    const size_t cell = pair * (a->dtype == DT_F32 ? 4 : 2);
    const size_t n_cell = (a->n_col + pair - 1) / pair;
    const char *from =
        (const char *)a->table +
        ((id / KERN_PANEL * n_cell + c / pair) * KERN_PANEL + id % KERN_PANEL) * cell;
    for (uint32_t i = 0; i < n; i += pair, from += KERN_PANEL * cell)
        memcpy(out + i / pair * cell, from, cell);
}

INLINE void wide_embed(const struct embed_args *a, const struct kern_exec *x)
{
    struct range chunks = split(chunk_count(a->n_row, a->n_col), x);
    const size_t element = a->dtype == DT_F32 ? 4 : 2;
    const struct vec scale = vec_set(a->scale);
    for (size_t i = chunks.begin; i < chunks.end; i++) {
        struct chunk k = chunk_at(i, a->n_col);
        const uint32_t given = a->ids[k.row], r = a->mod ? given / a->div % a->mod : given;
        const uint32_t id = a->limit && r >= a->limit ? 0 : r;
        const char *row = (const char *)a->table + (size_t)id * a->n_col * element;
        if (given == KERN_NO_ROW)
            continue;
        for (uint32_t c = k.begin; c < k.end; c += 16) {
            uint32_t n = k.end - c < 16 ? k.end - c : 16;
            const char *from = row + c * element;
            char part[64];
            if (a->packed) {
                wide_unpack(part, a, id, c, n);
                from = part;
            }
            float *y = a->y + k.row * a->n_col + c;
            const struct vec v = vec_mul(wide_element(from, a->dtype, n), scale);
            vec_store_n(y, a->accumulate ? vec_add(vec_load_n(y, n), v) : v, n);
        }
    }
}

#endif
#endif
