/* SPDX-License-Identifier: Apache-2.0 */
/* dx = dy * act'(x), or dgate = (dy * up) * act'(gate) and dup = dy * act(gate). With s = 1 / (1 +
 * e^-e), where act(z) = z s:
 *     silu        e = z              act' = s (1 + z (1 - s))
 *     gelu tanh   e = z (k1 + k3 z^2), e' = k1 + 3 k3 z^2;   act' = s (1 + (z (1 - s)) e')
 *     gelu quick  e = 1.702 z        act' = s (1 + (z (1 - s)) 1.702)
 *     gelu        act' = Phi + z phi, Phi(z) = erfc(-z / sqrt 2) / 2,
 *                 phi(z) = e^(-z^2/2) / sqrt(2 pi)
 * and act as ref/activate.c has it. */
#include <math.h>
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

struct value { /* act(z), act'(z) */
    float act, slope;
};

static struct value of_sigmoid(float z, float exponent, float slope)
{
    const float s = 1.0f / (1.0f + expf(-exponent));
    return (struct value){z * s, s * fmaf(z * (1.0f - s), slope, 1.0f)};
}

static struct value value_of(enum kern_act act, float z)
{
    const float positive = z < 0 ? 0 : z, z2 = z * z; /* NaN stays */
    switch (act) {
    case KERN_GELU: {
        const float phi = 0.5f * erfcf(z * -0x1.6a09e6p-1f);     /* 1 / sqrt 2 */
        const float density = expf(-0.5f * z2) * 0x1.988454p-2f; /* 1 / sqrt(2 pi) */
        return (struct value){z * phi, fmaf(z, density, phi)};
    }
    case KERN_GELU_TANH: /* k1 = 2 sqrt(2/pi), k3 = 0.044715 k1, 3 k3 */
        return of_sigmoid(z, z * fmaf(z2, 0x1.2444f2p-4f, 0x1.988454p+0f),
                          fmaf(z2, 0x1.b6676cp-3f, 0x1.988454p+0f));
    case KERN_GELU_QUICK:
        return of_sigmoid(z, 1.702f * z, 1.702f);
    case KERN_RELU:
        return (struct value){positive, z > 0 ? 1.0f : 0.0f};
    case KERN_RELU2:
        return (struct value){positive * positive, positive + positive};
    case KERN_IDENTITY:
        return (struct value){z, 1.0f};
    default:
        return of_sigmoid(z, z, 1.0f);
    }
}

void activate_grad_ref(const struct activate_grad_args *a, const struct kern_exec *x)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++)
        for (uint32_t c = 0; c < a->n_col; c++) {
            const float *at = a->x + i * a->x_stride + c;
            const float dy = a->dy[i * a->dy_stride + c], up = a->gated ? at[a->n_col] : 1.0f;
            float *dx = a->dx + i * a->dx_stride + c;
            const struct value v = value_of(a->act, at[0]);
            dx[0] = dy * up * v.slope;
            if (a->gated)
                dx[a->n_col] = dy * v.act;
        }
}
