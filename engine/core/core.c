/* SPDX-License-Identifier: Apache-2.0 */
/* One epoll descriptor holds the ring's eventfd and the worker's pidfd, so that any loop can watch
 * a core with one descriptor. States:
 *
 *     LOADING --ready--> READY --death--> RESTARTING --ready--> READY
 *        |                                    |
 *        +-- the worker reports an error -----+-- CORE_RESTARTS_MAX deaths in a row --> FAILED
 *
 * A death while LOADING is retried like a death while running. The scheduler is made when the first
 * worker is ready (its sizes are not known before) and outlives workers: a new worker must make the
 * same number of blocks and have the same shape. If a worker cannot compute a step (result.error),
 * engine and worker disagree about the state of the slots; the core then restarts the worker, which
 * rebuilds that state. It also kills and restarts a worker whose step takes longer than
 * worker_timeout_s. The scheduler finds the request that killed the worker
 * (engine/sched/scheduler_suspect.c). Each culprit resets the count of deaths, at most
 * CORE_CULPRITS_MAX times without a finished step; after that the machine is at fault and the core
 * fails.
 *
 * A death is held against requests only if the worker had begun a step and was not ended from
 * outside (common/death.h); so is a step that takes too long only if the worker was not stopped. A
 * worker that cannot even be started (no process, no memory, its program is being replaced) is
 * tried again for some START_TRIES_MAX times. */
#include "engine/core/core.h"
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/core/grammar_compiler.h"
#include "engine/core/core_internal.h"
#include "engine/core/fingerprint.h"
#include "engine/model/forward/rotary.h"
#include "engine/worker/sample.h"

#define BACKOFF_MIN_MS   50
#define BACKOFF_MAX_MS   2000
#define START_TRIES_MAX  20   /* 30 s with that back-off */
#define PERCENT_EVERY_MS 1000 /* of log lines while loading */
#define LATE_MS          100 /* a loop that comes so late to a hang perhaps did not run meanwhile */

static_assert(CORE_FINGERPRINT_MAX == FINGERPRINT_MAX, "one size");
static_assert(RING_DEPTH == SCHEDULER_IN_FLIGHT_MAX,
              "the ring holds what the scheduler may have in flight");

FALLIBLE core_watch(struct core *c, int fd, struct q_err *e)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};
    if (fd >= 0 && epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &ev))
        return q_fail(e, Q_IO, "engine: epoll: %s", strerror(errno));
    return Q_OK;
}

/* The last planned step may still read them. */
static uint64_t last_step(const struct core *c)
{
    struct scheduler_stats s;
    core_stats(c, &s);
    return s.step;
}

static void release_items(struct core *c, uint32_t frontend_id, uint64_t req_id)
{
    if (core_items_any(&c->items))
        item_store_drop(&c->items.store, (struct item_owner){frontend_id, req_id}, last_step(c));
}

void core_give(struct core *c, const struct step_result *result,
               const struct scheduler_output *outputs, uint32_t n)
{
    /* The sink may submit: before it, what it submits cannot be taken for what ended. */
    for (uint32_t i = 0; i < n; i++)
        if (outputs[i].finish != FINISH_NONE)
            release_items(c, outputs[i].frontend_id, outputs[i].req_id);
    c->sink(c->sink_ctx, result, outputs, n);
}

void core_end_worker(struct core *c, int timeout_ms)
{
    worker_process_end(&c->worker,
                       timeout_ms); /* closes its pidfd, which leaves the epoll set by that */
    ring_free(c->ring);
    c->ring = NULL;
    core_adapters_lost(c->adapters);
}

static FALLIBLE start_worker(struct core *c, struct q_err *e)
{
    enum q_code rc;
    Q_ASSERT(!c->ring && !c->worker.pid && !c->worker.has_thread);
    if ((rc = ring_new(&c->ring, &c->config.worker, e)) ||
        (rc = ring_share_items(c->ring, c->items.store.fd, e)) ||
        (rc = core_watch(c, ring_event_fd(c->ring), e)))
        goto out;
    if (c->config.in_process)
        rc = worker_process_start_thread(&c->worker, c->ring, e);
    else
        rc = worker_process_start(&c->worker, c->ring, c->config.worker_program, e);
    if (!rc)
        rc = core_watch(c, c->worker.pid_fd, e);
out:
    if (rc)
        core_end_worker(c, 0);
    return rc;
}

