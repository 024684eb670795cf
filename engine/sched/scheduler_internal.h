/* SPDX-License-Identifier: Apache-2.0 */
/* scheduler_internal - what the files of the scheduler share: its state. Nobody else includes this.
 *
 * running is in the order of request_before, and all of it comes before all returned ones of the
 * backlog (scheduler_check.c asserts both), except while suspects are tried one by one
 * (scheduler_suspect.c). Threads: the scheduler's loop only. */
#ifndef QUIRE_ENGINE_SCHED_SCHEDULER_INTERNAL_H
#define QUIRE_ENGINE_SCHED_SCHEDULER_INTERNAL_H
#include "engine/sched/backlog.h"
#include "engine/sched/kv.h"
#include "engine/sched/prefix.h"
#include "engine/sched/request.h"
#include "engine/sched/scheduler.h"
#include "engine/sched/swap.h"

#define SUSPECT_TRIAL_TOKENS 4u /* settled alone: then it was another that killed the worker */

struct part {                /* one sequence's share of a step in flight */
    uint32_t i_request, use; /* whose: the entry, and which of its uses */
    uint32_t slot, flags, start, n_token, n_new_block;
    uint32_t n_prompt_row;      /* prompt positions whose logprobs will come */
    uint32_t i_token, i_prompt; /* settle: row numbers in the result + 1, 0 = none yet */
    uint32_t n_prompt_seen;     /* settle */
    uint32_t n_sampled;         /* settle: sampled rows, and those of them that are tokens */
    uint32_t n_foreseen;
};

struct flight { /* a planned step whose result has not come */
    uint64_t step;
    int64_t planned_us;
    bool has_prompt;          /* rows other than decode rows are in it */
    uint32_t n_token, n_copy; /* rows; blocks copied out and in */
    struct part *parts;       /* [n_part], room for max_num_seqs */
    uint32_t n_part;
    uint32_t *by_slot; /* [max_num_seqs] part number + 1, 0 = none */
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
    struct flight flights[SCHEDULER_IN_FLIGHT_MAX]; /* the oldest at i_flight, in a ring */
    uint32_t i_flight, n_flight;
    uint32_t n_constrained;        /* of the running ones: with a grammar */
    bool closed;                   /* no request begins */
    bool suspecting;               /* scheduler_suspect.c: nothing runs but the one on trial */
    int64_t settled_us;            /* the last step */
    int64_t last_prompt_us;        /* how long the last step with prompt rows took */
    int64_t deadline_us;           /* none passes before */
    struct scheduler_output ended; /* pushed out of the queue and not told yet; code Q_OK = none */
    struct scheduler_stats stats;  /* counters only; the rest is filled in when asked */
};

static inline struct request *request_at(struct scheduler *s, uint32_t i_request)
{
    return &s->requests.items[i_request];
}

/* Tokens that may be guessed for r in a step. */
static inline uint32_t scheduler_guesses(const struct scheduler *s, const struct request *r)
{
    return r->params.grammar && s->config.n_forced > s->config.n_guess ? s->config.n_forced
                                                                       : s->config.n_guess;
}

struct seat {          /* what a waiting request would be given */
    uint32_t n_shared; /* of its blocks: shared with whoever computed them */
    uint32_t n_in;     /* the next ones: copied from host memory */
    uint32_t start;    /* first row to compute */
    uint32_t n_taken;  /* blocks of kv_available it costs */
};
/* cache.c: begin a request's chain of hashes, by what `m` says about sharing. */
void cache_root(struct scheduler *s, uint32_t i_request, const struct msg_submit *m);
/* What the cache and host memory have of a waiting request's history. */
void cache_find(struct scheduler *s, uint32_t i_request, struct seat *seat);
/* Give a request its blocks as found just now; its table is open and empty. */
void cache_seat(struct scheduler *s, uint32_t i_request, const struct seat *seat);
/* Index the blocks of a running request that are full by now, of rows planned and tokens known. */
void cache_publish_full(struct scheduler *s, struct request *r);
static inline void cache_publish(struct scheduler *s, struct request *r)
{
    if (r->n_token >= r->publish_at && r->n_planned >= r->publish_at)
        cache_publish_full(s, r);
}

/* Take a running request off its slot and blocks; it is in no list afterwards and may be waiting
 * again (backlog_return) or removed. */
void scheduler_unseat(struct scheduler *s, uint32_t i_request);
/* Take blocks and place of a running request away; it waits again. scheduler_preempt.c */
void scheduler_preempt(struct scheduler *s, uint32_t i_request);
/* It is seated again: plan the copies of what is in host memory, or give that up. */
void scheduler_restore(struct scheduler *s, struct request *r, const struct seat *seat);
/* What a step's result tells about speeds. */
void scheduler_measure(struct scheduler *s, const struct flight *f,
                       const struct step_result_head *h);
/* Forget a request that is running or waiting. */
void scheduler_forget(struct scheduler *s, uint32_t i_request);

/* scheduler_suspect.c */
/* A token of r was settled. */
static inline void scheduler_got_on(struct request *r)
{
    if (r->n_lost && ++r->n_since_lost == SUSPECT_TRIAL_TOKENS)
        r->n_lost = 0;
}
/* Before a step is planned: the one on trial that has passed goes back to the queue. */
void scheduler_end_trial(struct scheduler *s);
/* The suspect to try next, alone; REQUEST_NONE when none is left: then all is as usual again. */
uint32_t scheduler_next_suspect(struct scheduler *s);

#endif
