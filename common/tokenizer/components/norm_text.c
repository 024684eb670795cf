/* SPDX-License-Identifier: Apache-2.0 */
/* Normalizers that edit text: Strip, Replace, Prepend. */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/components/cut.h"
#include "common/tokenizer/components/norm.h"
#include "common/tokenizer/components/replace.h"
#include "common/utf8.h"

struct strip {
    bool left, right;
};

static enum q_code strip_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    struct strip *s = q_calloc(1, sizeof *s);
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *self = s;
    enum q_code rc = tok_json_bool(spec, "strip_left", at, &s->left, e);
    return rc ? rc : tok_json_bool(spec, "strip_right", at, &s->right, e);
}

static enum q_code strip_run(const void *self, struct tok_work *w, struct q_err *e)
{
    (void)e;
    const struct strip *s = self;
    size_t start = 0;
    while (s->left && start < w->n) {
        uint32_t cp;
        size_t step = utf8_decode(w->text + start, w->n - start, &cp);
        if (!tok_is_space(cp))
            break;
        start += step;
    }
    if (s->right)
        w->n = start + tok_trim_end(w->text + start, w->n - start);
    w->cut_start = w->cut_start || start;
    w->text += start;
    w->n -= start;
    return Q_OK;
}

const struct norm_ops norm_strip = {{strip_load, q_free}, strip_run};

/* The text is one span to the pattern; what lies between the matches is copied. */
static enum q_code replace_run(const void *self, struct tok_work *w, struct q_err *e)
{
    const struct replace *r = self;
    enum q_code rc = tok_span_add(w, 0, w->n, e);
    if (rc)
        return rc;
    tok_spans_done(w);
    struct cut c = {.w = w, .behavior = CUT_REMOVED, .invert = true}; /* spans become the matches */
    w->keep_empty = true;
    rc = cut_pattern(&c, &r->pattern, e);
    w->keep_empty = false;
    if (rc)
        return rc;
    struct buf *out = tok_rewrite(w);
    size_t at = 0;
    if (w->n_span && w->spans[0].start == 0 && w->spans[0].end && r->n == 0)
        w->cut_start = true;
    for (size_t i = 0; i < w->n_span; i++) {
        buf_add(out, w->text + at, w->spans[i].start - at);
        buf_add(out, r->content, r->n);
        at = w->spans[i].end;
    }
    buf_add(out, w->text + at, w->n - at);
    w->n_span = 0;
    return tok_rewrite_done(w, e);
}

const struct norm_ops norm_replace = {{replace_load, replace_drop}, replace_run};

size_t norm_replace_shorter(const struct tok_part *p)
{
    const struct replace *r = p->self;
    return r->pattern.string && r->n ? (r->pattern.n + r->n - 1) / r->n : 0;
}

static enum q_code prepend_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    struct tok_str s;
    enum q_code rc = tok_json_str(spec, "prepend", at, &s, e);
    if (rc)
        return rc;
    *self = q_strndup(s.s, s.n);
    return *self ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
}

static enum q_code prepend_run(const void *self, struct tok_work *w, struct q_err *e)
{
    if (w->n == 0)
        return Q_OK;
    struct buf *out = tok_rewrite(w);
    buf_add_str(out, self);
    buf_add(out, w->text, w->n);
    return tok_rewrite_done(w, e);
}

const struct norm_ops norm_prepend = {{prepend_load, q_free}, prepend_run};
