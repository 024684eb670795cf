/* SPDX-License-Identifier: Apache-2.0 */
/* libcurl's "socket action" interface: libcurl names its descriptors and its next timeout, and the
 * loop waits for them and for the time of the next request together. So an iteration costs time for
 * its events, not for all open connections. */
#include "engine/bench/load.h"
#include <curl/curl.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/mem.h"
#include "engine/bench/sse.h"

#define EVENTS_MAX  64
#define ANSWER_MAX  ((size_t)64 << 10) /* bytes of an error's body that are kept */
#define WAIT_US_MAX 100000             /* maximum interval of progress reports */
#define GET_MAX     ((size_t)16 << 20)

struct call {
    struct load *load;
    struct call *prev, *next; /* of those open */
    size_t i;
    CURL *easy;
    struct buf body, answer;
    struct sse sse;
    struct q_err error;
    bool finished; /* a finish_reason came */
    char curl_error[CURL_ERROR_SIZE];
};

struct load {
    const struct load_config *config;
    struct load_result *out;
    CURLM *multi;
    struct curl_slist *headers;
    int epoll;
    int64_t start_us, timer_us; /* timer_us: time of libcurl's next timeout; -1 = none */
    struct call open;           /* head of the ring of open calls */
    struct call *ready;         /* the next to send, with its body made */
    size_t n, n_open, n_sent, n_done;
    uint64_t n_piece;
    const double *due_s;
    struct q_err error; /* ends the run */
};

/* one request */

static enum q_code on_piece(void *ctx, const struct sse_piece *p, struct q_err *e)
{
    struct call *c = ctx;
    struct serve_record *r = &c->load->out->records[c->i];
    enum q_code rc = Q_OK;
    c->finished |= p->has_finish;
    if (p->has_usage && (p->n_input || p->n_output)) {
        r->n_input = p->n_input;
        r->n_output = p->n_output;
    }
    if (!p->has_token)
        return Q_OK;
    int64_t now = clock_us();
    if (r->first_us)
        rc = samples_add(&c->load->out->pauses, (double)(now - r->last_us) / 1000, e);
    else
        r->first_us = now;
    r->last_us = now;
    r->n_piece++;
    c->load->n_piece++;
    return rc;
}

static size_t on_bytes(char *data, size_t size, size_t n_item, void *ctx)
{
    struct call *c = ctx;
    size_t n = size * n_item;
    long status = 0;
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200)
        return sse_push(&c->sse, data, n, &c->error) ? 0 : n;
    if (c->answer.len + n <= ANSWER_MAX)
        buf_add(&c->answer, data, n);
    return n;
}

static void call_free(struct call *c)
{
    if (!c)
        return;
    if (c->easy)
        curl_easy_cleanup(c->easy);
    buf_release(&c->body);
    buf_release(&c->answer);
    sse_release(&c->sse);
    q_free(c);
}

