/* SPDX-License-Identifier: Apache-2.0 */
/* fsm_measure - the types of finite automata, and the lengths of the texts that one accepts. fsm.h
 * makes them. Threads: as the build. */
#ifndef QUIRE_ENGINE_GRAMMAR_AUTOMATON_FSM_MEASURE_H
#define QUIRE_ENGINE_GRAMMAR_AUTOMATON_FSM_MEASURE_H
#include "engine/grammar/automaton/build.h"

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
    uint32_t (*rule_of)(void *ctx, const struct expr *body);
    void *ctx;
};

/* alive [n_state], zeroed: 0 stays where no final state is reached, else letters to the nearest one
 * + 1. False: no memory, or too much work. */
bool fsm_mark_alive(struct build *b, const struct fsm *f, uint32_t *alive);
/* Letters from each state to the nearest final one, into out [n_state]; the greatest of these.
 * f has no dead states (fsm_finish). */
uint32_t fsm_distances(struct build *b, const struct fsm *f, uint32_t *out);
/* Letters of the shortest and the longest text, EXPR_INF: there is no longest; both 0 for an empty
 * language. False: the build failed. */
bool fsm_lengths(struct build *b, const struct fsm *f, uint32_t *shortest, uint32_t *longest);
bool fsm_is_empty(const struct fsm *f);

#endif
