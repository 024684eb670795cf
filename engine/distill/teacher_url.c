/* SPDX-License-Identifier: Apache-2.0 */
/* One thread a connection sends a request, waits for it and reads the answer; jobs and results go
 * through queues. The owner has a window of jobs in the order of the samples: a slow request holds
 * up `take`, not the other connections, until the window is full. */
#include "engine/distill/teacher_url.h"
#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "common/log.h"
#include "common/mem.h"
#include "common/queue.h"
#include "engine/distill/teacher_answer.h"

#define WINDOW      4u /* jobs a connection */
#define BODY_MAX    ((size_t)1 << 30)
#define BACKOFF_S   0.5
#define BACKOFF_MAX 30.0
#define NAMED_MAX   300.0 /* seconds that a server may ask to wait */
#define STEP_S      0.1   /* of waiting, between two looks at `stop` */
#define MODEL_MAX   200u
#define URL_MAX     1024u

struct job {
    struct teacher_url_rows rows;
    uint32_t *sample_ids, *ids;
    int32_t *labels;
    float *logprobs;
    bool is_done;
    struct q_err error;
};

struct teacher_url {
    struct teacher_url_options o;
    char models_url[URL_MAX], url[URL_MAX], model[MODEL_MAX];
    struct curl_slist *headers;
    struct queue jobs, results; /* of struct job * */
    pthread_t threads[TEACHER_CONNECTIONS_MAX];
    uint32_t n_thread;
    atomic_bool end;
    atomic_uint n_told; /* retries in the log */
};

/* ---- one request ---- */

struct call { /* of a thread: its connection stays open from request to request */
    struct teacher_url *t;
    CURL *easy;
    struct buf body, answer;
    char why[CURL_ERROR_SIZE];
    long status;
    double wait_s; /* that the server asks for; 0: it says nothing */
};

static bool is_stopped(const struct teacher_url *t)
{
    return atomic_load(&t->end) || (t->o.stop && atomic_load(t->o.stop));
}

static size_t on_bytes(char *data, size_t size, size_t n_item, void *ctx)
{
    struct call *c = ctx;
    if (c->answer.len + size * n_item > BODY_MAX)
        return 0;
    buf_add(&c->answer, data, size * n_item);
    return size * n_item;
}

static int on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    const struct call *call = ctx;
    (void)a, (void)b, (void)c, (void)d;
    return is_stopped(call->t);
}

static void set_options(struct call *c, const char *url)
{
    const struct teacher_url *t = c->t;
    curl_easy_setopt(c->easy, CURLOPT_URL, url);
    curl_easy_setopt(c->easy, CURLOPT_HTTPHEADER, t->headers);
    if (c->body.len) {
        curl_easy_setopt(c->easy, CURLOPT_POSTFIELDS, c->body.data);
        curl_easy_setopt(c->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->body.len);
    }
    curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->easy, CURLOPT_ERRORBUFFER, c->why);
    curl_easy_setopt(c->easy, CURLOPT_TIMEOUT_MS, (long)(t->o.timeout_s * 1000));
    curl_easy_setopt(c->easy, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c->easy, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c->easy, CURLOPT_XFERINFODATA, c);
    curl_easy_setopt(c->easy, CURLOPT_NOSIGNAL, 1L);
}

static bool is_passing(long status)
{
    return status == 408 || status == 425 || status == 429 || status == 502 || status == 503 ||
           status == 504;
}

/* *again: it may go better later. */
static FALLIBLE judge(struct call *c, CURLcode code, const char *url, bool *again, struct q_err *e)
{
    char text[200];
    *again = false;
    if (is_stopped(c->t))
        return q_fail(e, Q_CANCELLED, "stopped");
    if (code == CURLE_WRITE_ERROR)
        return q_fail(e, Q_TOO_LARGE, "%.120s: a response of more than %zu bytes", url, BODY_MAX);
    *again = code ? code != CURLE_URL_MALFORMAT && code != CURLE_UNSUPPORTED_PROTOCOL
                  : is_passing(c->status);
    if (code)
        return q_fail(e, *again ? Q_UNAVAILABLE : Q_INVALID, "%.120s: %.160s", url,
                      *c->why ? c->why : curl_easy_strerror(code));
    if (c->status == 200)
        return buf_check(&c->answer, "a response", e);
    teacher_answer_error(text, sizeof text, buf_str(&c->answer), c->answer.len);
    return q_fail(e,
                  *again || c->status >= 500             ? Q_UNAVAILABLE
                  : c->status == 401 || c->status == 403 ? Q_UNAUTHORIZED
                  : c->status == 404                     ? Q_NOT_FOUND
                                                         : Q_INVALID,
                  "%.120s: HTTP %ld: %.180s", url, c->status, text);
}

