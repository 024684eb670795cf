/* SPDX-License-Identifier: Apache-2.0 */
/* batch_line - lines of a batch file in OpenAI's format, and lines of results.
 *
 *     in   {"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{…}}
 *          {"messages":[…],…} or {"prompt":"…",…}: a body by itself, with a custom_id or without
 *     out  {"id":"batch_req_…","custom_id":"a","response":{"status_code":200,"request_id":"…",
 *           "body":{…}},"error":null}
 *
 * An invalid line has "response":null and "error":{"code","message","line"}; a rejected request has
 * its status and error body as the response. Threads: reentrant. */
#ifndef QUIRE_FRONTEND_CLI_BATCH_LINE_H
#define QUIRE_FRONTEND_CLI_BATCH_LINE_H
#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"

#define BATCH_ID_MAX    512u /* bytes of a custom_id */
#define BATCH_DUPLICATE "duplicate_custom_id"

enum batch_url {
    BATCH_CHAT,
    BATCH_COMPLETIONS,
    BATCH_RESPONSES,
    BATCH_EMBEDDINGS,
    BATCH_POOLING,
    BATCH_CLASSIFY,
    BATCH_SCORE,
    BATCH_RERANK
};

struct batch_line {
    char *custom_id; /* owned; NULL = no usable id */
    enum batch_url url;
    struct buf body; /* compact JSON */
};
/* clang-format off */
#define BATCH_LINE_INIT {.custom_id = NULL, .body = BUF_INIT}
/* clang-format on */

struct batch_form {     /* for lines that are a body alone */
    uint64_t n_line;    /* from 1; a line without custom_id has the id "line-<n_line>" */
    bool chats;         /* a string prompt is a user message */
    bool raw;           /* prompts only (--raw) */
    const char *broken; /* error of an unusable chat template, or NULL */
};
/* Read one line without its end; custom_id is set if present, even if the rest is invalid.
 * Errors: Q_INVALID, Q_TOO_LARGE, Q_UNSUPPORTED (an unsupported endpoint, a stream), Q_NO_MEMORY,
 * Q_CORRUPT (the template, which a prompt needs). */
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

struct batch_done {  /* content of a result line */
    char *custom_id; /* owned; NULL = of a line without custom_id */
    uint64_t line;   /* of the input, when custom_id is NULL */
    bool duplicate;  /* the error for a duplicate custom_id */
    bool failed;     /* status other than 200 */
};
/* Read a line of results. Errors: Q_CORRUPT (not a result), Q_NO_MEMORY. */
FALLIBLE batch_done_read(struct batch_done *out, const char *text, size_t n, struct q_err *e);

#endif
