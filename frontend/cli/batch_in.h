/* SPDX-License-Identifier: Apache-2.0 */
/* batch_in - the lines of a file or pipe, read beside a loop.
 *
 * At most one line and one chunk are held; a line longer than the limit is passed over. A read
 * waits on a thread of libuv's, so a slow pipe holds up nothing. Threads: the loop's thread. */
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
    uint64_t n_line;         /* the number of the line given last, from 1 */
    void (*more)(void *ctx); /* there may be a line now, or the end */
    void *ctx;
    struct buf data; /* read; given out up to `at` */
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
    BATCH_TOO_LONG, /* a line that is passed over */
    BATCH_WAIT,     /* `more` is called later */
    BATCH_END,
    BATCH_FAILED /* in->error */
};
enum batch_next batch_in_next(struct batch_in *in, const char **text, size_t *n);

#endif