static FALLIBLE open_items(struct core *c, struct q_err *e)
{
    const struct core_item_config *config = &c->config.items;
    enum q_code rc = core_items_open(&c->items, config, &c->config.worker, e);
    if (rc || !core_items_any(&c->items))
        return rc;
    c->info.n_modality = c->items.modalities->n;
    c->info.store_bytes = c->items.store.n_byte;
    c->config.worker.item_mib = (uint32_t)(c->items.store.n_byte >> 20);
    return Q_OK;
}

static FALLIBLE read_pooling(struct core *c, struct q_err *e)
{
    const struct worker_config *w = &c->config.worker;
    const struct pooling_options o = {w->runner, w->convert, w->pooler};
    const enum q_code rc = pooling_read(&c->pooling, &c->model, w->model_dir, &o, e);
    c->model.pools = !rc && c->pooling.makes != ARCHS_GENERATES; /* a reload needs no head */
    c->model.pooling = c->pooling.kind;
    return rc;
}

static FALLIBLE open_adapters(struct core *c, struct q_err *e)
{
    const struct core_adapters_args args = {&c->config.adapters, &c->config.worker, &c->model,
                                            c->recorder};
    return core_adapters_new(&c->adapters, &args, e);
}

FALLIBLE core_new(struct core **out, const struct core_config *config, core_sink *sink, void *ctx,
                  struct q_err *e)
{
    Q_ASSERT(out && config && sink && *config->worker.model_dir);
    struct core *c = q_calloc(1, sizeof *c);
    enum q_code rc;
    if (!c)
        return q_fail(e, Q_NO_MEMORY, "engine: out of memory");
    c->config = *config;
    c->sink = sink;
    c->sink_ctx = ctx;
    c->worker = (struct worker_process)WORKER_PROCESS_INIT;
    c->percent_logged_ms = clock_ms();
    c->items = (struct core_items)CORE_ITEMS_INIT;
    c->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    rc = c->epoll_fd < 0 ? q_fail(e, Q_IO, "engine: epoll: %s", strerror(errno)) : Q_OK;
    if (!rc && config->trace_path)
        rc = trace_new(&c->traces[0], config->trace_path, e);
    if (!rc)
        rc = model_config_load(&c->model, &c->generation, config->worker.model_dir, e);
    if (!rc)
        rc = read_pooling(c, e);
    if (!rc)
        rc = open_items(c, e);
    if (!rc)
        rc = core_record_open(c, e);
    if (!rc)
        rc = open_adapters(c, e);
    if (!rc && !(rc = grammar_compiler_new(&c->grammar_compiler, true, e)))
        rc = core_watch(c, grammar_compiler_fd(c->grammar_compiler), e);
    if (!rc)
        rc = start_worker(c, e);
    if (rc)
        core_free(c);
    else
        *out = c;
    return rc;
}

void core_free(struct core *c)
{
    if (!c)
        return;
    core_end_worker(c,
                    c->state == CORE_READY ? CORE_END_MS : 0); /* a load is not worth waiting for */
    scheduler_free(c->scheduler);
    grammar_compiler_free(c->grammar_compiler);
    const bool is_used = item_intake_abandoned(c->intake); /* by its thread: the store, too */
    item_intake_free(c->intake);
    if (!is_used)
        core_items_release(&c->items);
    pooling_release(&c->pooling);
    core_adapters_free(c->adapters);
    q_free(c->config.adapters.modules);
    core_trace_lost(c);
    for (int i = 0; i < CORE_TRACES; i++)
        trace_free(c->traces[i]);
    recorder_free(c->recorder);
    q_free(c->outputs);
    if (c->epoll_fd >= 0)
        close(c->epoll_fd);
    q_free(c);
}

static enum q_code fail_core(struct core *c, const struct q_err *why, bool died)
{
    Q_ASSERT(why->code != Q_OK && c->state != CORE_FAILED);
    c->state = CORE_FAILED;
    c->failure = *why;
    c->worker_died = died;
    core_end_worker(c, 0);
    return c->failure.code;
}

