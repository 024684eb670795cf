/* SPDX-License-Identifier: Apache-2.0 */
/* ebnf - grammars as text in two notations: GBNF (llama.cpp, XGrammar: `root ::= "a" [0-9]+
 * rest?`) and Lark (`start: WORD ("," WORD)*`). The notation is detected: only GBNF has "::=".
 * Failures, with the line, are kept in the build. Threads: as the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_SOURCE_EBNF_H
#define QUIRE_ENGINE_GRAMMAR_SOURCE_EBNF_H
#include <stddef.h>
#include "engine/grammar/automaton/expr.h"

/* source: NUL-terminated, [n]. */
const struct expr *ebnf_expr(struct build *b, const char *source, size_t n);

#endif
