/* SPDX-License-Identifier: Apache-2.0 */
/* The order and the roundings are those of ref/rms_norm.c: the units of a row are its rows. */
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void norm_units_ref(const struct norm_units_args *a, const struct kern_exec *x)
{
    static const struct kern_exec alone = {.nth = 1};
    const struct range rows = split(a->n_row, x);
    const size_t element = dtype_bits(a->y_dtype) / 8;
    for (size_t i = rows.begin; i < rows.end; i++)
        for (uint32_t u = 0; u < a->n_unit; u++) {
            const size_t at = (size_t)u * a->unit;
            const struct rms_norm_args one = {
                .y = (char *)a->y + (i * a->y_stride + at) * element,
                .y_dtype = a->y_dtype,
                .x = a->x + i * a->x_stride + at,
                .w = a->w + (a->apart ? at : 0),
                .n_row = 1,
                .n_col = a->unit,
                .x_stride = a->unit,
                .y_stride = a->unit,
                .eps = a->eps,
            };
            rms_norm_ref(&one, &alone);
        }
}
