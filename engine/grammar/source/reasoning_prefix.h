/* SPDX-License-Identifier: Apache-2.0 */
/* reasoning_prefix - the text before a grammar begins: a model's reasoning, including its end
 * marker. Threads: as the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_SOURCE_REASONING_PREFIX_H
#define QUIRE_ENGINE_GRAMMAR_SOURCE_REASONING_PREFIX_H
#include "engine/grammar/automaton/expr.h"

#define AFTER_MAX                 256u /* bytes of a marker */
#define REASONING_PREFIX_TAGS_MAX 8u   /* pairs of tags */

/* Any bytes up to the first `marker` ([n], 1 … AFTER_MAX, UTF-8), which is read too. The marker may
 * come as text, as special tokens, or as both by turns ("<|channel|>final<|message|>"). */
const struct expr *reasoning_prefix_expr(struct build *b, const char *marker, size_t n);
/* One of these starts, and any bytes up to the first end that belongs to it. tags ([n]): start NUL
 * end NUL, again and again. A start is as the vocabulary has it, special tokens between two bytes
 * 0xFF; an end as above, or empty: the start alone. */
const struct expr *reasoning_prefix_tags_expr(struct build *b, const char *tags, size_t n);

#endif
