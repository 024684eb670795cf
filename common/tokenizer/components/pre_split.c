/* SPDX-License-Identifier: Apache-2.0 */
/* Pre-tokenizers that only cut: Split, Digits, Punctuation, Whitespace, WhitespaceSplit.
 *
 * Each finds matches in a span; the rest of the span are gaps. `behavior` determines the pieces:
 *
 *   text aXXb, X the pattern      Isolated a|X|X|b   Removed a|b   Contiguous a|XX|b
 *                                 MergedWithPrevious aX|X|b        MergedWithNext a|X|Xb
 *
 * invert swaps matches and gaps. */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/components/cut.h"
#include "common/utf8.h"

enum q_code cut_behavior(const json_t *spec, const char *at, enum cut_behavior *out,
                         struct q_err *e)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    struct tok_str s;
    enum q_code rc = tok_json_str(spec, "behavior", at, &s, e);
    if (rc)
        return rc;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(s.s, names[i]) == 0) {
            *out = (enum cut_behavior)i;
            return Q_OK;
        }
    }
    return q_fail(e, Q_UNSUPPORTED, "tokenizer.json: %s.behavior: unknown value \"%.40s\"", at,
                  s.s);
}

static enum q_code hold(struct cut *c, size_t start, size_t end, struct q_err *e)
{
    enum q_code rc = c->held ? tok_span_add(c->w, c->start, c->end, e) : Q_OK;
    c->held = true;
    c->start = start;
    c->end = end;
    return rc;
}

/* One match or gap, in order. */
static enum q_code piece(struct cut *c, size_t start, size_t end, bool match, struct q_err *e)
{
    bool was = c->was_match;
    match = match != c->invert;
    c->was_match = match;
    switch (c->behavior) {
    case CUT_ISOLATED:
        return tok_span_add(c->w, start, end, e);
    case CUT_REMOVED:
        return match ? Q_OK : tok_span_add(c->w, start, end, e);
    case CUT_CONTIGUOUS:
        if (match != was || !c->held)
            return hold(c, start, end, e);
        c->end = end;
        return Q_OK;
    case CUT_PREVIOUS:
        if (!match || was || !c->held)
            return hold(c, start, end, e);
        c->end = end;
        return Q_OK;
    default: /* CUT_NEXT: a held match waits for the gap after it */
        if (match || !c->held || !was)
            return hold(c, start, end, e);
        c->end = end;
        return Q_OK;
    }
}

enum q_code cut_match(struct cut *c, size_t start, size_t end, struct q_err *e)
{
    enum q_code rc = c->at < start ? piece(c, c->at, start, false, e) : Q_OK;
    c->at = end;
    return rc ? rc : piece(c, start, end, true, e);
}

void cut_begin(struct cut *c, const struct tok_span *s)
{
    c->at = s->start;
    c->held = c->was_match = false;
}

enum q_code cut_end(struct cut *c, const struct tok_span *s, struct q_err *e)
{
    enum q_code rc = c->at < s->end ? piece(c, c->at, s->end, false, e) : Q_OK;
    if (!rc && c->held)
        rc = tok_span_add(c->w, c->start, c->end, e);
    return rc;
}

/* All matches of x in one span. An empty match directly behind another match does not count, as in
 * the reference. */
static enum q_code cut_regex_span(struct cut *c, const struct tok_regex *x,
                                  const struct tok_span *s, struct q_err *e)
{
    struct tok_search q = {.s = c->w->text + s->start, .n = s->end - s->start};
    size_t from = 0;
    size_t last_end = SIZE_MAX;
    enum q_code rc = Q_OK;
    while (from <= q.n && !(rc = tok_regex_find(x, &c->w->regex, &q, from, e)) && q.found) {
        from = q.end;
        if (q.start == q.end) {
            uint32_t cp;
            from += q.end < q.n ? utf8_decode(q.s + q.end, q.n - q.end, &cp) : 1;
            if (q.end == last_end)
                continue;
        }
        last_end = q.end;
        if ((rc = cut_match(c, s->start + q.start, s->start + q.end, e)))
            break;
        if (q.end == q.n && q.start != q.end)
            break; /* only an empty match could follow, and it would touch this one */
    }
    return rc;
}

enum q_code cut_regex(struct cut *c, const struct tok_regex *x, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < c->w->n_span && !rc; i++) {
        const struct tok_span *s = &c->w->spans[i];
        cut_begin(c, s);
        if (!(rc = cut_regex_span(c, x, s, e)))
            rc = cut_end(c, s, e);
    }
    tok_spans_done(c->w);
    return rc;
}

static enum q_code cut_class(struct cut *c, bool (*is)(uint32_t), struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < c->w->n_span && !rc; i++) {
        const struct tok_span *s = &c->w->spans[i];
        cut_begin(c, s);
        for (size_t k = s->start; k < s->end && !rc;) {
            uint32_t cp;
            size_t step = utf8_decode(c->w->text + k, s->end - k, &cp);
            if (is(cp))
                rc = cut_match(c, k, k + step, e);
            k += step;
        }
        if (!rc)
            rc = cut_end(c, s, e);
    }
    tok_spans_done(c->w);
    return rc;
}

static enum q_code cut_string(struct cut *c, const char *needle, size_t n, struct q_err *e)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < c->w->n_span && !rc; i++) {
        const struct tok_span *s = &c->w->spans[i];
        const char *end = c->w->text + s->end;
        const char *p = c->w->text + s->start;
        cut_begin(c, s);
        while (!rc && (p = memmem(p, (size_t)(end - p), needle, n))) {
            size_t at = (size_t)(p - c->w->text);
            rc = cut_match(c, at, at + n, e);
            p += n;
        }
        if (!rc)
            rc = cut_end(c, s, e);
    }
    tok_spans_done(c->w);
    return rc;
}

