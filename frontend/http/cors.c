/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/http/cors.h"

#include <string.h>
#include <strings.h>

/* The methods that "*" stands for, and the headers that are always allowed. */
static const char *const all_methods[] = {"DELETE", "GET",  "HEAD", "OPTIONS",
                                          "PATCH",  "POST", "PUT"};
static const char *const safe_headers[] = {"Accept", "Accept-Language", "Content-Language",
                                           "Content-Type"};
#define LIST(array) ((struct cors_list){array, sizeof(array) / sizeof(*(array))})

static bool has(struct cors_list l, const char *s, size_t n)
{
    for (size_t i = 0; i < l.n; i++)
        if (strlen(l.items[i]) == n && strncasecmp(l.items[i], s, n) == 0)
            return true;
    return false;
}

bool cors_any(const struct cors_list *l)
{
    return has(*l, "*", 1);
}

bool cors_origin(const struct cors *c, const char *origin, size_t n)
{
    return cors_any(&c->origins) || has(c->origins, origin, n);
}

bool cors_varies(const struct cors *c)
{
    return c->credentials || !cors_any(&c->origins);
}

static bool headers_allowed(const struct cors *c, const struct cors_asked *a)
{
    const char *at = a->headers, *end = a->headers + a->n_headers;
    while (at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at)), *stop = comma ? comma : end;
        const char *next = comma ? comma + 1 : end;
        while (at < stop && (*at == ' ' || *at == '\t'))
            at++;
        while (at < stop && (stop[-1] == ' ' || stop[-1] == '\t'))
            stop--;
        size_t n = (size_t)(stop - at);
        if (n && !has(c->headers, at, n) && !has(LIST(safe_headers), at, n))
            return false;
        at = next;
    }
    return true;
}

const char *cors_refused(const struct cors *c, const struct cors_asked *a)
{
    struct cors_list methods = cors_any(&c->methods) ? LIST(all_methods) : c->methods;
    if (!cors_origin(c, a->origin, a->n_origin))
        return "origin";
    if (!has(methods, a->method, a->n_method))
        return "method";
    return cors_any(&c->headers) || !a->headers || headers_allowed(c, a) ? NULL : "headers";
}

static void add_list(struct cors_list l, struct buf *out)
{
    for (size_t i = 0; i < l.n; i++)
        buf_printf(out, "%s%s", out->len ? ", " : "", l.items[i]);
}

void cors_methods(const struct cors *c, struct buf *out)
{
    add_list(cors_any(&c->methods) ? LIST(all_methods) : c->methods, out);
}

void cors_headers(const struct cors *c, const struct cors_asked *a, struct buf *out)
{
    if (cors_any(&c->headers)) {
        buf_add(out, a->headers ? a->headers : "", a->n_headers);
        return;
    }
    add_list(LIST(safe_headers), out);
    add_list(c->headers, out);
}
