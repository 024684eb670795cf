/* SPDX-License-Identifier: Apache-2.0 */
/* int8_layout - sizes and offsets within a packed int8 matrix (picture: ops_int8.h). Private to
 * kernels/. Threads: pure functions. */
#ifndef QUIRE_KERNELS_OPS_INT8_LAYOUT_H
#define QUIRE_KERNELS_OPS_INT8_LAYOUT_H
#include "kernels/ops/ops_fp8.h"

#define INT8_ZERO 128 /* the stored byte of the value 0 */

static inline size_t int8_k(uint32_t n_in) /* stored */
{
    return ((size_t)n_in + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
}

/* From the start of a panel to its scales. */
static inline size_t int8_panel_scales_at(uint32_t n_in)
{
    return int8_k(n_in) * KERN_PANEL;
}

static inline size_t int8_panel_bytes(uint32_t n_in)
{
    return int8_panel_scales_at(n_in) + KERN_PANEL * sizeof(float);
}

/* Of e4m3 weights with block scales (ops_fp8.h). */
static inline size_t fp8_n_block(uint32_t n_in)
{
    return ((size_t)n_in + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK;
}
static inline size_t fp8_block_panel_bytes(uint32_t n_in)
{
    const size_t n_interleave = KERN_PANEL / KERN_GATE_INTERLEAVE;
    return int8_panel_scales_at(n_in) + n_interleave * fp8_n_block(n_in) * sizeof(float);
}

/* Offset of W[o,k] from the start of o's panel. */
static inline size_t int8_index(uint32_t o, uint32_t k)
{
    return ((size_t)(k / 4) * KERN_PANEL + o % KERN_PANEL) * 4 + k % 4;
}

#endif
