/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's process: its loop as in engine/server/server.c, and its worker, whose ring is real
 * and whose process is not (engine/core/worker_process.h). */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/death.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/core/core.h"
#include "engine/core/worker_process.h"
#include "engine/server/frontends.h"
#include "engine/server/server.h"
#include "events.h"
#include "service.h"

#define BOOT_US       30000  /* at most, from its start until it listens */
#define LOAD_US       150000 /* at most, from a worker's start until it is ready */
#define NOTICE_US     30000  /* at most, from a worker's death to its descriptor … */
#define NOTICE_LATE   500    /* … but in so many of 10000 cases */
#define NOTICE_MAX_US 3000000
#define CRASH_US      3000 /* at most, until an engine dies of a request */
#define TURN_US       100  /* a loop that has work to do takes so long */
#define STALL_S       2
#define FRAMES        512 /* a turn: FRAMES_PER_ITERATION */
#define EXITED(code)  ((code) << 8)

struct received {
    uint32_t frontend, epoch;
    void *frame;
    size_t n;
    struct received *next;
};
static struct engine {
    bool runs, is_stopped, was_stopped, is_ready;
    pid_t pid;
    struct server_config config;
    struct frontends frontends;
    struct core *core;
    struct received *first, **last; /* frames that are not read */
    uint64_t turn;                  /* number of the next one */
    int64_t turn_at_us;             /* 0 = none is due */
    int64_t beat_ms;
    char death[128];
    uint32_t n_start;
} engine;

static char trial_file[64];

static struct worker { /* of the engine; pid 0 = none */
    pid_t pid;
    bool runs, is_stopped, was_stopped, is_loaded, is_busy, is_noticed;
    int fd, status;
    struct ring *ring;
    struct worker_info info;
    struct fake_worker *fake;
    void *step, *result;
} worker;

static void turn(uint64_t number, void *p);

static void wake_after(int64_t after_us)
{
    const int64_t at_us = events_now_us() + after_us;
    if (!engine.core || engine.is_stopped || (engine.turn_at_us && engine.turn_at_us <= at_us))
        return;
    engine.turn_at_us = at_us;
    event_add(after_us, turn, ++engine.turn, NULL);
}

/* ---- worker ---- */

static void worker_begin(uint64_t pid, void *p);
static void worker_done(uint64_t pid, void *p);

static bool is_worker(uint64_t pid)
{
    return worker.runs && (uint64_t)worker.pid == pid;
}

static bool at_once(void *ctx)
{
    (void)ctx;
    return true;
}

static void worker_begin(uint64_t pid, void *p)
{
    (void)p;
    if (!is_worker(pid) || worker.is_stopped || worker.is_busy || !worker.is_loaded ||
        ring_stopped(worker.ring) || !ring_step_before(worker.ring, at_once, NULL))
        return;
    if (!ring_step_wait(worker.ring, &worker.step, &worker.result) || !worker.step)
        sim_fail("a command for the worker");
    worker.is_busy = true;
    event_add(events_pick(1, service.step_us), worker_done, pid, NULL);
}

/* The engine has planned perhaps. */
static void worker_look(void)
{
    if (worker.runs && !worker.is_busy)
        event_add(events_pick(0, 500), worker_begin, (uint64_t)worker.pid, NULL);
}

static void worker_done(uint64_t pid, void *p)
{
    (void)p;
    if (!is_worker(pid) || worker.is_stopped || !worker.is_busy)
        return;
    fake_worker_execute(worker.fake, worker.step, worker.info.step_bytes, worker.result,
                        worker.info.result_bytes);
    if (fake_worker_finds(worker.fake, worker.step, worker.info.step_bytes, POISON_WORKER)) {
        worker_kill(SIGSEGV);
        return;
    }
    worker.is_busy = false;
    ring_step_done(worker.ring);
    wake_after(0);
    worker_look();
}

