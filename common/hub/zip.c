/* SPDX-License-Identifier: Apache-2.0 */
/* Why not libzip: it hands out copies of an entry's bytes and does not say where they lie in the
 * file, and weights are to be mapped in place. What is needed of the format is its directory. */
#include "common/hub/zip.h"
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

#define LOCAL_SIGNATURE     0x04034b50u
#define CENTRAL_SIGNATURE   0x02014b50u
#define END_SIGNATURE       0x06054b50u
#define END64_SIGNATURE     0x06064b50u
#define LOCATOR64_SIGNATURE 0x07064b50u

#define LOCAL_BYTES     30u
#define CENTRAL_BYTES   46u
#define END_BYTES       22u
#define END64_BYTES     56u
#define LOCATOR64_BYTES 20u
#define COMMENT_MAX     65535u /* bytes behind the end record */
#define EXTRA_ZIP64     1u
#define FLAG_ENCRYPTED  1u
#define METHOD_STORED   0u
#define IN_ZIP64_16     0xffffu /* the number is in the zip64 record */
#define IN_ZIP64_32     0xffffffffu
#define NAME_SHOWN      60

struct directory {
    uint64_t start, n_bytes, n;
};

static uint64_t read_le(const unsigned char *p, uint32_t n)
{
    uint64_t v = 0;
    while (n-- > 0)
        v = v << 8 | p[n];
    return v;
}

static enum q_code bad(const struct zip *z, const char *reason, struct q_err *e)
{
    return q_fail(e, Q_CORRUPT, "%s: not a valid zip archive: %s", z->path, reason);
}

bool zip_is(const void *data, size_t n)
{
    return n >= 4 && read_le(data, 4) == LOCAL_SIGNATURE;
}

/* ---- the end of the archive ---- */

/* The end record is the last one whose comment ends with the file. */
static bool find_end(uint64_t *at, const struct zip *z)
{
    if (z->size < END_BYTES)
        return false;
    const uint64_t last = z->size - END_BYTES;
    for (uint64_t i = 0; i <= last && i <= COMMENT_MAX; i++) {
        const unsigned char *p = z->data + (last - i);
        if (read_le(p, 4) == END_SIGNATURE && read_le(p + 20, 2) == i) {
            *at = last - i;
            return true;
        }
    }
    return false;
}

/* The zip64 end record, when a locator is in front of the end record. */
static enum q_code read_end64(struct directory *d, const struct zip *z, uint64_t end_at,
                              struct q_err *e)
{
    if (end_at < LOCATOR64_BYTES)
        return Q_OK;
    const unsigned char *locator = z->data + end_at - LOCATOR64_BYTES;
    if (read_le(locator, 4) != LOCATOR64_SIGNATURE)
        return Q_OK;
    const uint64_t at = read_le(locator + 8, 8), room = end_at - LOCATOR64_BYTES;
    if (room < END64_BYTES || at > room - END64_BYTES)
        return bad(z, "the zip64 end record is outside of the file", e);
    const unsigned char *p = z->data + at;
    if (read_le(p, 4) != END64_SIGNATURE)
        return bad(z, "the zip64 end record has another signature", e);
    if (read_le(p + 16, 4) || read_le(p + 20, 4))
        return q_fail(e, Q_UNSUPPORTED, "%s: a zip archive on several disks", z->path);
    *d = (struct directory){
        .start = read_le(p + 48, 8),
        .n_bytes = read_le(p + 40, 8),
        .n = read_le(p + 32, 8),
    };
    return Q_OK;
}

static enum q_code read_end(struct directory *d, const struct zip *z, struct q_err *e)
{
    uint64_t at = 0;
    if (!find_end(&at, z))
        return bad(z, "it has no end record: the file is truncated", e);
    const unsigned char *p = z->data + at;
    const uint64_t disk = read_le(p + 4, 2);
    if (disk && disk != IN_ZIP64_16)
        return q_fail(e, Q_UNSUPPORTED, "%s: a zip archive on several disks", z->path);
    *d = (struct directory){
        .start = read_le(p + 16, 4),
        .n_bytes = read_le(p + 12, 4),
        .n = read_le(p + 10, 2),
    };
    const enum q_code rc = read_end64(d, z, at, e);
    if (rc)
        return rc;
    if (d->n_bytes > at || d->start > at - d->n_bytes)
        return bad(z, "its directory is outside of the file", e);
    if (d->n > d->n_bytes / CENTRAL_BYTES)
        return bad(z, "its directory is shorter than its number of entries", e);
    return Q_OK;
}

/* ---- the directory ---- */

/* Sizes and offset that do not fit 32 bits: in this order, as many as are marked. */
static bool read_extra64(struct zip_entry *entry, const unsigned char *extra, uint64_t n)
{
    uint64_t *const numbers[] = {&entry->n_bytes, &entry->n_stored, &entry->header};
    uint32_t n_marked = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        n_marked += *numbers[i] == IN_ZIP64_32;
    if (!n_marked)
        return true;
    while (n >= 4) {
        const uint64_t kind = read_le(extra, 2), size = read_le(extra + 2, 2);
        if (size > n - 4)
            return false;
        if (kind != EXTRA_ZIP64) {
            extra += 4 + size;
            n -= 4 + size;
            continue;
        }
        const unsigned char *p = extra + 4, *end = p + size;
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
            if (*numbers[i] != IN_ZIP64_32)
                continue;
            if (end - p < 8)
                return false;
            *numbers[i] = read_le(p, 8);
            p += 8;
        }
        return true;
    }
    return false;
}

