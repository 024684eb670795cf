/* SPDX-License-Identifier: Apache-2.0 */
/* quire_chat - a conversation's request in the library: reading JSON, rendering the prompt,
 * splitting the answer into events (common/chat has the rules, shared with the server).
 * Threads: one for a conversation; the chat_model is only read. */
#ifndef QUIRE_ENGINE_LIBRARY_QUIRE_CHAT_H
#define QUIRE_ENGINE_LIBRARY_QUIRE_CHAT_H
#include "common/buf.h"
#include "common/chat/chat_model.h"
#include "common/chat/parts.h"
#include "engine/quire.h"

struct quire_chat;
/* True if these are parameters of a conversation. */
bool quire_chat_asked(const struct quire_params *p);
/* For other requests: Q_INVALID if a field for conversations is set. */
FALLIBLE quire_chat_unasked(const struct quire_params *p, struct q_err *e);
/* Sets p->grammar_kind, grammar and grammar_after for required calls or for reasoning before a
 * grammar; they are valid as long as the conversation.
 * Errors: those of the API, starting with the field's name. */
FALLIBLE quire_chat_new(struct quire_chat **out, const struct chat_model *m,
                        const struct item_types *types, struct quire_params *p, struct q_err *e);
void quire_chat_free(struct quire_chat *c);                      /* NULL is fine */
const struct buf *quire_chat_prompt(const struct quire_chat *c); /* its text */
/* Ranges of the prompt's text copied from the conversation. */
const struct ranges *quire_chat_content(const struct quire_chat *c);
struct parts *quire_chat_parts(struct quire_chat *c); /* its inputs besides text */
bool quire_chat_parses(const struct quire_chat *c);   /* special tokens are passed to the parser */
/* Tags of reasoning for submit.reasoning_tags, valid as long as the model; NULL: none. */
const struct buf *quire_chat_tags(const struct quire_chat *c);
/* The text ends at a length limit: call before the last quire_chat_feed. */
void quire_chat_cut(struct quire_chat *c);
/* Feed final text; its content is appended to `content`. last: the end.
 * Errors: Q_NO_MEMORY, Q_INTERNAL. */
FALLIBLE quire_chat_feed(struct quire_chat *c, const struct buf *text, bool last,
                         struct buf *content, struct q_err *e);
/* The next REASONING or TOOL_CALL event; false: none. Its text is valid until the next call. */
bool quire_chat_next(struct quire_chat *c, struct quire_event *event);
bool quire_chat_calls(const struct quire_chat *c); /* true if the model called a function */
/* The message so far, in memory of the conversation; NULL: out of memory. */
const char *quire_chat_message(struct quire_chat *c);

#endif
