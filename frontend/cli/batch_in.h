/* SPDX-License-Identifier: Apache-2.0 */
/* batch_in - the lines of a file or pipe, read asynchronously.
 *
 * At most one line and one chunk are in memory; a line beyond the limit is skipped. A read waits on
 * a libuv thread, so a slow pipe does not block the loop. Threads: the loop's thread. */
#ifndef QUIRE_FRONTEND_CLI_BATCH_IN_H
#define QUIRE_FRONTEND_CLI_BATCH_IN_H
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "common/buf.h"

struct batch_in {
    uv_loop_t *loop;
    int fd;
    uint64_t size; /* bytes of the file; 0 = not known */
    size_t line_max;
    uint64_t n_line;         /* the number of the last line, from 1 */
    void (*more)(void *ctx); /* called when a line or the end is available */
    void *ctx;
    struct buf data; /* data read; consumed up to `at` */
    size_t at;
    bool reading, eof, skipping;
    struct q_err error; /* of a read */
    uv_fs_t read;
    char *chunk;
};
/* clang-format off */
#define BATCH_IN_INIT {.fd = -1, .data = BUF_INIT}
/* clang-format on */

/* loop, line_max, more and ctx are set by the caller. path "-": standard input. Errors: Q_IO,
 * Q_NO_MEMORY. */
FALLIBLE batch_in_open(struct batch_in *in, const char *path, struct q_err *e);
/* Not while `reading`. */
void batch_in_release(struct batch_in *in);

enum batch_next {
    BATCH_LINE,     /* *text [*n], until the next call */
    BATCH_TOO_LONG, /* a skipped line */
    BATCH_WAIT,     /* `more` is called later */
    BATCH_END,
    BATCH_FAILED /* in->error */
};
enum batch_next batch_in_next(struct batch_in *in, const char **text, size_t *n);

#endif
