/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/trace.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/queue.h"
#include "engine/worker/ring.h"

#define WRITE_BYTES 65536 /* written as soon as there is so much */

struct trace {
    struct queue steps; /* of struct trace_step */
    pthread_t thread;
    int fd;
    struct buf text; /* whole lines; the thread's, as all below */
    bool begun, failed;
    atomic_uint_fast64_t n_dropped;
    uint64_t n_dropped_logged;
};

/* Two steps may wait at once, and events on one row must not overlap: one row for each. */
enum { ROW_LOOP = 1, ROW_RING, ROW_RING_END = ROW_RING + RING_DEPTH, ROW_WORKER = ROW_RING_END };
static const struct {
    const char *name;
    int row;
} parts[TRACE_PARTS] = {
    [TRACE_PLAN] = {"plan", ROW_LOOP},         [TRACE_ENCODE] = {"encode", ROW_LOOP},
    [TRACE_SETTLE] = {"settle", ROW_LOOP},     [TRACE_OUTBOX] = {"outbox", ROW_LOOP},
    [TRACE_WAIT] = {"wait", ROW_RING},         [TRACE_COPY] = {"copy", ROW_WORKER},
    [TRACE_FORWARD] = {"forward", ROW_WORKER}, [TRACE_SAMPLE] = {"sample", ROW_WORKER},
};

/* Between two events: the comma that a reader of an unfinished file can do without. */
static void begin_line(struct trace *t)
{
    buf_add_str(&t->text, t->begun ? ",\n" : "[\n");
    t->begun = true;
}

static void add_names(struct trace *t)
{
    int pid = (int)getpid();
    begin_line(t);
    buf_printf(&t->text,
               "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":"
               "\"quire-engine\"}}",
               pid);
    for (int row = ROW_LOOP; row <= ROW_WORKER; row++) {
        const char *name = row == ROW_LOOP ? "engine loop" : row == ROW_WORKER ? "worker" : "ring";
        begin_line(t);
        buf_printf(&t->text,
                   "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{"
                   "\"name\":\"%s\"}}",
                   pid, row, name);
    }
}

static void add_step(struct trace *t, const struct trace_step *v)
{
    for (int i = 0; i < TRACE_PARTS; i++) {
        int64_t start_us = v->parts[i].start_us, us = v->parts[i].end_us - start_us;
        int row = parts[i].row + (i == TRACE_WAIT ? (int)(v->step % RING_DEPTH) : 0);
        if (v->parts[i].end_us == 0)
            continue;
        begin_line(t);
        buf_printf(&t->text,
                   "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRId64
                   ",\"dur\":%" PRId64 ",\"args\":{\"step\":%" PRIu64
                   ",\"rows\":%u,\"sequences\":%u,\"admitted\":%u,\"blocks_out\":%u,"
                   "\"blocks_in\":%u}}",
                   parts[i].name, (int)getpid(), row, start_us, us > 0 ? us : 0, v->step, v->n_row,
                   v->n_seq, v->n_admit, v->n_out, v->n_in);
    }
    uint64_t n_dropped = atomic_load(&t->n_dropped);
    if (n_dropped == t->n_dropped_logged)
        return;
    begin_line(t);
    buf_printf(
        &t->text,
        "{\"name\":\"dropped\",\"ph\":\"i\",\"s\":\"g\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRId64
        ",\"args\":{\"steps\":%" PRIu64 "}}",
        (int)getpid(), ROW_LOOP, v->parts[TRACE_PLAN].start_us, n_dropped - t->n_dropped_logged);
    t->n_dropped_logged = n_dropped;
}

static void write_out(struct trace *t)
{
    size_t at = 0;
    while (at < t->text.len && !t->failed) {
        ssize_t n = write(t->fd, t->text.data + at, t->text.len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            log_error("trace stopped, cannot write: %s", strerror(errno));
            t->failed = true;
        } else {
            at += (size_t)n;
        }
    }
    buf_reset(&t->text);
}

static void *thread_main(void *arg)
{
    struct trace *t = arg;
    struct trace_step v;
    add_names(t);
    write_out(t);
    int64_t written_ms = clock_ms();
    while (!queue_closed(&t->steps)) {
        bool one = queue_pop(&t->steps, &v, TRACE_FLUSH_MS);
        if (one)
            add_step(t, &v);
        const int64_t now = clock_ms();
        if (one && t->text.len < WRITE_BYTES && now - written_ms < TRACE_FLUSH_MS)
            continue;
        write_out(t);
        written_ms = now;
    }
    buf_add_str(&t->text, "\n]\n");
    write_out(t);
    return NULL;
}

FALLIBLE trace_new(struct trace **out, const char *path, struct q_err *e)
{
    char old[PATH_MAX];
    struct stat st;
    struct trace *t = q_calloc(1, sizeof *t);
    enum q_code rc;
    if (!t)
        return q_fail(e, Q_NO_MEMORY, "trace: out of memory");
    t->text = (struct buf)BUF_INIT;
    t->fd = -1;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        rc = q_fail(e, Q_IO, "--trace %s: is not a regular file", path);
        goto out;
    }
    if ((size_t)snprintf(old, sizeof old, "%s.old", path) < sizeof old)
        rename(path, old); /* fails when there is none */
    if ((rc = queue_init(&t->steps, sizeof(struct trace_step), TRACE_QUEUE_MAX, false, e)))
        goto out;
    t->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0644);
    if (t->fd < 0) {
        rc = q_fail(e, Q_IO, "--trace %s: %s", path, strerror(errno));
        goto out;
    }
    int failed = pthread_create(&t->thread, NULL, thread_main, t);
    if (failed) {
        rc = q_fail(e, Q_IO, "trace: cannot start a thread: %s", strerror(failed));
        goto out;
    }
    pthread_setname_np(t->thread, "quire-trace");
    *out = t;
    return Q_OK;
out:
    if (t->fd >= 0)
        close(t->fd);
    queue_release(&t->steps);
    q_free(t);
    return rc;
}

void trace_free(struct trace *t)
{
    if (!t)
        return;
    queue_close(&t->steps);
    pthread_join(t->thread, NULL);
    close(t->fd);
    queue_release(&t->steps);
    buf_release(&t->text);
    q_free(t);
}

void trace_add(struct trace *t, const struct trace_step *step)
{
    struct q_err ignored = Q_ERR_INIT;
    if (queue_push(&t->steps, step, &ignored))
        atomic_fetch_add(&t->n_dropped, 1);
}
