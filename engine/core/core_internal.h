/* SPDX-License-Identifier: Apache-2.0 */
/* core_internal - the state of a core, shared by core.c, core_control.c, core_trace.c and
 * core_check.c only. Threads: the core's owner. */
#ifndef QUIRE_ENGINE_CORE_CORE_INTERNAL_H
#define QUIRE_ENGINE_CORE_CORE_INTERNAL_H
#include "common/clock.h"
#include "common/hub/pooling.h"
#include "engine/core/core.h"
#include "engine/core/core_adapters.h"
#include "engine/core/item_intake.h"
#include "engine/core/step_cost.h"
#include "engine/core/worker_process.h"
#include "engine/core/trace.h"

#define CORE_TRACES 2 /* --trace, /start_profile */

struct core_reload {
    enum { RELOAD_NONE, RELOAD_WANTED, RELOAD_ORDERED, RELOAD_OVER } state;
    enum in_flight_mode mode;
    char dir[PATH_MAX];
    struct q_err result; /* of RELOAD_OVER */
};

struct core {
    struct core_config config;
    core_sink *sink;
    void *sink_ctx;
    struct model_config model;
    struct pooling pooling; /* what the model makes of a prompt */
    struct generation_defaults generation;
    enum core_state state;
    struct q_err failure;    /* of FAILED */
    struct q_err bad_logits; /* for clients of a plugin's model; code Q_OK: of none */
    bool worker_died;
    struct ring *ring; /* of the current worker; NULL between two workers */
    struct worker_process worker;
    struct worker_info worker_info; /* of the first worker */
    struct core_info info;
    unsigned char weights_id[WEIGHTS_IDENTITY_BYTES]; /* of the weights that are loaded */
    size_t result_bytes;                              /* of one ring entry */
    size_t step_bytes;
    struct trace *traces[CORE_TRACES]; /* NULL = none */
    char profile_path[PATH_MAX];       /* of the last profile */
    struct recorder *recorder;         /* of --record; NULL = none */
    uint32_t n_profile;
    struct trace_step traced[RING_DEPTH]; /* of the steps in flight, by number */
    int64_t decided_us;                   /* in the plan being made */
    struct scheduler *scheduler;          /* NULL until the first worker is ready */
    struct scheduler_output *outputs;     /* [logit_rows_max] */
    struct core_items items;
    struct core_adapters *adapters;            /* NULL: not enabled */
    struct item_intake *intake;                /* NULL: no large items yet */
    struct clock_watch intake_watch;           /* of the job that its thread has */
    struct grammar_compiler *grammar_compiler; /* requests whose grammar is being compiled */
    int epoll_fd;
    uint32_t n_death;          /* since the last finished step or culprit */
    uint32_t n_culprit;        /* since the last finished step */
    uint32_t n_start_failure;  /* tries to start a worker that failed, in a row */
    int64_t step_since_ms;     /* start time of the oldest step in flight */
    uint64_t oldest_step;      /* its number */
    uint64_t again_step;       /* number of a step whose time began again; 0 = none */
    uint64_t work[RING_DEPTH]; /* of the steps in flight, by number */
    struct step_cost cost;
    int64_t finish_us;        /* when the last request finished */
    double finish_every_us;   /* mean time between finishes; 0 = unknown */
    bool going;               /* no idle time without requests since the last step */
    bool follows[RING_DEPTH]; /* steps in flight, by number: the value of `going` when they were
                               * planned */
    uint64_t n_gap, gap_us;   /* gaps between consecutive steps: scheduler_stats */
    uint64_t n_restart;
    int64_t restart_at_ms; /* while there is no worker */
    uint32_t sleep_level;  /* requested; 0 = awake */
    uint32_t slept_level;  /* reached */
    bool pausing;          /* a pause is requested */
    enum in_flight_mode pause_mode;
    bool clear_cache; /* once paused */
    bool waking;      /* the starting worker does not replace a crashed one */
    struct core_reload reload;
    int64_t percent_logged_ms;
};

/* Is a prompt computed in one step? */
static inline bool core_whole_prompts(const struct core *c)
{
    return c->info.shape.pools && (c->info.shape.both_ways || c->pooling.kind != POOLING_LAST);
}

/* core.c */
void core_end_worker(struct core *c, int timeout_ms);
/* Outputs to the sink. The items of requests that ended are released after it. */
void core_give(struct core *c, const struct step_result *result,
               const struct scheduler_output *outputs, uint32_t n);

/* The identity of the weights on disk now is that of the loaded ones. Errors: Q_IO. */
FALLIBLE core_note_weights(struct core *c, struct q_err *e);
/* Requests that the scheduler ended, to the sink. */
void core_give_ends(struct core *c, int64_t now_us);
FALLIBLE core_watch(struct core *c, int fd, struct q_err *e);

/* scheduler_submit of a request whose adapter may have gone since it came. */
FALLIBLE core_schedule(struct core *c, uint32_t frontend_id, const struct msg_submit *m,
                       struct q_err *e);

/* core_admission.c: may the request be queued? Errors: Q_NO_SPACE. */
FALLIBLE core_admit(const struct core *c, const struct msg_submit *m, struct q_err *e);
void core_note_finishes(struct core *c, uint32_t n_output, int64_t now_us);
/* Time from now to the first token of a request with such a prompt, and what of it is the work of
 * others; 0: nothing is known yet. */
int64_t core_ttft_us(const struct core *c, size_t n_prompt, int64_t *ahead_us);

/* core_intake.c: submit what the thread has ended. */
void core_take_intake(struct core *c);
/* When core_check_intake is due next; 0: not while the thread has no job. */
int64_t core_intake_due_ms(const struct core *c);
/* Errors: Q_TIMEOUT (the thread has had its job for so long that a plugin hangs). */
FALLIBLE core_check_intake(struct core *c, struct q_err *e);

/* core_control.c: true if a step may be planned now. */
bool core_may_plan(const struct core *c);
/* After finished steps are settled: enter sleep, reload or clear the cache when possible. */
void core_control(struct core *c);
/* The worker is lost. */
void core_control_lost(struct core *c, const struct q_err *why);

/* core_record.c: nothing without --record. */
FALLIBLE core_record_open(struct core *c, struct q_err *e);
void core_record_begin(struct core *c);  /* the first worker is ready, or the weights are others */
void core_record_worker(struct core *c); /* a later one is */
void core_record_step(struct core *c, const struct step_result *result);

/* core_trace.c */
bool core_tracing(const struct core *c);
void core_trace_decided(void *core);
/* Record a step when it is sent. The head is in the ring. */
void core_trace_planned(struct core *c, const struct step_head *h, int64_t start_us);
/* Complete the record when its outputs are sent. */
void core_trace_settled(struct core *c, const struct step_result_head *h, int64_t start_us,
                        int64_t settled_us);
/* Record steps that the worker did not finish. */
void core_trace_lost(struct core *c);

#endif
