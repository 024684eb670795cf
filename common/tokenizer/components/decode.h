/* SPDX-License-Identifier: Apache-2.0 */
/* decode - the state of a tokenizer's decoders for one stream of ids. Private to common/tokenizer.
 * Threads: one owner. */
#ifndef QUIRE_COMMON_TOKENIZER_COMPONENTS_DECODE_H
#define QUIRE_COMMON_TOKENIZER_COMPONENTS_DECODE_H
#include "common/tokenizer/tokenizer_internal.h"

struct dec_chain {
    struct dec_stage *stages; /* [n_stage], at least one; the caller's */
    uint32_t n_stage;
};
uint32_t dec_chain_stages(const struct tokenizer *t); /* TOK_PARTS_MAX at most */
/* stages: [dec_chain_stages]; they, t and out are borrowed for as long as the chain is used. eager:
 * a stream. The text goes to `out`, whose own failure flag tells whether all of it fitted.
 * Ownership: dec_chain_release. */
void dec_chain_init(struct dec_chain *c, struct dec_stage *stages, const struct tokenizer *t,
                    bool eager, struct buf *out);
void dec_chain_release(struct dec_chain *c);
/* Unknown ids are nothing. */
void dec_chain_push(struct dec_chain *c, const struct tokenizer *t, uint32_t id, bool skip_special);
void dec_chain_flush(struct dec_chain *c);
/* Whether the decoders can follow each other. Errors: Q_UNSUPPORTED. */
FALLIBLE dec_chain_check(const struct tok_chain *parts, struct q_err *e);

#endif
