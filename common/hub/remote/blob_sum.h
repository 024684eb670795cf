/* SPDX-License-Identifier: Apache-2.0 */
/* blob_sum - the checksum of a blob, by the kind of its etag: SHA-256 (64 digits) of files in LFS
 * and Xet, git's SHA-1 (40) of "blob SIZE\0" and the content for others.
 *
 * Bytes are added in their order, or a thread of the sum reads the file up to where it is whole, so
 * that a download does not wait for its checksum. Threads: one owner. */
#ifndef QUIRE_COMMON_HUB_REMOTE_BLOB_SUM_H
#define QUIRE_COMMON_HUB_REMOTE_BLOB_SUM_H
#include <openssl/evp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "common/file.h"
#include "common/queue.h"

#define BLOB_SUM_DIGITS 64 /* at most */

struct blob_sum {
    EVP_MD_CTX *hash; /* NULL: the etag is no checksum */
    /* of the thread, from blob_sum_follow until blob_sum_join */
    pthread_t thread;
    bool is_following;
    atomic_bool is_dropped; /* the rest need not be read */
    struct queue fronts;    /* uint64_t: the file is whole up to there */
    uint64_t announced, at; /* at: the thread's */
    int fd;
    enum q_code rc;
    struct q_err error;
};

/* A new sum, in place of the one that s has; s was zero once. size: bytes of the whole, HEAD_NONE:
 * unknown. Errors: Q_NO_MEMORY. */
FALLIBLE blob_sum_begin(struct blob_sum *s, const char *etag, uint64_t size, struct q_err *e);
void blob_sum_release(struct blob_sum *s);
/* Add bytes; the first n of a file. Errors: Q_IO, Q_NO_MEMORY, Q_INTERNAL (OpenSSL). */
FALLIBLE blob_sum_add(struct blob_sum *s, const void *data, size_t n, struct q_err *e);
FALLIBLE blob_sum_file(struct blob_sum *s, const struct file_open *f, uint64_t n, struct q_err *e);

/* From now on a thread reads f->fd, which stays open until blob_sum_join. Errors: Q_NO_MEMORY,
 * Q_INTERNAL (no thread). */
FALLIBLE blob_sum_follow(struct blob_sum *s, const struct file_open *f, struct q_err *e);
/* The file is whole up to there; what is announced never becomes less, and the thread may read it
 * later. Errors: Q_NO_MEMORY. */
FALLIBLE blob_sum_announce(struct blob_sum *s, uint64_t front, struct q_err *e);
/* The file is whole up to `end`: wait until all of it is added; the thread has ended. Errors: those
 * of blob_sum_file. */
FALLIBLE blob_sum_join(struct blob_sum *s, uint64_t end, struct q_err *e);

bool blob_sum_is_known(const char *etag); /* is it a checksum? */
/* text: hexadecimal digits. false: OpenSSL fails. */
bool blob_sum_end(struct blob_sum *s, char text[BLOB_SUM_DIGITS + 1]);

#endif
