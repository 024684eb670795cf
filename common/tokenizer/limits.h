/* SPDX-License-Identifier: Apache-2.0 */
/* limits - "truncation" and "padding" of tokenizer.json: the maximum and the fixed length of a
 * list of ids. Private to common/tokenizer. Threads: read-only after load. */
#ifndef QUIRE_COMMON_TOKENIZER_LIMITS_H
#define QUIRE_COMMON_TOKENIZER_LIMITS_H
#include "common/tokenizer/json.h"
#include "common/tokenizer/token_list.h"

struct tok_limits {
    uint32_t length_max; /* tokens, special ones included; LIMIT_NONE: not truncated */
    uint32_t pad_to, pad_multiple, pad_id; /* 0: the text's own length, no multiple */
    bool cut_left, second_only, pad, pad_left;
};
#define LIMIT_NONE UINT32_MAX
#define PAD_MAX    (1u << 24) /* tokens */

/* Errors: Q_CORRUPT, Q_UNSUPPORTED (a name that is not known, padding to more than PAD_MAX). */
FALLIBLE tok_limits_load(struct tok_limits *l, const json_t *root, struct q_err *e);
/* ids[i_from..n) is one text, truncated without and padded with its special tokens. */
FALLIBLE tok_truncate(const struct tok_limits *l, size_t n_special, struct token_list *ids,
                      size_t i_from, struct q_err *e);
FALLIBLE tok_pad(const struct tok_limits *l, struct token_list *ids, size_t i_from,
                 struct q_err *e);

#endif
