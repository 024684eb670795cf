/* SPDX-License-Identifier: Apache-2.0 */
/* memory - how many KV blocks a worker takes.
 *
 * The user's number of blocks or bytes, or else: what max_num_seqs sequences of max_model_len need,
 * but no more than MEMORY_KV_PART of what the machine (or the cgroup) has free once weights and
 * activations are counted. Threads: start-up. */
#ifndef QUIRE_ENGINE_WORKER_MEMORY_H
#define QUIRE_ENGINE_WORKER_MEMORY_H
#include "engine/worker/ring.h"

#define MEMORY_KV_PART 0.4

struct memory_need {
    uint64_t weight_bytes;     /* already resident */
    uint64_t activation_bytes; /* scratch and logits of the largest step, not yet touched */
    uint64_t block_bytes;      /* K and V of one block, all layers */
};

/* Free memory of machine and cgroup; UINT64_MAX when neither can be read. */
uint64_t memory_available(void);
/* *n_block for this configuration; logs the sum. Errors: Q_NO_MEMORY (not even one sequence of
 * max_model_len fits; says what would help). */
FALLIBLE memory_blocks(uint32_t *n_block, const struct worker_config *c,
                       const struct step_limits *l, const struct memory_need *need,
                       struct q_err *e);

#endif
