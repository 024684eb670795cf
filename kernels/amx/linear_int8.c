/* SPDX-License-Identifier: Apache-2.0 */
/* linear_int8 by TDPBSUD, 16 rows x 16 outputs x 64 inputs an instruction; formula:
 * ref/linear_int8.c. Weights are stored with an offset of 128: TDPBSUD takes x signed, W
 * unsigned. */
#define TILES_DOT _tile_dpbsud
#include "kernels/amx/tiles_loop.h"
#include "kernels/ops/int8_layout.h"
#include "kernels/variants.h"
#include "kernels/wide/epilogue.h"

static void epilogue(const void *args, const struct tiles_done *d, uint32_t n_row)
{
    const struct linear_int8_args *a = args;
    const struct epilogue f = EPILOGUE_OF(a);
    const char *panel = (const char *)a->w.data + d->o / KERN_PANEL * int8_panel_bytes(a->w.n_in);
    const float *scale =
        (const float *)(const void *)(panel + int8_panel_scales_at(a->w.n_in)) + d->o % KERN_PANEL;
    for (uint32_t i = 0; i < d->n; i += 32) {
        const struct vec low = vec_load(scale + i), high = vec_load(scale + i + 16);
        for (uint32_t r = 0; r < n_row; r++) {
            const struct quant_row q = a->rows[d->row + r];
            const uint32_t top = INT8_ZERO * (uint32_t)q.sum;
            const struct vec by = vec_set(q.scale);
            const int32_t *sum =
                (const int32_t *)(const void *)(d->sum + (size_t)r * d->stride + i);
            const struct vec x = vec_mul(vec_load_i32_less(sum, top), low);
            const struct vec y = vec_mul(vec_load_i32_less(sum + 16, top), high);
            epilogue_pair(&f, vec_mul(x, by), vec_mul(y, by), d->row + r, d->o + i,
                          d->n - i < 32 ? d->n - i : 32);
        }
    }
}

void linear_int8_amx(const struct linear_int8_args *a, const struct kern_exec *x)
{
    if (a->n_row == 0)
        return;
    const struct tiles_form f = {
        .x = (const char *)a->x,
        .w = a->w.data,
        .x_bytes = a->x_stride,
        .panel_bytes = int8_panel_bytes(a->w.n_in),
        .k_bytes = int8_k(a->w.n_in),
        .n_row = a->n_row,
        .n_out = a->w.n_out,
        .args = a,
        .y = EPILOGUE_OF(a),
    };
    tiles_loop(&f, x, epilogue);
}
