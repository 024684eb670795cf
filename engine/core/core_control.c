/* SPDX-License-Identifier: Apache-2.0 */
/* Control of a core by an operator or a training loop: sleep, pause, reload.
 *
 * Each of these is pending until no step is in flight; core_control checks this after every settled
 * step. The mode of a pause or reload (enum in_flight_mode) determines the treatment of started
 * requests. With IN_FLIGHT_WAIT the scheduler is closed and only started requests continue, until
 * all have finished; with IN_FLIGHT_ABORT they end when the control message arrives. */
#include <stdio.h>
#include <string.h>
#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/core/grammar_compiler.h"
#include "engine/core/core_internal.h"
#include "engine/core/fingerprint.h"

/* Requests that have begun and not ended. */
static uint32_t n_begun(const struct core *c)
{
    struct scheduler_stats s;
    core_stats(c, &s);
    return s.n_begun;
}

static bool in_flight(const struct core *c)
{
    return c->ring && c->state == CORE_READY && ring_in_flight(c->ring);
}

/* True if the scheduler finishes started requests and starts no others. */
static bool draining(const struct core *c)
{
    return (c->pausing && c->pause_mode == IN_FLIGHT_WAIT) ||
           (c->reload.state == RELOAD_WANTED && c->reload.mode == IN_FLIGHT_WAIT);
}

static void set_closed(struct core *c)
{
    if (c->scheduler)
        scheduler_close(c->scheduler, draining(c));
}

bool core_may_plan(const struct core *c)
{
    if (c->sleep_level || c->reload.state == RELOAD_ORDERED || core_adapters_waiting(c->adapters))
        return false;
    if (c->pausing && c->pause_mode != IN_FLIGHT_WAIT)
        return false;
    return c->reload.state != RELOAD_WANTED || c->reload.mode == IN_FLIGHT_WAIT;
}

void core_end_all(struct core *c, const struct q_err *why)
{
    const struct scheduler_output end = {
        .finish = why ? FINISH_ERROR : FINISH_ABORT,
        .code = why ? why->code : Q_OK,
        .why = why,
    };
    struct scheduler_output o;
    while (c->scheduler && scheduler_end_next(c->scheduler, &o)) {
        o.finish = end.finish;
        o.code = end.code;
        o.why = why;
        core_give(c, NULL, &o, 1);
    }
    o = end;
    while (grammar_compiler_abort_next(c->grammar_compiler, &o.frontend_id, &o.req_id))
        core_give(c, NULL, &o, 1);
    for (struct item_owner owner; c->intake && item_intake_abort_next(c->intake, &owner);) {
        o.frontend_id = owner.frontend_id;
        o.req_id = owner.req_id;
        c->sink(c->sink_ctx, NULL, &o, 1); /* its items go when the thread has ended with them */
    }
}

/* sleep */

FALLIBLE core_sleep(struct core *c, uint32_t level, struct q_err *e)
{
    if (level != 1 && level != 2)
        return q_fail(
            e, Q_INVALID,
            "sleep: level is %u, expected 1 (frees the KV cache) or 2 (also frees the weights)",
            level);
    if (c->state == CORE_LOADING || c->state == CORE_FAILED)
        return q_fail(e, Q_UNAVAILABLE, "sleep: the engine %s",
                      c->state == CORE_LOADING ? "is loading" : "has failed");
    if (level > c->sleep_level)
        c->sleep_level = level;
    return Q_OK;
}

void core_wake(struct core *c)
{
    if (!c->sleep_level)
        return;
    c->waking = !c->ring && c->slept_level;
    c->sleep_level = c->slept_level = 0;
    if (!c->ring)
        c->restart_at_ms = clock_ms();
    log_info("sleep mode ended");
}

bool core_sleeping(const struct core *c)
{
    return c->slept_level && c->slept_level == c->sleep_level &&
           !(c->ring && ring_commanding(c->ring));
}

uint32_t core_sleep_level(const struct core *c)
{
    return core_sleeping(c) ? c->slept_level : 0;
}

/* Sequences go back to the queue, since their keys and values go; nothing is in flight. */
static void fall_asleep(struct core *c)
{
    Q_ASSERT(c->ring && c->scheduler && !in_flight(c));
    if (c->slept_level == 0)
        scheduler_worker_lost(c->scheduler);
    if (c->sleep_level == 1) {
        ring_command(c->ring, RING_FORGET_KV, NULL);
    } else {
        core_end_worker(c, 0);
        c->state = CORE_RESTARTING; /* as far as it has no worker, which core_wake starts */
    }
    c->slept_level = c->sleep_level;
    log_info("sleep mode entered at level %u", c->sleep_level);
}

