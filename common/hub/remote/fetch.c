/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/remote/fetch.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/file.h"
#include "common/hub/remote/fault.h"
#include "common/hub/remote/listing.h"
#include "common/log.h"
#include "common/mem.h"

#define STEP_MS 100 /* the longest wait: locks are tried again, progress is shown */

enum stage { TO_ASK, ASKING, KNOWN, TO_LOCK, LOADING, DONE };

struct file;
struct part { /* of a file: what one request loads */
    struct file *file;
    uint32_t range;               /* of blob.ranges; RANGE_NONE: all of the file */
    uint64_t at, end;             /* the next byte; behind the last, HEAD_NONE: unknown */
    struct http_request *request; /* NULL: idle */
};
struct file { /* one that is fetched */
    struct fetch *fetch;
    const char *name, *commit;
    char *url;
    enum stage stage;
    char etag[CACHE_HASH_MAX + 1];
    uint64_t size; /* HEAD_NONE: unknown */
    struct blob blob;
    int lock;                     /* -1: none */
    bool is_second;               /* wrong checksum after a resumption: loaded anew */
    bool takes_ranges;            /* the server sent a range of it */
    uint64_t counted;             /* bytes of it in the progress */
    struct http_request *request; /* HEAD, while there is one */
    struct part parts[FETCH_PARALLEL];
};

/* ---- requests ---- */

/* The list of files is asked for with its own name. */
static enum q_code on_fault(const struct http_request *r, void *ctx, struct q_err *e)
{
    const struct fetch *f = ctx;
    const struct fault_at at = {
        .endpoint = f->endpoint,
        .id = f->id,
        .revision = f->revision,
        .file = r->what == f->id ? NULL : r->what,
        .url = r->at,
    };
    return fault(&at, &r->head, e);
}

FALLIBLE fetch_init(struct fetch *f, const struct endpoint *p, const char *id, const char *revision,
                    struct progress *progress, struct q_err *e)
{
    memset(f, 0, sizeof *f);
    f->endpoint = p;
    f->id = id;
    f->revision = revision;
    f->progress = progress;
    enum q_code rc = store_init(&f->store, id, e);
    if (rc || (rc = http_init(&f->http, p, e)))
        return rc;
    f->http.fail = on_fault;
    f->http.ctx = f;
    return Q_OK;
}

void fetch_release(struct fetch *f)
{
    http_release(&f->http);
}

struct list_answer {
    struct buf *out;
    bool is_over;
    enum q_code rc;
    struct q_err *e;
};

static enum q_code list_begin(void *ctx, const struct head *h, struct q_err *e)
{
    struct list_answer *a = ctx;
    (void)h, (void)e;
    buf_reset(a->out);
    return Q_OK;
}

static enum q_code list_data(void *ctx, const void *data, size_t n, struct q_err *e)
{
    struct list_answer *a = ctx;
    buf_add(a->out, data, n);
    return buf_check(a->out, "the list of files", e);
}

static void list_done(void *ctx, enum q_code rc, const struct head *h, struct q_err *e)
{
    struct list_answer *a = ctx;
    (void)h;
    a->is_over = true;
    a->rc = rc;
    if (rc)
        *a->e = *e;
}

enum q_code fetch_listing(struct fetch *f, struct buf *out, struct q_err *e)
{
    static const struct http_sink sink = {
        .begin = list_begin,
        .data = list_data,
        .done = list_done,
    };
    struct buf url = BUF_INIT;
    struct list_answer a = {out, false, Q_OK, e};
    struct http_request *r = q_calloc(1, sizeof *r);
    out->max = LISTING_BYTES_MAX;
    buf_printf(&url, "%s/api/models/%s/revision/", f->endpoint->url, f->id);
    endpoint_escape(&url, f->revision, false);
    enum q_code rc = r ? buf_check(&url, "a URL", e) : q_fail(e, Q_NO_MEMORY, "out of memory");
    if (rc)
        goto out;
    *r = (struct http_request){.url = buf_str(&url), .sink = &sink, .ctx = &a, .what = f->id};
    http_add(&f->http, r);
    while (!a.is_over)
        http_step(&f->http, STEP_MS);
    rc = a.rc;
out:
    q_free(r);
    buf_release(&url);
    return rc;
}

/* ---- one file ---- */

static void end_file(struct file *x, enum q_code rc, const struct q_err *e)
{
    blob_release(&x->blob);
    if (x->lock >= 0)
        close(x->lock);
    x->lock = -1;
    x->stage = DONE;
    if (rc && !x->fetch->failed.code)
        x->fetch->failed = *e;
}

