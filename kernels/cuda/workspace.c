/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/workspace.h"
#include "kernels/cuda/plan.h"
#include "kernels/device.h"

size_t cuda_workspace_bytes(const struct device_limits *l, uint32_t n_unit)
{
    const uint32_t n_block = l->n_logit_max < SAMPLE_BLOCKS ? l->n_logit_max : SAMPLE_BLOCKS;
    const size_t attention = plan_workspace_bytes(l, n_unit);
    const size_t sample = (size_t)n_block * l->vocab_size * 8;
    return ((attention > sample ? attention : sample) + 255) / 256 * 256;
}
