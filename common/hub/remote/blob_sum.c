/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/remote/blob_sum.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "common/hub/remote/head.h"
#include "common/mem.h"

#define SHA256_DIGITS BLOB_SUM_DIGITS
#define SHA1_DIGITS   40
#define READ_BYTES    ((size_t)1 << 20)
#define ANNOUNCE      ((uint64_t)4 << 20) /* bytes at least, so that the thread wakes rarely */
#define FRONTS_MAX    (1u << 20)          /* of 4 MiB each: more than any file has */

/* NULL: the etag is no checksum that is known. */
static const EVP_MD *algorithm(const char *etag)
{
    const size_t n = strlen(etag);
    for (size_t i = 0; i < n; i++)
        if (!isdigit((unsigned char)etag[i]) && !(etag[i] >= 'a' && etag[i] <= 'f'))
            return NULL;
    return n == SHA256_DIGITS ? EVP_sha256() : n == SHA1_DIGITS ? EVP_sha1() : NULL;
}

bool blob_sum_is_known(const char *etag)
{
    return algorithm(etag) != NULL;
}

enum q_code blob_sum_begin(struct blob_sum *s, const char *etag, uint64_t size, struct q_err *e)
{
    char prefix[64];
    const EVP_MD *md = algorithm(etag);
    blob_sum_release(s);
    if (!md || (strlen(etag) == SHA1_DIGITS && size == HEAD_NONE))
        return Q_OK;
    int n = strlen(etag) == SHA1_DIGITS
                ? snprintf(prefix, sizeof prefix, "blob %llu", (unsigned long long)size) + 1
                : 0;
    s->hash = EVP_MD_CTX_new();
    if (!s->hash || !EVP_DigestInit_ex(s->hash, md, NULL) ||
        !EVP_DigestUpdate(s->hash, prefix, (size_t)n))
        return q_fail(e, Q_NO_MEMORY, "OpenSSL: out of memory");
    return Q_OK;
}

enum q_code blob_sum_add(struct blob_sum *s, const void *data, size_t n, struct q_err *e)
{
    return !s->hash || EVP_DigestUpdate(s->hash, data, n)
               ? Q_OK
               : q_fail(e, Q_INTERNAL, "OpenSSL: no digest");
}

/* Add the bytes of a file from s->at to `end`. */
static enum q_code add_file(struct blob_sum *s, const struct file_open *f, uint64_t end,
                            char *block, struct q_err *e)
{
    enum q_code rc = Q_OK;
    while (!rc && s->at < end && !atomic_load_explicit(&s->is_dropped, memory_order_relaxed)) {
        const size_t part = end - s->at < READ_BYTES ? (size_t)(end - s->at) : READ_BYTES;
        if (!(rc = file_read_at(f, block, part, s->at, e)))
            rc = blob_sum_add(s, block, part, e);
        s->at += part;
    }
    return rc;
}

enum q_code blob_sum_file(struct blob_sum *s, const struct file_open *f, uint64_t n,
                          struct q_err *e)
{
    char *block = s->hash ? q_alloc(READ_BYTES) : NULL;
    if (s->hash && !block)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", f->path);
    s->at = 0;
    enum q_code rc = s->hash ? add_file(s, f, n, block, e) : Q_OK;
    q_free(block);
    return rc;
}

/* ---- the thread ---- */

static void *read_on(void *ctx)
{
    struct blob_sum *s = ctx;
    const struct file_open f = {s->fd, "the downloaded file"};
    uint64_t front;
    char *block = q_alloc(READ_BYTES);
    if (!block)
        s->rc = q_fail(&s->error, Q_NO_MEMORY, "out of memory for the checksum");
    while (queue_pop(&s->fronts, &front, -1))
        if (!s->rc)
            s->rc = add_file(s, &f, front, block, &s->error);
    q_free(block);
    return NULL;
}

enum q_code blob_sum_follow(struct blob_sum *s, const struct file_open *f, struct q_err *e)
{
    if (!s->hash)
        return Q_OK;
    enum q_code rc = queue_init(&s->fronts, sizeof(uint64_t), FRONTS_MAX, false, e);
    if (rc)
        return rc;
    s->fd = f->fd;
    s->at = s->announced = 0;
    const int failed = pthread_create(&s->thread, NULL, read_on, s);
    if (failed)
        return q_fail(e, Q_INTERNAL, "no thread for the checksum: %s", strerror(failed));
    s->is_following = true;
    return Q_OK;
}

static enum q_code push(struct blob_sum *s, uint64_t front, struct q_err *e)
{
    s->announced = front;
    return queue_push(&s->fronts, &front, e);
}

enum q_code blob_sum_announce(struct blob_sum *s, uint64_t front, struct q_err *e)
{
    if (!s->is_following || front < s->announced + ANNOUNCE)
        return Q_OK;
    return push(s, front, e);
}

static void end_thread(struct blob_sum *s)
{
    if (!s->is_following)
        return;
    queue_close(&s->fronts);
    pthread_join(s->thread, NULL);
    s->is_following = false;
}

enum q_code blob_sum_join(struct blob_sum *s, uint64_t end, struct q_err *e)
{
    enum q_code rc = s->is_following && end > s->announced ? push(s, end, e) : Q_OK;
    end_thread(s);
    if (!rc && s->rc) {
        *e = s->error;
        rc = s->rc;
    }
    return rc;
}

bool blob_sum_end(struct blob_sum *s, char text[BLOB_SUM_DIGITS + 1])
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (!EVP_DigestFinal_ex(s->hash, sum, &n) || 2 * n > BLOB_SUM_DIGITS)
        return false;
    for (unsigned i = 0; i < n; i++)
        snprintf(text + (size_t)2 * i, 3, "%02x", sum[i]);
    return true;
}

void blob_sum_release(struct blob_sum *s)
{
    atomic_store_explicit(&s->is_dropped, true, memory_order_relaxed);
    end_thread(s);
    queue_release(&s->fronts);
    EVP_MD_CTX_free(s->hash);
    s->hash = NULL;
    s->rc = Q_OK;
    q_err_reset(&s->error);
    atomic_store_explicit(&s->is_dropped, false, memory_order_relaxed);
}
