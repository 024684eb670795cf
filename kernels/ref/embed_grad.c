/* SPDX-License-Identifier: Apache-2.0 */
/* dtable[ids[i],c] = fma(scale, dy[i,c], dtable[ids[i],c]), i ascending. Every thread goes through
 * all rows and has some of the columns, so that the order of a token that comes twice is one. */
#include <math.h>
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void embed_grad_ref(const struct embed_grad_args *a, const struct kern_exec *x)
{
    const struct range columns = split(a->n_col, x);
    for (size_t i = 0; i < a->n_row; i++) {
        float *to = a->dtable + (size_t)a->ids[i] * a->n_col;
        for (size_t c = columns.begin; c < columns.end; c++)
            to[c] = fmaf(a->scale, a->dy[i * a->dy_stride + c], to[c]);
    }
}
