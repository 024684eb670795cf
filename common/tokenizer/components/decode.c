/* SPDX-License-Identifier: Apache-2.0 */
/* Decoders, and tokenizer_decode, which uses them. A decoder reads one token at a time and passes
 * text on as soon as it is certain; detok.c uses the same chain for streams. */
#include <string.h>
#include "common/tokenizer/components/decode.h"
#include "common/utf8.h"

void dec_emit(struct dec_stage *s, const char *text, size_t n)
{
    if (s->next)
        s->next->ops->push(s->next, text, n);
    else
        buf_add(s->out, text, n);
}

void dec_emit_token(struct dec_stage *s)
{
    if (s->token.failed)
        s->out->failed = s->token.failed;
    dec_emit(s, buf_str(&s->token), s->token.len);
}

/* ---- ByteLevel: characters back to bytes, bytes to UTF-8 with U+FFFD for what is ill-formed ----
 */

/* Decode pending + bytes, keep an unfinished sequence at the end. */
static void emit_bytes(struct dec_stage *s, const unsigned char *bytes, size_t n)
{
    char text[4];
    while (n && s->n_pending) { /* at most three rounds */
        s->pending[s->n_pending++] = *bytes++;
        n--;
        size_t whole = utf8_complete_prefix((char *)s->pending, s->n_pending);
        if (whole == 0)
            continue;
        for (size_t i = 0; i < whole;) {
            uint32_t cp;
            i += utf8_decode((char *)s->pending + i, whole - i, &cp);
            dec_emit(s, text, utf8_encode(cp, text));
        }
        s->n_pending -= (uint32_t)whole;
        memmove(s->pending, s->pending + whole, s->n_pending);
    }
    size_t whole = utf8_complete_prefix((const char *)bytes, n);
    size_t good = 0; /* well-formed bytes not yet handed on */
    for (size_t i = 0; i < whole;) {
        uint32_t cp;
        size_t step = utf8_decode((const char *)bytes + i, whole - i, &cp);
        if (cp == UTF8_REPLACEMENT) {
            dec_emit(s, (const char *)bytes + good, i - good);
            dec_emit(s, text, utf8_encode(cp, text));
            good = i + step;
        }
        i += step;
    }
    if (whole > good)
        dec_emit(s, (const char *)bytes + good, whole - good);
    memcpy(s->pending + s->n_pending, bytes + whole, n - whole);
    s->n_pending += (uint32_t)(n - whole);
}

#define MAP_CHUNK 256 /* bytes unmapped at a time; a token is rarely longer */

/* Whether every character of the token is in the byte-level alphabet; others are taken as they are.
 */
static bool is_mapped(const char *token, size_t n)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += utf8_decode(token + i, n - i, &cp);
        if (tok_char_byte(cp) < 0)
            return false;
    }
    return true;
}

static void byte_level_push(struct dec_stage *s, const char *token, size_t n)
{
    unsigned char bytes[MAP_CHUNK];
    size_t n_byte = 0;
    if (!is_mapped(token, n)) {
        emit_bytes(s, (const unsigned char *)token, n);
        return;
    }
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += utf8_decode(token + i, n - i, &cp);
        bytes[n_byte++] = (unsigned char)tok_char_byte(cp);
        if (n_byte == MAP_CHUNK || i == n) {
            emit_bytes(s, bytes, n_byte);
            n_byte = 0;
        }
    }
}

static void byte_level_flush(struct dec_stage *s)
{
    char text[4];
    for (size_t i = 0; i < s->n_pending;) {
        uint32_t cp;
        i += utf8_decode((char *)s->pending + i, s->n_pending - i, &cp);
        dec_emit(s, text, utf8_encode(cp, text));
    }
    s->n_pending = 0;
}

static void byte_level_bytes(const void *self, const char *token, size_t n, struct buf *out)
{
    (void)self;
    if (!tok_unmap(token, n, out))
        buf_add(out, token, n);
}

const struct dec_ops decode_byte_level = {
    {NULL, NULL}, byte_level_push, byte_level_flush, byte_level_bytes, DEC_ANY, true,
};

/* Fuse joins tokens; streaming them one after the other is the same. */
const struct dec_ops decode_fuse = {{NULL, NULL}, dec_emit, NULL, NULL, DEC_ANY, true};

/* ---- "decoder": null ---- */

static void join_push(struct dec_stage *s, const char *token, size_t n)
{
    if (s->started)
        dec_emit(s, " ", 1);
    s->started = true;
    dec_emit(s, token, n);
}

static const struct dec_ops decode_join = {{NULL, NULL}, join_push, NULL, NULL, DEC_ANY, false};

/* ---- driving a chain ---- */

