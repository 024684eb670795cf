/* SPDX-License-Identifier: Apache-2.0 */
/* mistral - the chat format of folders that have Mistral's tekken.json and no template.
 *
 * The text equals mistral-common's for the version of the file: consecutive messages of one role
 * are joined (except results of tools), tools stand before a user's message, and tags differ by
 * version. The messages are converted here, so that the template only prints them. Tool call ids
 * longer than nine characters are cut to their last nine, as in vLLM; mistral-common would refuse
 * them. The order of roles is not checked. Source: mistral-common's InstructTokenizerV3 to V13 and
 * their normalizers. Threads: any; nothing is kept. */
#ifndef QUIRE_COMMON_TEMPLATE_MISTRAL_H
#define QUIRE_COMMON_TEMPLATE_MISTRAL_H
#include <jansson.h>
#include <stdint.h>
#include "common/err.h"

/* The template for messages in the form below; NULL: no such version. Static. */
const char *mistral_template(uint32_t version);
/* *out: {role, content: [{text} or {thinking}], tools: bool, calls: [{name, arguments, id}], id,
 * result} for each message of `messages` (OpenAI's, with arguments as objects or as text); owned by
 * the caller. Errors: Q_INVALID (an image, say: the entry and what it is), Q_NO_MEMORY. */
FALLIBLE mistral_messages(json_t **out, const json_t *messages, uint32_t version, struct q_err *e);
/* The request's tools in the form shown to the model: without unknown keys. */
FALLIBLE mistral_tools(json_t **out, const json_t *tools, struct q_err *e);

#endif
