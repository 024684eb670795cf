/* SPDX-License-Identifier: Apache-2.0 */
/* unroll - full unrolling of loops over arrays of vector registers; without it the compiler keeps
 * the arrays in memory. UNROLL precedes such a loop; its bounds are constants after inlining.
 * Threads: none. */
#ifndef QUIRE_KERNELS_TILING_UNROLL_H
#define QUIRE_KERNELS_TILING_UNROLL_H

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#define INLINE static inline __attribute__((always_inline))

#endif
