/* SPDX-License-Identifier: Apache-2.0 */
/* core - one engine: a scheduler, a worker behind a ring, and the loop body that drives both.
 *
 * The owner's event loop watches core_fd, and calls core_step whenever it is readable, a request
 * came, or core_wait_ms has passed. core_step never waits: it settles finished steps (passing their
 * outputs to the sink) and plans new ones while the ring has room, so that step n+1 is ready while
 * the worker computes step n. A crashed worker is restarted, a limited number of times, and the
 * requests continue with the same tokens; a worker that hangs is killed and counts as crashed; a
 * request that always crashes the worker is identified and ends with an error. The server, the
 * library and the tests are owners of a core. Threads: one owner. */
#ifndef QUIRE_ENGINE_CORE_CORE_H
#define QUIRE_ENGINE_CORE_CORE_H
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "common/hub/config.h"
#include "common/hub/pooling.h"
#include "engine/core/adapter_settings.h"
#include "engine/core/core_items.h"
#include "engine/core/item_intake.h"
#include "engine/core/weights_identity.h"
#include "engine/record/recorder.h"
#include "engine/sched/scheduler.h"
#include "proto/proto.h"
#include "engine/worker/ring.h"

#define CORE_FINGERPRINT_MAX 24
#define CORE_RESTARTS_MAX    5    /* consecutive crashes without a finished step */
#define CORE_CULPRITS_MAX    16   /* consecutive requests that crashed the worker, likewise */
#define CORE_END_MS          2000 /* time for a worker to exit before it is killed */

struct core_config {
    struct worker_config worker;
    char tokenizer_path[PATH_MAX]; /* folder or file; --tokenizer, else worker.model_dir */
    uint32_t queue_max;            /* waiting requests at most */
    uint64_t queue_token_max;      /* tokens of them at most; 0 = no limit */
    int64_t ttft_max_us;           /* predicted time to the first token at most; 0 = no limit */
    struct scheduler_policy policy;
    uint32_t worker_timeout_s; /* limit of a step's duration, after which the worker is killed; 0 =
                                * no limit. Not for a worker thread */
    uint32_t stall_timeout_s;  /* likewise when this and what steps of its size took are exceeded by
                                * far (step_cost.h); 0 = not used */
    bool prefix_cache;         /* --enable-prefix-caching */
    bool no_jump_forward;      /* --disable-jump-forward: forced tokens are sampled one by one */
    bool in_process;           /* the worker is a thread */
    struct generation_defaults
        override;             /* --override-generation-config; used by the library only */
    const char *trace_path;   /* file for a trace of every step; NULL = none; borrowed */
    const char *profiler_dir; /* folder for core_profile_start; NULL = not allowed; borrowed */
    /* Identity of the weights that the engine before this one had first (weights_identity.h). */
    bool has_weights_before;
    unsigned char weights_before[WEIGHTS_IDENTITY_BYTES];
    struct recorder_options record; /* --record; path NULL = none */
    const char *worker_program; /* NULL = quire-worker in the folder of this executable; borrowed */
    struct core_item_config items;
    struct adapter_settings adapters;
};

enum core_state {
    CORE_LOADING, /* the first worker is loading */
    CORE_READY,
    CORE_RESTARTING, /* the worker crashed and is restarted; requests are kept and accepted */
    CORE_FAILED      /* final; core_step returns the error */
};

/* The outputs of one settled step, in plan order; borrowed for the call. The sink may submit and
 * abort. With result NULL: requests that ended outside of steps, perhaps during a core_submit: with
 * FINISH_ERROR and `why`, or with FINISH_ABORT. */
typedef void core_sink(void *ctx, const struct step_result *result,
                       const struct scheduler_output *outputs, uint32_t n);

struct core;
/* Start loading and return at once. Errors: those of model_config_load and worker_process_start,
 * Q_NO_MEMORY. */
