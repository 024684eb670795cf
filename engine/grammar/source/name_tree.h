/* SPDX-License-Identifier: Apache-2.0 */
/* name_tree - texts by their prefixes, with an expression after each: the names of an object's
 * properties from one of them on. Adding a text makes a new tree that shares all nodes but the
 * path to it with the old one, so the trees of n names, each with one name more than the last,
 * need about the memory of the names and not n times as much; a matcher is in one place of one
 * tree, for any number of properties that may follow. No text is a prefix of another. Memory: the
 * build's. Threads: as the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_SOURCE_NAME_TREE_H
#define QUIRE_ENGINE_GRAMMAR_SOURCE_NAME_TREE_H
#include "engine/grammar/automaton/expr.h"

struct name_tree; /* never changed once made; NULL: no text */

/* `tree` and one text [n > 0] more, which is borrowed while the build lives. NULL: failed. */
const struct name_tree *name_tree_add(struct build *b, const struct name_tree *tree,
                                      const char *text, uint32_t n, const struct expr *rest);
/* A text of the tree and what follows it. */
const struct expr *name_tree_expr(struct build *b, const struct name_tree *tree);

#endif
