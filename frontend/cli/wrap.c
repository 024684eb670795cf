/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/cli/wrap.h"
#include <string.h>
#include <utf8proc.h>
#include "common/utf8.h"

#define TAB 4 /* columns of a tab, as spaces */

static void put_word(struct wrap *w)
{
    if (!w->word.len)
        return;
    if (!w->begun && w->word.len >= 3 && !memcmp(w->word.data, "```", 3))
        w->fenced = !w->fenced;
    bool fits = w->column + w->spaces + w->word_columns <= w->width;
    if (!fits && w->column > 0 && !w->fenced) {
        buf_add_char(&w->out, '\n');
        w->column = w->spaces = 0;
    }
    for (unsigned i = 0; i < w->spaces; i++)
        buf_add_char(&w->out, ' ');
    buf_add(&w->out, w->word.data, w->word.len);
    w->column += w->spaces + w->word_columns;
    if (w->column > w->width) /* the terminal has broken it */
        w->column = (w->column - 1) % w->width + 1;
    w->begun = true;
    w->spaces = w->word_columns = 0;
    w->has_lost |= w->word.failed != Q_OK;
    buf_reset(&w->word);
}

static void put_line_end(struct wrap *w)
{
    put_word(w);
    buf_add_char(&w->out, '\n');
    w->column = w->spaces = 0;
    w->begun = false;
}

static void put_char(struct wrap *w, uint32_t c, const char *text, size_t n)
{
    unsigned columns = (unsigned)utf8proc_charwidth((utf8proc_int32_t)c);
    if (c == '\n') {
        put_line_end(w);
    } else if (c == ' ' || c == '\t') {
        put_word(w);
        w->spaces += c == ' ' ? 1 : TAB;
    } else {
        if (columns > 1 && w->word_columns && !w->fenced)
            put_word(w);
        buf_add(&w->word, text, n);
        w->word_columns += columns;
    }
}

static void put_safe(struct wrap *w)
{
    for (size_t at = 0; at < w->safe.len;) {
        uint32_t c;
        size_t n = utf8_decode(w->safe.data + at, w->safe.len - at, &c);
        put_char(w, c, w->safe.data + at, n);
        at += n;
    }
    w->has_lost |= w->safe.failed != Q_OK;
    buf_reset(&w->safe);
}

void wrap_add(struct wrap *w, const char *text, size_t n)
{
    if (w->width == 0) {
        buf_add(&w->out, text, n);
        return;
    }
    printable_add(&w->in, text, n, &w->safe);
    put_safe(w);
}

void wrap_flush(struct wrap *w)
{
    printable_end(&w->in, &w->safe);
    put_safe(w);
    put_word(w);
    w->spaces = 0;
}

void wrap_release(struct wrap *w)
{
    buf_release(&w->word);
    buf_release(&w->safe);
    buf_release(&w->out);
    *w = (struct wrap){.width = 0};
}
