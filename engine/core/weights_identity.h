/* SPDX-License-Identifier: Apache-2.0 */
/* weights_identity - which files the weights of a folder are, so that a change on disk is seen.
 *
 * A hash over name, size, time of change, inode and first bytes of every file with weights. Unlike
 * the fingerprint it differs between copies of the same weights, and it reads almost nothing.
 * Threads: reentrant. */
#ifndef QUIRE_ENGINE_CORE_WEIGHTS_IDENTITY_H
#define QUIRE_ENGINE_CORE_WEIGHTS_IDENTITY_H
#include "common/err.h"

#define WEIGHTS_IDENTITY_BYTES 32

/* path: a folder, or one file. Zero for a folder without weights. Errors: Q_IO. */
FALLIBLE weights_identity(unsigned char out[WEIGHTS_IDENTITY_BYTES], const char *path,
                          struct q_err *e);

#endif
