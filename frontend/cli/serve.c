/* SPDX-License-Identifier: Apache-2.0 */
/* quire-serve: runs one engine and its frontends.
 *
 * The supervisor owns all data that must outlive a process: the listening socket (connections wait
 * in its backlog while a frontend is replaced), the table of metrics (counters continue), and the
 * folder of the engine's socket. All other data is in the children. It waits in poll(2) for a
 * signalfd and for the pipe on which frontends report that they are ready. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/death.h"
#include "common/hub/hub.h"
#include "common/log.h"
#include "common/net.h"
#include "frontend/cli/supervisor.h"

#define STABLE_MS         30000 /* a child that ran this long has its failures reset */
#define BACKOFF_MS        100   /* delay before the first restart; it doubles each time */
#define BACKOFF_MAX       10000
#define FAILURES_MAX      6     /* consecutive early failures after which the supervisor gives up */
#define KILL_AFTER_MS     5000  /* beyond --shutdown-timeout */
#define SILENT_MS         10000 /* without a sign of life of a frontend: it sends one every 2 s */
#define HANG_GRACE_MS     5000  /* a report may refer to the previous engine */
#define EXIT_INTERNAL     1
#define EXIT_MODEL        3 /* the same codes as the children's (engine/server/server.h) */
#define EXIT_WORKER       4
#define EXIT_ADDRESS      5
#define ENGINE_HANGS      0xff    /* frontend/api/app.h: APP_ENGINE_HANGS */
#define APP_ENGINE_FAILED SIGUSR1 /* likewise */

struct supervisor {
    struct options *options;
    struct supervisor_resources resources;
    struct child children[1 + METRICS_SLOTS_MAX]; /* the engine first */
    uint32_t n;
    int signals, ready_pipe;
    bool stopping, hurry, said_ready;
    int64_t kill_at_ms;
    int exit_code;
};

static uint32_t n_running(const struct supervisor *s, uint32_t from)
{
    uint32_t n = 0;
    for (uint32_t i = from; i < s->n; i++)
        n += s->children[i].pid > 0;
    return n;
}

static void signal_children(struct supervisor *s, uint32_t from, int number)
{
    for (uint32_t i = from; i < s->n; i++)
        if (s->children[i].pid > 0)
            kill(s->children[i].pid, number);
}

/* Stop the frontends first; the engine stays until their open requests have ended. If the engine
 * has failed for good, they are told to end these at once. */
static void begin_stop(struct supervisor *s, int exit_code)
{
    if (!s->stopping) {
        s->exit_code = exit_code;
        net_sockets_close(&s->resources.listening); /* connections are refused, not left waiting */
        s->kill_at_ms = clock_ms() + s->options->shutdown_timeout * 1000 + KILL_AFTER_MS;
    }
    s->stopping = true;
    signal_children(s, 1, exit_code && s->children[0].pid <= 0 ? APP_ENGINE_FAILED : SIGTERM);
    if (n_running(s, 1) == 0)
        signal_children(s, 0, SIGTERM);
}

/* Restart a child after its death or a failed start, unless that happened too often. */
static void retry(struct supervisor *s, struct child *c, int code, const char *how)
{
    const int64_t now = clock_ms();
    if (c->n_failure > FAILURES_MAX) {
        log_error("%s %s: too many failures, stopping", c->name, how);
        begin_stop(s, code ? code : 1);
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
 * load, address), unless the service was ready before: then files are being replaced perhaps. The
 * programs were found when the arguments were checked. */
static bool is_final(const struct supervisor *s, int code)
{
    return !s->said_ready && (code == 2 || code == 3 || code == 5);
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
        if (code != 0 && code != 128 + SIGTERM && code != 128 + SIGKILL) /* not by us */
            log_warning("%s %s", c->name, how);
        return;
    }
    if (clock_ms() - c->started_ms > STABLE_MS)
        c->n_failure = 0;
    c->n_failure += !was_outside;
    note_death(c, status, was_outside, cause);
    if (is_final(s, code)) { /* the child has printed the reason */
        log_debug("%s %s", c->name, how);
        begin_stop(s, code);
        return;
    }
    retry(s, c, code, how);
}

static void reap(struct supervisor *s)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (uint32_t i = 0; i < s->n; i++)
            if (s->children[i].pid == pid)
                on_death(s, &s->children[i], status);
    if (s->stopping && n_running(s, 1) == 0)
        signal_children(s, 0, SIGTERM);
}

static void on_signals(struct supervisor *s)
{
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) {
            reap(s);
        } else if (info.ssi_signo == SIGHUP && *s->options->api_key_file) {
            signal_children(s, 1, SIGHUP); /* they read the keys again */
        } else if (!s->stopping) {
            log_info("stopping");
            begin_stop(s, 0);
        } else { /* a second signal: stop at once */
            signal_children(s, 0, SIGTERM);
        }
    }
}

/* A frontend reports that the engine hangs: kill it. */
static void on_hang(struct supervisor *s)
{
    struct child *engine = &s->children[0];
    if (s->stopping || engine->pid <= 0 || clock_ms() - engine->started_ms < HANG_GRACE_MS)
        return;
    log_error("engine (process %d) does not respond: killing it", engine->pid);
    engine->has_hung = true;
    kill(engine->pid, SIGKILL);
}

static void hear(struct child *c)
{
    c->ready = true;
    c->heard_ms = clock_ms();
}

/* A frontend writes its slot when it is connected to the engine, and from then on while its loop
 * runs. */