static enum q_code give_up(struct core *c, const char *what, uint32_t n, const struct q_err *why,
                           struct q_err *e)
{
    struct q_err all = Q_ERR_INIT;
    q_fail(&all, Q_UNAVAILABLE, "%s %u times in a row; last error: %s", what, n, why->message);
    *e = all;
    return fail_core(c, &all, true);
}

/* One request that the worker always dies of ends here. */
static void end_culprit(struct core *c, struct scheduler_output *culprit, const struct q_err *why)
{
    struct q_err reason = Q_ERR_INIT;
    q_fail(&reason, Q_INTERNAL,
           "the worker crashed each time it computed this request; last error: %s", why->message);
    log_error("request %llu of frontend %u failed: %s", (unsigned long long)culprit->req_id,
              culprit->frontend_id, reason.message);
    culprit->why = &reason;
    c->n_death = 0;
    c->n_culprit++;
    core_give(c, NULL, culprit, 1);
}

static int64_t backoff_ms(uint32_t n)
{
    const int64_t wait_ms = BACKOFF_MIN_MS << (n < 10 ? n : 10);
    return wait_ms < BACKOFF_MAX_MS ? wait_ms : BACKOFF_MAX_MS;
}

/* No worker could be started in place of one that ended. */
static FALLIBLE start_failed(struct core *c, const struct q_err *why, struct q_err *e)
{
    if (++c->n_start_failure > START_TRIES_MAX)
        return give_up(c, "the worker could not be started", c->n_start_failure, why, e);
    const int64_t wait_ms = backoff_ms(c->n_start_failure);
    log_warning("%s; trying again in %lld ms", why->message, (long long)wait_ms);
    c->restart_at_ms = clock_ms() + wait_ms;
    return Q_OK;
}

/* The worker is lost: discard its steps and schedule a restart. is_blamed: by what it computed. */
static FALLIBLE worker_lost(struct core *c, const struct q_err *why, bool is_blamed,
                            struct q_err *e)
{
    struct scheduler_output culprit;
    core_end_worker(c, 0);
    c->going = false;
    core_trace_lost(c);
    core_control_lost(c, why);
    c->n_death++;
    if (c->scheduler && !is_blamed)
        scheduler_worker_lost(c->scheduler);
    else if (c->scheduler && scheduler_worker_died(c->scheduler, &culprit))
        end_culprit(c, &culprit, why);
    if (c->n_death > CORE_RESTARTS_MAX)
        return give_up(c, "the worker crashed", c->n_death, why, e);
    if (c->n_culprit > CORE_CULPRITS_MAX)
        return give_up(c, "requests crashed the worker", c->n_culprit, why, e);
    int64_t wait_ms = c->n_death ? backoff_ms(c->n_death - 1) : 0;
    if (c->n_death == 1 && c->scheduler)
        wait_ms = 0; /* requests are waiting */
    log_warning("%s; restarting it in %lld ms", why->message, (long long)wait_ms);
    c->restart_at_ms = clock_ms() + wait_ms;
    if (c->state == CORE_READY)
        c->state = CORE_RESTARTING;
    return Q_OK;
}

/* Draft tokens for sequences with a grammar. A draft model proposes itself. */
static uint32_t forced_max(const struct core_config *c)
{
    bool drafts = c->worker.speculation.method == SPECULATE_DRAFT;
    return drafts || c->no_jump_forward ? 0 : SCHEDULER_DRAFT_TOKENS_MAX;
}

FALLIBLE core_note_weights(struct core *c, struct q_err *e)
{
    const struct worker_config *w = &c->config.worker;
    if (w->format == LOAD_DUMMY)
        return Q_OK;
    return weights_identity(c->weights_id, *w->weights_dir ? w->weights_dir : w->model_dir, e);
}

const unsigned char *core_weights_identity(const struct core *c)
{
    return c->weights_id;
}

/* A worker has loaded the weights again. If they are others, no request may continue with them, nor
 * a cached prefix. */
