/* SPDX-License-Identifier: Apache-2.0 */
/* The wordwrap filter: Python's textwrap, applied to each line separately.
 *
 * A line is cut into chunks that are never broken: runs of blanks, words, parts of a hyphenated
 * word, dashes between words. A line takes chunks while they fit; blanks at its edges are dropped;
 * a chunk longer than a line is cut if break_long_words allows it. */
#include "common/utf8.h"
#include "common/template/builtins.h"

struct wrap {
    struct interp *in;
    const struct str *glue; /* between lines */
    int64_t width;
    bool break_long, break_hyphens;
    size_t n_line;          /* written so far, over all paragraphs */
    const struct str *line; /* the current paragraph */
    const uint32_t *c;      /* [n] its code points */
    size_t n;
    size_t *end;   /* [n] where the chunk that holds a code point ends */
    bool any_line; /* the paragraph has one already */
};

static bool blank_at(const struct wrap *w, size_t i)
{
    uint32_t c = w->c[i];
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool letter_at(const struct wrap *w, size_t i)
{
    return i < w->n && uni_is_word(w->c[i]) && !uni_is_decimal(w->c[i]);
}

/* A character that can stand before a dash: of a word, or its punctuation. */
static bool word_at(const struct wrap *w, size_t i)
{
    uint32_t c = w->c[i];
    return uni_is_word(c) || (c < 0x80 && c && strchr("!\"'&.,?", (int)c));
}

/* Dashes between words: the end of the run of two or more at i, or i. */
static size_t dash_end(const struct wrap *w, size_t i)
{
    size_t end = i;
    while (end < w->n && w->c[end] == '-')
        end++;
    bool dash = end - i >= 2 && i > 0 && word_at(w, i - 1) && end < w->n && uni_is_word(w->c[end]);
    return dash ? end : i;
}

/* May a hyphenated word be cut behind the hyphen at i? */
static bool hyphen_at(const struct wrap *w, size_t i)
{
    if (w->c[i] != '-' || i < 2)
        return false;
    bool before = (letter_at(w, i - 1) && letter_at(w, i - 2)) ||
                  (i >= 3 && letter_at(w, i - 1) && w->c[i - 2] == '-' && letter_at(w, i - 3));
    return before && letter_at(w, i + 1) &&
           (letter_at(w, i + 2) || (i + 2 < w->n && w->c[i + 2] == '-' && letter_at(w, i + 3)));
}

/* The end of the chunk that begins at `from`. */
static size_t chunk_end(const struct wrap *w, size_t from)
{
    size_t i = from;
    if (blank_at(w, from)) {
        while (i < w->n && blank_at(w, i))
            i++;
        return i;
    }
    if (w->break_hyphens && (i = dash_end(w, from)) > from)
        return i;
    for (i = from + 1; i < w->n && !blank_at(w, i); i++) {
        if (!w->break_hyphens || w->c[i] != '-')
            continue;
        if (hyphen_at(w, i))
            return i + 1;
        if (w->c[i - 1] != '-' && dash_end(w, i) > i)
            return i;
    }
    return i;
}

static void put_line(struct wrap *w, size_t from, size_t to)
{
    w->any_line = true;
    if (w->n_line++)
        text_add_all(w->in, w->glue);
    size_t mark = text_mark(w->in);
    for (size_t i = from; i < to; i++)
        buf_add_utf8(&w->in->out, w->c[i]);
    text_made_of(w->in, mark, w->line, 0, w->line->n);
}

/* Where to cut the chunk [from, to) that does not fit into the rest of a line. */
static size_t cut_chunk(const struct wrap *w, size_t from, size_t to, size_t room)
{
    size_t end = from + room < to ? from + room : to;
    if (!w->break_hyphens || to - from <= room)
        return end;
    for (size_t i = end; i-- > from + 1;) {
        if (w->c[i] != '-')
            continue;
        for (size_t k = from; k < i; k++)
            if (w->c[k] != '-')
                return i + 1;
        break;
    }
    return end;
}

/* One line from position `at`; returns where the next begins. */
static size_t wrap_line(struct wrap *w, size_t at)
{
    size_t width = (size_t)w->width;
    if (w->any_line && blank_at(w, at))
        at = w->end[at];
    size_t from = at, last = at; /* last: where the last chunk of the line begins */
    while (at < w->n && w->end[at] - from <= width) {
        last = at;
        at = w->end[at];
    }
    if (at < w->n && w->end[at] - at > width) {
        size_t room = width - (at - from);
        if (w->break_long || at == from)
            last = at; /* textwrap: a cut without room is a piece, so blanks before it stay */
        if (w->break_long)
            at = room ? cut_chunk(w, at, w->end[at], room) : at;
        else if (at == from)
            at = w->end[at];
    }
    size_t to = at > last && blank_at(w, last) ? last : at;
    if (to > from)
        put_line(w, from, to);
    return at;
}

static enum q_code wrap_paragraph(struct wrap *w, struct str *line)
{
    enum q_code rc;
    uint32_t *c;
    size_t n = text_chars(line);
    if ((rc = in_alloc(w->in, &c, n + 1, sizeof *c)) ||
        (rc = in_alloc(w->in, &w->end, n + 1, sizeof *w->end)) || (rc = in_charge(w->in, n / 4)))
        return rc;
    for (size_t i = 0, at = 0; at < line->n; i++)
        at += utf8_decode(line->data + at, line->n - at, &c[i]);
    w->line = line;
    w->c = c;
    w->n = n;
    w->any_line = false;
    for (size_t at = 0; at < n;)
        for (size_t end = chunk_end(w, at); at < end; at++)
            w->end[at] = end;
    for (size_t at = 0; at < n && !rc;) {
        size_t next = wrap_line(w, at);
        rc = in_charge(w->in, 1 + (next - at));
        at = next;
    }
    if (!w->any_line)
        put_line(w, 0, 0);
    return rc;
}

enum q_code filter_wordwrap(struct interp *in, const struct value *a, struct value *out)
{
    enum q_code rc;
    struct str *s, *glue;
    struct seq *lines;
    struct value newline;
    struct wrap w = {
        .in = in,
        .break_long = arg_bool(a[2], true),
        .break_hyphens = arg_bool(a[4], true),
    };
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
        if ((rc = wrap_paragraph(&w, lines->items[i].as.s)))
            return rc;
    return text_take(in, mark, out);
}
