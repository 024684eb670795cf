/* SPDX-License-Identifier: Apache-2.0 */
/* memory - how many KV blocks a worker takes, and how many more for preempted requests.
 *
 * Exactly --num-gpu-blocks-override, or what --kv-cache-memory-bytes holds, or else what a part of
 * the memory (--gpu-memory-utilization) leaves after weights, activations, and steps in the ring.
 * With --max-model-len auto a length that does not fit there is shortened to the longest that does.
 *
 * Nothing is run to find out what a step takes. All that a step on the CPU uses was made for it, so
 * its size is known; a test runs the largest step and holds the sum against what it touches
 * (tests/unit/dummy.h). A run at each start would take longer than all else of it.
 *
 * The memory is what the machine or, when that is less, the cgroups of this process have free, plus
 * what the worker holds itself.
 *
 * The CPU's default. vLLM's 0.9 of the memory is right for a device that nobody else uses; a
 * laptop's or a shared server's memory is not such a device, so without a flag the worker plans for
 * MEMORY_CPU_PART, and for no more blocks than max_num_seqs sequences of max_model_len can fill.
 * Either way the pool is only reserved: a block takes memory when it is first written, in steps of
 * huge pages, so an idle server holds its weights and little else.
 *
 * Swap space (--swap-space) on the CPU is memory of the same kind: a second pool beside the first.
 * It takes what is left of MEMORY_SWAP_PART of the memory at most, no more than max_num_seqs
 * sequences of max_model_len can fill, nothing when the first pool holds all of those (then nobody
 * is ever preempted), and it too takes memory block by block as it is used. A device's pool is
 * memory of its own, and its swap space is taken at once, since the device must be able to reach
 * it. Threads: start-up. */
#ifndef QUIRE_ENGINE_WORKER_MEMORY_H
#define QUIRE_ENGINE_WORKER_MEMORY_H
#include "engine/worker/ring.h"

#define MEMORY_CPU_PART  0.5 /* without --gpu-memory-utilization */
#define MEMORY_ONE_PART  0.9 /* and then for a single sequence, when MEMORY_CPU_PART has no room */
#define MEMORY_SWAP_PART 0.9 /* the most that everything and swap space may take together */

struct memory_need {
    uint64_t weight_bytes;     /* resident */
    uint64_t activation_bytes; /* of the largest step, at most: what was made for it */
    /* At most: steps and results in the ring (with logprobs of the whole vocabulary for two
     * requests), and what is kept of each sequence. Taken as it is used. */
    uint64_t step_bytes;
    uint64_t block_bytes; /* K and V of one block, all layers */
    /* For all of these; UINT64_MAX = nobody knows. */
    uint64_t total_bytes;
    bool on_device; /* the pool is a device's memory, taken at once; swap space is the host's */
};

/* What the memory limits of this process's cgroups (version 1 and 2) and those above them leave;
 * UINT64_MAX = there is no limit. root: "", or a folder with files like the kernel's. */
uint64_t memory_cgroups_free(const char *root);
/* Free memory of machine and cgroups; UINT64_MAX when neither can be read. */
uint64_t memory_available(void);
/* The same with the machine's free swap space: beyond it a process that writes its weights is
 * killed. 0 = not known. */
uint64_t memory_for_weights(void);
/* What this process has in memory, but for mapped files; 0 when it cannot be read. */
uint64_t memory_resident(void);
/* What of `need` grows with the length. */
typedef enum q_code memory_steps(uint64_t *step_bytes, const struct step_limits *l, void *ctx,
                                 struct q_err *e);
/* --max-model-len auto: shorten max_model_len (and known_max) to the most tokens of which one
 * sequence fits, and say so in a line of the log. steps NULL: need->step_bytes is the same for all
 * lengths. False: nothing was shortened, because all fits or nothing does. */
bool memory_fit_length(struct step_limits *l, const struct worker_config *c,
                       const struct memory_need *need, memory_steps *steps, void *ctx);
/* *n_block for this configuration; logs the sum. Errors: Q_NO_MEMORY (not even one sequence of
 * max_model_len fits; says what would fit, and the ways out). */
FALLIBLE memory_blocks(uint32_t *n_block, const struct worker_config *c,
                       const struct step_limits *l, const struct memory_need *need,
                       struct q_err *e);
/* Blocks of swap space beside n_block of the pool; logs it. 0: none. */
uint32_t memory_swap_blocks(uint32_t n_block, const struct worker_config *c,
                            const struct step_limits *l, const struct memory_need *need);

#endif
