/* SPDX-License-Identifier: Apache-2.0 */
/* roles - check of message roles against the chat template.
 *
 * A template skips an unknown role or prints it unchanged; in both cases the prompt is wrong.
 * Threads: reentrant. */
#ifndef QUIRE_COMMON_CHAT_ROLES_H
#define QUIRE_COMMON_CHAT_ROLES_H
#include <jansson.h>
#include <stdbool.h>
#include "common/chat/chat_model.h"

/* The template compares something called role with this one, or has it in a list or map of them. */
bool role_in_template(const char *role, const char *source);
/* The role of every message is OpenAI's or one that the model's templates or `own` (the request's,
 * NULL: none) name. What is no message with a role is left to messages_read. Errors: Q_INVALID. */
FALLIBLE roles_check(const struct chat_model *m, const char *own, const json_t *messages,
                     struct q_err *e);

#endif
