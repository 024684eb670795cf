/* SPDX-License-Identifier: Apache-2.0 */
/* nfa - the nondeterministic automaton of an expression: edges, jumps and GOTOs in the order of
 * their creation. Private to engine/grammar (nfa.c makes it, fsm.c makes it deterministic).
 * Threads: one owner. */
#ifndef QUIRE_ENGINE_GRAMMAR_AUTOMATON_NFA_H
#define QUIRE_ENGINE_GRAMMAR_AUTOMATON_NFA_H
#include "engine/grammar/automaton/fsm_measure.h"
#include "engine/grammar/automaton/expr.h"

#define NFA_NONE UINT32_MAX

struct nfa_edge {
    struct fsm_edge is;
    uint32_t next; /* of the same state, NFA_NONE = last */
};
struct nfa_jump {
    struct fsm_jump is;
    uint32_t next;
};
struct nfa_state {
    uint32_t edge, jump; /* first of their lists */
};
struct nfa {
    struct build *b;               /* borrowed; keeps failures */
    const struct fsm_rules *rules; /* NULL: code points */
    struct nfa_state *states;
    struct nfa_edge *edges;
    struct nfa_jump *jumps;
    size_t n_state, n_edge, n_jump, state_cap, edge_cap, jump_cap;
    struct nfa_links {
        uint32_t *slots; /* [size] state + 1, by its only edge */
        size_t n, size;
    } links;
};

/* Of x, from state 0 to state 1. */
void nfa_make(struct nfa *a, struct build *b, const struct expr *x, const struct fsm_rules *r);
void nfa_release(struct nfa *a);

#endif
