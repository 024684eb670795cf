/* SPDX-License-Identifier: Apache-2.0 */
/* shared - walks over the vocabulary that several grammars have in common.
 *
 * A local depends only on the automaton from its state to the end of its rule if no other rule is
 * called on the way: the inside of a string is the same in every schema. Such walks are cached
 * with the trie. The key is that automaton, written state by state in the order of first use, so
 * that a new grammar finds most of its walks in the cache. The oldest ones are evicted. Private to
 * engine/grammar. Threads: all matchers over one trie are of one thread. */
#ifndef QUIRE_ENGINE_GRAMMAR_MATCHER_SHARED_H
#define QUIRE_ENGINE_GRAMMAR_MATCHER_SHARED_H
#include <stdbool.h>
#include <stdint.h>
#include "engine/grammar/automaton/program.h"

#define SHARED_WALKS_MAX  64u
#define SHARED_STATES_MAX 96u   /* of an automaton that is shared */
#define SHARED_KEY_MAX    2048u /* words */

struct shared_key {
    uint32_t words[SHARED_KEY_MAX];
    uint32_t n;
};
/* Append the automaton from this state on; false: it calls rules, or is too large. */
bool shared_key_add(struct shared_key *k, const struct program *p, uint32_t state);

struct counted_loop_table;
struct shared_walk {
    uint32_t *key; /* [n_key] */
    uint32_t n_key;
    uint64_t used;
    uint32_t *bits; /* a local's tokens [trie_words] and places where its rule ends [n_out] … */
    uint32_t *outs;
    uint32_t n_out;
    struct counted_loop_table *table; /* … or those of a counted loop; one reference is ours */
};
struct shared_walks {
    struct shared_walk items[SHARED_WALKS_MAX];
    uint64_t n_use;
};
void shared_walks_free(struct shared_walks *w);
/* The walk with this key, NULL: there is none. */
struct shared_walk *shared_find(struct shared_walks *w, const struct shared_key *k);
/* Room for one with this key, which is in none, empty but for the key; NULL: no memory. */
struct shared_walk *shared_add(struct shared_walks *w, const struct shared_key *k);
void shared_drop(struct shared_walk *x); /* it could not be filled */

#endif
