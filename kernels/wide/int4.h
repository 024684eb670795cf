/* SPDX-License-Identifier: Apache-2.0 */
/* int4 - the loops of linear_int4 and its f32 part on 16 lanes; formula: ops_int4.h, picture:
 * int4_walk.h. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_INT4_H
#define QUIRE_KERNELS_WIDE_INT4_H
#include "kernels/int4_walk.h"
#include "kernels/wide/finish.h"
#ifdef VEC_SUMS

/* Makes the sums of one group for every row of the block and gives them to int4_add. */
typedef void int4_part_fn(const struct int4_part *p);

INLINE const int8_t *int4_x(const struct int4_part *p, uint32_t row)
{
    return p->a->x + (p->row + row) * p->a->x_stride + p->k;
}

/* Sums of the block's row `row`, outputs `from` … `from` + 16 n - 1: integers below 2^24, so all of
 * this is exact but the last step, which rounds once. */
INLINE void int4_add(const struct int4_part *p, uint32_t row, const int32_t *sum,
                     const uint32_t from, const uint32_t n)
{
    const int16_t *sums = p->sums + ((p->row + row) * p->a->x_stride + p->k) / KERN_QUANT_SUM;
    int32_t of_x = sums[0];
    if (p->a->w.group > KERN_QUANT_SUM)
        of_x += sums[1];
    if (p->a->w.group > 2 * KERN_QUANT_SUM)
        of_x += sums[2] + sums[3];
    const struct vec x = vec_set((float)of_x);
    UNROLL
    for (uint32_t o = from; o < from + 16 * n; o += 16) {
        struct vec d = vec_fnma(vec_load(p->s->zero + o), x, vec_load_i32(sum + o));
        float *acc = &p->s->acc[row][o];
        vec_store(acc, vec_fma(vec_load(p->s->scale + o), d, vec_load(acc)));
    }
}

/* Scales and zeros of the group to f32. */
INLINE void int4_open(const struct int4_part *p)
{
    const uint8_t *scales = p->w + int4_scales_at(p->a->w.group);
    for (uint32_t i = 0; i < INT4_ZEROS_AT + KERN_PANEL; i += 64)
        __builtin_prefetch(scales + LINEAR_AHEAD + i);
    for (uint32_t o = 0; o < KERN_PANEL; o += 16) {
        vec_store(p->s->scale + o, vec_load_f16((const uint16_t *)(const void *)scales + o));
        vec_store(p->s->zero + o, vec_load_i8((const int8_t *)scales + INT4_ZEROS_AT + o));
    }
}

INLINE void int4_finish(const struct int4_part *p, uint32_t row, uint32_t o)
{
    const struct finish f = FINISH_OF(p->a);
    const struct vec of_row = vec_set(p->a->rows[p->row + row].scale);
    const float *acc = p->s->acc[row];
    for (uint32_t i = 0; i < p->n_out_here; i += 32)
        finish_pair(&f, vec_mul(vec_load(acc + i), of_row), vec_mul(vec_load(acc + i + 16), of_row),
                    p->row + row, o + i, p->n_out_here - i < 32 ? p->n_out_here - i : 32);
}

INLINE void int4_walk(const struct linear_int4_args *args, const struct kern_exec *x,
                      int4_part_fn *fn)
{
    const struct linear_quant_args *a = &args->by;
    const size_t panel_bytes = int4_panel_bytes(a->w.n_in, a->w.group);
    const size_t group_bytes = int4_group_bytes(a->w.group);
    const struct range panels = split((a->w.n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    struct int4_part p = {.a = a, .sums = args->sums, .s = x->scratch};
    for (p.row = 0; p.row < a->n_row; p.row += KERN_LINEAR_ROWS) {
        size_t left = a->n_row - p.row;
        p.n_row = (uint32_t)(left < KERN_LINEAR_ROWS ? left : KERN_LINEAR_ROWS);
        for (size_t panel = panels.begin; panel < panels.end; panel++) {
            uint32_t o = (uint32_t)panel * KERN_PANEL;
            p.n_out_here = a->w.n_out - o < KERN_PANEL ? a->w.n_out - o : KERN_PANEL;
            p.w = (const uint8_t *)a->w.data + panel * panel_bytes;
            memset(p.s->acc, 0, p.n_row * sizeof p.s->acc[0]);
            for (p.k = 0; p.k < a->w.n_in; p.k += a->w.group, p.w += group_bytes) {
                int4_open(&p);
                fn(&p);
            }
            for (uint32_t row = 0; row < p.n_row; row++)
                int4_finish(&p, row, o);
        }
    }
}

#endif
#endif
