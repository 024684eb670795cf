/* SPDX-License-Identifier: Apache-2.0 */
/* cset - sets of code points in a build's memory, constant after creation. Threads: as the build.
 */
#ifndef QUIRE_ENGINE_GRAMMAR_AUTOMATON_CSET_H
#define QUIRE_ENGINE_GRAMMAR_AUTOMATON_CSET_H
#include "engine/grammar/automaton/build.h"

struct range { /* code points, both included */
    uint32_t lo, hi;
};
struct cset { /* a set of code points: ascending, neither overlapping nor touching */
    const struct range *ranges;
    uint32_t n;
};

const struct cset *cset_of(struct build *b, const struct range *ranges, size_t n); /* any order */
const struct cset *cset_not(struct build *b, const struct cset *s); /* surrogates are in no set */
const struct cset *cset_or(struct build *b, const struct cset *x, const struct cset *y);
const struct cset *cset_and(struct build *b, const struct cset *x, const struct cset *y);
bool cset_has(const struct cset *s, uint32_t c);
extern const struct cset cset_any; /* every Unicode scalar value */

#endif
