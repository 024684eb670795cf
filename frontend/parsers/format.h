/* SPDX-License-Identifier: Apache-2.0 */
/* format - what a tool-call format implements, and what the framework gives it.
 *
 * A format gets the text byte by byte and answers with put_*: content, the begin of a call, pieces
 * of its arguments, its end. The framework collects neighbouring pieces, so that a feed of n bytes
 * makes few events, and never calls the sink inside a format. A format keeps what it may have to
 * take back (a tag that is not complete yet) itself.
 * Threads: one owner per parser. */
#ifndef QUIRE_FRONTEND_PARSERS_FORMAT_H
#define QUIRE_FRONTEND_PARSERS_FORMAT_H
#include <stdbool.h>
#include "common/buf.h"
#include "frontend/parsers/tool.h"

struct tool_format {
    const char *name;
    size_t state_bytes; /* zeroed memory the format gets as tool_state(p) */
    /* Take one byte. Errors: those of put_*. */
    enum q_code (*byte)(struct tool_parser *p, char c, struct q_err *e);
    /* The text is over: put what is still held. */
    enum q_code (*finish)(struct tool_parser *p, struct q_err *e);
    void (*release)(struct tool_parser *p); /* or NULL */
};

/* The format's own state, of the size its row in tools.def gives. */
void *tool_state(struct tool_parser *p);
/* Errors of all four: the sink's, Q_NO_MEMORY. */
FALLIBLE put_content(struct tool_parser *p, const char *text, size_t n, struct q_err *e);
FALLIBLE put_call(struct tool_parser *p, const char *name, size_t n, struct q_err *e);
FALLIBLE put_args(struct tool_parser *p, const char *text, size_t n, struct q_err *e);
FALLIBLE put_end(struct tool_parser *p, struct q_err *e);

#endif
