/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/record/recorder.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/queue.h"
#include "engine/record/mirror.h"

#define QUEUE_MAX   65536
#define WRITE_BYTES 65536           /* written as soon as there is so much */
#define FRAME_BYTES 16              /* before a payload */
#define PATH_ROOM   (PATH_MAX - 16) /* and a number */
#define KEEP_BYTES  (1u << 20)      /* of text; what items took goes back */

struct job {
    enum record_kind kind;
    struct buf frame;
};

struct adapters {      /* that the worker has */
    struct buf *items; /* [n] payloads of ADAPTER frames */
    size_t n, cap;
};

struct recorder {
    char path[PATH_ROOM];
    uint64_t file_bytes;
    uint32_t n_file;
    struct queue jobs; /* of struct job */
    pthread_t thread;
    struct record_row *rows; /* [row_cap] the loop's */
    size_t row_cap;
    atomic_uint_fast64_t queued_bytes, queued_item_bytes;
    atomic_bool stopped;
    /* the thread's, as all below */
    int fd;          /* -1: no file */
    struct buf text; /* to be written */
    struct buf head; /* payload of the last head */
    struct step_limits limits;
    struct mirror mirror;
    struct adapters adapters;
    uint64_t begun_bytes; /* of head and running sequences in this file */
    uint64_t n_byte;      /* of this file */
};

/* ---- the loop ---- */

static void stop(struct recorder *r, const char *why)
{
    if (!atomic_exchange(&r->stopped, true))
        log_error("recording stopped: %s", why);
}

bool recorder_runs(const struct recorder *r)
{
    return !atomic_load(&r->stopped);
}

/* Items are many bytes at once, so they do not count as steps. */
static atomic_uint_fast64_t *queued(struct recorder *r, enum record_kind kind)
{
    return kind == RECORD_ITEMS ? &r->queued_item_bytes : &r->queued_bytes;
}

static void push(struct recorder *r, struct job *job)
{
    struct q_err e = Q_ERR_INIT;
    const size_t n = job->frame.len;
    const uint64_t n_max = job->kind == RECORD_ITEMS ? RECORDER_ITEM_BYTES : RECORDER_QUEUE_BYTES;
    if (buf_check(&job->frame, "a recorded step", &e)) {
        stop(r, e.message);
    } else if (atomic_load(queued(r, job->kind)) + n > n_max) {
        stop(r, "the disk is slower than the engine");
    } else {
        atomic_fetch_add(queued(r, job->kind), n);
        if (!queue_push(&r->jobs, job, &e))
            return; /* the thread releases it */
        stop(r, e.message);
    }
    buf_release(&job->frame);
}

void recorder_begin(struct recorder *r, const struct record_head *head,
                    const struct record_texts *texts)
{
    struct job job = {RECORD_HEAD, BUF_INIT};
    if (!recorder_runs(r))
        return;
    record_put_head(&job.frame, head, texts);
    push(r, &job);
}

void recorder_step(struct recorder *r, const struct step_view *view,
                   const struct step_result *result)
{
    struct job job = {RECORD_STEP, BUF_INIT};
    struct q_err e = Q_ERR_INIT;
    const struct record_step counts = {
        .n_row = result->head->n_row,
        .n_note = result->head->n_note,
        .step_bytes = step_size(view->head),
    };
    if (!recorder_runs(r))
        return;
    if (q_grow(&r->rows, &r->row_cap, counts.n_row + 1, sizeof *r->rows, SIZE_MAX / 32, &e)) {
        stop(r, e.message);
        return;
    }
    record_rows(r->rows, result);
    record_put_step(&job.frame, view, &counts, r->rows);
    push(r, &job);
}

void recorder_items(struct recorder *r, const struct record_items *head,
                    const struct step_item *items, const unsigned char *store)
{
    struct job job = {RECORD_ITEMS, BUF_INIT};
    if (!recorder_runs(r))
        return;
    record_put_items(&job.frame, head, items, store);
    push(r, &job);
}

void recorder_adapter(struct recorder *r, const struct record_adapter *a, const char *dir)
{
    struct job job = {RECORD_ADAPTER, BUF_INIT};
    if (!recorder_runs(r))
        return;
    record_put_adapter(&job.frame, a, dir);
    push(r, &job);
}

void recorder_worker(struct recorder *r)
{
    struct job job = {RECORD_WORKER, BUF_INIT};
    if (!recorder_runs(r))
        return;
    record_put(&job.frame, RECORD_WORKER, "", 0);
    push(r, &job);
}

/* ---- the thread ---- */

static void write_out(struct recorder *r)
{
    size_t at = 0;
    if (r->text.failed) /* a frame is missing: the file ends before it */
        stop(r, "out of memory");
    while (at < r->text.len && recorder_runs(r)) {
        const ssize_t n = write(r->fd, r->text.data + at, r->text.len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            char why[PATH_MAX + 64];
            snprintf(why, sizeof why, "%s: %s", r->path, strerror(n ? errno : ENOSPC));
            stop(r, why);
        } else {
            at += (size_t)n;
        }
    }
    r->n_byte += at;
    if (r->text.cap > KEEP_BYTES)
        buf_release(&r->text);
    buf_reset(&r->text);
}

