/* SPDX-License-Identifier: Apache-2.0 */
/* fsm - finite automata: over code points (patterns, before they are written as bytes) and over
 * bytes with jumps into other rules (what a grammar's program consists of).
 *
 * An fsm made here has no two edges of one state that overlap and no state from which nothing can
 * be accepted; state 0 is the start. An fsm with jumps may be left with FSM_GOTO jumps (nothing is
 * read) where making it deterministic would take too many states. All memory is the build's.
 * Threads: as the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_AUTOMATON_FSM_H
#define QUIRE_ENGINE_GRAMMAR_AUTOMATON_FSM_H
#include "engine/grammar/automaton/gx.h"

#define FSM_STATES_MAX 20000u /* of one automaton over code points */

enum fsm_jump_kind {
    FSM_GOTO,   /* go on at `to` without reading */
    FSM_CALL,   /* read a text of the rule, then go on at `to` */
    FSM_COUNT,  /* the same min … max times; the rule has no empty text */
    FSM_WITHIN, /* a text of the rule with at most max TICKs; min: the most that one asks for */
    FSM_TICK    /* go on at `to`, one less is left; at least min must be left then */
};
struct fsm_edge {
    uint32_t lo, hi, to; /* code points or bytes, both included */
};
struct fsm_jump {
    uint32_t kind, rule, min, max, to;
};
struct fsm_state {
    uint32_t edge, n_edge, jump, n_jump; /* slices of the fsm's arrays */
    bool final;
};
struct fsm {
    struct fsm_state *states; /* [n_state] */
    struct fsm_edge *edges;
    struct fsm_jump *jumps;
    uint32_t n_state, n_edge, n_jump;
};

/* What the bytes of a rule need to know of the others; all arrays are by rule. */
struct fsm_rules {
    const bool *nullable, *productive;
    /* A rule for the repeated part of a counted loop. */
    uint32_t (*rule_of)(void *ctx, const struct gx *body);
    void *ctx;
};

/* Letters beyond the code points, for a pattern's ^ and $: see fsm_resolve_anchors. */
#define FSM_BEGIN  (GX_CHAR_MAX + 1)
#define FSM_FINISH (GX_CHAR_MAX + 2)

/* Over code points. x has no rules; NULL when the build failed, or (what NULL, and no failure kept)
 * when it would have too many states. An empty language gives a state 0
 * that is not final and has no edges. what: for messages, "pattern". */
const struct fsm *fsm_of_chars(struct build *b, const struct gx *x, const char *what);
/* Over bytes: one rule's body. */
const struct fsm *fsm_of_bytes(struct build *b, const struct gx *x, const struct fsm_rules *r);

/* A copy of parts in the build, without the states that reach no final one; NULL: failed. */
const struct fsm *fsm_finish(struct build *b, const struct fsm *parts);

/* Letters from each state to the nearest final one, into out [n_state]; the greatest of these.
 * f has no dead states (fsm_finish). */
uint32_t fsm_distances(struct build *b, const struct fsm *f, uint32_t *out);

/* fsm_product.c, of automata without jumps */
/* f reads FSM_BEGIN where ^ is and FSM_FINISH where $ is, any number of them before and behind a
 * text (a loop on them at both ends). The automaton of the texts without them. */
const struct fsm *fsm_resolve_anchors(struct build *b, const struct fsm *f);
/* NULL when the build failed. */
const struct fsm *fsm_and(struct build *b, const struct fsm *x, const struct fsm *y);
const struct fsm *fsm_minus(struct build *b, const struct fsm *x, const struct fsm *y);
/* Letters of the shortest and the longest text, GX_INF: there is no longest; both 0 for an empty
 * language. False: the build failed. */
bool fsm_lengths(struct build *b, const struct fsm *f, uint32_t *shortest, uint32_t *longest);
bool fsm_is_empty(const struct fsm *f);
/* Code points of UTF-8 text. */
bool fsm_accepts(const struct fsm *f, const char *text, size_t n);

#endif
