/* SPDX-License-Identifier: Apache-2.0 */
/* speculate - guessing the tokens that come next, so that one step can check several.
 *
 * A guess is one token per position, never a distribution: n-gram lookup copies what followed the
 * same words earlier in the sequence, a draft model (a small one of the same vocabulary) takes its
 * most likely token. The step then computes the rows of all guesses at once and samples after each
 * as if the guesses before it were the sequence; sampling is a pure function of (logits,
 * parameters, history, seed, position), so a row whose guesses came true gives the very token that
 * would have come without speculation, at any temperature. That is rejection sampling (Leviathan et
 * al., arXiv 2211.17192) for a proposal of all mass on one token: accepted with probability
 * p(guess), and otherwise a draw from p without it. So speculation changes how many steps are
 * taken, and no token.
 *
 * The draft model has a KV cache of its own with the same block numbers. It computes every row that
 * the model computes, so that a block shared through the prefix cache holds both.
 * Threads: the worker's loop; the draft's forward passes run on its team. */
#ifndef QUIRE_ENGINE_WORKER_SPECULATE_H
#define QUIRE_ENGINE_WORKER_SPECULATE_H
#include "engine/worker/gpu/gpu.h"
#include "engine/worker/ring.h"
#include "engine/worker/slots.h"

/* What followed the longest run of n_min … n_max last tokens where it last occurred before.
 * guesses: room for n_guess_max. Returns how many there are. O(n_known * n_max) at worst. */
uint32_t speculate_ngram(uint32_t *guesses, uint32_t n_guess_max, const uint32_t *history,
                         uint32_t n_known, const struct speculation *c);

struct draft; /* a draft model, its KV cache and scratch */

struct draft_args {
    const struct model_options *options; /* of the model it guesses for; dir and progress are not */
    const struct model_shape *target;
    const struct step_limits *limits;
    struct gpu *gpu; /* that of the options' link; it makes the draft's KV cache then. NULL: none */
};
/* Load the model in c->draft_dir. Errors: those of model_load; Q_MISMATCH (another vocabulary, or
 * fewer positions than max_model_len). */
FALLIBLE draft_new(struct draft **out, const struct speculation *c, const struct draft_args *a,
                   struct q_err *e);
/* Make its KV cache of n_block blocks, and as swap space n_swap_block more. */
FALLIBLE draft_make_kv(struct draft *d, uint32_t n_block, uint32_t n_swap_block, struct q_err *e);
void draft_forget_kv(struct draft *d); /* kv_cache_forget of both */
/* Between its cache and its swap space, as the model's blocks are copied. */
void draft_copy(const struct draft *d, const struct step_copy *c, bool is_out);
void draft_free(struct draft *d);
const struct model *draft_model(const struct draft *d);
const struct model_shape *draft_shape(const struct draft *d);
uint64_t draft_scratch_bytes(const struct draft *d); /* at most, of a step */

/* Compute the step's rows with the draft model, and guess for every sequence that speculates: into
 * its history behind what is known, slot->n_guess of them. On a device the guesses of a pass go
 * there with gpu_update. Errors: those of the device. */
FALLIBLE draft_guess(struct draft *d, struct slots *s, const struct step_view *v, struct q_err *e);
/* After the step: which of the draft's keys and values are of tokens that came true. */
void draft_settle(struct slots *s, const struct step_view *v);

#endif