/* Whether a part behind the i-th must see whole tokens: then no part of one may be handed on. */
static bool whole_tokens_after(const struct tok_chain *chain, uint32_t i)
{
    for (i++; i < chain->n_part; i++)
        if (((const struct dec_ops *)chain->parts[i].ops)->needs == DEC_TOKENS)
            return true;
    return false;
}

uint32_t dec_chain_stages(const struct tokenizer *t)
{
    const uint32_t n = t->no_decoder ? 1 : t->chain[TOK_DECODE].n_part;
    return n ? n : 1; /* an empty Sequence */
}

void dec_chain_init(struct dec_chain *c, struct dec_stage *stages, const struct tokenizer *t,
                    bool eager, struct buf *out)
{
    const struct tok_chain *parts = &t->chain[TOK_DECODE];
    const uint32_t n_part = t->no_decoder ? 0 : parts->n_part;
    *c = (struct dec_chain){.stages = stages, .n_stage = dec_chain_stages(t)};
    stages[0] = (struct dec_stage){.ops = t->no_decoder ? &decode_join : &decode_fuse, .out = out};
    for (uint32_t i = 0; i < n_part; i++) {
        struct dec_stage *s = &stages[i];
        *s = (struct dec_stage){
            .ops = (const struct dec_ops *)parts->parts[i].ops,
            .self = parts->parts[i].self,
            .next = i + 1 < n_part ? s + 1 : NULL,
            .out = out,
            .eager = eager && !whole_tokens_after(parts, i),
            .fused = i && (s[-1].fused || s[-1].ops->fuses),
        };
    }
}

void dec_chain_push(struct dec_chain *c, const struct tokenizer *t, uint32_t id, bool skip_special)
{
    if (id >= t->n_id || !t->text_of[id] || (skip_special && (t->flags[id] & TOK_F_SKIP)))
        return;
    c->stages[0].ops->push(&c->stages[0], t->text_of[id], t->text_len[id]);
}

void dec_chain_flush(struct dec_chain *c)
{
    for (uint32_t i = 0; i < c->n_stage; i++) {
        if (c->stages[i].ops->flush)
            c->stages[i].ops->flush(&c->stages[i]);
    }
}

void dec_chain_release(struct dec_chain *c)
{
    for (uint32_t i = 0; i < c->n_stage; i++)
        buf_release(&c->stages[i].token);
}

enum q_code dec_chain_check(const struct tok_chain *parts, struct q_err *e)
{
    bool fused = false;
    for (uint32_t i = 0; i < parts->n_part; i++) {
        const struct dec_ops *ops = (const struct dec_ops *)parts->parts[i].ops;
        if (fused && ops->needs == DEC_TOKENS)
            return q_fail(e, Q_UNSUPPORTED,
                          "tokenizer.json: decoder[%u] requires separate tokens, but a previous "
                          "decoder fuses them",
                          i);
        fused = fused || ops->fuses;
    }
    return Q_OK;
}

enum q_code tokenizer_decode(const struct tokenizer *t, const uint32_t *ids, size_t n,
                             bool skip_special, struct buf *out, struct q_err *e)
{
    struct dec_stage stages[TOK_PARTS_MAX];
    struct dec_chain c;
    dec_chain_init(&c, stages, t, false, out);
    for (size_t i = 0; i < n; i++)
        dec_chain_push(&c, t, ids[i], skip_special);
    dec_chain_flush(&c);
    dec_chain_release(&c);
    return buf_check(out, "decoded text", e);
}

enum q_code tokenizer_token_bytes(const struct tokenizer *t, uint32_t id, struct buf *out,
                                  struct q_err *e)
{
    const struct tok_chain *c = &t->chain[TOK_DECODE];
    struct buf text = BUF_INIT;
    if (id >= t->n_id || !t->text_of[id])
        return Q_OK;
    buf_add(&text, t->text_of[id], t->text_len[id]);
    for (uint32_t i = 0; i < c->n_part && !(t->flags[id] & TOK_F_ADDED); i++) {
        const struct dec_ops *ops = (const struct dec_ops *)c->parts[i].ops;
        struct buf next = BUF_INIT;
        if (!ops->bytes)
            continue;
        ops->bytes(c->parts[i].self, buf_str(&text), text.len, &next);
        if (text.failed)
            next.failed = text.failed;
        buf_move(&text, &next);
    }
    if (!text.failed)
        buf_add(out, buf_str(&text), text.len);
    enum q_code rc = buf_check(&text, "token", e);
    buf_release(&text);
    return rc ? rc : buf_check(out, "token", e);
}

const char *tokenizer_token_text(const struct tokenizer *t, uint32_t id, size_t *n)
{
    const char *text = id < t->n_id ? t->text_of[id] : NULL;
    *n = text ? t->text_len[id] : 0;
    return text;
}
