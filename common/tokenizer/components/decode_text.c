/* SPDX-License-Identifier: Apache-2.0 */
/* Decoders of SentencePiece models: Replace, ByteFallback, Strip. */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/components/replace.h"
#include "common/tokenizer/source/written.h"
#include "common/utf8.h"

/* ---- Replace: a string in each token ---- */

static enum q_code decode_replace_load(void **self, const json_t *spec, const char *at,
                                       struct q_err *e)
{
    enum q_code rc = replace_load(self, spec, at, e);
    if (!rc && ((const struct replace *)*self)->pattern.regex)
        rc = q_fail(e, Q_UNSUPPORTED, "tokenizer.json: %s: a Regex in a decoder is not supported",
                    at);
    return rc;
}

static void replace_bytes(const void *self, const char *token, size_t n, struct buf *out)
{
    const struct replace *r = self;
    for (const char *end = token + n; token < end;) {
        const char *hit = memmem(token, (size_t)(end - token), r->pattern.string, r->pattern.n);
        buf_add(out, token, (size_t)((hit ? hit : end) - token));
        if (hit)
            buf_add(out, r->content, r->n);
        token = hit ? hit + r->pattern.n : end;
    }
}

static void replace_push(struct dec_stage *s, const char *token, size_t n)
{
    buf_reset(&s->token);
    replace_bytes(s->self, token, n, &s->token);
    dec_emit_token(s);
}

const struct dec_ops decode_replace = {
    {decode_replace_load, replace_drop}, replace_push, NULL, replace_bytes, DEC_TOKENS, false,
};

/* ---- ByteFallback: <0x41> is a byte ----
 *
 * The reference looks at a whole run of byte tokens: all of it is text if it is UTF-8, else each
 * byte becomes U+FFFD. Decoding a whole text does that. A stream sends each character as soon as it
 * is complete, and U+FFFD from the first byte on that cannot be right; only what it sent of such a
 * run before that is more than the reference keeps. SentencePiece itself (SPM_RULES) keeps every
 * character of a run and makes U+FFFD of each byte that belongs to none. */

struct fallback {
    bool each, strip, strip_all; /* SPM_RULES, SPM_STRIP, SPM_STRIP_ALL */
};

