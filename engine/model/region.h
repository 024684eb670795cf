/* SPDX-License-Identifier: Apache-2.0 */
/* region - one large zeroed block of memory from the operating system, in huge pages where it gives
 * them.
 *
 * Weights, KV pool and activations are such blocks: streaming weights from huge pages is faster
 * (tests/bench/README.md, model: read bandwidth; DESIGN section 8). The first writer of a page
 * places it. Threads: one owner. */
#ifndef QUIRE_ENGINE_MODEL_REGION_H
#define QUIRE_ENGINE_MODEL_REGION_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/team.h"
#include "kernels/device.h"

#define REGION_ALIGN 64u /* bytes; what region_cut keeps */

struct region {
    unsigned char *data; /* aligned to 2 MiB, [size] */
    size_t size;
    void *map;
    size_t map_size;
    bool is_file;                   /* pages of a file, read-only (load/packed_cache.h) */
    bool is_hugetlb;                /* pages of hugetlbfs */
    const struct device_link *link; /* not NULL: memory of a device; borrowed */
};
/* clang-format off */
#define REGION_INIT {NULL, 0, NULL, 0, false, false, NULL}
/* clang-format on */
/* `what` names it in the message. Errors: Q_NO_MEMORY. */
FALLIBLE region_init(struct region *r, size_t size, const char *what, struct q_err *e);
/* For what every step reads: the same in pages of hugetlbfs when the system has as many free. They
 * are taken here, by all threads, because a page that a limit withholds later would kill us. Not on
 * several NUMA nodes, where it matters more who writes a page first. */
FALLIBLE region_init_streamed(struct region *r, size_t size, const char *what, struct team *team,
                              struct q_err *e);
/* The same of a device's memory: zeroed when link->s comes to it, aligned as the device likes it.
 * The host reads and writes none of it. link NULL: region_init. */
FALLIBLE region_init_on(struct region *r, size_t size, const char *what,
                        const struct device_link *link, struct q_err *e);
void region_zero(const struct region *r);
void region_release(struct region *r);

/* What lies in memory of it, in bytes, and how much of that in huge pages (/proc/self/smaps; what
 * the system has mapped together with it counts too). All 0 when that cannot be read. */
struct region_pages {
    uint64_t resident, transparent, hugetlb, file_huge;
};
/* Reads /proc: microseconds to milliseconds, for start-up only. */
void region_pages(struct region_pages *out, const struct region *r);
#define REGION_TEXT_MAX 160
/* "2357.3 MiB, 2356.0 MiB of it in huge pages (transparent)"; why not, where the system says. */
void region_describe(char out[REGION_TEXT_MAX], const struct region *r);

/* Cutting a region into pieces, written once and run twice: with base NULL it measures, with base
 * set it gives out. */
struct region_cutter {
    unsigned char *base;
    size_t used; /* bytes so far; SIZE_MAX = overflow */
};
/* NULL while measuring. */
void *region_cut(struct region_cutter *c, size_t n, size_t size);

#endif
