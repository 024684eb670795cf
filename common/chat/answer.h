/* SPDX-License-Identifier: Apache-2.0 */
/* answer - the parser's events of a chat model's text, collected into a message: content, reasoning
 * and tool calls.
 *
 * answer_take is the sink of the parser (its ctx is the answer). A whole answer is read at the end.
 * A stream sends new output with answer_delta_json and empties content and reasoning; calls are
 * kept, with the arguments not sent yet. A malformed call becomes content; if a delta has already
 * sent its name, its sent part remains, it is not counted, and its text is not content.
 * Threads: one owner. */
#ifndef QUIRE_COMMON_CHAT_ANSWER_H
#define QUIRE_COMMON_CHAT_ANSWER_H
#include <stdbool.h>
#include "common/buf.h"
#include "common/parsers/parser.h"

#define ANSWER_ID_MAX 32
#define ANSWER_SEED   16 /* bytes */

struct answer_call {
    char id[ANSWER_ID_MAX];
    char *name;
    struct buf args; /* in a stream those that no delta has shown */
    bool whole;      /* its arguments are complete */
    bool shown;      /* a delta has its name */
};
struct answer {
    struct buf content, reasoning;
    struct answer_call *calls; /* [n_call] */
    size_t n_call, calls_cap;
    size_t n_broken; /* of them shown, and no calls after all */
    enum { ANSWER_IGNORED, ANSWER_OPEN, ANSWER_BROKEN } state; /* of the parser's latest call */
    const unsigned char
        *id_seed; /* [ANSWER_SEED] with id_number makes the calls' ids, so that they are
                                   * the same when the answer is parsed again; NULL: random ones */
    uint32_t id_number;
    bool one_call;     /* parallel_tool_calls: false: later ones are left out */
    bool no_reasoning; /* include_reasoning: false: it is left out */
};
void answer_release(struct answer *a); /* all zero is the empty value */
/* Errors: Q_NO_MEMORY, Q_INTERNAL (no random numbers for an id). */
enum q_code answer_take(void *answer, const struct parsed_event *event, struct q_err *e);
/* True if the model calls a tool: then the finish_reason of a stopped answer is "tool_calls". */
bool answer_has_calls(const struct answer *a);

/* Append one call: {"id", "type", "function": {"name", "arguments"}}. */
void answer_call_json(const struct answer_call *c, struct buf *out);
/* Append the array of all calls. */
void answer_calls_json(const struct answer *a, struct buf *out);
/* Append the content: null where it is empty beside reasoning or calls. */
void answer_content_json(const struct answer *a, struct buf *out);
/* Append the reasoning as the members "reasoning" (vLLM's name) and "reasoning_content" (DeepSeek's,
 * and that of older versions of vLLM). */
void answer_reasoning_json(const struct answer *a, struct buf *out);
/* Append the message: {"role": "assistant", "content", "reasoning", "tool_calls"}. The last two are
 * left out when there are none. */
void answer_json(const struct answer *a, struct buf *out);

bool answer_calls_pending(const struct answer *a); /* is there more of them than deltas show? */
/* Append what no delta has shown: {"reasoning", "reasoning_content", "content", "tool_calls"}, each
 * where there is some, with always_content an empty content too. Calls are shown then; content and
 * reasoning are the caller's to empty. */
void answer_delta_json(struct answer *a, bool always_content, struct buf *out);

#endif
