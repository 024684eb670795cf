/* SPDX-License-Identifier: Apache-2.0 */
/* layout - layouts of packed weights and of the KV cache in a card's memory. Included by the
 * kernels and by the code that computes sizes.
 *
 * Weights [n_out, n_in]:
 *     f32, f16, bf16   row-major, nothing between rows
 *     int8, e4m3       row-major; at int8_scales_at() f32 scale [n_out]
 *     e4m3 in blocks   row-major; at int8_scales_at() f32 scale [ceil(n_out /
 * KERN_GATE_INTERLEAVE)]
 *                      [blocks_stride()], of which ceil(n_in / 128) are used, the others 0
 *     int4             rows of int4_row_bytes(); at int4_scales_from() f16 scale
 *     [n_out][n_group]; at
 *                      int4_zeros_from() u8 zero [n_out][n_group]
 * A row of int4 is blocks of 128 inputs, 64 bytes each, 0 past n_in, in the order in which the four
 * lanes that share a row of a matrix fragment read them:
 *     u32 [4 lanes][4 quarters]   word (t, j) has inputs 32 j + 8 t + 0 … 7 of the block: input
 *     b of
 *                                 0 … 3 is the low half of byte b, input 4 + b the high half
 *
 * KV of one layer, K and V alike: [n_block][n_kv_head] of [16][head_dim]; int8: then f32 scale
 * [16]. F8_E4M3 has no scale: magnitudes above 448 become 448. Threads: pure functions. */
#ifndef QUIRE_KERNELS_CUDA_LAYOUT_H
#define QUIRE_KERNELS_CUDA_LAYOUT_H
#include "kernels/ops/ops_fp8.h"
#include "kernels/ops/ops_int4.h"
#ifdef __CUDACC__
#define LAYOUT static inline __host__ __device__
#else
#define LAYOUT static inline
#endif

#define INT4_BLOCK       128u /* inputs */
#define INT4_BLOCK_BYTES 64u

LAYOUT size_t align16(size_t n)
{
    return (n + 15) / 16 * 16;
}
LAYOUT size_t int8_scales_at(uint32_t n_out, uint32_t n_in)
{
    return align16((size_t)n_out * n_in);
}
/* Scales from one row of them to the next: rows are read 16 bytes at a time. */
LAYOUT uint32_t blocks_stride(uint32_t n_in)
{
    return ((n_in + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK + KERN_FP8_FOUR - 1) / KERN_FP8_FOUR *
           KERN_FP8_FOUR;
}
LAYOUT size_t int4_row_bytes(uint32_t n_in)
{
    return (size_t)((n_in + INT4_BLOCK - 1) / INT4_BLOCK) * INT4_BLOCK_BYTES;
}
LAYOUT size_t int4_scales_from(uint32_t n_out, uint32_t n_in)
{
    return n_out * int4_row_bytes(n_in);
}
LAYOUT size_t int4_zeros_from(uint32_t n_out, uint32_t n_in, uint32_t group)
{
    return int4_scales_from(n_out, n_in) + align16((size_t)n_out * (n_in / group) * 2);
}
/* Of the whole matrix. */
LAYOUT size_t cuda_matrix_bytes(const struct packed *w)
{
    const size_t n = (size_t)w->n_out * w->n_in;
    if (w->group)
        return int4_zeros_from(w->n_out, w->n_in, w->group) +
               align16((size_t)w->n_out * (w->n_in / w->group));
    if (w->blocks)
        return int8_scales_at(w->n_out, w->n_in) +
               (size_t)((w->n_out + KERN_GATE_INTERLEAVE - 1) / KERN_GATE_INTERLEAVE) *
                   blocks_stride(w->n_in) * 4;
    if (w->dtype == DT_I8 || w->dtype == DT_F8_E4M3)
        return int8_scales_at(w->n_out, w->n_in) + (size_t)w->n_out * 4;
    return n * (w->dtype == DT_F32 ? 4 : 2);
}

LAYOUT size_t cuda_kv_element_bytes(enum dtype kv_dtype)
{
    return kv_dtype == DT_F32 ? 4 : kv_dtype == DT_BF16 || kv_dtype == DT_F16 ? 2 : 1;
}
/* K (or V) of one block and one head. */
LAYOUT size_t cuda_kv_head_bytes(enum dtype kv_dtype, uint32_t head_dim)
{
    return (size_t)KERN_BLOCK * head_dim * cuda_kv_element_bytes(kv_dtype) +
           (kv_dtype == DT_I8 ? KERN_BLOCK * 4 : 0);
}

#endif
