/* SPDX-License-Identifier: Apache-2.0 */
/* thinking_words - thinking_token_budget of a request, as the engine needs it: the words of
 * common/thinking_budget.h from the tags of the model's reasoning format. Threads: values. */
#ifndef QUIRE_COMMON_CHAT_THINKING_WORDS_H
#define QUIRE_COMMON_CHAT_THINKING_WORDS_H
#include "common/chat/chat_model.h"

#define THINKING_TOKENS_MAX 16777216 /* tokens */

struct thinking_words_args {
    const struct chat_model *model;
    const struct tokenizer *tokenizer; /* NULL: none */
    uint32_t max_tokens;
    const char *prompt; /* [n_prompt] its text, or the end of it */
    size_t n_prompt;
    bool calls;   /* the answer is read for calls */
    bool grammar; /* what follows reasoning is bound by a grammar: it does not begin again */
};
/* Can reasoning of the model be limited? Errors: Q_UNSUPPORTED; the message begins with the field.
 */
FALLIBLE thinking_words_check(const struct chat_model *m, const struct tokenizer *t,
                              struct q_err *e);
/* Append the words of submit.thinking. Errors: as above; Q_NO_MEMORY. */
FALLIBLE thinking_words(struct token_list *out, const struct thinking_words_args *a,
                        struct q_err *e);

#endif
