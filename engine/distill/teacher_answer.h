/* SPDX-License-Identifier: Apache-2.0 */
/* teacher_answer - the request for a sequence's log-probabilities, POST /v1/completions with
 * prompt_logprobs as quire and vLLM have it, and what comes back. Element t + 1 of the answer's
 * list is the distribution after token t; it has the top k, and the prompt's own token where that
 * is not one of them. Threads: reentrant. */
#ifndef QUIRE_ENGINE_DISTILL_TEACHER_ANSWER_H
#define QUIRE_ENGINE_DISTILL_TEACHER_ANSWER_H
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"

struct teacher_question {
    const char *model;
    const uint32_t *ids;   /* [n] */
    const int32_t *labels; /* [n] of rows: below 0 the row is not asked for */
    uint32_t n, n_counted, top_k;
};
/* JSON. Tokens behind the last row that is asked for and the one that it predicts are left out. */
void teacher_question_write(struct buf *out, const struct teacher_question *q);
/* ids, logprobs: [n_counted][top_k], ids ascending in a row; of equal log-probabilities at the
 * limit those with the lowest ids. Errors: Q_CORRUPT (what of the body is not as expected),
 * Q_UNSUPPORTED (a server without prompt_logprobs), Q_NO_MEMORY. */
FALLIBLE teacher_answer_read(const char *body, size_t n, const struct teacher_question *q,
                             uint32_t *ids, float *logprobs, struct q_err *e);
/* The message of an error's body, in one line. */
void teacher_answer_error(char *out, size_t size, const char *body, size_t n);
/* The first model's name of GET /v1/models. Errors: Q_CORRUPT, Q_NO_MEMORY. */
FALLIBLE teacher_answer_model(char *out, size_t size, const char *body, size_t n, struct q_err *e);

#endif
