/* SPDX-License-Identifier: Apache-2.0 */
/* regex - regular expressions to automata and expressions.
 *
 * The syntax is the common part of ECMA-262, Python and Rust: groups, classes, \p{…}, counted
 * repetitions (lazy ones accept the same texts), ^ and $ anywhere, lookaheads at the start.
 * Non-regular syntax (back references) and unsupported syntax (word boundaries, lookbehind) is
 * refused by name. Failures are kept in the build. Threads: as the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_SOURCE_REGEX_H
#define QUIRE_ENGINE_GRAMMAR_SOURCE_REGEX_H
#include "engine/grammar/automaton/fsm.h"
#include "engine/grammar/automaton/expr.h"

#define REGEX_MAX       65536u /* bytes of one pattern */
#define REGEX_TIMES_MAX 100000u

struct regex_text {
    const char *s; /* [n] UTF-8 */
    size_t n;
    bool search;       /* the pattern is looked for anywhere (JSON Schema); else it is the text */
    bool ignore_case;  /* of ASCII letters */
    bool dot_all;      /* . is any character */
    const char *where; /* for messages */
};
/* The texts that match; NULL when the build failed. */
const struct fsm *regex_fsm(struct build *b, const struct regex_text *r);
/* The same as an expression; large repetitions stay counted. */
const struct expr *regex_expr(struct build *b, const struct regex_text *r, enum expr_form form);

#endif
