/* SPDX-License-Identifier: Apache-2.0 */
#include "frontend/cli/supervise.h"
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include "common/clock.h"
#include "common/death.h"
#include "common/log.h"
#include "common/net.h"

#define STABLE_MS         30000 /* a child that ran this long has its failures reset */
#define BACKOFF_MS        100   /* delay before the first restart; it doubles each time */
#define BACKOFF_MAX       10000
#define KILL_AFTER_MS     5000  /* beyond --shutdown-timeout */
#define SILENT_MS         10000 /* without a sign of life of a frontend: it sends one every 2 s */
#define LOOK_MS           1000  /* a loop that has frontends looks so often … */
#define LATE_MS           2000  /* … and did not run in a time without a look that is longer */
#define HANG_GRACE_MS     5000  /* a report may refer to the previous engine */
#define EXIT_INTERNAL     1     /* the same codes as the children's (engine/server/server.h) */
#define EXIT_WORKER       4
#define ENGINE_HANGS      0xff    /* frontend/api/app.h: APP_ENGINE_HANGS */
#define APP_ENGINE_FAILED SIGUSR1 /* likewise */

static uint32_t n_running(const struct supervisor *s, uint32_t from)
{
    uint32_t n = 0;
    for (uint32_t i = from; i < s->n; i++)
        n += s->children[i].pid > 0;
    return n;
}

void supervise_signal(const struct supervisor *s, uint32_t from, int number)
{
    for (uint32_t i = from; i < s->n; i++)
        if (s->children[i].pid > 0)
            kill(s->children[i].pid, number);
}

void supervise_stop(struct supervisor *s, int exit_code)
{
    if (!s->stopping) {
        s->exit_code = exit_code;
        for (uint32_t i = 0; i < s->resources.listening.n; i++)
            net_drop_new(s->resources.listening.fd[i]); /* no frontend needs them again */
        net_path_remove(&s->resources.path);
        net_sockets_close(&s->resources.listening); /* connections are refused, not left waiting */
        s->kill_at_ms = clock_ms() + s->options->shutdown_timeout * 1000 + KILL_AFTER_MS;
    }
    s->stopping = true;
    supervise_signal(s, 1, exit_code && s->children[0].pid <= 0 ? APP_ENGINE_FAILED : SIGTERM);
    if (n_running(s, 1) == 0)
        supervise_signal(s, 0, SIGTERM);
}

/* Restart a child after its death or a failed start, unless that happened too often. */
static void retry(struct supervisor *s, struct child *c, int code, const char *how)
{
    const int64_t now = clock_ms();
    if (c->n_failure > SUPERVISE_FAILURES_MAX) {
        log_error("%s %s: too many failures, stopping", c->name, how);
        supervise_stop(s, code ? code : 1);
        return;
    }
    const int64_t wait_ms = BACKOFF_MS << (c->n_failure ? c->n_failure - 1 : 0);
    c->restart_ms = now + (wait_ms < BACKOFF_MAX ? wait_ms : BACKOFF_MAX);
    log_error("%s %s: restarting it in %lld ms", c->name, how, (long long)(c->restart_ms - now));
}

static void start(struct supervisor *s, struct child *c)
{
    struct q_err e = Q_ERR_INIT;
    c->restart_ms = c->heard_ms = 0;
    c->has_hung = false;
    if (child_start(c, &e) != Q_OK) {
        c->n_failure++;
        retry(s, c, EXIT_INTERNAL, e.message);
    }
}

/* Exit codes after which another start would fail in the same way (engine/server/server.h: usage,
 * load, address), unless an engine was ready before: then files are being replaced perhaps, or
 * there was no process or memory for a moment. The programs were found when the arguments were
 * checked. */
static bool is_final(const struct supervisor *s, int code)
{
    return !s->was_up && (code == 2 || code == 3 || code == 5);
}

/* Did another process end it? A child that is told to end by SIGTERM exits with 0. */
static bool is_wanted(int status, bool was_oom)
{
    return death_from_outside(status, was_oom) || (WIFEXITED(status) && !WEXITSTATUS(status));
}

/* What the next engine tells the frontends about this one's death: whether its requests may be the
 * cause. They are not when it was ended from outside, or because the worker crashed too often: then
 * it has looked for the cause itself. */
static void note_death(struct child *c, int status, bool was_outside, const char *how)
{
    const bool gave_up = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_WORKER;
    const bool blamed = !gave_up && !was_outside;
    snprintf(c->death, sizeof c->death, "%s%s", blamed ? "crash: " : "other: ", how);
}

