/* SPDX-License-Identifier: Apache-2.0 */
/* core - one engine: a scheduler, a worker behind a ring, and the loop body that keeps both busy.
 *
 * The owner's event loop watches core_fd, and calls core_step whenever it is readable, a request
 * came, or core_wait_ms has passed. core_step never waits: it settles the steps that are done
 * (giving their outputs to the sink) and plans new ones as long as the ring has room, so that while
 * the worker computes step n, step n+1 lies ready. A worker that dies is started again, a bounded
 * number of times, and the requests go on with the same tokens; one that hangs is killed and then
 * has died; a request that it always dies of is singled out and ends with an error. The server, the
 * library and the tests are owners of a core. Threads: one owner. */
#ifndef QUIRE_ENGINE_CORE_CORE_H
#define QUIRE_ENGINE_CORE_CORE_H
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "common/hub/config.h"
#include "engine/sched/scheduler.h"
#include "proto/proto.h"
#include "engine/worker/ring.h"

#define CORE_FINGERPRINT_MAX 24
#define CORE_RESTARTS_MAX    5    /* deaths in a row without one finished step */
#define CORE_CULPRITS_MAX    16   /* requests found guilty in a row without one finished step */
#define CORE_END_MS          2000 /* a worker has this long to end before it is killed */

struct core_config {
    struct worker_config worker;
    char tokenizer_path[PATH_MAX]; /* folder or file; --tokenizer, else worker.model_dir */
    uint32_t queue_max;            /* waiting requests at most */
    struct scheduler_policy policy;
    uint32_t worker_timeout_s; /* a step takes longer: the worker is killed; 0 = no limit. Not
                                   when it is a thread */
    bool prefix_cache;         /* --enable-prefix-caching */
    bool no_jump_forward;      /* --disable-jump-forward: forced tokens are sampled one by one */
    bool in_process;           /* the worker is a thread */
    struct generation_defaults override; /* --override-generation-config; the library's alone */
    const char *trace_path;     /* a trace of every step is written there; NULL = none; borrowed */
    const char *profiler_dir;   /* core_profile_start writes there; NULL = it may not; borrowed */
    const char *worker_program; /* NULL = quire-worker beside this executable; borrowed */
};

enum core_state {
    CORE_LOADING, /* the first worker is loading */
    CORE_READY,
    CORE_RESTARTING, /* the worker died and comes back; requests are kept and taken */
    CORE_FAILED      /* for good; core_step says why */
};

/* The outputs of one settled step, in plan order; borrowed for the call. The sink may submit and
 * abort. With result NULL: requests that ended outside of steps, perhaps during a core_submit: with
 * FINISH_ERROR and `why`, or with FINISH_ABORT. */
typedef void core_sink(void *ctx, const struct step_result *result,
                       const struct scheduler_output *outputs, uint32_t n);

struct core;
/* Starts loading and returns at once. Errors: those of model_config_load, launch, Q_NO_MEMORY. */
FALLIBLE core_new(struct core **out, const struct core_config *c, core_sink *sink, void *ctx,
                  struct q_err *e);
/* Ends the worker (CORE_END_MS), forgets all requests. */
void core_free(struct core *c);

int core_fd(const struct core *c);      /* watch for reading */
int core_wait_ms(const struct core *c); /* call core_step after this; -1 = no need */
/* Errors: the reason of CORE_FAILED, now and at every later call. */
FALLIBLE core_step(struct core *c, struct q_err *e);
enum core_state core_state(const struct core *c, uint32_t *percent);
bool core_worker_died(
    const struct core *c); /* CORE_FAILED because of deaths, not of what the worker said */

/* Give memory back. Level 1: of the KV pool. Level 2: all that the worker has, by ending it. Steps
 * in flight are settled first; requests are kept, may still come, and go on with the same tokens
 * after core_wake, which has the weights read again after level 2. The owner calls core_step after
 * both. Errors: Q_INVALID (level), Q_UNAVAILABLE (loading, failed). */
FALLIBLE core_sleep(struct core *c, uint32_t level, struct q_err *e);
void core_wake(struct core *c);
bool core_sleeping(const struct core *c); /* the memory is given back, and core_wake is to come */
uint32_t core_sleep_level(const struct core *c); /* 0 = not core_sleeping */
/* No request begins from now on, until core_resume; they may still come. mode: what becomes of
 * those that are here. Said again, the last mode counts. clear_cache: once paused, what is cached
 * serves no later request. */
void core_pause(struct core *c, enum in_flight_mode mode, bool clear_cache);
void core_resume(struct core *c);
bool core_pausing(const struct core *c);  /* wanted */
bool core_refusing(const struct core *c); /* wanted, and not one that keeps requests */
bool core_paused(const struct core *c);   /* reached: nothing is computed until core_resume */

/* Compute with the weights of another folder of the same model from now on ("": the one in use, as
 * it is now). It is checked at once, and if it does not fit nothing changes, in particular no
 * request ends. Then steps in flight are settled, with IN_FLIGHT_WAIT after the requests that have
 * begun are finished, and the worker packs the new weights over the old. No key, value or cached
 * prefix of the old weights is used afterwards; a request that was kept goes on after the tokens it
 * has, and `fingerprint` changes, by which its owner can tell. Later workers load that folder too.
 * The owner calls core_step after it.
 * Errors: those of model_check_weights; Q_UNAVAILABLE (loading, failed, a reload is under way);
 * Q_INVALID (requests that are to finish first cannot, since the core is paused or asleep). */
FALLIBLE core_reload(struct core *c, const char *dir, enum in_flight_mode mode, struct q_err *e);
bool core_reloading(const struct core *c);
const char *core_weights_dir(const struct core *c); /* the folder in use */
/* True once, when it is over: result is Q_OK, or why the old weights are served on. */
bool core_take_reload(struct core *c, struct q_err *result);

/* Write what each step spends its time on to a new file of profiler_dir (trace.h), until it is
 * stopped. Errors: Q_UNSUPPORTED (no profiler_dir), Q_INVALID (already, or not, under way), Q_IO.
 * */
FALLIBLE core_profile_start(struct core *c, struct q_err *e);
FALLIBLE core_profile_stop(struct core *c, struct q_err *e);
const char *core_profile_path(const struct core *c); /* of the last one; "" = none */

/* As scheduler_submit; Q_UNAVAILABLE while loading ("loading 43 %") or failed. */
FALLIBLE core_submit(struct core *c, uint32_t origin, const struct msg_submit *m, struct q_err *e);
bool core_abort(struct core *c, uint32_t origin, uint64_t req_id);
uint32_t core_abort_origin(struct core *c, uint32_t origin);
void core_reset_prefix_cache(struct core *c);
bool core_preempt_last(struct core *c); /* as scheduler_preempt_last; for tests */
bool core_busy(const struct core *c);   /* requests are waiting or running */

struct core_info { /* valid once READY, then constant but for the fingerprint */
    struct model_shape shape;
    struct step_limits limits;
    uint32_t n_block, n_swap_block;
    char fingerprint[CORE_FINGERPRINT_MAX]; /* "fp_0123456789abcdef"; a reload changes it */
};
const struct core_info *core_info(const struct core *c);
const struct model_config *core_model_config(const struct core *c);
const struct generation_defaults *core_generation_defaults(const struct core *c);
void core_stats(const struct core *c, struct scheduler_stats *out);
uint64_t core_n_restart(const struct core *c);
pid_t core_worker_pid(const struct core *c); /* 0 = a thread, or none now */
/* Assert every invariant, the scheduler's too. In trees with tests core_step does it. Cost:
 * O(requests + blocks). */
void core_check(const struct core *c);

#endif
