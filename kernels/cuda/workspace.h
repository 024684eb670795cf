/* SPDX-License-Identifier: Apache-2.0 */
/* workspace - sizes of kern_exec.scratch. One operation uses it at a time. Threads: pure
 * functions. */
#ifndef QUIRE_KERNELS_CUDA_WORKSPACE_H
#define QUIRE_KERNELS_CUDA_WORKSPACE_H
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops/ops_device.h"

/* sample.cu: rows sampled at once, and what each of them has between the launches. */
#define SAMPLE_ROWS        64u
#define SAMPLE_PART        4096u /* logits of a block */
#define SAMPLE_PARTS_MAX   128u
#define SAMPLE_STATE_BYTES 32768u
#define SAMPLE_LIST_MAX    1024u /* engine/worker/sample.h: SAMPLE_HEAP_MAX */
#define SAMPLE_ITEM_BYTES  8u
static inline size_t sample_row_bytes(uint32_t n_vocab)
{
    const size_t n_part = (n_vocab + SAMPLE_PART - 1) / SAMPLE_PART;
    const size_t items = n_part * (SAMPLE_LIST_MAX + SAMPLE_TOP_MAX) * SAMPLE_ITEM_BYTES;
    return SAMPLE_STATE_BYTES + items + ((size_t)n_vocab * 4 + 15) / 16 * 16;
}

struct device_limits; /* device.h */
/* Bytes that suffice for every operation within l, on a card of n_unit multiprocessors. */
size_t cuda_workspace_bytes(const struct device_limits *l, uint32_t n_unit);
/* Bytes that linear_lt.cu needs if the library may use so many. */
size_t cuda_lt_workspace_bytes(const struct device_limits *l, size_t library);

#endif