static FALLIBLE perform(struct call *c, const char *url, bool *again, struct q_err *e)
{
    curl_off_t named_s = 0;
    buf_reset(&c->answer);
    *c->why = 0;
    c->status = 0;
    set_options(c, url);
    const CURLcode code = curl_easy_perform(c->easy);
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &c->status);
    curl_easy_getinfo(c->easy, CURLINFO_RETRY_AFTER, &named_s);
    c->wait_s = named_s > 0 ? (double)named_s : 0;
    return judge(c, code, url, again, e);
}

static void wait_s(const struct teacher_url *t, double s)
{
    for (; s > 0 && !is_stopped(t); s -= STEP_S) {
        const double step = s < STEP_S ? s : STEP_S;
        const struct timespec ts = {.tv_nsec = (long)(step * 1e9)};
        nanosleep(&ts, NULL);
    }
}

/* The wait doubles. */
static FALLIBLE perform_again(struct call *c, const char *url, struct q_err *e)
{
    double backoff = c->t->o.backoff_s > 0 ? c->t->o.backoff_s : BACKOFF_S;
    enum q_code rc;
    bool again;
    for (uint32_t i = 0; (rc = perform(c, url, &again, e)) && again && i < c->t->o.n_retry; i++) {
        double s = c->wait_s > 0 ? c->wait_s : backoff;
        s = s < NAMED_MAX ? s : NAMED_MAX;
        backoff = 2 * backoff < BACKOFF_MAX ? 2 * backoff : BACKOFF_MAX;
        if (atomic_fetch_add(&c->t->n_told, 1) < 10)
            log_warning("%s; asking again in %.1f s", e->message, s);
        q_err_reset(e);
        wait_s(c->t, s);
    }
    return rc;
}

static FALLIBLE call_init(struct call *c, struct teacher_url *t, struct q_err *e)
{
    *c = (struct call){.t = t, .easy = curl_easy_init()};
    return c->easy ? Q_OK : q_fail(e, Q_NO_MEMORY, "libcurl: out of memory for a connection");
}

static void call_release(struct call *c)
{
    if (c->easy)
        curl_easy_cleanup(c->easy);
    buf_release(&c->body);
    buf_release(&c->answer);
}

/* ---- threads ---- */

static FALLIBLE answer_job(struct call *c, struct job *j, struct q_err *e)
{
    const struct teacher_question q = {
        .model = c->t->model,
        .ids = j->sample_ids,
        .labels = j->labels,
        .n = j->rows.n_row,
        .n_counted = j->rows.n_counted,
        .top_k = c->t->o.top_k,
    };
    enum q_code rc;
    buf_reset(&c->body);
    teacher_question_write(&c->body, &q);
    if ((rc = buf_check(&c->body, "a request", e)) || (rc = perform_again(c, c->t->url, e)))
        return rc;
    rc = teacher_answer_read(buf_str(&c->answer), c->answer.len, &q, j->ids, j->logprobs, e);
    return rc ? q_wrap(e, "%.120s", c->t->url) : Q_OK;
}

static void *thread_main(void *arg)
{
    struct teacher_url *t = arg;
    struct call c;
    struct job *j;
    struct q_err e = Q_ERR_INIT, ignored = Q_ERR_INIT;
    const enum q_code rc = call_init(&c, t, &e);
    while (queue_pop(&t->jobs, &j, -1)) {
        q_err_reset(&j->error);
        if (rc)
            j->error = e;
        else if (answer_job(&c, j, &j->error))
            log_debug("%s", j->error.message);
        const enum q_code pushed = queue_push(&t->results, &j, &ignored);
        Q_ASSERT(!pushed); /* room is reserved */
    }
    call_release(&c);
    return NULL;
}

