/* SPDX-License-Identifier: Apache-2.0 */
/* gbnf - a grammar in GBNF, as llama.cpp and XGrammar read it. Failures, with the line, are kept in
 * the build. Threads: as the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_SOURCE_GBNF_H
#define QUIRE_ENGINE_GRAMMAR_SOURCE_GBNF_H
#include <stddef.h>
#include "engine/grammar/automaton/expr.h"

/* source: NUL-terminated, [n]. */
const struct expr *gbnf_expr(struct build *b, const char *source, size_t n);
/* A literal, which Lark's notation has too: from text[*at] on, which is behind the opening quote.
 */
const struct expr *gbnf_string(struct build *b, const char *text, size_t n, size_t *at, char quote);

#endif
