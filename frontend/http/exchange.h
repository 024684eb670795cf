/* SPDX-License-Identifier: Apache-2.0 */
/* exchange - one HTTP request and its response.
 *
 * It is allocated in h2o's request pool and valid from the handler's call until the response is
 * sent or the client disconnects. Then `gone` (http_on_gone) is called exactly once, and the
 * pointer is invalid. A response is either http_reply (a whole body) or http_stream_start, _write
 * …, _end (server-sent events). Writes never block. A client that does not read has
 * HTTP_STREAM_BYTES_MAX of buffer; then the stream is closed and `gone` called, so that a slow
 * reader uses no more memory. Threads: the loop's thread only. */
#ifndef QUIRE_FRONTEND_HTTP_EXCHANGE_H
#define QUIRE_FRONTEND_HTTP_EXCHANGE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"

struct http_exchange;

#define HTTP_STREAM_BYTES_MAX ((size_t)4 << 20) /* not yet read by the client */
#define HTTP_ID_MAX           64                /* bytes of a request id */

struct http_text { /* borrowed from the exchange */
    const char *data;
    size_t n;
};
struct http_text http_path(const struct http_exchange *x); /* normalized, without the query */
/* The query after '?'; n = 0: none. */
struct http_text http_query(const struct http_exchange *x);
struct http_text http_body(const struct http_exchange *x); /* unpacked */
struct http_text http_header(const struct http_exchange *x,
                             const char *name); /* name in lower case; n = 0: absent */
/* SHA-256 of the request's API key. False: the server has no keys. */
bool http_key(const struct http_exchange *x, unsigned char digest[32]);
/* The scheduling weight of that key (--api-key-file); 1 without a key. */
uint32_t http_key_weight(const struct http_exchange *x);
/* Its name for logs; "no key". */
const char *http_key_name(const struct http_exchange *x);
/* May the request use the model of that name? */
bool http_key_allows(const struct http_exchange *x, const char *model);
/* The client's X-Request-Id where it is acceptable, else 32 random hex digits. NUL-terminated. */
const char *http_request_id(const struct http_exchange *x);
/* Has the text s[0..n) 1 to HTTP_ID_MAX bytes, all of them letters, digits or of "-_.:"? */
bool http_id_acceptable(const char *s, size_t n);

/* Called once, when the exchange ends. Not for responses sent inside the handler before it is set.
 */
void http_on_gone(struct http_exchange *x, void (*gone)(void *ctx), void *ctx);

/* Set the response header X-Quire-Warning; printable ASCII. Call before the response starts.
 * Without headers (local.h) the text is logged. */
void http_warn(struct http_exchange *x, const char *text);
/* Add a header to the response, before it starts. value: bytes that a header may have; copied. No
 * effect without headers (local.h). */
void http_add_header(struct http_exchange *x, const char *name, const char *value);
/* Send the whole response; *body is moved out. */
void http_reply(struct http_exchange *x, int status, const char *content_type, struct buf *body);
enum http_error_form { HTTP_ERROR_OPENAI, HTTP_ERROR_ANTHROPIC };

struct http_error {
    int status; /* 0: the code's */
    enum q_code code;
    const char *message;
    const char *param;       /* NULL: null */
    const char *openai_code; /* NULL: from the status */
    uint32_t retry_after_s;  /* 0: no header */
    enum http_error_form form;
};
void http_reply_error(struct http_exchange *x, const struct http_error *error);
/* Append the error object, {"error":{"message":…,"type":…,"param":…,"code":…}}; in Anthropic's form
 * with its types, and "type":"error" beside it. */
void http_error_body(struct buf *out, const struct http_error *error);

void http_stream_start(
    struct http_exchange *x); /* 200, text/event-stream; does nothing the second time */
bool http_stream_started(const struct http_exchange *x); /* the head is sent */
void http_stream_write(struct http_exchange *x, const char *data, size_t n);
void http_stream_end(struct http_exchange *x);

#endif
