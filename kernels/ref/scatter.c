/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static void scatter_one(const struct scatter_args *a, size_t i)
{
    const size_t at = a->at ? a->at[i] : i;
    const uint32_t v = a->value[a->from ? a->from[i] : i * (a->step ? a->step : 1)];
    if (!a->at || at != KERN_NO_SLOT)
        a->dst[at] = !a->limit || v < a->limit ? v : 0;
}

void scatter_ref(const struct scatter_args *a, const struct kern_exec *x)
{
    struct range part = split(a->n, x);
    for (size_t i = part.begin; i < part.end; i++)
        scatter_one(a, i);
}