static FALLIBLE start_threads(struct teacher_url *t, struct q_err *e)
{
    while (t->n_thread < t->o.n_connection) {
        if (pthread_create(&t->threads[t->n_thread], NULL, thread_main, t) != 0)
            return q_fail(e, Q_NO_MEMORY, "cannot start thread %u for a connection", t->n_thread);
        t->n_thread++;
    }
    return Q_OK;
}

static void end_threads(struct teacher_url *t)
{
    atomic_store(&t->end, true);
    queue_close(&t->jobs);
    while (t->n_thread)
        pthread_join(t->threads[--t->n_thread], NULL);
}

/* ---- the window ---- */

struct window {
    struct teacher_url *t;
    const struct teacher_url_calls *calls;
    struct job *jobs; /* [n_max] a ring in the order of the samples */
    uint32_t n_max, first, n;
    bool end; /* there are no more samples */
};

static void job_release(struct job *j)
{
    q_free(j->sample_ids);
    q_free(j->labels);
    q_free(j->ids);
    q_free(j->logprobs);
    *j = (struct job){0};
}

static FALLIBLE job_init(struct job *j, const struct teacher_url_sample *s, uint32_t top_k,
                         struct q_err *e)
{
    const size_t n = (size_t)s->n_counted * top_k;
    *j = (struct job){.rows = {.n_row = s->n, .n_counted = s->n_counted}};
    j->rows.key = teacher_key_of(s->ids, s->labels, s->n);
    j->sample_ids = q_calloc(s->n, sizeof *j->sample_ids);
    j->labels = q_calloc(s->n, sizeof *j->labels);
    j->rows.ids = j->ids = q_calloc(n, sizeof *j->ids);
    j->rows.logprobs = j->logprobs = q_calloc(n, sizeof *j->logprobs);
    if (!j->sample_ids || !j->labels || !j->ids || !j->logprobs)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a sequence of %u tokens", s->n);
    memcpy(j->sample_ids, s->ids, s->n * sizeof *s->ids);
    memcpy(j->labels, s->labels, s->n * sizeof *s->labels);
    return Q_OK;
}

static FALLIBLE fill_window(struct window *w, struct q_err *e)
{
    struct teacher_url_sample s;
    enum q_code rc = Q_OK;
    while (w->n < w->n_max && !w->end && !rc) {
        struct job *j = &w->jobs[(w->first + w->n) % w->n_max];
        if ((rc = w->calls->next(w->calls->ctx, &s, &w->end, e)) || w->end)
            break;
        w->n++;
        if (!(rc = job_init(j, &s, w->t->o.top_k, e)))
            rc = queue_push(&w->t->jobs, &j, e);
    }
    return rc;
}

/* Those that are done, in their order. */
static FALLIBLE take_done(struct window *w, struct q_err *e)
{
    enum q_code rc = Q_OK;
    while (w->n && w->jobs[w->first].is_done && !rc) {
        struct job *j = &w->jobs[w->first];
        if (j->error.code) {
            *e = j->error;
            return e->code;
        }
        rc = w->calls->take(w->calls->ctx, &j->rows, e);
        job_release(j);
        w->first = (w->first + 1) % w->n_max;
        w->n--;
    }
    return rc;
}

static FALLIBLE run_window(struct window *w, struct q_err *e)
{
    struct job *j;
    enum q_code rc;
    while (!(rc = fill_window(w, e)) && w->n) {
        if (is_stopped(w->t))
            return q_fail(e, Q_CANCELLED, "stopped");
        if (!queue_pop(&w->t->results, &j, (int)(STEP_S * 1000)))
            continue;
        j->is_done = true;
        if ((rc = take_done(w, e)))
            return rc;
    }
    return rc;
}

FALLIBLE teacher_url_run(struct teacher_url *t, const struct teacher_url_calls *calls,
                         struct q_err *e)
{
    struct window w = {.t = t, .calls = calls, .n_max = WINDOW * t->o.n_connection};
    enum q_code rc;
    w.jobs = q_calloc(w.n_max, sizeof *w.jobs);
    if (!w.jobs)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %u requests", w.n_max);
    if (!(rc = queue_init(&t->jobs, sizeof(struct job *), w.n_max, false, e)) &&
        !(rc = queue_init(&t->results, sizeof(struct job *), w.n_max, false, e)) &&
        !(rc = queue_reserve(&t->results, e)) && !(rc = start_threads(t, e)))
        rc = run_window(&w, e);
    if (t->jobs.made)
        end_threads(t);
    queue_release(&t->jobs);
    queue_release(&t->results);
    for (uint32_t i = 0; i < w.n_max; i++)
        job_release(&w.jobs[i]);
    q_free(w.jobs);
    atomic_store(&t->end, false);
    return rc;
}

