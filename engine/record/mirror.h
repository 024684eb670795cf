/* SPDX-License-Identifier: Apache-2.0 */
/* mirror - what a worker has in its slots after the recorded steps: for each the admission, the
 * tokens and the block table. A file that begins in the middle starts with it.
 *
 * A slot whose sequence has ended keeps it until the next admission: a step does not say that a
 * sequence ends. Threads: the recorder's. */
#ifndef QUIRE_ENGINE_RECORD_MIRROR_H
#define QUIRE_ENGINE_RECORD_MIRROR_H
#include "engine/record/record.h"

struct mirror_list { /* of 32-bit values */
    uint32_t *items;
    size_t n, cap;
};

struct mirror_slot {
    bool is_used;
    uint64_t last_step; /* that had rows of it */
    struct step_admit admit;
    struct mirror_list tokens, blocks, stop_ids, bias_ids, bias, lists;
    struct buf items; /* payload of an ITEMS frame; empty: it has none */
};

struct mirror {
    struct mirror_slot *slots; /* [n] */
    uint32_t n;
    struct buf *next_items; /* [n] by admission of the next step */
    uint32_t n_next_items;  /* 0: none has any */
};
/* clang-format off */
#define MIRROR_INIT {NULL, 0, NULL, 0}
/* clang-format on */

/* Errors: Q_NO_MEMORY. */
FALLIBLE mirror_init(struct mirror *m, uint32_t max_num_seqs, struct q_err *e);
void mirror_release(struct mirror *m);
void mirror_reset(struct mirror *m); /* a new worker */
/* The payload of an ITEMS frame, for an admission of the next step. Errors: Q_NO_MEMORY. */
FALLIBLE mirror_items(struct mirror *m, const void *payload, size_t n, struct q_err *e);
/* Errors: Q_NO_MEMORY, Q_TOO_LARGE (a sequence beyond STEP limits). */
FALLIBLE mirror_step(struct mirror *m, const struct step_view *v, const struct record_row *rows,
                     uint32_t n_row, struct q_err *e);
/* A step that admits what slot i has, with the number of the last step that had it; its items are
 * slots[i].items, of admission 0. False: it has nothing. Errors: Q_NO_MEMORY (of `out`). */
bool mirror_put(const struct mirror *m, uint32_t i, struct buf *out);

#endif
