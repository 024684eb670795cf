/* SPDX-License-Identifier: Apache-2.0 */
/* packing - samples to sequences of at most seq_len rows, in the order of the file.
 *
 * With packing a bounded number of sequences is open. A sample goes into the one that it fills best
 * (the first of those with equal room); where it fits into none, a new one is opened, and of too
 * many the fullest is closed. A full one is closed at once. What comes out depends on the samples
 * alone. Without packing a sample is a sequence. Threads: one owner. */
#ifndef QUIRE_ENGINE_DISTILL_PACKING_H
#define QUIRE_ENGINE_DISTILL_PACKING_H
#include "engine/distill/sample.h"
#include "engine/distill/sequence_file.h"

struct packing;
/* w: takes the sequences; borrowed. Errors: Q_NO_MEMORY. */
FALLIBLE packing_new(struct packing **out, uint32_t seq_len, bool pack, struct sequence_writer *w,
                     struct q_err *e);
void packing_free(struct packing *p);
/* s: at most seq_len tokens; copied. Errors: those of sequence_writer_add, Q_NO_MEMORY. */
FALLIBLE packing_add(struct packing *p, const struct sample *s, struct q_err *e);
/* Close all that are open, the oldest first. */
FALLIBLE packing_finish(struct packing *p, struct q_err *e);

#endif