static void set_options(struct call *c)
{
    const struct load_config *config = c->load->config;
    curl_easy_setopt(c->easy, CURLOPT_URL, config->url);
    curl_easy_setopt(c->easy, CURLOPT_HTTPHEADER, c->load->headers);
    curl_easy_setopt(c->easy, CURLOPT_POSTFIELDS, c->body.data);
    curl_easy_setopt(c->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->body.len);
    curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(c->easy, CURLOPT_PRIVATE, c);
    curl_easy_setopt(c->easy, CURLOPT_ERRORBUFFER, c->curl_error);
    curl_easy_setopt(c->easy, CURLOPT_TIMEOUT_MS, (long)(config->timeout_s * 1000));
    curl_easy_setopt(c->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
}

/* Make the next request, so that it only has to be sent when it is due. */
static FALLIBLE make_ready(struct load *l, struct q_err *e)
{
    struct call *c = q_calloc(1, sizeof *c);
    if (!c)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a request");
    c->load = l;
    c->i = l->n_sent;
    sse_init(&c->sse, on_piece, c);
    enum q_code rc = l->config->body(l->config->ctx, c->i, &c->body, e);
    if (!rc && !(rc = buf_check(&c->body, "a request", e))) {
        c->easy = curl_easy_init();
        if (!c->easy)
            rc = q_fail(e, Q_NO_MEMORY, "libcurl: out of memory for a request");
    }
    if (rc) {
        call_free(c);
        return rc;
    }
    set_options(c);
    l->ready = c;
    return Q_OK;
}

static FALLIBLE send_ready(struct load *l, bool waited, struct q_err *e)
{
    struct call *c = l->ready;
    struct serve_record *r = &l->out->records[c->i];
    l->ready = NULL;
    c->next = &l->open;
    c->prev = l->open.prev;
    c->prev->next = l->open.prev = c;
    l->n_open++;
    l->n_sent++;
    r->sent_us = clock_us();
    r->due_us = waited ? 0 : l->start_us + (int64_t)(l->due_s[c->i] * 1e6);
    CURLMcode code = curl_multi_add_handle(l->multi, c->easy);
    if (code)
        return q_fail(e, Q_IO, "libcurl: %s", curl_multi_strerror(code));
    return Q_OK;
}

static void judge(struct call *c, CURLcode code)
{
    struct serve_record *r = &c->load->out->records[c->i];
    long status = 0;
    char text[120];
    curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
    r->end_us = clock_us();
    if (c->error.code) {
        snprintf(r->error, sizeof r->error, "%.150s", c->error.message);
    } else if (status && status != 200) {
        sse_error_text(text, sizeof text, buf_str(&c->answer), c->answer.len);
        snprintf(r->error, sizeof r->error, "HTTP %ld: %s", status, text);
    } else if (code) {
        snprintf(r->error, sizeof r->error, "%.159s",
                 *c->curl_error ? c->curl_error : curl_easy_strerror(code));
    } else if (!c->sse.done && !c->finished) {
        snprintf(r->error, sizeof r->error, "%s",
                 r->n_piece ? "the stream ended without [DONE]"
                            : "the response is not an event stream");
    } else {
        r->ok = true;
    }
}

static void end_call(struct load *l, struct call *c)
{
    curl_multi_remove_handle(l->multi, c->easy);
    c->prev->next = c->next;
    c->next->prev = c->prev;
    l->n_open--;
    call_free(c);
}

static void reap(struct load *l)
{
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(l->multi, &left))) {
        char *c = NULL;
        if (m->msg != CURLMSG_DONE)
            continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &c);
        judge((struct call *)(void *)c, m->data.result);
        end_call(l, (struct call *)(void *)c);
        l->n_done++;
    }
}

