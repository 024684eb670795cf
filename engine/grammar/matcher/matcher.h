/* SPDX-License-Identifier: Apache-2.0 */
/* matcher - follows a text through a program, byte by byte, and computes the tokens that may
 * follow.
 *
 * The state of a text is a *config*: a set of (state, stack) pairs, one for each reading of the
 * text. Stacks are shared: a frame is (jump of the call, remaining counts of a counted loop, frame
 * below), and equal frames are stored once. Configs are numbered and stored once, and their
 * transitions are cached: the automaton of the whole grammar, built as far as it is used.
 *
 * Masks are cached by the part of a config that a token can depend on. For a pair, one walk over
 * the whole vocabulary is done for its state with unknown frames below its rule (a *local*): it
 * gives the tokens that stay inside the rule, and the places in the trie where the rule ends
 * inside a token; only from those places is the real stack used. The inside of a string therefore
 * costs one walk per grammar, in any object. The remaining count of a loop beyond the longest
 * token counts as infinite there, so there are few locals, and one walk serves all counts
 * (counted_loop.c).
 *
 * All caches are cleared at once when they exceed MATCHER_BYTES_MAX; config numbers then belong to
 * an older generation and the text must be read again. Bounds for every grammar: pairs of a
 * config, frames of a stack, work of one mask; beyond them the matcher is stuck and allows no
 * token. Threads: one owner. */
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
