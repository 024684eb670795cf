/* SPDX-License-Identifier: Apache-2.0 */
/* download - detects a file that is not the model file of its name: a Git LFS or Xet pointer, an
 * HTML page, an error message of the hub, a GGUF file, an empty file. A parser would only report
 * such a file as malformed. Threads: reentrant. */
#ifndef QUIRE_COMMON_DOWNLOAD_H
#define QUIRE_COMMON_DOWNLOAD_H
#include <stddef.h>
#include "common/err.h"

/* Check from its first n bytes at `data` whether a file is the model file itself. `data` may be
 * NULL when n is 0. path: of the file, for the message. Errors: Q_CORRUPT (the actual kind of file,
 * and how to download it). */
FALLIBLE download_check(const void *data, size_t n, const char *path, struct q_err *e);
/* The same for a file that has not been read. Errors: also Q_NOT_FOUND, Q_IO. */
FALLIBLE download_check_file(const char *path, struct q_err *e);
/* Check that the path is not a link to a missing file: in a cache whose blobs were removed, or in a
 * git-annex repository before `git annex get`. Errors: Q_NOT_FOUND. */
FALLIBLE download_check_link(const char *path, struct q_err *e);

#endif
