/* SPDX-License-Identifier: Apache-2.0 */
/* linear_tile - arguments and shared code of the micro-kernels of linear and linear_int8. Private
 * to kernels/; the loops around them: linear_tile_loop.h. Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_LINEAR_TILE_H
#define QUIRE_KERNELS_TILING_LINEAR_TILE_H
#include <stddef.h>
#include <stdint.h>
#include "kernels/tiling/split.h"

#define LINEAR_TILE \
    6u /* rows: 6 x 64 outputs are 24 vectors of 16, which leaves 8 registers for W and x */
struct linear_next { /* memory to prefetch meanwhile */
    const char *p;
    size_t step; /* bytes in each step along K */
};
struct linear_tile {
    const void *x;  /* first row, at the start of the slice */
    size_t x_bytes; /* between rows */
    const void *w;  /* the panel, at the start of the slice */
    uint32_t n_k;   /* of the slice; odd only in the last one */
    float *sum;     /* [rows][KERN_PANEL], 64-byte aligned */
    struct linear_next next;
    uint32_t part; /* inputs of a part of it (slice.h); 0: the slice has no parts */
    int first;     /* start from zero instead of sum */
    int is_far;    /* next goes into the second-level cache: it has more misses in flight */
};
typedef void linear_tile_fn(const struct linear_tile *t);

/* A condition that the caller guarantees, for compilers and analyzers; it is not checked. */
#define LINEAR_ASSUME(what)          \
    do {                             \
        if (!(what))                 \
            __builtin_unreachable(); \
    } while (0)

/* Prefetch `step` bytes from p on; n_line: cache lines of the panel that the step reads. Has no
 * effect past the end of the weights. */
static inline __attribute__((always_inline)) void linear_prefetch(const char *p, size_t step,
                                                                  const int n_line)
{
    __builtin_prefetch(p);
    for (int i = 1; step > 64 && i < n_line; i++)
        __builtin_prefetch(p + (size_t)i * step / (size_t)n_line);
}

/* The same into the second-level cache. */
static inline __attribute__((always_inline)) void linear_prefetch_far(const char *p, size_t step,
                                                                      const int n_line)
{
    for (int i = 0; i < n_line; i++)
        __builtin_prefetch(p + (size_t)i * step / (size_t)n_line, 0, 2);
}

static inline void linear_prefetch_all(const char *p, const char *end)
{
    for (; p < end; p += 64)
        __builtin_prefetch(p);
}

/* Bytes from a tile's first row to its row r, in a register of its own: else gcc adds x_bytes to a
 * pointer between two loads, and a loop over K has a third more instructions. */
static inline __attribute__((always_inline)) size_t linear_row(size_t x_bytes, int r)
{
    size_t at = (size_t)r * x_bytes;
    __asm__("" : "+r"(at));
    return at;
}

/* Rows of a block: blocks of about equal size, whole tiles, at least one. */
static inline size_t linear_block(size_t n_row)
{
    const size_t n_block = (n_row + KERN_LINEAR_ROWS - 1) / KERN_LINEAR_ROWS;
    const size_t rows = n_block > 1 ? (n_row + n_block - 1) / n_block : n_row;
    const size_t whole = (rows + LINEAR_TILE - 1) / LINEAR_TILE * LINEAR_TILE;
    return whole > LINEAR_TILE ? whole : LINEAR_TILE;
}

#endif
