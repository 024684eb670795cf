/* SPDX-License-Identifier: Apache-2.0 */
/* dialect_read - what the readers of dialects share: a chat completion's body under construction.
 * Errors of all functions: Q_NO_MEMORY, unless they say more. Threads: reentrant. */
#ifndef QUIRE_FRONTEND_API_DIALECT_READ_H
#define QUIRE_FRONTEND_API_DIALECT_READ_H
#include <jansson.h>
#include <stdbool.h>
#include "common/buf.h"

/* Fields of chat completions that no dialect has a place for: rows of not_here. */
/* clang-format off */
#define DIALECT_NOT_HERE                                                            \
    {"n", NULL}, {"use_beam_search", NULL}, {"detokenize", NULL},                   \
    {"return_token_ids", NULL}, {"prompt_logprobs", NULL},                          \
    {"add_generation_prompt", NULL}, {"continue_final_message", NULL}
/* clang-format on */

struct dialect_fields { /* of a dialect's body */
    /* Rows: a field of chat completions that is none here, and what to use or NULL. */
    const char *const (*not_here)[2];
    size_t n_not_here;
    /* Rows: a field that is refused unless it asks for nothing, and why. */
    const char *const (*refused)[2];
    size_t n_refused;
    const char *const *own; /* fields that the dialect's reader reads or leaves out */
    size_t n_own;
};

/* The tools of a dialect: what differs from another's. */
struct dialect_tools {
    /* Rows: a member of a tool, and its name in the chat's function. */
    const char *const (*members)[2];
    size_t n_member;
    const char *const *known; /* all members of a tool; the last is NULL */
    /* Is this the type of a function? i: of the tool. Errors: Q_INVALID, Q_UNSUPPORTED. */
    FALLIBLE (*check_type)(size_t i, const json_t *type, struct q_err *e);
};

#define DIALECT_NO_ENTRY (-1)
struct dialect_turns {
    json_t *messages; /* the chat's */
    json_t *entries;  /* [messages] integers: as dialect.read */
    json_t *turn;     /* the assistant's last message while its turn goes on, else NULL */
    json_int_t entry; /* that is read, or DIALECT_NO_ENTRY */
};

/* Returns Q_NO_MEMORY. */
FALLIBLE dialect_no_memory(struct q_err *e);
/* Take the reference; NULL is no memory. */
FALLIBLE dialect_set(json_t *object, const char *name, json_t *value, struct q_err *e);
/* Set a value (borrowed) that is there and not null. */
FALLIBLE dialect_set_given(json_t *object, const char *name, json_t *value, struct q_err *e);

/* Append a message of this role; an assistant's becomes the turn. *message: borrowed. */
FALLIBLE dialect_message(struct dialect_turns *t, const char *role, json_t **message,
                         struct q_err *e);
/* Set the content (borrowed) of the last message, which then counts as the current entry's. */
FALLIBLE dialect_content(struct dialect_turns *t, json_t *content, struct q_err *e);
/* Set the message's reasoning, by both names that templates read. Errors: of the text too. */
FALLIBLE dialect_reasoning(json_t *message, const struct buf *text, struct q_err *e);
/* Add a call to the assistant's turn, which begins if there is none. Values are borrowed. */
FALLIBLE dialect_call(struct dialect_turns *t, json_t *id, json_t *name, json_t *arguments,
                      struct q_err *e);
/* Set the chat's tools from those of the dialect's body, if it has some. Errors: Q_INVALID,
 * Q_UNSUPPORTED, which begin with "tools". */
FALLIBLE dialect_tools_read(json_t *chat, const json_t *body, const struct dialect_tools *d,
                            struct q_err *e);
/* Templates ask each message for its content: "" where there is none. */
FALLIBLE dialect_fill(json_t *messages, struct q_err *e);

/* Members of the object `field` that are none of the names (the last is NULL) become fields of the
 * chat by the name field.member: unknown there, they are reported like unknown fields. */
FALLIBLE dialect_unknown(json_t *chat, const char *field, const json_t *object,
                         const char *const *names, struct q_err *e);

/* The end of a reader: hands both over, or releases them after an error. Returns rc. */
FALLIBLE dialect_made(enum q_code rc, json_t *made, json_t *made_entries, json_t **chat,
                      json_t **entries);

/* Is the name one of the n? */
bool dialect_is_of(const char *const *names, size_t n, const char *name);
/* The second member of the row whose first is the name; NULL: there is none. */
const char *dialect_find(const char *const (*rows)[2], size_t n, const char *name);
/* All fields but the dialect's own go on to the chat as they are. Errors: Q_INVALID, Q_UNSUPPORTED,
 * which begin with the field. */
FALLIBLE dialect_fields_read(json_t *chat, const json_t *body, const struct dialect_fields *f,
                             struct q_err *e);

#endif
