/* SPDX-License-Identifier: Apache-2.0 */
/* jsonl - the loop of the verbs for looking inside: a JSON object a line on standard input, one a
 * line on standard output, in the same order. A line that fails gives {"error": …} and the others
 * go on. Threads: main. */
#ifndef QUIRE_FRONTEND_CLI_JSONL_H
#define QUIRE_FRONTEND_CLI_JSONL_H
#include <jansson.h>
#include "common/err.h"

#define JSONL_LINE_MAX (256u << 20) /* bytes */

/* Answer one object with another: *out is a new reference. On failure *out may still be set: what
 * else there is to say beside "error". */
typedef enum q_code jsonl_answer(void *ctx, const json_t *in, json_t **out, struct q_err *e);
/* All lines. Returns the exit code: 0, 1 when standard input or output fails. Empty lines are
 * skipped; every answer is flushed, so that a program can ask and wait. */
int jsonl_run(jsonl_answer *answer, void *ctx);
/* The member `name` when it has this type (JSON_TRUE: any boolean), NULL when absent or null.
 * Errors: Q_INVALID naming the member and what is accepted. */
FALLIBLE jsonl_member(const json_t *in, const char *name, json_type type, const json_t **out,
                      struct q_err *e);
/* Errors: Q_INVALID when there is a member of another name than these (NULL at the end). */
FALLIBLE jsonl_only(const json_t *in, const char *const *names, struct q_err *e);

#endif
