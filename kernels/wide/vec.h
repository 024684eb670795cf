/* SPDX-License-Identifier: Apache-2.0 */
/* vec - 16 f32 lanes of the instruction set that this file is compiled for.
 *
 * kernels/wide/ has each kernel once, written with these lanes; avx2/op.c and avx512/op.c include
 * it and are compiled with their flags. Without these flags (a header compiled alone) VEC_SUMS is
 * undefined and the wide headers are empty. Threads: pure functions. */
#ifndef QUIRE_KERNELS_WIDE_VEC_H
#define QUIRE_KERNELS_WIDE_VEC_H
#if defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "kernels/avx512/vec.h"
#include "kernels/avx512/vec_f64.h"
#include "kernels/avx512/vec_half.h"
#include "kernels/avx512/vec_i8.h"
#include "kernels/avx512/vec_transpose.h"
#elif defined(__AVX2__)
#include "kernels/avx2/vec.h"
#include "kernels/avx2/vec_f64.h"
#include "kernels/avx2/vec_half.h"
#include "kernels/avx2/vec_i8.h"
#include "kernels/avx2/vec_transpose.h"
#endif
#endif
