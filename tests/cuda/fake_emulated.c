/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device's kernels are the CUDA ones, on the host emulation, in the layouts and with the
 * plan of a card: libquire-emu.so is libquire-cuda.so but for device.c. */
#include "fake_device.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/table.h"
#include "kernels/cuda/workspace.h"

#define UNITS 4u /* multiprocessors; launch.cuh says how many blocks the emulation has at a time */

static void kernels(struct kern_table *out)
{
    kern_table_cuda(out, 9, 0);
}

static size_t matrix_bytes(const struct packed *w)
{
    return cuda_matrix_bytes(w);
}

static size_t kv_block_bytes(enum dtype kv_dtype, uint32_t n_kv_head, uint32_t head_dim)
{
    return n_kv_head * cuda_kv_head_bytes(kv_dtype, head_dim);
}

static size_t workspace(const struct device_limits *l)
{
    return cuda_workspace_bytes(l, UNITS);
}

static size_t make_plan(void *out, const struct device_limits *l, const struct attention_seq *seqs,
                        uint32_t n_seq)
{
    const struct plan_head *h = out;
    plan_make(out, l, seqs, n_seq);
    return h->large_at + h->n_large * sizeof(struct plan_piece);
}

const struct fake_library fake_library = {.name = "emulated",
                                          .row_major = true,
                                          .kern = kernels,
                                          .matrix_bytes = matrix_bytes,
                                          .kv_block_bytes = kv_block_bytes,
                                          .workspace_bytes = workspace,
                                          .plan_bytes = plan_bytes,
                                          .plan = make_plan};
