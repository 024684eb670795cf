/* SPDX-License-Identifier: Apache-2.0 */
/* http - requests to the hub, several at once on one thread.
 *
 * A request goes through attempts: a broken connection, 429 and 5xx are tried again after a delay
 * that doubles, or that the server names; an attempt that got further than all before it starts the
 * count anew. Redirects are followed here, because the token must not leave the endpoint's origin.
 * Mirrors may refuse HEAD (405, 501, 403 without a hub's X-Error-Code): a GET of the first byte has
 * the same headers, and for an empty file, or a server that sends more, a GET that ends there.
 *
 *     http_add ─▶ [delay] ─▶ offset ─▶ begin (200, 206) ─▶ data … ─▶ done
 *                    ▲────── broken, 416, 429, 5xx ◀───────┘
 *
 * Threads: one owner. */
#ifndef QUIRE_COMMON_HUB_REMOTE_HTTP_H
#define QUIRE_COMMON_HUB_REMOTE_HTTP_H
#include <curl/curl.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/hub/remote/endpoint.h"
#include "common/hub/remote/head.h"

#define HTTP_ATTEMPTS_MAX 6 /* without progress */
#define HTTP_CONNECTS_MAX 3 /* that no host answers */

struct http_sink { /* where the answer goes; NULL members are skipped */
    /* Bytes that are there already; the request asks for the rest. */
    uint64_t (*offset)(void *ctx);
    /* The answer begins: 200 (all of the file), or 206 from the offset on. */
    enum q_code (*begin)(void *ctx, const struct head *h, struct q_err *e);
    enum q_code (*data)(void *ctx, const void *data, size_t n, struct q_err *e);
    /* The server does not have the bytes from the offset on (416): forget what is there. */
    enum q_code (*restart)(void *ctx, struct q_err *e);
    /* The answer ended: is it whole? Q_UNAVAILABLE: try again. */
    enum q_code (*end)(void *ctx, struct q_err *e);
    /* The request is over, with the last head; e is set iff rc. The request may be freed. */
    void (*done)(void *ctx, enum q_code rc, const struct head *h, struct q_err *e);
};

enum http_probe { HTTP_PROBE_HEAD, HTTP_PROBE_BYTE, HTTP_PROBE_ALL };

struct http_request {
    const char *url; /* borrowed until done */
    /* Only the head of the answer: HEAD, or where a server refuses that, the beginning of a GET; a
     * redirect to another host is the answer. */
    bool head_only;
    uint64_t last; /* the last byte that is asked for; 0: all from the offset on */
    const struct http_sink *sink;
    void *ctx;
    const char *what; /* for messages: the file or the model; borrowed until done */
    /* of http.c */
    struct http_request *next;
    CURL *easy; /* NULL: not running */
    struct curl_slist *lines;
    enum http_probe probe;     /* of head_only */
    char at[HEAD_URL_MAX + 1]; /* the URL of this hop */
    unsigned hops, attempts;
    int64_t at_ms; /* when to start */
    uint64_t from, got, furthest;
    struct head head;
    bool begun, is_unreachable;
    enum q_code sink_rc;
    struct q_err sink_error;
    char why[CURL_ERROR_SIZE];
};

struct http {
    const struct endpoint *endpoint;
    CURLM *multi;
    struct http_request *requests; /* all that are not done */
    bool refuses_head;             /* a server has no HEAD: it is not tried again */
    /* Makes the error of a status that is not tried again; ctx: of the http. */
    enum q_code (*fail)(const struct http_request *r, void *ctx, struct q_err *e);
    void *ctx;
};

/* Errors: Q_UNSUPPORTED (no libcurl), Q_NO_MEMORY. */
FALLIBLE http_init(struct http *h, const struct endpoint *p, struct q_err *e);
void http_release(struct http *h);
void http_drop(struct http *h); /* drop the requests that are not done, without `done` */
/* r: all zero but for the caller's members; lives until `done`. */
void http_add(struct http *h, struct http_request *r);
/* Let requests go on for at most wait_ms. */
void http_step(struct http *h, int wait_ms);

#endif
