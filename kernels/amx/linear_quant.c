/* SPDX-License-Identifier: Apache-2.0 */
/* linear_quant by TDPBSUD, 16 rows x 16 outputs x 64 inputs an instruction; formula:
 * ref/linear_quant.c. Stored weights are 128 more than they are: TDPBSUD takes x signed, W
 * unsigned. */
#define TILES_DOT _tile_dpbsud
#include "kernels/amx/tiles_walk.h"
#include "kernels/quant_layout.h"
#include "kernels/variants.h"
#include "kernels/wide/finish.h"

#define FEW 4u /* rows; the sums are exact, so another instruction gives the same bits */

static void finish(const void *args, const float *sum, size_t row, uint32_t o, uint32_t n)
{
    const struct linear_quant_args *a = args;
    const struct quant_row q = a->rows[row];
    const float *scale =
        (const float *)(const void *)((const char *)a->w.data +
                                      o / KERN_PANEL * quant_panel_bytes(a->w.n_in) +
                                      quant_scales_at(a->w.n_in)) +
        o % KERN_PANEL;
    const struct finish f = FINISH_OF(a);
    const uint32_t top = QUANT_ZERO * (uint32_t)q.sum;
    const struct vec of_row = vec_set(q.scale);
    const int32_t *whole = (const int32_t *)(const void *)sum;
    for (uint32_t i = 0; i < n; i += 32) {
        struct vec low = vec_mul(vec_load_i32_less(whole + i, top), vec_load(scale + i));
        struct vec high = vec_mul(vec_load_i32_less(whole + i + 16, top), vec_load(scale + i + 16));
        finish_pair(&f, vec_mul(low, of_row), vec_mul(high, of_row), row, o + i,
                    n - i < 32 ? n - i : 32);
    }
}

void linear_quant_amx(const struct linear_quant_args *a, const struct kern_exec *x)
{
    if (a->n_row <= FEW) { /* they wait for memory, and memory likes one line after the other */
        linear_quant_avx512_vnni(a, x);
        return;
    }
    const struct tiles_form f = {.x = (const char *)a->x,
                                 .w = a->w.data,
                                 .x_bytes = a->x_stride,
                                 .panel_bytes = quant_panel_bytes(a->w.n_in),
                                 .k_bytes = quant_k(a->w.n_in),
                                 .n_row = a->n_row,
                                 .n_out = a->w.n_out,
                                 .args = a};
    tiles_walk(&f, x, finish);
}
