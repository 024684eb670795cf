/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the CUDA lines of kernels.def, made as kern.c makes that of the CPU. */
#include "kernels/cuda/table.h"
#include <string.h>

#define OP(op, tolerance)
#define IMPL(table, op, variant, needs) DECLARE_##table(op, variant)
#define DECLARE_CPU(op, variant)
#define DECLARE_CUDA(op, variant) \
    void op##_##variant(const struct op##_args *a, const struct kern_exec *x);
#include "kernels/kernels.def"

uint32_t kern_caps_cuda(uint32_t major, uint32_t minor)
{
    return (major >= 8 ? CAP_SM80 : 0u) | (major == 9 && minor == 0 ? (uint32_t)CAP_SM90A_ALL : 0u);
}

void kern_table_cuda(struct kern_table *t, uint32_t caps)
{
    memset(t, 0, sizeof *t);
    t->caps = caps;
#define OP(op, tolerance)
#define IMPL(table, op, variant, needs) PICK_##table(op, variant, needs)
#define PICK_CPU(op, variant, needs)
#define PICK_CUDA(op, variant, needs) \
    if (((needs) & ~caps) == 0)       \
        t->op = op##_##variant;
#include "kernels/kernels.def"
}
