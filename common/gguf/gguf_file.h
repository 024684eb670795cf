/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_file - a GGUF file on disk, and the names of the files that a model is split into.
 *
 * A split model is NAME-00001-of-0000N.gguf and so on; the first file has all metadata, each has
 * its own tensors. Threads: reentrant; an open file is only read. */
#ifndef QUIRE_COMMON_GGUF_GGUF_FILE_H
#define QUIRE_COMMON_GGUF_GGUF_FILE_H
#include <limits.h>
#include "common/file.h"
#include "common/gguf/gguf.h"

#define GGUF_SPLITS_MAX 4096u

struct gguf_file {
    struct mapping map;
    struct gguf g;
};
/* clang-format off */
#define GGUF_FILE_INIT {MAPPING_INIT, GGUF_INIT}
/* clang-format on */

/* path is borrowed. Errors: Q_NOT_FOUND, Q_IO, those of download_check and gguf_read. `f` is safe
 * to release after an error too. */
FALLIBLE gguf_file_open(struct gguf_file *f, const char *path, struct q_err *e);
void gguf_file_release(struct gguf_file *f);

/* Is it a file whose first bytes are those of GGUF? */
bool gguf_file_is(const char *path);
/* Does the name end as GGUF files' names do? */
bool gguf_file_is_named(const char *name);
/* The number (from 1 on) and count in the name of one of several files; false: it has none, and
 * both stay as they are. */
bool gguf_file_split(uint32_t *number, uint32_t *count, const char *path);
/* The name of file `number` of those that `path` is one of. Errors: Q_TOO_LARGE. */
FALLIBLE gguf_file_split_path(char out[PATH_MAX], const char *path, uint32_t number,
                              struct q_err *e);

#endif
