/* SPDX-License-Identifier: Apache-2.0 */
/* store - writing to the cache: locks, blobs, links, refs (layout: common/hub/cache.h).
 *
 * A blob is written to ETAG.incomplete under its lock, checked and renamed, so a blob that has its
 * name is whole. ETAG.incomplete is always the beginning of the content without holes, which any
 * program that knows the layout may continue. Threads: one owner. */
#ifndef QUIRE_COMMON_HUB_REMOTE_STORE_H
#define QUIRE_COMMON_HUB_REMOTE_STORE_H
#include <limits.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/hub/cache.h"

struct store {
    char repo[PATH_MAX], locks[PATH_MAX]; /* CACHE/models--…, CACHE/.locks/models--… */
};

/* Name the folders of a valid id. Errors: those of cache_repo_dir. */
FALLIBLE store_init(struct store *s, const char *id, struct q_err *e);
/* Make them. Errors: Q_IO. */
FALLIBLE store_make(const struct store *s, struct q_err *e);
/* out: [PATH_MAX]. repo/snapshots/COMMIT/FILE. Errors: Q_TOO_LARGE. */
FALLIBLE store_pointer(char *out, const struct store *s, const char *commit, const char *file,
                       struct q_err *e);
bool store_has(const struct store *s, const char *commit, const char *file);
bool store_has_blob(const struct store *s, const char *etag);
/* Link the snapshot's file to its blob; where the file system has no links the blob is moved.
 * Errors: Q_IO. */
FALLIBLE store_link(const struct store *s, const char *commit, const char *file, const char *etag,
                    struct q_err *e);
/* Errors: Q_IO. */
FALLIBLE store_write_ref(const struct store *s, const char *revision, const char *commit,
                         struct q_err *e);
/* Note that the commit has no such file. Errors are ignored: the note only saves a request. */
void store_note_absent(const struct store *s, const char *commit, const char *file);
/* Errors: Q_NO_SPACE, with the folder and both sizes. */
FALLIBLE store_check_space(const struct store *s, uint64_t bytes, struct q_err *e);

/* *fd: the lock of the blob, or -1 if another process holds it. close(2) releases it. Errors:
 * Q_IO. */
FALLIBLE store_try_lock(int *fd, const struct store *s, const char *etag, struct q_err *e);

/* A blob that is being written. */
struct blob {
    const struct store *store;
    char etag[CACHE_HASH_MAX + 1];
    int fd;            /* of ETAG.incomplete; -1: closed */
    uint64_t size, at; /* expected (HEAD_NONE: unknown); bytes that are there */
    uint64_t resumed;  /* of them from an earlier download */
    EVP_MD_CTX *hash;  /* NULL: the etag is no checksum */
};
/* clang-format off */
#define BLOB_INIT {.fd = -1}
/* clang-format on */
/* b: etag and size are set. Opens ETAG.incomplete, whose content counts as the beginning. Errors:
 * Q_IO, Q_NO_MEMORY. */
FALLIBLE blob_open(struct blob *b, const struct store *s, struct q_err *e);
FALLIBLE blob_write(struct blob *b, const void *data, size_t n, struct q_err *e);
/* Drop what is there. Errors: Q_IO. */
FALLIBLE blob_restart(struct blob *b, struct q_err *e);
/* Check size and checksum, and give the blob its name. what: file, for messages. Errors: Q_CORRUPT
 * (the content is removed), Q_IO. */
FALLIBLE blob_finish(struct blob *b, const char *what, struct q_err *e);
void blob_release(struct blob *b); /* closes; what is there stays for the next download */

/* The checksum of a file by the kind of its etag: SHA-256 (64 digits) or git's SHA-1 (40), for
 * `quire cache verify`. *known: the etag is one. Errors: Q_IO, Q_CORRUPT. */
FALLIBLE blob_verify(bool *known, const char *path, const char *etag, struct q_err *e);

#endif
