/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/cli/batch_out.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"
#include "frontend/cli/batch_line.h"

#define CHUNK ((size_t)1 << 20)

static FALLIBLE mark(struct batch_ids *ids, const struct batch_done *done, struct q_err *e)
{
    struct batch_entry *entry = NULL;
    enum q_code rc = batch_ids_find(ids, done->custom_id, done->line, &entry, e);
    if (rc)
        return rc;
    if (done->duplicate)
        entry->n_told++;
    else
        entry->answered = true;
    return Q_OK;
}

struct scan {
    struct batch_out *out;
    struct batch_ids *ids;
    const char *path;
    bool bad;           /* the last line was no result */
    struct q_err error; /* why */
};

/* An invalid line is accepted at the end of the file only, where a crash may have cut it. */
static FALLIBLE scan_line(struct scan *s, const char *text, size_t n, struct q_err *e)
{
    struct batch_done done;
    enum q_code rc;
    if (s->bad)
        return q_fail(e, Q_CORRUPT,
                      "%s: line %llu is not a batch result (%s); use another output file", s->path,
                      (unsigned long long)s->out->n_line + 1, s->error.message);
    rc = batch_done_read(&done, text, n, &s->error);
    if (rc == Q_CORRUPT) {
        s->bad = true;
        return Q_OK;
    }
    if (!rc)
        rc = mark(s->ids, &done, e);
    else
        *e = s->error;
    q_free(done.custom_id);
    s->out->n_line++;
    s->out->n_failed += done.failed;
    s->out->end += (int64_t)n + 1;
    return rc;
}

static FALLIBLE scan_chunk(struct scan *s, struct buf *b, struct q_err *e)
{
    size_t at = 0;
    enum q_code rc = Q_OK;
    const char *end;
    while (!rc && at < b->len && (end = memchr(b->data + at, '\n', b->len - at))) {
        rc = scan_line(s, b->data + at, (size_t)(end - b->data) - at, e);
        at = (size_t)(end - b->data) + 1;
    }
    if (at) {
        memmove(b->data, b->data + at, b->len - at);
        b->len -= at;
    }
    return rc;
}

static FALLIBLE scan(struct batch_out *o, const char *path, struct batch_ids *ids, struct q_err *e)
{
    struct scan s = {.out = o, .ids = ids, .path = path};
    struct buf b = BUF_INIT;
    char *chunk = q_alloc(CHUNK);
    enum q_code rc = chunk ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory to read %s", path);
    ssize_t n = 0;
    while (!rc && (n = read(o->fd, chunk, CHUNK)) > 0) {
        buf_add(&b, chunk, (size_t)n);
        if (!(rc = buf_check(&b, "a line of the output file", e)))
            rc = scan_chunk(&s, &b, e);
    }
    if (!rc && n < 0)
        rc = q_fail(e, Q_IO, "%s: %s", path, strerror(errno));
    buf_release(&b);
    q_free(chunk);
    return rc;
}

/* Open the results of an earlier run: lock the file, read it, and remove an incomplete last
 * line. */
static FALLIBLE take_up(struct batch_out *o, const char *path, struct batch_ids *ids,
                        struct q_err *e)
{
    enum q_code rc;
    if (flock(o->fd, LOCK_EX | LOCK_NB) != 0)
        return q_fail(e, Q_IO, "%s: %s", path,
                      errno == EWOULDBLOCK ? "another run is writing to this file"
                                           : strerror(errno));
    if ((rc = scan(o, path, ids, e)))
        return rc;
    off_t size = lseek(o->fd, 0, SEEK_END);
    o->n_torn = size > o->end ? (uint64_t)(size - o->end) : 0;
    if (size < 0 || (o->n_torn && ftruncate(o->fd, o->end) != 0) ||
        lseek(o->fd, o->end, SEEK_SET) < 0)
        return q_fail(e, Q_IO, "%s: %s", path, strerror(errno));
    return Q_OK;
}

FALLIBLE batch_out_open(struct batch_out *o, const char *path, struct batch_ids *ids,
                        struct q_err *e)
{
    struct stat st;
    *o = (struct batch_out)BATCH_OUT_INIT;
    if (!strcmp(path, "-"))
        o->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    else
        o->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (o->fd < 0 && errno == EINVAL) /* a pipe or terminal by name */
        o->fd = open(path, O_WRONLY | O_CLOEXEC);
    if (o->fd < 0 || fstat(o->fd, &st) != 0)
        return q_fail(e, Q_IO, "%s: %s", path, strerror(errno));
    o->is_file = S_ISREG(st.st_mode) && strcmp(path, "-") != 0;
    return o->is_file ? take_up(o, path, ids, e) : Q_OK;
}

FALLIBLE batch_out_write(struct batch_out *o, const struct buf *line, struct q_err *e)
{
    enum q_code rc = buf_check(line, "a line of results", e);
    for (size_t at = 0; !rc && at < line->len;) {
        ssize_t n = write(o->fd, line->data + at, line->len - at);
        if (n >= 0)
            at += (size_t)n;
        else if (errno != EINTR)
            rc = q_fail(e, Q_IO, "cannot write the output: %s", strerror(errno));
    }
    if (!rc)
        o->end += (int64_t)line->len;
    else if (o->is_file && (ftruncate(o->fd, o->end) != 0 || lseek(o->fd, o->end, SEEK_SET) < 0))
        return q_wrap(e, "the last line is incomplete; the next run removes it");
    return rc;
}

FALLIBLE batch_out_close(struct batch_out *o, struct q_err *e)
{
    int fd = o->fd;
    o->fd = -1;
    if (fd < 0)
        return Q_OK;
    bool failed = o->is_file && fsync(fd) != 0;
    if (close(fd) != 0 || failed)
        return q_fail(e, Q_IO, "cannot write the output: %s", strerror(errno));
    return Q_OK;
}
