/* SPDX-License-Identifier: Apache-2.0 */
#include "common/buf.h"
#include <stdio.h>
#include <string.h>
#include "common/mem.h"
#include "common/utf8.h"

/* Room for n more bytes and a NUL; false (and b->failed set) when there is none. */
static bool reserve(struct buf *b, size_t n)
{
    if (b->failed)
        return false;
    size_t max = b->max ? b->max : BUF_MAX_DEFAULT;
    if (n > max - b->len) {
        b->failed = Q_TOO_LARGE;
        return false;
    }
    if (b->len + n < b->cap)
        return true;
    size_t cap = b->cap ? b->cap * 2 : 64;
    while (cap < b->len + n + 1)
        cap *= 2;
    char *data = q_realloc(b->data, cap);
    if (!data) {
        b->failed = Q_NO_MEMORY;
        return false;
    }
    b->data = data;
    b->cap = cap;
    return true;
}

void buf_add(struct buf *b, const void *data, size_t n)
{
    if (!reserve(b, n))
        return;
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = '\0';
}

char *buf_room(struct buf *b, size_t n)
{
    return reserve(b, n) ? b->data + b->len : NULL;
}

void buf_add_str(struct buf *b, const char *s)
{
    buf_add(b, s, strlen(s));
}

void buf_add_char(struct buf *b, char c)
{
    if (!reserve(b, 1))
        return;
    b->data[b->len++] = c;
    b->data[b->len] = '\0';
}

void buf_vprintf(struct buf *b, const char *fmt, va_list ap)
{
    char small[256];
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(small, sizeof small, fmt, ap);
    if (n >= 0 && (size_t)n < sizeof small)
        buf_add(b, small, (size_t)n);
    else if (n > 0 && reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

void buf_add_utf8(struct buf *b, uint32_t code_point)
{
    char bytes[4];
    buf_add(b, bytes, utf8_encode(code_point, bytes));
}

void buf_add_json_str(struct buf *b, const char *s, size_t n)
{
    buf_add_char(b, '"');
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t step = utf8_decode(s + i, n - i, &cp);
        if (cp == '"' || cp == '\\') {
            buf_add_char(b, '\\');
            buf_add_char(b, (char)cp);
        } else if (cp == '\n') {
            buf_add(b, "\\n", 2);
        } else if (cp == '\t') {
            buf_add(b, "\\t", 2);
        } else if (cp == '\r') {
            buf_add(b, "\\r", 2);
        } else if (cp < 0x20 || cp == 0x7f) {
            buf_printf(b, "\\u%04x", cp);
        } else {
            buf_add_utf8(b, cp);
        }
        i += step;
    }
    buf_add_char(b, '"');
}

void buf_take_failure(struct buf *b, const struct buf *from)
{
    if (!b->failed)
        b->failed = from->failed;
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    b->failed = Q_OK;
    if (b->data)
        b->data[0] = '\0';
}

void buf_release(struct buf *b)
{
    q_free(b->data);
    b->data = NULL;
    b->len = b->cap = 0;
    b->failed = Q_OK;
}

void buf_move(struct buf *dst, struct buf *src)
{
    q_free(dst->data);
    *dst = *src;
    src->data = NULL;
    src->len = src->cap = 0;
    src->failed = Q_OK;
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}

enum q_code buf_check(const struct buf *b, const char *what, struct q_err *e)
{
    if (b->failed == Q_TOO_LARGE)
        return q_fail(e, Q_TOO_LARGE, "%s: exceeds the limit of %zu bytes", what,
                      b->max ? b->max : BUF_MAX_DEFAULT);
    if (b->failed)
        return q_fail(e, b->failed, "%s: %s", what, q_code_text(b->failed));
    return Q_OK;
}
