/* SPDX-License-Identifier: Apache-2.0 */
/* items - the rows of embeddings that stand for the items of a step.
 *
 * The items of a slot are a table in the item store (proto/items.h). items_step finds those with
 * rows in the step's batch, lets the model's modality compute each on one thread, several at once,
 * and gives the batch a pointer for each of their rows; its token id there is 0. An item that goes
 * on behind the step's rows is kept whole in a small ring of rows, so that the next chunk does not
 * compute it again: the oldest entry makes room. An item whose modality reports an error gets rows
 * of NaN, and its sequence a note with the error: its request ends, the others go on.
 * Threads: the worker's loop and its team. Allocates nothing after items_new. */
#ifndef QUIRE_ENGINE_WORKER_ITEMS_H
#define QUIRE_ENGINE_WORKER_ITEMS_H
#include "common/team.h"
#include "engine/model/modality.h"
#include "engine/worker/slots.h"
#include "proto/items.h"

struct items;
struct items_args {
    const struct modalities *modalities; /* of the loaded model; borrowed */
    const unsigned char *store;          /* borrowed */
    uint32_t hidden_size, n_row_max;     /* rows of a step */
    struct team *team;
};
/* Errors: Q_NO_MEMORY. */
FALLIBLE items_new(struct items **out, const struct items_args *a, struct q_err *e);
void items_free(struct items *x); /* NULL is fine */
/* Bytes that items_new allocates, for the memory of activations; scratch of the modalities and one
 * largest item for each thread included. */
uint64_t items_bytes(const struct items_args *a);
/* After slots_batch: compute the rows of the batch's items and set batch.item_rows; NULL: the step
 * has none. notes: [max_num_seqs] one for each sequence with an item that could not be computed;
 * returns how many. */
uint32_t items_step(struct items *x, struct slots *s, const struct step_view *v,
                    struct step_note *notes);
/* Keep no rows: the weights are others. */
void items_forget(struct items *x);
struct items_stats {             /* since the start, for tests */
    uint64_t n_computed, n_kept; /* items computed; taken from the ring */
};
void items_stats(const struct items *x, struct items_stats *out);

#endif
