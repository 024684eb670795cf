/* SPDX-License-Identifier: Apache-2.0 */
/* int8_tile_loop - the tile loop of linear_int8; private to kernels/, compiled into each variant.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_TILING_INT8_TILE_LOOP_H
#define QUIRE_KERNELS_TILING_INT8_TILE_LOOP_H
#include "kernels/tiling/linear_tile_loop.h"
#include "kernels/ops/int8_layout.h"
#ifdef VEC_SUMS

struct int8_tiles {
    linear_tile_fn *const *tiles; /* [LINEAR_TILE]: tiles[r] does r + 1 rows */
    int32_t weight_offset;        /* offset of the weights in the tiles' sums: 128 or 0 */
};

struct int8_call {
    const struct linear_int8_args *args;
    int32_t weight_offset;
};

static inline const float *int8_scales(const struct packed *w, uint32_t panel)
{
    return (const float *)(const void *)((const char *)w->data + panel * int8_panel_bytes(w->n_in) +
                                         int8_panel_scales_at(w->n_in));
}

/* Outputs that are not gated, of a panel that has them all. */
INLINE void int8_plain(const struct int8_call *c, const int32_t *sum, struct range rows,
                       uint32_t panel, const struct epilogue_kind kind)
{
    const struct linear_int8_args *a = c->args;
    const struct epilogue f = EPILOGUE_OF(a);
    const float *scales = int8_scales(&a->w, panel);
    for (uint32_t i = 0; i < KERN_PANEL; i += 16) {
        const uint32_t o = panel * KERN_PANEL + i;
        const struct vec scale = vec_load(scales + i), bias = epilogue_bias(&f, o, kind);
        size_t stride;
        char *y = epilogue_at(&f, rows.begin, o, &stride, kind);
        for (size_t r = rows.begin; r < rows.end; r++, y += stride) {
            const uint32_t top = (uint32_t)c->weight_offset * (uint32_t)a->rows[r].sum;
            const struct vec v = vec_load_i32_less(sum + (r - rows.begin) * KERN_PANEL + i, top);
            epilogue_whole(y, vec_mul(vec_mul(v, scale), vec_set(a->rows[r].scale)), bias, kind);
        }
    }
}

static inline void int8_row(const struct int8_call *c, const int32_t *whole, size_t row,
                            uint32_t panel)
{
    const struct linear_int8_args *a = c->args;
    const struct quant_row of_row = a->rows[row];
    const uint32_t o = panel * KERN_PANEL;
    const struct epilogue f = EPILOGUE_OF(a);
    const uint32_t top = (uint32_t)c->weight_offset * (uint32_t)of_row.sum;
    const float *scale = int8_scales(&a->w, panel);
    const struct vec by = vec_set(of_row.scale);
    for (uint32_t i = 0; i < KERN_PANEL && o + i < a->w.n_out; i += 32) {
        struct vec low = vec_mul(vec_load_i32_less(whole + i, top), vec_load(scale + i));
        struct vec high = vec_mul(vec_load_i32_less(whole + i + 16, top), vec_load(scale + i + 16));
        const uint32_t left = a->w.n_out - o - i;
        epilogue_pair(&f, vec_mul(low, by), vec_mul(high, by), row, o + i, left < 32 ? left : 32);
    }
}

static inline void int8_epilogue(const void *call, const float *sum, struct range rows,
                                 uint32_t panel)
{
    const struct int8_call *c = call;
    const int32_t *whole = (const int32_t *)(const void *)sum;
    if (!c->args->w.gated && c->args->w.n_out - panel * KERN_PANEL >= KERN_PANEL) {
        EPILOGUE_BY_KIND(c->args, int8_plain, c, whole, rows, panel);
        return;
    }
    for (size_t i = rows.begin; i < rows.end; i++)
        int8_row(c, whole + (i - rows.begin) * KERN_PANEL, i, panel);
}

static inline void int8_tile_loop(const struct linear_int8_args *a, const struct kern_exec *x,
                                  const struct int8_tiles *tiles)
{
    const struct int8_call call = {a, tiles->weight_offset};
    const struct linear_form f = {
        .x = a->x,
        .w = a->w.data,
        .x_bytes = a->x_stride,
        .x_element = 1,
        .panel_bytes = int8_panel_bytes(a->w.n_in),
        .k_bytes = KERN_PANEL,
        .ahead = kern_ahead(KERN_PRODUCT_INT8),
        .k_step = 4,
        .n_k = (uint32_t)int8_k(a->w.n_in),
        .n_row = a->n_row,
        .n_out = a->w.n_out,
        .tiles = tiles->tiles,
        .y = EPILOGUE_OF(a),
    };
    linear_panels(&f, x, int8_epilogue, &call);
}

#endif
#endif