static void on_ready(struct supervisor *s)
{
    unsigned char slot;
    while (read(s->ready_pipe, &slot, 1) == 1)
        if (slot == ENGINE_HANGS)
            on_hang(s);
        else if (slot + 1u < s->n)
            hear(&s->children[slot + 1]);
    for (uint32_t i = 1; i < s->n; i++)
        if (!s->children[i].ready)
            return;
    if (!s->said_ready)
        log_info("ready");
    s->said_ready = true;
}

/* Milliseconds until the next restart or kill; -1 = none. */
static int next_ms(const struct supervisor *s)
{
    int64_t now = clock_ms(), at = s->stopping ? s->kill_at_ms : INT64_MAX;
    for (uint32_t i = 0; i < s->n && !s->stopping; i++) {
        const struct child *c = &s->children[i];
        if (c->restart_ms && c->restart_ms < at)
            at = c->restart_ms;
        if (c->pid > 0 && c->heard_ms && c->heard_ms + SILENT_MS < at)
            at = c->heard_ms + SILENT_MS;
    }
    return at == INT64_MAX ? -1 : at <= now ? 0 : (int)(at - now);
}

/* Kill frontends whose loop stands still. After on_ready: what they sent while this process was
 * stopped is read. */
static void check_frontends(const struct supervisor *s, int64_t now)
{
    for (uint32_t i = 1; i < s->n && !s->stopping; i++) {
        const struct child *c = &s->children[i];
        if (c->pid <= 0 || !c->heard_ms || now - c->heard_ms < SILENT_MS)
            continue;
        log_error("%s (process %d) does not respond: killing it", c->name, c->pid);
        kill(c->pid, SIGKILL);
    }
}

static void do_due(struct supervisor *s)
{
    int64_t now = clock_ms();
    check_frontends(s, now);
    for (uint32_t i = 0; i < s->n && !s->stopping; i++)
        if (s->children[i].restart_ms && s->children[i].restart_ms <= now)
            start(s, &s->children[i]);
    if (s->stopping && now >= s->kill_at_ms) {
        log_warning("child processes do not stop: killing them");
        signal_children(s, 0, SIGKILL);
        s->kill_at_ms = now + KILL_AFTER_MS;
    }
}

static int watch(struct supervisor *s)
{
    while (!s->stopping || n_running(s, 0) > 0) {
        struct pollfd fds[2] = {{s->signals, POLLIN, 0}, {s->ready_pipe, POLLIN, 0}};
        if (poll(fds, 2, next_ms(s)) < 0 && errno != EINTR)
            break;
        if (fds[0].revents)
            on_signals(s);
        if (fds[1].revents)
            on_ready(s);
        do_due(s);
    }
    supervisor_resources_release(&s->resources);
    return s->exit_code;
}

static int block_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN); /* the reader of the log may end first */
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

/* Check both kinds of children at the same time; the engine's error has precedence, because its
 * message about the model is more precise. 0, or the exit code. */
static int check_children(const struct supervisor *s, struct q_err *e)
{
    struct check engine, frontend;
    struct q_err other = Q_ERR_INIT;
    if (check_begin(&engine, &s->children[0], e))
        return EXIT_INTERNAL;
    if (check_begin(&frontend, &s->children[1], &other)) {
        *e = other;
        (void)check_end(&engine, &other);
        return EXIT_INTERNAL;
    }
    int code = check_end(&engine, e), second = check_end(&frontend, &other);
    if (code || !second)
        return code;
    *e = other;
    return second;
}

/* Bind the port and check the arguments and the model's folder before "listening" is logged. 0, or
 * the exit code. */
static int prepare(struct supervisor *s, const struct options *o, struct q_err *e)
{
    enum q_code rc = supervisor_resources_init(&s->resources, o, e);
    if (rc || (rc = children_init(s->children, &s->n, &s->resources, o, e)))
        return rc == Q_IO ? EXIT_ADDRESS : EXIT_INTERNAL;
    return check_children(s, e);
}

int main(int argc, char **argv)
{
    static struct options o;
    static struct supervisor s;
    static const struct program_info info = {
        .program = FOR_SERVE,
        .name = "quire serve",
        .usage = "MODEL [options]",
        .about =
            "Serves a model over HTTP: starts an engine and its frontends, restarts processes "
            "that crash, and stops all of them together. MODEL is a folder, or the id of a "
            "model of the Hugging Face hub (ORG/NAME), which is downloaded if it is not in the "
            "cache. Exit codes: 0 after SIGTERM or SIGINT, else the "
            "code of the process that failed (3: the model cannot be loaded).",
        .positional_min = 1,
        .positional_max = 1,
    };
    struct q_err e = Q_ERR_INIT;
    int code = options_main(&o, &info, argc, argv);
    if (code >= 0)
        return code;
    if (hub_prepare(&o, &e)) { /* before signals are blocked: SIGTERM ends a download */
        log_error("%s", e.message);
        return EXIT_MODEL;
    }
    s.options = &o;
    s.signals = block_signals();
    if ((code = prepare(&s, &o, &e))) {
        log_error("%s", e.message);
        supervisor_resources_release(&s.resources);
        return code;
    }
    s.ready_pipe = s.resources.ready_pipe[0];
    log_info("listening on %s", s.resources.url);
    if (!o.api_key.n && !*o.api_key_file)
        net_warn_open(o.host, s.resources.listening.port);
    for (uint32_t i = 0; i < s.n && !s.stopping; i++)
        start(&s, &s.children[i]);
    return watch(&s);
}
