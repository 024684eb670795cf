/* SPDX-License-Identifier: Apache-2.0 */
/* chars - named sets of code points: what \d, \w, \s and \p{…} mean in a pattern.
 *
 * The dialects of regular expressions do not agree on them beyond ASCII. A grammar must give texts
 * that every dialect accepts, so a class has two sets: `sure` is in the class for all of them and
 * is used where it must match; `maybe` is in it for any of them and is what a negation leaves out.
 * Threads: pure, but for the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_SOURCE_CHARS_H
#define QUIRE_ENGINE_GRAMMAR_SOURCE_CHARS_H
#include "engine/grammar/automaton/expr.h"

struct char_class {
    const struct cset *sure, *maybe;
};
/* letter: one of d D w W s S. */
struct char_class chars_class(struct build *b, char letter);
struct char_class chars_negated(struct build *b, struct char_class c);
/* A general category, "L", "Lu", "Letter"; NULL = not known. */
const struct cset *chars_category(struct build *b, const char *name, size_t n);
const struct cset *chars_one(struct build *b, uint32_t lo, uint32_t hi);
/* All but the ends of lines. */
const struct cset *chars_dot(struct build *b);

#endif
