/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/workspace.h"
#include "kernels/cuda/plan.h"
#include "kernels/device.h"

#define SUMS_MAX ((size_t)64 << 20) /* bytes of sums at a time: about the L2 of a large card */
#define ALIGNED  512u               /* of both parts */

size_t cuda_workspace_bytes(const struct device_limits *l, uint32_t n_unit)
{
    const uint32_t n_row = l->n_logit_max < SAMPLE_ROWS ? l->n_logit_max : SAMPLE_ROWS;
    const size_t attention = plan_workspace_bytes(l, n_unit);
    const size_t sample = n_row * sample_row_bytes(l->vocab_size);
    return ((attention > sample ? attention : sample) + 255) / 256 * 256;
}

size_t cuda_lt_workspace_bytes(const struct device_limits *l, size_t library)
{
    const size_t gated = 2 * ((size_t)l->intermediate_size + KERN_GATE_INTERLEAVE);
    const size_t columns = gated > l->vocab_size ? gated : l->vocab_size;
    const size_t all = l->n_row_max * columns * 4;
    return library + ALIGNED + ((all < SUMS_MAX ? all : SUMS_MAX) + 255) / 256 * 256;
}
