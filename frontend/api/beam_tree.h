/* SPDX-License-Identifier: Apache-2.0 */
/* beam_tree - the search without an engine: beams, ended answers, ranking.
 *
 * The owner computes the continuations of beams 0 … n_beam - 1 (beam_tokens), passes them to
 * beam_offer (one call per beam, in order), and calls beam_advance, until `over`. Then `ended[0 …
 * n_ended)` are the best, best first. Nodes form a tree, each with a pointer to its parent; a beam
 * is a leaf.
 * Threads: values. Memory: one node for each kept token, one row of alternatives for each beam and
 * step. */
#ifndef QUIRE_FRONTEND_API_BEAM_TREE_H
#define QUIRE_FRONTEND_API_BEAM_TREE_H
#include <stdbool.h>
#include <stdint.h>
#include "common/tokenizer/tokenizer.h"
#include "proto/sampling.h"

#define BEAM_NONE      UINT32_MAX
#define BEAM_WIDTH_MAX (SAMPLE_LOGPROBS_FEW / 2)

struct beam_tree;
struct beam_node;
struct beam_rules {
    uint32_t width;      /* number of beams and answers; >= 1 */
    uint32_t n_prompt;   /* tokens */
    uint32_t max_tokens; /* of an answer, >= 1 */
    uint32_t min_tokens; /* minimum length */
    double length_penalty;
    bool early_stopping;  /* stop when `width` answers have ended, even if others may be better */
    const uint32_t *ends; /* [n_end] tokens that end an answer; borrowed */
    uint32_t n_end;
    /* True if the answer's text ends with this node. NULL: no check of text. */
    bool (*ends_text)(void *ctx, const struct beam_tree *t, const struct beam_node *node);
    void *ctx;
};

struct beam_node {          /* one token of one or more answers */
    uint32_t token, parent; /* BEAM_NONE: follows the prompt */
    uint32_t depth;         /* 1 = the first token */
    uint32_t row;           /* row of alternatives it was taken from */
    double sum;             /* of logprobs up to here */
    float logprob;
    uint32_t rank; /* 1 = the most likely in its row */
};
struct beam_end {
    uint32_t node;
    double score;
    bool stopped; /* ended by one of the ends; else by its length or text */
};

struct beam_tree {
    struct beam_rules rules;
    struct beam_node *nodes; /* [n_node] */
    size_t n_node, nodes_cap;
    uint32_t *row_ids; /* [n_row, row_size] */
    float *row_logprobs;
    size_t n_row, ids_cap, logprobs_cap;
    uint32_t row_size;            /* alternatives of a row: 2 * width, fewer in a tiny vocabulary */
    uint32_t *beams;              /* [n_beam] nodes; the root is BEAM_NONE */
    struct beam_node *candidates; /* [n_candidate] of this step */
    struct beam_end *ended;       /* [n_ended] at most width, best first */
    uint32_t n_beam, n_candidate, n_ended, n_offered;
    bool over;
};
/* Errors: Q_NO_MEMORY. */
FALLIBLE beam_tree_init(struct beam_tree *t, const struct beam_rules *r, struct q_err *e);
void beam_tree_release(struct beam_tree *t);
/* The n alternatives for the next beam, most likely first; NaN and -inf are left out. */
FALLIBLE beam_offer(struct beam_tree *t, const uint32_t *ids, const float *logprobs, uint32_t n,
                    struct q_err *e);
/* All beams were offered: go to the next step, or end. */
FALLIBLE beam_advance(struct beam_tree *t, struct q_err *e);
/* Append the tokens of node's answer so far; node BEAM_NONE: none. */
FALLIBLE beam_tokens(const struct beam_tree *t, uint32_t node, struct token_list *out,
                     struct q_err *e);

#endif
