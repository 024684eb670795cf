/* SPDX-License-Identifier: Apache-2.0 */
/* The supervisor of a simulated service, the faults, and its end. */
#include "service.h"
#include <signal.h>
#include <string.h>
#include "common/clock.h"
#include "common/death.h"
#include "common/metrics.h"
#include "common/options.h"
#include "events.h"
#include "frontend/cli/supervise.h"

#define NOTICE_US     50000 /* at most, from a death to its SIGCHLD … */
#define NOTICE_LATE   1000  /* … but in so many of 10000 cases */
#define NOTICE_MAX_US 2500000
#define PAUSE_US      25000000            /* a process is stopped for so long at most */
#define FAULT_US      1200000             /* mean time between faults is half of that */
#define QUIET_US      INT64_C(30000000)   /* after the last request; then nothing may be left */
#define BOUND_US      INT64_C(3600000000) /* of a run */
#define EVENTS_MAX    4000000u
#define LONG_STEP_US  40000
#define LONG          500 /* of 10000 services have an answer of half a minute or more */

struct service service;
static struct supervisor supervisor;
static struct options options; /* of the supervisor: shutdown_timeout alone is read */
static pid_t last_pid;
static uint64_t n_due;

pid_t service_new_pid(void)
{
    return ++last_pid;
}

/* ---- the supervisor's calls: wrapped by the linker, or in place of supervisor.c ---- */

uint64_t __wrap_death_oom_kills(void);
uint64_t __wrap_death_oom_kills(void)
{
    return 0;
}

bool __wrap_death_was_stopped(pid_t pid);
bool __wrap_death_was_stopped(pid_t pid)
{
    return engine_was_stopped(pid);
}

int __wrap_kill(pid_t pid, int signal);
int __wrap_kill(pid_t pid, int signal)
{
    if (supervisor.stopping)
        return 0;
    if (signal != SIGKILL)
        sim_fail("signal %d", signal);
    if (pid == supervisor.children[0].pid)
        engine_kill(SIGKILL);
    for (uint32_t i = 1; i < supervisor.n; i++)
        if (pid == supervisor.children[i].pid)
            frontend_kill(i - 1, SIGKILL);
    return 0;
}

FALLIBLE child_start(struct child *c, struct q_err *e)
{
    if (events_chance(service.start_fails))
        return q_fail(e, Q_IO, "cannot start %s: fork: no", c->name);
    c->pid = service_new_pid();
    c->started_ms = clock_ms();
    if (c->is_frontend)
        frontend_boot((uint64_t)c->pid, c->slot);
    else
        engine_boot((uint64_t)c->pid, c->death, (uint32_t)++c->n_start);
    return Q_OK;
}

static void due(uint64_t number, void *p);

/* It may give up only if a child failed more than SUPERVISE_FAILURES_MAX times in a row. */
static void check_stop(void)
{
    uint32_t n_most = 0;
    for (uint32_t i = 0; i < supervisor.n; i++)
        if (supervisor.children[i].n_failure > n_most)
            n_most = supervisor.children[i].n_failure;
    if (n_most <= SUPERVISE_FAILURES_MAX)
        sim_fail("the supervisor gives up after %u failures: exit code %d", n_most,
                 supervisor.exit_code);
    service.gave_up = true;
}

/* As often as its poll(2) would return. */
static void arm(void)
{
    const int wait_ms = supervise_wait_ms(&supervisor);
    if (supervisor.stopping) {
        check_stop();
        return;
    }
    n_due++;
    if (wait_ms >= 0)
        event_add(wait_ms * INT64_C(1000), due, n_due, NULL);
}

static void due(uint64_t number, void *p)
{
    (void)p;
    if (number != n_due)
        return;
    supervise_due(&supervisor);
    arm();
}

static void reap(uint64_t what, void *p)
{
    (void)p;
    supervise_death(&supervisor, (pid_t)(what >> 32), (int)(uint32_t)what);
    arm();
}

void service_died(pid_t pid, int status)
{
    event_add(events_pick(1, events_chance(NOTICE_LATE) ? NOTICE_MAX_US : NOTICE_US), reap,
              (uint64_t)pid << 32 | (uint32_t)status, NULL);
}

void service_hear(unsigned char byte)
{
    supervise_hear(&supervisor, byte);
    arm();
}

bool service_was_up(void)
{
    return supervisor.was_up;
}

static void begin_supervisor(void)
{
    memset(&supervisor, 0, sizeof supervisor);
    supervisor.options = &options;
    supervisor.n = 1 + service.n_frontend;
    for (uint32_t i = 0; i < supervisor.n; i++) {
        struct child *c = &supervisor.children[i];
        snprintf(c->name, sizeof c->name, i ? "frontend %u" : "engine", i);
        c->is_frontend = i > 0;
        c->slot = i ? i - 1 : 0;
    }
    supervise_start(&supervisor);
    arm();
}

/* ---- faults ---- */

enum fault {
    KILL_WORKER,
    KILL_ENGINE,
    KILL_BOTH,
    KILL_FRONTEND,
    CRASH_WORKER,
    BREAK_WIRE,
    SWALLOW,
    STOP_WORKER,
    STOP_ENGINE,
    STOP_FRONTEND
};
/* How often, of the sum; a stop costs much virtual time */
static const uint32_t weights[] = {
    [KILL_WORKER] = 20, [KILL_ENGINE] = 20,  [KILL_BOTH] = 8, [KILL_FRONTEND] = 12,
    [CRASH_WORKER] = 6, [BREAK_WIRE] = 16,   [SWALLOW] = 4,   [STOP_WORKER] = 5,
    [STOP_ENGINE] = 5,  [STOP_FRONTEND] = 4,
};
#define N_FAULT (sizeof weights / sizeof *weights)