FALLIBLE core_new(struct core **out, const struct core_config *c, core_sink *sink, void *ctx,
                  struct q_err *e);
/* End the worker (CORE_END_MS) and remove all requests. */
void core_free(struct core *c);

int core_fd(const struct core *c);      /* watch for reading */
int core_wait_ms(const struct core *c); /* call core_step after this time; -1 = not needed */
/* Errors: the reason of CORE_FAILED, now and at every later call. */
FALLIBLE core_step(struct core *c, struct q_err *e);
enum core_state core_state(const struct core *c, uint32_t *percent);
/* CORE_FAILED because of crashes, not of an error reported by the worker. */
bool core_worker_died(const struct core *c);

/* Return memory to the system. Level 1: the KV pool. Level 2: all memory of the worker, by ending
 * it. Steps in flight are settled first; requests are kept, are still accepted, and continue with
 * the same tokens after core_wake, which reloads the weights after level 2. The owner calls
 * core_step after both. Errors: Q_INVALID (level), Q_UNAVAILABLE (loading, failed). */
FALLIBLE core_sleep(struct core *c, uint32_t level, struct q_err *e);
void core_wake(struct core *c);
bool core_sleeping(
    const struct core *c); /* the memory is freed, and core_wake has not been called */
uint32_t core_sleep_level(const struct core *c); /* 0 = not core_sleeping */
/* Start no request until core_resume; requests are still accepted. mode: treatment of running
 * requests; the last call's mode applies. clear_cache: clear the prefix cache when paused. */
void core_pause(struct core *c, enum in_flight_mode mode, bool clear_cache);
void core_resume(struct core *c);
bool core_pausing(const struct core *c);  /* requested and not reached yet */
bool core_refusing(const struct core *c); /* requested, with a mode that does not keep requests */
bool core_paused(const struct core *c);   /* reached: no step is computed until core_resume */

/* Replace the weights by those of another folder of the same model ("": reload the current folder).
 * The folder is checked first; if it does not match, nothing changes and no request ends. Then
 * steps in flight are settled (with IN_FLIGHT_WAIT after running requests are finished), and the
 * worker packs the new weights over the old. No key, value or cached prefix of the old weights is
 * used afterwards; a suspended request continues after its tokens, and `fingerprint` changes. Later
 * workers load that folder too. The owner calls core_step after it.
 * Errors: those of model_check_weights; Q_UNAVAILABLE (loading, failed, another reload in
 * progress); Q_INVALID (running requests cannot finish first, because the core is paused or
 * asleep). */
FALLIBLE core_reload(struct core *c, const char *dir, enum in_flight_mode mode, struct q_err *e);
bool core_reloading(const struct core *c);
const char *core_weights_dir(const struct core *c); /* the current folder */
/* Of the weights that were loaded last, WEIGHTS_IDENTITY_BYTES; when READY. */
const unsigned char *core_weights_identity(const struct core *c);
/* True once, at its end: result is Q_OK, or the error for which the old weights are kept. */
bool core_take_reload(struct core *c, struct q_err *result);

/* LoRA adapters (core_adapters.c). The folder is checked against the model, by its config and the
 * headers of its tensors; the worker reads it when a request has it, or before. in_place: the new
 * one takes the name; requests that have begun keep the old one.
 * Errors: Q_UNSUPPORTED (not enabled), Q_INVALID (the name, or the name is taken), Q_NO_SPACE,
 * those of lora_check. */
FALLIBLE core_load_adapter(struct core *c, const struct adapter_module *m, bool in_place,
                           struct q_err *e);
/* Its requests continue, new ones are refused. Errors: Q_NOT_FOUND, with the names there are. */
FALLIBLE core_unload_adapter(struct core *c, const char *name, struct q_err *e);
/* For each adapter its name, folder and fingerprint, each followed by NUL; borrowed until the next
 * change. n_change: counts the changes. */
const struct buf *core_adapter_list(const struct core *c, uint64_t *n_change);

