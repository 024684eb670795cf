/* SPDX-License-Identifier: Apache-2.0 */
/* chars - named sets of code points: \d, \w, \s and \p{…} of a pattern.
 *
 * The dialects of regular expressions differ on them beyond ASCII. A grammar must produce texts
 * that every dialect accepts, so a class has two sets: `sure` is in the class in all dialects and
 * is used where the class must match; `maybe` is in it in some dialect and is excluded by a
 * negation. Threads: pure, except the build. */
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
