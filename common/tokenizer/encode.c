/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer_encode: added tokens that are not normalized are cut out of the text first, then the
 * other added tokens out of each normalized piece; the rest is processed by pre-tokenizers and
 * model. w->content is set only where the request's own text spells a control token. */
#include "common/tokenizer/encode.h"
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/origin.h"
#include "common/tokenizer/steps.h"
#include "common/utf8.h"

enum q_code tok_normalize(const struct tokenizer *t, struct tok_work *w, struct q_err *e)
{
    const struct tok_chain *c = &t->chain[TOK_NORM];
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < c->n_part && !rc; i++)
        rc = ((const struct norm_ops *)c->parts[i].ops)->run(c->parts[i].self, w, e);
    return rc;
}

/* Pre-tokenizers and model for w->text. */
static enum q_code encode_piece(const struct tokenizer *t, struct tok_work *w,
                                struct token_list *out, struct q_err *e)
{
    const struct tok_chain *c = &t->chain[TOK_PRE];
    enum q_code rc = tok_span_add(w, 0, w->n, e);
    tok_spans_done(w);
    for (uint32_t i = 0; i < c->n_part && !rc; i++) {
        w->last = t->raw && i + 1 == c->n_part;
        rc = ((const struct pre_ops *)c->parts[i].ops)->run(c->parts[i].self, w, e);
    }
    for (size_t i = 0; i < w->n_span && !rc; i++) {
        struct tok_str word = {w->text + w->spans[i].start, w->spans[i].end - w->spans[i].start};
        rc = w->content ? tok_encode_spelled(t, w, word, out, e)
                        : t->model->encode(w->model, word.s, word.n, out, e);
    }
    w->n_span = w->n_next = 0;
    return rc;
}

/* ---- added tokens in a text ---- */

struct cutter { /* walks over the added tokens of one text */
    const struct tokenizer *t;
    const struct tok_matcher *m;
    const char *s; /* [n] */
    size_t n;
    size_t from;                  /* look for matches from here */
    size_t done;                  /* everything before is dealt with */
    const struct ranges *content; /* of s: no control tokens in here; NULL: anywhere */
};

static bool word_at(const struct cutter *c, size_t at)
{
    uint32_t cp;
    if (at == c->n)
        return false;
    utf8_decode(c->s + at, c->n - at, &cp);
    return tok_is_word(cp);
}

static size_t skip_spaces(const struct cutter *c, size_t at)
{
    while (at < c->n) {
        uint32_t cp;
        size_t step = utf8_decode(c->s + at, c->n - at, &cp);
        if (!tok_is_space(cp))
            break;
        at += step;
        TOK_STEPS(1);
    }
    return at;
}

static bool is_barred(const struct cutter *c, const struct tok_match *f)
{
    return c->content && c->t->added[f->value].control && ranges_meet(c->content, f->start, f->end);
}

/* tok_matcher_find for the tokens that may stand where they do: where the longest may not, a
 * shorter one may. */
static bool find_allowed(struct cutter *c, struct tok_match *f)
{
    while (tok_matcher_find(c->m, c->s, c->n, c->from, f)) {
        size_t start = f->start;
        bool hit = true;
        while (hit && is_barred(c, f))
            hit = tok_matcher_find(c->m, c->s, f->end - 1, start, f) && f->start == start;
        if (hit)
            return true;
        c->from = start + 1;
    }
    return false;
}

struct cut_hit {
    size_t gap_start, gap_end;     /* text before the token */
    const struct tok_added *token; /* NULL: no more, the gap is the rest */
};

/* A token may begin inside the spaces that the one before it took on its right. As in the
 * reference, it is there all the same, and what follows it is text again; unless it strips on its
 * left, to nothing. */
