/* SPDX-License-Identifier: Apache-2.0 */
/* unroll - loops over arrays of vector registers must be unrolled whole, or the arrays live in
 * memory. UNROLL stands before such a loop; its bounds are constants once the function is
 * inlined. Threads: none. */
#ifndef QUIRE_KERNELS_TILING_UNROLL_H
#define QUIRE_KERNELS_TILING_UNROLL_H

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#define INLINE static inline __attribute__((always_inline))

#endif
