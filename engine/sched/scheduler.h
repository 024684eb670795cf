/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler - decides which sequences compute which tokens in each step.
 *
 * Requests come in (scheduler_submit), wait in a bounded queue, run, and leave with a finish
 * reason. scheduler_plan fills one step: first every running sequence with rows to compute, then
 * waiting ones (order: backlog.h), within max_num_batched_tokens, max_num_seqs, the logits rows and
 * the available blocks; long prompts are computed in chunks. If a running sequence needs a block
 * and none is free, the last running one (lowest priority, then youngest) is preempted: its blocks
 * are freed and it returns to the head of the queue. Its KV is copied to host memory first, or
 * recomputed when it returns (swap.h; same bits, DESIGN section 6), except for prefix-cache hits.
 * scheduler_settle takes a step's result and gives outputs. Up to SCHEDULER_IN_FLIGHT_MAX steps may
 * be planned before the first is settled; a sequence may appear in two of them (its next token is
 * in the worker's history by then), and rows computed past a stop are dropped at settle. Never
 * deadlocks: scheduler_submit rejects a request that does not fit alone in an empty pool (proof in
 * README.md). Time is an argument, so that a simulator can drive it. Threads: one loop. Allocates
 * nothing after scheduler_new except for the tokens of a request, freed when it ends. */
#ifndef QUIRE_ENGINE_SCHED_SCHEDULER_H
#define QUIRE_ENGINE_SCHED_SCHEDULER_H
#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"
#include "proto/proto.h"
#include "proto/step.h"

#define SCHEDULER_IN_FLIGHT_MAX    2u
#define SCHEDULER_LORAS_MAX        64u /* limit of max_loras */
#define SCHEDULER_MODALITIES_MAX   8u
#define SCHEDULER_DRAFT_TOKENS_MAX 16u /* limit of n_draft_token and n_forced */

/* --preemption-mode: how to preserve a preempted request's KV */
enum preemption_mode {
    PREEMPT_AUTO,     /* the faster of both: swap.h */
    PREEMPT_SWAP,     /* host memory, if there is room */
    PREEMPT_RECOMPUTE /* nothing */
};

struct scheduler_policy { /* all zero: first come, first served, no limits */
    bool by_priority;     /* --scheduling-policy priority */
    /* Limits on prompts, with vLLM's meaning; 0 = none. A sequence computes at most
     * long_prefill_token_threshold rows of its prompt per step; a prompt with more is long. At most
     * max_num_partial_prefills prompts are partially computed after a step, of them
     * max_long_partial_prefills long ones; shorter prompts overtake a waiting long one. With
     * max_num_partial_prefills above 1 a threshold of 0 is 4 % of max_model_len. */
    uint32_t long_prefill_token_threshold, max_num_partial_prefills, max_long_partial_prefills;
    /* While other requests run, a new request waits for this many times the duration of the last
     * step with prompt rows (so that prompts are batched); 0 = no delay. */
    double delay_factor;
    int64_t request_timeout_us; /* from a request's arrival to its end; 0 = no limit */
    enum preemption_mode preemption;
};

struct scheduler_config {
    struct step_limits limits;
    uint32_t n_block; /* blocks of the pool */
    /* Blocks in host memory for the KV of preempted requests; 0 = recomputation. With swap,
     * limits.copies_max must cover a sequence of max_model_len. */
    uint32_t n_swap_block;
    uint32_t queue_max;       /* waiting requests at most, beyond those that a step has slots for */
    uint64_t queue_token_max; /* their tokens at most, unless one alone has more; 0 = no limit */
    struct scheduler_policy policy;
    /* Called by scheduler_plan after the decisions and before the step is written (for a trace: the
     * scheduler has no clock); may be NULL. */
    void (*decided)(void *ctx);
    void *decided_ctx;
    uint32_t vocab_size;
    const uint32_t *eos_ids; /* [n_eos], copied */
    uint32_t n_eos;
    uint32_t n_draft_token; /* maximum number of draft tokens per sequence and step; 0 = none */
    uint32_t n_forced;      /* the same for sequences with a grammar, if larger */
    bool prefix_cache;  /* full blocks are shared between requests and kept while there is room */
    bool whole_prompts; /* no chunks: attention both ways, or a vector of all rows of a prompt */
    /* [modality] rows that a step has at most, because each takes long (images); 0: no limit */
    uint32_t item_rows_max[SCHEDULER_MODALITIES_MAX];
    /* K vectors of a sequence depend on the length of its prompt if it is longer than this (dynamic
     * rope): such sequences share blocks only with prompts of that length. 0 = no dependence. */
    uint32_t prompt_free_len;
    /* LoRA: running requests have at most max_loras different adapters, so no step has more; 0 = no
     * limit. A request is admitted if adapter_ready says that the worker has its adapter (NULL: it
     * has all); it is asked when all else is there, so the owner can make it ready. */
    uint32_t max_loras;
    bool (*adapter_ready)(void *ctx, uint32_t adapter);
    void *adapter_ctx;
};

struct scheduler;
/* Errors: Q_INVALID (a limit of 0; n_block too small for one sequence of max_model_len; the message
 * has the maximum length). */
FALLIBLE scheduler_new(struct scheduler **out, const struct scheduler_config *c, struct q_err *e);
void scheduler_free(struct scheduler *s);

/* frontend_id: number of the frontend; (frontend_id, m->req_id) identifies the request.
 * Errors: Q_INVALID (parameters; weight; prompt + max_tokens beyond max_model_len is NOT an error:
 * the length is the limit, but a prompt that leaves no room for one token is), Q_NO_SPACE (queue
 * full), Q_MISMATCH (req_id in use), Q_NO_MEMORY. */
FALLIBLE scheduler_submit(struct scheduler *s, uint32_t frontend_id, const struct msg_submit *m,
                          int64_t now_us, struct q_err *e);
/* False if there is no such request. Its blocks are free on return; rows in flight are dropped. */
bool scheduler_abort(struct scheduler *s, uint32_t frontend_id, uint64_t req_id);
uint32_t
scheduler_abort_frontend(struct scheduler *s,
                         uint32_t frontend_id); /* all requests of one frontend; returns their
                                                   * number */

/* Fill the next step into memory[0..n), 8-byte aligned (n >= step_bytes_max). *planned = false:
 * nothing to compute (idle, SCHEDULER_IN_FLIGHT_MAX steps are in flight, or all running sequences
 * wait for a result in flight).
 * Errors: Q_TOO_LARGE (n too small: a bug of the caller; the step is discarded as by
 * scheduler_worker_lost). */
FALLIBLE scheduler_plan(struct scheduler *s, void *memory, size_t n, int64_t now_us, bool *planned,
                        struct q_err *e);

struct scheduler_output { /* one request's output of a settled step, or its end outside of steps */
    uint32_t frontend_id;
    uint64_t req_id;
    uint32_t seq; /* sequence number of the token, the first output token is 0 */
    bool has_token;
    uint32_t token;
    bool has_vector; /* in place of a token: the alternatives' logprobs of `row` are its values */
    const struct step_row *row; /* of token or vector, NULL without; borrowed from the result */
    const struct step_row *prompt_rows; /* [n_prompt_row] contiguous in the result */
    uint32_t n_prompt_row;
    enum finish_reason finish;
    uint32_t stop_id;        /* id + 1 if a stop_token_id of the request ended it, else 0 */
    uint32_t n_cached;       /* prompt tokens found in the prefix cache */
    uint64_t queue_us;       /* waiting time before the first step */
    const struct q_err *why; /* core: the reason of FINISH_ERROR, for the client; may be NULL */
    bool is_accepted;        /* core: a submit that was pending is accepted; nothing else is set */
    const struct step_note *note; /* the worker could not compute it: FINISH_ERROR, no token */
    /* Ended by the scheduler (scheduler_take_end): Q_TIMEOUT or Q_NO_SPACE, else Q_OK. */
    enum q_code code;
};
/* Settle the oldest step in flight. outputs: room for logit_rows_max, and max_num_seqs more where
 * the worker gives notes; *n_output of them filled, one per request with output, or with accepted
 * draft tokens one per token, contiguous; a finished request is removed on return. Errors:
 * Q_CORRUPT (the result is not of the oldest step, reports an
 * error, or has other rows than requested); nothing has changed then, and the caller restarts the
 * worker (scheduler_worker_lost). */
FALLIBLE scheduler_settle(struct scheduler *s, const struct step_result *r, int64_t now_us,
                          struct scheduler_output *outputs, uint32_t *n_output, struct q_err *e);
/* Requests ended by the scheduler itself, one per call; false if there is none left. Call it after
 * each submit (a full queue admits a tenant with few requests by evicting a new request of the
 * tenant with the most: Q_NO_SPACE) and at scheduler_deadline_us (Q_TIMEOUT). finish is
 * FINISH_ERROR if no token was sent before, else FINISH_ABORT; the request is removed. */
bool scheduler_take_end(struct scheduler *s, int64_t now_us, struct scheduler_output *out);
int64_t scheduler_deadline_us(const struct scheduler *s); /* INT64_MAX = none */
/* The worker is lost: every step in flight is discarded and every running sequence returns to the
 * queue's head, oldest first, with its settled tokens; the remaining tokens are the same by
 * determinism. */
void scheduler_worker_lost(struct scheduler *s);
/* Clear the prefix cache: for new weights or measurements. Running requests continue with their
 * blocks, which are no longer shared; swapped ones are recomputed. */
void scheduler_reset_prefix_cache(struct scheduler *s);

/* Preempt the last running request as if blocks ran out; no answer changes. False: none runs. */
bool scheduler_preempt_last(struct scheduler *s);
/* Closed: no new request starts; started requests continue (n_begun of the stats). */
void scheduler_close(struct scheduler *s, bool closed);
/* End every request with FINISH_ABORT, one per call; false if there is none left. */
bool scheduler_end_next(struct scheduler *s, struct scheduler_output *out);

/* The worker died, or was killed because it hung, with the oldest step in flight unfinished: as
 * scheduler_worker_lost, and the requests in that step become suspects if they were in a lost step
 * before. Suspects are then computed one at a time (scheduler_suspect.c). True: a suspect was alone
 * in the step and ends now; *culprit is its output (FINISH_ERROR, no token). Settle the steps that
 * the worker finished before the call. */
bool scheduler_worker_died(struct scheduler *s, struct scheduler_output *culprit);

struct scheduler_stats {
    uint64_t step; /* last planned */
    /* A preempted request with KV in host memory counts as swapped, otherwise as waiting. */
    uint32_t n_running, n_waiting, n_swapped, n_in_flight, n_tenant;
    /* of waiting requests; of running ones what is not planned yet, but for each one's last */
    uint64_t n_waiting_token, n_prefill_token;
    uint32_t n_begun; /* running requests, and waiting requests that have run */
    uint32_t kv_blocks_used, kv_blocks_total; /* without cached blocks */
    uint32_t kv_blocks_cached, swap_blocks_used, swap_blocks_total;
    uint64_t prompt_tokens, generation_tokens, n_preemption, n_aborted, n_finished;
    uint64_t n_timeout, n_pushed_out;
    /* Preemptions by swap; requests swapped in; blocks of both. */
    uint64_t n_swap_out, n_swap_in, swap_blocks_out, swap_blocks_in;
    uint64_t prefix_queries, prefix_hits; /* tokens looked up and found, at first admissions */
    /* speculative decoding: drafts, their tokens, accepted tokens; the last by position in it */
    uint64_t n_draft, n_draft_token, n_accepted_token, accepted_at[SCHEDULER_DRAFT_TOKENS_MAX];
    /* draft tokens forced by a grammar (not included above): draft tokens, accepted tokens */
    uint64_t n_forced_token, n_forced_accepted;
    /* tokens per step: bounds 1 2 4 … 16384, +Inf; counts of each bucket alone */
    uint64_t iteration_tokens[16];
    uint64_t n_gap, gap_us; /* by the core: steps right behind another; idle time before, in them */
};
void scheduler_stats(const struct scheduler *s, struct scheduler_stats *out);
/* Requests with this adapter: all of them, or the running ones. Cost: O(requests). */
uint32_t scheduler_count_adapter(const struct scheduler *s, uint32_t adapter, bool running);
/* End the requests of an adapter with FINISH_ERROR, one per call; false if there is none left. */
bool scheduler_end_adapter(struct scheduler *s, uint32_t adapter, struct scheduler_output *out);
/* Every invariant of pool, queues and requests; Q_ASSERTs. Tests call it after each step; O(blocks
 * + requests). */
void scheduler_check(const struct scheduler *s);

#endif