static struct cut_hit next_hit(struct cutter *c)
{
    struct tok_match f;
    while (find_allowed(c, &f)) {
        const struct tok_added *a = &c->t->added[f.value];
        size_t start = f.start;
        size_t end = f.end;
        c->from = end;
        if (a->single_word &&
            ((start && tok_is_word(tok_last_char(c->s, start))) || word_at(c, end)))
            continue;
        if (a->lstrip)
            start =
                start > c->done ? c->done + tok_trim_end(c->s + c->done, start - c->done) : c->done;
        if (a->rstrip)
            end = skip_spaces(c, end);
        if (start >= end)
            continue;
        struct cut_hit hit = {c->done, start > c->done ? start : c->done, a};
        c->done = end;
        return hit;
    }
    struct cut_hit rest = {c->done, c->n > c->done ? c->n : c->done, NULL};
    return rest;
}

/* Text between tokens that are not normalized: normalize it and look for the others. */
static enum q_code encode_gap(const struct tokenizer *t, struct tok_work *w, struct token_list *out,
                              struct q_err *e)
{
    struct ranges content = RANGES_INIT; /* of the normalized text */
    const struct tok_before before = {w->text, w->n, w->at, w->at_start, w->content};
    w->in_buf = false;
    w->cut_start = false;
    enum q_code rc = tok_normalize(t, w, e);
    if (rc)
        return rc;
    w->at_start = w->at_start && !w->cut_start;
    if (t->normed.n_node == 0)
        return encode_piece(t, w, out, e);
    /* The pieces' own rewriting must not write over the text they are cut from. */
    struct buf text = BUF_INIT;
    if (w->in_buf) {
        text = w->bufs[1 - w->i_free];
        w->bufs[1 - w->i_free] = (struct buf)BUF_INIT;
    }
    bool at_start = w->at_start;
    struct cutter c = {.t = t, .m = &t->normed, .s = w->text, .n = w->n};
    if (w->content && t->control_normalized) {
        rc = tok_origin_normalized(t, w, &before, &content, e);
        c.content = &content;
    }
    for (bool more = true; more && !rc;) {
        struct cut_hit hit = next_hit(&c);
        w->text = c.s + hit.gap_start;
        w->n = hit.gap_end - hit.gap_start;
        w->at_start = at_start && hit.gap_start == 0;
        if (w->n)
            rc = encode_piece(t, w, out, e);
        more = hit.token != NULL;
        if (more && !rc)
            rc = token_list_add(out, hit.token->id, e);
    }
    buf_release(&text);
    ranges_release(&content);
    return rc;
}

/* ---- places in the text ---- */

struct gap {                 /* the text between two added tokens */
    const char *s;           /* the caller's text */
    size_t start, end, i_id; /* bytes; its first id in the list */
};

/* The marks inside of it. */
static enum q_code mark_gap(const struct tokenizer *t, struct tok_work *w, const struct gap *g,
                            const struct token_list *out, struct q_err *e)
{
    struct token_list part = TOKEN_LIST_INIT;
    enum q_code rc = Q_OK;
    for (; w->i_mark < w->marks->n && !rc; w->i_mark++) {
        struct token_mark *m = &w->marks->items[w->i_mark];
        size_t k = 0;
        if (m->at >= g->end)
            break;
        part.n = 0;
        w->at = g->start;
        w->text = g->s + g->start;
        w->n = m->at - g->start;
        w->at_start = g->start == 0;
        if (w->n)
            rc = encode_gap(t, w, &part, e);
        while (k < part.n && g->i_id + k < out->n && part.ids[k] == out->ids[g->i_id + k])
            k++;
        m->n_before = g->i_id - w->i_from + k;
        m->crosses = k < part.n;
    }
    token_list_release(&part);
    return rc;
}

/* Those at an added token, whose id is the next one, or at the end of the text. */
static void mark_token(struct tok_work *w, const struct cutter *c, const struct cut_hit *hit,
                       const struct token_list *out)
{
    for (; w->i_mark < w->marks->n; w->i_mark++) {
        struct token_mark *m = &w->marks->items[w->i_mark];
        if (hit->token && m->at >= c->done)
            break;
        m->n_before = out->n - w->i_from;
        m->crosses = m->at > hit->gap_end;
    }
}

