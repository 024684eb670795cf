/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/cli/batch_in.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/utf8.h"

#define CHUNK ((size_t)256 << 10)

FALLIBLE batch_in_open(struct batch_in *in, const char *path, struct q_err *e)
{
    struct stat st;
    bool is_stdin = !strcmp(path, "-");
    in->fd = is_stdin ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open(path, O_RDONLY | O_CLOEXEC);
    if (in->fd < 0 || fstat(in->fd, &st) != 0)
        return q_fail(e, Q_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return q_fail(e, Q_IO, "%s: is a folder", path);
    in->size = S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    in->data.max = in->line_max + 2 * CHUNK;
    in->read.data = in;
    in->chunk = q_alloc(CHUNK);
    return in->chunk ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory to read %s", path);
}

void batch_in_release(struct batch_in *in)
{
    Q_ASSERT(!in->reading);
    if (in->fd >= 0)
        close(in->fd);
    in->fd = -1;
    buf_release(&in->data);
    q_free(in->chunk);
    in->chunk = NULL;
}

static void on_read(uv_fs_t *req)
{
    struct batch_in *in = req->data;
    ssize_t n = req->result;
    uv_fs_req_cleanup(req);
    in->reading = false;
    if (n < 0)
        q_fail(&in->error, Q_IO, "cannot read the input: %s", uv_strerror((int)n));
    else if (n == 0)
        in->eof = true;
    else
        buf_add(&in->data, in->chunk, (size_t)n);
    if (!in->error.code && buf_check(&in->data, "the input", &in->error))
        in->eof = true;
    in->more(in->ctx);
}

static void read_more(struct batch_in *in)
{
    uv_buf_t b = uv_buf_init(in->chunk, CHUNK);
    if (in->at)
        memmove(in->data.data, in->data.data + in->at, in->data.len - in->at);
    in->data.len -= in->at;
    in->at = 0;
    int rc = uv_fs_read(in->loop, &in->read, in->fd, &b, 1, -1, on_read);
    if (rc)
        q_fail(&in->error, Q_IO, "cannot read the input: %s", uv_strerror(rc));
    else
        in->reading = true;
}

/* The end of the line that begins at in->at; NULL = not read yet. */
static const char *line_end(const struct batch_in *in)
{
    size_t left = in->data.len - in->at;
    const char *end = left ? memchr(in->data.data + in->at, '\n', left) : NULL;
    return end || !in->eof || !left ? end : in->data.data + in->data.len; /* without its end */
}

enum batch_next batch_in_next(struct batch_in *in, const char **text, size_t *n)
{
    if (in->error.code)
        return BATCH_FAILED;
    if (in->reading)
        return BATCH_WAIT;
    const char *end = line_end(in);
    if (!end && in->data.len - in->at > in->line_max) {
        in->skipping = true;
        in->at = in->data.len;
    }
    if (!end && in->eof && !in->skipping)
        return BATCH_END;
    if (!end && !in->eof) {
        read_more(in);
        return in->error.code ? BATCH_FAILED : BATCH_WAIT;
    }
    in->n_line++;
    bool too_long = in->skipping;
    in->skipping = false;
    if (end) {
        *text = in->data.data + in->at;
        *n = (size_t)(end - *text);
        in->at += *n + (in->at + *n < in->data.len);
        too_long = too_long || *n > in->line_max;
    }
    if (*n && (*text)[*n - 1] == '\r' && end)
        --*n;
    const size_t mark = end ? utf8_mark(*text, *n) : 0;
    if (mark) {
        *text += mark;
        *n -= mark;
    }
    return too_long ? BATCH_TOO_LONG : BATCH_LINE;
}