static FALLIBLE check_weights(struct core *c, struct q_err *e)
{
    struct q_err why = Q_ERR_INIT;
    struct scheduler_output o;
    unsigned char before[WEIGHTS_IDENTITY_BYTES];
    memcpy(before, c->weights_id, sizeof before);
    core_record_worker(c);
    enum q_code rc = core_note_weights(c, e);
    if (rc)
        memcpy(c->weights_id, before, sizeof before); /* they could not be read: not known */
    if (rc || !memcmp(before, c->weights_id, sizeof before))
        return rc;
    if ((rc = fingerprint_make(c->info.fingerprint, &c->config.worker, &c->worker_info,
                               c->weights_id, e)))
        return rc;
    log_warning("the weights in %s have changed on disk: open requests end with an error; %s",
                core_weights_dir(c), c->info.fingerprint);
    q_fail(&why, Q_MISMATCH,
           "the model's weights changed on disk and were loaded again: the answer cannot go on; "
           "send the request again");
    core_record_begin(c);
    scheduler_reset_prefix_cache(c->scheduler);
    while (scheduler_end_next(c->scheduler, &o)) {
        o.finish = FINISH_ERROR;
        o.code = why.code;
        o.why = &why;
        core_give(c, NULL, &o, 1);
    }
    return Q_OK;
}

static FALLIBLE first_ready(struct core *c, const struct worker_info *info, struct q_err *e)
{
    enum q_code rc;
    Q_ASSERT(c->state == CORE_LOADING && !c->outputs);
    c->worker_info = *info;
    c->info.shape = info->shape;
    c->info.limits = info->limits;
    c->info.n_block = info->n_block;
    c->info.n_swap_block = info->n_swap_block;
    const char *plugin = plugins_text(c->model.architecture);
    if (*plugin)
        q_fail_text(&c->bad_logits, Q_INTERNAL,
                    "the model's logits are NaN or infinite: plugin %s gives its architecture %s, "
                    "with the operations and rows of items that are in it",
                    plugin, c->model.architecture);
    if ((rc = core_note_weights(c, e)))
        return rc;
    const bool changed = c->config.has_weights_before &&
                         memcmp(c->config.weights_before, c->weights_id, sizeof c->weights_id) != 0;
    if ((rc = fingerprint_make(c->info.fingerprint, &c->config.worker, info,
                               changed ? c->weights_id : NULL, e)))
        return rc;
    const size_t n_output = (size_t)info->limits.logit_rows_max + info->limits.max_num_seqs;
    c->outputs = q_calloc(n_output, sizeof *c->outputs);
    if (!c->outputs)
        return q_fail(e, Q_NO_MEMORY, "engine: out of memory for %zu outputs", n_output);
    const struct speculation *draft_tokens = &c->config.worker.speculation;
    bool may_trace = c->config.trace_path || c->config.profiler_dir;
    struct scheduler_config sc = {
        .limits = info->limits,
        .n_block = info->n_block,
        .n_swap_block = info->n_swap_block,
        .queue_max = c->config.queue_max,
        .queue_token_max = c->config.queue_token_max,
        .policy = c->config.policy,
        .decided = may_trace ? core_trace_decided : NULL,
        .decided_ctx = c,
        .vocab_size = info->shape.vocab_size,
        .eos_ids = c->model.eos_ids,
        .n_eos = c->model.n_eos,
        .n_draft_token = draft_tokens->method == SPECULATE_NOT ? 0 : draft_tokens->n_draft_token,
        .n_forced = info->limits.n_state ? 0 : forced_max(&c->config),
        .prefix_cache = c->config.prefix_cache,
        .whole_prompts = core_whole_prompts(c),
        .prompt_free_len = rotary_free_length(&c->model),
        .max_loras = c->config.adapters.max_loras,
        .adapter_ready = c->adapters ? core_adapters_ready : NULL,
        .adapter_ctx = c->adapters,
    };
    for (uint32_t i = 0; core_items_any(&c->items) && i < c->items.modalities->n; i++)
        sc.item_rows_max[i] = modality_rows_of_step(c->items.modalities, i);
    c->cost.n_param = info->shape.n_param;
    c->config.worker.n_block = info->n_block; /* workers to come make the same pools */
    c->config.worker.n_swap_block = info->n_swap_block;
    c->config.worker.n_state = info->limits.n_state;
    c->config.worker.is_again = true;
    core_record_begin(c);
    return scheduler_new(&c->scheduler, &sc, e);
}

/* A worker could not be loaded. In place of one that had been, it is tried again: what the machine
 * lacks now (memory, descriptors) it may have soon. */
