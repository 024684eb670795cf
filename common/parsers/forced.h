/* SPDX-License-Identifier: Apache-2.0 */
/* forced - the grammar of tool calls in a format, as a structural tag: for calls that must come
 * (tool_choice "required", or a named one) and arguments that must fit their schema ("strict").
 *
 * A grammar says what the format's parser reads and the model was trained to write (writes.def).
 * Arguments that are JSON keep to their schema whatever it is. Where they are tags or a program's
 * text, a parameter's value does; what cannot be said there (a string's pattern, anyOf of objects)
 * is an error for a strict function, for others the arguments are then free.
 * Threads: any; nothing is kept. */
#ifndef QUIRE_COMMON_PARSERS_FORCED_H
#define QUIRE_COMMON_PARSERS_FORCED_H
#include <jansson.h>
#include <stdbool.h>
#include "common/err.h"

struct forced {
    const char *tool;     /* a row of tools.def */
    const char *template; /* the chat template's text, which tells a format's variants; or NULL */
    const json_t *tools;  /* the request's */
    const char *name;     /* only this function; NULL: any */
    bool required;        /* a call must come; else calls may, and strict ones are kept to */
    bool parallel;        /* several may */
    /* Where calls may come but need not: the format (of a structural tag) of an answer without one;
     * borrowed. Then an answer is calls alone, or that. NULL: any text, calls among it. */
    const json_t *answer;
};
/* *out: a structural tag, owned by the caller; NULL when nothing has to be held to, and where an
 * answer is given that no call of this format can stand beside ("none").
 * Errors: Q_UNSUPPORTED (the format, or a strict function's schema in it), Q_INVALID (no such
 * function), Q_NO_MEMORY. */
FALLIBLE forced_tools(json_t **out, const struct forced *f, struct q_err *e);
/* Has the grammar of this row (of tools.def) the reasoning before the calls in it? */
bool forced_thinks(const char *tool);

#endif
