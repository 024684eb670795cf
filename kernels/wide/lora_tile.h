/* SPDX-License-Identifier: Apache-2.0 */
/* lora_tile - the items that lora_shrink and lora_expand divide among threads. Threads: as ops.h.
 *
 * The work is cut into items of one group: of lora_shrink some rows by some rows of A, of
 * lora_expand some rows by one panel of B. A thread takes a range of all groups' items, so that one
 * row of many adapters and many rows of one adapter divide alike.
 *
 * The factors of a step's adapters are many short pieces of memory, each read once a step. While
 * an item is computed, the factors of the next one are prefetched, also where that is another
 * matrix or another adapter (tests/bench/README.md has the gain). */
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
    const uint32_t *rows; /* [n] */
    uint32_t n, at;       /* at: the first rank, or the panel */
    uint32_t t;           /* of the part: its first column of t */
    const char *next;     /* the factors of the next item, to prefetch */
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

/* Bytes of a factor's element. */
INLINE uint32_t lora_width(enum dtype dtype)
{
    return dtype == DT_F32 ? 4 : 2;
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

/* The first byte of the factors that an item reads: rows of A, or a panel of B. */
INLINE const char *lora_tile_bytes(const struct lora_tile *t, bool shrinks)
{
    const size_t width = lora_width(t->f->dtype);
    if (shrinks)
        return (const char *)t->part->a + (size_t)t->at * t->f->n_in * width;
    return (const char *)t->part->b + (size_t)t->at * t->part->rank * KERN_LORA_PANEL * width;
}

/* The items of a thread, in order. */
struct lora_cursor {
    const struct lora_group *group;
    size_t at, n_item; /* of the group */
    size_t left;       /* of the thread */
};

INLINE void lora_cursor_settle(struct lora_cursor *c, bool shrinks)
{
    while (c->left && c->at >= c->n_item) {
        c->at -= c->n_item;
        c->n_item = lora_items(++c->group, shrinks);
    }
}

INLINE struct lora_cursor lora_cursor_at(const struct lora_group *groups, uint32_t n_group,
                                         const struct kern_exec *x, bool shrinks)
{
    size_t n = 0;
    for (uint32_t g = 0; g < n_group; g++)
        n += lora_items(&groups[g], shrinks);
    const struct range mine = split(n, x);
    struct lora_cursor c = {groups, mine.begin, 0, mine.end - mine.begin};
    if (c.left)
        c.n_item = lora_items(groups, shrinks);
    lora_cursor_settle(&c, shrinks);
    return c;
}

/* The next item; false: there is none. */
INLINE bool lora_cursor_next(struct lora_cursor *c, struct lora_tile *out, bool shrinks)
{
    if (!c->left)
        return false;
    *out = lora_tile_at(c->group, c->at++, shrinks);
    c->left--;
    lora_cursor_settle(c, shrinks);
    return true;
}

/* Prefetch n_byte of the next item's factors. */
INLINE void lora_prefetch(const char *next, uint32_t n_byte)
{
    for (uint32_t i = 0; i < n_byte; i += 64)
        __builtin_prefetch(next + i);
}

#endif
#endif
