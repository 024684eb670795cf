/* SPDX-License-Identifier: Apache-2.0 */
/* linear with bf16 x and bf16 W by TDPBF16PS, 16 rows x 16 outputs x 32 inputs an instruction;
 * everything else is linear_avx512. Formula and order: ref/linear_tiles.c. The instruction takes
 * subnormals for zero and ignores MXCSR. */
#define TILES_DOT _tile_dpbf16ps
#include "kernels/amx/tiles_walk.h"
#include "kernels/variants.h"

static void finish(const void *args, const float *sum, size_t row, uint32_t o, uint32_t n)
{
    const struct linear_args *a = args;
    float *y = a->y + row * a->y_stride + o;
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 m = (__mmask16)(n - i < 16 ? (1u << (n - i)) - 1 : 0xffff);
        __m512 v = _mm512_load_ps(sum + i);
        if (a->bias)
            v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(m, a->bias + o + i));
        if (a->accumulate)
            v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(m, y + i));
        _mm512_mask_storeu_ps(y + i, m, v);
    }
}

void linear_amx(const struct linear_args *a, const struct kern_exec *x)
{
    if (a->x_dtype != DT_BF16) {
        linear_avx512(a, x);
        return;
    }
    const struct tiles_form f = {.x = a->x,
                                 .w = a->w.data,
                                 .x_bytes = a->x_stride * 2,
                                 .panel_bytes = ((size_t)a->w.n_in + 1) / 2 * LINE_BYTES,
                                 .k_bytes = (size_t)a->w.n_in * 2,
                                 .n_row = a->n_row,
                                 .n_out = a->w.n_out,
                                 .args = a};
    tiles_walk(&f, x, finish);
}
