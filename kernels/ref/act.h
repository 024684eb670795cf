/* SPDX-License-Identifier: Apache-2.0 */
/* act - the activations of one number; formulas: ops_elementwise.h. The exponents are formed with
 * the roundings written here in every variant. Threads: pure functions. */
#ifndef QUIRE_KERNELS_REF_ACT_H
#define QUIRE_KERNELS_REF_ACT_H
#include <math.h>
#include "kernels/tiling/grow.h"

static inline float ref_sigmoid_times(float z, float exponent)
{
    return z / (1.0f + expf(-exponent));
}

static inline float ref_act(enum kern_act is, float z)
{
    const float positive = z < 0 ? 0 : z; /* NaN stays */
    switch (is) {
    case KERN_GELU:
        return 0.5f * z * erfcf(z * -0x1.6a09e6p-1f); /* 1 / sqrt 2 */
    case KERN_GELU_TANH:                              /* 2 sqrt(2/pi), and that times 0.044715 */
        return ref_sigmoid_times(z, z * fmaf(z * z, 0x1.2444f2p-4f, 0x1.988454p+0f));
    case KERN_GELU_QUICK:
        return ref_sigmoid_times(z, 1.702f * z);
    case KERN_RELU:
        return positive;
    case KERN_RELU2:
        return positive * positive;
    case KERN_IDENTITY:
        return z;
    default:
        return ref_sigmoid_times(z, z);
    }
}

static inline float ref_xielu(struct xielu by, float z)
{
    const float curve = z > 0 ? by.positive * z * z : by.negative * (expm1f(z) - z);
    return fmaf(z, KERN_XIELU_BETA, curve);
}

#endif
