/* SPDX-License-Identifier: Apache-2.0 */
/* hopper - layouts of the operands of sm_90a's matrix instructions and copy engine: descriptors,
 * fragments, boxes of a tensor map. No other file computes these bits. tests/emu decodes them
 * independently from the manual, so that errors are found without a card.
 *
 * A tile in shared memory is [n_row][n_col] bf16, cut into panels of 64 columns, one panel after
 * the other, and begins at a multiple of 1024 bytes. A row of a panel is 128 bytes; its chunk of 16
 * bytes c lies at c ^ row % 8, the "128-byte swizzle", which the copy engine writes and wgmma reads:
 *
 *     n_col 128:  panel 0 (columns 0 … 63)        n_row x 128 bytes
 *                   row 0: chunks 0 1 2 3 4 5 6 7
 *                   row 1: chunks 1 0 3 2 5 4 7 6 …   8 rows are 1024 bytes
 *                 panel 1 (columns 64 … 127)      n_row x 128 bytes
 *
 * As B of a product the tile is used in two ways: its rows are n and its columns k (K: scores), or
 * its rows are k and its columns n (V: "N-major", the instruction's trans-b).
 *
 * If rows are m or n and columns k, the element type does not matter: an instruction takes 32 bytes
 * of each row, 16 numbers of 16 bits or 32 of 8. Offsets in such tiles are in bytes, and one map of
 * bytes serves every type.
 *
 * Source: PTX ISA 9.0, section 9.7.15, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate
 * Instructions": "Register Fragments", "Shared Memory Matrix Layout", "Strides", "Matrix Descriptor
 * Format"; CUDA driver API, cuTensorMapEncodeTiled. Threads: pure functions. */
#ifndef QUIRE_KERNELS_CUDA_HOPPER_H
#define QUIRE_KERNELS_CUDA_HOPPER_H
#include <stdint.h>
#include "kernels/cuda/layout.h"

#define PANEL_COLS      64u  /* bf16 */
#define PANEL_ROW_BYTES 128u /* also the period of the swizzle */
#define PANEL_ATOM_ROWS 8u   /* after which the swizzle repeats: 1024 bytes */
#define PANEL_ALIGN     1024u
#define WGMMA_K         16u /* columns of A that one instruction takes, bf16 */
#define WGMMA_K_BYTES   32u /* the same, of any type */
#define WGMMA_M         64u
#define WGMMA_THREADS   128u /* a warpgroup */

/* ---- matrix descriptors ----
 *     bits  0 … 13   start address        each as bytes / 16 of 18 bits
 *          16 … 29   leading dimension byte offset
 *          32 … 45   stride dimension byte offset
 *          49 … 51   base offset: 0 when the swizzle's pattern begins at a multiple of 1024
 *          62 … 63   swizzle: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes */
#define WGMMA_SWIZZLE_128 1u

LAYOUT uint64_t wgmma_field(uint32_t bytes)
{
    return (bytes & 0x3ffffu) >> 4;
}
LAYOUT uint64_t wgmma_descriptor(uint32_t start, uint32_t leading, uint32_t stride)
{
    return wgmma_field(start) | wgmma_field(leading) << 16 | wgmma_field(stride) << 32 |
           (uint64_t)WGMMA_SWIZZLE_128 << 62;
}
/* The same matrix `bytes` further on; the start's field cannot overflow, because shared memory is
 * smaller. */
LAYOUT uint64_t wgmma_further(uint64_t descriptor, uint32_t bytes)
{
    return descriptor + (bytes >> 4);
}
/* The tile's rows are m or n, its columns k ("K-major"): stride is from 8 rows to the next 8. Leading
 * is not used with a swizzle; the manual has 1 there. */
