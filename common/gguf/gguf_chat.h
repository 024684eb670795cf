/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_chat - special tokens and chat templates of a GGUF file as a tokenizer_config.json.
 * Threads: reentrant. */
#ifndef QUIRE_COMMON_GGUF_GGUF_CHAT_H
#define QUIRE_COMMON_GGUF_GGUF_CHAT_H
#include <jansson.h>
#include "common/gguf/gguf.h"

/* A new reference: bos_token & co. as texts, add_bos_token & co. as the file says them,
 * chat_template as a text or a list of named ones. Errors: Q_CORRUPT (ids beyond the vocabulary, a
 * text that is not UTF-8), Q_NO_MEMORY. */
FALLIBLE gguf_to_tokenizer_config(json_t **out, const struct gguf *g, struct q_err *e);

#endif
