/* SPDX-License-Identifier: Apache-2.0 */
/* y[i,c] = act(x[i,c]) (* x[i, n_col + c]); formulas: ops_elementwise.h. The exponents are formed
 * with the roundings written here in every variant. */
#include <math.h>
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static float sigmoid_times(float z, float exponent)
{
    return z / (1.0f + expf(-exponent));
}

static float act(enum kern_act is, float z)
{
    const float positive = z < 0 ? 0 : z; /* NaN stays */
    switch (is) {
    case KERN_GELU:
        return 0.5f * z * erfcf(z * -0x1.6a09e6p-1f); /* 1 / sqrt 2 */
    case KERN_GELU_TANH:                              /* 2 sqrt(2/pi), and that times 0.044715 */
        return sigmoid_times(z, z * fmaf(z * z, 0x1.2444f2p-4f, 0x1.988454p+0f));
    case KERN_GELU_QUICK:
        return sigmoid_times(z, 1.702f * z);
    case KERN_RELU:
        return positive;
    case KERN_RELU2:
        return positive * positive;
    default:
        return sigmoid_times(z, z);
    }
}

void activate_ref(const struct activate_args *a, const struct kern_exec *x)
{
    struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const float *gate = a->x + i * a->x_stride, *up = gate + a->n_col;
        for (uint32_t c = 0; c < a->n_col; c++)
            element_set(a->y, a->y_dtype, i * a->y_stride + c,
                        act(a->act, gate[c]) * (a->gated ? up[c] : 1.0f));
    }
}
