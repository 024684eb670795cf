/* SPDX-License-Identifier: Apache-2.0 */
/* fsm - finite automata: over code points (patterns, before their conversion to bytes) and over
 * bytes with jumps into other rules (the parts of a program).
 *
 * In an fsm no two edges of one state overlap, and a final state is reachable from every state;
 * state 0 is the start. An fsm with jumps may keep FSM_GOTO jumps (which read nothing) where a
 * deterministic automaton would have too many states. All memory is the build's. Threads: as the
 * build. */
#ifndef QUIRE_ENGINE_GRAMMAR_AUTOMATON_FSM_H
#define QUIRE_ENGINE_GRAMMAR_AUTOMATON_FSM_H
#include "engine/grammar/automaton/fsm_measure.h"
#include "engine/grammar/automaton/expr.h"

#define FSM_STATES_MAX 20000u /* of one automaton over code points */

/* Letters beyond the code points, for a pattern's ^ and $: see fsm_resolve_anchors. */
#define FSM_BEGIN  (EXPR_CHAR_MAX + 1)
#define FSM_FINISH (EXPR_CHAR_MAX + 2)

/* Over code points. x has no rules; NULL when the build failed, or (what NULL, and no failure kept)
 * when it would have too many states. An empty language gives a state 0
 * that is not final and has no edges. what: for messages, "pattern". */
const struct fsm *fsm_of_chars(struct build *b, const struct expr *x, const char *what);
/* Over bytes: one rule's body. */
const struct fsm *fsm_of_bytes(struct build *b, const struct expr *x, const struct fsm_rules *r);

/* A copy of parts in the build, without the states that reach no final one; NULL: failed. */
const struct fsm *fsm_finish(struct build *b, const struct fsm *parts);

/* fsm_product.c, of automata without jumps */
/* f reads FSM_BEGIN where ^ is and FSM_FINISH where $ is, any number of them before and behind a
 * text (a loop on them at both ends). The automaton of the texts without them. */
const struct fsm *fsm_resolve_anchors(struct build *b, const struct fsm *f);
/* NULL when the build failed. */
const struct fsm *fsm_and(struct build *b, const struct fsm *x, const struct fsm *y);
const struct fsm *fsm_minus(struct build *b, const struct fsm *x, const struct fsm *y);
/* fsm_minimal.c: the same texts with the fewest states, where that is not too much work; f has no
 * jumps. NULL when f is NULL or the build failed. */
const struct fsm *fsm_minimal(struct build *b, const struct fsm *f);
/* Code points of UTF-8 text. */
bool fsm_accepts(const struct fsm *f, const char *text, size_t n);

#endif
