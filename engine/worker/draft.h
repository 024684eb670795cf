/* SPDX-License-Identifier: Apache-2.0 */
/* draft - a small model of the same vocabulary that proposes draft tokens for the target model
 * (speculate.h).
 *
 * The draft model has a KV cache of its own with the same block numbers. It computes every row that
 * the target model computes, the row of an accepted last draft token one step later; the scheduler
 * shares a block through the prefix cache when it is valid in both caches.
 * Threads: the worker's loop; its forward passes run on the worker's team. */
#ifndef QUIRE_ENGINE_WORKER_DRAFT_H
#define QUIRE_ENGINE_WORKER_DRAFT_H
#include "engine/worker/gpu/gpu.h"
#include "engine/worker/ring.h"
#include "engine/worker/slots.h"

struct draft; /* a draft model, its KV cache and scratch */

struct draft_args {
    const struct model_options *options; /* of the target model; dir and progress are not used */
    const struct model_shape *target;
    const struct step_limits *limits;
    struct gpu *gpu; /* the device of the options' link, which then makes the draft's KV cache.
                      * NULL: CPU */
};
/* Load the model in c->draft_dir. Errors: those of model_load; Q_MISMATCH (another vocabulary, or
 * fewer positions than max_model_len). */
FALLIBLE draft_new(struct draft **out, const struct speculation *c, const struct draft_args *a,
                   struct q_err *e);
/* Make its KV cache of n_block blocks, and as swap space n_swap_block more. */
FALLIBLE draft_make_kv(struct draft *d, uint32_t n_block, uint32_t n_swap_block, struct q_err *e);
void draft_forget_kv(struct draft *d); /* kv_cache_forget of both */
/* Copy blocks between its cache and its swap space, as the target model's blocks are copied. */
void draft_copy(const struct draft *d, const struct step_copy *c, bool is_out);
void draft_free(struct draft *d);
const struct model *draft_model(const struct draft *d);
const struct model_shape *draft_shape(const struct draft *d);
uint64_t draft_scratch_bytes(const struct draft *d); /* at most, of a step */

/* Compute the step's rows with the draft model, and propose draft tokens for every sequence that
 * speculates: slot->n_draft_token of them, in its history after the known tokens. On a device
 * gpu_update sends the draft tokens of a pass. Errors: those of the device. */
FALLIBLE draft_propose(struct draft *d, struct slots *s, const struct step_view *v,
                       struct q_err *e);
/* After the step: update slot->n_draft, the positions whose draft KV belongs to accepted tokens. */
void draft_settle(struct slots *s, const struct step_view *v);

#endif
