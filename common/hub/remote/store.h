/* SPDX-License-Identifier: Apache-2.0 */
/* store - writing to the cache: locks, blobs, links, refs (layout: common/hub/cache.h).
 *
 * A blob is written under its lock, checked and renamed, so a blob that has its name is whole. A
 * small one is written to ETAG.incomplete, always the beginning of the content without holes, which
 * any program that knows the layout may continue. A large one is written in ranges, by several
 * connections, to ETAG.ranges.incomplete (blob_ranges.h); an ETAG.incomplete that is there goes on
 * as its beginning. Threads: one owner. */
#ifndef QUIRE_COMMON_HUB_REMOTE_STORE_H
#define QUIRE_COMMON_HUB_REMOTE_STORE_H
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/hub/cache.h"
#include "common/hub/remote/blob_ranges.h"
#include "common/hub/remote/blob_sum.h"

#define BLOB_IN_RANGES (2 * RANGE_BYTES) /* the smallest blob that is written so */

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

/* Bytes on the disk of what an earlier download left of a blob. */
uint64_t store_partial_bytes(const struct store *s, const char *etag);
/* Remove it: under the blob's lock. */
void store_drop_partial(const struct store *s, const char *etag);

/* A blob that is being written. */
struct blob {
    const struct store *store;
    char etag[CACHE_HASH_MAX + 1];
    int fd;            /* of the partial file; -1: closed */
    uint64_t size, at; /* expected (HEAD_NONE: unknown); bytes that are there */
    uint64_t resumed;  /* of them from an earlier download */
    struct blob_sum sum;
    struct blob_ranges ranges; /* n is 0: there are none, bytes come in their order */
};
/* clang-format off */
#define BLOB_INIT {.fd = -1}
/* clang-format on */
/* b: etag and size are set. What is there of an earlier download counts. Errors: Q_IO, Q_NO_SPACE,
 * Q_NO_MEMORY, Q_INTERNAL (no thread). b must stay where it is until blob_release. */
FALLIBLE blob_open(struct blob *b, const struct store *s, struct q_err *e);
/* Bytes that belong at `at`: where those end that are there, of the blob or of a range. Errors:
 * Q_CORRUPT (more than the blob has), Q_IO, Q_NO_MEMORY. */
FALLIBLE blob_write(struct blob *b, uint64_t at, const void *data, size_t n, struct q_err *e);
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
