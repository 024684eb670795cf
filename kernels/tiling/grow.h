/* SPDX-License-Identifier: Apache-2.0 */
/* grow - numbers that elementwise operations compute once a row or once a call; formulas:
 * ops_elementwise.h. Private to kernels/. Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_GROW_H
#define QUIRE_KERNELS_TILING_GROW_H
#include <math.h>
#include "kernels/ops/ops_elementwise.h"

/* What row i of add_rows is multiplied by. */
static inline float row_scale(const struct add_rows_args *a, size_t i)
{
    const float scale = a->by ? a->scale * *a->by : a->scale;
    if (!a->positions)
        return scale;
    const float position = (float)(a->positions[i] + a->first);
    return scale * fmaf(a->growth, log1pf(floorf(position / a->length)), 1.0f);
}

static inline float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

struct xielu {
    float positive, negative;
};

static inline struct xielu xielu_of(const struct activate_args *a)
{
    if (a->act != KERN_XIELU)
        return (struct xielu){0, 0};
    return (struct xielu){softplus(*a->positive), KERN_XIELU_BETA + softplus(*a->negative)};
}

#endif
