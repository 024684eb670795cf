/* SPDX-License-Identifier: Apache-2.0 */
/* slice - how much of a panel of weights the first-level cache of this machine holds beside a
 * tile's rows and sums. No result depends on it. Threads: set by kern_table_cpu, always to the same
 * value; then read. */
#ifndef QUIRE_KERNELS_TILING_SLICE_H
#define QUIRE_KERNELS_TILING_SLICE_H
#include <stdatomic.h>
#include <stdint.h>

extern _Atomic uint32_t kern_slice_bytes;

/* Of caches of 32 KiB, and of 48 KiB and more: what is left for x, sums and the next slice. */
#define KERN_SLICE_SMALL 20480u
#define KERN_SLICE_LARGE 32768u
#define KERN_L1_LARGE    (48 * 1024)

#endif