static void on_death(struct supervisor *s, struct child *c, int status)
{
    char cause[80], how[128];
    const bool was_oom = death_oom_kills() > c->n_oom;
    const int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    /* This process has killed one that hung; a request may be why it did. */
    const bool was_outside = !c->has_hung && is_wanted(status, was_oom);
    if (c->has_hung)
        snprintf(cause, sizeof cause, "did not respond and was killed");
    else
        death_describe(status, was_oom, cause, sizeof cause);
    snprintf(how, sizeof how, "(process %d) %s", c->pid, cause);
    c->pid = 0;
    c->heard_ms = 0;
    if (s->stopping) {
        /* expected: 0, or a signal of this process that the child did not handle yet */
        if (code && code != 128 + SIGTERM && code != 128 + SIGKILL &&
            code != 128 + APP_ENGINE_FAILED)
            log_warning("%s %s", c->name, how);
        return;
    }
    if (clock_ms() - c->started_ms > STABLE_MS)
        c->n_failure = 0;
    c->n_failure += !was_outside;
    note_death(c, status, was_outside, cause);
    if (is_final(s, code)) { /* the child has printed the reason */
        log_debug("%s %s", c->name, how);
        supervise_stop(s, code);
        return;
    }
    retry(s, c, code, how);
}

void supervise_start(struct supervisor *s)
{
    for (uint32_t i = 0; i < s->n && !s->stopping; i++)
        start(s, &s->children[i]);
}

void supervise_death(struct supervisor *s, pid_t pid, int status)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->children[i].pid == pid)
            on_death(s, &s->children[i], status);
    if (s->stopping && n_running(s, 1) == 0)
        supervise_signal(s, 0, SIGTERM);
}

/* A frontend reports that the engine hangs: kill it. One that others have stopped ends by a kill
 * from outside, as if they had killed it. */
static void on_hang(struct supervisor *s)
{
    struct child *engine = &s->children[0];
    if (s->stopping || engine->pid <= 0 || clock_ms() - engine->started_ms < HANG_GRACE_MS)
        return;
    const bool was_stopped = death_was_stopped(engine->pid);
    log_error("engine (process %d)%s does not respond: killing it", engine->pid,
              was_stopped ? " was stopped by a signal or a debugger and" : "");
    engine->has_hung = !was_stopped;
    kill(engine->pid, SIGKILL);
}

static void hear(struct supervisor *s, struct child *c)
{
    s->was_up = true;
    c->ready = true;
    c->heard_ms = clock_ms();
}

void supervise_hear(struct supervisor *s, unsigned char byte)
{
    if (byte == ENGINE_HANGS)
        on_hang(s);
    else if (byte + 1u < s->n)
        hear(s, &s->children[byte + 1]);
    for (uint32_t i = 1; i < s->n; i++)
        if (!s->children[i].ready)
            return;
    if (!s->said_ready)
        log_info("ready");
    s->said_ready = true;
}

int supervise_wait_ms(const struct supervisor *s)
{
    int64_t now = clock_ms(), at = s->stopping ? s->kill_at_ms : INT64_MAX;
    for (uint32_t i = 0; i < s->n && !s->stopping; i++) {
        const struct child *c = &s->children[i];
        if (c->restart_ms && c->restart_ms < at)
            at = c->restart_ms;
        if (c->pid > 0 && c->heard_ms && c->heard_ms + SILENT_MS < at)
            at = c->heard_ms + SILENT_MS;
        if (c->pid > 0 && c->heard_ms && now + LOOK_MS < at)
            at = now + LOOK_MS;
    }
    return at == INT64_MAX ? -1 : at <= now ? 0 : (int)(at - now);
}

/* While this loop did not run (a frozen container, SIGSTOP) it has not listened to the frontends:
 * that time is no silence of theirs. */
static void note_look(struct supervisor *s, int64_t now)
{
    const int64_t gap_ms = clock_gap_ms(&s->looked_ms, now, LATE_MS);
    for (uint32_t i = 1; i < s->n; i++)
        s->children[i].heard_ms = clock_skip_gap(s->children[i].heard_ms, gap_ms, now);
}

/* Kill frontends whose loop stands still. One that does not end at once (it waits for a disk) is
 * killed again later. */
static void check_frontends(struct supervisor *s, int64_t now)
{
    for (uint32_t i = 1; i < s->n && !s->stopping; i++) {
        struct child *c = &s->children[i];
        if (c->pid <= 0 || !c->heard_ms || now - c->heard_ms < SILENT_MS)
            continue;
        log_error("%s (process %d) does not respond: killing it", c->name, c->pid);
        kill(c->pid, SIGKILL);
        c->heard_ms = now;
    }
}

void supervise_due(struct supervisor *s)
{
    int64_t now = clock_ms();
    note_look(s, now);
    check_frontends(s, now);
    for (uint32_t i = 0; i < s->n && !s->stopping; i++)
        if (s->children[i].restart_ms && s->children[i].restart_ms <= now)
            start(s, &s->children[i]);
    if (s->stopping && now >= s->kill_at_ms) {
        log_warning("child processes do not stop: killing them");
        supervise_signal(s, 0, SIGKILL);
        s->kill_at_ms = now + KILL_AFTER_MS;
    }
}

bool supervise_over(const struct supervisor *s)
{
    return s->stopping && n_running(s, 0) == 0;
}
