/* SPDX-License-Identifier: Apache-2.0 */
/* The hub's etags are checksums (blob_sum.h). A small blob's sum is made while bytes arrive; what
 * an earlier download left is read once. A large one is written in ranges (blob_ranges.h), and a
 * thread reads it up to its first hole. Files are not synced: a power failure may leave a damaged
 * one, which `quire cache verify` finds. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/hub/remote/head.h"
#include "common/hub/remote/store.h"

static const char beginning[] = ".incomplete", in_ranges[] = ".ranges.incomplete";

static enum q_code partial_path(char *out, const struct store *s, const char *etag, const char *end,
                                struct q_err *e)
{
    char name[CACHE_HASH_MAX + sizeof in_ranges];
    snprintf(name, sizeof name, "%s%s", etag, end);
    return cache_join(out, s->repo, "blobs", name, e);
}

static enum q_code incomplete_path(char *out, const struct blob *b, struct q_err *e)
{
    return partial_path(out, b->store, b->etag, b->ranges.n ? in_ranges : beginning, e);
}

static struct file_open file_of(const struct blob *b)
{
    return (struct file_open){b->fd, b->etag};
}

uint64_t store_partial_bytes(const struct store *s, const char *etag)
{
    char path[PATH_MAX];
    struct stat st;
    uint64_t bytes = 0;
    if (!partial_path(path, s, etag, beginning, NULL) && stat(path, &st) == 0)
        bytes = (uint64_t)st.st_size;
    if (!partial_path(path, s, etag, in_ranges, NULL) && stat(path, &st) == 0)
        bytes += (uint64_t)st.st_blocks * 512;
    return bytes;
}

void store_drop_partial(const struct store *s, const char *etag)
{
    char path[PATH_MAX];
    if (!partial_path(path, s, etag, beginning, NULL))
        unlink(path);
    if (!partial_path(path, s, etag, in_ranges, NULL))
        unlink(path);
}

static enum q_code open_partial(struct blob *b, const char *path, struct q_err *e)
{
    b->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    return b->fd < 0 ? q_fail(e, Q_IO, "%s: %s", path, strerror(errno)) : Q_OK;
}

/* A beginning without holes goes on in ranges. */
static enum q_code open_ranges(struct blob *b, struct q_err *e)
{
    char path[PATH_MAX], old[PATH_MAX];
    enum q_code rc;
    if ((rc = partial_path(path, b->store, b->etag, in_ranges, e)) ||
        (rc = partial_path(old, b->store, b->etag, beginning, e)))
        return rc;
    if (access(path, F_OK) != 0)
        (void)rename(old, path); /* there may be none */
    if ((rc = open_partial(b, path, e)))
        return rc;
    const struct file_open f = file_of(b);
    if ((rc = blob_ranges_open(&b->ranges, &f, b->size, e)) ||
        (rc = blob_sum_follow(&b->sum, &f, e)))
        return rc;
    b->at = b->resumed = b->ranges.sum;
    return blob_sum_announce(&b->sum, blob_ranges_front(&b->ranges), e);
}

enum q_code blob_open(struct blob *b, const struct store *s, struct q_err *e)
{
    char path[PATH_MAX];
    struct stat st;
    b->store = s;
    enum q_code rc = blob_sum_begin(&b->sum, b->etag, b->size, e);
    if (rc)
        return rc;
    if (b->size != HEAD_NONE && b->size >= BLOB_IN_RANGES)
        return open_ranges(b, e);
    if ((rc = incomplete_path(path, b, e)) || (rc = open_partial(b, path, e)))
        return rc;
    if (fstat(b->fd, &st) != 0)
        return q_fail(e, Q_IO, "%s: %s", path, strerror(errno));
    b->at = (uint64_t)st.st_size;
    if (b->at && (b->size == HEAD_NONE || b->at > b->size))
        return blob_restart(b, e);
    b->resumed = b->at;
    const struct file_open f = {b->fd, path};
    return blob_sum_file(&b->sum, &f, b->at, e);
}