LAYOUT uint64_t wgmma_columns_k(uint32_t tile)
{
    return wgmma_descriptor(tile, 16, PANEL_ATOM_ROWS * PANEL_ROW_BYTES);
}
LAYOUT uint32_t wgmma_columns_k_at(uint32_t n_row, uint32_t k) /* bytes from column 0 to k, by 16 */
{
    return k / PANEL_COLS * n_row * PANEL_ROW_BYTES + k % PANEL_COLS * 2;
}
/* The tile's rows are k, its columns n ("N-major"): leading is from 64 columns to the next 64,
 * stride from 8 rows to the next 8. */
LAYOUT uint64_t wgmma_rows_k(uint32_t tile, uint32_t n_row)
{
    return wgmma_descriptor(tile, n_row * PANEL_ROW_BYTES, PANEL_ATOM_ROWS * PANEL_ROW_BYTES);
}
LAYOUT uint32_t wgmma_rows_k_at(uint32_t k) /* bytes from row 0 to row k, by 16 */
{
    return k * PANEL_ROW_BYTES;
}

/* ---- fragments; thread: 0 … 127 of the warpgroup ----
 * Accumulators of m64nNk16: f32 i = 0 … N / 2 - 1. A of 16 columns: words i = 0 … 3, two columns
 * each, the lower one in the low half. A warp has 16 rows of each. So words of A for columns 16 k …
 * are made of accumulators 8 k … 8 k + 7 of the same thread. */
LAYOUT uint32_t wgmma_acc_row(uint32_t thread, uint32_t i)
{
    return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}
LAYOUT uint32_t wgmma_acc_col(uint32_t thread, uint32_t i)
{
    return i / 4 * 8 + thread % 4 * 2 + i % 2;
}
LAYOUT uint32_t wgmma_a_row(uint32_t thread, uint32_t i)
{
    return thread / 32 * 16 + thread % 32 / 4 + i % 2 * 8;
}
LAYOUT uint32_t wgmma_a_col(uint32_t thread, uint32_t i)
{
    return i / 2 * 8 + thread % 4 * 2;
}

/* ---- tensor maps ----
 * An array [n_row][n_col], nothing between rows if it is bf16, of which a box of some rows and one
 * panel is copied at a time. A box outside the array, in part or whole (a negative row), is filled
 * with zeros, and counts for the barrier as any other. */
#define MAP_ROWS_MAX (1u << 31) /* the cache's number of rows is unknown here */
#define MAP_NOWHERE  (-16)      /* a row outside, and with it a box of up to 16 rows */
#define MAP_RANK_MAX 3u
struct map_shape { /* arguments of cuTensorMapEncodeTiled, dimension 0 is the innermost */
    uint32_t rank, element_bytes;
    uint64_t dim[MAP_RANK_MAX], stride[MAP_RANK_MAX - 1]; /* elements; bytes */
    uint32_t box[MAP_RANK_MAX], step[MAP_RANK_MAX];       /* elements */
};
LAYOUT struct map_shape map_shape_of(uint32_t n_col, uint32_t box_rows) /* bf16 */
{
    struct map_shape s = {
        2,        2, {n_col, MAP_ROWS_MAX, 1}, {(uint64_t)n_col * 2, 0}, {PANEL_COLS, box_rows, 1},
        {1, 1, 1}};
    return s;
}
/* Rows of any type, row_step bytes apart; columns are bytes. */
LAYOUT struct map_shape map_bytes_of(uint64_t row_bytes, uint64_t n_row, uint64_t row_step,
                                     uint32_t box_rows)
{
    struct map_shape s = {
        2, 1, {row_bytes, n_row, 1}, {row_step, 0}, {PANEL_ROW_BYTES, box_rows, 1}, {1, 1, 1}};
    return s;
}
/* n such arrays, `step` bytes apart; a box is of one of them. */
LAYOUT struct map_shape map_several(struct map_shape one, uint32_t n, uint64_t step)
{
    one.rank = 3;
    one.dim[2] = n;
    one.stride[1] = step;
    return one;
}

#endif
