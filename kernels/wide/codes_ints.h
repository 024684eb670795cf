/* SPDX-License-Identifier: Apache-2.0 */
/* codes_ints - linear_codes by integers (by_ints), on registers of int32 sums; formula, order and
 * layout: ops_codes.h. Its parts: codes_ints_form.h, _x.h, _sums.h, _group.h and _block.h; with
 * scales that are integers too, codes_scaled.h and its parts.
 *
 *     for row blocks of at most KERN_LINEAR_ROWS    W is read once per block
 *       for panels of this thread                   one contiguous stream of memory
 *         for blocks of KERN_CODES_X inputs         x is rounded once for all panels, if it fits
 *           for groups                              scales and mins to f32
 *             for tiles of rows                     sums of integers, times the scale onto the part
 *           sum += unit * part
 *
 * Products are of 16 bits by 16 bits, neighbours added: codes are unpacked to pairs of 16 bits by a
 * shift and a mask. For few rows that is done in registers, a strip of outputs at a time; for more
 * each group is unpacked once into the first-level cache for all tiles.
 *
 * The including file defines the names of ints.h, INTS_STRIP (as linear_int8.h) and pairs_dot(sum,
 * w, x): sum + 2 products of int16 in each int32; and for products of halves, 0 … 15, by int8:
 * bytes_dot(sum, w, x) of at most CODES_CHAIN inputs, bytes_sum(sum): its int32, and
 * bytes_planes_sum(low, high): that of both planes of x; bytes_two and bytes_two_sum: the same of
 * codes of 6 bits.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_CODES_INTS_H
#define QUIRE_KERNELS_WIDE_CODES_INTS_H
#include "kernels/reading.h"
#include "kernels/tiling/linear_tile_loop.h"
#include "kernels/wide/codes_ints_block.h"
#include "kernels/wide/codes_scaled_rows.h"
#ifdef INTS

INLINE enum codes_form codes_form_of(const struct packed_codes *c, uint32_t n_row)
{
    if (codes_is_scaled(c)) {
        if (n_row > SCALED_FEW)
            return codes_is_bytes(c) ? CODES_OF_BYTES : CODES_OF_HALVES;
        return codes_is_bytes(c) ? CODES_OF_BYTE_PLANES : CODES_OF_PLANES;
    }
    if (codes_is_bytes(c))
        return CODES_OF_BYTES;
    if (c->kind != KERN_CODES_HALVES && c->kind != KERN_CODES_SIGNED)
        return CODES_OF_TABLE;
    return n_row <= CODES_PLANE_ROWS && c->group <= CODES_CHAIN ? CODES_OF_PLANES : CODES_OF_HALVES;
}

/* Rows of a block, such that their x is kept; blocks of about equal size. */
INLINE size_t codes_rows_block(size_t n_row, uint32_t n_block)
{
    size_t most = CODES_X_KEPT / n_block;
    most = most > KERN_LINEAR_ROWS ? KERN_LINEAR_ROWS : most ? most : 1;
    const size_t n = (n_row + most - 1) / most;
    return n ? (n_row + n - 1) / n : 1;
}

INLINE void codes_ints_product(const struct linear_args *a, const struct kern_exec *x)
{
    const struct packed_codes *form = &a->w.codes;
    struct panels panels = panels_of((a->w.n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    const uint32_t n_in = a->w.n_in, n_block = (n_in + KERN_CODES_X - 1) / KERN_CODES_X;
    const size_t block = codes_rows_block(a->n_row, n_block);
    const bool kept = n_block <= CODES_X_KEPT;
    struct codes_ints_scratch *s = x->scratch;
    uint8_t table[16];
    for (uint32_t i = 0; i < 16; i++)
        table[i] = (uint8_t)(codes_ints[form->kind][i] + CODES_BYTES_ZERO);
    for (size_t row = 0; row < a->n_row; row += block) {
        struct codes_block b = {
            .form = form,
            .s = s,
            .table = table,
            .ahead = kern_ahead(KERN_PRODUCT_INT4),
            .group_bytes = codes_group_bytes(form),
            .scales_at = codes_scales_at(form),
            .n_row = (uint32_t)(a->n_row - row < block ? a->n_row - row : block),
        };
        const enum codes_form how = codes_form_of(form, b.n_row);
        bool is_first = true;
        panels_start(&panels, row + b.n_row == a->n_row);
        for (size_t panel; panels_next(&panels, &panel); is_first = false) {
            const uint8_t *at = (const uint8_t *)a->w.data + panel * codes_panel_bytes(form, n_in);
            for (uint32_t i = 0; i < n_block; i++) {
                const uint32_t k = i * KERN_CODES_X;
                struct codes_inputs *in = s->x + (kept ? (size_t)i * b.n_row : 0);
                b.x = in;
                b.first = i == 0;
                b.n = n_in - k < KERN_CODES_X ? n_in - k : KERN_CODES_X;
                b.supers = at + codes_block_at(form, k / form->group);
                b.groups = b.supers + codes_supers_bytes(form);
                for (uint32_t r = 0; r < b.n_row && (!kept || is_first); r++) {
                    codes_round(in + r, a, (row + r) * a->x_stride + k, b.n);
                    if (how == CODES_OF_PLANES)
                        codes_split(in + r, b.n, false);
                    else if (how == CODES_OF_BYTE_PLANES)
                        codes_split(in + r, b.n, true);
                }
                if (codes_is_scaled(form)) {
                    scaled_rows(&b);
                } else {
                    codes_block_rows(&b, how);
                    codes_join(&b);
                }
            }
            for (uint32_t r = 0; r < b.n_row; r++)
                linear_epilogue(a, s->sum[r], row + r, (uint32_t)panel);
        }
    }
}

#endif
#endif
