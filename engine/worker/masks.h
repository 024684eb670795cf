/* SPDX-License-Identifier: Apache-2.0 */
/* masks - which tokens a request's grammar lets come next, found out while the model runs.
 *
 * The hook for structured output. A provider (the grammar's own code) says which tokens may follow
 * a history; here is the thread it says so on. When a step begins, the rows that sample for a
 * request with a grammar are handed to that thread; it fills a mask for each while the other
 * threads compute the forward pass, and who finishes a row waits for its mask. All tokens before
 * the row's are known by then, guesses of speculation included, so steps need not wait for each
 * other.
 *
 * A mask is a pure function of grammar and history: a provider may remember what helps it, but
 * preemption, replay and wrong guesses ask it about any history in any order.
 * Threads: the worker's loop, but for masks_wait (any of its team). One step at a time. Allocates
 * nothing after masks_new. */
#ifndef QUIRE_ENGINE_WORKER_MASKS_H
#define QUIRE_ENGINE_WORKER_MASKS_H
#include <stdint.h>
#include "engine/worker/sample.h"
#include "engine/worker/slots.h"

struct mask_ask {
    uint32_t grammar;        /* sample_params.grammar, never 0 */
    uint32_t slot;           /* of the sequence, for what the provider remembers of it */
    const uint32_t *history; /* [n_known] prompt, then output; borrowed during the call */
    uint32_t n_known, n_prompt;
    const uint32_t *stop_ids; /* [n_stop_id] tokens that end the output, eos unless ignored */
    uint32_t n_stop_id;
};
struct mask_provider {
    /* The slot has a new sequence: its grammar's program, borrowed during the call. Called before
     * the step's fills, on the masks' thread. NULL: the provider knows its grammars otherwise. */
    void (*admit)(void *ctx, const struct slot_grammar *g);
    /* Set the bits of the tokens that may come next, bit id % 32 of word id / 32; all are 0 before.
     * With none set the request ends with an error. Called on the masks' thread alone. */
    void (*fill)(void *ctx, const struct mask_ask *ask, uint32_t *bits);
    /* Tokens that the grammar makes likely to come next because it forces their text, at most n;
     * how many. A wrong one costs its row of one step. NULL: none. Called on the masks' thread. */
    uint32_t (*guess)(void *ctx, const struct mask_ask *ask, uint32_t *tokens, uint32_t n);
    void *ctx;
};

struct masks;
/* n_row: at most, of one step. Errors: Q_NO_MEMORY, Q_IO (thread creation). */
FALLIBLE masks_new(struct masks **out, const struct mask_provider *p, uint32_t n_row,
                   uint32_t n_vocab, struct q_err *e);
void masks_free(struct masks *m);
/* The step was applied: guess for its sequences that speculate and have a grammar which forces
 * text, into their histories behind what is known (slot->n_guess, slot->is_forced). Waits for the
 * masks' thread; nothing is done when there is no such sequence. */
void masks_guess(struct masks *m, struct slots *s, const struct step_view *v);
/* The step's rows are known (s->rows of masks_guess, which comes first in every step): start on
 * those with a grammar, and on the grammars of slots that are new. Each row must be waited for, and
 * then masks_end be called, before the histories change and the step's memory goes. */
void masks_begin(struct masks *m);
void masks_end(struct masks *m);
/* The mask of row i, which has a grammar; waits until it is there. */
const uint32_t *masks_wait(struct masks *m, uint32_t i_row);

#endif
