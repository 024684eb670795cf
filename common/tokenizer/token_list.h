/* SPDX-License-Identifier: Apache-2.0 */
/* token_list - a growing array of token ids. Callers get it with tokenizer.h. Threads: one
 * owner. */
#ifndef QUIRE_COMMON_TOKENIZER_TOKEN_LIST_H
#define QUIRE_COMMON_TOKENIZER_TOKEN_LIST_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

#define TOKEN_NONE UINT32_MAX

struct token_list {
    uint32_t *ids; /* [n] */
    size_t n, cap;
};
/* clang-format off */
#define TOKEN_LIST_INIT {NULL, 0, 0}
/* clang-format on */
FALLIBLE token_list_add(struct token_list *l, uint32_t id, struct q_err *e);
/* All ids of `from` behind those of `to`. Errors: as token_list_add; some may have been added. */
FALLIBLE token_list_join(struct token_list *to, const struct token_list *from, struct q_err *e);
void token_list_release(struct token_list *l);

#endif
