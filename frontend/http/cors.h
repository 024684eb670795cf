/* SPDX-License-Identifier: Apache-2.0 */
/* cors - which pages of other origins a browser lets read our answers (Fetch standard, 3.2).
 *
 * The rules and defaults are those of vLLM's options: "*" stands for all; with credentials a
 * browser takes no "*", so the origin itself is named. Threads: reentrant. */
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
struct cors_asked { /* a request's headers; data NULL: not there. */
    const char *origin, *method, *headers;
    size_t n_origin, n_method, n_headers;
};

bool cors_any(const struct cors_list *l); /* "*" is among them */
bool cors_origin(const struct cors *c, const char *origin, size_t n);
/* The value of Access-Control-Allow-Origin depends on who asks: then answers need Vary: Origin. */
bool cors_varies(const struct cors *c);
/* What a preflight asks for and may not have: "origin", "method" or "headers"; NULL: nothing. */
const char *cors_refused(const struct cors *c, const struct cors_asked *a);
/* Append the values of Access-Control-Allow-Methods and -Headers. The latter may be empty: there is
 * no such header then. */
void cors_methods(const struct cors *c, struct buf *out);
void cors_headers(const struct cors *c, const struct cors_asked *a, struct buf *out);

#endif
