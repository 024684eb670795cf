/* SPDX-License-Identifier: Apache-2.0 */
/* table - selection of this folder's kernels for a card. Threads: pure functions. */
#ifndef QUIRE_KERNELS_CUDA_TABLE_H
#define QUIRE_KERNELS_CUDA_TABLE_H
#include "kernels/kern.h"

/* Bits of kern_table.caps of this library. CAP_SM80: bf16 in the tensor cores, cp.async. CAP_SM90A
 * (attention) and the others (products by type, plain and of groups): wgmma and tensor copies, on
 * compute capability 9.0 only; trials.h determines which of them a card has. */
enum cuda_cap {
    CAP_SM80 = 1 << 0,
    CAP_SM90A = 1 << 1,
    CAP_SM90A_LINEAR = 1 << 2, /* bf16 and f16 */
    CAP_SM90A_I8 = 1 << 3,
    CAP_SM90A_E4M3 = 1 << 4,
    CAP_SM90A_GROUPED = 1 << 5, /* bf16 and f16 */
    CAP_SM90A_I8_GROUPED = 1 << 6,
    CAP_SM90A_E4M3_GROUPED = 1 << 7,
    CAP_SM90A_ALL = CAP_SM90A | CAP_SM90A_LINEAR | CAP_SM90A_I8 | CAP_SM90A_E4M3 |
                    CAP_SM90A_GROUPED | CAP_SM90A_I8_GROUPED | CAP_SM90A_E4M3_GROUPED
};

/* Of a card of this compute capability. */
uint32_t kern_caps_cuda(uint32_t major, uint32_t minor);
/* Fill t from the CUDA lines of kernels.def: for each operation the last variant that requires no
 * bit outside caps; operations without a variant are NULL. */
void kern_table_cuda(struct kern_table *t, uint32_t caps);

#endif