enum q_code blob_write(struct blob *b, uint64_t at, const void *data, size_t n, struct q_err *e)
{
    const struct file_open f = file_of(b);
    if (b->size != HEAD_NONE && n > b->size - at)
        return q_fail(e, Q_CORRUPT, "the server sends more than the %llu bytes that it announced",
                      (unsigned long long)b->size);
    enum q_code rc = file_write_at(&f, data, n, at, e);
    if (!rc && b->ranges.n && !(rc = blob_ranges_add(&b->ranges, &f, at, n, e)))
        rc = blob_sum_announce(&b->sum, blob_ranges_front(&b->ranges), e);
    else if (!rc)
        rc = blob_sum_add(&b->sum, data, n, e);
    b->at += rc ? 0 : n;
    return rc;
}

enum q_code blob_restart(struct blob *b, struct q_err *e)
{
    const struct file_open f = file_of(b);
    enum q_code rc;
    b->at = b->resumed = 0;
    if ((rc = blob_sum_begin(&b->sum, b->etag, b->size, e)))
        return rc;
    if (b->ranges.n)
        return (rc = blob_ranges_reset(&b->ranges, &f, e)) ? rc : blob_sum_follow(&b->sum, &f, e);
    if (ftruncate(b->fd, 0) != 0)
        return q_fail(e, Q_IO, "%s.incomplete: %s", b->etag, strerror(errno));
    return Q_OK;
}

static enum q_code check(struct blob *b, const char *what, const char *path, struct q_err *e)
{
    char sum[BLOB_SUM_DIGITS + 1];
    if (b->size != HEAD_NONE && b->at != b->size)
        return q_fail(e, Q_CORRUPT, "%s: has %llu bytes, expected %llu", what,
                      (unsigned long long)b->at, (unsigned long long)b->size);
    const enum q_code rc = blob_sum_join(&b->sum, b->at, e);
    if (rc || !b->sum.hash)
        return rc;
    if (!blob_sum_end(&b->sum, sum))
        return q_fail(e, Q_INTERNAL, "OpenSSL: no digest");
    if (!strcmp(sum, b->etag))
        return Q_OK;
    unlink(path);
    return q_fail(e, Q_CORRUPT,
                  "%s: wrong checksum: the hub announces %s, the content has %s; it was removed: "
                  "run the download again, and if it repeats, a proxy or mirror changes the file",
                  what, b->etag, sum);
}

enum q_code blob_finish(struct blob *b, const char *what, struct q_err *e)
{
    char path[PATH_MAX], blob[PATH_MAX];
    enum q_code rc;
    if ((rc = incomplete_path(path, b, e)) ||
        (rc = cache_join(blob, b->store->repo, "blobs", b->etag, e)) ||
        (rc = check(b, what, path, e)))
        return rc;
    const bool is_cut = b->ranges.n && ftruncate(b->fd, (off_t)b->size) != 0;
    const bool is_open = close(b->fd) != 0;
    b->fd = -1;
    if (is_cut || is_open || rename(path, blob) != 0)
        return q_fail(e, Q_IO, "%s: %s", blob, strerror(errno));
    store_drop_partial(b->store, b->etag); /* of another program that loads it in another way */
    return Q_OK;
}

void blob_release(struct blob *b)
{
    blob_sum_release(&b->sum); /* its thread reads the file */
    blob_ranges_release(&b->ranges);
    if (b->fd >= 0)
        close(b->fd);
    b->fd = -1;
}

enum q_code blob_verify(bool *known, const char *path, const char *etag, struct q_err *e)
{
    char text[BLOB_SUM_DIGITS + 1];
    struct stat st;
    struct blob_sum sum = {.hash = NULL};
    enum q_code rc = Q_OK;
    const struct file_open f = {open(path, O_RDONLY | O_CLOEXEC), path};
    *known = blob_sum_is_known(etag);
    if (f.fd < 0 || fstat(f.fd, &st) != 0)
        rc = q_fail(e, Q_IO, "%s: %s", path, strerror(errno));
    else if (!(rc = blob_sum_begin(&sum, etag, (uint64_t)st.st_size, e)))
        rc = blob_sum_file(&sum, &f, (uint64_t)st.st_size, e);
    if (!rc && sum.hash && !blob_sum_end(&sum, text))
        rc = q_fail(e, Q_INTERNAL, "OpenSSL: no digest");
    else if (!rc && sum.hash && strcmp(text, etag) != 0)
        rc = q_fail(e, Q_CORRUPT, "%s: wrong checksum: the content has %s", path, text);
    blob_sum_release(&sum);
    if (f.fd >= 0)
        close(f.fd);
    return rc;
}
