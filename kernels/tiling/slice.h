/* SPDX-License-Identifier: Apache-2.0 */
/* slice - how much of a panel of weights the caches of this machine hold beside a tile's rows and
 * sums. No result depends on it. Threads: set by kern_table_cpu and kern_read_by; then read. */
#ifndef QUIRE_KERNELS_TILING_SLICE_H
#define QUIRE_KERNELS_TILING_SLICE_H
#include <stdatomic.h>
#include <stddef.h>
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

/* Up to SLICE_FEW tiles are bound by memory; a slice is then half of kern_slice_bytes, so that the
 * first level has room for the next slice too. Up to SLICE_ROWS rows could have their weights as
 * fast as memory has them: their slices are so short that the next one, which is prefetched
 * meanwhile, is no further ahead than what one row prefetches. A tile of floats gets a long slice
 * then and divides it into parts of that size itself: what it does once a call is done seldom. */
#define SLICE_FEW  4u
#define SLICE_ROWS 4u
#define SLICE_PART 3072u

/* Bytes of a slice in the first-level cache, at most. */
static inline uint32_t slice_bytes(size_t n_row, uint32_t n_tile)
{
    const uint32_t near = atomic_load_explicit(&kern_slice_bytes, memory_order_relaxed);
    return n_row <= SLICE_ROWS ? SLICE_PART : n_tile > SLICE_FEW ? near : near / 2;
}

/* Inputs of a part, an even number; 0: no parts. */
static inline uint32_t slice_part(size_t n_row, uint32_t k_bytes)
{
    return n_row <= SLICE_ROWS ? SLICE_PART / k_bytes : 0;
}

#endif