static FALLIBLE load_failed(struct core *c, struct q_err *e)
{
    const struct q_err why = *e;
    if (c->state != CORE_RESTARTING || (why.code != Q_IO && why.code != Q_NO_MEMORY))
        return fail_core(c, e, false);
    q_err_reset(e);
    return worker_lost(c, &why, false, e);
}

static FALLIBLE worker_ready(struct core *c, struct q_err *e)
{
    struct worker_info info;
    enum q_code rc = ring_attach(c->ring, &info, e);
    if (!rc && !c->scheduler)
        rc = first_ready(c, &info, e);
    else if (!rc && (info.n_block != c->info.n_block || info.n_swap_block != c->info.n_swap_block ||
                     memcmp(&info.limits, &c->info.limits, sizeof info.limits) != 0 ||
                     info.shape.n_param != c->info.shape.n_param))
        rc = q_fail(
            e, Q_MISMATCH,
            "engine: the model's files have changed since the engine started; restart the engine");
    else if (!rc)
        rc = check_weights(c, e);
    if (rc)
        return load_failed(c, e);
    c->step_bytes = info.step_bytes;
    c->result_bytes = info.result_bytes;
    if (c->state == CORE_RESTARTING) {
        c->n_restart += !c->waking;
        log_info("the worker is running again");
    }
    c->waking = false;
    c->state = CORE_READY;
    return Q_OK;
}

/* While a worker is loading. */
static FALLIBLE step_loading(struct core *c, struct q_err *e)
{
    uint32_t percent;
    enum worker_state state = ring_state(c->ring, &percent, e);
    if (state == WORKER_FAILED)
        return load_failed(c, e);
    if (state == WORKER_READY)
        return worker_ready(c, e);
    if (clock_ms() - c->percent_logged_ms > PERCENT_EVERY_MS) {
        c->percent_logged_ms = clock_ms();
        log_info("loading %u %%", percent);
    }
    return Q_OK;
}

/* Rows that could not be sampled: their requests end with an error; the others continue. */
static void end_bad_rows(struct core *c, uint32_t n)
{
    static const struct q_err no_token = {
        Q_INVALID, "no token is allowed next: the grammar, allowed_token_ids, bad_words, "
                   "min_tokens and no_repeat_ngram_size together exclude all tokens"};
    for (uint32_t i = 0; i < n; i++) {
        struct scheduler_output *o = &c->outputs[i];
        if ((!o->has_token && !o->has_vector) || !sample_failed(o->row))
            continue;
        if (o->row->rank == SAMPLE_EMPTY) {
            log_info("request %llu failed: %s", (unsigned long long)o->req_id, no_token.message);
            o->why = &no_token;
        } else {
            log_error("request %llu failed: the model's logits are NaN or infinite",
                      (unsigned long long)o->req_id);
            o->why = c->bad_logits.code ? &c->bad_logits : NULL;
        }
        scheduler_abort(c->scheduler, o->frontend_id, o->req_id);
        o->has_token = o->has_vector = false;
        o->finish = FINISH_ERROR;
    }
}

/* Requests that the worker could not compute: each ends with the reason, the others continue.
 * Returns how many outputs are left. */
static uint32_t end_noted(struct core *c, const struct step_result *result, uint32_t n)
{
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct scheduler_output o = c->outputs[i];
        struct q_err reason = Q_ERR_INIT;
        if (!o.note) {
            c->outputs[n_left++] = o;
            continue;
        }
        q_fail_text(&reason, Q_INTERNAL, "the request could not be computed: %s", o.note->text);
        log_error("request %llu of frontend %u failed: %s", (unsigned long long)o.req_id,
                  o.frontend_id, o.note->text);
        o.why = &reason;
        core_give(c, result, &o, 1);
    }
    return n_left;
}

