/* SPDX-License-Identifier: Apache-2.0 */
/* Each hop is a transfer of its own: libcurl does not follow redirects, so that the header with the
 * token is decided for every host. */
#include "common/hub/remote/http.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "common/clock.h"

#define HOPS_MAX        10
#define BACKOFF_MS      500 /* before the second attempt; doubles */
#define RETRY_AFTER_MAX 600 /* s; a longer wait is an error */
#define BUFFER_BYTES    (512L << 10)
#define HOST_MAX        8L /* connections to one host */

enum q_code http_init(struct http *h, const struct endpoint *p, struct q_err *e)
{
    memset(h, 0, sizeof *h);
    h->endpoint = p;
    const CURLcode rc = curl_global_init(CURL_GLOBAL_DEFAULT);
    if (rc != CURLE_OK)
        return q_fail(e, Q_UNSUPPORTED, "downloads need libcurl: %s", curl_easy_strerror(rc));
    h->multi = curl_multi_init();
    if (!h->multi)
        return q_fail(e, Q_NO_MEMORY, "libcurl: out of memory");
    curl_multi_setopt(h->multi, CURLMOPT_MAX_HOST_CONNECTIONS, HOST_MAX);
    return Q_OK;
}

static void stop_transfer(struct http *h, struct http_request *r)
{
    if (r->easy) {
        curl_multi_remove_handle(h->multi, r->easy);
        curl_easy_cleanup(r->easy);
    }
    curl_slist_free_all(r->lines);
    r->easy = NULL;
    r->lines = NULL;
}

void http_drop(struct http *h)
{
    for (struct http_request *r = h->requests; r; r = r->next)
        stop_transfer(h, r);
    h->requests = NULL;
}

void http_release(struct http *h)
{
    http_drop(h);
    if (h->multi)
        curl_multi_cleanup(h->multi);
    h->multi = NULL;
}

void http_add(struct http *h, struct http_request *r)
{
    snprintf(r->at, sizeof r->at, "%s", r->url);
    if (r->head_only && h->refuses_head)
        r->probe = HTTP_PROBE_BYTE;
    r->next = h->requests;
    h->requests = r;
}

static size_t on_header(char *line, size_t size, size_t n, void *ctx)
{
    struct http_request *r = ctx;
    head_line(&r->head, line, size * n, clock_unix());
    return size * n;
}

static bool is_success(unsigned status)
{
    return status == 200 || status == 206;
}

static size_t on_body(char *data, size_t size, size_t n, void *ctx)
{
    struct http_request *r = ctx;
    n *= size;
    if (!is_success(r->head.status))
        return n;       /* the text of an error or a redirect */
    if (r->head_only) { /* of a GET: the head is there, more than a byte ends the transfer */
        r->got += n;
        return r->got > 1 ? 0 : n;
    }
    if (!r->begun) {
        r->begun = true;
        if (r->head.status == 200)
            r->from = 0;
        if (r->sink->begin && (r->sink_rc = r->sink->begin(r->ctx, &r->head, &r->sink_error)))
            return 0;
    }
    if (r->sink->data && (r->sink_rc = r->sink->data(r->ctx, data, n, &r->sink_error)))
        return 0;
    r->got += n;
    return n;
}

static bool add_line(struct http_request *r, const char *line)
{
    struct curl_slist *more = curl_slist_append(r->lines, line);
    if (more)
        r->lines = more;
    return more != NULL;
}

