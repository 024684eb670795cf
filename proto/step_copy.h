/* SPDX-License-Identifier: Apache-2.0 */
/* step_copy - what a step (step.h) copies: blocks to host memory and back, and states. Threads:
 * values.
 *
 * States of sequences that are no K and V (step_limits.n_state) lie in rows. A slot has the row
 * that its admission names, from then on, and each step leaves there the state behind its rows. An
 * admitted sequence begins with a copy of another row, which has the state in front of its first
 * row: a snapshot that an earlier step has left; with STEP_STATE_ZERO at position 0; or with its
 * own row, which it had before it was preempted. No sequence of a step reads or writes a row that
 * another one of it writes. */
#ifndef QUIRE_PROTO_STEP_COPY_H
#define QUIRE_PROTO_STEP_COPY_H
#include <stdint.h>

#define STEP_STATE_ZERO    (UINT32_MAX - 1u)
#define STEP_SEQ_SNAPSHOTS 3u /* of a sequence in one step, at most */

struct step_copy {  /* of one block, keys and values of all layers */
    uint32_t block; /* of the pool that steps compute in */
    uint32_t host;  /* block of the pool in host memory */
};

struct step_snapshot { /* the state in front of a position, into another row */
    uint32_t seq;      /* number in the step's seqs, ascending */
    uint32_t position; /* start < position <= start + n_token; ascending within a seq */
    uint32_t state;
};

#endif
