/* SPDX-License-Identifier: Apache-2.0 */
/* workspace - sizes of kern_exec.scratch. One operation uses it at a time. Threads: pure
 * functions. */
#ifndef QUIRE_KERNELS_CUDA_WORKSPACE_H
#define QUIRE_KERNELS_CUDA_WORKSPACE_H
#include <stddef.h>
#include <stdint.h>

#define SAMPLE_BLOCKS 64u /* rows sampled at once; each takes 8 bytes per token of the vocabulary */

struct device_limits; /* device.h */
/* Bytes that suffice for every operation within l, on a card of n_unit multiprocessors. */
size_t cuda_workspace_bytes(const struct device_limits *l, uint32_t n_unit);
/* Bytes that linear_lt.cu needs if the library may use so many. */
size_t cuda_lt_workspace_bytes(const struct device_limits *l, size_t library);

#endif
