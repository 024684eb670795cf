/* SPDX-License-Identifier: Apache-2.0 */
/* encode - the steps of encoding that loading needs too, and what truncation and padding do.
 * Private to common/tokenizer. Threads: as tok_work. */
#ifndef QUIRE_COMMON_TOKENIZER_ENCODE_H
#define QUIRE_COMMON_TOKENIZER_ENCODE_H
#include "common/tokenizer/tokenizer_internal.h"

/* Run the normalizers over w->text. */
FALLIBLE tok_normalize(const struct tokenizer *t, struct tok_work *w, struct q_err *e);

/* limits.c. ids[i_from..n) is one text, truncated without and padded with its special tokens. */
FALLIBLE tok_limits_load(struct tok_limits *l, const json_t *root, struct q_err *e);
FALLIBLE tok_truncate(const struct tok_limits *l, size_t n_special, struct token_list *ids,
                      size_t i_from, struct q_err *e);
FALLIBLE tok_pad(const struct tok_limits *l, struct token_list *ids, size_t i_from,
                 struct q_err *e);

#endif
