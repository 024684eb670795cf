/* SPDX-License-Identifier: Apache-2.0 */
#include "common/printable.h"
#include <stdbool.h>
#include <string.h>
#include "common/utf8.h"

static bool is_control(uint32_t c)
{
    return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0);
}

/* The first character of s[0..n), n >= 1. Returns the bytes that it takes. */
static size_t add_char(const char *s, size_t n, struct buf *out)
{
    uint32_t c;
    size_t taken = utf8_decode(s, n, &c);
    if (!is_control(c))
        buf_add_utf8(out, c);
    return taken;
}

/* Characters of p->partial, as long as they are whole. */
static void add_whole(struct printable *p, struct buf *out)
{
    while (p->n_partial &&
           (p->n_partial == 4 || utf8_complete_prefix(p->partial, p->n_partial) > 0)) {
        size_t taken = add_char(p->partial, p->n_partial, out);
        p->n_partial -= (unsigned)taken;
        memmove(p->partial, p->partial + taken, p->n_partial);
    }
}

void printable_add(struct printable *p, const char *text, size_t n, struct buf *out)
{
    size_t at = 0;
    while (p->n_partial && at < n) {
        p->partial[p->n_partial++] = text[at++];
        add_whole(p, out);
    }
    size_t whole = at + utf8_complete_prefix(text + at, n - at);
    while (at < whole)
        at += add_char(text + at, whole - at, out);
    while (at < n) /* fewer than 4 */
        p->partial[p->n_partial++] = text[at++];
}

void printable_end(struct printable *p, struct buf *out)
{
    if (p->n_partial)
        buf_add_utf8(out, UTF8_REPLACEMENT);
    p->n_partial = 0;
}

void printable_text(const char *text, size_t n, struct buf *out)
{
    for (size_t at = 0; at < n;)
        at += add_char(text + at, n - at, out);
}

void printable_line(const char *text, size_t n, struct buf *out)
{
    size_t at = out->len;
    printable_text(text, n, out);
    for (; at < out->len; at++)
        if (out->data[at] == '\n' || out->data[at] == '\t')
            out->data[at] = ' ';
}

void printable_printf(FILE *out, const char *format, ...)
{
    struct buf raw = BUF_INIT, safe = BUF_INIT;
    va_list ap;
    va_start(ap, format);
    buf_vprintf(&raw, format, ap);
    va_end(ap);
    printable_text(buf_str(&raw), raw.len, &safe);
    fwrite(buf_str(&safe), 1, safe.len, out);
    buf_release(&raw);
    buf_release(&safe);
}
