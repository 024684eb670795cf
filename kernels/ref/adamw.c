/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW; formula: ops_train.h. Every product, sum, quotient and root is rounded to f32, nothing is
 * fused; the scalars are formed in f64 (tiling/adamw.h). Source: arXiv:1711.05101. */
#include <math.h>
#include "kernels/tiling/adamw.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

void adamw_ref(const struct adamw_args *a, const struct kern_exec *x)
{
    const struct range elements = split(a->n, x);
    const struct adamw_scalars s = adamw_scalars(a);
    for (size_t i = elements.begin; i < elements.end; i++) {
        const float g = s.grad_scale * a->g[i];
        const float m = s.beta1 * a->m[i] + s.rest1 * g;
        const float v = s.beta2 * a->v[i] + s.rest2 * g * g;
        a->w[i] = s.decay * a->w[i] - s.rate * m / (sqrtf(v) * s.root + s.eps);
        a->m[i] = m;
        a->v[i] = v;
        if (a->w_bf16)
            a->w_bf16[i] = f32_to_bf16(a->w[i]);
    }
}
