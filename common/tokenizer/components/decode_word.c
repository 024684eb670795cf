/* SPDX-License-Identifier: Apache-2.0 */
/* Decoders that join words: WordPiece, CTC, BPEDecoder. */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/tokenizer_internal.h"

static void add_replaced(struct buf *out, const char *s, size_t n, struct tok_str from,
                         struct tok_str to)
{
    for (const char *end = s + n; s < end;) {
        const char *hit = from.n ? memmem(s, (size_t)(end - s), from.s, from.n) : NULL;
        buf_add(out, s, (size_t)((hit ? hit : end) - s));
        if (hit)
            buf_add(out, to.s, to.n);
        s = hit ? hit + from.n : end;
    }
}

static struct tok_str str(const char *s)
{
    return (struct tok_str){s, strlen(s)};
}

/* Spaces that tokenizing English put in are taken out again, one rule after the other. */
static void clean_up(struct buf *b)
{
    static const char *const rules[][2] = {
        {" .", "."},   {" ?", "?"},     {" !", "!"},     {" ,", ","},
        {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},   {" do not", " don't"},
        {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    if (!b->len || !memchr(b->data, ' ', b->len)) /* every rule has one */
        return;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        struct buf next = BUF_INIT;
        if (!memmem(buf_str(b), b->len, rules[i][0], strlen(rules[i][0])))
            continue;
        add_replaced(&next, buf_str(b), b->len, str(rules[i][0]), str(rules[i][1]));
        if (b->failed)
            next.failed = b->failed;
        buf_move(b, &next);
    }
}

struct names {   /* one or two strings and a flag: the state of all three */
    char *a, *b; /* [n_a], [n_b] */
    size_t n_a, n_b;
    bool cleanup;
};

static void names_drop(void *self)
{
    struct names *p = self;
    if (!p)
        return;
    q_free(p->a);
    q_free(p->b);
    q_free(p);
}

/* keys[0] and, unless NULL, keys[1] are the names of the strings. */
static enum q_code names_load(void **self, const json_t *spec, const char *at,
                              const char *const keys[2], struct q_err *e)
{
    enum q_code rc;
    struct tok_str a;
    struct tok_str b = {"", 0};
    struct names *p = q_calloc(1, sizeof *p);
    if (!p)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *self = p;
    if ((rc = tok_json_str(spec, keys[0], at, &a, e)) ||
        (keys[1] && (rc = tok_json_str(spec, keys[1], at, &b, e))) ||
        (rc = tok_json_bool(spec, "cleanup", at, &p->cleanup, e)))
        return rc;
    p->a = q_strndup(a.s, a.n);
    p->b = q_strndup(b.s, b.n);
    p->n_a = a.n;
    p->n_b = b.n;
    return p->a && p->b ? Q_OK : q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
}

/* ---- WordPiece: "##ing" goes on with a word, anything else begins one ---- */

static enum q_code piece_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    static const char *const keys[] = {"prefix", NULL};
    return names_load(self, spec, at, keys, e);
}

static void piece_push(struct dec_stage *s, const char *token, size_t n)
{
    const struct names *p = s->self;
    buf_reset(&s->token);
    if (s->started && n >= p->n_a && memcmp(token, p->a, p->n_a) == 0) {
        token += p->n_a;
        n -= p->n_a;
    } else if (s->started)
        buf_add_char(&s->token, ' ');
    s->started = true;
    buf_add(&s->token, token, n);
    if (p->cleanup)
        clean_up(&s->token);
    dec_emit_token(s);
}

static void piece_bytes(const void *self, const char *token, size_t n, struct buf *out)
{
    struct dec_stage s = {.self = self, .out = out, .started = true}; /* as a token in the middle */
    piece_push(&s, token, n);
    buf_release(&s.token);
}

const struct dec_ops decode_word_piece = {
    {piece_load, names_drop}, piece_push, NULL, piece_bytes, DEC_TOKENS, false,
};

/* ---- CTC: a token said twice is one, the pad token is nothing, the delimiter is a space ---- */

static enum q_code ctc_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    static const char *const keys[] = {"pad_token", "word_delimiter_token"};
    return names_load(self, spec, at, keys, e);
}

static void ctc_bytes(const void *self, const char *token, size_t n, struct buf *out)
{
    const struct names *p = self;
    struct buf text = BUF_INIT;
    add_replaced(&text, token, n, (struct tok_str){p->a, p->n_a}, str(""));
    if (p->cleanup) {
        clean_up(&text);
        add_replaced(out, buf_str(&text), text.len, (struct tok_str){p->b, p->n_b}, str(" "));
    } else
        buf_add(out, buf_str(&text), text.len);
    if (text.failed)
        out->failed = text.failed;
    buf_release(&text);
}

/* s->token is the token before, as it came. */
static void ctc_push(struct dec_stage *s, const char *token, size_t n)
{
    struct buf text = BUF_INIT;
    if (s->started && s->token.len == n && memcmp(buf_str(&s->token), token, n) == 0)
        return;
    s->started = true;
    buf_reset(&s->token);
    buf_add(&s->token, token, n);
    ctc_bytes(s->self, token, n, &text);
    if (text.len)
        dec_emit(s, buf_str(&text), text.len);
    if (text.failed || s->token.failed)
        s->out->failed = text.failed ? text.failed : s->token.failed;
    buf_release(&text);
}

const struct dec_ops decode_ctc = {
    {ctc_load, names_drop}, ctc_push, NULL, ctc_bytes, DEC_TOKENS, false,
};

/* ---- BPEDecoder: the suffix ends a word; after the last one comes no space ---- */

static enum q_code suffix_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    static const char *const keys[] = {"suffix", NULL};
    return names_load(self, spec, at, keys, e);
}

/* s->token is the token before; what becomes of it depends on whether one follows. */
static void suffix_emit(struct dec_stage *s, const char *instead)
{
    const struct names *p = s->self;
    struct buf text = BUF_INIT;
    add_replaced(&text, buf_str(&s->token), s->token.len, (struct tok_str){p->a, p->n_a},
                 str(instead));
    dec_emit(s, buf_str(&text), text.len);
    if (text.failed || s->token.failed)
        s->out->failed = text.failed ? text.failed : s->token.failed;
    buf_release(&text);
}

static void suffix_push(struct dec_stage *s, const char *token, size_t n)
{
    if (s->started)
        suffix_emit(s, " ");
    s->started = true;
    buf_reset(&s->token);
    buf_add(&s->token, token, n);
}

static void suffix_flush(struct dec_stage *s)
{
    if (s->started)
        suffix_emit(s, "");
    s->started = false;
}

static void suffix_bytes(const void *self, const char *token, size_t n, struct buf *out)
{
    const struct names *p = self;
    add_replaced(out, token, n, (struct tok_str){p->a, p->n_a}, str(" "));
}

const struct dec_ops decode_bpe = {
    {suffix_load, names_drop}, suffix_push, suffix_flush, suffix_bytes, DEC_TOKENS, false,
};
