/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/split.h"
#include "kernels/variants.h"

void scatter_ref(const struct scatter_args *a, const struct kern_exec *x)
{
    struct range part = split(a->n, x);
    for (size_t i = part.begin; i < part.end; i++)
        a->dst[a->at[i]] = a->value[i];
}
