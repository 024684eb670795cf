/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/region.h"
#include <stdint.h>
#include <sys/mman.h>

#define HUGE_PAGE \
    ((size_t)2 << 20) /* bytes on x86-64 and most others; only alignment depends on it */

enum q_code region_init(struct region *r, size_t size, const char *what, struct q_err *e)
{
    size_t rounded, map_size;
    if (__builtin_add_overflow(size, HUGE_PAGE - 1, &rounded))
        return q_fail(e, Q_NO_MEMORY, "%s: its size overflows", what);
    rounded = rounded / HUGE_PAGE * HUGE_PAGE;
    if (__builtin_add_overflow(rounded, HUGE_PAGE, &map_size))
        return q_fail(e, Q_NO_MEMORY, "%s: its size overflows", what);
    /* no reserve: a KV pool may be larger than what is ever written of it */
    void *map = mmap(NULL, map_size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return q_fail(e, Q_NO_MEMORY, "%s: the system gave no %zu MiB", what, size >> 20);
    uintptr_t start = ((uintptr_t)map + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    *r = (struct region){(unsigned char *)start, size, map, map_size, false};
    if (size >= HUGE_PAGE)
        (void)madvise(r->data, rounded,
                      MADV_HUGEPAGE); /* a wish: small pages are slower, not wrong */
    return Q_OK;
}

void region_release(struct region *r)
{
    if (r->map)
        munmap(r->map, r->map_size);
    *r = (struct region)REGION_INIT;
}

void *region_cut(struct region_cutter *c, size_t n, size_t size)
{
    size_t bytes;
    size_t start = c->used;
    if (__builtin_mul_overflow(n, size, &bytes) ||
        __builtin_add_overflow(bytes, REGION_ALIGN - 1, &bytes) ||
        __builtin_add_overflow(start, bytes / REGION_ALIGN * REGION_ALIGN, &c->used)) {
        c->used = SIZE_MAX;
        return NULL;
    }
    return c->base ? c->base + start : NULL;
}
