/* SPDX-License-Identifier: Apache-2.0 */
/* rotary - the frequencies of the rotary embedding, for every kind of rope scaling.
 *
 * There is no table over positions: a step computes the (cos, sin) row of each of its tokens once
 * for all layers, which costs microseconds, needs no memory that grows with max_model_len, and lets
 * a row depend on its sequence's length.
 *
 * Length-dependent kinds (dynamic, longrope): the frequencies are those of the sequence's *prompt*
 * length. They must not change while keys are cached, and they must be the same after a preemption
 * or a replay, so the length at hand is no choice; the prompt's length is fixed, known from the
 * first chunk on, and gives what a full recompute gives for the first token. (vLLM takes one table
 * for the longest length, which answers short prompts differently from transformers.)
 * Threads: rotary_row is pure. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_ROTARY_H
#define QUIRE_ENGINE_MODEL_FORWARD_ROTARY_H
#include <stdbool.h>
#include <stdint.h>
#include "common/hub/config.h"

#define ROTARY_PAIRS_MAX (CONFIG_HEAD_MAX / 2)

struct rotary {
    struct rope_config config;
    uint32_t max_position; /* the length the frequencies were trained for */
    uint32_t n_pair;       /* half the elements of a head that are rotated */
    float scale;           /* yarn, longrope: cos and sin are multiplied by it; 1 otherwise */
    float inv_freq[ROTARY_PAIRS_MAX];         /* [n_pair] radians per token */
    float long_freq[CONFIG_ROPE_FACTORS_MAX]; /* longrope: of prompts beyond max_position */
};

/* The frequencies of c->rope; owns nothing. */
void rotary_init(struct rotary *r, const struct model_config *c);
/* Those of c->local_rope, which do not depend on the prompt. */
void rotary_init_local(struct rotary *r, const struct model_config *c);
/* row: [n_pair][2] (cos, sin) for one position. n_prompt counts for the kinds that vary. */
void rotary_row(const struct rotary *r, float *row, uint32_t position, uint32_t n_prompt);
/* Do the frequencies depend on the prompt's length? */
static inline bool rotary_varies(const struct model_config *c)
{
    return c->rope.kind == ROPE_DYNAMIC || c->rope.kind == ROPE_LONG;
}
/* Keys of a prompt of at most this many tokens do not depend on how many it has; 0 = never do. */
uint32_t rotary_free_length(const struct model_config *c);
/* Tokens the model can take by its config: max_position, times the factor for the kinds that
 * stretch it. */
uint32_t rotary_length_max(const struct model_config *c);

/* YaRN's factor of cos and sin, or of scores: 0.1 mscale ln(factor) + 1. */
double rope_yarn_mscale(double factor, double mscale);

#endif