static FALLIBLE settle_step(struct core *c, void *memory, struct q_err *e)
{
    struct step_result result;
    uint32_t n = 0;
    enum q_code rc = step_result_view(&result, memory, c->result_bytes, &c->info.limits, e);
    if (rc)
        return rc;
    if (result.head->error)
        return q_fail(e, Q_INTERNAL, "engine: the worker could not compute step %llu (%s)",
                      (unsigned long long)result.head->step,
                      q_code_name((enum q_code)result.head->error));
    int64_t start_us = clock_us();
    if ((rc = scheduler_settle(c->scheduler, &result, start_us, c->outputs, &n, e)))
        return rc;
    Q_ASSERT(n <= c->info.limits.logit_rows_max + c->info.limits.max_num_seqs); /* its room */
    core_note_finishes(c, n, start_us);
    core_record_step(c, &result);
    int64_t settled_us = core_tracing(c) ? clock_us() : 0;
    if (c->follows[result.head->step % RING_DEPTH] && result.head->gap_us != STEP_NO_GAP) {
        c->n_gap++;
        c->gap_us += result.head->gap_us;
    }
    c->n_death = c->n_culprit = 0;
    step_cost_note(&c->cost, c->work[result.head->step % RING_DEPTH],
                   (clock_ms() - c->step_since_ms) * 1000);
    c->step_since_ms = clock_ms();
    c->oldest_step = result.head->step + 1;
    n = end_noted(c, &result, n);
    end_bad_rows(c, n);
    if (n)
        core_give(c, &result, c->outputs, n);
    core_trace_settled(c, result.head, start_us, settled_us);
    ring_result_take(c->ring);
    return Q_OK;
}

/* Plan and send steps while the ring has room. */
static FALLIBLE plan(struct core *c, struct q_err *e)
{
    void *space;
    bool planned = true;
    Q_ASSERT(c->state == CORE_READY && core_may_plan(c) && !ring_commanding(c->ring));
    while (planned && core_may_plan(c) && (space = ring_step_space(c->ring))) {
        int64_t start_us = clock_us();
        enum q_code rc = scheduler_plan(c->scheduler, space, c->step_bytes, start_us, &planned, e);
        if (rc)
            return rc;
        if (!planned)
            break;
        struct step_view v;
        if ((rc = step_view(&v, space, c->step_bytes, &c->info.limits, e)))
            return rc;
        if (ring_in_flight(c->ring) == 0) {
            c->step_since_ms = clock_ms();
            c->oldest_step = v.head->step;
        }
        c->work[v.head->step % RING_DEPTH] = step_cost_work(&v);
        core_trace_planned(c, space, start_us);
        c->follows[((const struct step_head *)space)->step % RING_DEPTH] = c->going;
        c->going = true;
        ring_step_send(c->ring);
    }
    return Q_OK;
}

static FALLIBLE settle_all(struct core *c, struct q_err *e)
{
    void *result;
    enum q_code rc = Q_OK;
    while (!rc && (result = ring_result_next(c->ring)))
        rc = settle_step(c, result, e);
    return rc;
}

/* The time that the oldest step in flight may take; 0 = no limit. */
static int64_t step_limit_ms(const struct core *c)
{
    const int64_t most_ms = (int64_t)c->config.worker_timeout_s * 1000;
    if (!c->config.stall_timeout_s)
        return most_ms;
    const int64_t limit_ms = step_cost_limit_us(&c->cost, c->work[c->oldest_step % RING_DEPTH],
                                                (int64_t)c->config.stall_timeout_s * 1000000) /
                             1000;
    return most_ms && most_ms < limit_ms ? most_ms : limit_ms;
}

/* When the step being computed will have taken too long; 0 = never. */
static int64_t step_due_ms(const struct core *c)
{
    if (c->state != CORE_READY || !c->worker.pid || ring_in_flight(c->ring) == 0)
        return 0;
    const int64_t limit_ms = step_limit_ms(c);
    return limit_ms ? c->step_since_ms + limit_ms : 0;
}

/* What kept this loop from running (a frozen container, SIGSTOP) perhaps kept the worker, too; and
 * a worker that ends does not hang, but its cause is not known before it has ended. The time of the
 * step begins again, once. */
static bool begin_again(struct core *c, int64_t late_ms)
{
    if (c->again_step == c->oldest_step ||
        (late_ms < LATE_MS && !worker_process_is_ending(&c->worker)))
        return false;
    c->again_step = c->oldest_step;
    c->step_since_ms = clock_ms();
    return true;
}

