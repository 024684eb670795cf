/* SPDX-License-Identifier: Apache-2.0 */
/* Pre-tokenizers that use the class of each character: BertPreTokenizer, CharDelimiterSplit,
 * UnicodeScripts, FixedLength. */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/components/cut.h"
#include "common/utf8.h"

/* ---- BertPreTokenizer: white space goes, each punctuation character stands alone ---- */

static enum q_code bert_span(struct tok_work *w, const struct tok_span *s, struct q_err *e)
{
    enum q_code rc = Q_OK;
    size_t from = s->start; /* the word that is not yet added */
    for (size_t i = s->start; i < s->end && !rc;) {
        uint32_t cp;
        size_t step = utf8_decode(w->text + i, s->end - i, &cp);
        bool space = tok_is_space(cp);
        if (space || tok_is_punct(cp)) {
            rc = tok_span_add(w, from, i, e);
            if (!rc && !space)
                rc = tok_span_add(w, i, i + step, e);
            from = i + step;
        }
        i += step;
    }
    return rc ? rc : tok_span_add(w, from, s->end, e);
}

static enum q_code bert_run(const void *self, struct tok_work *w, struct q_err *e)
{
    (void)self;
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < w->n_span && !rc; i++)
        rc = bert_span(w, &w->spans[i], e);
    tok_spans_done(w);
    return rc;
}

const struct pre_ops pre_bert = {{NULL, NULL}, bert_run};

/* ---- CharDelimiterSplit: cut at one character, which goes ---- */

struct delimiter {
    char text[4]; /* [n] */
    size_t n;
};

static enum q_code delimiter_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    struct tok_str s;
    uint32_t cp;
    enum q_code rc = tok_json_str(spec, "delimiter", at, &s, e);
    if (rc)
        return rc;
    if (s.n == 0 || utf8_decode(s.s, s.n, &cp) != s.n)
        return q_fail(e, Q_CORRUPT, "tokenizer.json: %s.delimiter: expected one character", at);
    struct delimiter *d = q_calloc(1, sizeof *d);
    if (!d)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    memcpy(d->text, s.s, s.n);
    d->n = s.n;
    *self = d;
    return Q_OK;
}

static enum q_code delimiter_run(const void *self, struct tok_work *w, struct q_err *e)
{
    const struct delimiter *d = self;
    struct cut c = {.w = w, .behavior = CUT_REMOVED};
    struct tok_pattern p = {.string = (char *)d->text, .n = d->n};
    return cut_pattern(&c, &p, e);
}

const struct pre_ops pre_delimiter = {{delimiter_load, q_free}, delimiter_run};

/* ---- UnicodeScripts: cut where the script changes ----
 * Characters of no script (and the space) belong to what is before them; at the start of a span
 * there is nothing before them, and they are lost, as in the reference. */

static enum q_code scripts_span(struct tok_work *w, const struct tok_span *s, struct q_err *e)
{
    uint32_t last = 0;
    size_t from = s->end; /* no script seen yet */
    for (size_t i = s->start; i < s->end;) {
        uint32_t cp;
        size_t step = utf8_decode(w->text + i, s->end - i, &cp);
        uint32_t script = tok_script(cp);
        if (script && script != last) {
            enum q_code rc = from < i ? tok_span_add(w, from, i, e) : Q_OK;
            if (rc)
                return rc;
            from = i;
            last = script;
        }
        i += step;
    }
    return tok_span_add(w, from, s->end, e);
}

static enum q_code scripts_run(const void *self, struct tok_work *w, struct q_err *e)
{
    (void)self;
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < w->n_span && !rc; i++)
        rc = scripts_span(w, &w->spans[i], e);
    tok_spans_done(w);
    return rc;
}

const struct pre_ops pre_scripts = {{NULL, NULL}, scripts_run};

/* ---- FixedLength: so many characters each ---- */

static enum q_code fixed_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    uint32_t n = 5; /* the reference's default */
    const json_t *length = json_object_get(spec, "length");
    enum q_code rc = length ? tok_json_id(length, at, "length", &n, e) : Q_OK;
    if (rc)
        return rc;
    if (n == 0)
        return q_fail(e, Q_CORRUPT, "tokenizer.json: %s.length: expected 1 or more, found 0", at);
    uint32_t *state = q_alloc(sizeof *state);
    if (!state)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *state = n;
    *self = state;
    return Q_OK;
}

static enum q_code fixed_run(const void *self, struct tok_work *w, struct q_err *e)
{
    uint32_t length = *(const uint32_t *)self;
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < w->n_span && !rc; i++) {
        const struct tok_span *s = &w->spans[i];
        for (size_t from = s->start; from < s->end && !rc;) {
            size_t at = from;
            uint32_t cp;
            for (uint32_t n = 0; n < length && at < s->end; n++)
                at += utf8_decode(w->text + at, s->end - at, &cp);
            rc = tok_span_add(w, from, at, e);
            from = at;
        }
    }
    tok_spans_done(w);
    return rc;
}

const struct pre_ops pre_fixed_length = {{fixed_load, q_free}, fixed_run};
