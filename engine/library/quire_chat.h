/* SPDX-License-Identifier: Apache-2.0 */
/* quire_chat - a conversation's request within the library: its JSON read, its prompt rendered, its
 * answer taken apart into events (common/chat has the rules, which are the server's).
 * Threads: one for a conversation; the chat_model is only read. */
#ifndef QUIRE_ENGINE_LIBRARY_QUIRE_CHAT_H
#define QUIRE_ENGINE_LIBRARY_QUIRE_CHAT_H
#include "common/buf.h"
#include "common/chat/chat_model.h"
#include "engine/quire.h"

struct quire_chat;
/* Are these parameters of a conversation? */
bool quire_chat_asked(const struct quire_params *p);
/* Errors when not: Q_INVALID, a field that only means something in a conversation is set. */
FALLIBLE quire_chat_unasked(const struct quire_params *p, struct q_err *e);
/* Sets p->grammar_kind, grammar and grammar_after where calls must come or reasoning comes before a
 * grammar; what they point to then lives as long as the conversation. Errors: the API's, which
 * begin with the field's name. */
FALLIBLE quire_chat_new(struct quire_chat **out, const struct chat_model *m, struct quire_params *p,
                        struct q_err *e);
void quire_chat_free(struct quire_chat *c);                      /* NULL is fine */
const struct buf *quire_chat_prompt(const struct quire_chat *c); /* its text */
/* Where the prompt's text is the conversation's, and not the template's. */
const struct ranges *quire_chat_content(const struct quire_chat *c);
bool quire_chat_parses(const struct quire_chat *c); /* special tokens matter */
/* Tags of reasoning for submit.reasoning_tags, which live as long as the model; NULL: none. */
const struct buf *quire_chat_tags(const struct quire_chat *c);
/* The text will end where a limit cut it: before the last quire_chat_feed. */
void quire_chat_cut(struct quire_chat *c);
/* Text that is final; what of it is content is appended to `content`. last: no more will come.
 * Errors: Q_NO_MEMORY, Q_INTERNAL. */
FALLIBLE quire_chat_feed(struct quire_chat *c, const struct buf *text, bool last,
                         struct buf *content, struct q_err *e);
/* The next REASONING or TOOL_CALL of what was fed; false: there is none. Its text lives until the
 * next call. */
bool quire_chat_next(struct quire_chat *c, struct quire_event *event);
bool quire_chat_calls(const struct quire_chat *c); /* did the model call a function? */
/* The message so far, in memory of the conversation; NULL: no memory. */
const char *quire_chat_message(struct quire_chat *c);

#endif