/* *at: the request, until its `done`. */
static void add_request(struct file *x, struct http_request **at, const struct http_request *r)
{
    struct q_err e = Q_ERR_INIT;
    *at = q_calloc(1, sizeof **at);
    if (!*at) {
        end_file(x, q_fail(&e, Q_NO_MEMORY, "%s: out of memory", x->name), &e);
        return;
    }
    (*at)->url = x->url;
    (*at)->what = x->name;
    (*at)->head_only = r->head_only;
    (*at)->last = r->last;
    (*at)->sink = r->sink;
    (*at)->ctx = r->ctx;
    x->fetch->n_request++;
    http_add(&x->fetch->http, *at);
}

static void asked(void *ctx, enum q_code rc, const struct head *h, struct q_err *e)
{
    struct file *x = ctx;
    struct http_request *over = x->request; /* holds h and e */
    if (!rc && !*h->etag)
        rc = q_fail(e, Q_UNAVAILABLE,
                    "%s: the answer has no ETag, so %s is no hub; HF_ENDPOINT sets another",
                    x->name, x->fetch->endpoint->url);
    if (rc) {
        end_file(x, rc, e);
    } else {
        memcpy(x->etag, h->etag, sizeof x->etag);
        x->size = h->status >= 300 && !h->linked_size ? HEAD_NONE : h->size; /* of a redirect */
        x->stage = KNOWN;
    }
    x->request = NULL;
    x->fetch->n_request--;
    q_free(over);
}

static const struct http_sink ask_sink = {.done = asked};

static void start_ask(struct file *x)
{
    x->stage = ASKING;
    add_request(x, &x->request,
                &(struct http_request){.head_only = true, .sink = &ask_sink, .ctx = x});
}

/* The progress counts what is in the file now. */
static void count(struct file *x)
{
    x->fetch->progress->done += x->blob.at - x->counted;
    x->counted = x->blob.at;
}

static uint64_t load_offset(void *ctx)
{
    const struct part *p = ctx;
    return p->at;
}

/* All of the file comes, also where a range was asked for: its bytes are written from 0 on. */
static enum q_code begin_whole(struct part *p, const struct head *h, struct q_err *e)
{
    struct file *x = p->file;
    const bool learns_size = x->blob.size == HEAD_NONE && h->size != HEAD_NONE;
    if (x->takes_ranges)
        return q_fail(e, Q_UNAVAILABLE, "%s: the server sends the whole file for a range of it",
                      x->name);
    if (learns_size)
        x->blob.size = h->size; /* git's checksum contains it */
    p->at = 0;
    p->end = x->blob.size;
    p->request->last = 0; /* another attempt asks for the rest of the file */
    if (!x->blob.at && !learns_size)
        return Q_OK;
    enum q_code rc = blob_restart(&x->blob, e);
    count(x);
    return rc;
}

static enum q_code load_begin(void *ctx, const struct head *h, struct q_err *e)
{
    struct part *p = ctx;
    if (h->status != 206)
        return begin_whole(p, h, e);
    if (h->range_from != p->at)
        return q_fail(e, Q_UNAVAILABLE, "%s: the server sends another range than was asked for",
                      p->file->name);
    p->file->takes_ranges = p->request->last > 0;
    return Q_OK;
}

static enum q_code load_data(void *ctx, const void *data, size_t n, struct q_err *e)
{
    struct part *p = ctx;
    struct file *x = p->file;
    if (p->end != HEAD_NONE && n > p->end - p->at)
        return q_fail(e, Q_CORRUPT,
                      "%s: the server sends more than the %llu bytes that it announced", x->name,
                      (unsigned long long)p->end);
    enum q_code rc = blob_write(&x->blob, p->at, data, n, e);
    p->at += rc ? 0 : n;
    x->fetch->n_bytes += rc ? 0 : n;
    count(x);
    return rc;
}

/* What is there is no beginning of what the server has. */
static enum q_code load_restart(void *ctx, struct q_err *e)
{
    struct part *p = ctx;
    const enum q_code rc = blob_restart(&p->file->blob, e);
    p->at = 0;
    count(p->file);
    return rc;
}

static enum q_code load_end(void *ctx, struct q_err *e)
{
    const struct part *p = ctx;
    if (p->end == HEAD_NONE || p->at == p->end)
        return Q_OK;
    return q_fail(e, Q_UNAVAILABLE, "%s: the server ended at byte %llu of %llu", p->file->name,
                  (unsigned long long)p->at, (unsigned long long)p->end);
}

