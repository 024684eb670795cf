/* SPDX-License-Identifier: Apache-2.0 */
/* Normalizers that read a text character by character: BertNormalizer, StripAccents, Nmt,
 * ByteLevel. The steps of BertNormalizer are applied one after another to the whole text, as in
 * the reference. Accents are the characters of class Mn after NFD. */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/components/norm.h"
#include "common/utf8.h"

#define DROP UINT32_MAX /* the character is left out */

/* Rewrite w->text by `map`; bytes below 0x80 that `map` leaves alone are copied in runs. */
static enum q_code map_chars(struct tok_work *w, uint32_t (*map)(uint32_t), struct q_err *e)
{
    struct buf *out = tok_rewrite(w);
    size_t done = 0; /* copied so far */
    for (size_t i = 0; i < w->n;) {
        uint32_t cp;
        size_t step = utf8_decode(w->text + i, w->n - i, &cp);
        uint32_t to = map(cp);
        if (to != cp) {
            w->cut_start = w->cut_start || (to == DROP && out->len == 0 && i == done);
            buf_add(out, w->text + done, i - done);
            if (to != DROP)
                buf_add_utf8(out, to);
            done = i + step;
        }
        i += step;
    }
    if (done == 0) /* nothing changed */
        return Q_OK;
    buf_add(out, w->text + done, w->n - done);
    return tok_rewrite_done(w, e);
}

/* ---- BertNormalizer ---- */

struct bert {
    bool clean, chinese, strip_accents, lowercase;
    struct norm_form *nfd;
};

static void bert_drop(void *self)
{
    struct bert *b = self;
    if (!b)
        return;
    q_free(b->nfd);
    q_free(b);
}

static enum q_code bert_load(void **self, const json_t *spec, const char *at, struct q_err *e)
{
    enum q_code rc;
    struct bert *b = q_calloc(1, sizeof *b);
    if (!b)
        return q_fail(e, Q_NO_MEMORY, "out of memory loading %s", at);
    *self = b;
    b->clean = b->chinese = b->lowercase = true;
    if ((rc = tok_json_bool(spec, "clean_text", at, &b->clean, e)) ||
        (rc = tok_json_bool(spec, "handle_chinese_chars", at, &b->chinese, e)) ||
        (rc = tok_json_bool(spec, "lowercase", at, &b->lowercase, e)))
        return rc;
    b->strip_accents = b->lowercase; /* null means so */
    if ((rc = tok_json_bool(spec, "strip_accents", at, &b->strip_accents, e)))
        return rc;
    return norm_form_new(&b->nfd, false, false, e);
}

static uint32_t clean_char(uint32_t cp)
{
    if (cp == 0 || cp == 0xfffd || tok_is_other(cp))
        return DROP;
    return tok_is_space(cp) ? ' ' : cp;
}

/* The CJK blocks that BERT sets apart. */
static bool is_chinese(uint32_t cp)
{
    static const uint32_t blocks[][2] = {
        {0x4e00, 0x9fff},   {0x3400, 0x4dbf},   {0x20000, 0x2a6df}, {0x2a700, 0x2b73f},
        {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf}, {0xf900, 0xfaff},   {0x2f800, 0x2fa1f},
    };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        if (cp >= blocks[i][0] && cp <= blocks[i][1])
            return true;
    }
    return false;
}

static enum q_code space_chinese(struct tok_work *w, struct q_err *e)
{
    struct buf *out = tok_rewrite(w);
    size_t done = 0;
    for (size_t i = 0; i < w->n;) {
        uint32_t cp;
        size_t step = utf8_decode(w->text + i, w->n - i, &cp);
        if (cp >= 0x3400 && is_chinese(cp)) {
            buf_add(out, w->text + done, i - done);
            buf_add_char(out, ' ');
            buf_add(out, w->text + i, step);
            buf_add_char(out, ' ');
            done = i + step;
        }
        i += step;
    }
    if (done == 0)
        return Q_OK;
    buf_add(out, w->text + done, w->n - done);
    return tok_rewrite_done(w, e);
}

static uint32_t drop_nonspacing(uint32_t cp)
{
    return tok_is_nonspacing(cp) ? DROP : cp;
}

static enum q_code bert_run(const void *self, struct tok_work *w, struct q_err *e)
{
    const struct bert *b = self;
    enum q_code rc;
    if ((b->clean && (rc = map_chars(w, clean_char, e))) ||
        (b->chinese && (rc = space_chinese(w, e))) ||
        (b->strip_accents && (rc = norm_form_run(b->nfd, w, e))) ||
        (b->strip_accents && (rc = map_chars(w, drop_nonspacing, e))))
        return rc;
    return b->lowercase ? norm_lowercase.run(NULL, w, e) : Q_OK;
}

const struct norm_ops norm_bert = {{bert_load, bert_drop}, bert_run};

/* ---- StripAccents ---- */

static uint32_t drop_combining(uint32_t cp)
{
    return tok_is_combining(cp) ? DROP : cp;
}

static enum q_code accents_run(const void *self, struct tok_work *w, struct q_err *e)
{
    (void)self;
    return map_chars(w, drop_combining, e);
}

const struct norm_ops norm_strip_accents = {{NULL, NULL}, accents_run};

/* ---- Nmt: SentencePiece's rules of that name; controls go, odd spaces become spaces ---- */

static uint32_t nmt_char(uint32_t cp)
{
    switch (cp) {
    case '\t':
    case '\n':
    case '\f':
    case '\r':
    case 0x1680:
    case 0x2028:
    case 0x2029:
    case 0x2581:
    case 0xfeff:
    case 0xfffd:
        return ' ';
    case 0x7f:
    case 0x8f:
    case 0x9f:
        return DROP;
    default:
        if (cp >= 0x200b && cp <= 0x200f)
            return ' ';
        return cp >= 1 && cp < ' ' ? DROP : cp;
    }
}

static enum q_code nmt_run(const void *self, struct tok_work *w, struct q_err *e)
{
    (void)self;
    return map_chars(w, nmt_char, e);
}

const struct norm_ops norm_nmt = {{NULL, NULL}, nmt_run};

/* ---- ByteLevel ---- */

static enum q_code bytes_run(const void *self, struct tok_work *w, struct q_err *e)
{
    (void)self;
    struct buf *out = tok_rewrite(w);
    for (size_t i = 0; i < w->n; i++)
        buf_add_utf8(out, tok_byte_char((unsigned char)w->text[i]));
    return tok_rewrite_done(w, e);
}

const struct norm_ops norm_byte_level = {{NULL, NULL}, bytes_run};
