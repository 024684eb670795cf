/* SPDX-License-Identifier: Apache-2.0 */
/* workspace - what operations need at kern_exec.scratch. One operation has it at a time.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_CUDA_WORKSPACE_H
#define QUIRE_KERNELS_CUDA_WORKSPACE_H
#include <stddef.h>
#include <stdint.h>

#define SAMPLE_BLOCKS \
    64u /* rows that are sampled at a time; each 8 bytes a token of the vocabulary */

struct device_limits; /* device.h */
/* The most that any operation within l needs, on a card of n_unit multiprocessors. */
size_t cuda_workspace_bytes(const struct device_limits *l, uint32_t n_unit);
/* What linear_lt.cu needs when the library may have so many bytes. */
size_t cuda_lt_workspace_bytes(const struct device_limits *l, size_t library);

#endif