/* The entry at *at, which moves behind it. */
static enum q_code read_central(struct zip_entry *out, const struct zip *z, uint64_t *at,
                                uint64_t end, struct q_err *e)
{
    const unsigned char *p = z->data + *at;
    if (end - *at < CENTRAL_BYTES || read_le(p, 4) != CENTRAL_SIGNATURE)
        return bad(z, "an entry of its directory has another signature", e);
    const uint64_t n_name = read_le(p + 28, 2), n_extra = read_le(p + 30, 2);
    const uint64_t n_all = CENTRAL_BYTES + n_name + n_extra + read_le(p + 32, 2);
    if (n_all > end - *at)
        return bad(z, "an entry ends beyond its directory", e);
    *out = (struct zip_entry){
        .name = (const char *)p + CENTRAL_BYTES,
        .n_name = (uint32_t)n_name,
        .flags = (uint16_t)read_le(p + 8, 2),
        .method = (uint16_t)read_le(p + 10, 2),
        .n_stored = read_le(p + 20, 4),
        .n_bytes = read_le(p + 24, 4),
        .header = read_le(p + 42, 4),
    };
    if (!read_extra64(out, p + CENTRAL_BYTES + n_name, n_extra))
        return bad(z, "the zip64 numbers of an entry are missing", e);
    *at += n_all;
    return Q_OK;
}

static int compare_names(const struct zip_entry *a, const char *name, size_t n_name)
{
    const size_t n = a->n_name < n_name ? a->n_name : n_name;
    const int order = n ? memcmp(a->name, name, n) : 0;
    return order ? order : (a->n_name > n_name) - (a->n_name < n_name);
}

static int by_name(const void *a, const void *b)
{
    const struct zip_entry *y = b;
    return compare_names(a, y->name, y->n_name);
}

static enum q_code read_directory(struct zip *z, const struct directory *d, struct q_err *e)
{
    uint64_t at = d->start;
    enum q_code rc = q_grow(&z->items, &z->cap, d->n, sizeof *z->items, ZIP_ENTRIES_MAX, e);
    for (; z->n < d->n && !rc; z->n += !rc)
        rc = read_central(&z->items[z->n], z, &at, d->start + d->n_bytes, e);
    if (rc || !z->n)
        return rc;
    qsort(z->items, z->n, sizeof *z->items, by_name);
    for (size_t i = 0; i + 1 < z->n; i++)
        if (by_name(&z->items[i], &z->items[i + 1]) == 0)
            return bad(z, "two entries have the same name", e);
    return Q_OK;
}

enum q_code zip_open(struct zip *z, const void *data, size_t size, const char *path,
                     struct q_err *e)
{
    struct directory d = {0};
    *z = (struct zip){.data = data, .size = size, .path = path};
    enum q_code rc = read_end(&d, z, e);
    if (!rc)
        rc = read_directory(z, &d, e);
    z->end = d.start;
    if (rc)
        zip_release(z);
    return rc;
}

void zip_release(struct zip *z)
{
    q_free(z->items);
    *z = (struct zip){0};
}

const struct zip_entry *zip_find(const struct zip *z, const char *name, size_t n_name)
{
    size_t low = 0, high = z->n;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        const int order = compare_names(&z->items[mid], name, n_name);
        if (order == 0)
            return &z->items[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

enum q_code zip_bytes(struct zip_bytes *out, const struct zip *z, const struct zip_entry *entry,
                      struct q_err *e)
{
    const int n_shown = entry->n_name < NAME_SHOWN ? (int)entry->n_name : NAME_SHOWN;
    if (entry->flags & FLAG_ENCRYPTED || entry->method != METHOD_STORED)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: the entry %.*s is %s; torch.save stores entries as they are, and so "
                      "they are read",
                      z->path, n_shown, entry->name,
                      entry->flags & FLAG_ENCRYPTED ? "encrypted" : "compressed");
    if (entry->n_stored != entry->n_bytes)
        return bad(z, "a stored entry has two sizes", e);
    if (z->end < LOCAL_BYTES || entry->header > z->end - LOCAL_BYTES)
        return bad(z, "an entry lies outside of the file", e);
    const unsigned char *p = z->data + entry->header;
    if (read_le(p, 4) != LOCAL_SIGNATURE)
        return bad(z, "the header of an entry has another signature", e);
    const uint64_t start = entry->header + LOCAL_BYTES + read_le(p + 26, 2) + read_le(p + 28, 2);
    if (start > z->end || entry->n_bytes > z->end - start)
        return q_fail(e, Q_CORRUPT, "%s: the entry %.*s ends outside of the file: it is truncated",
                      z->path, n_shown, entry->name);
    *out = (struct zip_bytes){z->data + start, entry->n_bytes};
    return Q_OK;
}
