/* SPDX-License-Identifier: Apache-2.0 */
/* grammars - the worker's own provider of masks: matchers over the model's vocabulary, and the
 * state of thinking budgets (thinking_state.h).
 *
 * Sequences with the same grammar share a matcher and its caches. For each slot the states after
 * its output tokens are stored; a different history (a rejected draft token, a new sequence, an
 * evicted matcher) is processed again from the difference on. A thread reads the vocabulary while
 * the weights load; without a tokenizer no token is allowed.
 * Threads: grammars_new and grammars_free on the worker's loop, the provider on the masks' thread,
 * which allocates. */
#ifndef QUIRE_ENGINE_WORKER_GRAMMARS_H
#define QUIRE_ENGINE_WORKER_GRAMMARS_H
#include "engine/worker/masks.h"

#define GRAMMARS_KEPT 24u /* cached matchers besides those in use */

struct grammars;
struct grammars_args {
    const char *model_dir;       /* its config: tokens that end a text */
    const char *tokenizer_path;  /* folder or file; "" = model_dir */
    uint32_t vocab_size, n_slot; /* n_slot: maximum number of sequences */
};
/* Errors: Q_NO_MEMORY, Q_IO (thread creation). */
FALLIBLE grammars_new(struct grammars **out, const struct grammars_args *a, struct q_err *e);
void grammars_free(struct grammars *g); /* after the masks' thread has ended */
struct mask_provider grammars_provider(struct grammars *g);

#endif
