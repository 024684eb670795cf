/* SPDX-License-Identifier: Apache-2.0 */
/* int4 - the loops of linear_w4a8 and its f32 part on 16 lanes; formula: ops_int4.h, picture:
 * int4_scratch.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_INT4_H
#define QUIRE_KERNELS_WIDE_INT4_H
#include "kernels/tiling/int4_scratch.h"
#include "kernels/tiling/linear_tile_loop.h"
#ifdef VEC_SUMS

/* Add a slice to s->acc of every row of the block (from 0 in the first one); after the last one run
 * the epilogue. */
typedef void int4_part_fn(const struct int4_part *p);
struct int4_kernel {
    int4_part_fn *fn;
    uint32_t few;     /* up to this number of rows a slice is the whole panel */
    uint32_t slice_k; /* else it has so many inputs at most, but a group at least */
};

INLINE const int8_t *int4_x(const struct int4_part *p, uint32_t row)
{
    return p->a->x + (p->row + row) * p->a->x_stride + p->k;
}

INLINE bool int4_last(const struct int4_part *p)
{
    return p->k + p->n_group * p->a->w.group >= p->a->w.n_in;
}

/* Sums of x in each group from `group` on, at most INT4_X_SUMS groups. */
static void int4_of_x(const struct int4_part *p, uint32_t group)
{
    const uint32_t each = p->a->w.group / KERN_INT8_SUM,
                   left = p->a->w.n_in / p->a->w.group - group;
    const uint32_t n = left < INT4_X_SUMS ? left : INT4_X_SUMS;
    for (uint32_t r = 0; r < p->n_row; r++) {
        const int16_t *sums =
            p->sums + (p->row + r) * p->a->x_stride / KERN_INT8_SUM + (size_t)group * each;
        for (uint32_t g = 0; g < n; g++) {
            int32_t sum = 0;
            for (uint32_t i = 0; i < each; i++)
                sum += *sums++;
            p->s->x_sum[(size_t)g * p->n_row + r] = (float)sum;
        }
    }
}

INLINE uint32_t int4_outputs(const struct int4_part *p) /* existing outputs of this panel */
{
    return p->a->w.n_out - p->o < KERN_PANEL ? p->a->w.n_out - p->o : KERN_PANEL;
}

INLINE void int4_epilogue(const struct int4_part *p, uint32_t row)
{
    const struct epilogue f = EPILOGUE_OF(p->a);
    const struct vec of_row = vec_set(p->a->rows[p->row + row].scale);
    const float *acc = p->s->acc[row];
    const uint32_t n = int4_outputs(p);
    for (uint32_t i = 0; i < n; i += 32)
        epilogue_pair(&f, vec_mul(vec_load(acc + i), of_row),
                      vec_mul(vec_load(acc + i + 16), of_row), p->row + row, p->o + i,
                      n - i < 32 ? n - i : 32);
}

/* Slices of about equal size, `most` groups at most, of groups whose sums of x are known. */
INLINE void int4_slices(struct int4_part *p, struct range groups, const uint8_t *next,
                        uint32_t most, int4_part_fn *fn)
{
    const uint32_t group = p->a->w.group, n_group = (uint32_t)(groups.end - groups.begin);
    const uint32_t n_slice = (n_group + most - 1) / most;
    p->n_next = (n_group + n_slice - 1) / n_slice;
    for (uint32_t i = 0, at = 0; i < n_slice; i++, at += p->n_group) {
        p->n_group = n_group * (i + 1) / n_slice - at;
        p->k = ((uint32_t)groups.begin + at) * group;
        p->x_sum = p->s->x_sum + (size_t)at * p->n_row;
        p->next = i + 1 < n_slice ? p->w + p->n_group * int4_group_bytes(group) : next;
        fn(p);
        p->w += p->n_group * int4_group_bytes(group);
    }
}

INLINE void int4_panel(struct int4_part *p, const uint8_t *next_panel, const struct int4_kernel *by)
{
    const uint32_t group = p->a->w.group, n_group = p->a->w.n_in / group;
    const uint32_t slice = by->slice_k > group ? by->slice_k / group : 1;
    for (uint32_t g = 0; g < n_group; g += INT4_X_SUMS) {
        const uint32_t end = n_group - g < INT4_X_SUMS ? n_group : g + INT4_X_SUMS;
        /* computed once for a block if all groups fit */
        if (n_group > INT4_X_SUMS || !p->x_sum)
            int4_of_x(p, g);
        int4_slices(p, (struct range){g, end},
                    end < n_group ? p->w + (end - g) * int4_group_bytes(group) : next_panel,
                    p->n_row > by->few ? slice : n_group, by->fn);
    }
}

INLINE void int4_tile_loop(const struct linear_w4a8_args *args, const struct kern_exec *x,
                           const struct int4_kernel *by)
{
    const struct linear_int8_args *a = &args->by;
    const size_t panel_bytes = int4_panel_bytes(a->w.n_in, a->w.group);
    struct panels panels = panels_of((a->w.n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    const uint8_t *w = a->w.data;
    const size_t block = linear_block(a->n_row);
    for (size_t row = 0; row < a->n_row; row += block) {
        struct int4_part p = {.a = a, .sums = args->sums, .s = x->scratch, .row = row};
        p.n_row = (uint32_t)(a->n_row - row < block ? a->n_row - row : block);
        p.is_first = true;
        panels_start(&panels, row + p.n_row == a->n_row);
        for (size_t panel; panels_next(&panels, &panel); p.is_first = false) {
            p.o = (uint32_t)panel * KERN_PANEL;
            p.w = w + panel * panel_bytes;
            int4_panel(&p, w + panels_after(&panels, panel) * panel_bytes, by);
        }
    }
}

#endif
#endif
