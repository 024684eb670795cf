/* SPDX-License-Identifier: Apache-2.0 */
/* ByteLevel as a pre-tokenizer: a space in front, GPT-2's regex, and each byte written as a
 * printable character.
 *
 * A byte-level model reverses that writing, so when ByteLevel is the last of its chain (the usual
 * case) the text is left unchanged and w->raw marks spans of bytes. The alphabet is written only
 * if a later step reads it (falcon's Digits after ByteLevel: bytes 0xb2 and 0xb3 are superscript
 * digits there). */
#include "common/mem.h"
#include "common/tokenizer/components/cut.h"

#define GPT2_REGEX \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

struct byte_level {
    bool add_prefix_space;
    struct tok_regex *regex; /* NULL: do not split */
};

static void byte_drop(void *self)
{
    struct byte_level *b = self;
    if (!b)
        return;
    tok_regex_free(b->regex);
    q_free(b);
}

static enum q_code byte_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    enum q_code rc;
    bool use_regex = true;
    struct byte_level *b = q_calloc(1, sizeof *b);
    if (!b)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *self = b;
    b->add_prefix_space = true;
    if ((rc = tok_json_bool(spec, "add_prefix_space", at, &b->add_prefix_space, e)) ||
        (rc = tok_json_bool(spec, "use_regex", at, &use_regex, e)))
        return rc;
    return use_regex ? tok_regex_new(&b->regex, GPT2_REGEX, sizeof GPT2_REGEX - 1, at, e) : Q_OK;
}

/* A space in front of every span that has none. */
static enum q_code prefix_space(struct tok_work *w, struct q_err *e)
{
    enum q_code rc;
    struct buf *b = tok_rewrite(w);
    for (size_t i = 0; i < w->n_span; i++) {
        const struct tok_span *s = &w->spans[i];
        size_t start = b->len;
        if (w->text[s->start] != ' ')
            buf_add_char(b, ' ');
        buf_add(b, w->text + s->start, s->end - s->start);
        if ((rc = tok_span_add(w, start, b->len, e)))
            return rc;
    }
    tok_spans_done(w);
    return tok_rewrite_done(w, e);
}

static enum q_code map_bytes(struct tok_work *w, struct q_err *e)
{
    enum q_code rc;
    struct buf *b = tok_rewrite(w);
    for (size_t i = 0; i < w->n_span; i++) {
        const struct tok_span *s = &w->spans[i];
        size_t start = b->len;
        for (size_t k = s->start; k < s->end; k++)
            buf_add_utf8(b, tok_byte_char((unsigned char)w->text[k]));
        if ((rc = tok_span_add(w, start, b->len, e)))
            return rc;
    }
    tok_spans_done(w);
    return tok_rewrite_done(w, e);
}

static enum q_code byte_run(const void *self, struct tok_work *w, struct q_err *e)
{
    const struct byte_level *b = self;
    struct cut c = {.w = w, .behavior = CUT_ISOLATED};
    enum q_code rc = b->add_prefix_space ? prefix_space(w, e) : Q_OK;
    if (!rc && b->regex)
        rc = cut_regex(&c, b->regex, e);
    if (rc || w->last)
        return rc;
    return map_bytes(w, e);
}

const struct pre_ops pre_byte_level = {{byte_load, byte_drop}, byte_run};
