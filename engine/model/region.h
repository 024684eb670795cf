/* SPDX-License-Identifier: Apache-2.0 */
/* region - one large zeroed block of memory from the operating system, in huge pages where it gives
 * them.
 *
 * Weights, KV pool and activations are such blocks: streaming weights from huge pages is worth 10
 * to 20 % of the memory bandwidth (DESIGN section 8). Pages are touched by whoever writes them
 * first. Threads: one owner. */
#ifndef QUIRE_ENGINE_MODEL_REGION_H
#define QUIRE_ENGINE_MODEL_REGION_H
#include <stdbool.h>
#include <stddef.h>
#include "common/err.h"

#define REGION_ALIGN 64u /* bytes; what region_cut keeps */

struct region {
    unsigned char *data; /* aligned to 2 MiB, [size] */
    size_t size;
    void *map;
    size_t map_size;
    bool is_file; /* pages of a file, read-only (weights_cache.h) */
};
/* clang-format off */
#define REGION_INIT {NULL, 0, NULL, 0, false}
/* clang-format on */
/* `what` names it in the message. Errors: Q_NO_MEMORY. */
FALLIBLE region_init(struct region *r, size_t size, const char *what, struct q_err *e);
void region_release(struct region *r);

/* Cutting a region into pieces, written once and run twice: with base NULL it measures, with base
 * set it gives out. */
struct region_cutter {
    unsigned char *base;
    size_t used; /* bytes so far; SIZE_MAX = overflow */
};
/* NULL while measuring. */
void *region_cut(struct region_cutter *c, size_t n, size_t size);

#endif
