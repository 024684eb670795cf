/* SPDX-License-Identifier: Apache-2.0 */
/* The table from the CUDA lines of kernels.def, as kern.c makes the CPU's. */
#include "kernels/cuda/table.h"
#include <string.h>

enum { CAP_SM80 = 80, CAP_SM90 = 90 }; /* compute capability, times ten */

#define OP(op, tolerance)
#define IMPL(table, op, variant, needs) DECLARE_##table(op, variant)
#define DECLARE_CPU(op, variant)
#define DECLARE_CUDA(op, variant) \
    void op##_##variant(const struct op##_args *a, const struct kern_exec *x);
#include "kernels/kernels.def"

void kern_table_cuda(struct kern_table *t, uint32_t major, uint32_t minor)
{
    const uint32_t has = major * 10 + minor;
    memset(t, 0, sizeof *t);
    t->caps = has;
#define OP(op, tolerance)
#define IMPL(table, op, variant, needs) PICK_##table(op, variant, needs)
#define PICK_CPU(op, variant, needs)
#define PICK_CUDA(op, variant, needs) \
    if (has >= (needs))               \
        t->op = op##_##variant;
#include "kernels/kernels.def"
}
