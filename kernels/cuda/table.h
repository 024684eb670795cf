/* SPDX-License-Identifier: Apache-2.0 */
/* table - which of this folder's kernels a card runs. Threads: pure. */
#ifndef QUIRE_KERNELS_CUDA_TABLE_H
#define QUIRE_KERNELS_CUDA_TABLE_H
#include "kernels/kern.h"

/* The CUDA lines of kernels.def for a card of this compute capability; operations without one are
 * NULL. */
void kern_table_cuda(struct kern_table *t, uint32_t major, uint32_t minor);

#endif
