/* SPDX-License-Identifier: Apache-2.0 */
/* program - a compiled grammar as an array of words: an engine compiles it once, caches it, and
 * sends it to the worker inside a step.
 *
 *     head | rules [n_rule] | states [n_state] | edges [n_edge] | jumps [n_jump]
 *
 * It contains no pointers and has the same meaning in every process of this build. program_view
 * checks every index, so that damaged words are an error. Threads: values. */
#ifndef QUIRE_ENGINE_GRAMMAR_AUTOMATON_PROGRAM_H
#define QUIRE_ENGINE_GRAMMAR_AUTOMATON_PROGRAM_H
#include <stdint.h>
#include "common/err.h"
#include "engine/grammar/automaton/build.h"

#define PROGRAM_MAGIC     0x31475251u /* "QRG1" */
#define PROGRAM_WORDS_MAX 2000000u    /* fits into a step beside the other lists of a request */
/* A special token of the vocabulary is the byte 0xFF (never in UTF-8), its text, and 0xFF. */
#define PROGRAM_SPECIAL   0xFFu

struct program_head {
    uint32_t magic, n_word, n_rule, n_state, n_edge, n_jump;
    uint32_t
        before; /* + 1: the rule of the text before the grammar (reasoning_prefix.h); 0 = none */
};
struct program_state {
    uint32_t edge, jump; /* the first of each */
    uint32_t n_edge;     /* high bit: final */
    uint32_t n_jump;
};
#define PROGRAM_FINAL 0x80000000u
struct program_edge {
    uint32_t bytes; /* lo | hi << 8 */
    uint32_t to;
};
struct program_jump {
    uint32_t kind; /* enum fsm_jump_kind */
    uint32_t rule, min, max, to;
};
struct program { /* a view; borrows the words */
    const struct program_head *head;
    const uint32_t *rules; /* [n_rule] start states; rule 0 is where a text begins */
    const struct program_state *states;
    const struct program_edge *edges;
    const struct program_jump *jumps;
};

/* Rule `start` of a finished build as a program. Errors: the build's own; Q_INVALID (left recursion
 * that cannot be taken out, by the rule's name; no text fits); Q_TOO_LARGE.
 * Ownership: *words by q_free. */
FALLIBLE program_emit(uint32_t **words, uint32_t *n_word, struct build *b, uint32_t start,
                      struct q_err *e);
/* Errors: Q_CORRUPT. */
FALLIBLE program_view(struct program *p, const uint32_t *words, size_t n_word, struct q_err *e);

#endif
