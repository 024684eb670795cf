/* SPDX-License-Identifier: Apache-2.0 */
/* y[i,c] = act(x[i,c]) (* x[i, n_col + c]); formulas: ops_elementwise.h, roundings: act.h. */
#include "kernels/ref/act.h"
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

/* The product of a gated activation. */
static float gated(const struct activate_args *a, float gate, float up)
{
    const float limit = a->limit, low = up < -limit ? -limit : up;
    if (!(limit > 0))
        return ref_act(a->act, gate) * up;
    return ref_act(a->act, gate > limit ? limit : gate) * ((low > limit ? limit : low) + 1.0f);
}

static float plain(const struct activate_args *a, struct xielu by, float z)
{
    return a->act == KERN_XIELU ? ref_xielu(by, z) : ref_act(a->act, z);
}

void activate_ref(const struct activate_args *a, const struct kern_exec *x)
{
    const struct xielu by = xielu_of(a);
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *gate = a->x + i * a->x_stride, *up = gate + a->n_col;
        for (uint32_t c = 0; c < a->n_col; c++)
            element_set(a->y, a->y_dtype, i * a->y_stride + c,
                        a->gated ? gated(a, gate[c], up[c]) : plain(a, by, gate[c]));
    }
}
