/* SPDX-License-Identifier: Apache-2.0 */
/* tool - finds tool calls in a model's text while it streams.
 *
 * A parser is a state machine over bytes: the same text cut anywhere gives the same concatenated
 * events, equal to the result of one piece; time is linear; what looked like a tag and is none
 * comes out as content. Each format is one file tool_<name>.c and one row in tools.def.
 * Threads: one owner per parser. */
#ifndef QUIRE_FRONTEND_PARSERS_TOOL_H
#define QUIRE_FRONTEND_PARSERS_TOOL_H
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

enum tool_event_kind {
    TOOL_CONTENT,    /* text: ordinary content */
    TOOL_CALL_BEGIN, /* call: index, text: the function's name, whole */
    TOOL_CALL_ARGS,  /* call: index, text: the next piece of the arguments' JSON text */
    TOOL_CALL_END    /* call: index; the arguments are complete, valid JSON */
};

struct tool_event {
    enum tool_event_kind kind;
    uint32_t call;    /* 0, 1, … in order of appearance */
    const char *text; /* [n] borrowed until the sink returns; UTF-8 */
    size_t n;
};
/* Returns Q_OK or an error that ends the parse. */
typedef enum q_code tool_sink(void *ctx, const struct tool_event *event, struct q_err *e);

#define TOOL_CALLS_MAX      128
#define TOOL_CALL_BYTES_MAX (1u << 20) /* of one call's text */

struct tool_parser;
/* name: a row of tools.def. Errors: Q_NOT_FOUND (the message lists the names). */
FALLIBLE tool_parser_new(struct tool_parser **out, const char *name, struct q_err *e);
void tool_parser_free(struct tool_parser *p);
/* Feed the next bytes (any cut). Errors: the sink's, Q_NO_MEMORY. Malformed calls are no error:
 * their text is content. */
FALLIBLE tool_parser_feed(struct tool_parser *p, const char *text, size_t n, tool_sink *sink,
                          void *ctx, struct q_err *e);
/* The text is over: what is still held comes out. A call cut short after its name was announced is
 * closed as far as it came (the client sees the truncated arguments; finish_reason tells why),
 * otherwise it is content. */
FALLIBLE tool_parser_finish(struct tool_parser *p, tool_sink *sink, void *ctx, struct q_err *e);
uint32_t tool_parser_n_calls(const struct tool_parser *p); /* announced so far */
/* The names of tools.def, NULL-terminated. */
const char *const *tool_parser_names(void);

#endif
