/* SPDX-License-Identifier: Apache-2.0 */
/* report_file - the JSONL file of --metrics: appended line by line, cut back to a step when a run
 * resumes. Threads: one owner. */
#ifndef QUIRE_ENGINE_DISTILL_REPORT_FILE_H
#define QUIRE_ENGINE_DISTILL_REPORT_FILE_H
#include "common/buf.h"

struct report_file {
    int fd;
    const char *path; /* borrowed */
};
/* clang-format off */
#define REPORT_FILE_INIT {-1, NULL}
/* clang-format on */

/* Lines of steps after first_step, and a last line that is not complete, are removed. Errors: Q_IO,
 * Q_CORRUPT (the file has other contents than lines of a run: nothing is removed). */
FALLIBLE report_file_open(struct report_file *f, const char *path, uint64_t first_step,
                          struct q_err *e);
void report_file_close(struct report_file *f);
/* A line with its newline, in one write. Errors: Q_IO. */
FALLIBLE report_file_add(struct report_file *f, const struct buf *line, struct q_err *e);

#endif
