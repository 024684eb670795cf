/* SPDX-License-Identifier: Apache-2.0 */
/* train_tiles - which tiles of keys are visible to a tile of queries, the share of each thread,
 * and the sizes of scratch. Tile t of a segment is its rows t * KERN_TRAIN_TILE and on; in causal
 * attention keys of tiles train_first(i) … i are visible to rows of tile i. Private to kernels/.
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_TRAIN_TILES_H
#define QUIRE_KERNELS_TILING_TRAIN_TILES_H
#include <stdbool.h>
#include "kernels/ops/ops_train.h"
#include "kernels/tiling/split.h"

/* Of an item: arrays [KERN_TRAIN_TILE][dim], and floats of its scores and of its rows. */
#define TRAIN_TILES_MAX 8u
#define TRAIN_SCORES    (2 * KERN_TRAIN_TILE * (KERN_TRAIN_TILE + 1))

static inline uint32_t train_dim(uint32_t head_dim)
{
    return (head_dim + 15) / 16 * 16;
}

/* Columns of a tile of bf16: pairs of them fill whole vecs. */
static inline uint32_t train_pair_dim(uint32_t head_dim)
{
    return (head_dim + 31) / 32 * 32;
}

static inline uint32_t train_n_tile(const struct train_segment *s)
{
    return (s->n_row + KERN_TRAIN_TILE - 1) / KERN_TRAIN_TILE;
}

/* Rows of tile t. */
static inline uint32_t train_rows(const struct train_segment *s, uint32_t t)
{
    const uint32_t left = s->n_row - t * KERN_TRAIN_TILE;
    return left < KERN_TRAIN_TILE ? left : KERN_TRAIN_TILE;
}

/* The first tile with a key that is visible to a row of tile i. */
static inline uint32_t train_first(const struct attention_train_args *a, uint32_t i)
{
    const uint64_t row = (uint64_t)i * KERN_TRAIN_TILE + 1;
    return a->window && row > a->window ? (uint32_t)((row - a->window) / KERN_TRAIN_TILE) : 0;
}

/* One past the last tile of queries to a row of which a key of tile j is visible. */
static inline uint32_t train_end(const struct attention_train_args *a,
                                 const struct train_segment *s, uint32_t j)
{
    const uint64_t key = (uint64_t)j * KERN_TRAIN_TILE + KERN_TRAIN_TILE - 1;
    const uint64_t end = (key + a->window - 1) / KERN_TRAIN_TILE + 1; /* of its last row */
    const uint32_t n = train_n_tile(s);
    return a->window && end < n ? (uint32_t)end : n;
}

/* Pairs of tiles of one head. */
static inline uint64_t train_pairs(const struct attention_train_args *a,
                                   const struct train_segment *s)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < train_n_tile(s); i++)
        n += i - train_first(a, i) + 1;
    return n;
}

/* Items of known cost come in one order, and each goes to the thread in whose part of the total its
 * middle lies. */
struct train_share {
    uint64_t from, to, at; /* of twice the costs */
};

static inline struct train_share train_share_of(uint64_t total, const struct kern_exec *x)
{
    return (struct train_share){2 * total * x->ith / x->nth, 2 * total * (x->ith + 1) / x->nth, 0};
}

/* Is the next item, of this cost, this thread's? */
static inline bool train_mine(struct train_share *s, uint64_t cost)
{
    const uint64_t middle = s->at + cost;
    s->at += 2 * cost;
    return middle >= s->from && middle < s->to;
}

/* The lanes of tile j visible to row r of tile i: begin … end - 1, or none. */
static inline struct range train_visible(const struct attention_train_args *a, uint32_t i,
                                         uint32_t r, uint32_t j)
{
    const size_t row = (size_t)i * KERN_TRAIN_TILE + r, key = (size_t)j * KERN_TRAIN_TILE;
    const size_t low = a->window && row + 1 > a->window ? row + 1 - a->window : 0;
    struct range v = {low > key ? low - key : 0, row + 1 - key};
    v.end = v.end < KERN_TRAIN_TILE ? v.end : KERN_TRAIN_TILE;
    return v.begin < v.end ? v : (struct range){0, 0};
}

#endif