static FALLIBLE check_hang(struct core *c, struct q_err *e)
{
    const int64_t due = step_due_ms(c), now = clock_ms();
    if (!due || now < due || begin_again(c, now - due))
        return Q_OK;
    c->worker.from_outside = worker_process_was_stopped(&c->worker);
    return q_fail(e, Q_TIMEOUT,
                  "the worker (process %d)%s exceeded the step limit of %.1f s (--stall-timeout, "
                  "--worker-timeout) and was killed",
                  (int)c->worker.pid,
                  c->worker.from_outside ? " was stopped by a signal or a debugger," : "",
                  (double)step_limit_ms(c) / 1e3);
}

/* Is the end of the worker held against the step that it computes? */
static bool is_step_blamed(const struct core *c)
{
    return ring_computing(c->ring) && !c->worker.from_outside;
}

static FALLIBLE step_ready(struct core *c, struct q_err *e)
{
    struct q_err why = Q_ERR_INIT;
    if (settle_all(c, &why))
        return worker_lost(c, &why, true, e);
    if (check_hang(c, &why))
        return worker_lost(c, &why, is_step_blamed(c), e);
    core_control(c);
    if (core_may_plan(c) && plan(c, &why))
        return worker_lost(c, &why, true, e);
    if (core_adapters_waiting(c->adapters)) /* the plan has met one that is away */
        core_control(c);
    c->going = c->ring && ring_in_flight(c->ring) > 0; /* it may sleep now */
    return Q_OK;
}

/* Settle the steps that it finished before it died; the oldest remaining step is the one in which
 * it died. */
static FALLIBLE worker_ended(struct core *c, const struct q_err *why, struct q_err *e)
{
    struct q_err ignored = Q_ERR_INIT;
    if (c->state == CORE_READY && settle_all(c, &ignored))
        log_warning("%s", ignored.message);
    return worker_lost(c, why, is_step_blamed(c), e);
}

/* True if the worker's process has ended; clears the ring's eventfd if it is readable. */
static bool look_at_worker(struct core *c, struct q_err *why)
{
    struct epoll_event events[4];
    bool ended = false;
    int n = epoll_wait(c->epoll_fd, events, 4, 0);
    for (int i = 0; i < n; i++)
        if (events[i].data.fd == ring_event_fd(c->ring))
            ring_event_clear(c->ring);
        else if (events[i].data.fd != grammar_compiler_fd(c->grammar_compiler) &&
                 (!c->intake || events[i].data.fd != item_intake_fd(c->intake)))
            ended = worker_process_ended(&c->worker, why);
    return ended;
}

static void tell_end(const struct core *c, const struct scheduler_output *o, struct q_err *e)
{
    if (o->code == Q_TIMEOUT)
        q_fail(e, Q_TIMEOUT,
               "the request was not completed within %g seconds (--request-timeout of the server)",
               (double)c->config.policy.request_timeout_us / 1e6);
    else
        q_fail(e, o->code,
               "the queue is full (%u requests or the tokens of --max-num-queued-tokens), and this "
               "request was dropped because its API "
               "key or user has the most of them; retry later",
               c->config.queue_max);
}

/* Pass requests that the scheduler ended to the sink: evicted from the queue, or timed out at
 * now_us. */
void core_give_ends(struct core *c, int64_t now_us)
{
    struct scheduler_output o;
    while (c->scheduler && scheduler_deadline_us(c->scheduler) <= now_us &&
           scheduler_take_end(c->scheduler, now_us, &o)) {
        struct q_err why = Q_ERR_INIT;
        tell_end(c, &o, &why);
        if (o.finish == FINISH_ERROR)
            o.why = &why;
        core_give(c, NULL, &o, 1);
    }
}

FALLIBLE core_schedule(struct core *c, uint32_t frontend_id, const struct msg_submit *m,
                       struct q_err *e)
{
    if (m->adapter_id && !core_adapters_has(c->adapters, m->adapter_id))
        return q_fail(e, Q_NOT_FOUND, "adapter %.*s was unloaded", (int)m->adapter.n,
                      m->adapter.data);
    const enum q_code rc = core_admit(c, m, e);
    return rc ? rc : scheduler_submit(c->scheduler, frontend_id, m, clock_us(), e);
}

/* Submit requests whose grammar is compiled; requests with an invalid grammar end with its
 * error. */
