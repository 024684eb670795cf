/* SPDX-License-Identifier: Apache-2.0 */
/* ops_codes - arguments of the product of floats by weights that are kept in 4 or 8 bits, each a
 * code that stands for a value, with a scale, and where the format has one a minimum, of its group
 * of inputs:
 *     W[o,k] = fma(scale[o,g], value(q[o,k]), min[o,g]),  g = k / group; min 0 where there is none
 * This holds the blocks of GGUF files, MXFP4, NVFP4 and bitsandbytes' nf4 and fp4 as they are:
 * W[o,k] is the f32 that the format defines, and memory is read in the packed size. Two products;
 * packed_codes.by_ints (ops.h) says which, and codes lie in its order:
 *
 * by_ints 0, of f32: the product is that of `linear` with such an f32 matrix, to the bit. A kernel
 * unpacks a slice of a panel into the first-level cache, or for few rows into registers, and
 * multiplies from there. Any kind of codes.
 *
 * by_ints 1, of integers: only of kinds below KERN_CODES_INT_END, whose values are whole numbers. x
 * is rounded to integers of 15 bits, so that sums of products of a group are sums of integers,
 * which are exact in any order. The engine chooses this for GGUF's K-quants and other blocks of
 * integers, which ggml multiplies by x rounded to 8 bits. Of each KERN_CODES_X = 256 inputs (the
 * last ones may be fewer)
 *     2^e <= max |x| < 2^(e + 1),  unit = 2^(e - 13)
 *     n[k] = x[k] / unit to the nearest integer, ties to even, in magnitude at most 2^14 - 1
 *     part = 0; for groups ascending: part = fma(min, sum of n[k], part)   where there are mins
 *                                     part = fma(scale, sum of n[k] * value(q[k]), part)
 *     sum  = fma(unit, part, sum)
 * with sums of a group as int32, converted to f32. Where scales are integers too, with a d for 256
 * inputs, and values have at most 6 bits (codes_is_scaled: all K-quants), the sums of several
 * groups are integers: with chunks of 64 inputs, of KERN_CODES_SIX 32,
 *     part = 0; for chunks ascending: part = part + sum of n[k] * value(q[k]) * scale[g]
 *     part = d * part, or fma(d, part, dmin * sum of n[k] * min[g])        where there are mins
 *     sum  = fma(unit, part, sum)
 * A single input that is not 0 gives x[k] * W[o,k] of the f32 above when x[k] has at most 14 bits,
 * and d and dmin are numbers that f16 has. Where max |x| is below 2^-100, all n are 0; where an x
 * is not finite, sum is NaN.
 *
 * Layout (codes_layout.h). Panels of KERN_PANEL = 64 outputs, each contiguous; in a panel groups
 * ascend. A group is
 *     codes    by_ints 0, bytes: int8 [group][64], the value itself
 *              by_ints 0, others: u8 [group/2][64], input 2j in the low half of byte j, 2j + 1 in
 *              the high one
 *              by_ints 1, bytes: u8 [group/4][64][4], value + 128, of KERN_CODES_SIX + 32; inputs
 *              0, 2, 1, 3 of 4
 *              by_ints 1, others: u8 [group/8][64][4]; of 8 inputs, from the low half of the first
 *              byte on: 0, 2, 4, 6, 1, 3, 5, 7, so that a mask and a shift give pairs of neighbours
 *              in the halves of 32 bits
 *     scales   [64] f32, f16 or int8, then as many mins where the format has them
 * With scales in int8 before each 256 inputs: f32 d [64] (then f32 dmin [64]), and
 *     scale = d * int8, min = dmin * int8     in f32; one product each
 * Outputs past n_out are zeros. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_OPS_OPS_CODES_H
#define QUIRE_KERNELS_OPS_OPS_CODES_H
#include "kernels/ops/ops.h"

enum kern_codes {
    KERN_CODES_NOT,
    KERN_CODES_BYTES,   /* -128 … 127 */
    KERN_CODES_HALVES,  /* 4 bits: 0 … 15 */
    KERN_CODES_SIGNED,  /* -8 … 7 */
    KERN_CODES_NL,      /* the 16 integers of IQ4_NL */
    KERN_CODES_E2M1,    /* twice an e2m1: 0, 1, 2, 3, 4, 6, 8, 12, and these below zero */
    KERN_CODES_SIX,     /* bytes, -32 … 31 */
    KERN_CODES_IQ1,     /* -9, -7, -1, 1, 7, 9 */
    KERN_CODES_IQ2,     /* 8, 25, 43, and these below zero */
    KERN_CODES_IQ3_XXS, /* 4, 12, 20, 28, 36, 44, 52, 62, and these below zero */
    KERN_CODES_IQ3_S,   /* odd numbers from -15 to 15 */
    KERN_CODES_INT_END, /* values before this are whole numbers */
    KERN_CODES_NF4 = KERN_CODES_INT_END, /* the 16 numbers of bitsandbytes' nf4 */
    KERN_CODES_FP4,                      /* and fp4 */
    KERN_CODES_END
};
enum kern_scales { KERN_SCALES_F32, KERN_SCALES_F16, KERN_SCALES_BY_256 };
#define KERN_CODES_SUPER 256u /* inputs of a d; n_in is a multiple of it then */
#define KERN_CODES_X     256u /* inputs that are rounded with one unit; whole groups */

/* One output. Arrays of what the form does not have are not read. */
struct codes_output {
    const uint8_t *q;                 /* [n_in] codes; of KERN_CODES_BYTES int8 */
    const float *scales, *mins;       /* [n_in / group]; f16: numbers that f16 has */
    const int8_t *parts, *part_mins;  /* KERN_SCALES_BY_256: [n_in / group] */
    const float *supers, *super_mins; /* d and dmin [n_in / 256] */
};
/* The value of a code. */
float kern_codes_value(enum kern_codes kind, uint8_t code);

/* y[i,o] = sum_k x[i,k] * W[o,k] + bias[o] (+ y[i,o] as it was, when accumulate): one f32
 * accumulator an output, from +0: by_ints 0 one fma for each k, ascending; 1 one for each
 * KERN_CODES_X inputs, as above; the rest as linear (ops.h).
 * x: F32 or BF16, which is widened; y: F32 or BF16; w.codes.kind above 0. */
struct linear_codes_args {
    struct linear_args by;
};

#endif
