/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler_internal - the scheduler's state, shared by its files only.
 *
 * The list `running` is in the order of request_before, and all its requests come before all
 * returned requests of the backlog (scheduler_check.c asserts both), except while suspects are
 * tried one by one (scheduler_suspect.c). Threads: the scheduler's loop only. */
#ifndef QUIRE_ENGINE_SCHED_SCHEDULER_INTERNAL_H
#define QUIRE_ENGINE_SCHED_SCHEDULER_INTERNAL_H
#include "engine/sched/backlog.h"
#include "engine/sched/kv.h"
#include "engine/sched/prefix.h"
#include "engine/sched/request.h"
#include "engine/sched/row_cost.h"
#include "engine/sched/scheduler.h"
#include "engine/sched/swap.h"

#define SCHEDULER_NO_SHARE ((double)UINT32_MAX)

#define SUSPECT_TRIAL_TOKENS 4u /* tokens settled alone after which a suspect is cleared */

struct scheduled_seq {       /* one sequence's rows of a step in flight */
    uint32_t i_request, use; /* owner: the entry and its use count */
    uint32_t slot, flags, start, n_token, n_new_block;
    uint32_t n_prompt_row;      /* number of requested prompt logprobs positions */
    uint32_t i_token, i_prompt; /* settle: row numbers in the result + 1, 0 = none yet */
    uint32_t n_prompt_seen;     /* settle */
    uint32_t n_sampled;         /* settle: sampled rows, and accepted ones among them */
    uint32_t n_predicted;
    const struct step_note *note; /* settle: why it could not be computed; NULL: it was */
    struct step_snapshot snapshots[STEP_SEQ_SNAPSHOTS]; /* [n_snapshot] without their seq */
    uint32_t n_snapshot;
    bool is_dropped; /* its rows read blocks that are wrong: the request computes them again */
};

struct inflight_step { /* a planned step without a result yet */
    uint64_t step;
    int64_t planned_us;
    bool has_prompt;            /* contains rows other than decode rows */
    uint32_t n_token, n_copy;   /* rows; blocks copied out and in */
    struct scheduled_seq *seqs; /* [n_seq], room for max_num_seqs */
    uint32_t n_seq;
    uint32_t *by_slot; /* [max_num_seqs] index of seqs + 1, 0 = none */
};

struct scheduler {
    struct scheduler_config config; /* eos_ids is owned */
    struct kv_pool pool;
    struct swap_pool swap;
    struct prefix_hasher hasher; /* made when config.prefix_cache */
    struct request_table requests;
    struct request_list running;
    struct backlog backlog;
    uint32_t *free_slots; /* [n_free_slot] a stack */
    uint32_t n_free_slot;
    uint32_t n_left; /* requests that the last plan left in the backlog */
    struct inflight_step
        inflight_steps[SCHEDULER_IN_FLIGHT_MAX]; /* a ring, the oldest at i_inflight */
    uint32_t i_inflight, n_inflight;
    struct row_cost row_cost;
    double share;          /* rows that a tenant of weight 1 may have in the step being planned */
    double share_unwanted; /* of one whose rows were not counted: less urgent ones */
    uint32_t *sharing;     /* [n_sharing] tenants that could have rows in it */
    uint32_t n_sharing;
    int64_t share_until_us; /* until then the tenant `expected` may come back */
    uint32_t expected;
    uint64_t n_plan;        /* calls of scheduler_share */
    uint32_t n_constrained; /* running sequences with a grammar */
    bool closed;            /* no new request starts */
    bool suspecting;        /* scheduler_suspect.c: only the suspect on trial runs */
    int64_t settled_us;     /* the last step */
    int64_t last_prompt_us; /* duration of the last step with prompt rows */
    int64_t deadline_us;    /* earliest deadline */
    struct scheduler_output
        ended; /* evicted from the queue and not reported yet; code Q_OK = none */
    struct scheduler_stats stats; /* counters only; the rest is computed on request */
};

static inline struct request *request_at(struct scheduler *s, uint32_t i_request)
{
    return &s->requests.items[i_request];
}

/* Maximum number of draft tokens for r in a step. */
static inline uint32_t scheduler_draft_tokens(const struct scheduler *s, const struct request *r)
{
    return r->params.grammar && s->config.n_forced > s->config.n_draft_token
               ? s->config.n_forced
               : s->config.n_draft_token;
}

/* Rows that could be computed now: tokens known here or sampled by a step in flight, less rows
 * planned. */
static inline uint32_t scheduler_rows_left(const struct request *r)
{
    uint32_t n_history = r->n_token + r->n_sampling;
    return n_history < r->n_max ? n_history - r->n_planned : 0;
}

