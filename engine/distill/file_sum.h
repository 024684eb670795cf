/* SPDX-License-Identifier: Apache-2.0 */
/* file_sum - the checksum (XXH3, 64 bits) of bytes of an open file, read through a buffer. Threads:
 * reentrant. */
#ifndef QUIRE_ENGINE_DISTILL_FILE_SUM_H
#define QUIRE_ENGINE_DISTILL_FILE_SUM_H
#include "common/file.h"

/* Of the bytes from `at` to before `end`. Errors: Q_IO, Q_CORRUPT (the file ends before), both with
 * the path; Q_NO_MEMORY. */
FALLIBLE file_sum(uint64_t *sum, const struct file_open *f, uint64_t at, uint64_t end,
                  struct q_err *e);

#endif
