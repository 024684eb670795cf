/* SPDX-License-Identifier: Apache-2.0 */
/* data_file - is a path a file of training data? Asked before it is opened to be read: a FIFO would
 * wait for its writer, and a compressed file would be thousands of broken lines. Threads:
 * reentrant. */
#ifndef QUIRE_ENGINE_DISTILL_DATA_FILE_H
#define QUIRE_ENGINE_DISTILL_DATA_FILE_H
#include "common/err.h"

/* flag: stands before the path in messages, "--data" or "". Errors: Q_NOT_FOUND, Q_INVALID (a
 * folder, a FIFO, a device; a file that begins as a compressed or binary format or UTF-16 does),
 * Q_IO. */
FALLIBLE data_file_check(const char *flag, const char *path, struct q_err *e);

#endif
