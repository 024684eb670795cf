/* SPDX-License-Identifier: Apache-2.0 */
#include "common/tokenizer/origin.h"
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/encode.h"
#include "common/tokenizer/steps.h"
#include "common/utf8.h"

/* ---- which tokens ---- */

static bool has_form(const struct tok_added *a, const char *open, const char *close)
{
    size_t n = strlen(open), n_close = strlen(close);
    return a->n_content > n + n_close && memcmp(a->content, open, n) == 0 &&
           memcmp(a->content + a->n_content - n_close, close, n_close) == 0;
}

enum q_code tok_control_load(struct tokenizer *t, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < t->n_added && !rc; i++) {
        struct tok_added *a = &t->added[i];
        a->control = a->special || has_form(a, "<|", "|>") || has_form(a, "<\uff5c", "\uff5c>");
        if (!a->control)
            continue;
        t->control_normalized = t->control_normalized || a->normalized;
        if (a->n_content > t->control_max)
            t->control_max = a->n_content;
        rc = tok_matcher_add(&t->control, a->content, a->n_content, (int32_t)i, e);
    }
    return rc;
}

/* ---- is there anything to do? ---- */

/* Does an occurrence that begins in s[from..to) reach a byte of [start, end)? */
static bool spelled_in(const struct tokenizer *t, const struct tokenizer_text *text, size_t from,
                       const struct byte_range *r)
{
    struct tok_match f;
    size_t to = r->end + t->control_max < text->n ? r->end + t->control_max : text->n;
    while (from < r->end && tok_matcher_find(&t->control, text->data, to, from, &f)) {
        if (f.start < r->end && f.end > r->start)
            return true;
        from = f.start + 1;
    }
    return false;
}

bool tok_control_spelled(const struct tokenizer *t, const struct tokenizer_text *text)
{
    const struct ranges *r = text->content;
    if (!r || !r->n || !t->control_max)
        return false;
    if (t->control_normalized && t->chain[TOK_NORM].n_part)
        return true; /* what spells one is only seen behind the normalizers */
    size_t done = 0;
    for (size_t i = 0; i < r->n; i++) {
        size_t from = r->at[i].start > t->control_max ? r->at[i].start - t->control_max : 0;
        if (spelled_in(t, text, from > done ? from : done, &r->at[i]))
            return true;
        done = r->at[i].end > t->control_max ? r->at[i].end - t->control_max : 0;
    }
    return false;
}

/* ---- through the normalizers ----
 *
 * The text is normalized once more with a character at each border of a range that the text does
 * not have and that normalizers leave alone. Without these characters the result must be the same
 * text; then they show where the borders went. */

#define MARKS_FIRST 0xFDD0u /* 32 code points that are no characters and never will be */
#define MARKS_N     32u
#define MARK_BYTES  3u

static bool find_mark(const char *s, size_t n, char mark[4])
{
    for (uint32_t k = 0; k < MARKS_N; k++) {
        mark[utf8_encode(MARKS_FIRST + k, mark)] = '\0';
        if (!memmem(s, n, mark, MARK_BYTES))
            return true;
    }
    return false;
}

/* Returns how many marks there are. */
static size_t put_marks(struct buf *b, const struct tok_before *before, const char *mark)
{
    const struct ranges *r = before->content;
    size_t done = 0, n_mark = 0;
    for (size_t i = ranges_find(r, before->at); i < r->n; i++) {
        const size_t border[2] = {r->at[i].start, r->at[i].end};
        for (int k = 0; k < 2; k++) {
            size_t to = border[k] > before->at ? border[k] - before->at : 0;
            if (to > before->n)
                to = before->n;
            buf_add(b, before->s + done, to - done);
            buf_add(b, mark, MARK_BYTES);
            n_mark++;
            done = to;
        }
        if (done == before->n)
            break;
    }
    buf_add(b, before->s + done, before->n - done);
    return n_mark;
}

/* Take the marks out: is the rest `want`? *out: where they were, two by two. */
static bool take_marks(struct tok_str marked, struct tok_str want, const char *mark, size_t n_put,
                       struct ranges *out)
{
    size_t at = 0, start = 0, n_mark = 0;
    struct q_err e;
    for (size_t i = 0; i < marked.n;) {
        if (marked.n - i < MARK_BYTES || memcmp(marked.s + i, mark, MARK_BYTES) != 0) {
            if (at == want.n || marked.s[i] != want.s[at])
                return false;
            i++;
            at++;
            continue;
        }
        i += MARK_BYTES;
        if (n_mark++ % 2 == 0)
            start = at;
        else if (ranges_add(out, start, at, &e))
            return false;
    }
    return at == want.n && n_mark == n_put;
}

enum q_code tok_origin_normalized(const struct tokenizer *t, const struct tok_work *w,
                                  const struct tok_before *before, struct ranges *out,
                                  struct q_err *e)
{
    enum q_code rc = Q_OK;
    char mark[4];
    bool known = false;
    struct buf marked = BUF_INIT;
    struct tok_work other = {.at_start = before->at_start};
    if (!ranges_meet(before->content, before->at, before->at + before->n))
        return Q_OK;
    if (find_mark(before->s, before->n, mark) && !(rc = tok_regex_run_init(&other.regex, e))) {
        other.regex.newer = w->regex.newer;
        size_t n_put = put_marks(&marked, before, mark);
        other.text = buf_str(&marked);
        other.n = marked.len;
        if (!(rc = buf_check(&marked, "a text of several origins", e)) &&
            !(rc = tok_normalize(t, &other, e)))
            known = take_marks((struct tok_str){other.text, other.n},
                               (struct tok_str){w->text, w->n}, mark, n_put, out);
    }
    if (!rc && !known) {
        ranges_cut(out, 0);
        rc = ranges_add(out, 0, w->n, e);
    }
    tok_work_release(&other);
    buf_release(&marked);
    return rc;
}

/* ---- words whose pieces are control tokens ----
 *
 * Vocabularies list control tokens too, and a model may find one as a piece of ordinary text (the
 * unigram model does). Then the word is cut behind the first character of each occurrence. The
 * token of the unknown is none: it stands for what has no other, whatever is written. */

static bool holds_control(const struct tokenizer *t, const struct token_list *ids, size_t i_from)
{
    for (size_t i = i_from; i < ids->n; i++)
        if (t->flags[ids->ids[i]] & TOK_F_CONTROL)
            return true;
    return false;
}

enum q_code tok_encode_spelled(const struct tokenizer *t, struct tok_work *w, struct tok_str word,
                               struct token_list *out, struct q_err *e)
{
    struct tok_match f;
    size_t i_from = out->n, done = 0;
    enum q_code rc = t->model->encode(w->model, word.s, word.n, out, e);
    if (rc || !holds_control(t, out, i_from))
        return rc;
    out->n = i_from;
    for (size_t at = 0; tok_matcher_find(&t->control, word.s, word.n, at, &f) && !rc;) {
        uint32_t cp;
        at = f.start + utf8_decode(word.s + f.start, word.n - f.start, &cp);
        rc = t->model->encode(w->model, word.s + done, at - done, out, e);
        done = at;
    }
    return rc || done == word.n ? rc
                                : t->model->encode(w->model, word.s + done, word.n - done, out, e);
}
