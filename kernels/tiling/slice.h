/* SPDX-License-Identifier: Apache-2.0 */
/* slice - how much of a panel of weights the caches of this machine hold beside a tile's rows and
 * sums. No result depends on it. Threads: set by kern_table_cpu and kern_read_by; then read. */
#ifndef QUIRE_KERNELS_TILING_SLICE_H
#define QUIRE_KERNELS_TILING_SLICE_H
#include <stdatomic.h>
#include <stdint.h>

/* kern_slice_bytes: in the first-level cache. kern_slice_far_bytes: in the second-level cache, for
 * tiles whose registers hold the sums of a whole panel; 0: such tiles have slices of the first
 * level, as all others. Which processors have slices of the second level: reading.def. */
extern _Atomic uint32_t kern_slice_bytes, kern_slice_far_bytes;

#define KERN_SLICE_FAR   (128u << 10) /* an eighth of 1 MiB: this slice, the next one, and sums */
/* Of caches of 32 KiB, and of 48 KiB and more: what is left for x, sums and the next slice. */
#define KERN_SLICE_SMALL 20480u
#define KERN_SLICE_LARGE 32768u
#define KERN_L1_LARGE    (48 * 1024)

#endif