static void worker_load(uint64_t pid, void *p)
{
    struct q_err e = Q_ERR_INIT;
    (void)p;
    if (!is_worker(pid) || ring_stopped(worker.ring))
        return;
    if (worker.is_stopped) { /* later */
        event_add(events_pick(1, LOAD_US), worker_load, pid, NULL);
        return;
    }
    if (ring_config(worker.ring)->is_again && events_chance(service.start_fails)) {
        q_fail(&e, Q_NO_MEMORY, "no memory for weights");
        ring_failed(worker.ring, &e);
        worker.runs = false;
        wake_after(0);
        return;
    }
    worker.info = (struct worker_info){
        .shape.vocab_size = service.model.vocab_size,
        .shape.n_param = 1000,
        .shape.max_model_len = service.limits.max_model_len,
        .limits = service.limits,
        .n_block = service.n_block,
        .n_swap_block = service.n_swap_block,
        .n_thread = 1,
    };
    worker.fake =
        fake_worker_new(&service.model, &service.limits, service.n_block, service.n_swap_block);
    if (ring_ready(worker.ring, &worker.info, &e))
        sim_fail("%s", e.message);
    worker.is_loaded = true;
    wake_after(0);
}

static void worker_noticed(uint64_t pid, void *p)
{
    const uint64_t one = 1;
    (void)p;
    if ((uint64_t)worker.pid != pid || worker.runs)
        return;
    worker.is_noticed = true;
    if (write(worker.fd, &one, sizeof one) != sizeof one)
        sim_fail("eventfd: %s", strerror(errno));
    wake_after(0);
}

bool worker_kill(int status)
{
    if (!worker.runs)
        return false;
    worker.runs = false;
    worker.status = status;
    service.report->n_worker_death++;
    event_add(events_pick(1, events_chance(NOTICE_LATE) ? NOTICE_MAX_US : NOTICE_US),
              worker_noticed, (uint64_t)worker.pid, NULL);
    return true;
}

void worker_pause(bool stopped)
{
    if (!worker.runs || worker.is_stopped == stopped)
        return;
    worker.is_stopped = stopped;
    worker.was_stopped = true;
    if (!stopped)
        event_add(events_pick(1, service.step_us), worker.is_busy ? worker_done : worker_begin,
                  (uint64_t)worker.pid, NULL);
}

FALLIBLE worker_process_start(struct worker_process *w, struct ring *ring, const char *program,
                              struct q_err *e)
{
    (void)program;
    *w = (struct worker_process)WORKER_PROCESS_INIT;
    if (service_was_up() && events_chance(service.start_fails))
        return q_fail(e, Q_IO, "engine: cannot start the worker: %s", strerror(EAGAIN));
    w->ring = ring;
    w->pid = service_new_pid();
    w->pid_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (w->pid_fd < 0)
        sim_fail("eventfd: %s", strerror(errno));
    worker = (struct worker){.pid = w->pid, .runs = true, .fd = w->pid_fd, .ring = ring};
    event_add(events_pick(1000, LOAD_US), worker_load, (uint64_t)w->pid, NULL);
    return Q_OK;
}

FALLIBLE worker_process_start_thread(struct worker_process *w, struct ring *ring, struct q_err *e)
{
    (void)w, (void)ring;
    return q_fail(e, Q_UNSUPPORTED, "no threads here");
}

static void worker_gone(struct worker_process *w)
{
    fake_worker_free(worker.fake);
    if (w->pid_fd >= 0)
        close(w->pid_fd);
    worker = (struct worker){.fd = -1};
    w->pid_fd = -1;
    w->pid = 0;
}

bool worker_process_ended(struct worker_process *w, struct q_err *e)
{
    char how[80];
    if (!w->pid || !worker.is_noticed)
        return false;
    death_describe(worker.status, false, how, sizeof how);
    w->from_outside = death_from_outside(worker.status, false);
    q_fail_text(e, Q_UNAVAILABLE, "the worker (process %d) %s", (int)w->pid, how);
    worker_gone(w);
    return true;
}

bool worker_process_was_stopped(const struct worker_process *w)
{
    return w->pid && worker.was_stopped;
}

bool worker_process_is_ending(const struct worker_process *w)
{
    return w->pid && !worker.runs;
}

void worker_process_end(struct worker_process *w, int timeout_ms)
{
    (void)timeout_ms;
    if (w->ring)
        ring_stop(w->ring);
    if (w->pid)
        worker_gone(w);
    *w = (struct worker_process)WORKER_PROCESS_INIT;
}

/* ---- engine ---- */