/* Write a timeline of each step to a new file of profiler_dir (trace.h) until it is stopped.
 * Errors: Q_UNSUPPORTED (no profiler_dir), Q_INVALID (already started, or not started), Q_IO. */
FALLIBLE core_profile_start(struct core *c, struct q_err *e);
FALLIBLE core_profile_stop(struct core *c, struct q_err *e);
const char *core_profile_path(const struct core *c); /* of the last one; "" = none */

/* As scheduler_submit and core_items_take; Q_UNAVAILABLE while loading ("loading 43 %") or failed.
 */
FALLIBLE core_submit(struct core *c, uint32_t frontend_id, const struct msg_submit *m,
                     struct q_err *e);
struct core_submit_items_args {
    const struct item_array *items; /* [n] in place of those of the submit */
    uint32_t n;
    struct item_contents
        *contents; /* of the items, taken in any case; NULL: valid until it returns */
};
/* The same with these items. More than ITEM_INTAKE_INLINE bytes are read on a thread: the request
 * is core_items_pending until the sink gets an output with is_accepted, or its end; contents that
 * are borrowed have to be valid until then. */
FALLIBLE core_submit_contents(struct core *c, uint32_t frontend_id, const struct msg_submit *m,
                              const struct core_submit_items_args *items, struct q_err *e);
bool core_items_pending(const struct core *c, uint32_t frontend_id, uint64_t req_id);
/* Wait for the thread; no large items are taken afterwards. For an owner that ends. */
void core_end_intake(struct core *c);
/* The same with these items in place of those of m: [n], copied before it returns. */
FALLIBLE core_submit_items(struct core *c, uint32_t frontend_id, const struct msg_submit *m,
                           const struct item_array *items, uint32_t n, struct q_err *e);
/* What items made of the prompt of the last submit that succeeded; valid until the next one. */
const struct core_expansions *core_expansions(const struct core *c);
const struct item_types *core_item_types(const struct core *c);
bool core_abort(struct core *c, uint32_t frontend_id, uint64_t req_id);
/* By how much a request with such a prompt exceeds ttft_max_us now; 0: it is accepted. */
uint32_t core_ttft_excess_ms(const struct core *c, size_t n_prompt);
uint32_t core_abort_frontend(struct core *c, uint32_t frontend_id);
void core_end_all(struct core *c, const struct q_err *why); /* by an error; NULL: aborted */
void core_reset_prefix_cache(struct core *c);
bool core_preempt_last(struct core *c);         /* as scheduler_preempt_last; for tests */
uint64_t core_item_bytes(const struct core *c); /* of the items of open requests */
bool core_busy(const struct core *c);           /* requests are waiting or running */
bool core_works(const struct core *c);          /* or a thread has work of an aborted one */

struct core_info { /* valid when READY, then constant except for the fingerprint */
    struct model_shape shape;
    struct step_limits limits;
    uint32_t n_block, n_swap_block;
    uint32_t n_modality;                    /* 0: the model takes tokens only */
    uint64_t store_bytes;                   /* memory for the items of all requests */
    char fingerprint[CORE_FINGERPRINT_MAX]; /* "fp_0123456789abcdef"; a reload changes it */
};
const struct core_info *core_info(const struct core *c);
const struct model_config *core_model_config(const struct core *c);
const struct pooling *core_pooling(const struct core *c);
/* The longest prompt together with its answer, or the longest one that a vector is made of. */
uint32_t core_max_model_len(const struct core *c);
const struct generation_defaults *core_generation_defaults(const struct core *c);
void core_stats(const struct core *c, struct scheduler_stats *out);
uint64_t core_n_restart(const struct core *c);
pid_t core_worker_pid(const struct core *c); /* 0 = a thread, or no worker */
/* Assert every invariant, the scheduler's too. In trees with tests core_step does it. Cost:
 * O(requests + blocks). */
void core_check(const struct core *c);

#endif