static void name_of(char out[PATH_MAX], const struct recorder *r, uint32_t i)
{
    if (i)
        snprintf(out, PATH_MAX, "%s.%u", r->path, i);
    else
        snprintf(out, PATH_MAX, "%s", r->path);
}

/* PATH becomes PATH.1, and so on; the oldest is replaced. What is no regular file stays. */
static void shift_files(const struct recorder *r)
{
    char from[PATH_MAX], to[PATH_MAX];
    struct stat st;
    if (lstat(r->path, &st) || !S_ISREG(st.st_mode))
        return;
    for (uint32_t i = r->n_file - 1; i > 0; i--) {
        name_of(from, r, i - 1);
        name_of(to, r, i);
        if (rename(from, to) && errno != ENOENT)
            log_warning("--record: %s cannot become %s: %s", from, to, strerror(errno));
    }
}

static void end_file(struct recorder *r, const char *why)
{
    if (r->fd < 0)
        return;
    record_put(&r->text, RECORD_END, why, strlen(why) + 1);
    write_out(r);
    close(r->fd);
    r->fd = -1;
}

/* The payload of a frame that was queued, without what pads it. */
static const char *payload_of(const struct buf *frame, size_t *n)
{
    uint32_t n_byte;
    memcpy(&n_byte, frame->data + sizeof n_byte, sizeof n_byte);
    *n = n_byte;
    return frame->data + FRAME_BYTES;
}

/* The sequences that run. */
static void put_slots(struct recorder *r)
{
    struct buf slot = BUF_INIT;
    for (uint32_t i = 0; i < r->mirror.n; i++) {
        const struct buf *items = &r->mirror.slots[i].items;
        buf_reset(&slot);
        if (!mirror_put(&r->mirror, i, &slot))
            continue;
        if (items->len)
            record_put(&r->text, RECORD_ITEMS, items->data, items->len);
        record_put(&r->text, RECORD_SLOT, slot.data, slot.len);
        buf_take_failure(&r->text, &slot);
    }
    buf_release(&slot);
}

/* Open PATH and write its head, the worker's adapters and, if it continues, the sequences that
 * run. */
static void begin_file(struct recorder *r, bool continues)
{
    struct record_head head;
    struct stat st;
    shift_files(r);
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    r->fd = open(r->path, flags, 0600);
    if (r->fd < 0 || fstat(r->fd, &st) || !S_ISREG(st.st_mode)) {
        char why[PATH_MAX + 64];
        snprintf(why, sizeof why, "%s: %s", r->path,
                 r->fd < 0 ? strerror(errno) : "not a regular file");
        stop(r, why);
        return;
    }
    memcpy(&head, r->head.data, sizeof head);
    head.continues = continues;
    memcpy(r->head.data, &head, sizeof head);
    r->n_byte = 0;
    record_begin(&r->text);
    record_put(&r->text, RECORD_HEAD, r->head.data, r->head.len);
    for (size_t i = 0; i < r->adapters.n; i++)
        record_put(&r->text, RECORD_ADAPTER, r->adapters.items[i].data, r->adapters.items[i].len);
    if (continues)
        put_slots(r);
    write_out(r);
    r->begun_bytes = r->n_byte;
}

static void take_head(struct recorder *r, const struct buf *frame)
{
    struct q_err e = Q_ERR_INIT;
    struct record_head head;
    memcpy(&head, frame->data + FRAME_BYTES, sizeof head);
    end_file(r, "other weights or another worker follow in the next file");
    buf_reset(&r->head);
    buf_add(&r->head, frame->data + FRAME_BYTES, frame->len - FRAME_BYTES);
    r->limits = head.limits;
    mirror_release(&r->mirror);
    if (r->head.failed || mirror_init(&r->mirror, head.limits.max_num_seqs, &e))
        stop(r, "out of memory");
    else
        begin_file(r, false);
}

static void take_step(struct recorder *r, const struct buf *frame)
{
    struct q_err e = Q_ERR_INIT;
    struct step_view v;
    struct record_step counts;
    char *at = frame->data + FRAME_BYTES;
    memcpy(&counts, at, sizeof counts);
    const struct record_row *rows = (const void *)(at + sizeof counts);
    at += sizeof counts + counts.n_row * sizeof *rows;
    if (step_view(&v, at, counts.step_bytes, &r->limits, &e) ||
        mirror_step(&r->mirror, &v, rows, counts.n_row, &e)) {
        stop(r, e.message);
        return;
    }
    buf_add(&r->text, frame->data, frame->len);
    if (r->n_byte + r->text.len < r->file_bytes ||
        r->n_byte + r->text.len < r->begun_bytes + r->file_bytes / 2)
        return;
    end_file(r, "the file is full; the next one follows");
    if (recorder_runs(r))
        begin_file(r, true);
}