static void forget_frames(void)
{
    while (engine.first) {
        struct received *r = engine.first;
        engine.first = r->next;
        q_free(r->frame);
        q_free(r);
    }
    engine.last = &engine.first;
}

/* The process is gone, without a goodbye to anyone. */
static void end_engine(void)
{
    if (!engine.runs)
        return;
    engine.runs = engine.is_ready = false;
    forget_frames();
    core_free(engine.core);
    frontends_release(&engine.frontends);
    engine.core = NULL;
    engine.turn_at_us = 0;
    engine.turn++;
    for (uint32_t i = 0; i < service.n_frontend; i++)
        wire_break(i);
}

void engine_reset(void)
{
    end_engine();
    engine = (struct engine){.runs = false, .last = &engine.first};
    worker = (struct worker){.fd = -1};
}

bool engine_listens(void)
{
    return engine.runs && engine.core;
}

bool engine_tries(void)
{
    const struct frontends *p = &engine.frontends;
    return engine.runs && engine.is_ready &&
           (clock_ms() < p->trial_until_ms || (p->on_trial && core_busy(engine.core)));
}

void engine_kill(int status)
{
    const pid_t pid = engine.pid;
    if (!engine.runs)
        return;
    end_engine();
    service.report->n_engine_death++;
    service_died(pid, status);
}

/* Of a request that kills engines, also if it has ended meanwhile. */
static void crash_now(uint64_t pid, void *p)
{
    (void)p;
    if ((uint64_t)engine.pid == pid)
        engine_kill(SIGSEGV);
}

void engine_pause(bool stopped)
{
    if (!engine.runs || engine.is_stopped == stopped)
        return;
    engine.is_stopped = stopped;
    engine.was_stopped = true;
    engine.turn_at_us = 0;
    engine.turn++;
    wake_after(0);
}

bool engine_was_stopped(pid_t pid)
{
    return engine.pid == pid && engine.was_stopped;
}

void engine_receive(uint32_t frontend, uint32_t epoch, void *frame, size_t n)
{
    struct received *r = q_alloc(sizeof *r);
    if (!r)
        sim_fail("no memory");
    if (!engine_listens()) {
        q_free(r);
        q_free(frame);
        return;
    }
    *r = (struct received){frontend, epoch, frame, n, NULL};
    *engine.last = r;
    engine.last = &r->next;
    wake_after(0);
}

/* A submit was accepted: of a request that kills engines? */
static void look_for_poison(const void *frame, size_t n)
{
    static struct arena a = ARENA_INIT(1 << 20);
    struct q_err e = Q_ERR_INIT;
    struct msg_submit m;
    if (proto_peek(frame, n) != MSG_submit)
        return;
    if (!msg_submit_decode(&m, frame, n, &a, &e) && poison_of(m.seed) == POISON_ENGINE)
        event_add(events_pick(1, CRASH_US), crash_now, (uint64_t)engine.pid, NULL);
    arena_reset(&a);
}

static uint32_t n_open(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < engine.frontends.n; i++)
        n += engine.frontends.frontends[i].n_open;
    return n;
}

static void receive(void)
{
    int left = FRAMES;
    for (; left && engine.first; left--) {
        struct received *r = engine.first;
        const uint32_t name[2] = {r->frontend, r->epoch};
        struct frontend_address from = {.name = {.n = sizeof name}};
        memcpy(from.name.name, name, sizeof name);
        engine.first = r->next;
        if (!engine.first)
            engine.last = &engine.first;
        const uint32_t n_before = n_open();
        frontends_receive(&engine.frontends, &from, r->frame, r->n);
        if (n_open() > n_before)
            look_for_poison(r->frame, r->n);
        q_free(r->frame);
        q_free(r);
    }
    if (left)
        frontends_received(&engine.frontends);
    frontends_sweep(&engine.frontends);
}

/* server.c's iteration after its poll(2). */
static enum q_code iterate(struct q_err *e)
{
    enum q_code rc;
    receive();
    if ((rc = core_step(engine.core, e)))
        return rc;
    if (!engine.is_ready && core_state(engine.core, NULL) == CORE_READY) {
        engine.is_ready = true;
        if ((rc = frontends_ready(&engine.frontends, e)))
            return rc;
    }
    if (clock_ms() >= engine.beat_ms || frontends_news(&engine.frontends)) {
        engine.beat_ms = clock_ms() + engine.config.heartbeat_ms;
        frontends_beat(&engine.frontends, clock_ms());
    }
    frontends_sweep(&engine.frontends);
    core_check(engine.core);
    return Q_OK;
}

