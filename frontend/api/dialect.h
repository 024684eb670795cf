/* SPDX-License-Identifier: Apache-2.0 */
/* dialect - requests and answers of a chat as other APIs than OpenAI's chat completions have them:
 * /v1/responses (responses.h) and /v1/messages (anthropic.h).
 *
 * A dialect converts its body to that of a chat completion, which is read and checked as such, and
 * writes the answer as items: reasoning, text and calls. A stream sends an event for each
 * beginning, piece and end of an item, in the order in which the model wrote them, step by step; a
 * whole answer has reasoning first and calls last. Threads: read may run on another thread
 * (task.h), the rest on the loop's. */
#ifndef QUIRE_FRONTEND_API_DIALECT_H
#define QUIRE_FRONTEND_API_DIALECT_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"
#include "frontend/http/exchange.h"

struct choice;
struct job;

enum dialect_kind { DIALECT_REASONING, DIALECT_TEXT, DIALECT_CALL };

struct dialect_item {
    enum dialect_kind kind;
    struct buf text;     /* so far; of a call its arguments */
    struct buf logprobs; /* of text: objects, comma separated */
    size_t i_call;       /* in the choice's answer */
    bool closed;
    bool whole; /* the model wrote it to its end */
};

/* Tokens whose logprobs are asked for and that are not known to be of text (dialect_logprobs.c). */
struct dialect_tokens {
    struct buf text; /* theirs */
    struct dialect_token {
        size_t text_end, items_end; /* where its text and its logprobs (choice.items) end */
    } * tokens;                     /* [n] */
    size_t n, cap;
};

struct dialect_answer {
    struct dialect_item *items; /* [n] */
    size_t n, cap;
    bool begun;         /* the events before all items are sent */
    uint64_t n_event;   /* sent */
    enum q_code failed; /* an item found no memory */
};

struct dialect {
    const char *id_prefix;
    const char *counted; /* what precedes the number in the answer of a count of tokens */
    enum http_error_form error_form;
    bool needs_text;       /* an answer without any item has an empty text */
    bool fails_if_aborted; /* its answers have no status for it */
    /* Pairs of names of fields that errors may begin with, the chat's and the dialect's; the last
     * is NULL. */
    const char *const (*names)[2];
    const char *system; /* the field that becomes the chat's first message */
    /* *chat: a new reference to the body of a chat completion, which shares values with `body`.
     * *entries: another, to an array that has for each of its messages the number of the entry in
     * the body's own list that it came from, or a negative one: it came from `system`.
     * Errors: Q_INVALID, Q_UNSUPPORTED, which begin with the dialect's field; Q_NO_MEMORY. */
    FALLIBLE (*read)(json_t **chat, json_t **entries, const json_t *body, struct q_err *e);
    /* Append events: before all items, around each item, after all of them. */
    void (*begin)(struct job *j, struct buf *out);
    void (*item_begin)(struct job *j, size_t i, struct buf *out);
    /* logprobs: those of the piece, as in dialect_item */
    void (*item_piece)(struct job *j, size_t i, const struct buf *piece, const struct buf *logprobs,
                       struct buf *out);
    void (*item_end)(struct job *j, size_t i, struct buf *out);
    void (*end)(struct job *j, struct buf *out);
    /* Append an error as the last events of a stream, all of whose items have ended, and the whole
     * answer. There may be no choice yet before all items and in an error. */
    void (*fail)(struct job *j, const struct http_error *error, struct buf *out);
    void (*whole)(struct job *j, struct buf *out);
};

/* Take the pending output of the job's choice into its items. out: where events go; NULL: none. */
void dialect_take(struct job *j, struct choice *c, struct buf *out);
/* End the stream with an error. out: empty; failed where events of the last step were lost. */
void dialect_fail(struct job *j, const struct http_error *error, struct buf *out);
void dialect_release(struct dialect_answer *a); /* all zero is the empty value */

/* Where the answer stands before a token, or before its end. */
struct dialect_mark {
    size_t n_content, n_reasoning, n_call, n_args;
    bool thinks;
};
struct dialect_mark dialect_mark(const struct choice *c);
/* The token's text (piece) and logprobs are in the choice. */
void dialect_token(struct choice *c, const struct dialect_mark *before, const struct buf *piece);
/* Move the logprobs of tokens that have become text to text_items. */
void dialect_settle(struct choice *c, const struct dialect_mark *before);
/* No more tokens. in_text: the waiting ones count as the last text's. */
void dialect_tokens_end(struct choice *c, bool in_text);
void dialect_tokens_release(struct dialect_tokens *w); /* all zero is the empty value */

/* An error about a chat completion's body in the names of the dialect that it was made from. */
struct dialect_error {
    const char *message, *param; /* borrowed from the arguments or `room`; param may be NULL */
    char room[Q_MESSAGE_MAX];
};
/* d NULL: nothing differs. entries: of dialect.read. param: NULL or "" is none. */
void dialect_error_of(struct dialect_error *out, const struct dialect *d, const json_t *entries,
                      const char *message, const char *param);

#endif
