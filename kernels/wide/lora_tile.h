/* SPDX-License-Identifier: Apache-2.0 */
/* lora_tile - the items that lora_shrink and lora_expand divide among threads. Threads: as ops.h.
 *
 * The work is cut into items of one group: of lora_shrink some rows by some rows of A, of
 * lora_expand some rows by one panel of B. A thread takes a range of all groups' items, so that one
 * row of many adapters and many rows of one adapter divide alike. */
#ifndef QUIRE_KERNELS_WIDE_LORA_TILE_H
#define QUIRE_KERNELS_WIDE_LORA_TILE_H
#include <string.h>
#include "kernels/ops/ops_lora.h"
#include "kernels/wide/element.h"
#ifdef VEC_SUMS

#define LORA_RANKS 4u                         /* rows of A at once */
#define LORA_ROWS  (VEC_SUMS >= 20 ? 4u : 1u) /* rows of x at once */
#define LORA_VECS  (KERN_LORA_PANEL / 16)     /* of a panel */

struct lora_tile { /* of one item */
    const struct lora_factors *f;
    const struct lora_part *part;
    const uint32_t *rows;  /* [n] */
    uint32_t n, at, first; /* at: the first rank, or the panel */
    uint32_t t;            /* of the part: its first column of t */
};

INLINE uint32_t lora_tiles(uint32_t n, uint32_t of)
{
    return (n + of - 1) / of;
}

/* Items along the columns that a group's factors have: of a row of t, or of y. */
INLINE uint32_t lora_columns(const struct lora_part *p, bool shrinks)
{
    return shrinks ? lora_tiles(p->rank, LORA_RANKS) : lora_tiles(p->n_out, KERN_LORA_PANEL);
}

INLINE size_t lora_items(const struct lora_group *g, bool shrinks)
{
    size_t n = 0;
    for (uint32_t i = 0; i < g->factors->n_part; i++)
        n += lora_columns(&g->factors->parts[i], shrinks);
    return n * lora_tiles(g->n_row, LORA_ROWS);
}

/* Item i of the group: rows fastest, so that neighbours share the factors. */
INLINE struct lora_tile lora_tile_at(const struct lora_group *g, size_t i, bool shrinks)
{
    const uint32_t n_tile = lora_tiles(g->n_row, LORA_ROWS);
    const uint32_t row = (uint32_t)(i % n_tile) * LORA_ROWS, left = g->n_row - row;
    struct lora_tile t = {
        .f = g->factors,
        .part = g->factors->parts,
        .rows = g->rows + row,
        .n = left < LORA_ROWS ? left : LORA_ROWS,
    };
    uint32_t column = (uint32_t)(i / n_tile);
    for (; column >= lora_columns(t.part, shrinks); t.part++) {
        column -= lora_columns(t.part, shrinks);
        t.t += t.part->rank;
    }
    t.at = shrinks ? column * LORA_RANKS : column;
    return t;
}

#endif
#endif
