/* SPDX-License-Identifier: Apache-2.0 */
/* matcher - follows a text through a program, byte by byte, and says which tokens may come next.
 *
 * Where a text stands is a *config*: a set of (state, stack) pairs, one for each way to read the
 * text so far. Stacks are shared: a frame is (jump it came from, what a counted loop still needs
 * and allows, frame below), and equal frames are one. Configs are numbered, equal ones are one, and
 * what a byte makes of a config is remembered: the automaton of the whole grammar, made as far as
 * it is walked.
 *
 * Masks are remembered by what a token can see. Of a pair, a walk over the whole vocabulary is done
 * once for its state with nothing known below its rule's frame (a *local*): it gives the tokens
 * that stay inside the rule, and the places in the trie where the rule ends inside a token; only
 * from those places is the real stack looked at. So the inside of a string costs one walk per
 * grammar, whatever objects it stands in. A counted loop's rest beyond the longest token counts as
 * endless there, which makes its locals few, and one walk serves all its counts (counted_loop.c).
 *
 * Everything remembered is forgotten at once when it takes more than MATCHER_BYTES_MAX; config
 * numbers are then of an older generation and the text must be read again.
 * Bounds, whatever the grammar: pairs of a config, frames of a stack, work of one mask; beyond them
 * the matcher is stuck and lets nothing come. Threads: one owner. */
#ifndef QUIRE_ENGINE_GRAMMAR_MATCHER_MATCHER_H
#define QUIRE_ENGINE_GRAMMAR_MATCHER_MATCHER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "engine/grammar/matcher/trie.h"

#define MATCHER_BYTES_MAX ((size_t)24 << 20) /* remembered by one matcher, about */
#define MATCHER_PAIRS_MAX 15000u             /* of one config */
#define MATCHER_DEPTH_MAX 400u               /* frames of one stack */
#define MATCHER_WORK_MAX  3000000u /* pairs looked at for one mask: some 50 ms at the worst */

typedef uint32_t matcher_config; /* 0 = nothing fits */

struct matcher;
struct matcher_stats {
    uint64_t n_config, n_local, n_mask, n_hit, n_flush;
    uint64_t n_walk; /* over the whole vocabulary */
    uint64_t n_node; /* looked at in them, one by one */
};

/* words: a program (program.h), copied. trie: borrowed until matcher_free; NULL: texts only.
 * Errors: Q_CORRUPT, Q_NO_MEMORY. */
FALLIBLE matcher_new(struct matcher **out, const uint32_t *words, size_t n_word,
                     const struct trie *trie, struct q_err *e);
void matcher_free(struct matcher *m);
/* Fewer pairs than MATCHER_WORK_MAX for one mask. */
void matcher_limit(struct matcher *m, uint64_t work_max);
/* The same program? */
bool matcher_is(const struct matcher *m, const uint32_t *words, size_t n_word);

/* Before a text is followed or a mask made: forgets when there is too much. The generation of the
 * configs that come. */
uint32_t matcher_begin(struct matcher *m);
matcher_config matcher_start(struct matcher *m);
matcher_config matcher_bytes(struct matcher *m, matcher_config c, const char *s, size_t n);
/* By the token's bytes; 0 for a token without any. */
matcher_config matcher_token(struct matcher *m, matcher_config c, uint32_t token);
bool matcher_can_end(const struct matcher *m, matcher_config c);  /* the text so far is whole */
bool matcher_must_end(const struct matcher *m, matcher_config c); /* and nothing may follow it */
/* The text before the grammar (grammar_source.after) is not over: any byte may come. */
bool matcher_is_before(const struct matcher *m, matcher_config c);
/* Set the bits of the tokens that may come (bits are 0 before). False: stuck, or c is 0. */
bool matcher_mask(struct matcher *m, matcher_config c, uint32_t *bits);
/* Bytes that must come now, up to n of them, into out; how many. */
size_t matcher_forced(struct matcher *m, matcher_config c, char *out, size_t n);
/* Some limit was met: nothing may come any more for this grammar, from the text it was met with. */
bool matcher_stuck(const struct matcher *m);
void matcher_stats(const struct matcher *m, struct matcher_stats *out);

#endif
