/* SPDX-License-Identifier: Apache-2.0 */
/* batch_line - a line of a batch file in OpenAI's format, and a line of results.
 *
 *     in   {"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{…}}
 *          {"messages":[…],…} or {"prompt":"…",…}: a body by itself, with a custom_id or without
 *     out  {"id":"batch_req_…","custom_id":"a","response":{"status_code":200,"request_id":"…",
 *           "body":{…}},"error":null}
 *
 * What never became a request has "response":null and "error":{"code","message","line"}; what the
 * API refused has its status and error body as the response. Threads: reentrant. */
#ifndef QUIRE_FRONTEND_CLI_BATCH_LINE_H
#define QUIRE_FRONTEND_CLI_BATCH_LINE_H
#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"

#define BATCH_ID_MAX    512u /* bytes of a custom_id */
#define BATCH_DUPLICATE "duplicate_custom_id"

enum batch_url { BATCH_CHAT, BATCH_COMPLETIONS };

struct batch_line {
    char *custom_id; /* owned; NULL = the line has none that can be used */
    enum batch_url url;
    struct buf body; /* compact JSON */
};
/* clang-format off */
#define BATCH_LINE_INIT {.custom_id = NULL, .body = BUF_INIT}
/* clang-format on */

struct batch_form {     /* of lines that are a body by themselves */
    uint64_t n_line;    /* from 1; a line without custom_id is called "line-<n_line>" */
    bool chats;         /* a prompt that is a string is a user's message */
    bool raw;           /* prompts only (--raw) */
    const char *broken; /* why the chat template cannot be used; NULL: it can, or there is none */
};
/* Read one line without its end; custom_id is set, where there is one, even when the rest is wrong.
 * Errors: Q_INVALID, Q_TOO_LARGE, Q_UNSUPPORTED (a known endpoint that is not there yet, a
 * stream), Q_NO_MEMORY, Q_CORRUPT (the template, which a prompt needs). */
FALLIBLE batch_line_read(struct batch_line *out, const struct batch_form *f, const char *text,
                         size_t n, struct q_err *e);
void batch_line_release(struct batch_line *l);

struct batch_answer {
    int status;
    const char *request_id;
    const struct buf *body; /* JSON */
};
/* Append a line with its end. custom_id may be NULL. */
void batch_answer_line(struct buf *out, const char *custom_id, const struct batch_answer *a);
struct batch_error {
    const char *code, *message;
    uint64_t line; /* of the input, from 1 */
};
void batch_error_line(struct buf *out, const char *custom_id, const struct batch_error *error);

struct batch_done {  /* what a line of results says */
    char *custom_id; /* owned; NULL = it is about a line without */
    uint64_t line;   /* of the input, when custom_id is NULL */
    bool duplicate;  /* it only says that this custom_id came before */
    bool failed;     /* no status 200 */
};
/* Read a line of results. Errors: Q_CORRUPT (it is none), Q_NO_MEMORY. */
FALLIBLE batch_done_read(struct batch_done *out, const char *text, size_t n, struct q_err *e);

#endif
