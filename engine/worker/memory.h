/* SPDX-License-Identifier: Apache-2.0 */
/* memory - the number of KV blocks of a worker, and of swap blocks for preempted requests.
 *
 * Exactly --num-gpu-blocks-override, or the blocks in --kv-cache-memory-bytes, or else the
 * remainder of a fraction of the memory (--gpu-memory-utilization) after weights, activations, and
 * steps in the ring. With --max-model-len auto a length that does not fit there is shortened to the
 * longest that does.
 *
 * No step is run to measure its memory: on the CPU all buffers of a step are allocated in advance,
 * so their size is known; a test runs the largest step and compares the sum with the touched memory
 * (tests/unit/dummy.h). A run at each start would take longer than the rest of the start.
 *
 * The memory is the free memory of the machine or, if smaller, of the cgroups of this process, plus
 * the worker's own memory.
 *
 * The CPU's default. vLLM's 0.9 of the memory fits a dedicated device, but not the memory of a
 * laptop or a shared server, so without a flag the worker uses MEMORY_CPU_PART, and no more blocks
 * than max_num_seqs sequences of max_model_len can fill. In both cases the pool is only reserved: a
 * block uses memory when it is first written, in units of huge pages, so an idle server uses little
 * more than its weights.
 *
 * Swap space (--swap-space) on the CPU is memory of the same kind: a second pool beside the first.
 * It takes at most the remainder of MEMORY_SWAP_PART of the memory, no more than max_num_seqs
 * sequences of max_model_len can fill, and nothing if the first pool has room for all of those
 * (then no request is preempted); its memory is also allocated on demand. A device's pool is device
 * memory, and its swap space is allocated at once, because the device must be able to access it.
 *
 * States of sequences that are no K and V (batch.state_parts) are of the memory of the KV cache and
 * at most half of it: two for each of max_num_seqs sequences, one that runs with it and one that is
 * kept for the prefix cache or a preempted request. Where there is no room for one each,
 * max_num_seqs is lowered.
 * Threads: start-up. */
#ifndef QUIRE_ENGINE_WORKER_MEMORY_H
#define QUIRE_ENGINE_WORKER_MEMORY_H
#include "engine/worker/ring.h"

#define MEMORY_CPU_PART  0.5 /* without --gpu-memory-utilization */
#define MEMORY_ONE_PART  0.9 /* the same for a single sequence, if MEMORY_CPU_PART has no room */
#define MEMORY_SWAP_PART 0.9 /* limit for everything and swap space together */

/* Of a block of a model without K and V, in the scheduler's tables; the prefix cache finds states
 * by blocks. */
#define MEMORY_EMPTY_BLOCK 128u

struct memory_need {
    uint64_t weight_bytes;     /* resident */
    uint64_t activation_bytes; /* upper limit of the largest step: the allocated buffers */
    /* At most: steps and results in the ring (with logprobs of the whole vocabulary for two
     * requests), and the state of each sequence. Allocated on demand. */
    uint64_t step_bytes;
    uint64_t block_bytes;  /* K and V of one block, all layers */
    uint64_t state_bytes;  /* of a state that is no K and V; 0: the model has none */
    uint64_t states_bytes; /* of all of them: set by memory_states */
    /* Available for all of these; UINT64_MAX = unknown. */
    uint64_t total_bytes;
    bool on_device; /* the pool is device memory, allocated at once; swap space is host memory */
};

/* Free memory within the limits of this process's cgroups (version 1 and 2) and their parents;
 * UINT64_MAX = no limit. root: "", or a folder with files in the kernel's format (tests). */
uint64_t memory_cgroups_free(const char *root);
/* Free memory of machine and cgroups; UINT64_MAX when neither can be read. */
uint64_t memory_available(void);
/* The same with the machine's free swap space: beyond it a process that writes its weights is
 * killed. 0 = not known. */
uint64_t memory_for_weights(void);
/* Memory of this process without mapped files; 0 if it cannot be read. */
uint64_t memory_resident(void);
/* Computes need->step_bytes for other limits (it grows with the length). */
typedef enum q_code memory_steps(uint64_t *step_bytes, const struct step_limits *l, void *ctx,
                                 struct q_err *e);
/* --max-model-len auto: shorten max_model_len (and known_max) to the most tokens of which one
 * sequence fits, and say so in a line of the log. steps NULL: need->step_bytes is the same for all
 * lengths. False: nothing was shortened, because all fits or nothing does. */
bool memory_fit_length(struct step_limits *l, const struct worker_config *c,
                       const struct memory_need *need, memory_steps *steps, void *ctx);
/* l->n_state, and l->max_num_seqs where there is no room for so many; need->states_bytes. Before
 * memory_fit_length and memory_blocks. Errors: Q_NO_MEMORY (no room for one). */
FALLIBLE memory_states(struct step_limits *l, const struct worker_config *c,
                       struct memory_need *need, struct q_err *e);
/* *n_block for this configuration; logs the sum. Errors: Q_NO_MEMORY (one sequence of max_model_len
 * does not fit; the message has the possible length and remedies). */
FALLIBLE memory_blocks(uint32_t *n_block, const struct worker_config *c,
                       const struct step_limits *l, const struct memory_need *need,
                       struct q_err *e);
/* Number of swap blocks for a pool of n_block; logs it. 0: none. */
uint32_t memory_swap_blocks(uint32_t n_block, const struct worker_config *c,
                            const struct step_limits *l, const struct memory_need *need);

#endif