static void set_options(const struct http *h, struct http_request *r)
{
    const struct endpoint *p = h->endpoint;
    curl_easy_setopt(r->easy, CURLOPT_URL, r->at);
    curl_easy_setopt(r->easy, CURLOPT_PRIVATE, r);
    curl_easy_setopt(r->easy, CURLOPT_HTTPHEADER, r->lines);
    curl_easy_setopt(r->easy, CURLOPT_USERAGENT, "quire/" QUIRE_VERSION);
    curl_easy_setopt(r->easy, CURLOPT_PROTOCOLS_STR,
                     strncasecmp(h->endpoint->url, "https://", 8) ? "http,https" : "https");
    curl_easy_setopt(r->easy, CURLOPT_NOBODY,
                     r->head_only && r->probe == HTTP_PROBE_HEAD ? 1L : 0L);
    curl_easy_setopt(r->easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(r->easy, CURLOPT_HEADERDATA, r);
    curl_easy_setopt(r->easy, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(r->easy, CURLOPT_WRITEDATA, r);
    curl_easy_setopt(r->easy, CURLOPT_ERRORBUFFER, r->why);
    curl_easy_setopt(r->easy, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
    curl_easy_setopt(r->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(r->easy, CURLOPT_CONNECTTIMEOUT, p->connect_timeout_s);
    curl_easy_setopt(r->easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(r->easy, CURLOPT_LOW_SPEED_TIME, p->stall_timeout_s);
    curl_easy_setopt(r->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    if (*p->ca_file)
        curl_easy_setopt(r->easy, CURLOPT_CAINFO, p->ca_file);
}

static enum q_code start_transfer(struct http *h, struct http_request *r, struct q_err *e)
{
    char range[64];
    head_init(&r->head);
    r->begun = false;
    r->got = 0;
    r->why[0] = '\0';
    r->from = r->sink->offset && !r->head_only ? r->sink->offset(r->ctx) : 0;
    r->easy = curl_easy_init();
    bool ok = r->easy && add_line(r, "Accept-Encoding: identity");
    if (*h->endpoint->authorization && endpoint_has(h->endpoint, r->at))
        ok = ok && add_line(r, h->endpoint->authorization);
    if (r->from || r->last) {
        const int n =
            snprintf(range, sizeof range, "Range: bytes=%llu-", (unsigned long long)r->from);
        if (r->last)
            snprintf(range + n, sizeof range - (size_t)n, "%llu", (unsigned long long)r->last);
        ok = ok && add_line(r, range);
    }
    if (r->head_only && r->probe == HTTP_PROBE_BYTE)
        ok = ok && add_line(r, "Range: bytes=0-0");
    if (!ok)
        return q_fail(e, Q_NO_MEMORY, "libcurl: out of memory");
    set_options(h, r);
    const CURLMcode rc = curl_multi_add_handle(h->multi, r->easy);
    return rc == CURLM_OK ? Q_OK : q_fail(e, Q_INTERNAL, "%s", curl_multi_strerror(rc));
}

static void finish(struct http *h, struct http_request *r, enum q_code rc, struct q_err *e)
{
    struct http_request **at = &h->requests;
    stop_transfer(h, r);
    while (*at && *at != r)
        at = &(*at)->next;
    if (*at)
        *at = r->next;
    r->sink->done(r->ctx, rc, &r->head, e);
}

/* Errors of libcurl that another attempt cannot change. */
static bool is_final(CURLcode rc)
{
    static const CURLcode final[] = {
        CURLE_UNSUPPORTED_PROTOCOL,
        CURLE_URL_MALFORMAT,
        CURLE_COULDNT_RESOLVE_PROXY,
        CURLE_NOT_BUILT_IN,
        CURLE_PEER_FAILED_VERIFICATION,
        CURLE_SSL_CACERT_BADFILE,
        CURLE_OUT_OF_MEMORY,
        CURLE_FAILED_INIT,
    };
    for (size_t i = 0; i < sizeof final / sizeof *final; i++)
        if (final[i] == rc)
            return true;
    return false;
}

static enum q_code fail_transfer(const struct http *h, const struct http_request *r, CURLcode rc,
                                 struct q_err *e)
{
    const char *why = *r->why ? r->why : curl_easy_strerror(rc);
    const size_t n = strcspn(strstr(r->at, "://") ? strstr(r->at, "://") + 3 : r->at, "/?#");
    const char *host = strstr(r->at, "://") ? strstr(r->at, "://") + 3 : r->at;
    if (rc == CURLE_PEER_FAILED_VERIFICATION || rc == CURLE_SSL_CACERT_BADFILE)
        return q_fail(e, Q_UNAVAILABLE,
                      "%s: the certificate of %.*s is not accepted: %s; SSL_CERT_FILE names the "
                      "file of certificates of a proxy",
                      r->what, (int)n, host, why);
    return q_fail(e, Q_UNAVAILABLE,
                  "%s: no connection to %.*s: %s; check the network, https_proxy and HF_ENDPOINT "
                  "(%s). The next download goes on where this one ended",
                  r->what, (int)n, host, why, h->endpoint->url);
}

/* Try again later, or, after the last attempt, end with the error that e has. */
static void retry(struct http *h, struct http_request *r, int64_t wait_ms, struct q_err *e)
{
    const bool further = r->begun && r->from + r->got > r->furthest;
    if (further)
        r->furthest = r->from + r->got;
    r->attempts = further ? 1 : r->attempts + 1;
    if (r->attempts >= (r->is_unreachable ? HTTP_CONNECTS_MAX : HTTP_ATTEMPTS_MAX) ||
        wait_ms > RETRY_AFTER_MAX * 1000) {
        finish(h, r, e->code, e);
        return;
    }
    stop_transfer(h, r);
    if (wait_ms < 0)
        wait_ms = BACKOFF_MS << (r->attempts - 1);
    r->at_ms = clock_ms() + wait_ms;
    r->hops = 0;
    snprintf(r->at, sizeof r->at, "%s", r->url);
}

/* The absolute form of the location; libcurl joins it with the URL. */
static bool redirect(struct http *h, struct http_request *r, struct q_err *e)
{
    char *to = NULL;
    if (curl_easy_getinfo(r->easy, CURLINFO_REDIRECT_URL, &to) != CURLE_OK || !to ||
        strlen(to) > HEAD_URL_MAX || ++r->hops > HOPS_MAX) {
        (void)q_fail(e, Q_UNAVAILABLE, "%s: the server redirects %s; HF_ENDPOINT is %s", r->what,
                     r->hops > HOPS_MAX ? "in a circle" : "to no URL", h->endpoint->url);
        return false;
    }
    snprintf(r->at, sizeof r->at, "%s", to);
    stop_transfer(h, r);
    r->at_ms = 0;
    return true;
}

static bool is_redirect(unsigned status)
{
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/* Has the answer to a HEAD request what it is asked for, although it is a redirect? */
static bool is_answer(const struct http_request *r)
{
    return r->head_only && is_redirect(r->head.status) &&
           (r->head.linked_etag || (*r->head.etag && *r->head.commit));
}

/* HEAD is refused, or the file has no first byte: ask in the next way. False: there is none. */
static bool probe_again(struct http *h, struct http_request *r)
{
    const unsigned status = r->head.status;
    const bool no_head = status == 405 || status == 501;
    if (!r->head_only)
        return false;
    if (r->probe == HTTP_PROBE_HEAD && (no_head || (status == 403 && !*r->head.error_code)))
        r->probe = HTTP_PROBE_BYTE;
    else if (r->probe == HTTP_PROBE_BYTE && status == 416)
        r->probe = HTTP_PROBE_ALL;
    else
        return false;
    h->refuses_head |= no_head;
    stop_transfer(h, r);
    r->at_ms = 0;
    return true;
}

/* The transfer of a head ended where it was cut (on_body). */
static bool is_cut(const struct http_request *r, CURLcode curl)
{
    return r->head_only && curl == CURLE_WRITE_ERROR && is_success(r->head.status);
}

static bool is_busy(unsigned status)
{
    return status == 408 || status == 429 || (status >= 500 && status <= 599 && status != 501);
}

static enum q_code end_body(struct http_request *r, struct q_err *e)
{
    enum q_code rc = Q_OK;
    if (r->head_only) { /* a byte's length is not the file's */
        if (r->head.status == 206 && !r->head.linked_size)
            r->head.size = r->head.range_total;
        return Q_OK;
    }
    if (!r->begun) { /* an empty file */
        r->from = r->head.status == 200 ? 0 : r->from;
        rc = r->sink->begin ? r->sink->begin(r->ctx, &r->head, e) : Q_OK;
    }
    return rc || !r->sink->end ? rc : r->sink->end(r->ctx, e);
}

/* An error's status: another attempt, or the end. */
static void on_refusal(struct http *h, struct http_request *r)
{
    struct q_err e = Q_ERR_INIT;
    const unsigned status = r->head.status;
    enum q_code rc = h->fail(r, h->ctx, &e);
    if (status == 416 && r->from && !r->last && r->sink->restart) {
        struct q_err why = Q_ERR_INIT;
        const enum q_code failed = r->sink->restart(r->ctx, &why);
        if (failed)
            finish(h, r, failed, &why);
        else
            retry(h, r, 0, &e);
    } else if (is_busy(status)) {
        const uint64_t s = r->head.retry_after_s;
        retry(h, r, s == HEAD_NONE ? -1 : (int64_t)s * 1000, &e);
    } else {
        finish(h, r, rc, &e);
    }
}

/* The transfer of one hop is over. */
static void on_end(struct http *h, struct http_request *r, CURLcode curl)
{
    struct q_err e = Q_ERR_INIT;
    const unsigned status = r->head.status;
    if (r->sink_rc) {
        finish(h, r, r->sink_rc, &r->sink_error);
    } else if (curl != CURLE_OK && !is_cut(r, curl)) {
        enum q_code rc = fail_transfer(h, r, curl, &e);
        r->is_unreachable = curl == CURLE_COULDNT_CONNECT || curl == CURLE_COULDNT_RESOLVE_HOST;
        if (is_final(curl))
            finish(h, r, rc, &e);
        else
            retry(h, r, -1, &e);
    } else if (is_redirect(status) && !is_answer(r)) {
        if (!redirect(h, r, &e))
            finish(h, r, e.code, &e);
    } else if (is_success(status) || is_answer(r)) {
        enum q_code rc = end_body(r, &e);
        if (rc == Q_UNAVAILABLE)
            retry(h, r, -1, &e);
        else
            finish(h, r, rc, &e);
    } else if (!probe_again(h, r)) {
        on_refusal(h, r);
    }
}

/* Start what is due. The time until the next start, at most wait_ms. */
static int start_due(struct http *h, int wait_ms)
{
    const int64_t now = clock_ms();
    struct http_request *next;
    for (struct http_request *r = h->requests; r; r = next) {
        struct q_err e = Q_ERR_INIT;
        next = r->next;
        if (r->easy)
            continue;
        if (r->at_ms > now) {
            if (r->at_ms - now < wait_ms)
                wait_ms = (int)(r->at_ms - now);
        } else if (start_transfer(h, r, &e)) {
            finish(h, r, e.code, &e);
            return 0; /* `done` may have changed the list */
        } else {
            wait_ms = 0;
        }
    }
    return wait_ms;
}

void http_step(struct http *h, int wait_ms)
{
    int n_running = 0, n_left = 0;
    wait_ms = start_due(h, wait_ms);
    curl_multi_poll(h->multi, NULL, 0, wait_ms, NULL);
    curl_multi_perform(h->multi, &n_running);
    for (const CURLMsg *m; (m = curl_multi_info_read(h->multi, &n_left));) {
        struct http_request *r = NULL;
        const CURLcode rc = m->data.result;
        if (m->msg == CURLMSG_DONE &&
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&r) == CURLE_OK && r)
            on_end(h, r, rc);
    }
}
