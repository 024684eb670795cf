/* SPDX-License-Identifier: Apache-2.0 */
/* download - recognises what a clone, a download or a person leaves in the place of a model's
 * file: a pointer of Git LFS or Xet, a page of HTML, the hub's refusal, a GGUF file, nothing at
 * all. Their readers would call such a file malformed, which is true and of no help. Threads:
 * reentrant. */
#ifndef QUIRE_COMMON_DOWNLOAD_H
#define QUIRE_COMMON_DOWNLOAD_H
#include <stddef.h>
#include "common/err.h"

/* Are the n bytes at `data` the file itself, as far as its beginning shows? `data` may be NULL when
 * n is 0. path: of the file, for the message. Errors: Q_CORRUPT (what the file is instead, and how
 * to get it). */
FALLIBLE download_check(const void *data, size_t n, const char *path, struct q_err *e);
/* The same for a file that nobody has read yet. Errors: also Q_NOT_FOUND, Q_IO. */
FALLIBLE download_check_file(const char *path, struct q_err *e);
/* Is there a link in the file's place that leads to nothing: of a cache whose blobs were removed,
 * or of git-annex before its `get`? Errors: Q_NOT_FOUND. */
FALLIBLE download_check_link(const char *path, struct q_err *e);

#endif
