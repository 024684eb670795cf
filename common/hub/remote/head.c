/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/remote/head.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define VALUE_MAX (HEAD_URL_MAX + 1)

void head_init(struct head *h)
{
    memset(h, 0, sizeof *h);
    h->size = h->range_from = h->range_total = h->retry_after_s = HEAD_NONE;
}

/* Digits at *at, up to 2^53; moves behind them. */
static uint64_t number(const char **at)
{
    uint64_t value = 0;
    const char *p = *at;
    if (!isdigit((unsigned char)*p))
        return HEAD_NONE;
    for (; isdigit((unsigned char)*p); p++) {
        if (value >= ((uint64_t)1 << 53) / 10)
            return HEAD_NONE;
        value = value * 10 + (uint64_t)(*p - '0');
    }
    *at = p;
    return value;
}

static uint64_t whole_number(const char *value)
{
    uint64_t n = number(&value);
    return *value ? HEAD_NONE : n;
}

static void set_etag(struct head *h, const char *value, bool linked)
{
    char text[CACHE_HASH_MAX + 1];
    if (h->linked_etag && !linked)
        return;
    if (!strncmp(value, "W/", 2))
        value += 2;
    size_t n = strlen(value);
    if (n >= 2 && value[0] == '"' && value[n - 1] == '"') {
        value++;
        n -= 2;
    }
    if (n >= sizeof text)
        return;
    snprintf(text, sizeof text, "%.*s", (int)n, value);
    if (!cache_is_hash(text))
        return;
    memcpy(h->etag, text, sizeof text);
    h->linked_etag = linked;
}

static void on_etag(struct head *h, const char *value, int64_t unix_s)
{
    (void)unix_s;
    set_etag(h, value, false);
}

static void on_linked_etag(struct head *h, const char *value, int64_t unix_s)
{
    (void)unix_s;
    set_etag(h, value, true);
}

static void on_length(struct head *h, const char *value, int64_t unix_s)
{
    (void)unix_s;
    if (!h->linked_size)
        h->size = whole_number(value);
}

static void on_linked_size(struct head *h, const char *value, int64_t unix_s)
{
    (void)unix_s;
    uint64_t size = whole_number(value);
    if (size == HEAD_NONE)
        return;
    h->size = size;
    h->linked_size = true;
}

static void on_commit(struct head *h, const char *value, int64_t unix_s)
{
    (void)unix_s;
    if (cache_is_hash(value))
        snprintf(h->commit, sizeof h->commit, "%s", value);
}

/* bytes 10-99/100 */
static void on_range(struct head *h, const char *value, int64_t unix_s)
{
    (void)unix_s;
    if (strncasecmp(value, "bytes ", 6) != 0)
        return;
    value += 6;
    uint64_t from = number(&value);
    if (from == HEAD_NONE || *value++ != '-' || number(&value) == HEAD_NONE || *value++ != '/')
        return;
    h->range_from = from;
    h->range_total = whole_number(value);
}

/* Seconds, or a date such as "Sun, 06 Nov 1994 08:49:37 GMT". */
static void on_retry_after(struct head *h, const char *value, int64_t unix_s)
{
    struct tm tm = {.tm_isdst = 0};
    uint64_t s = whole_number(value);
    const char *end = s == HEAD_NONE ? strptime(value, "%a, %d %b %Y %H:%M:%S GMT", &tm) : NULL;
    if (end && !*end) {
        int64_t at = timegm(&tm);
        s = at > unix_s ? (uint64_t)(at - unix_s) : 0;
    }
    if (s != HEAD_NONE)
        h->retry_after_s = s;
}

/* RateLimit: "api";r=0;t=55: no request is left for 55 s. */
static void on_rate_limit(struct head *h, const char *value, int64_t unix_s)
{
    (void)unix_s;
    const char *t = strstr(value, ";t=");
    if (!t || !strstr(value, ";r=0") || h->retry_after_s != HEAD_NONE)
        return;
    t += 3;
    h->retry_after_s = number(&t);
}

static void on_location(struct head *h, const char *value, int64_t unix_s)
{
    (void)unix_s;
    snprintf(h->location, sizeof h->location, "%s", value);
}

static void on_error_code(struct head *h, const char *value, int64_t unix_s)
{
    (void)unix_s;
    snprintf(h->error_code, sizeof h->error_code, "%s", value);
}

static void on_message(struct head *h, const char *value, int64_t unix_s)
{
    (void)unix_s;
    snprintf(h->message, sizeof h->message, "%s", value);
}

static const struct {
    const char *name;
    void (*set)(struct head *h, const char *value, int64_t unix_s);
} fields[] = {
    {"etag", on_etag},
    {"x-linked-etag", on_linked_etag},
    {"content-length", on_length},
    {"x-linked-size", on_linked_size},
    {"x-repo-commit", on_commit},
    {"content-range", on_range},
    {"retry-after", on_retry_after},
    {"ratelimit", on_rate_limit},
    {"location", on_location},
    {"x-error-code", on_error_code},
    {"x-error-message", on_message},
};

/* "HTTP/1.1 302 Found", "HTTP/2 200" */
static void status_line(struct head *h, const char *line, size_t n)
{
    const char *blank = memchr(line, ' ', n);
    head_init(h);
    if (!blank || (size_t)(line + n - blank) < 4)
        return;
    for (int i = 1; i <= 3; i++) {
        if (!isdigit((unsigned char)blank[i])) {
            h->status = 0;
            return;
        }
        h->status = h->status * 10 + (unsigned)(blank[i] - '0');
    }
}

void head_line(struct head *h, const char *line, size_t n, int64_t unix_s)
{
    char value[VALUE_MAX];
    while (n && isspace((unsigned char)line[n - 1]))
        n--;
    if (n >= 5 && !memcmp(line, "HTTP/", 5)) {
        status_line(h, line, n);
        return;
    }
    const char *colon = n ? memchr(line, ':', n) : NULL;
    if (!colon || memchr(line, '\0', n))
        return;
    const size_t n_name = (size_t)(colon - line);
    const char *at = colon + 1;
    while (at < line + n && isspace((unsigned char)*at))
        at++;
    const size_t n_value = (size_t)(line + n - at);
    if (n_value >= sizeof value)
        return;
    memcpy(value, at, n_value);
    value[n_value] = '\0';
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strlen(fields[i].name) == n_name && !strncasecmp(line, fields[i].name, n_name))
            fields[i].set(h, value, unix_s);
}