/* The bytes from `from` to `end` of a text. */
static enum q_code encode_part(const struct tokenizer *t, struct tok_work *w,
                               const struct byte_range *part, struct token_list *out,
                               struct q_err *e)
{
    enum q_code rc = Q_OK;
    struct cutter c = {
        .t = t,
        .m = &t->plain,
        .s = w->whole,
        .n = part->end,
        .from = part->start,
        .done = part->start,
        .content = w->content,
    };
    for (bool more = true; more && !rc;) {
        struct cut_hit hit = next_hit(&c);
        const struct gap gap = {c.s, hit.gap_start, hit.gap_end, out->n};
        w->at = hit.gap_start;
        w->text = c.s + hit.gap_start;
        w->n = hit.gap_end - hit.gap_start;
        w->at_start = hit.gap_start == 0;
        if (w->n)
            rc = encode_gap(t, w, out, e);
        if (!rc && w->marks && !(rc = mark_gap(t, w, &gap, out, e)))
            mark_token(w, &c, &hit, out);
        more = hit.token != NULL;
        if (more && !rc)
            rc = token_list_add(out, hit.token->id, e);
    }
    return rc;
}

/* Inserts divide the text, and are put between its parts. */
static enum q_code encode_text(const struct tokenizer *t, struct tok_work *w,
                               const struct tokenizer_text *in, struct token_list *out,
                               struct q_err *e)
{
    struct byte_range part = {.start = 0};
    enum q_code rc = Q_OK;
    w->whole = in->data;
    for (size_t i = 0; i < in->n_insert && !rc; i++) {
        struct tokenizer_insert *x = &in->inserts[i];
        Q_ASSERT(x->at >= part.start && x->at <= in->n);
        part.end = x->at;
        if (part.end > part.start)
            rc = encode_part(t, w, &part, out, e);
        x->position = out->n;
        part.start = part.end;
        if (!rc)
            rc = token_list_add(out, x->id, e);
    }
    part.end = in->n;
    return rc ? rc : encode_part(t, w, &part, out, e);
}

/* ---- post-processors ---- */

/* Put the ids of the post-processors around ids[i_from..n). */
static enum q_code wrap_ids(const struct tokenizer *t, struct token_list *ids, size_t i_from,
                            struct q_err *e)
{
    const struct post_wrap *p = &t->wrap;
    size_t n_text = ids->n - i_from;
    enum q_code rc = token_list_join(ids, &p->before, e);
    if (rc)
        return rc;
    if (n_text && p->before.n) { /* they were put behind the text to make room: change places */
        uint32_t *text = ids->ids + i_from;
        memmove(text + p->before.n, text, n_text * sizeof *text);
        memcpy(text, p->before.ids, p->before.n * sizeof *text);
    }
    return token_list_join(ids, &p->after, e);
}

/* Bytes of s before the first that is not UTF-8. *newer: a character is newer than Unicode 14. */
static size_t valid_prefix(const char *s, size_t n, bool *newer)
{
    size_t i = 0;
    while (i < n) {
        uint64_t eight;
        if (n - i >= 8 && (memcpy(&eight, s + i, 8), (eight & 0x8080808080808080ull) == 0)) {
            i += 8;
            continue;
        }
        uint32_t cp;
        size_t step = utf8_decode(s + i, n - i, &cp);
        if (cp == UTF8_REPLACEMENT && !(step == 3 && memcmp(s + i, "\xef\xbf\xbd", 3) == 0))
            return i;
        *newer = *newer || tok_is_unicode15(cp);
        i += step;
    }
    return n;
}