static inline struct tenant *scheduler_tenant(const struct scheduler *s, const struct request *r)
{
    return &s->backlog.tenants[r->tenant];
}

struct admission {       /* blocks available to a waiting request */
    uint32_t n_shared;   /* its blocks shared from the prefix cache */
    uint32_t n_in;       /* the next blocks: copied from host memory */
    uint32_t start;      /* first row to compute */
    uint32_t n_taken;    /* blocks of kv_available needed */
    uint32_t state_from; /* of a model with states: as step_admit.state_from */
};
/* cache.c: start a request's chain of hashes according to the sharing fields of `m`. */
void cache_root(struct scheduler *s, uint32_t i_request, const struct msg_submit *m);
/* Blocks of a waiting request's history in the cache and in host memory. */
void cache_find(struct scheduler *s, uint32_t i_request, struct admission *admission);
/* Assign the found blocks to a request; its table is open and empty. */
void cache_admit(struct scheduler *s, uint32_t i_request, const struct admission *admission);
/* Index the full blocks of a running request (rows planned, tokens known). */
void cache_publish_full(struct scheduler *s, struct request *r);
static inline void cache_publish(struct scheduler *s, struct request *r)
{
    if (r->n_token >= r->publish_at && r->n_planned >= r->publish_at)
        cache_publish_full(s, r);
}

/* Release the slot and blocks of a running request; it is in no list afterwards and may be returned
 * (backlog_return) or removed. */
void scheduler_release_slot(struct scheduler *s, uint32_t i_request);
/* scheduler_preempt.c: take blocks and slot from a running request; it waits again. */
void scheduler_preempt(struct scheduler *s, uint32_t i_request);
/* scheduler_state.c, of a model with states: with which one a waiting request begins; sets start,
 * state_from and, where that makes them useless, n_in. n_most: first blocks that are cached and end
 * before its first row. */
void scheduler_find_state(const struct scheduler *s, const struct request *r,
                          struct admission *admission, uint32_t n_most);
void scheduler_admit_state(struct scheduler *s, struct request *r,
                           const struct admission *admission);
/* Which snapshots the sequence's rows of the step being planned leave. */
void scheduler_snapshot(struct scheduler *s, struct request *r, struct scheduled_seq *q);
/* The pending snapshot to its block, if that has its hash. False: it has not, or there is none, or
 * its row is free now, because the block has one or is not in the index. */
bool scheduler_attach_pending(struct scheduler *s, struct request *r);
void scheduler_release_state(struct scheduler *s, struct request *r);
/* What a waiting request has kept: host blocks, and its state. */
void scheduler_drop_held(struct scheduler *s, struct request *r);
/* On its admission: plan the copies from host memory, or discard them. */
void scheduler_restore(struct scheduler *s, struct request *r, const struct admission *admission);
/* Update the measured speeds from a step's result. */
void scheduler_measure(struct scheduler *s, const struct inflight_step *f,
                       const struct step_result_head *h);
/* Remove a running or waiting request. */
void scheduler_forget(struct scheduler *s, uint32_t i_request);

/* scheduler_share.c: at the beginning of a plan, how many rows each tenant may have in it. */
void scheduler_share(struct scheduler *s, int64_t now_us);
/* How many more rows r's tenant may have in it; UINT32_MAX: no limit. */
uint32_t scheduler_share_left(const struct scheduler *s, const struct request *r);
/* n_row rows of r are in the step. */
void scheduler_take_share(struct scheduler *s, const struct request *r, uint32_t n_row);
/* Blocks kept free at an admission: one for every four running sequences, so that they can run for
 * about four steps (each needs a block every sixteen steps) before the new sequence would be
 * preempted. */
static inline uint32_t scheduler_headroom(const struct scheduler *s)
{
    return (s->running.n + 3) / 4;
}

/* The different adapters of the running requests. */
uint32_t scheduler_adapters(const struct scheduler *s, uint32_t used[SCHEDULER_LORAS_MAX]);

/* scheduler_suspect.c */
/* A token of r was settled. */
static inline void scheduler_got_on(struct request *r)
{
    if (r->n_lost && ++r->n_since_lost == SUSPECT_TRIAL_TOKENS)
        r->n_lost = 0;
}
/* Before a step is planned: a suspect that passed its trial returns to the queue. */
void scheduler_end_trial(struct scheduler *s);
/* The next suspect to run alone; REQUEST_NONE if none is left: then normal operation resumes. */
uint32_t scheduler_next_suspect(struct scheduler *s);

#endif