static void start_load(struct file *x);

/* Check and name the blob, link the file. */
static enum q_code settle(struct file *x, bool *again, struct q_err *e)
{
    const bool was_resumed = x->blob.resumed > 0;
    enum q_code rc = blob_finish(&x->blob, x->name, e);
    *again = rc == Q_CORRUPT && was_resumed && !x->is_second;
    return rc ? rc : store_link(&x->fetch->store, x->commit, x->name, x->blob.etag, e);
}

/* All bytes are there, or there was an error. */
static void end_load(struct file *x, enum q_code rc, struct q_err *e)
{
    bool again = false;
    if (!rc)
        rc = settle(x, &again, e);
    if (again) { /* what an earlier download left was wrong */
        log_warning("%s: what an earlier download left is damaged: loading it again", x->name);
        q_err_reset(e);
        blob_release(&x->blob);
        x->is_second = true;
        rc = blob_open(&x->blob, &x->fetch->store, e);
        count(x);
    }
    if (!rc && again) {
        start_load(x);
    } else {
        if (!rc)
            progress_file(x->fetch->progress, x->name, x->blob.at, false);
        end_file(x, rc, e);
    }
}

static void start_part(struct file *x, struct part *p);

static bool is_idle(const struct file *x)
{
    for (uint32_t i = 0; i < FETCH_PARALLEL; i++)
        if (x->parts[i].request)
            return false;
    return true;
}

/* The request of a part is over: the part goes on with another range. */
static void loaded(void *ctx, enum q_code rc, const struct head *h, struct q_err *e)
{
    struct part *p = ctx;
    struct file *x = p->file;
    struct http_request *over = p->request; /* holds h and e */
    (void)h;
    p->request = NULL;
    x->fetch->n_request--;
    if (p->range != RANGE_NONE && x->blob.ranges.n)
        blob_ranges_give_back(&x->blob.ranges, p->range);
    if (x->stage != LOADING)
        ; /* another part of it failed */
    else if (rc)
        end_load(x, rc, e);
    else if (p->range != RANGE_NONE && blob_ranges_is_free(&x->blob.ranges))
        start_part(x, p);
    else if (is_idle(x))
        end_load(x, Q_OK, e);
    q_free(over);
}

static const struct http_sink load_sink = {
    .offset = load_offset,
    .begin = load_begin,
    .data = load_data,
    .restart = load_restart,
    .end = load_end,
    .done = loaded,
};

/* Load all of the file, or the first range that no other part loads. */
static void start_part(struct file *x, struct part *p)
{
    struct http_request r = {.sink = &load_sink, .ctx = p};
    *p = (struct part){.file = x, .range = RANGE_NONE, .at = x->blob.at, .end = x->blob.size};
    if (x->blob.ranges.n) {
        p->range = blob_ranges_take(&x->blob.ranges);
        p->at = blob_ranges_begin(p->range) + x->blob.ranges.there[p->range];
        p->end = blob_ranges_end(&x->blob.ranges, p->range);
        r.last = p->end - 1;
    }
    add_request(x, &p->request, &r);
}

static void start_load(struct file *x)
{
    struct q_err e = Q_ERR_INIT;
    x->stage = LOADING;
    x->takes_ranges = false;
    if (x->blob.at && x->blob.at == x->blob.size) /* all of it is there, without its name */
        end_load(x, Q_OK, &e);
    else
        start_part(x, &x->parts[0]);
}

/* More connections for files that the server sends in ranges. */
static void add_parts(struct fetch *f, struct file *files, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < FETCH_PARALLEL && files[i].stage == LOADING; k++) {
            if (!files[i].takes_ranges || f->n_request >= FETCH_PARALLEL ||
                !blob_ranges_is_free(&files[i].blob.ranges))
                break;
            if (!files[i].parts[k].request)
                start_part(&files[i], &files[i].parts[k]);
        }
}

/* The blob is there: link it. */
static void use_blob(struct file *x)
{
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = store_link(&x->fetch->store, x->commit, x->name, x->etag, &e);
    store_drop_partial(&x->fetch->store, x->etag); /* of ours, when another program loaded it */
    if (!rc) {
        const uint64_t size = x->size == HEAD_NONE ? 0 : x->size;
        x->fetch->progress->done += size - x->counted;
        x->counted = size;
        progress_file(x->fetch->progress, x->name, size, true);
    }
    end_file(x, rc, &e);
}

