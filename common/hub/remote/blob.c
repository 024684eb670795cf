/* SPDX-License-Identifier: Apache-2.0 */
/* The hub's etags are checksums: SHA-256 of files in LFS and Xet, and git's SHA-1 of
 * "blob SIZE\0" and the content for the others. The sum is made while bytes arrive; what an earlier
 * download left is read once. Files are not synced: a power failure may leave a damaged one, which
 * `quire cache verify` finds. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/file.h"
#include "common/hub/remote/head.h"
#include "common/hub/remote/store.h"
#include "common/mem.h"

#define SHA256_DIGITS 64
#define SHA1_DIGITS   40
#define READ_BYTES    ((size_t)1 << 20)

/* NULL: the etag is no checksum that is known. */
static const EVP_MD *algorithm(const char *etag)
{
    const size_t n = strlen(etag);
    for (size_t i = 0; i < n; i++)
        if (!isdigit((unsigned char)etag[i]) && !(etag[i] >= 'a' && etag[i] <= 'f'))
            return NULL;
    return n == SHA256_DIGITS ? EVP_sha256() : n == SHA1_DIGITS ? EVP_sha1() : NULL;
}

/* *hash: the sum of a file of `size` bytes that begins; NULL if there is none. */
static enum q_code hash_begin(EVP_MD_CTX **hash, const char *etag, uint64_t size, struct q_err *e)
{
    char prefix[64];
    const EVP_MD *md = algorithm(etag);
    EVP_MD_CTX_free(*hash);
    *hash = NULL;
    if (!md || (strlen(etag) == SHA1_DIGITS && size == HEAD_NONE))
        return Q_OK;
    int n = strlen(etag) == SHA1_DIGITS
                ? snprintf(prefix, sizeof prefix, "blob %llu", (unsigned long long)size) + 1
                : 0;
    *hash = EVP_MD_CTX_new();
    if (!*hash || !EVP_DigestInit_ex(*hash, md, NULL) ||
        !EVP_DigestUpdate(*hash, prefix, (size_t)n))
        return q_fail(e, Q_NO_MEMORY, "OpenSSL: out of memory");
    return Q_OK;
}

static enum q_code hash_add(EVP_MD_CTX *hash, const void *data, size_t n, struct q_err *e)
{
    return !hash || EVP_DigestUpdate(hash, data, n) ? Q_OK
                                                    : q_fail(e, Q_INTERNAL, "OpenSSL: no digest");
}

/* Add `n` bytes of a file from its beginning. */
static enum q_code hash_file(EVP_MD_CTX *hash, const struct file_open *f, uint64_t n,
                             struct q_err *e)
{
    enum q_code rc = Q_OK;
    char *block = hash ? q_alloc(READ_BYTES) : NULL;
    if (hash && !block)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", f->path);
    for (uint64_t at = 0; hash && !rc && at < n;) {
        const size_t part = n - at < READ_BYTES ? (size_t)(n - at) : READ_BYTES;
        if (!(rc = file_read_at(f, block, part, at, e)))
            rc = hash_add(hash, block, part, e);
        at += part;
    }
    q_free(block);
    return rc;
}

/* text: the sum in hexadecimal digits. */
static bool hash_end(EVP_MD_CTX *hash, char text[SHA256_DIGITS + 1])
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (!EVP_DigestFinal_ex(hash, sum, &n) || 2 * n > SHA256_DIGITS)
        return false;
    for (unsigned i = 0; i < n; i++)
        snprintf(text + (size_t)2 * i, 3, "%02x", sum[i]);
    return true;
}

static enum q_code incomplete_path(char *out, const struct blob *b, struct q_err *e)
{
    char name[CACHE_HASH_MAX + sizeof ".incomplete"];
    snprintf(name, sizeof name, "%s.incomplete", b->etag);
    return cache_join(out, b->store->repo, "blobs", name, e);
}

enum q_code blob_open(struct blob *b, const struct store *s, struct q_err *e)
{
    char path[PATH_MAX];
    struct stat st;
    b->store = s;
    enum q_code rc = incomplete_path(path, b, e);
    if (rc || (rc = hash_begin(&b->hash, b->etag, b->size, e)))
        return rc;
    b->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (b->fd < 0 || fstat(b->fd, &st) != 0)
        return q_fail(e, Q_IO, "%s: %s", path, strerror(errno));
    b->at = (uint64_t)st.st_size;
    if (b->at && (b->size == HEAD_NONE || b->at > b->size))
        return blob_restart(b, e);
    b->resumed = b->at;
    const struct file_open f = {b->fd, path};
    return hash_file(b->hash, &f, b->at, e);
}

enum q_code blob_write(struct blob *b, const void *data, size_t n, struct q_err *e)
{
    const struct file_open f = {b->fd, b->etag};
    if (b->size != HEAD_NONE && n > b->size - b->at)
        return q_fail(e, Q_CORRUPT, "the server sends more than the %llu bytes that it announced",
                      (unsigned long long)b->size);
    enum q_code rc = file_write_at(&f, data, n, b->at, e);
    if (rc || (rc = hash_add(b->hash, data, n, e)))
        return rc;
    b->at += n;
    return Q_OK;
}

enum q_code blob_restart(struct blob *b, struct q_err *e)
{
    b->at = b->resumed = 0;
    if (ftruncate(b->fd, 0) != 0)
        return q_fail(e, Q_IO, "%s.incomplete: %s", b->etag, strerror(errno));
    return hash_begin(&b->hash, b->etag, b->size, e);
}

static enum q_code check(struct blob *b, const char *what, const char *path, struct q_err *e)
{
    char sum[SHA256_DIGITS + 1];
    if (b->size != HEAD_NONE && b->at != b->size)
        return q_fail(e, Q_CORRUPT, "%s: has %llu bytes, expected %llu", what,
                      (unsigned long long)b->at, (unsigned long long)b->size);
    if (!b->hash)
        return Q_OK;
    if (!hash_end(b->hash, sum))
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
    const int closed = close(b->fd);
    b->fd = -1;
    if (closed != 0 || rename(path, blob) != 0)
        return q_fail(e, Q_IO, "%s: %s", blob, strerror(errno));
    return Q_OK;
}

void blob_release(struct blob *b)
{
    if (b->fd >= 0)
        close(b->fd);
    b->fd = -1;
    EVP_MD_CTX_free(b->hash);
    b->hash = NULL;
}

enum q_code blob_verify(bool *known, const char *path, const char *etag, struct q_err *e)
{
    char sum[SHA256_DIGITS + 1];
    struct stat st;
    EVP_MD_CTX *hash = NULL;
    enum q_code rc = Q_OK;
    const struct file_open f = {open(path, O_RDONLY | O_CLOEXEC), path};
    *known = algorithm(etag) != NULL;
    if (f.fd < 0 || fstat(f.fd, &st) != 0)
        rc = q_fail(e, Q_IO, "%s: %s", path, strerror(errno));
    else if (!(rc = hash_begin(&hash, etag, (uint64_t)st.st_size, e)))
        rc = hash_file(hash, &f, (uint64_t)st.st_size, e);
    if (!rc && hash && !hash_end(hash, sum))
        rc = q_fail(e, Q_INTERNAL, "OpenSSL: no digest");
    else if (!rc && hash && strcmp(sum, etag) != 0)
        rc = q_fail(e, Q_CORRUPT, "%s: wrong checksum: the content has %s", path, sum);
    EVP_MD_CTX_free(hash);
    if (f.fd >= 0)
        close(f.fd);
    return rc;
}
