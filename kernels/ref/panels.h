/* SPDX-License-Identifier: Apache-2.0 */
/* panels - loops over panels shared by the reference's packers, and those shared by its products.
 * Threads: as ops.h; a thread computes whole panels. */
#ifndef QUIRE_KERNELS_REF_PANELS_H
#define QUIRE_KERNELS_REF_PANELS_H
#include <stdbool.h>
#include "kernels/ref/epilogue.h"
#include "kernels/tiling/split.h"

/* Write output o, from src row o - row_start; zeros when it is not `present` in src. */
typedef void ref_pack_row(const void *args, uint32_t o, bool present);

struct ref_pack { /* of a packer's arguments */
    uint32_t n_out, row_start, n_out_total;
    ref_pack_row *row;
    const void *args;
};
#define REF_PACK(a, of_row) \
    (&(struct ref_pack){(a)->n_out, (a)->row_start, (a)->n_out_total, of_row, a})

/* This thread's outputs row_start … row_start + n_out - 1; the call that ends at n_out_total also
 * zeroes the rest of the last panel, so that fused matrices packed by several calls are complete
 * after the last call. */
static inline void ref_pack(const struct ref_pack *p, const struct kern_exec *x)
{
    const uint32_t row_end = p->row_start + p->n_out, first = p->row_start / KERN_PANEL;
    const uint32_t last = (row_end + KERN_PANEL - 1) / KERN_PANEL; /* one past */
    if (p->n_out == 0)
        return;
    const struct range panels = split(last - first, x);
    const uint32_t end = (first + (uint32_t)panels.end) * KERN_PANEL;
    for (uint32_t o = (first + (uint32_t)panels.begin) * KERN_PANEL; o < end; o++) {
        const bool present = o >= p->row_start && o < row_end;
        if (present || o >= p->n_out_total)
            p->row(p->args, o, present);
    }
}

/* The finished sum of row i and output o, before the epilogue (epilogue.h). */
typedef float ref_sum(const void *args, size_t i, uint32_t o);

struct ref_product { /* of a product's arguments */
    struct epilogue epilogue;
    uint32_t n_row, n_out;
    ref_sum *sum;
    const void *args;
};
#define REF_PRODUCT(a, sum_of) \
    (&(struct ref_product){EPILOGUE_OF(a), (a)->n_row, (a)->w.n_out, sum_of, a})

/* This thread's outputs of every row. */
static inline void ref_product(const struct ref_product *p, const struct kern_exec *x)
{
    const struct range panels = split((p->n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    const uint32_t begin = (uint32_t)panels.begin * KERN_PANEL;
    const uint32_t end = (uint32_t)panels.end * KERN_PANEL;
    float sum[KERN_PANEL];
    for (size_t i = 0; i < p->n_row; i++)
        for (uint32_t o = begin; o < end && o < p->n_out; o += KERN_PANEL) {
            const uint32_t n = p->n_out - o < KERN_PANEL ? p->n_out - o : KERN_PANEL;
            for (uint32_t j = 0; j < n; j++)
                sum[j] = p->sum(p->args, i, o + j);
            ref_epilogue(&p->epilogue, sum, i, o, n);
        }
}

#endif