/* pause */

void core_pause(struct core *c, enum in_flight_mode mode, bool clear_cache)
{
    static const char *const texts[IN_FLIGHT_MODES] = {
        [IN_FLIGHT_KEEP] = "requests are suspended",
        [IN_FLIGHT_ABORT] = "requests are aborted",
        [IN_FLIGHT_WAIT] = "running requests finish first",
    };
    Q_ASSERT(mode < IN_FLIGHT_MODES);
    log_info("pausing generation; %s", texts[mode]);
    c->pausing = true;
    c->pause_mode = mode;
    c->clear_cache = clear_cache;
    set_closed(c);
    if (mode == IN_FLIGHT_ABORT)
        core_end_all(c, NULL);
}

void core_resume(struct core *c)
{
    if (c->pausing)
        log_info("generation resumed");
    c->pausing = c->clear_cache = false;
    set_closed(c);
}

bool core_pausing(const struct core *c)
{
    return c->pausing;
}

bool core_refusing(const struct core *c)
{
    return c->pausing && c->pause_mode != IN_FLIGHT_KEEP;
}

bool core_paused(const struct core *c)
{
    return c->pausing && !in_flight(c) && !(c->pause_mode == IN_FLIGHT_WAIT && n_begun(c));
}

/* reload */

static FALLIBLE may_reload(const struct core *c, enum in_flight_mode mode, struct q_err *e)
{
    bool stands = c->pausing && c->pause_mode != IN_FLIGHT_WAIT;
    if (c->state == CORE_LOADING || c->state == CORE_FAILED)
        return q_fail(e, Q_UNAVAILABLE, "reload: the engine %s",
                      c->state == CORE_LOADING ? "is loading" : "has failed");
    if (!c->ring && c->slept_level != 2)
        return q_fail(e, Q_UNAVAILABLE, "reload: the worker is being restarted; retry later");
    if (c->reload.state != RELOAD_NONE)
        return q_fail(e, Q_UNAVAILABLE, "reload: another reload is in progress; retry later");
    if (mode == IN_FLIGHT_WAIT && n_begun(c) && (stands || c->sleep_level))
        return q_fail(e, Q_INVALID,
                      "mode: \"wait\" is not possible: %u running requests cannot finish while the "
                      "engine %s; resume it first, or use keep or abort",
                      n_begun(c), stands ? "is paused" : "is in sleep mode");
    return Q_OK;
}

/* The frontends keep their tokenizer. */
static void warn_of_tokenizer(const struct core *c, const char *dir)
{
    static const char name[] = "tokenizer.json";
    char mine[PATH_MAX], other[PATH_MAX];
    struct mapping a = MAPPING_INIT, b = MAPPING_INIT;
    struct q_err e = Q_ERR_INIT;
    if (!path_join(mine, sizeof mine, c->config.worker.model_dir, name, &e) &&
        !path_join(other, sizeof other, dir, name, &e) && file_exists(mine) && file_exists(other) &&
        !mapping_open(&a, mine, &e) && !mapping_open(&b, other, &e) &&
        (a.size != b.size || memcmp(a.data, b.data, a.size) != 0))
        log_warning("%s differs from the current tokenizer, which remains in use", other);
    mapping_release(&a);
    mapping_release(&b);
}

const char *core_weights_dir(const struct core *c)
{
    const struct worker_config *w = &c->config.worker;
    return *w->weights_dir ? w->weights_dir : w->model_dir;
}

FALLIBLE core_reload(struct core *c, const char *dir, enum in_flight_mode mode, struct q_err *e)
{
    const struct worker_config *w = &c->config.worker;
    const char *now = core_weights_dir(c);
    Q_ASSERT(dir && mode < IN_FLIGHT_MODES);
    enum q_code rc = may_reload(c, mode, e);
    if (rc)
        return rc;
    if (!*dir)
        dir = now;
    if (strlen(dir) >= sizeof c->reload.dir)
        return q_fail(e, Q_INVALID, "weights_path: the path is too long");
    const struct model_options o = {
        .dir = w->model_dir,
        .weights_dir = dir,
        .dtype = c->info.shape.compute_dtype,
    };
    if ((rc = model_check_weights(&c->model, &o, e)))
        return rc;
    if (dir != now)
        warn_of_tokenizer(c, dir);
    snprintf(c->reload.dir, sizeof c->reload.dir, "%s", dir);
    c->reload.mode = mode;
    c->reload.state = RELOAD_WANTED;
    set_closed(c);
    if (mode == IN_FLIGHT_ABORT)
        core_end_all(c, NULL);
    return Q_OK;
}

