/* SPDX-License-Identifier: Apache-2.0 */
/* Formula: ops_moe.h; elements are moved unchanged. */
#include <string.h>
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static void one_row(const struct permute_cols_args *a, const struct kern_exec *x, uint32_t place,
                    size_t to_order)
{
    const struct range columns = split(a->n_col, x);
    const uint32_t *order = (const uint32_t *)(const void *)((const char *)a->order + to_order);
    const size_t row = a->of.rows ? a->of.rows[place] : place;
    const char *from = (const char *)a->x + row * a->x_stride * a->element;
    char *to = (char *)a->y + place * a->y_stride * a->element;
    for (size_t c = columns.begin; c < columns.end; c++)
        memcpy(to + c * a->element, from + (size_t)order[c] * a->element, a->element);
    if (a->y_rows && x->ith == 0)
        a->y_rows[place] = a->x_rows[row];
}

void permute_cols_ref(const struct permute_cols_args *a, const struct kern_exec *x)
{
    for (uint32_t p = 0; p < a->n_row && !a->of.n_group; p++)
        one_row(a, x, p, 0);
    for (uint32_t e = 0; e < a->of.n_group; e++)
        for (uint32_t p = a->of.starts[e]; p < a->of.starts[e + 1]; p++)
            one_row(a, x, p, e * a->of.w_stride);
}