/* Lock the blob and load it, unless another process does. */
static void try_load(struct file *x)
{
    struct q_err e = Q_ERR_INIT;
    enum q_code rc = store_try_lock(&x->lock, &x->fetch->store, x->etag, &e);
    if (!rc && x->lock < 0) {
        if (x->stage != TO_LOCK)
            log_debug("%s: another process downloads it", x->name);
        x->stage = TO_LOCK;
        return;
    }
    if (!rc && store_has_blob(&x->fetch->store, x->etag)) {
        use_blob(x);
        return;
    }
    memcpy(x->blob.etag, x->etag, sizeof x->blob.etag);
    x->blob.size = x->size;
    if (rc || (rc = blob_open(&x->blob, &x->fetch->store, &e))) {
        end_file(x, rc, &e);
        return;
    }
    count(x);
    start_load(x);
}

/* ---- all files ---- */

/* Run the files from one stage until none is before `until`. */
static enum q_code run(struct fetch *f, struct file *files, size_t n, enum stage from,
                       void (*start)(struct file *), struct q_err *e)
{
    for (;;) {
        enum q_code rc = f->failed.code;
        bool rest = f->n_request > 0;
        for (size_t i = 0; i < n && !rc; i++) {
            if (files[i].stage != from && files[i].stage != TO_LOCK)
                continue;
            rest = true;
            if (f->n_request >= FETCH_PARALLEL)
                break;
            start(&files[i]);
        }
        add_parts(f, files, n);
        if (rc)
            *e = f->failed;
        if (rc || !rest)
            return rc;
        http_step(&f->http, STEP_MS);
        progress_tick(f->progress);
    }
}

/* The etags are known: two files of the same content are one blob, and those that are there need no
 * space. */
static enum q_code check_space(const struct fetch *f, const struct file *files, size_t n,
                               struct q_err *e)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const struct file *x = &files[i];
        if (x->stage != KNOWN || x->size == HEAD_NONE || store_has_blob(&f->store, x->etag))
            continue;
        const uint64_t there = store_partial_bytes(&f->store, x->etag);
        bytes += x->size - (there < x->size ? there : x->size);
    }
    return store_check_space(&f->store, bytes, e);
}

static enum q_code init_file(struct file *x, struct fetch *f, const char *commit, const char *name,
                             struct q_err *e)
{
    struct buf url = BUF_INIT;
    *x = (struct file){
        .fetch = f,
        .name = name,
        .commit = commit,
        .blob = BLOB_INIT,
        .lock = -1,
    };
    buf_printf(&url, "%s/%s/resolve/%s/", f->endpoint->url, f->id, commit);
    endpoint_escape(&url, name, true);
    enum q_code rc = buf_check(&url, "a URL", e);
    x->url = rc ? NULL : q_strdup(buf_str(&url));
    buf_release(&url);
    return rc || x->url ? rc : q_fail(e, Q_NO_MEMORY, "out of memory");
}

enum q_code fetch_files(struct fetch *f, const char *commit, const char *const *names, size_t n,
                        struct q_err *e)
{
    struct file *files = q_calloc(n + 1, sizeof *files);
    enum q_code rc = files ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory for %zu files", n);
    size_t n_init = 0;
    if (!rc)
        rc = store_make(&f->store, e);
    for (; n_init < n && !rc; n_init++) {
        rc = init_file(&files[n_init], f, commit, names[n_init], e);
        if (!rc && store_has(&f->store, commit, names[n_init]))
            files[n_init].stage = DONE;
    }
    if (!rc)
        rc = run(f, files, n, TO_ASK, start_ask, e);
    for (size_t i = 0; i < n && !rc; i++) {
        f->progress->n_file++;
        if (files[i].stage == DONE)
            f->progress->n_done++;
        else if (files[i].size != HEAD_NONE)
            f->progress->total += files[i].size;
    }
    if (!rc && !(rc = check_space(f, files, n, e))) {
        progress_begin(f->progress);
        rc = run(f, files, n, KNOWN, try_load, e);
    }
    http_drop(&f->http); /* requests of other files, after an error */
    for (size_t i = 0; i < n_init; i++) {
        blob_release(&files[i].blob);
        if (files[i].lock >= 0)
            close(files[i].lock);
        q_free(files[i].request);
        for (uint32_t k = 0; k < FETCH_PARALLEL; k++)
            q_free(files[i].parts[k].request);
        q_free(files[i].url);
    }
    q_free(files);
    return rc;
}
