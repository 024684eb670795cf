/* SPDX-License-Identifier: Apache-2.0 */
/* messages - checks of a request's messages and tools for a chat template.
 * Threads: reentrant. */
#ifndef QUIRE_COMMON_CHAT_MESSAGES_H
#define QUIRE_COMMON_CHAT_MESSAGES_H
#include <jansson.h>
#include "common/chat/parts.h"
#include "common/err.h"

/* Check messages and make of them what templates expect: text parts joined, a refusal as content,
 * arguments of tool calls as objects, function_call and role "function" as tool calls and their
 * results. *out: a new array. parts: takes the items of content parts; NULL: text only. Between two
 * parts of text is a newline, beside an item nothing. A content with images is an array of
 * {"type": "text", "text": …}, one for each text part of the request, and {"type": "image"}.
 * Errors: Q_INVALID, Q_UNSUPPORTED, those of parts_add; the message starts with "messages". */
FALLIBLE messages_read(json_t **out, const json_t *messages, struct parts *parts, struct q_err *e);
/* For templates that take strings: each content with images becomes text, in which an image is a
 * mark on a line of its own. messages: of messages_read, with the same parts. Errors: Q_NO_MEMORY,
 * Q_TOO_LARGE. */
FALLIBLE messages_join_images(json_t *messages, const struct parts *parts, struct q_err *e);
/* Check tools: functions with names; a type that is left out is "function". *out: a new array, NULL
 * where there are none. Errors: Q_INVALID, Q_UNSUPPORTED; the message starts with "tools". */
FALLIBLE tools_read(json_t **out, const json_t *tools, struct q_err *e);

#endif
