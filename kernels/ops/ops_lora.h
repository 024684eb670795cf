/* SPDX-License-Identifier: Apache-2.0 */
/* ops_lora - arguments of the two products of low-rank adapters (LoRA, arXiv:2106.09685), for the
 * rows of a step that have adapters: y += scale * B (A x), of the row's own adapter.
 *
 * A product of the model may be made of several tensors (q, k and v in one matrix), each with an
 * adapter of its own: a part, with the columns of y that it adds to. Rows of one adapter are a
 * group; both operations take all groups of a step at once. A row's numbers depend on the row and
 * on its adapter alone, never on the groups beside it.
 *
 *     x [row, n_in] --A of each part--> t [row, ranks of the parts, one after the other]
 *     t             --B of each part--> y [row, col … col + n_out of the part] +=
 *
 * Threads: as ops.h: every thread calls with its own kern_exec; between the two a barrier. */
#ifndef QUIRE_KERNELS_OPS_OPS_LORA_H
#define QUIRE_KERNELS_OPS_OPS_LORA_H
#include "kernels/ops/ops.h"

#define KERN_LORA_PARTS 3u  /* q, k, v */
#define KERN_LORA_PANEL 64u /* columns of B that lie together */

struct lora_part {
    const void *a; /* [rank, n_in] row-major */
    const void *b; /* panels of 64 columns of y: [ceil(n_out / 64)][rank][64] */
    uint32_t rank, col, n_out;
    float scale;
};

struct lora_factors { /* of one adapter, for one product of the model */
    enum dtype dtype; /* of a and b: F32, BF16 or F16 */
    uint32_t n_in, n_part;
    struct lora_part parts[KERN_LORA_PARTS];
};

struct lora_group {
    const struct lora_factors *factors;
    const uint32_t *rows; /* [n_row] ascending; row r is x + (r - first) * x_stride */
    uint32_t n_row;
};

/* Elements of one factor B in its layout. */
static inline size_t lora_b_size(uint32_t rank, uint32_t n_out)
{
    const size_t n_panel = ((size_t)n_out + KERN_LORA_PANEL - 1) / KERN_LORA_PANEL;
    return n_panel * rank * KERN_LORA_PANEL;
}
/* Where column c of row j of the transposed B lies. */
static inline size_t lora_b_index(uint32_t rank, uint32_t j, uint32_t c)
{
    return ((size_t)(c / KERN_LORA_PANEL) * rank + j) * KERN_LORA_PANEL + c % KERN_LORA_PANEL;
}

/* t[r, j] = scale * sum_k x[r, k] * A[j, k], j over the ranks of all parts. 16 lanes: lane k % 16
 * adds the products by fma, k ascending, from 0; then the lanes are folded by halves, and the sum
 * is multiplied by the part's scale. */
struct lora_shrink_args {
    float *t;
    const void *x;
    enum dtype x_dtype; /* F32 or BF16, on a device F16 too */
    const struct lora_group *groups;
    uint32_t n_group, first;   /* first: the row that x and t begin with */
    size_t x_stride, t_stride; /* elements */
};

/* y[r, col + c] += sum_j t[r, j] * B[c, j] of each part: the sum by fma from 0, j ascending, then
 * one addition. */
struct lora_expand_args {
    float *y;
    const float *t;
    const struct lora_group *groups;
    uint32_t n_group, first;
    size_t y_stride, t_stride; /* elements */
};

/* ---- on a device ----
 * Adapters lie in slots of one array, each as one piece: for each product of the model what it has
 * (struct lora_slot_factors, n_part 0: nothing), then the numbers. The rows that have one are cut
 * into tiles: up to 8 rows of the same adapter. All of that is in device memory and is written
 * before the step, so that one recorded launch serves every mix of adapters; counts of a launch are
 * limits.
 *
 *     slots   slot 0 | slot 1 | …   slot_bytes each
 *     tiles   {slot, where in rows, how many rows}; no rows: the tile is not used
 *     rows    rows of the batch by tile */
#define KERN_LORA_ROWS 8u /* of a tile at most */

struct lora_slot_part {
    uint64_t a, b; /* as lora_part's: bytes from the begin of the slot, multiples of 64 */
    uint32_t rank, col, n_out;
    float scale;
};
struct lora_slot_factors {
    uint32_t n_in, n_part;
    struct lora_slot_part parts[KERN_LORA_PARTS];
};
struct lora_row_tile {
    uint32_t slot, first, n_row;
};

struct lora_slots {                    /* of one product */
    const unsigned char *data;         /* [slots][bytes] */
    size_t bytes;                      /* of a slot, a multiple of 64 */
    enum dtype dtype;                  /* of a and b of all adapters */
    uint32_t product;                  /* its place in a slot's lora_slot_factors */
    const struct lora_row_tile *tiles; /* [n_tile] */
    const uint32_t *rows;
    uint32_t n_tile;
};
/* Tiles that n rows of at most n_adapter adapters have at most. */
static inline uint32_t lora_tiles_max(uint32_t n, uint32_t n_adapter)
{
    const uint32_t most = n / KERN_LORA_ROWS + (n < n_adapter ? n : n_adapter);
    return most < n ? most : n;
}

/* lora_shrink of each tile's rows. n_rank: columns of t, the sum of an adapter's ranks at most. */
struct lora_shrink_grouped_args {
    float *t;
    const void *x;
    enum dtype x_dtype;
    struct lora_slots of;
    uint32_t n_rank;
    size_t x_stride, t_stride; /* elements */
};

/* lora_expand of each tile's rows. n_col: columns of y. */
struct lora_expand_grouped_args {
    float *y;
    const float *t;
    struct lora_slots of;
    uint32_t n_col;
    size_t y_stride, t_stride; /* elements */
};

#endif
