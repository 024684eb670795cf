/* SPDX-License-Identifier: Apache-2.0 */
/* batch_out - the file of results: whole lines are appended, and results of earlier runs are read.
 *
 * Opening reads an existing file: an incomplete last line (after a kill or a full disk) is removed,
 * the others mark their custom_ids as answered. The file is locked against concurrent runs. A line
 * that does not fit on the disk is removed completely.
 * Threads: one owner. */
#ifndef QUIRE_FRONTEND_CLI_BATCH_OUT_H
#define QUIRE_FRONTEND_CLI_BATCH_OUT_H
#include "common/buf.h"
#include "frontend/cli/batch_ids.h"

struct batch_out {
    int fd;
    bool is_file;      /* a regular file: it can be read and truncated */
    int64_t end;       /* bytes of whole lines */
    uint64_t n_line;   /* results of earlier runs */
    uint64_t n_failed; /* of those */
    uint64_t n_torn;   /* bytes removed */
};
/* clang-format off */
#define BATCH_OUT_INIT {.fd = -1}
/* clang-format on */

/* path "-": standard output. Errors: Q_IO (cannot be opened, is locked), Q_CORRUPT (a line is not a
 * result), Q_NO_MEMORY. */
FALLIBLE batch_out_open(struct batch_out *o, const char *path, struct batch_ids *ids,
                        struct q_err *e);
/* Errors: Q_IO; the file then ends with the line before. */
FALLIBLE batch_out_write(struct batch_out *o, const struct buf *line, struct q_err *e);
/* Flush to disk and close. Errors: Q_IO. */
FALLIBLE batch_out_close(struct batch_out *o, struct q_err *e);

#endif
