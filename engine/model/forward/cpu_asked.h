/* SPDX-License-Identifier: Apache-2.0 */
/* cpu_asked - the rows that the last passes of a step are computed for.
 *
 * Behind the last operation whose result other rows or later steps read (K and V of the last layer,
 * a state), a row is needed only if its logits are asked for: of a prompt its last row, of a chunk
 * that does not end it none. So the passes from cpu_asked_pass on go through spans of rows:
 *
 *     sequences   | 0 1 2 3 4 5 6 7 | 8 | 9 | 10 11 … 99 |
 *     asked for                   7   8   9           99
 *     spans                     [ 7   8   9 ]       [ 99 ]
 *
 * A span is, of each sequence, the rows from the first that is asked for to its end: attention both
 * ways sees the end of a sequence. Each span reads the weights once more, so one that begins fewer
 * than CPU_SPAN_GAP rows behind another is a part of it. A row's bits do not depend on the others
 * (DESIGN section 6), so those of the logits are the same.
 * Threads: one makes the spans, behind a barrier all read them. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_CPU_ASKED_H
#define QUIRE_ENGINE_MODEL_FORWARD_CPU_ASKED_H
#include "engine/model/batch.h"
#include "engine/model/forward/program.h"

/* About the rows that take as long as reading the weights: with 2 operations a byte (bf16) some 10
 * where a core makes 10 operations in the time of a byte, more where tiles multiply. */
#define CPU_SPAN_GAP 32u

struct cpu_rows { /* neighbouring rows of the step */
    uint32_t at, n;
};

struct cpu_spans {
    struct cpu_rows *rows;      /* [n_row], ascending, apart */
    struct attention_seq *seqs; /* [n_seq] what the spans have of the batch's sequences */
    uint32_t n_row, n_seq;
};

/* The first pass that is needed for rows that are asked for only; p->n_pass: there is none before
 * those that are of these rows as it is (program_pass.asked). */
uint32_t cpu_asked_pass(const struct layer_program *p);
/* s->rows and s->seqs: room for b->n_token each. */
void cpu_spans_make(struct cpu_spans *s, const struct batch *b);

#endif
