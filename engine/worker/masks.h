/* SPDX-License-Identifier: Apache-2.0 */
/* masks - the tokens allowed by a request's grammar or thinking budget, computed while the model
 * runs.
 *
 * The hook for structured output and forced ends of reasoning. A provider (the grammar's code)
 * computes the allowed tokens after a history; this module provides its thread. When a step begins,
 * the sampling rows of requests with either are passed to that thread; it fills a mask for each
 * while the other threads compute the forward pass, and the sampling of a row waits for its mask.
 * All previous tokens of a row are known by then, including draft tokens, so steps do not wait for
 * each other.
 *
 * A mask is a pure function of grammar, limit and history: a provider may cache, but preemption,
 * replay and rejected drafts request any history in any order.
 * Threads: the worker's loop, but for masks_wait (any of its team). One step at a time. Allocates
 * nothing after masks_new. */
#ifndef QUIRE_ENGINE_WORKER_MASKS_H
#define QUIRE_ENGINE_WORKER_MASKS_H
#include <stdint.h>
#include "engine/worker/sample.h"
#include "engine/worker/slots.h"

struct mask_job {
    uint32_t grammar;        /* sample_params.grammar; 0: a thinking budget alone */
    uint32_t slot;           /* of the sequence, for the provider's caches */
    const uint32_t *history; /* [n_known] prompt, then output; borrowed during the call */
    uint32_t n_known, n_prompt;
    const uint32_t *stop_ids; /* [n_stop_id] tokens that end the output, eos unless ignored */
    uint32_t n_stop_id;
    const uint32_t *thinking; /* [n_thinking] its thinking budget (common/thinking_budget.h) */
    uint32_t n_thinking;
    uint32_t n_admitted; /* sequences that the slot has had, with this one */
    bool is_known;       /* the history has no draft tokens: it only grows while n_admitted stays */
};
struct mask_provider {
    /* The slot has a new sequence with this grammar program, borrowed during the call. Called
     * before the step's fills, on the masks' thread. NULL: not needed by the provider. */
    void (*admit)(void *ctx, const struct slot_grammar *g);
    /* Set the bits of the allowed tokens, bit id % 32 of word id / 32; all are 0 before. If none is
     * set, the request ends with an error. Called on the masks' thread only. */
    void (*fill)(void *ctx, const struct mask_job *job, uint32_t *bits);
    /* Tokens of text that the grammar forces, at most n; returns their number. A wrong one costs
     * one row of a step. NULL: none. Called on the masks' thread. */
    uint32_t (*propose)(void *ctx, const struct mask_job *job, uint32_t *tokens, uint32_t n);
    /* Is the next token forced by the thinking budget, and which is it? One that is not in the
     * vocabulary: none is allowed. NULL: never. Called on the masks' thread, with n_thinking. */
    bool (*force)(void *ctx, const struct mask_job *job, uint32_t *token);
    void *ctx;
};

struct masks;
/* n_row: at most, of one step. Errors: Q_NO_MEMORY, Q_IO (thread creation). */
FALLIBLE masks_new(struct masks **out, const struct mask_provider *p, uint32_t n_row,
                   uint32_t n_vocab, struct q_err *e);
void masks_free(struct masks *m);
/* After a step was applied: draft forced text for its speculating sequences with a grammar, in
 * their histories after the known tokens (slot->n_draft_token, slot->is_forced). Waits for the
 * masks' thread; no effect without such sequences. */
void masks_propose(struct masks *m, struct slots *s, const struct step_view *v);
/* The step's rows are known (s->rows; masks_propose precedes in every step): start the masks of
 * rows of slots_masks, and the grammars of new slots. Each row must be waited for, and masks_end
 * called, before the histories change and the step's memory is released. */
void masks_begin(struct masks *m);
void masks_end(struct masks *m);
/* The mask of row i, of a slot with slots_masks; waits until it is ready. */
struct row_mask masks_wait(struct masks *m, uint32_t i_row);

#endif
