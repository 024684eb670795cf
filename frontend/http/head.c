/* SPDX-License-Identifier: Apache-2.0 */
/* Lines end as in h2o's parser: at a line feed, with or without a carriage return before it. */
#include "frontend/http/head.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

#define LENGTH_DIGITS_MAX 18 /* of a number that fits in 64 bits with a sign */

struct text {
    const char *data;
    size_t n;
};
struct lines { /* iterator over the lines of a head */
    const char *at, *end;
};

static bool next_line(struct lines *l, struct text *line)
{
    const char *feed = memchr(l->at, '\n', (size_t)(l->end - l->at));
    if (!feed)
        return false;
    *line = (struct text){l->at, (size_t)(feed - l->at)};
    if (line->n && line->data[line->n - 1] == '\r')
        line->n--;
    l->at = feed + 1;
    return true;
}

/* The request line; h2o skips one empty line before it. */
static bool first_line(struct lines *l, struct text *line)
{
    return next_line(l, line) && (line->n || next_line(l, line));
}

size_t head_length(const char *bytes, size_t n)
{
    struct lines l = {bytes, bytes + n};
    struct text line;
    if (!first_line(&l, &line))
        return 0;
    while (next_line(&l, &line))
        if (!line.n)
            return (size_t)(l.at - bytes);
    return 0;
}

static bool ends_with(struct text t, const char *s)
{
    size_t n = strlen(s);
    return t.n >= n && !memcmp(t.data + t.n - n, s, n);
}

/* If the line is the header `name`: its value without the spaces around it. */
static bool is_header(struct text line, const char *name, struct text *value)
{
    size_t n = strlen(name);
    if (line.n <= n || line.data[n] != ':' || strncasecmp(line.data, name, n) != 0)
        return false;
    *value = (struct text){line.data + n + 1, line.n - n - 1};
    while (value->n && (*value->data == ' ' || *value->data == '\t'))
        value->data++, value->n--;
    while (value->n && (value->data[value->n - 1] == ' ' || value->data[value->n - 1] == '\t'))
        value->n--;
    return true;
}

/* Characters of a host with or without port (RFC 3986 3.2.2). */
static bool is_host(struct text value)
{
    static const char others[] = "-._~%!$&'()*+,;=:[]";
    for (size_t i = 0; i < value.n; i++) {
        char c = value.data[i];
        if (!(c >= '0' && c <= '9') && !((c | 0x20) >= 'a' && (c | 0x20) <= 'z') &&
            (!c || !strchr(others, c)))
            return false;
    }
    return true;
}

/* The fault of a Content-Length (RFC 9110 8.6); NULL: a number that fits. */
static const char *length_fault(struct text value)
{
    size_t n_zero = 0;
    for (size_t i = 0; i < value.n; i++)
        if (value.data[i] < '0' || value.data[i] > '9')
            return "the header Content-Length is not a whole number";
    while (n_zero < value.n && value.data[n_zero] == '0')
        n_zero++;
    return !value.n                               ? "the header Content-Length is empty"
           : value.n - n_zero > LENGTH_DIGITS_MAX ? "the header Content-Length is too large"
                                                  : NULL;
}

static bool is_word(struct text t, const char *word)
{
    return t.n == strlen(word) && strncasecmp(t.data, word, t.n) == 0;
}

const char *head_fault(const char *head, size_t n)
{
    struct lines l = {head, head + n};
    struct text line, value, length = {NULL, 0}, coding = {NULL, 0};
    const char *fault = NULL;
    unsigned n_host = 0, n_coding = 0;
    if (!first_line(&l, &line))
        return NULL;
    bool new = ends_with(line, " HTTP/1.1"), old = ends_with(line, " HTTP/1.0");
    if (!new && !old)
        return NULL;
    while (next_line(&l, &line) && line.n) {
        if (*line.data == ' ' || *line.data == '\t')
            return "a header line starts with a space";
        if (is_header(line, "host", &value)) {
            n_host++;
            if (!is_host(value))
                return "the header Host is not a host name";
        }
        if (is_header(line, "transfer-encoding", &value))
            n_coding++, coding = value;
        if (!is_header(line, "content-length", &value))
            continue;
        if (length.data && (length.n != value.n || memcmp(length.data, value.data, value.n) != 0))
            return "there are two different Content-Length headers";
        length = value;
        fault = length_fault(value);
    }
    if (fault)
        return fault;
    if (n_host > 1)
        return "there is more than one Host header";
    if (new && !n_host)
        return "HTTP/1.1 requires the header Host";
    if (n_coding && length.data)
        return "Content-Length and Transfer-Encoding exclude each other";
    if (n_coding > 1 || (n_coding && old))
        return old ? "HTTP/1.0 does not support Transfer-Encoding"
                   : "there is more than one Transfer-Encoding header";
    if (n_coding && !is_word(coding, "chunked"))
        return "the only Transfer-Encoding that is supported is chunked";
    return NULL;
}

bool head_find(const char *head, size_t n, const char *name, struct head_value *value)
{
    struct lines l = {head, head + n};
    struct text line, found;
    if (!first_line(&l, &line))
        return false;
    while (next_line(&l, &line) && line.n) {
        if (!is_header(line, name, &found))
            continue;
        if (value)
            *value = (struct head_value){found.data, found.n};
        return true;
    }
    return false;
}

bool head_has_body(const char *head, size_t n)
{
    struct head_value length;
    if (head_find(head, n, "transfer-encoding", NULL))
        return true;
    if (!head_find(head, n, "content-length", &length))
        return false;
    while (length.n && *length.data == '0')
        length.data++, length.n--;
    return length.n;
}

void head_unframe(char *head, size_t n)
{
    static const char *const names[] = {"content-length", "transfer-encoding", "expect", "upgrade"};
    struct lines l = {head, head + n};
    struct text line, value;
    if (!first_line(&l, &line))
        return;
    while (next_line(&l, &line) && line.n)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (is_header(line, names[i], &value)) {
                head[line.data - head] = '_';
                break;
            }
}

size_t head_n_field(const char *bytes, size_t n, size_t most)
{
    struct lines l = {bytes, bytes + n};
    struct text line;
    size_t n_field = 0;
    if (!first_line(&l, &line))
        return 0;
    while (n_field <= most && next_line(&l, &line) && line.n)
        n_field++;
    return n_field;
}

void head_blank(char *bytes, size_t n)
{
    static const char begin[] = "GET / HTTP/1.1\r\nHost: x\r\nX: ", end[] = "\r\n\r\n";
    static_assert(sizeof begin + sizeof end <= HEAD_BLANK_MIN, "the shortest head");
    memset(bytes, 'x', n);
    memcpy(bytes, begin, sizeof begin - 1);
    memcpy(bytes + n - (sizeof end - 1), end, sizeof end - 1);
}
