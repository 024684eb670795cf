/* SPDX-License-Identifier: Apache-2.0 */
/* batch_out - the file of results: whole lines are appended, and what an earlier run left is taken
 * up.
 *
 * Opening reads an existing file: a torn last line (the run was killed, the disk was full) is cut
 * off, the others mark their custom_ids as answered. The file is locked, so that two runs cannot
 * write it at once. A line that does not fit on the disk is taken back whole.
 * Threads: one owner. */
#ifndef QUIRE_FRONTEND_CLI_BATCH_OUT_H
#define QUIRE_FRONTEND_CLI_BATCH_OUT_H
#include "common/buf.h"
#include "frontend/cli/batch_ids.h"

struct batch_out {
    int fd;
    bool is_file;      /* a regular one: it can be taken up and cut */
    int64_t end;       /* bytes of whole lines */
    uint64_t n_line;   /* that an earlier run left */
    uint64_t n_failed; /* of those */
    uint64_t n_torn;   /* bytes that were cut off */
};
/* clang-format off */
#define BATCH_OUT_INIT {.fd = -1}
/* clang-format on */

/* path "-": standard output. Errors: Q_IO (cannot be opened, is locked), Q_CORRUPT (a line in it is
 * no result: it is some other file), Q_NO_MEMORY. */
FALLIBLE batch_out_open(struct batch_out *o, const char *path, struct batch_ids *ids,
                        struct q_err *e);
/* Errors: Q_IO; the file then ends with the line before. */
FALLIBLE batch_out_write(struct batch_out *o, const struct buf *line, struct q_err *e);
/* To the disk, and close. Errors: Q_IO. */
FALLIBLE batch_out_close(struct batch_out *o, struct q_err *e);

#endif
