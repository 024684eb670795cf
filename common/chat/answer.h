/* SPDX-License-Identifier: Apache-2.0 */
/* answer - what a parser finds in a chat model's text, gathered into a message: content, reasoning
 * and tool calls.
 *
 * answer_take is the sink of the parser (its ctx is the answer). Callers that show content and
 * reasoning as they come may empty those buffers; calls stay.
 * Threads: one owner. */
#ifndef QUIRE_COMMON_CHAT_ANSWER_H
#define QUIRE_COMMON_CHAT_ANSWER_H
#include <stdbool.h>
#include "common/buf.h"
#include "common/parsers/parser.h"

#define ANSWER_ID_MAX 32

struct answer_call {
    char id[ANSWER_ID_MAX];
    char *name;
    struct buf args;
    bool whole; /* its arguments are complete */
};
struct answer {
    struct buf content, reasoning;
    struct answer_call *calls; /* [n_call] */
    size_t n_call, calls_cap;
    enum { ANSWER_IGNORED, ANSWER_OPEN, ANSWER_BROKEN } state; /* of the parser's latest call */
    bool one_call; /* parallel_tool_calls: false: later ones are left out */
};
void answer_release(struct answer *a); /* all zero is the empty value */
/* Errors: Q_NO_MEMORY, Q_INTERNAL (no random numbers for an id). */
enum q_code answer_take(void *answer, const struct parsed_event *event, struct q_err *e);
/* Append one call as the API has it: {"id", "type", "function": {"name", "arguments"}}. */
void answer_call_json(const struct answer_call *c, struct buf *out);
/* Append the message: {"role": "assistant", "content", "reasoning", "tool_calls"}. The last two are
 * left out when there are none; content is null then only. */
void answer_json(const struct answer *a, struct buf *out);

#endif
