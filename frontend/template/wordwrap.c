/* SPDX-License-Identifier: Apache-2.0 */
/* The wordwrap filter: Python's textwrap on every line by itself. A line is cut into chunks (runs of blanks, words, and
 * pieces of words that end in a hyphen); lines take chunks while they fit; blanks at a line's edges are dropped. */
#include "common/utf8.h"
#include "frontend/template/builtins.h"

struct wrap {
    struct interp *in;
    const struct str *glue;
    int64_t width;
    bool break_long, break_hyphens;
    size_t n_line; /* written so far, over all paragraphs */
};

static bool is_blank(char c)
{
    return c != 0 && strchr("\t\n\v\f\r ", c) != NULL;
}

static bool is_letter(const char *s, size_t n)
{
    uint32_t c;
    return n && (utf8_decode(s, n, &c), uni_is_word(c) && !uni_is_digit(c) && c != '_');
}

/* Bytes of the chunk at s[0..n). */
static size_t chunk_length(const struct wrap *w, const char *s, size_t n)
{
    size_t i = 0;
    bool blank = is_blank(s[0]);
    while (i < n && is_blank(s[i]) == blank) {
        i++;
        if (!blank && w->break_hyphens && s[i - 1] == '-' && i >= 3 && is_letter(s + i, n - i) &&
            ((unsigned char)s[i - 2] >= 0x80 || is_letter(s + i - 2, 1)))
            break;
    }
    return i;
}

static void begin_line(struct wrap *w)
{
    if (w->n_line++)
        buf_add(&w->in->out, w->glue->data, w->glue->n);
}

static enum q_code wrap_line(struct wrap *w, const struct str *line)
{
    enum q_code rc;
    int64_t used = 0;   /* characters on the current line */
    size_t pending = 0; /* bytes of blanks before at, not yet written */
    bool open = false, any = false;
    for (size_t at = 0; at < line->n;) {
        size_t n = chunk_length(w, line->data + at, line->n - at);
        int64_t chars = (int64_t)utf8_count(line->data + at, n);
        if ((rc = in_charge(w->in, 1)))
            return rc;
        bool blank = is_blank(line->data[at]);
        if (blank && (open || !any) && used + chars <= w->width) {
            pending = n;
            used += chars;
            at += n;
            if (!any && !open) { /* blanks that open the paragraph stay */
                begin_line(w);
                open = true;
            }
            any = true;
            continue;
        }
        if (blank) { /* at the edge of a line */
            open = false;
            used = 0;
            pending = 0;
            at += n;
            any = true;
            continue;
        }
        any = true;
        if (open && used + chars > w->width &&
            !(w->break_long && chars > w->width && used < w->width)) {
            open = false;
            used = 0;
            pending = 0;
            continue;
        }
        if (!open) {
            begin_line(w);
            open = true;
        }
        buf_add(&w->in->out, line->data + at - pending, pending);
        pending = 0;
        if (used + chars > w->width && w->break_long) {
            size_t take = 0;
            int64_t room = w->width - used < 1 ? 1 : w->width - used;
            uint32_t c;
            for (int64_t k = 0; k < room && take < n; k++)
                take += utf8_decode(line->data + at + take, n - take, &c);
            buf_add(&w->in->out, line->data + at, take);
            at += take;
            open = false;
            used = 0;
            continue;
        }
        buf_add(&w->in->out, line->data + at, n);
        used += chars;
        at += n;
    }
    if (!any)
        begin_line(w);
    return Q_OK;
}

enum q_code filter_wordwrap(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct str *s, *glue;
    struct seq *lines;
    struct value newline;
    struct wrap w = {
        .in = in, .break_long = arg_bool(a[2], true), .break_hyphens = arg_bool(a[4], true)};
    if ((rc = need_str(in, a[0], "wordwrap() input", &s)) ||
        (rc = arg_int(in, a[1], 79, "width", &w.width)) ||
        (rc = arg_str(in, a[3], "wrapstring", &glue)) ||
        (rc = text_borrow(in, "\n", 1, &newline)) || (rc = text_split_lines(in, s, false, &lines)))
        return rc;
    if (w.width <= 0)
        return in_raise(in, "ValueError", "invalid width %lld (must be > 0)", (long long)w.width);
    w.glue = glue ? glue : newline.as.s;
    size_t mark = text_mark(in);
    for (size_t i = 0; i < lines->n; i++)
        if ((rc = wrap_line(&w, lines->items[i].as.s)))
            return rc;
    return text_take(in, mark, out);
}