/* All later steps are computed with the new weights. */
static enum q_code take_weights(struct core *c, struct q_err *e)
{
    struct worker_config *w = &c->config.worker;
    snprintf(w->weights_dir, sizeof w->weights_dir, "%s", c->reload.dir);
    if (w->format == LOAD_DUMMY)
        w->format = LOAD_AUTO;
    const enum q_code rc = core_note_weights(c, e);
    return rc ? rc : fingerprint_make(c->info.fingerprint, w, &c->worker_info, NULL, e);
}

static void end_reload(struct core *c, const struct q_err *why)
{
    struct q_err e = Q_ERR_INIT;
    Q_ASSERT(c->reload.state == RELOAD_WANTED || c->reload.state == RELOAD_ORDERED);
    Q_ASSERT(!why || why->code != Q_OK);
    if (why)
        e = *why;
    else if (take_weights(c, &e))
        log_warning("%s", e.message); /* they are loaded all the same */
    if (why)
        log_warning("reload failed, keeping the current weights: %s", why->message);
    else
        log_info("reload finished: weights of %s, %s", c->reload.dir, c->info.fingerprint);
    if (!why)
        core_record_begin(c);
    c->reload.result = why ? *why : (struct q_err)Q_ERR_INIT;
    c->reload.state = RELOAD_OVER;
    set_closed(c);
}

/* No step is in flight. No sequence may continue with keys and values of the old weights: all
 * sequences leave the pool, and the prefix cache is cleared. */
static void begin_reload(struct core *c)
{
    Q_ASSERT(c->reload.state == RELOAD_WANTED && c->scheduler && !in_flight(c));
    scheduler_worker_lost(c->scheduler);
    if (c->ring) {
        ring_command(c->ring, RING_RELOAD, c->reload.dir);
        c->reload.state = RELOAD_ORDERED;
        set_closed(c);
    } else {
        end_reload(c, NULL); /* asleep: the next worker reads them */
    }
}

bool core_take_reload(struct core *c, struct q_err *result)
{
    if (c->reload.state != RELOAD_OVER)
        return false;
    *result = c->reload.result;
    c->reload.state = RELOAD_NONE;
    return true;
}

bool core_reloading(const struct core *c)
{
    return c->reload.state != RELOAD_NONE;
}

void core_control_lost(struct core *c, const struct q_err *why)
{
    struct q_err e = Q_ERR_INIT;
    if (c->reload.state != RELOAD_ORDERED)
        return;
    q_fail(&e, Q_INTERNAL,
           "the worker crashed while loading the new weights (%s); the previous weights are loaded "
           "again",
           why->message);
    end_reload(c, &e);
}

/* Load and drop adapters. The requests of one that cannot be loaded end. */
static void step_adapters(struct core *c)
{
    struct q_err why = Q_ERR_INIT, reason = Q_ERR_INIT;
    struct scheduler_output o;
    uint32_t failed;
    core_adapters_step(c->adapters, c->ring, c->scheduler, &failed, &why);
    if (failed)
        q_fail_text(&reason, why.code, "the adapter could not be loaded: %s", why.message);
    while (failed && scheduler_end_adapter(c->scheduler, failed, &o)) {
        o.why = &reason;
        o.code = why.code;
        core_give(c, NULL, &o, 1);
    }
}

FALLIBLE core_load_adapter(struct core *c, const struct adapter_module *m, bool in_place,
                           struct q_err *e)
{
    return core_adapters_load(c->adapters, m, in_place, e);
}

FALLIBLE core_unload_adapter(struct core *c, const char *name, struct q_err *e)
{
    return core_adapters_unload(c->adapters, name, e);
}

const struct buf *core_adapter_list(const struct core *c, uint64_t *n_change)
{
    return core_adapters_list(c->adapters, n_change);
}

void core_control(struct core *c)
{
    struct q_err e = Q_ERR_INIT;
    bool quiet = !in_flight(c) && !(c->ring && ring_commanding(c->ring));
    if (!quiet)
        return;
    if (c->reload.state == RELOAD_ORDERED)
        end_reload(c, ring_command_result(c->ring, &e) ? &e : NULL);
    if (c->reload.state == RELOAD_WANTED && !(c->reload.mode == IN_FLIGHT_WAIT && n_begun(c)))
        begin_reload(c);
    else if (c->ring && c->slept_level < c->sleep_level)
        fall_asleep(c);
    if (c->ring && c->state == CORE_READY && !ring_commanding(c->ring))
        step_adapters(c);
    if (c->clear_cache && core_paused(c)) {
        core_reset_prefix_cache(c);
        c->clear_cache = false;
    }
}