static void drop_adapters(struct adapters *a)
{
    for (size_t i = 0; i < a->n; i++)
        buf_release(&a->items[i]);
    a->n = 0;
}

static void take_adapter(struct recorder *r, const struct buf *frame)
{
    struct adapters *a = &r->adapters;
    struct record_adapter now, had;
    struct q_err e = Q_ERR_INIT;
    size_t n, i = 0;
    const char *payload = payload_of(frame, &n);
    memcpy(&now, payload, sizeof now);
    for (; i < a->n; i++) {
        memcpy(&had, a->items[i].data, sizeof had);
        if (had.number == now.number)
            break;
    }
    if (i < a->n) {
        buf_release(&a->items[i]);
        a->items[i] = a->items[--a->n];
    }
    if (!now.is_dropped) {
        if (q_grow(&a->items, &a->cap, a->n + 1, sizeof *a->items, SIZE_MAX / 64, &e)) {
            stop(r, e.message);
            return;
        }
        a->items[a->n] = (struct buf)BUF_INIT;
        buf_add(&a->items[a->n++], payload, n);
    }
    buf_add(&r->text, frame->data, frame->len);
}

static void take_items(struct recorder *r, const struct buf *frame)
{
    struct q_err e = Q_ERR_INIT;
    size_t n;
    const char *payload = payload_of(frame, &n);
    if (mirror_items(&r->mirror, payload, n, &e))
        stop(r, e.message);
    buf_add(&r->text, frame->data, frame->len);
}

static void take(struct recorder *r, struct job *job)
{
    atomic_fetch_sub(queued(r, job->kind), job->frame.len);
    if (!recorder_runs(r)) {
        buf_release(&job->frame);
        return;
    }
    if (job->kind == RECORD_HEAD) {
        take_head(r, &job->frame);
    } else if (job->kind == RECORD_STEP) {
        take_step(r, &job->frame);
    } else if (job->kind == RECORD_ADAPTER) {
        take_adapter(r, &job->frame);
    } else if (job->kind == RECORD_ITEMS) {
        take_items(r, &job->frame);
    } else {
        mirror_reset(&r->mirror);
        drop_adapters(&r->adapters);
        buf_add(&r->text, job->frame.data, job->frame.len);
    }
    buf_release(&job->frame);
}

static void *thread_main(void *arg)
{
    struct recorder *r = arg;
    struct job job;
    int64_t written_ms = clock_ms();
    while (!queue_closed(&r->jobs)) {
        const bool one = queue_pop(&r->jobs, &job, RECORDER_FLUSH_MS);
        if (one)
            take(r, &job);
        const bool is_due = clock_ms() - written_ms >= RECORDER_FLUSH_MS;
        if (r->fd < 0 || (one && !is_due && r->text.len < WRITE_BYTES))
            continue;
        write_out(r);
        written_ms = clock_ms();
    }
    end_file(r, "the engine ended");
    return NULL;
}

/* ---- life cycle ---- */

FALLIBLE recorder_new(struct recorder **out, const struct recorder_options *o, struct q_err *e)
{
    struct recorder *r = q_calloc(1, sizeof *r);
    enum q_code rc;
    if (!r)
        return q_fail(e, Q_NO_MEMORY, "--record: out of memory");
    r->fd = -1;
    r->text = r->head = (struct buf)BUF_INIT;
    r->mirror = (struct mirror)MIRROR_INIT;
    r->file_bytes = o->file_bytes;
    r->n_file = o->n_file;
    if (snprintf(r->path, sizeof r->path, "%s", o->path) >= (int)sizeof r->path) {
        rc = q_fail(e, Q_TOO_LARGE, "--record: the path has more than %zu bytes",
                    sizeof r->path - 1);
        goto out;
    }
    if ((rc = queue_init(&r->jobs, sizeof(struct job), QUEUE_MAX, false, e)))
        goto out;
    const int failed = pthread_create(&r->thread, NULL, thread_main, r);
    if (failed) {
        rc = q_fail(e, Q_IO, "--record: cannot start a thread: %s", strerror(failed));
        goto out;
    }
    pthread_setname_np(r->thread, "quire-record");
    *out = r;
    return Q_OK;
out:
    queue_release(&r->jobs);
    q_free(r);
    return rc;
}

void recorder_free(struct recorder *r)
{
    if (!r)
        return;
    queue_close(&r->jobs);
    pthread_join(r->thread, NULL);
    if (r->fd >= 0)
        close(r->fd);
    queue_release(&r->jobs);
    buf_release(&r->text);
    buf_release(&r->head);
    mirror_release(&r->mirror);
    drop_adapters(&r->adapters);
    q_free(r->adapters.items);
    q_free(r->rows);
    q_free(r);
}
