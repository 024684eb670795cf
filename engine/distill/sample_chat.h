/* SPDX-License-Identifier: Apache-2.0 */
/* sample_chat - a conversation to tokens, and which of them an assistant has written.
 *
 * The whole conversation is rendered by the chat template and tokenized as a prompt of the server
 * is. What counts, in bytes of the rendered text:
 * 1. A template with {% generation %} blocks says it: the text of the blocks, as in transformers.
 * 2. Else for each assistant message: from behind what the template writes before an answer (the
 *    messages before it, with add_generation_prompt) to the end of the messages up to it, without
 *    white space that the template writes behind its last words (ChatML's newline behind
 *    <|im_end|>: a model stops before it). Where a template writes earlier messages otherwise once
 *    later ones follow (reasoning that is left out, tools before the last question), the same
 *    places are found by the text around them.
 * A token counts if one of its bytes does. A message with "weight": 0 does not count.
 * Threads: pure. */
#ifndef QUIRE_ENGINE_DISTILL_SAMPLE_CHAT_H
#define QUIRE_ENGINE_DISTILL_SAMPLE_CHAT_H
#include <jansson.h>
#include "common/ranges.h"
#include "engine/distill/sample_source.h"

struct sample_tokens {
    struct token_list ids;
    struct ranges counted; /* of tokens, by their numbers */
};
/* line: the object with messages. Errors: Q_INVALID, Q_UNSUPPORTED, Q_TOO_LARGE (the reason),
 * Q_NO_MEMORY. out: the caller's to release, also after an error. */
FALLIBLE sample_chat_read(struct sample_tokens *out, const struct sample_source *source,
                          const json_t *line, struct q_err *e);

#endif
