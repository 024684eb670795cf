/* SPDX-License-Identifier: Apache-2.0 */
/* counted_table - the tokens of a state inside a counted loop, by the number of rounds that they
 * begin (counted_loop.c makes it and has the picture). Reference-counted: shared by a matcher and
 * the walks of its trie. Threads: as shared.h. */
#ifndef QUIRE_ENGINE_GRAMMAR_MATCHER_COUNTED_TABLE_H
#define QUIRE_ENGINE_GRAMMAR_MATCHER_COUNTED_TABLE_H
#include <stdbool.h>
#include <stdint.h>

struct counted_loop_list { /* tokens or places in the trie by the rounds x that they begin */
    uint32_t *ids;         /* those with x: ids[at[x] … at[x + 1]) */
    uint32_t *at;          /* [COUNTED_LOOPS_MAX + 2] */
};
struct counted_loop_table {
    uint32_t n_ref;
    bool has_text; /* all tokens that are text stay inside, a round for each character */
    struct counted_loop_list inside, exits, outs; /* of the other tokens */
    uint32_t *all;                                /* bits of inside, and of text */
};
void counted_loop_table_unref(struct counted_loop_table *t); /* takes NULL */

#endif
