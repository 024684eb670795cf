/* SPDX-License-Identifier: Apache-2.0 */
/* file - whole files, mapped or read, with errors that carry path and reason.
 * Threads: reentrant; a mapping may be read by many threads. */
#ifndef QUIRE_COMMON_FILE_H
#define QUIRE_COMMON_FILE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"

struct mapping {               /* a read-only view of one file */
    const unsigned char *data; /* [size], NULL when empty */
    size_t size;               /* bytes */
};
/* clang-format off */
#define MAPPING_INIT {NULL, 0}
/* clang-format on */

struct file_stamp { /* differs when a file was written, replaced or moved */
    uint64_t size, inode;
    int64_t mtime_ns, ctime_ns;
};

/* Map a regular file read-only. Errors: Q_NOT_FOUND, Q_IO (path and errno text in the message). */
FALLIBLE mapping_open(struct mapping *m, const char *path, struct q_err *e);
/* As mapping_open, and return the file's stamp. */
FALLIBLE mapping_open_stamped(struct mapping *m, struct file_stamp *stamp, const char *path,
                              struct q_err *e);
/* False if stat fails. */
bool file_stamp(struct file_stamp *out, const char *path);
void mapping_release(struct mapping *m);
void mapping_move(struct mapping *dst, struct mapping *src);

/* Read a file of at most size_max bytes to the end of `out`. Errors: Q_NOT_FOUND, Q_IO,
 * Q_TOO_LARGE. */
FALLIBLE file_read(struct buf *out, const char *path, size_t size_max, struct q_err *e);
/* Replace the file in one step (write a temporary file, fsync, rename). mode as in open(2), e.g.
 * 0600. Errors: Q_IO, also for a device or a pipe, which is left as it is. */
FALLIBLE file_write(const char *path, const void *data, size_t n, unsigned mode, struct q_err *e);
/* Open a regular file for reading; *fd: the caller's, *size in bytes. Errors: Q_NOT_FOUND, Q_IO. */
FALLIBLE file_open_regular(int *fd, uint64_t *size, const char *path, struct q_err *e);
/* Bytes of an open file at a place. Errors: Q_IO (path and errno text), Q_CORRUPT (the file ends
 * before). */
struct file_open {
    int fd;
    const char *path; /* for messages */
};
FALLIBLE file_write_at(const struct file_open *f, const void *data, size_t n, uint64_t at,
                       struct q_err *e);
FALLIBLE file_read_at(const struct file_open *f, void *data, size_t n, uint64_t at,
                      struct q_err *e);
bool file_exists(const char *path);
bool dir_exists(const char *path);
/* Make a folder and those above it, where they do not exist. Errors: Q_IO, Q_TOO_LARGE. */
FALLIBLE dirs_make(const char *path, struct q_err *e);
/* out [PATH_MAX] = `below` in the user's cache folder: $XDG_CACHE_HOME/below, else
 * $HOME/.cache/below. False: neither is set to an absolute path. */
bool user_cache_dir(char *out, const char *below);
/* out = dir + "/" + name (no doubled slash). Errors: Q_TOO_LARGE when it does not fit `size` bytes.
 */
FALLIBLE path_join(char *out, size_t size, const char *dir, const char *name, struct q_err *e);

#endif
