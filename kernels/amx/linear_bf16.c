/* SPDX-License-Identifier: Apache-2.0 */
/* linear with bf16 x and bf16 W by TDPBF16PS, 16 rows x 16 outputs x 32 inputs an instruction;
 * everything else is linear_avx512. Formula and order: ref/linear_tiles.c. The instruction takes
 * subnormals for zero and ignores MXCSR. */
#define TILES_DOT _tile_dpbf16ps
#include "kernels/amx/tiles_loop.h"
#include "kernels/variants.h"
#include "kernels/wide/epilogue.h"

static void epilogue(const void *args, const struct tiles_done *d, uint32_t n_row)
{
    const struct epilogue f = EPILOGUE_OF((const struct linear_args *)args);
    for (uint32_t r = 0; r < n_row; r++)
        for (uint32_t i = 0; i < d->n; i += 32) {
            const float *sum = d->sum + (size_t)r * d->stride + i;
            epilogue_pair(&f, vec_load(sum), vec_load(sum + 16), d->row + r, d->o + i,
                          d->n - i < 32 ? d->n - i : 32);
        }
}

void linear_amx(const struct linear_args *a, const struct kern_exec *x)
{
    if (a->x_dtype != DT_BF16) {
        linear_avx512(a, x);
        return;
    }
    if (a->n_row == 0)
        return;
    const struct tiles_form f = {
        .x = a->x,
        .w = a->w.data,
        .x_bytes = a->x_stride * 2,
        .panel_bytes = ((size_t)a->w.n_in + 1) / 2 * LINE_BYTES,
        .k_bytes = (size_t)a->w.n_in * 2,
        .n_row = a->n_row,
        .n_out = a->w.n_out,
        .args = a,
        .y = EPILOGUE_OF(a),
    };
    tiles_loop(&f, x, epilogue);
}
