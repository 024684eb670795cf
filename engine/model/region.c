/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/region.h"
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE \
    ((size_t)2 << 20) /* bytes on x86-64 and most others; only alignment depends on it */

#define HUGE_SHIFT 21 /* of HUGE_PAGE */
#define MIB        1048576.0

/* Round up to huge pages. False: it overflows. */
static bool round_up(size_t *out, size_t size)
{
    bool too_large = __builtin_add_overflow(size, HUGE_PAGE - 1, out);
    *out = *out / HUGE_PAGE * HUGE_PAGE;
    return !too_large;
}

enum q_code region_init(struct region *r, size_t size, const char *what, struct q_err *e)
{
    size_t rounded, map_size;
    if (!round_up(&rounded, size) || __builtin_add_overflow(rounded, HUGE_PAGE, &map_size))
        return q_fail(e, Q_NO_MEMORY, "%s: its size overflows", what);
    /* no reserve: a KV pool may be larger than what is ever written of it */
    void *map = mmap(NULL, map_size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return q_fail(e, Q_NO_MEMORY, "%s: the system could not allocate %zu MiB", what,
                      size >> 20);
    uintptr_t start = ((uintptr_t)map + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    *r = (struct region){
        .data = (unsigned char *)start,
        .size = size,
        .map = map,
        .map_size = map_size,
    };
    if (size >= HUGE_PAGE)
        (void)madvise(r->data, rounded,
                      MADV_HUGEPAGE); /* a wish: small pages are slower, not wrong */
    return Q_OK;
}

/* ---- hugetlbfs ---- */

struct touch_job {
    unsigned char *data;
    size_t n_page;
    atomic_bool failed;
};

static void touch_run(void *arg, uint32_t ith, uint32_t nth)
{
    struct touch_job *j = arg;
    const size_t from = j->n_page * ith / nth, end = j->n_page * (ith + 1) / nth;
    if (from < end &&
        madvise(j->data + from * HUGE_PAGE, (end - from) * HUGE_PAGE, MADV_POPULATE_WRITE) != 0)
        atomic_store(&j->failed, true);
}

static bool init_hugetlb(struct region *r, size_t size, struct team *team)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | HUGE_SHIFT << MAP_HUGE_SHIFT;
    size_t rounded;
    if (size < HUGE_PAGE || !round_up(&rounded, size))
        return false;
    void *map = mmap(NULL, rounded, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (map == MAP_FAILED)
        return false;
    struct touch_job j = {.data = map, .n_page = rounded / HUGE_PAGE};
    if (team)
        team_run(team, touch_run, &j);
    else
        touch_run(&j, 0, 1);
    if (atomic_load(&j.failed)) {
        munmap(map, rounded);
        return false;
    }
    *r = (struct region){
        .data = map,
        .size = size,
        .map = map,
        .map_size = rounded,
        .is_hugetlb = true,
    };
    return true;
}

enum q_code region_init_streamed(struct region *r, size_t size, const char *what, struct team *team,
                                 struct q_err *e)
{
    const bool near = team_place_memory(team, NULL, 0, CPUS_FIRST_TOUCH) == 1;
    return near && init_hugetlb(r, size, team) ? Q_OK : region_init(r, size, what, e);
}

/* ---- what was got ---- */

/* Lines of smaps: "from-to rwxp …" begins a mapping, then "Key:   number kB". */
static void add_line(struct region_pages *out, const char *line)
{
    static const struct {
        const char *key;
        size_t offset;
    } keys[] = {
        {"Rss:", offsetof(struct region_pages, resident)},
        {"AnonHugePages:", offsetof(struct region_pages, transparent)},
        {"FilePmdMapped:", offsetof(struct region_pages, file_huge)},
        {"Private_Hugetlb:", offsetof(struct region_pages, hugetlb)},
    };
    uint64_t kib;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strncmp(line, keys[i].key, strlen(keys[i].key)) &&
            sscanf(line + strlen(keys[i].key), "%" SCNu64, &kib) == 1)
            *(uint64_t *)(void *)((char *)out + keys[i].offset) += kib * 1024;
}

void region_pages(struct region_pages *out, const struct region *r)
{
    char line[512];
    bool inside = false;
    const uintptr_t begin = (uintptr_t)r->data, end = begin + r->size;
    *out = (struct region_pages){0};
    FILE *f = fopen("/proc/self/smaps", "re");
    while (f && fgets(line, sizeof line, f)) {
        uintptr_t from, to;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
            inside = from < end && to > begin;
        else if (inside)
            add_line(out, line);
    }
    if (f)
        fclose(f);
    out->resident += out->hugetlb; /* Rss leaves them out */
}

/* "never" of "always madvise [never]": the system's choice, not a lack of memory. */
static const char *reason(void)
{
    char line[64] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    if (f && !fgets(line, sizeof line, f))
        *line = 0;
    if (f)
        fclose(f);
    return strstr(line, "[never]") ? "; /sys/kernel/mm/transparent_hugepage/enabled is never" : "";
}

void region_describe(char out[REGION_TEXT_MAX], const struct region *r)
{
    struct region_pages p;
    if (r->link) {
        snprintf(out, REGION_TEXT_MAX, "%.1f MiB of the device", (double)r->size / MIB);
        return;
    }
    region_pages(&p, r);
    const uint64_t huge = p.transparent + p.hugetlb + p.file_huge;
    const char *kind = p.hugetlb     ? " (hugetlbfs)"
                       : p.file_huge ? " (of the page cache)"
                       : huge        ? " (transparent)"
                                     : "";
    snprintf(out, REGION_TEXT_MAX, "%.1f MiB, %.1f MiB of it in huge pages%s%s",
             (double)r->size / MIB, (double)(huge < r->size ? huge : r->size) / MIB, kind,
             huge || r->is_file ? "" : reason());
}

enum q_code region_init_on(struct region *r, size_t size, const char *what,
                           const struct device_link *link, struct q_err *e)
{
    void *data = NULL;
    if (!link)
        return region_init(r, size, what, e);
    enum q_code rc = link->t->alloc(link->d, &data, size ? size : 1, what, e);
    if (rc)
        return rc;
    link->t->fill(link->s, data, 0, size);
    *r = (struct region){.data = data, .size = size, .map = data, .map_size = size, .link = link};
    return Q_OK;
}

void region_zero(const struct region *r)
{
    if (r->link)
        r->link->t->fill(r->link->s, r->data, 0, r->size);
    else
        memset(r->data, 0, r->size);
}

void region_release(struct region *r)
{
    if (r->link)
        r->link->t->release(r->link->d, r->map);
    else if (r->map)
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
