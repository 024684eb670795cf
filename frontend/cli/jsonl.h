/* SPDX-License-Identifier: Apache-2.0 */
/* jsonl - the loop of the inspection verbs: one JSON object per line on standard input and output,
 * in the same order. A failed line gives {"error": …}, and processing continues. Threads: main. */
#ifndef QUIRE_FRONTEND_CLI_JSONL_H
#define QUIRE_FRONTEND_CLI_JSONL_H
#include <jansson.h>
#include "common/err.h"

#define JSONL_LINE_MAX (256u << 20) /* bytes */

/* Convert one object to another: *out is a new reference. On failure *out may have members besides
 * "error". */
typedef enum q_code jsonl_answer(void *ctx, const json_t *in, json_t **out, struct q_err *e);
/* Process all lines. Returns the exit code: 0, or 1 if standard input or output fails. Empty lines
 * are skipped; every output line is flushed, so that a program can wait for it. */
int jsonl_run(jsonl_answer *answer, void *ctx);
/* The member `name` if it has this type (JSON_TRUE: any boolean), NULL when absent or null.
 * Errors: Q_INVALID naming the member and the accepted type. */
FALLIBLE jsonl_member(const json_t *in, const char *name, json_type type, const json_t **out,
                      struct q_err *e);
/* Errors: Q_INVALID for a member with another name than these (NULL-terminated). */
FALLIBLE jsonl_only(const json_t *in, const char *const *names, struct q_err *e);

#endif
