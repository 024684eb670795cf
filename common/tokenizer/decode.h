/* SPDX-License-Identifier: Apache-2.0 */
/* decode - a tokenizer's decoders at work on one stream of ids. Private to common/tokenizer.
 * Threads: one owner. */
#ifndef QUIRE_COMMON_TOKENIZER_DECODE_H
#define QUIRE_COMMON_TOKENIZER_DECODE_H
#include "common/tokenizer/tok.h"

struct dec_chain {
    struct dec_stage stages[TOK_PARTS_MAX]; /* [n_stage], at least one */
    uint32_t n_stage;
};
/* t and out are borrowed for as long as the chain is used; nothing to release. The text goes to
 * `out`, whose own failure flag tells whether all of it fitted. */
void dec_chain_init(struct dec_chain *c, const struct tokenizer *t, struct buf *out);
/* Unknown ids are nothing. */
void dec_chain_push(struct dec_chain *c, const struct tokenizer *t, uint32_t id, bool skip_special);
void dec_chain_flush(struct dec_chain *c);

#endif
