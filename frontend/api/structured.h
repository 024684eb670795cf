/* SPDX-License-Identifier: Apache-2.0 */
/* structured - structured output: converts its fields into a grammar's kind and source, which the
 * engine compiles; a rejected grammar is HTTP 400 with the engine's message.
 *
 * Tools are part of it: a required call (tool_choice "required" or a named function) and arguments
 * that must match their schema ("strict": true) are structural tags in the format of the tool-call
 * parser (common/parsers/call_grammar.h).
 * Threads: as params.h. */
#ifndef QUIRE_FRONTEND_API_STRUCTURED_H
#define QUIRE_FRONTEND_API_STRUCTURED_H
#include "frontend/api/params.h"

/* The kinds of submit.grammar_kind (the engine's enum grammar_kind). */
enum structured_kind {
    STRUCTURED_NONE = 0,
    STRUCTURED_JSON = 1,
    STRUCTURED_REGEX = 2,
    STRUCTURED_CHOICE = 3,
    STRUCTURED_EBNF = 4,
    STRUCTURED_TAGS = 5
};
#define STRUCTURED_COMPACT 0x100u /* flag of a kind: no white space between JSON tokens */
#define STRUCTURED_SPACED  0x200u /* flag of JSON: a white-space pattern precedes the schema */
#define STRUCTURED_BYTES   ((size_t)8 << 20) /* of a source, as many as the engine compiles */

/* s->grammar and its source, if requested. Errors: Q_INVALID, Q_UNSUPPORTED. */
FALLIBLE structured_read(const struct params *p, struct sample_params *s, struct params_ids *ids,
                         struct q_err *e);

/* The same for calls: tags is a turn's (common/chat/turn.h), borrowed; empty: without effect. */
void structured_calls(const struct buf *tags, struct sample_params *s);

#endif