static void take_compiled(struct core *c)
{
    struct compiled x;
    while (grammar_compiler_take(c->grammar_compiler, &x)) {
        struct scheduler_output o = {
            .frontend_id = x.frontend_id,
            .req_id = x.req_id,
            .why = &x.error,
        };
        core_items_put(&c->items, &x.submit, (struct item_owner){x.frontend_id, x.req_id});
        if (!x.error.code && !core_schedule(c, x.frontend_id, &x.submit, &x.error))
            continue;
        o.finish = FINISH_ERROR;
        o.code = x.error.code;
        core_give(c, NULL, &o, 1);
    }
}

static FALLIBLE step_now(struct core *c, struct q_err *e)
{
    struct q_err why = Q_ERR_INIT;
    enum q_code rc;
    if (c->state == CORE_FAILED) {
        *e = c->failure;
        return c->failure.code;
    }
    core_take_intake(c);
    if (core_check_intake(c, &why)) {
        item_intake_abandon(c->intake);
        *e = why;
        return fail_core(c, &why, false);
    }
    take_compiled(c);
    core_give_ends(c, clock_us());
    if (!c->ring) {
        c->slept_level = c->sleep_level; /* a worker that died needs no putting to sleep */
        core_control(c);
        if (c->sleep_level || clock_ms() < c->restart_at_ms)
            return Q_OK;
        if (start_worker(c, &why))
            return start_failed(c, &why, e);
        c->n_start_failure = 0;
    }
    bool ended = look_at_worker(c, &why);
    uint32_t percent;
    if (ended && (c->state == CORE_READY || ring_state(c->ring, &percent, NULL) != WORKER_FAILED))
        return worker_ended(c, &why, e);
    if (c->state != CORE_READY && (rc = step_loading(c, e)))
        return rc;
    return c->state == CORE_READY ? step_ready(c, e) : Q_OK;
}

FALLIBLE core_step(struct core *c, struct q_err *e)
{
    enum q_code rc = step_now(c, e);
    Q_ASSERT((c->state == CORE_FAILED) == (rc != Q_OK));
    Q_CHECK(core_check(c));
    return rc;
}

int core_fd(const struct core *c)
{
    return c->epoll_fd;
}

int core_wait_ms(const struct core *c)
{
    if (c->state == CORE_FAILED)
        return -1;
    bool resting = c->ring || c->sleep_level;
    int64_t due = c->ring ? step_due_ms(c) : resting ? 0 : c->restart_at_ms;
    const int64_t intake_ms = core_intake_due_ms(c);
    if (intake_ms && (!due || intake_ms < due))
        due = intake_ms;
    int64_t end_us = c->scheduler ? scheduler_deadline_us(c->scheduler) : INT64_MAX;
    if (end_us < INT64_MAX && (!due || end_us / 1000 + 1 < due))
        due = end_us / 1000 + 1;
    if (resting && !due)
        return -1;
    int64_t left = due - clock_ms();
    return left <= 0 ? 0 : left < INT_MAX ? (int)left : INT_MAX;
}

bool core_abort(struct core *c, uint32_t frontend_id, uint64_t req_id)
{
    if (c->intake && item_intake_abort(c->intake, (struct item_owner){frontend_id, req_id}))
        return true; /* its items go when the thread has ended with them */
    bool had = grammar_compiler_abort(c->grammar_compiler, frontend_id, req_id) ||
               (c->scheduler && scheduler_abort(c->scheduler, frontend_id, req_id));
    if (had)
        release_items(c, frontend_id, req_id);
    return had;
}

uint32_t core_abort_frontend(struct core *c, uint32_t frontend_id)
{
    uint32_t n = grammar_compiler_abort_frontend(c->grammar_compiler, frontend_id);
    n += c->intake ? item_intake_abort_frontend(c->intake, frontend_id) : 0;
    n += c->scheduler ? scheduler_abort_frontend(c->scheduler, frontend_id) : 0;
    if (core_items_any(&c->items))
        item_store_drop_frontend(&c->items.store, frontend_id, last_step(c));
    return n;
}

void core_reset_prefix_cache(struct core *c)
{
    if (c->scheduler)
        scheduler_reset_prefix_cache(c->scheduler);
}

bool core_preempt_last(struct core *c)
{
    return c->scheduler && scheduler_preempt_last(c->scheduler);
}
