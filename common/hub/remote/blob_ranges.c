/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/remote/blob_ranges.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/size_text.h"

#define RANGES_MAX ((uint64_t)1 << 20) /* 32 TiB */
#define HEAD_WORDS 2u                  /* before the numbers of ranges */

static const char magic[] = "QRANGES1";

uint64_t blob_ranges_begin(uint32_t i)
{
    return i * RANGE_BYTES;
}

uint64_t blob_ranges_end(const struct blob_ranges *r, uint32_t i)
{
    const uint64_t end = blob_ranges_begin(i) + RANGE_BYTES;
    return end < r->size ? end : r->size;
}

static bool is_whole(const struct blob_ranges *r, uint32_t i)
{
    return r->there[i] == blob_ranges_end(r, i) - blob_ranges_begin(i);
}

static void advance(struct blob_ranges *r)
{
    while (r->front < r->n && is_whole(r, r->front))
        r->front++;
}

static uint64_t file_bytes(const struct blob_ranges *r)
{
    return r->size + (HEAD_WORDS + r->n) * sizeof(uint64_t);
}

static enum q_code write_end(const struct blob_ranges *r, const struct file_open *f,
                             struct q_err *e)
{
    uint64_t head[HEAD_WORDS] = {0, RANGE_BYTES};
    memcpy(head, magic, sizeof *head);
    enum q_code rc = file_write_at(f, r->there, r->n * sizeof *r->there, r->size + sizeof head, e);
    return rc ? rc : file_write_at(f, head, sizeof head, r->size, e);
}

/* The numbers of an earlier download. *known: the file has them. */
static enum q_code read_end(struct blob_ranges *r, const struct file_open *f, bool *known,
                            struct q_err *e)
{
    uint64_t head[HEAD_WORDS];
    enum q_code rc;
    if ((rc = file_read_at(f, head, sizeof head, r->size, e)) ||
        (rc = file_read_at(f, r->there, r->n * sizeof *r->there, r->size + sizeof head, e)))
        return rc;
    *known = memcmp(head, magic, sizeof *head) == 0 && head[1] == RANGE_BYTES;
    for (uint32_t i = 0; i < r->n && *known; i++)
        *known = r->there[i] <= blob_ranges_end(r, i) - blob_ranges_begin(i);
    return Q_OK;
}

/* Bytes from the beginning on. */
static void set_beginning(struct blob_ranges *r, uint64_t n)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const uint64_t begin = blob_ranges_begin(i), end = blob_ranges_end(r, i);
        r->there[i] = n <= begin ? 0 : (n < end ? n : end) - begin;
    }
}

/* Where the file system cannot, the write that finds no space tells. */
static enum q_code reserve(const struct blob_ranges *r, const struct file_open *f, struct q_err *e)
{
    char size[SIZE_TEXT_MAX];
    if (fallocate(f->fd, 0, 0, (off_t)file_bytes(r)) == 0 || errno != ENOSPC)
        return Q_OK;
    return q_fail(e, Q_NO_SPACE,
                  "%s: no space for its %s; free some, or set another cache with --download-dir "
                  "or HF_HUB_CACHE",
                  f->path, size_text(size, (double)r->size));
}

enum q_code blob_ranges_open(struct blob_ranges *r, const struct file_open *f, uint64_t size,
                             struct q_err *e)
{
    struct stat st;
    bool known = false;
    enum q_code rc = Q_OK;
    if (size > RANGES_MAX * RANGE_BYTES)
        return q_fail(e, Q_TOO_LARGE, "%s: has %llu bytes, expected at most %llu", f->path,
                      (unsigned long long)size, (unsigned long long)(RANGES_MAX * RANGE_BYTES));
    *r =
        (struct blob_ranges){.size = size, .n = (uint32_t)((size + RANGE_BYTES - 1) / RANGE_BYTES)};
    r->there = q_calloc(r->n, sizeof *r->there);
    r->taken = q_calloc(r->n, sizeof *r->taken);
    if (!r->there || !r->taken)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory for %u ranges", f->path, r->n);
    if (fstat(f->fd, &st) != 0)
        return q_fail(e, Q_IO, "%s: %s", f->path, strerror(errno));
    const uint64_t n = (uint64_t)st.st_size;
    if (n == file_bytes(r) && (rc = read_end(r, f, &known, e)))
        return rc;
    if (!known)
        set_beginning(r, n <= size ? n : 0);
    if (!known && ftruncate(f->fd, (off_t)(n <= size ? n : 0)) != 0)
        return q_fail(e, Q_IO, "%s: %s", f->path, strerror(errno));
    for (uint32_t i = 0; i < r->n; i++)
        r->sum += r->there[i];
    advance(r);
    return known || (rc = reserve(r, f, e)) ? rc : write_end(r, f, e);
}

void blob_ranges_release(struct blob_ranges *r)
{
    q_free(r->there);
    q_free(r->taken);
    *r = (struct blob_ranges)BLOB_RANGES_INIT;
}

enum q_code blob_ranges_reset(struct blob_ranges *r, const struct file_open *f, struct q_err *e)
{
    set_beginning(r, 0);
    r->sum = 0;
    r->front = 0;
    return write_end(r, f, e);
}

static uint32_t find_free(const struct blob_ranges *r)
{
    for (uint32_t i = r->front; i < r->n; i++)
        if (!r->taken[i] && !is_whole(r, i))
            return i;
    return RANGE_NONE;
}

bool blob_ranges_is_free(const struct blob_ranges *r)
{
    return find_free(r) != RANGE_NONE;
}

uint32_t blob_ranges_take(struct blob_ranges *r)
{
    const uint32_t i = find_free(r);
    if (i != RANGE_NONE)
        r->taken[i] = true;
    return i;
}

void blob_ranges_give_back(struct blob_ranges *r, uint32_t i)
{
    r->taken[i] = false;
}

enum q_code blob_ranges_add(struct blob_ranges *r, const struct file_open *f, uint64_t at,
                            uint64_t n, struct q_err *e)
{
    while (n > 0) {
        const uint32_t i = (uint32_t)(at / RANGE_BYTES);
        const uint64_t left = blob_ranges_end(r, i) - at, part = n < left ? n : left;
        Q_ASSERT(i < r->n && blob_ranges_begin(i) + r->there[i] == at);
        r->there[i] += part;
        r->sum += part;
        const enum q_code rc = file_write_at(f, &r->there[i], sizeof r->there[i],
                                             r->size + (HEAD_WORDS + i) * sizeof(uint64_t), e);
        if (rc)
            return rc;
        at += part;
        n -= part;
    }
    advance(r);
    return Q_OK;
}

uint64_t blob_ranges_front(const struct blob_ranges *r)
{
    return r->front == r->n ? r->size : blob_ranges_begin(r->front) + r->there[r->front];
}
