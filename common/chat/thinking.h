/* SPDX-License-Identifier: Apache-2.0 */
/* thinking - the request's reasoning settings, and their variables in the chat template.
 *
 * Clients use several forms (enable_thinking, thinking, reasoning_effort, at the top level or in
 * chat_template_kwargs); a template uses one of several variables. Each form sets the variable in
 * the template's source. Threads: values. */
#ifndef QUIRE_COMMON_CHAT_THINKING_H
#define QUIRE_COMMON_CHAT_THINKING_H
#include "common/buf.h"
#include "common/chat/turn_ask.h"
#include "common/parsers/parser.h"
#include "common/tokenizer/tokenizer.h"

/* What the request asks for. chat_template_kwargs go before enable_thinking and thinking, those
 * before reasoning_effort ("none": off, all others: on).
 * Errors: Q_INVALID; the message starts with the field's name. */
FALLIBLE thinking_read(enum thinking *out, const struct turn_ask *a, struct q_err *e);

/* The variables of chat_template_kwargs, with the template's switch as the request asks and
 * reasoning_effort; what chat_template_kwargs itself sets stays. source: the template's text.
 * *out: owned by the caller. Errors: thinking_read's, Q_NO_MEMORY. */
FALLIBLE thinking_kwargs(json_t **out, const struct turn_ask *a, const char *source,
                         struct q_err *e);

/* The tags with which the model itself may begin to reason, as submit.reasoning_tags has them:
 * those of `before` (of a prompt not inside reasoning) that are a token of the vocabulary. A tag
 * of several tokens begins like other text ("<"): a grammar that let it come would be left for
 * reasoning by a model that meant anything else.
 * Errors: Q_NO_MEMORY. */
FALLIBLE thinking_tags(struct buf *out, const struct tokenizer *t,
                       const struct parser_before *before, struct q_err *e);

#endif