/* How many ids the post-processors say that they put around a text, each by itself. */
static size_t count_special(const struct tokenizer *t)
{
    const struct tok_chain *c = &t->chain[TOK_POST];
    size_t n = 0;
    for (uint32_t i = 0; i < c->n_part; i++) {
        const struct post_ops *ops = (const struct post_ops *)c->parts[i].ops;
        n += ops->n_special ? ops->n_special(c->parts[i].self) : 0;
    }
    return n;
}

/* Append the ids of a text without what post-processors add. */
static enum q_code encode_plain(const struct tokenizer *t, const struct tokenizer_text *in,
                                const struct token_marks *marks, struct token_list *out,
                                struct q_err *e)
{
    enum q_code rc;
    const char *text = in->data;
    size_t n = in->n;
    struct tok_work w = {.text = text, .n = n, .marks = marks, .i_from = out->n};
    if (n > TOKENIZER_TEXT_MAX)
        return q_fail(e, Q_TOO_LARGE, "the text has %zu bytes, expected at most %zu", n,
                      TOKENIZER_TEXT_MAX);
    bool newer = false;
    size_t valid = valid_prefix(text, n, &newer);
    if (valid < n)
        return q_fail(e, Q_INVALID, "the text is not UTF-8 at byte %zu", valid);
    rc = tok_regex_run_init(&w.regex, e);
    w.regex.newer = newer;
    w.content = tok_control_spelled(t, in) ? in->content : NULL;
    if (!rc && !(rc = t->model->begin(&w.model, t->model_self, n, e)))
        rc = encode_text(t, &w, in, out, e);
    t->model->end(w.model);
    tok_work_release(&w);
    return rc;
}

enum q_code tokenizer_encode_prompt(const struct tokenizer *t, const struct tokenizer_text *text,
                                    bool add_special, struct token_list *out, struct q_err *e)
{
    size_t i_from = out->n;
    enum q_code rc = encode_plain(t, text, NULL, out, e);
    if (!rc && add_special)
        rc = wrap_ids(t, out, i_from, e);
    for (size_t i = 0; i < text->n_insert && add_special; i++)
        text->inserts[i].position += t->wrap.before.n;
    if (rc)
        out->n = i_from;
    return rc;
}

enum q_code tokenizer_encode_marked(const struct tokenizer *t, const struct tokenizer_text *text,
                                    const struct token_marks *marks, struct token_list *out,
                                    struct q_err *e)
{
    const size_t i_from = out->n;
    Q_ASSERT(text->n_insert == 0); /* marks are places of a text in one part */
    for (size_t i = 0; i < marks->n; i++) {
        const size_t at = marks->items[i].at;
        if (at > text->n || (i && at < marks->items[i - 1].at) ||
            (at < text->n && ((unsigned char)text->data[at] & 0xC0u) == 0x80u))
            return q_fail(e, Q_INVALID, "mark %zu (byte %zu) is not where a character begins", i,
                          at);
    }
    const enum q_code rc = encode_plain(t, text, marks, out, e);
    if (rc)
        out->n = i_from;
    return rc;
}

enum q_code tokenizer_encode(const struct tokenizer *t, const char *text, size_t n,
                             bool add_special, struct token_list *out, struct q_err *e)
{
    const struct tokenizer_text whole = {.data = text, .n = n};
    return tokenizer_encode_prompt(t, &whole, add_special, out, e);
}

enum q_code tokenizer_encode_limited(const struct tokenizer *t, const char *text, size_t n,
                                     bool add_special, struct token_list *out, struct q_err *e)
{
    size_t i_from = out->n;
    enum q_code rc;
    const struct tokenizer_text whole = {.data = text, .n = n};
    if ((rc = encode_plain(t, &whole, NULL, out, e)) ||
        (rc = tok_truncate(&t->limits, add_special ? count_special(t) : 0, out, i_from, e)) ||
        (add_special && (rc = wrap_ids(t, out, i_from, e))) ||
        (rc = tok_pad(&t->limits, out, i_from, e)))
        out->n = i_from;
    return rc;
}