/* ---- life ---- */

static FALLIBLE make_urls(struct teacher_url *t, struct q_err *e)
{
    size_t n = strlen(t->o.url);
    while (n && t->o.url[n - 1] == '/')
        n--;
    const bool has_v1 = n >= 3 && memcmp(t->o.url + n - 3, "/v1", 3) == 0;
    const int length = (int)(has_v1 ? n - 3 : n);
    if (strncmp(t->o.url, "http://", 7) != 0 && strncmp(t->o.url, "https://", 8) != 0)
        return q_fail(e, Q_INVALID,
                      "\"%.100s\" is no address of a server, expected "
                      "http://HOST:PORT",
                      t->o.url);
    if (snprintf(t->url, URL_MAX, "%.*s/v1/completions", length, t->o.url) >= (int)URL_MAX ||
        snprintf(t->models_url, URL_MAX, "%.*s/v1/models", length, t->o.url) >= (int)URL_MAX)
        return q_fail(e, Q_TOO_LARGE, "an address of more than %u bytes", URL_MAX);
    return Q_OK;
}

static FALLIBLE add_header(struct teacher_url *t, const char *line, struct q_err *e)
{
    struct curl_slist *more = curl_slist_append(t->headers, line);
    if (!more)
        return q_fail(e, Q_NO_MEMORY, "libcurl: out of memory for headers");
    t->headers = more;
    return Q_OK;
}

static FALLIBLE add_headers(struct teacher_url *t, struct q_err *e)
{
    char line[1024];
    enum q_code rc = add_header(t, "Content-Type: application/json", e);
    if (rc || !*t->o.api_key)
        return rc;
    if (snprintf(line, sizeof line, "Authorization: Bearer %s", t->o.api_key) >= (int)sizeof line)
        return q_fail(e, Q_TOO_LARGE, "an API key of more than %zu bytes", sizeof line - 32);
    return add_header(t, line, e);
}

/* A portable program takes the libcurl that it finds (deploy/portable). */
static FALLIBLE start_curl(struct q_err *e)
{
    const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (!code)
        return Q_OK;
    return q_fail(e, Q_IO,
                  "cannot initialize libcurl, which sends the requests: %.160s (portable programs: "
                  "set QUIRE_CURL_LIBRARY to its path)",
                  curl_easy_strerror(code));
}

static FALLIBLE find_model(struct teacher_url *t, struct q_err *e)
{
    struct call c;
    enum q_code rc;
    if (!(rc = call_init(&c, t, e)) && !(rc = perform_again(&c, t->models_url, e)) && !*t->model &&
        (rc = teacher_answer_model(t->model, sizeof t->model, buf_str(&c.answer), c.answer.len, e)))
        rc = q_wrap(e, "%.120s", t->models_url);
    call_release(&c);
    return rc;
}

FALLIBLE teacher_url_open(struct teacher_url **out, const struct teacher_url_options *o,
                          struct q_err *e)
{
    enum q_code rc;
    if (o->n_connection == 0 || o->n_connection > TEACHER_CONNECTIONS_MAX)
        return q_fail(e, Q_INVALID, "%u connections, expected 1 to %u", o->n_connection,
                      TEACHER_CONNECTIONS_MAX);
    struct teacher_url *t = q_calloc(1, sizeof *t);
    if (!t)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a client");
    t->o = *o;
    if ((size_t)snprintf(t->model, sizeof t->model, "%s", o->model) >= sizeof t->model)
        rc = q_fail(e, Q_TOO_LARGE, "a model's name of more than %u bytes", MODEL_MAX);
    else if (!(rc = make_urls(t, e)) && !(rc = start_curl(e)) && !(rc = add_headers(t, e)))
        rc = find_model(t, e);
    if (rc)
        teacher_url_close(t);
    else
        *out = t;
    return rc;
}

void teacher_url_close(struct teacher_url *t)
{
    if (!t)
        return;
    curl_slist_free_all(t->headers);
    q_free(t);
}

const char *teacher_url_model(const struct teacher_url *t)
{
    return t->model;
}
