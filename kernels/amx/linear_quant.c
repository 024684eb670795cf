/* SPDX-License-Identifier: Apache-2.0 */
/* linear_quant by TDPBSUD, 16 rows x 16 outputs x 64 inputs an instruction; formula:
 * ref/linear_quant.c. Stored weights are 128 more than they are: TDPBSUD takes x signed, W
 * unsigned. */
#define TILES_DOT _tile_dpbsud
#include "kernels/amx/tiles_walk.h"
#include "kernels/quant_layout.h"
#include "kernels/variants.h"

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
    const __m512i top = _mm512_set1_epi32((int)(QUANT_ZERO * (uint32_t)q.sum));
    const __m512 of_row = _mm512_set1_ps(q.scale);
    float *y = a->y + row * a->y_stride + o;
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = (__mmask16)(n - i < 16 ? (1u << (n - i)) - 1 : 0xffff);
        __m512i whole = _mm512_sub_epi32(_mm512_load_si512(sum + i), top);
        __m512 v = _mm512_mul_ps(_mm512_cvtepi32_ps(whole), _mm512_loadu_ps(scale + i));
        v = _mm512_mul_ps(v, of_row);
        if (a->bias)
            v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(m, a->bias + o + i));
        if (a->accumulate)
            v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(m, y + i));
        _mm512_mask_storeu_ps(y + i, m, v);
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