enum q_code cut_pattern(struct cut *c, const struct tok_pattern *p, struct q_err *e)
{
    return p->regex ? cut_regex(c, p->regex, e) : cut_string(c, p->string, p->n, e);
}

struct split {
    struct tok_pattern pattern;
    enum cut_behavior behavior;
    bool invert;
};

static void split_drop(void *self)
{
    struct split *s = self;
    if (!s)
        return;
    tok_regex_free(s->pattern.regex);
    q_free(s->pattern.string);
    q_free(s);
}

enum q_code tok_pattern(const json_t *spec, const char *at, struct tok_pattern *out,
                        struct q_err *e)
{
    const json_t *p = json_object_get(spec, "pattern");
    struct tok_str s;
    enum q_code rc;
    if (!json_is_object(p))
        return tok_json_bad(p, at, "pattern", "an object with String or Regex", e);
    bool is_regex = json_object_get(p, "Regex") != NULL;
    if ((rc = tok_json_str(p, is_regex ? "Regex" : "String", at, &s, e)))
        return rc;
    if (is_regex)
        return tok_regex_new(&out->regex, s.s, s.n, at, e);
    if (s.n == 0)
        return q_fail(e, Q_UNSUPPORTED,
                      "tokenizer.json: %s: an empty String pattern is not supported", at);
    out->string = q_strndup(s.s, s.n);
    out->n = s.n;
    return out->string ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
}

static enum q_code split_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    enum q_code rc;
    struct split *s = q_calloc(1, sizeof *s);
    if (!s)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *self = s;
    if ((rc = tok_json_bool(spec, "invert", at, &s->invert, e)) ||
        (rc = cut_behavior(spec, at, &s->behavior, e)))
        return rc;
    return tok_pattern(spec, at, &s->pattern, e);
}

static enum q_code split_run(const void *self, struct tok_work *w, struct q_err *e)
{
    const struct split *s = self;
    struct cut c = {.w = w, .behavior = s->behavior, .invert = s->invert};
    return cut_pattern(&c, &s->pattern, e);
}

const struct pre_ops pre_split = {{split_load, split_drop}, split_run};

/* Digits and Punctuation: state is the behaviour alone. */
static enum q_code class_load(void **self, enum cut_behavior b, struct q_err *e)
{
    enum cut_behavior *state = q_alloc(sizeof *state);
    if (!state)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading a pre-tokenizer");
    *state = b;
    *self = state;
    return Q_OK;
}

static enum q_code digits_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    bool single = false;
    enum q_code rc = tok_json_bool(spec, "individual_digits", at, &single, e);
    return rc ? rc : class_load(self, single ? CUT_ISOLATED : CUT_CONTIGUOUS, e);
}

static enum q_code digits_run(const void *self, struct tok_work *w, struct q_err *e)
{
    struct cut c = {.w = w, .behavior = *(const enum cut_behavior *)self};
    return cut_class(&c, tok_is_numeric, e);
}

const struct pre_ops pre_digits = {{digits_load, q_free}, digits_run};

static enum q_code punct_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    enum cut_behavior b = CUT_ISOLATED;
    enum q_code rc = json_object_get(spec, "behavior") ? cut_behavior(spec, at, &b, e) : Q_OK;
    return rc ? rc : class_load(self, b, e);
}

static enum q_code punct_run(const void *self, struct tok_work *w, struct q_err *e)
{
    struct cut c = {.w = w, .behavior = *(const enum cut_behavior *)self};
    return cut_class(&c, tok_is_punct, e);
}

const struct pre_ops pre_punctuation = {{punct_load, q_free}, punct_run};

static enum q_code space_run(const void *self, struct tok_work *w, struct q_err *e)
{
    (void)self;
    struct cut c = {.w = w, .behavior = CUT_REMOVED};
    return cut_class(&c, tok_is_space, e);
}

const struct pre_ops pre_whitespace_split = {{NULL, NULL}, space_run};

/* Whitespace: runs of word characters, and runs of what is neither word nor space. */

static int word_class(uint32_t cp)
{
    return tok_is_space(cp) ? 0 : tok_is_word(cp) ? 1 : 2;
}

static enum q_code words_span(struct tok_work *w, const struct tok_span *s, struct q_err *e)
{
    enum q_code rc = Q_OK;
    size_t from = s->start;
    int was = 0;
    for (size_t i = s->start; i < s->end && !rc;) {
        uint32_t cp;
        size_t step = utf8_decode(w->text + i, s->end - i, &cp);
        int is = word_class(cp);
        if (is != was) {
            if (was)
                rc = tok_span_add(w, from, i, e);
            from = i;
            was = is;
        }
        i += step;
    }
    return rc || !was ? rc : tok_span_add(w, from, s->end, e);
}

static enum q_code words_run(const void *self, struct tok_work *w, struct q_err *e)
{
    (void)self;
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < w->n_span && !rc; i++)
        rc = words_span(w, &w->spans[i], e);
    tok_spans_done(w);
    return rc;
}

const struct pre_ops pre_whitespace = {{NULL, NULL}, words_run};

enum cut_behavior cut_behavior_of(const struct tok_part *p)
{
    return p->ops == &pre_split.base ? ((const struct split *)p->self)->behavior
                                     : *(const enum cut_behavior *)p->self;
}
