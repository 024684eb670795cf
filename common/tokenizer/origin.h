/* SPDX-License-Identifier: Apache-2.0 */
/* origin - control tokens that the request's own text spells out stay text.
 *
 * A control token is an added token that is marked special, or has the form "<|…|>" (some folders
 * lack the mark; the vertical bar may have full width). The ranges of a prompt mark the bytes of
 * the request: an occurrence with one of these bytes is no token. All other text, and added tokens
 * that are no control tokens, are encoded as usual, so ids differ from those of the same text
 * without ranges only where a control token is spelled out. Private to common/tokenizer. Threads:
 * as tok_work. */
#ifndef QUIRE_COMMON_TOKENIZER_ORIGIN_H
#define QUIRE_COMMON_TOKENIZER_ORIGIN_H
#include "common/tokenizer/tokenizer_internal.h"

struct tok_before { /* a piece of the caller's text before it was normalized */
    const char *s;  /* [n] */
    size_t n, at;   /* at: where it begins in the caller's text */
    bool at_start;
    const struct ranges *content; /* of the caller's text */
};

/* Mark the control tokens among t->added and make t->control of them. */
FALLIBLE tok_control_load(struct tokenizer *t, struct q_err *e);
/* May a control token be spelled out in the request's part of the text? False: the ranges change
 * nothing. */
bool tok_control_spelled(const struct tokenizer *t, const struct tokenizer_text *text);
/* Bytes of a text that normalization made: *out = where `ranges`, of the text before it, are in it.
 * before: the text and where it begins in the one that the ranges are of. Where that cannot be
 * told, the whole. */
FALLIBLE tok_origin_normalized(const struct tokenizer *t, const struct tok_work *w,
                               const struct tok_before *before, struct ranges *out,
                               struct q_err *e);
/* model->encode for a word of a text in which a control token is spelled out. */
FALLIBLE tok_encode_spelled(const struct tokenizer *t, struct tok_work *w, struct tok_str word,
                            struct token_list *out, struct q_err *e);

#endif
