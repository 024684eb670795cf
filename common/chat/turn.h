/* SPDX-License-Identifier: Apache-2.0 */
/* turn - one request to a chat model: from messages, tools and tool_choice to the prompt's text,
 * the grammar of required calls, and the parser of the answer.
 *
 * turn_read (checks of the JSON) -> turn_render (the prompt; may be slow) -> turn_before,
 * turn_parser (parsing of the answer). Used by the server and the C library. Threads: one owner.
 * Pointers in struct turn_ask are borrowed for the life of the turn. */
#ifndef QUIRE_COMMON_CHAT_TURN_H
#define QUIRE_COMMON_CHAT_TURN_H
#include <stdbool.h>
#include "common/buf.h"
#include "common/chat/chat_model.h"
#include "common/chat/parts.h"
#include "common/chat/turn_ask.h"
#include "common/parsers/parser.h"

struct turn {
    const struct chat_model *model; /* borrowed */
    struct turn_ask ask;
    json_t *messages;   /* as templates expect them */
    json_t *tools;      /* the model may call; NULL: none */
    struct parts parts; /* inputs in the messages besides text; in the prompt's order after
                         * turn_render */
    struct buf tags; /* a structural tag of calls, or of calls and the answer's form (JSON), which
                       * is the grammar then; may be empty */
    enum thinking thinking;
    bool bound;        /* there is no reasoning where the grammar holds */
    const char *field; /* after an error: the field at fault, or NULL */
};
void turn_release(struct turn *t); /* all zero is the empty value */
/* Errors: Q_INVALID, Q_UNSUPPORTED; the message begins with a field's name, as t->field has it.
 * Q_NO_MEMORY: any allocation failed. */
FALLIBLE turn_read(struct turn *t, const struct chat_model *m, const struct turn_ask *ask,
                   struct q_err *e);
/* Append the prompt's text; content takes where in it the request's own text is, for
 * tokenizer_encode_prompt (nothing where the model's options take control tokens from there).
 * t->parts.places are its inserts. Of t only model, ask, messages, tools and parts are read. Once.
 * Errors: Q_INVALID, Q_UNSUPPORTED; they begin with the field. Q_NO_MEMORY: any allocation
 * failed. */
FALLIBLE turn_render(struct turn *t, struct buf *prompt, struct ranges *content, struct q_err *e);
/* Do n_prompt tokens and those asked for (0: what fits, at least one) fit together? what: the field
 * that the prompt is from. Errors: Q_INVALID. */
FALLIBLE turn_check_length(const char *what, uint32_t n_prompt, uint32_t asked, uint32_t limit,
                           struct q_err *e);
/* The reasoning that may come before the answer's grammar, as submit.grammar_after and
 * reasoning_tags have it; both empty: the grammar holds at once, or there is none. */
struct turn_before {
    struct parser_before prompt; /* what the prompt's end tells */
    const char *after;           /* NULL: none; in `prompt` */
    const struct buf *tags;      /* NULL: none; the model's */
};
void turn_before(const struct turn *t, const struct buf *prompt, struct turn_before *out);
/* For what the request allows and the model writes; *out NULL where both are nothing. thinks:
 * reasoning may come before the grammar. */
FALLIBLE turn_parser(const struct turn *t, const struct buf *prompt, bool thinks,
                     struct parser **out, struct q_err *e);

#endif
