/* SPDX-License-Identifier: Apache-2.0 */
/* lark - a grammar in Lark's notation. Failures, with the line, are kept in the build. Threads: as
 * the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_SOURCE_LARK_H
#define QUIRE_ENGINE_GRAMMAR_SOURCE_LARK_H
#include <stddef.h>
#include "engine/grammar/automaton/expr.h"

/* source: NUL-terminated, [n]. */
const struct expr *lark_expr(struct build *b, const char *source, size_t n);

#endif
