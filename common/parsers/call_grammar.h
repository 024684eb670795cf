/* SPDX-License-Identifier: Apache-2.0 */
/* call_grammar - the grammar of tool calls in a format, as a structural tag: for mandatory calls
 * (tool_choice "required" or a named function) and for arguments with a strict schema ("strict").
 *
 * A grammar describes the text that the format's parser reads and the model was trained to write
 * (call_grammar.def). JSON arguments follow any schema. Arguments as tags or program text follow
 * the schema of each parameter's value; a schema that the format cannot express (a string's
 * pattern, anyOf of objects) is an error for a strict function and leaves the arguments of others
 * free. Threads: any; nothing is kept. */
#ifndef QUIRE_COMMON_PARSERS_CALL_GRAMMAR_H
#define QUIRE_COMMON_PARSERS_CALL_GRAMMAR_H
#include <jansson.h>
#include <stdbool.h>
#include "common/err.h"

struct call_grammar {
    const char *tool;     /* a row of tools.def */
    const char *template; /* the chat template's text: selects the format's variant; or NULL */
    const json_t *tools;  /* of the request */
    const json_t *listed; /* all tools of the request, where tool_choice left some out of `tools`:
                           * errors have the index there; NULL: `tools` */
    const char *name;     /* only this function; NULL: any */
    bool required;        /* a call is mandatory; else optional, strict schemas still hold */
    bool parallel;        /* several calls are allowed */
    /* With optional calls: the format (of a structural tag) of an answer without calls; borrowed.
     * The answer is then calls only, or this format. NULL: any text that may contain calls. */
    const json_t *answer;
};
/* *out: a structural tag, owned by the caller; NULL when no constraint applies, and when `answer`
 * is given for a format without calls ("none").
 * Errors: Q_UNSUPPORTED (the format, or a strict function's schema in it), Q_INVALID (no such
 * function), Q_NO_MEMORY. */
FALLIBLE call_grammar_tools(json_t **out, const struct call_grammar *f, struct q_err *e);
/* True when the grammar of this row (of tools.def) includes the reasoning before the calls. */
bool call_grammar_thinks(const char *tool);

#endif