static void resume(uint64_t what, void *p)
{
    (void)p;
    if (what == STOP_WORKER)
        worker_pause(false);
    else if (what == STOP_ENGINE)
        engine_pause(false);
    else
        frontend_pause((uint32_t)(what - STOP_FRONTEND), false);
}

static void make_fault(enum fault kind, uint32_t frontend)
{
    const int64_t pause_us = events_pick(1000, events_chance(5000) ? 2000000 : PAUSE_US);
    if (kind == KILL_WORKER)
        worker_kill(SIGKILL);
    if (kind == CRASH_WORKER && service.n_crash && worker_kill(SIGSEGV))
        service.n_crash--;
    if (kind == KILL_BOTH)
        worker_kill(SIGKILL);
    if (kind == KILL_ENGINE || kind == KILL_BOTH)
        engine_kill(SIGKILL);
    if (kind == KILL_FRONTEND)
        frontend_kill(frontend, SIGKILL);
    if (kind == BREAK_WIRE)
        wire_break(frontend);
    if (kind == SWALLOW && service.n_hang) {
        service.n_hang--;
        wire_swallow(frontend);
    }
    if (kind == STOP_WORKER)
        worker_pause(true);
    if (kind == STOP_ENGINE)
        engine_pause(true);
    if (kind == STOP_FRONTEND)
        frontend_pause(frontend, true);
    if (kind >= STOP_WORKER)
        event_add(pause_us, resume, kind + (kind == STOP_FRONTEND ? frontend : 0), NULL);
}

static void fault(uint64_t n_left, void *p)
{
    uint32_t sum = 0, kind = 0;
    (void)p;
    if (service.is_over || !n_left)
        return;
    for (size_t i = 0; i < N_FAULT; i++)
        sum += weights[i];
    uint32_t roll = events_pick(0, sum - 1);
    while (roll >= weights[kind])
        roll -= weights[kind++];
    make_fault((enum fault)kind, events_pick(0, service.n_frontend - 1));
    event_add(events_pick(1, FAULT_US), fault, n_left - 1, NULL);
}

/* ---- the whole ---- */

static void draw_service(const char *folder, struct service_report *report)
{
    service = (struct service){.folder = folder, .report = report};
    service.model = (struct fake_model){.vocab_size = 97, .eos_every = 60};
    struct step_limits *l = &service.limits;
    l->max_num_seqs = events_pick(1, 8);
    l->max_num_batched_tokens = events_pick(4, 64);
    service.has_long = events_chance(LONG);
    l->max_model_len = service.has_long ? events_pick(1000, 3000) : events_pick(24, 96);
    l->logit_rows_max = l->max_num_seqs + events_pick(0, 16);
    l->top_more = 2 * service.model.vocab_size;
    l->known_max = l->max_model_len + events_pick(0, l->max_model_len);
    const uint32_t n_block_min = (l->max_model_len + STEP_BLOCK_TOKENS - 1) / STEP_BLOCK_TOKENS;
    l->copies_max = n_block_min;
    service.n_block = n_block_min + events_pick(0, 12);
    service.n_swap_block = events_chance(5000) ? events_pick(1, 16) : 0;
    service.n_frontend = events_pick(1, SERVICE_FRONTENDS_MAX);
    service.n_client = events_pick(2, 16);
    service.n_fault = events_pick(0, 12);
    service.queue_max = events_pick(1, service.n_client);
    service.credit = events_pick(1, 2 * service.n_client);
    service.heartbeat_ms = events_pick(100, 1000);
    service.engine_timeout_ms = events_chance(7000) ? 600000 : 3000;
    service.latency_us = events_pick(1, events_chance(2000) ? 50000 : 500);
    service.step_us = service.has_long ? LONG_STEP_US : events_pick(100, 12000);
    service.start_fails = events_chance(2000) ? 1500 : 0;
}

static void run_until(int64_t end_us, bool until_over)
{
    struct service_report *r = service.report;
    while (events_now_us() < end_us && !service.gave_up && !(until_over && clients_over())) {
        if (!events_next())
            sim_fail("nothing is to happen any more");
        if (++r->n_event > EVENTS_MAX)
            sim_fail("more than %u events", EVENTS_MAX);
    }
}

void service_run(const char *folder, uint64_t seed, struct service_report *report)
{
    memset(report, 0, sizeof *report);
    events_reset(seed);
    draw_service(folder, report);
    const int64_t start_us = events_now_us();
    metric_set(METRIC_RESUBMITTED, 0);
    engine_reset();
    links_reset();
    wire_close_all();
    last_pid = 100;
    begin_supervisor();
    clients_make();
    event_add(events_pick(1, FAULT_US), fault, service.n_fault, NULL);
    run_until(start_us + BOUND_US, true);
    if (!clients_over() && !service.gave_up)
        sim_fail("requests are open after an hour");
    service.is_over = true;
    run_until(events_now_us() + QUIET_US, false);
    report->n_gave_up += service.gave_up;
    if (!service.gave_up) {
        engine_check_idle();
        links_check_idle();
    }
    report->seconds = (double)(events_now_us() - start_us) / 1e6;
    report->n_resubmitted = (uint64_t)metric_value(METRIC_RESUBMITTED);
    engine_reset();
    links_reset();
    clients_free();
    events_reset(seed);
}