static enum q_code fallback_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    struct fallback *f = q_calloc(1, sizeof *f);
    enum q_code rc;
    *self = f;
    if (!f)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    if ((rc = tok_json_bool(spec, SPM_RULES, at, &f->each, e)) ||
        (rc = tok_json_bool(spec, SPM_STRIP, at, &f->strip, e)))
        return rc;
    return tok_json_bool(spec, SPM_STRIP_ALL, at, &f->strip_all, e);
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that the token spells, or -1. */
static int byte_token(const char *token, size_t n)
{
    if (n != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
        return -1;
    int high = hex(token[3]);
    int low = hex(token[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* The bytes in s->token as text, or as U+FFFD each. */
static void emit_run(struct dec_stage *s)
{
    size_t n = s->token.len;
    s->bad_run = s->bad_run || !utf8_valid(buf_str(&s->token), n);
    if (!s->bad_run && n)
        dec_emit_token(s);
    for (size_t i = 0; i < n && s->bad_run; i++)
        dec_emit(s, "\xef\xbf\xbd", 3);
    if (s->token.failed)
        s->out->failed = s->token.failed;
    buf_reset(&s->token);
}

/* Characters and lone bytes of s->token; an unfinished character at the end stays unless `all`. */
static void emit_each(struct dec_stage *s, bool all)
{
    const char *bytes = buf_str(&s->token);
    size_t n = all ? s->token.len : utf8_complete_prefix(bytes, s->token.len);
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t step = utf8_decode(bytes + i, n - i, &cp);
        bool good =
            cp != UTF8_REPLACEMENT || (step == 3 && memcmp(bytes + i, "\xef\xbf\xbd", 3) == 0);
        for (size_t k = 0; k < step && !good; k++)
            dec_emit(s, "\xef\xbf\xbd", 3);
        if (good)
            dec_emit(s, bytes + i, step);
        i += step;
    }
    if (s->token.failed)
        s->out->failed = s->token.failed;
    char rest[4];
    size_t n_rest = s->token.len - n;
    memcpy(rest, bytes + n, n_rest);
    buf_reset(&s->token);
    buf_add(&s->token, rest, n_rest);
}

static void end_run(struct dec_stage *s)
{
    const struct fallback *f = s->self;
    if (f->each)
        emit_each(s, true);
    else
        emit_run(s);
    s->bad_run = false;
}

static void fallback_push(struct dec_stage *s, const char *token, size_t n)
{
    const struct fallback *f = s->self;
    int byte = byte_token(token, n);
    size_t n_cut = byte < 0 && (f->strip || f->strip_all) && !s->started && n && *token == ' ';
    s->started = s->started || n > (f->strip_all ? n_cut : 0);
    if (byte < 0) {
        end_run(s);
        dec_emit(s, token + n_cut, n - n_cut);
        return;
    }
    buf_add_char(&s->token, (char)byte);
    size_t len = s->token.len;
    if (f->each)
        emit_each(s, false);
    else if (s->eager && (s->bad_run || utf8_complete_prefix(buf_str(&s->token), len) == len))
        emit_run(s);
}

static void fallback_bytes(const void *self, const char *token, size_t n, struct buf *out)
{
    (void)self;
    int byte = byte_token(token, n);
    if (byte < 0)
        buf_add(out, token, n);
    else
        buf_add_char(out, (char)byte);
}

const struct dec_ops decode_byte_fallback = {
    {fallback_load, q_free}, fallback_push, end_run, fallback_bytes, DEC_TOKENS, false,
};

/* ---- Strip: characters off the ends of each token, or of the text once tokens are fused ----
 *
 * Where the end of the text is is not known before the flush, so of a fused text the last `stop`
 * characters are held while they are the one that may go. */

struct strip {
    char content[5]; /* [n] one character */
    size_t n;
    uint32_t start, stop; /* at most so many of them at either end */
};

static enum q_code strip_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    enum q_code rc;
    struct tok_str content;
    uint32_t cp;
    struct strip *p = q_calloc(1, sizeof *p);
    if (!p)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *self = p;
    if ((rc = tok_json_str(spec, "content", at, &content, e)) ||
        (rc = tok_json_id(json_object_get(spec, "start"), at, "start", &p->start, e)) ||
        (rc = tok_json_id(json_object_get(spec, "stop"), at, "stop", &p->stop, e)))
        return rc;
    if (content.n == 0 || utf8_decode(content.s, content.n, &cp) != content.n)
        return q_fail(e, Q_CORRUPT, "tokenizer.json: %s.content: expected one character", at);
    memcpy(p->content, content.s, content.n);
    p->n = content.n;
    return Q_OK;
}

/* How many of the characters that go s ends with, at most `max`. */
static uint32_t count_end(const struct strip *p, const char *s, size_t n, uint32_t max)
{
    uint32_t k = 0;
    while (k < max && n >= p->n && memcmp(s + n - p->n, p->content, p->n) == 0) {
        n -= p->n;
        k++;
    }
    return k;
}

static void emit_held(struct dec_stage *s, uint32_t keep)
{
    const struct strip *p = s->self;
    for (; s->n_pending > keep; s->n_pending--)
        dec_emit(s, p->content, p->n);
}

/* A piece of a fused text. */
static void strip_fused(struct dec_stage *s, const char *text, size_t n)
{
    const struct strip *p = s->self;
    uint32_t k = count_end(p, text, n, p->stop);
    if (k * p->n < n) {
        emit_held(s, 0);
        dec_emit(s, text, n - k * p->n);
    }
    s->n_pending += k;
    emit_held(s, p->stop);
}

static void strip_push(struct dec_stage *s, const char *token, size_t n)
{
    const struct strip *p = s->self;
    if (!s->fused) {
        s->started = false;
        s->n_cut = 0;
    }
    while (!s->started && s->n_cut < p->start && n >= p->n &&
           memcmp(token, p->content, p->n) == 0) {
        token += p->n;
        n -= p->n;
        s->n_cut++;
    }
    s->started = s->started || n > 0;
    if (s->fused)
        strip_fused(s, token, n);
    else
        dec_emit(s, token, n - count_end(p, token, n, p->stop) * p->n);
}

static void strip_flush(struct dec_stage *s)
{
    s->n_pending = 0;
}

const struct dec_ops decode_strip = {
    {strip_load, q_free}, strip_push, strip_flush, NULL, DEC_ANY, false,
};
