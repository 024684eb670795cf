/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler - which sequences compute which tokens in each step.
 *
 * Requests come in (scheduler_submit), wait in a bounded queue, run, and leave with a finish
 * reason. scheduler_plan fills one step: first every running sequence that has something to
 * compute, then waiting ones (whose turn is next: backlog.h), within max_num_batched_tokens,
 * max_num_seqs, the logit rows and the blocks there are; long prompts go in chunks. When a running
 * sequence needs a block and none is free, the last running one (the lowest priority, of those the
 * youngest) is preempted: its blocks are freed and it goes back to the head of the queue. What they
 * held is copied to host memory first, or computed again when it returns (swap.h; same bits, DESIGN
 * section 6), but for what the prefix cache has then. scheduler_settle takes a step's result and
 * gives outputs. Up to SCHEDULER_IN_FLIGHT_MAX steps may be planned
 * before the first is settled; a sequence may appear in two of them (its next token is in the
 * worker's history by then), and rows computed past a stop are dropped at settle. Never deadlocks:
 * what cannot fit alone in an empty pool is refused by scheduler_submit (argued in README.md). Time
 * comes in through arguments, so a simulator can drive it. Threads: one loop. Allocates nothing
 * after scheduler_new but what one request owns (its tokens), given back when it leaves. */
#ifndef QUIRE_ENGINE_SCHED_SCHEDULER_H
#define QUIRE_ENGINE_SCHED_SCHEDULER_H
#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"
#include "proto/proto.h"
#include "proto/step.h"

#define SCHEDULER_IN_FLIGHT_MAX 2u
#define SCHEDULER_GUESSES_MAX   16u /* on n_guess and n_forced */

enum preemption_mode { /* --preemption-mode: what becomes of a preempted request's KV */
                       PREEMPT_AUTO,     /* what costs less time: swap.h */
                       PREEMPT_SWAP,     /* host memory, while there is room */
                       PREEMPT_RECOMPUTE /* nothing */
};

struct scheduler_policy { /* all zero: first come, first served, no limits */
    bool by_priority;     /* --scheduling-policy priority */
    /* Limits on prompts, with vLLM's meaning; 0 = none. A sequence computes at most
     * long_prefill_token_threshold rows of its prompt in a step, and is long when it has more. At
     * most max_num_partial_prefills are in the middle of their prompts after a step, of them
     * max_long_partial_prefills long ones; shorter ones overtake a long one that waits for that.
     * With max_num_partial_prefills above 1 a threshold of 0 is 4 % of max_model_len. */
    uint32_t long_prefill_token_threshold, max_num_partial_prefills, max_long_partial_prefills;
    /* While something runs, a new request waits until it has waited this many times as long as the
     * last step with prompt rows took (so that prompts come together); 0 = it does not. */
    double delay_factor;
    int64_t request_timeout_us; /* from a request's arrival to its end; 0 = any time */
    enum preemption_mode preemption;
};

struct scheduler_config {
    struct step_limits limits;
    uint32_t n_block; /* blocks of the pool */
    /* Blocks in host memory for what preempted requests have computed; 0 = it is computed again.
     * limits.copies_max then must hold a sequence of max_model_len. */
    uint32_t n_swap_block;
    uint32_t queue_max; /* waiting requests at most */
    struct scheduler_policy policy;
    /* Called by scheduler_plan once it is decided who computes what, before that is written into
     * the step (for a trace: the scheduler has no clock); may be NULL. */
    void (*decided)(void *ctx);
    void *decided_ctx;
    uint32_t vocab_size;
    const uint32_t *eos_ids; /* [n_eos], copied */
    uint32_t n_eos;
    uint32_t n_guess;  /* tokens that the worker may guess per sequence and step; 0 = none */
    uint32_t n_forced; /* the same for sequences with a grammar, when it is more */
    bool prefix_cache; /* full blocks are shared between requests and kept while there is room */
    /* Keys of a sequence depend on the length of its prompt when that is longer (dynamic rope):
     * such share blocks with others of the same length only. 0 = they never do. */
    uint32_t prompt_free_len;
};

struct scheduler;
/* Errors: Q_INVALID (a limit of 0; n_block too small for one sequence of max_model_len: says which
 * length would fit). */
FALLIBLE scheduler_new(struct scheduler **out, const struct scheduler_config *c, struct q_err *e);
void scheduler_free(struct scheduler *s);

/* origin: which frontend (the caller's number); (origin, m->req_id) names the request from now on.
 * Errors: Q_INVALID (parameters; weight; prompt + max_tokens beyond max_model_len is NOT an error:
 * the length is the limit, but a prompt that leaves no room for one token is), Q_NO_SPACE (queue
 * full), Q_MISMATCH (req_id in use), Q_NO_MEMORY. */
FALLIBLE scheduler_submit(struct scheduler *s, uint32_t origin, const struct msg_submit *m,
                          int64_t now_us, struct q_err *e);
/* False when there is no such request. Its blocks are free when this returns; rows in flight are
 * dropped. */
bool scheduler_abort(struct scheduler *s, uint32_t origin, uint64_t req_id);
uint32_t scheduler_abort_origin(struct scheduler *s,
                                uint32_t origin); /* all of one frontend; returns how many */

/* Fill the next step into memory[0..n), 8-byte aligned (n >= step_bytes_max). *planned = false:
 * nothing to compute now (idle, SCHEDULER_IN_FLIGHT_MAX steps are in flight, or all running
 * sequences wait for a result in flight).
 * Errors: Q_TOO_LARGE (n too small: a bug of the caller; the step is given up as by
 * scheduler_worker_lost). */
FALLIBLE scheduler_plan(struct scheduler *s, void *memory, size_t n, int64_t now_us, bool *planned,
                        struct q_err *e);

struct scheduler_output { /* one request's share of a settled step, or its end outside of steps */
    uint32_t origin;
    uint64_t req_id;
    uint32_t seq; /* sequence number of the token, the first output token is 0 */
    bool has_token;
    uint32_t token;
    const struct step_row *row; /* of the token, NULL without one; borrowed from the result */
    const struct step_row *prompt_rows; /* [n_prompt_row] contiguous in the result */
    uint32_t n_prompt_row;
    enum finish_reason finish;
    uint32_t stop_id;        /* id + 1 when a stop_token_id of the request ended it, else 0 */
    uint32_t n_cached;       /* prompt tokens that were not computed, but found in the cache */
    uint64_t queue_us;       /* waited before the first step */
    const struct q_err *why; /* core: the reason of FINISH_ERROR, for the client; may be NULL */
    /* Ended by the scheduler (scheduler_take_end): Q_TIMEOUT or Q_NO_SPACE, else Q_OK. */
    enum q_code code;
};
/* Settle the oldest step in flight. outputs: room for logit_rows_max, *n_output of them filled, one
 * per request with news, or with guesses that came true one per token, in a row; a finished request
 * is forgotten when this returns. Errors: Q_CORRUPT (the result is not of the oldest step, says
 * that the step failed, or its rows are not the ones asked for); nothing has changed then, and the
 * caller restarts the worker (scheduler_worker_lost). */
FALLIBLE scheduler_settle(struct scheduler *s, const struct step_result *r, int64_t now_us,
                          struct scheduler_output *outputs, uint32_t *n_output, struct q_err *e);
/* Requests that the scheduler ended by itself, one a call; false when there is none (more). Call
 * it after each submit (a full queue lets a tenant with few requests in by pushing out a new one of
 * the tenant with most: Q_NO_SPACE) and when scheduler_deadline_us has come (Q_TIMEOUT). finish is
 * FINISH_ERROR when no token was given before, else FINISH_ABORT; the request is forgotten. */
bool scheduler_take_end(struct scheduler *s, int64_t now_us, struct scheduler_output *out);
int64_t scheduler_deadline_us(const struct scheduler *s); /* INT64_MAX = none */
/* The worker is gone: every step in flight is forgotten and every running sequence goes back to the
 * queue's head, oldest first, with the tokens that were settled; by determinism the rest comes out
 * the same. */
void scheduler_worker_lost(struct scheduler *s);
/* What is cached now serves no later request: for new weights, or to measure. Running requests go
 * on with their blocks, which are not shared any more; swapped ones compute theirs again. */
void scheduler_reset_prefix_cache(struct scheduler *s);

/* Preempt the last running one as when blocks run out; no answer changes. False: none runs. */
bool scheduler_preempt_last(struct scheduler *s);
/* Closed: no request begins that has not begun; those that have go on (n_begun of the stats). */
void scheduler_close(struct scheduler *s, bool closed);
/* End every request with FINISH_ABORT, one a call; false when there is none (more). */
bool scheduler_end_next(struct scheduler *s, struct scheduler_output *out);

/* The worker died, or was killed because it hung, with the oldest step in flight unfinished: as
 * scheduler_worker_lost, and those in that step become suspects when it is not their first time.
 * Suspects are then computed one at a time (scheduler_suspect.c). True: one that was alone in the
 * step ends here, *culprit is its output (FINISH_ERROR, no token). Settle what the worker finished
 * before. */
bool scheduler_worker_died(struct scheduler *s, struct scheduler_output *culprit);

struct scheduler_stats {
    uint64_t step; /* last planned */
    /* A preempted request with KV in host memory is swapped, else it is waiting. */
    uint32_t n_running, n_waiting, n_swapped, n_in_flight, n_tenant;
    uint32_t n_begun;                         /* running ones, and waiting ones that have run */
    uint32_t kv_blocks_used, kv_blocks_total; /* cached blocks are not used ones */
    uint32_t kv_blocks_cached, swap_blocks_used, swap_blocks_total;
    uint64_t prompt_tokens, generation_tokens, n_preemption, n_aborted, n_finished;
    uint64_t n_timeout, n_pushed_out;
    /* Preemptions that copied KV out; requests that had it copied back; blocks of both. */
    uint64_t n_swap_out, n_swap_in, swap_blocks_out, swap_blocks_in;
    uint64_t prefix_queries, prefix_hits; /* tokens looked up and found, at first admissions */
    /* guesses: sequences and steps that had some, tokens guessed, tokens that came true; the last
     * by place, the first guess at 0 */
    uint64_t n_draft, n_draft_token, n_accepted_token, accepted_at[SCHEDULER_GUESSES_MAX];
    /* guesses that a grammar forced, apart from those: tokens guessed, tokens that came true */
    uint64_t n_forced_token, n_forced_accepted;
    /* tokens per step: bounds 1 2 4 … 16384, +Inf; counts of each bucket alone */
    uint64_t iteration_tokens[16];
    /* Filled in by the core. Steps that followed another without a rest, and for how long what
     * computes had nothing to do before and in them: engine time that computing did not hide. */
    uint64_t n_gap, gap_us;
};
void scheduler_stats(const struct scheduler *s, struct scheduler_stats *out);
/* Every invariant of pool, queues and requests; Q_ASSERTs. Tests call it after each step; O(blocks
 * + requests). */
void scheduler_check(const struct scheduler *s);

#endif
