/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes of text that one token can stand for. Known only of pipelines in which nothing of a text
 * disappears: byte-level BPE, and BPE with byte fallback. Elsewhere a run of white space, or of
 * unknown characters, of any length may become one token or none. */
#include <string.h>
#include "common/mem.h"
#include "common/tokenizer/components/bpe.h"
#include "common/tokenizer/components/cut.h"
#include "common/tokenizer/components/norm.h"
#include "common/tokenizer/tokenizer_internal.h"

/* By how much normalizers shorten a text at most: a letter of four bytes that stands for an ASCII
 * letter in another style; the Kelvin sign's lower case; three letters of six bytes that are
 * composed to one of two are less. */
#define SHORTER_FORM 4u
#define SHORTER_CASE 3u

extern const struct norm_ops norm_unicode, norm_prepend, norm_byte_level;
extern const struct pre_ops pre_byte_level, pre_metaspace, pre_digits, pre_scripts,
    pre_fixed_length, pre_split, pre_punctuation;
extern const struct model_ops model_bpe;

/* 0: by any factor. */
static size_t norm_factor(const struct tok_part *p)
{
    if (p->ops == &norm_unicode.base)
        return SHORTER_FORM;
    if (p->ops == &norm_lowercase.base)
        return SHORTER_CASE;
    if (p->ops == &norm_replace.base)
        return norm_replace_shorter(p);
    return p->ops == &norm_prepend.base || p->ops == &norm_byte_level.base;
}

static bool pre_keeps_all(const struct tok_part *p)
{
    static const struct tok_ops *const keep[] = {
        &pre_byte_level.base, &pre_metaspace.base,    &pre_digits.base,
        &pre_scripts.base,    &pre_fixed_length.base,
    };
    if (p->ops == &pre_split.base || p->ops == &pre_punctuation.base)
        return cut_behavior_of(p) != CUT_REMOVED;
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++)
        if (p->ops == keep[i])
            return true;
    return false;
}

static bool bpe_keeps_all(const struct bpe *m)
{
    for (size_t i = 0; i < 256 && !m->raw; i++)
        if (!m->byte_fallback || m->fallback[i] == TOKEN_NONE)
            return false;
    return true; /* raw: load_bytes has found a symbol for each byte */
}

static size_t longest_token(const struct tokenizer *t, struct q_err *e)
{
    struct buf bytes = BUF_INIT;
    size_t most = 0;
    for (uint32_t id = 0; id < t->n_id; id++) {
        buf_reset(&bytes);
        if (t->text_len[id] <= most) /* its bytes are no more than its text */
            continue;
        if (tokenizer_token_bytes(t, id, &bytes, e)) {
            most = 0;
            break;
        }
        most = bytes.len > most ? bytes.len : most;
    }
    buf_release(&bytes);
    return most;
}

size_t tokenizer_token_bytes_max(const struct tokenizer *t)
{
    struct q_err e = Q_ERR_INIT;
    const struct tok_chain *norm = &t->chain[TOK_NORM], *pre = &t->chain[TOK_PRE];
    size_t most;
    if (t->model != &model_bpe || !bpe_keeps_all(t->model_self))
        return 0;
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].lstrip || t->added[i].rstrip)
            return 0;
    for (uint32_t i = 0; i < pre->n_part; i++)
        if (!pre_keeps_all(&pre->parts[i]))
            return 0;
    most = longest_token(t, &e);
    for (uint32_t i = 0; i < norm->n_part; i++)
        most *= norm_factor(&norm->parts[i]);
    return most;
}