/* waiting */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *ctx, void *known)
{
    struct load *l = ctx;
    struct epoll_event ev = {.data.fd = fd};
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(l->epoll, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    ev.events = (what & CURL_POLL_IN ? (uint32_t)EPOLLIN : 0) |
                (what & CURL_POLL_OUT ? (uint32_t)EPOLLOUT : 0);
    if (epoll_ctl(l->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &ev) != 0)
        q_fail(&l->error, Q_IO, "epoll: %s", strerror(errno));
    curl_multi_assign(l->multi, fd, l);
    return 0;
}

static int on_timer(CURLM *multi, long ms, void *ctx)
{
    struct load *l = ctx;
    (void)multi;
    l->timer_us = ms < 0 ? -1 : clock_us() + ms * 1000;
    return 0;
}

static bool is_full(const struct load *l)
{
    return l->config->open_max && l->n_open >= l->config->open_max;
}

static int64_t due_us(const struct load *l)
{
    return l->start_us + (int64_t)(l->due_s[l->n_sent] * 1e6);
}

/* Until a socket is ready, libcurl's timer, or the next request's time. */
static void wait_for_something(struct load *l)
{
    int64_t now = clock_us(), until = now + WAIT_US_MAX;
    struct pollfd p = {.fd = l->epoll, .events = POLLIN};
    if (l->timer_us >= 0 && l->timer_us < until)
        until = l->timer_us;
    if (l->n_sent < l->n && !is_full(l) && due_us(l) < until)
        until = due_us(l);
    int64_t us = until > now ? until - now : 0;
    const struct timespec t = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    (void)ppoll(&p, 1, &t, NULL);
}

static void act(struct load *l)
{
    struct epoll_event events[EVENTS_MAX];
    int running, n = epoll_wait(l->epoll, events, EVENTS_MAX, 0);
    for (int i = 0; i < n; i++) {
        int mask = (events[i].events & EPOLLIN ? CURL_CSELECT_IN : 0) |
                   (events[i].events & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                   (events[i].events & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0);
        curl_multi_socket_action(l->multi, events[i].data.fd, mask, &running);
    }
    if (l->timer_us >= 0 && clock_us() >= l->timer_us) {
        l->timer_us = -1;
        curl_multi_socket_action(l->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    reap(l);
}

/* Those that are due and have room. */
static FALLIBLE send_due(struct load *l, bool *waited, struct q_err *e)
{
    enum q_code rc = Q_OK;
    while (l->n_sent < l->n && !rc) {
        if (!l->ready && (rc = make_ready(l, e)))
            return rc;
        if (due_us(l) > clock_us())
            return Q_OK;
        if (is_full(l)) {
            *waited = true;
            return Q_OK;
        }
        rc = send_ready(l, *waited, e);
        *waited = false;
    }
    return rc;
}

static FALLIBLE run_load(struct load *l, struct q_err *e)
{
    bool waited = false;
    enum q_code rc = Q_OK;
    while (l->n_sent < l->n || l->n_open) {
        if ((rc = send_due(l, &waited, e)))
            return rc;
        wait_for_something(l);
        act(l);
        if (l->error.code) {
            *e = l->error;
            return e->code;
        }
        if (!l->config->tell(l->config->ctx, l->n_sent, l->n_done, l->n_piece))
            return Q_OK;
    }
    return Q_OK;
}

/* Discard requests that are open after an interrupt, as if they had not been sent. */
static void forget_open(struct load *l)
{
    while (l->open.next != &l->open) {
        struct call *c = l->open.next;
        l->out->records[c->i].sent_us = 0;
        end_call(l, c);
    }
    call_free(l->ready);
}

/* A portable program takes the libcurl that it finds (deploy/portable). */
static FALLIBLE load_start(struct q_err *e)
{
    const CURLcode code = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (code)
        return q_fail(e, Q_IO,
                      "cannot initialize libcurl, which sends the requests: %.160s (portable "
                      "programs: set QUIRE_CURL_LIBRARY to its path)",
                      curl_easy_strerror(code));
    return Q_OK;
}

static FALLIBLE begin_load(struct load *l, struct q_err *e)
{
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll < 0)
        return q_fail(e, Q_IO, "epoll: %s", strerror(errno));
    enum q_code rc = load_start(e);
    if (rc)
        return rc;
    if (!(l->multi = curl_multi_init()))
        return q_fail(e, Q_NO_MEMORY, "libcurl: out of memory");
    for (size_t i = 0; i < l->config->n_header; i++) {
        struct curl_slist *more = curl_slist_append(l->headers, l->config->headers[i]);
        if (!more)
            return q_fail(e, Q_NO_MEMORY, "libcurl: out of memory for headers");
        l->headers = more;
    }
    curl_multi_setopt(l->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(l->multi, CURLMOPT_SOCKETDATA, l);
    curl_multi_setopt(l->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(l->multi, CURLMOPT_TIMERDATA, l);
    curl_multi_setopt(l->multi, CURLMOPT_MAXCONNECTS, 65536L);
    l->start_us = clock_us();
    return Q_OK;
}

enum q_code load_run(const struct load_config *c, const double *due_s, size_t n,
                     struct load_result *out, struct q_err *e)
{
    struct load l = {.config = c, .out = out, .epoll = -1, .timer_us = -1, .n = n, .due_s = due_s};
    l.open.next = l.open.prev = &l.open;
    enum q_code rc = begin_load(&l, e);
    if (!rc)
        rc = run_load(&l, e);
    forget_open(&l);
    if (l.multi)
        curl_multi_cleanup(l.multi);
    curl_slist_free_all(l.headers);
    if (l.epoll >= 0)
        close(l.epoll);
    return rc;
}

/* a GET */

static size_t on_get(char *data, size_t size, size_t n_item, void *ctx)
{
    struct buf *b = ctx;
    if (b->len + size * n_item > GET_MAX)
        return 0;
    buf_add(b, data, size * n_item);
    return size * n_item;
}

enum q_code load_get(const struct load_config *c, const char *url, struct load_answer *out,
                     struct q_err *e)
{
    enum q_code rc = load_start(e);
    CURL *easy = rc ? NULL : curl_easy_init();
    struct curl_slist *headers = NULL;
    char why[CURL_ERROR_SIZE] = "";
    if (rc)
        return rc;
    if (!easy)
        return q_fail(e, Q_NO_MEMORY, "libcurl: out of memory for a request");
    for (size_t i = 0; i < c->n_header; i++) {
        struct curl_slist *more = curl_slist_append(headers, c->headers[i]);
        headers = more ? more : headers;
    }
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_get);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &out->body);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, 10000L);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    buf_reset(&out->body);
    CURLcode code = curl_easy_perform(easy);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &out->status);
    curl_easy_cleanup(easy);
    curl_slist_free_all(headers);
    if (code)
        return q_fail(e, Q_UNAVAILABLE, "%.120s: %.100s", url,
                      *why ? why : curl_easy_strerror(code));
    return Q_OK;
}
