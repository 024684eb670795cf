/* SPDX-License-Identifier: Apache-2.0 */
/* linear_codes of f32 on 16 lanes; formula, order and layout: ops_codes.h. Products by_ints:
 * codes_ints.h. Few rows: codes_few.h. More:
 *
 *     for row blocks of at most KERN_LINEAR_ROWS    W is read once per block
 *       for panels of this thread                   one contiguous stream of memory
 *         for slices of CODES_SLICE inputs          unpacked to f32: 16 KiB, which stay in L1 …
 *           for tiles of LINEAR_TILE rows           … while every tile uses them (wide/linear.h)
 *
 * Sums are kept in scratch between slices, so each output is one accumulator over all of K, as in
 * `linear`. Unpacking costs about as many instructions as the product of four rows.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_LINEAR_CODES_H
#define QUIRE_KERNELS_WIDE_LINEAR_CODES_H
#include "kernels/wide/codes_few.h"
#ifdef VEC_SUMS

/* w: [n][KERN_PANEL]. */
INLINE void codes_unpack(float *w, const struct codes_part *p, const enum codes_way way)
{
    const struct codes_table table = codes_table_of(p->form, way);
    for (uint32_t lane = 0; lane < KERN_PANEL; lane += 16) {
        const struct codes_scales s = codes_scales_of(p, lane);
        const uint8_t *at = p->codes + lane;
        float *to = w + lane;
        for (uint32_t k = 0; k < p->n; k += 2, to += 2 * (size_t)KERN_PANEL) {
            const struct vec_two v = codes_pair(at, &table, way);
            vec_store(to, vec_fma(s.scale, v.low, s.min));
            vec_store(to + KERN_PANEL, vec_fma(s.scale, v.high, s.min));
            at += codes_pair_bytes(way);
        }
    }
}
#define UNPACK(name, way)                                                 \
    static void codes_unpack_##name(float *w, const struct codes_part *p) \
    {                                                                     \
        codes_unpack(w, p, way);                                          \
    }
UNPACK(bytes, CODES_BYTES)
UNPACK(halves, CODES_HALVES)
UNPACK(ints, CODES_INTS)
UNPACK(floats, CODES_FLOATS)
#undef UNPACK
static void (*const codes_unpacks[])(float *, const struct codes_part *) = {
    [CODES_BYTES] = codes_unpack_bytes,
    [CODES_HALVES] = codes_unpack_halves,
    [CODES_INTS] = codes_unpack_ints,
    [CODES_FLOATS] = codes_unpack_floats,
};

/* Inputs k … k + n - 1 of a panel; k is a multiple of CODES_SLICE. */
INLINE void codes_slice(struct codes_scratch *s, const struct packed *w, const uint8_t *panel,
                        uint32_t k, uint32_t n)
{
    const struct packed_codes *c = &w->codes;
    const uint32_t step = c->group < CODES_SLICE ? c->group : CODES_SLICE;
    for (uint32_t i = 0; i < n; i += step) {
        const uint32_t g = (k + i) / c->group, in_group = (k + i) % c->group;
        const uint8_t *block = panel + codes_block_at(c, g), *at = block + codes_group_at(c, g);
        const bool bytes = codes_is_bytes(c);
        const struct codes_part p = {
            .form = c,
            .codes = at + (size_t)(bytes ? in_group : in_group / 2) * KERN_PANEL,
            .scales = at + codes_scales_at(c),
            .supers = block,
            .n = step,
        };
        codes_unpacks[codes_way_of(c)](s->w[i], &p);
    }
}

/* Rows first … first + n - 1 of x from input k on, as f32: sets where they are. */
INLINE void codes_rows(struct linear_tile *t, struct codes_scratch *s, const struct linear_args *a,
                       struct range rows, uint32_t k)
{
    if (a->x_dtype != DT_BF16) {
        t->x = (const float *)a->x + rows.begin * a->x_stride + k;
        t->x_bytes = a->x_stride * sizeof(float);
        return;
    }
    for (size_t r = rows.begin; r < rows.end; r++) {
        const uint16_t *from = (const uint16_t *)a->x + r * a->x_stride + k;
        for (uint32_t i = 0; i < t->n_k; i += 16)
            vec_store(s->x[r - rows.begin] + i, vec_load_bf16(from + i));
    }
    t->x = s->x;
    t->x_bytes = sizeof s->x[0];
}

/* A block of rows times one panel. */
INLINE void codes_panel(const struct linear_args *a, struct codes_scratch *s, struct range rows,
                        uint32_t panel)
{
    const struct packed *w = &a->w;
    const uint8_t *at = (const uint8_t *)w->data + panel * codes_panel_bytes(&w->codes, w->n_in);
    const size_t n_row = rows.end - rows.begin;
    const size_t n_tile = (n_row + LINEAR_TILE - 1) / LINEAR_TILE;
    for (uint32_t k = 0; k < w->n_in; k += CODES_SLICE) {
        const uint32_t left = w->n_in - k, n = left < CODES_SLICE ? left : CODES_SLICE;
        const char *ahead = (const char *)at + codes_block_at(&w->codes, k / w->codes.group);
        codes_slice(s, w, at, k, n);
        for (size_t i = 0; i < n_tile; i++) {
            const struct range r = {rows.begin + n_row * i / n_tile,
                                    rows.begin + n_row * (i + 1) / n_tile};
            struct linear_tile t = {
                .w = s->w,
                .n_k = n,
                .sum = s->sum[r.begin - rows.begin],
                .next = {ahead + CODES_AHEAD, KERN_PANEL},
                .first = k == 0,
            };
            LINEAR_ASSUME(r.end - r.begin - 1 < LINEAR_TILE);
            codes_rows(&t, s, a, r, k);
            tiles_f32[r.end - r.begin - 1](&t);
            for (size_t row = r.begin; left == n && row < r.end; row++)
                linear_epilogue(a, s->sum[row - rows.begin], row, panel);
        }
    }
}

INLINE void wide_linear_codes(const struct linear_args *a, const struct kern_exec *x)
{
    if (a->n_row > 0 && a->n_row <= CODES_FEW) {
        codes_few(a, x);
        return;
    }
    struct panels panels = panels_of((a->w.n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    const size_t block = linear_block(a->n_row);
    for (size_t row = 0; row < a->n_row; row += block) {
        const struct range rows = {row, a->n_row - row < block ? a->n_row : row + block};
        panels_start(&panels, rows.end == a->n_row);
        for (size_t i; panels_next(&panels, &i);)
            codes_panel(a, x->scratch, rows, (uint32_t)i);
    }
}

#endif
#endif