static void turn(uint64_t number, void *p)
{
    struct q_err e = Q_ERR_INIT;
    (void)p;
    if (number != engine.turn || !engine.runs || engine.is_stopped)
        return;
    engine.turn_at_us = 0;
    if (iterate(&e)) {
        log_line(LOG_ERROR, "engine: %s", e.message);
        const bool died = core_worker_died(engine.core);
        engine_kill(EXITED(died ? SERVER_EXIT_WORKER : SERVER_EXIT_INTERNAL));
        return;
    }
    const int wait_ms = core_wait_ms(engine.core);
    const int64_t beat_us = (engine.beat_ms - clock_ms()) * 1000;
    int64_t after_us = wait_ms < 0 || wait_ms * INT64_C(1000) > beat_us ? beat_us : wait_ms * 1000;
    if (engine.first || after_us < TURN_US)
        after_us = TURN_US;
    wake_after(after_us);
    worker_look();
}

static void begin(uint64_t pid, void *p)
{
    struct q_err e = Q_ERR_INIT;
    struct server_config *c = &engine.config;
    (void)p;
    if (!engine.runs || (uint64_t)engine.pid != pid || engine.core)
        return;
    if (engine.is_stopped) {
        event_add(BOOT_US, begin, pid, NULL);
        return;
    }
    *c = (struct server_config){
        .core.queue_max = service.queue_max,
        .core.worker_timeout_s = 30,
        .core.stall_timeout_s = STALL_S,
        .core.prefix_cache = true,
        .core.no_jump_forward = true,
        .core.worker.format = LOAD_DUMMY,
        .model_name = "sim",
        .death = engine.death,
        .n_start = engine.n_start,
        .heartbeat_ms = service.heartbeat_ms,
        .max_frontend_reqs = service.credit,
    };
    snprintf(trial_file, sizeof trial_file, "%s/trial", service.folder);
    c->trial_file = trial_file;
    snprintf(c->core.worker.model_dir, sizeof c->core.worker.model_dir, "%s", service.folder);
    if (frontends_init(&engine.frontends, c, &e))
        sim_fail("%s", e.message);
    if (core_new(&engine.core, &c->core, frontends_output, &engine.frontends, &e)) {
        engine_kill(EXITED(SERVER_EXIT_LOAD));
        return;
    }
    engine.frontends.core = engine.core;
    engine.beat_ms = clock_ms() + c->heartbeat_ms;
    wake_after(0);
}

void engine_boot(uint64_t pid, const char *death, uint32_t n_start)
{
    const uint64_t number = engine.turn;
    engine = (struct engine){
        .runs = true,
        .pid = (pid_t)pid,
        .last = &engine.first,
        .turn = number + 1,
        .n_start = n_start,
    };
    snprintf(engine.death, sizeof engine.death, "%s", death);
    event_add(events_pick(1000, BOOT_US), begin, pid, NULL);
}

void engine_check_idle(void)
{
    struct scheduler_stats s;
    if (!engine.runs || !engine.is_ready || core_state(engine.core, NULL) != CORE_READY)
        sim_fail("the engine is not ready at the end");
    core_stats(engine.core, &s);
    if (core_busy(engine.core) || s.kv_blocks_used || s.swap_blocks_used || s.n_in_flight)
        sim_fail("left over: %u running, %u waiting, %u blocks, %u in host memory, %u in flight",
                 s.n_running, s.n_waiting, s.kv_blocks_used, s.swap_blocks_used, s.n_in_flight);
    if (engine.frontends.n != service.n_frontend)
        sim_fail("the engine has %u frontends, there are %u", engine.frontends.n,
                 service.n_frontend);
    for (uint32_t i = 0; i < engine.frontends.n; i++)
        if (engine.frontends.frontends[i].n_open || !engine.frontends.frontends[i].greeted)
            sim_fail("frontend %u has %u requests at the engine at the end", i,
                     engine.frontends.frontends[i].n_open);
}
