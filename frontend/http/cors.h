/* SPDX-License-Identifier: Apache-2.0 */
/* cors - headers that allow pages of other origins to read responses (Fetch standard, 3.2).
 *
 * The rules and defaults are those of vLLM's options: "*" stands for all; with credentials browsers
 * do not accept "*", so the origin is sent. Threads: reentrant. */
#ifndef QUIRE_FRONTEND_HTTP_CORS_H
#define QUIRE_FRONTEND_HTTP_CORS_H
#include <stdbool.h>
#include "common/buf.h"

struct cors_list { /* borrowed */
    const char *const *items;
    size_t n;
};
struct cors {
    struct cors_list origins, methods, headers;
    bool credentials;
};
struct cors_asked { /* a request's headers; data NULL: absent. */
    const char *origin, *method, *headers;
    size_t n_origin, n_method, n_headers;
};

bool cors_any(const struct cors_list *l); /* contains "*" */
bool cors_origin(const struct cors *c, const char *origin, size_t n);
/* True if Access-Control-Allow-Origin depends on the origin: then responses need Vary: Origin. */
bool cors_varies(const struct cors *c);
/* The part of a preflight that is not allowed: "origin", "method" or "headers"; NULL: none. */
const char *cors_refused(const struct cors *c, const struct cors_asked *a);
/* Append the values of Access-Control-Allow-Methods and -Headers. The latter may be empty: then the
 * header is omitted. */
void cors_methods(const struct cors *c, struct buf *out);
void cors_headers(const struct cors *c, const struct cors_asked *a, struct buf *out);

#endif
