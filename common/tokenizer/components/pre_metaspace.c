/* SPDX-License-Identifier: Apache-2.0 */
/* Metaspace, SentencePiece's representation of spaces: each becomes a visible character (U+2581),
 * one more may be added in front, and each word begins with it. The decoder turns them back into
 * spaces and removes those of the first token, where the added one is. */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/components/cut.h"
#include "common/utf8.h"

enum scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct metaspace {
    char mark[5]; /* [n_mark] the replacement, one character */
    size_t n_mark;
    enum scheme scheme;
    bool split;
};

static enum q_code load_scheme(struct metaspace *m, const json_t *spec, const char *at,
                               struct q_err *e)
{
    static const char *const names[] = {"always", "first", "never"};
    bool prefix = true; /* the older spelling; false means never */
    struct tok_str s;
    enum q_code rc = tok_json_bool(spec, "add_prefix_space", at, &prefix, e);
    m->scheme = prefix ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (rc || !prefix || !json_object_get(spec, "prepend_scheme"))
        return rc;
    if ((rc = tok_json_str(spec, "prepend_scheme", at, &s, e)))
        return rc;
    for (int i = 0; i < 3; i++) {
        if (strcmp(s.s, names[i]) == 0) {
            m->scheme = (enum scheme)i;
            return Q_OK;
        }
    }
    return q_fail(e, Q_UNSUPPORTED, "tokenizer.json: %s.prepend_scheme: unknown value \"%.40s\"",
                  at, s.s);
}

static enum q_code metaspace_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    enum q_code rc;
    struct tok_str mark;
    uint32_t cp;
    struct metaspace *m = q_calloc(1, sizeof *m);
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *self = m;
    m->split = true;
    if ((rc = load_scheme(m, spec, at, e)) ||
        (rc = tok_json_bool(spec, "split", at, &m->split, e)) ||
        (rc = tok_json_str(spec, "replacement", at, &mark, e)))
        return rc;
    if (mark.n == 0 || utf8_decode(mark.s, mark.n, &cp) != mark.n)
        return q_fail(e, Q_CORRUPT, "tokenizer.json: %s.replacement: expected one character", at);
    memcpy(m->mark, mark.s, mark.n);
    m->n_mark = mark.n;
    return Q_OK;
}

static enum q_code metaspace_run(const void *self, struct tok_work *w, struct q_err *e)
{
    const struct metaspace *m = self;
    enum q_code rc;
    struct buf *b = tok_rewrite(w);
    for (size_t i = 0; i < w->n_span; i++) {
        const struct tok_span *s = &w->spans[i];
        size_t start = b->len;
        const char *p = w->text + s->start;
        size_t n = s->end - s->start;
        bool marked = *p == ' ' || (n >= m->n_mark && memcmp(p, m->mark, m->n_mark) == 0);
        bool wanted = m->scheme == PREPEND_ALWAYS ||
                      (m->scheme == PREPEND_FIRST && w->at_start && s->start == 0);
        if (wanted && !marked)
            buf_add(b, m->mark, m->n_mark);
        for (const char *end = p + n; p < end;) {
            const char *space = memchr(p, ' ', (size_t)(end - p));
            buf_add(b, p, (size_t)((space ? space : end) - p));
            if (space)
                buf_add(b, m->mark, m->n_mark);
            p = space ? space + 1 : end;
        }
        if ((rc = tok_span_add(w, start, b->len, e)))
            return rc;
    }
    tok_spans_done(w);
    if ((rc = tok_rewrite_done(w, e)) || !m->split)
        return rc;
    struct cut c = {.w = w, .behavior = CUT_NEXT};
    struct tok_pattern mark = {.string = (char *)m->mark, .n = m->n_mark};
    return cut_pattern(&c, &mark, e);
}

const struct pre_ops pre_metaspace = {{metaspace_load, q_free}, metaspace_run};

static void metaspace_push(struct dec_stage *s, const char *token, size_t n)
{
    const struct metaspace *m = s->self;
    bool drop = !s->started && m->scheme != PREPEND_NEVER;
    s->started = true;
    buf_reset(&s->token);
    for (const char *end = token + n; token < end;) {
        const char *mark = memmem(token, (size_t)(end - token), m->mark, m->n_mark);
        buf_add(&s->token, token, (size_t)((mark ? mark : end) - token));
        if (mark && !drop)
            buf_add_char(&s->token, ' ');
        token = mark ? mark + m->n_mark : end;
    }
    dec_emit_token(s);
}

static void metaspace_bytes(const void *self, const char *token, size_t n, struct buf *out)
{
    struct dec_stage s = {.self = self, .out = out, .started = true}; /* as a token in the middle */
    metaspace_push(&s, token, n);
    buf_release(&s.token);
}

const struct dec_ops decode_metaspace = {
    {metaspace_load, q_free}, metaspace_push, NULL, metaspace_bytes, DEC_TOKENS, false,
};
