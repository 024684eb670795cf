/* SPDX-License-Identifier: Apache-2.0 */
/* The loop polls sockets, the core and signals together, reads a bounded number of frames (so that
 * a flood of requests does not delay a settled step), then calls core_step, which settles and
 * plans. While the worker computes, the loop is in poll again; per step it makes a few system calls
 * and encodes one message per frontend.
 *
 * SIGTERM or SIGINT: the server drains (it rejects new requests and finishes open ones) for at most
 * shutdown_timeout. A second signal ends it at once. */
#include "engine/server/server.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/net.h"
#include "engine/server/frontends.h"
#include "engine/server/loop_watch.h"
#include "proto/item_memory.h"

#define FRAMES_PER_ITERATION 512
#define GOODBYE_MS           300
#define FAILURE_LOG_MS       1000
#define DESCRIPTORS          65536

struct server {
    const struct server_config *config;
    struct frontends frontends;
    struct core *core;
    struct loop_watch watch;
    struct socket *sockets[SERVER_LISTEN_MAX];
    uint32_t n_socket;
    int signal_fd;
    bool ready;
    int64_t beat_ms;        /* when the next heartbeat is due */
    int64_t drain_until_ms; /* 0 = not draining */
    int64_t leave_ms;       /* when to go, once nothing is open; 0 = something is */
    uint32_t n_signal;
    uint64_t n_failure, n_failure_skipped; /* of connections, since the last line */
    int64_t failure_ms;
};

static FALLIBLE listen_all(struct server *s, struct q_err *e)
{
    const struct server_config *c = s->config;
    item_memory_sweep(); /* what frontends that died have left */
    for (uint32_t i = 0; i < c->n_listen; i++) {
        const struct socket_config sc = {
            .address = c->listen[i],
            .keys_dir = c->keys_dir,
            .insecure_tcp = c->insecure_tcp,
        };
        enum q_code rc = socket_listen(&s->sockets[s->n_socket], &sc, e);
        if (rc)
            return rc;
        const char *at = socket_address(s->sockets[s->n_socket++]);
        log_info("listening on %s", at);
        if (strncmp(at, "tcp://", 6) == 0 && c->insecure_tcp && !(c->keys_dir && *c->keys_dir))
            log_warning(
                "%s: tcp without keys (--insecure-tcp): any machine that can connect can use the "
                "model and read the traffic; create keys for --keys with `quire keygen`",
                at);
    }
    return Q_OK;
}

static FALLIBLE watch_signals(struct server *s, struct q_err *e)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signal_fd < 0 ? q_fail(e, Q_IO, "engine: signalfd: %s", strerror(errno)) : Q_OK;
}

/* Peers cause such lines at any rate. */
static void note_failures(struct server *s)
{
    struct watch_failure f;
    for (uint32_t i = 0; i < s->n_socket; i++) {
        if (!socket_failure(s->sockets[i], &f))
            continue;
        s->n_failure += f.n;
        if (!log_ratelimit(&s->failure_ms, &s->n_failure_skipped, FAILURE_LOG_MS))
            continue;
        log_warning("%s: a connection was refused: %s (%llu since the last such line)",
                    socket_address(s->sockets[i]), f.why, (unsigned long long)s->n_failure);
        s->n_failure = s->n_failure_skipped = 0;
    }
}

static void receive(struct server *s)
{
    bool all = true;
    for (uint32_t i = 0; i < s->n_socket; i++) {
        struct frontend_address from = {.socket = s->sockets[i]};
        const void *frame;
        size_t n;
        int left = FRAMES_PER_ITERATION;
        for (; left > 0 && socket_recv(from.socket, &from.name, &frame, &n); left--)
            frontends_receive(&s->frontends, &from, frame, n);
        all = all && left > 0;
    }
    note_failures(s);
    if (all)
        frontends_received(&s->frontends);
    frontends_sweep(&s->frontends);
}

static void on_signal(struct server *s)
{
    struct signalfd_siginfo info;
    while (read(s->signal_fd, &info, sizeof info) == sizeof info) {
        if (s->n_signal++ == 0) {
            log_info("%s received: finishing open requests for at most %u ms",
                     info.ssi_signo == SIGTERM ? "SIGTERM" : "SIGINT",
                     s->config->shutdown_timeout_ms);
            s->drain_until_ms = clock_ms() + s->config->shutdown_timeout_ms;
            frontends_drain(&s->frontends, "the engine is shutting down");
        }
    }
}

static int until(int64_t at_ms, int64_t now_ms, int timeout)
{
    int64_t left = at_ms > now_ms ? at_ms - now_ms : 0;
    return timeout < 0 || left < timeout ? (int)left : timeout;
}

static void wait_for_work(struct server *s)
{
    struct pollfd p[SERVER_LISTEN_MAX + 2];
    nfds_t n = 0;
    int64_t now = clock_ms();
    int timeout = until(s->beat_ms, now, core_wait_ms(s->core));
    if (s->drain_until_ms)
        timeout = until(s->leave_ms ? s->leave_ms : s->drain_until_ms, now, timeout);
    p[n++] = (struct pollfd){.fd = s->signal_fd, .events = POLLIN};
    p[n++] = (struct pollfd){.fd = core_fd(s->core), .events = POLLIN};
    for (uint32_t i = 0; i < s->n_socket; i++)
        p[n++] = (struct pollfd){.fd = socket_fd(s->sockets[i]), .events = POLLIN};
    poll(p, n, timeout);
    if (p[0].revents)
        on_signal(s);
}

/* Time to go? A frontend whose connection breaks loses the frames it has not read yet, so the last
 * ones get GOODBYE_MS to be read. */
static bool drained(struct server *s)
{
    if (!s->drain_until_ms)
        return false;
    int64_t now = clock_ms();
    if (s->n_signal > 1 || now >= s->drain_until_ms)
        return true;
    if (core_busy(s->core))
        s->leave_ms = 0;
    else if (!s->leave_ms)
        s->leave_ms = now + (s->frontends.n ? GOODBYE_MS : 0);
    return s->leave_ms && now >= s->leave_ms;
}

static FALLIBLE run_once(struct server *s, struct q_err *e)
{
    enum q_code rc;
    loop_watch_turn(&s->watch);
    wait_for_work(s);
    receive(s);
    if ((rc = core_step(s->core, e)))
        return rc;
    if (!s->ready && core_state(s->core, NULL) == CORE_READY) {
        s->ready = true;
        log_info("ready, %s", core_info(s->core)->fingerprint);
        if (!s->config->core.has_weights_before)
            frontends_remember_identity(&s->frontends);
        if ((rc = frontends_ready(&s->frontends, e)))
            return rc;
    }
    /* heartbeats first: a frontend must have the new fingerprint before the reply to its reload */
    if (clock_ms() >= s->beat_ms || frontends_news(&s->frontends)) {
        s->beat_ms = clock_ms() + s->config->heartbeat_ms;
        frontends_beat(&s->frontends, clock_ms());
    }
    frontends_answer_commands(&s->frontends);
    frontends_sweep(&s->frontends);
    return Q_OK;
}

static enum server_exit exit_code(const struct server *s, enum q_code rc)
{
    if (rc == Q_OK)
        return SERVER_EXIT_OK;
    if (s->core && core_worker_died(s->core))
        return SERVER_EXIT_WORKER;
    if (!s->core || core_state(s->core, NULL) == CORE_FAILED)
        return SERVER_EXIT_LOAD;
    return SERVER_EXIT_INTERNAL;
}

/* On the watch's thread: what the loop holds is not touched. */
static void end_hanging(uint32_t seconds)
{
    log_error("the engine's loop has made no turn for %u s: the engine ends, to be started again",
              seconds);
    _exit(SERVER_EXIT_HANGS);
}

static enum server_exit start_server(struct server *s, struct q_err *e)
{
    enum q_code rc;
    if (watch_signals(s, e))
        return SERVER_EXIT_INTERNAL;
    if ((rc = frontends_init(&s->frontends, s->config, e)))
        return rc == Q_NO_MEMORY ? SERVER_EXIT_INTERNAL : SERVER_EXIT_LOAD;
    if ((rc = listen_all(s, e))) /* FORBIDDEN: tcp without keys */
        return rc == Q_INVALID || rc == Q_FORBIDDEN ? SERVER_EXIT_USAGE : SERVER_EXIT_ADDRESS;
    if (core_new(&s->core, &s->config->core, frontends_output, &s->frontends, e))
        return SERVER_EXIT_LOAD;
    s->frontends.core = s->core;
    s->beat_ms = clock_ms() + s->config->heartbeat_ms;
    return s->config->supervised ||
                   !loop_watch_start(&s->watch, s->config->heartbeat_ms, end_hanging, e)
               ? SERVER_EXIT_OK
               : SERVER_EXIT_INTERNAL;
}

enum server_exit server_run(const struct server_config *c)
{
    struct q_err e = Q_ERR_INIT;
    struct server s = {.config = c, .signal_fd = -1};
    /* libzmq ends the process when ipc:// has none left */
    enum server_exit code =
        net_raise_descriptors(DESCRIPTORS, &e) ? SERVER_EXIT_INTERNAL : start_server(&s, &e);
    if (!code) {
        enum q_code rc = Q_OK;
        while (!rc && !drained(&s))
            rc = run_once(&s, &e);
        code = exit_code(&s, rc);
    }
    loop_watch_stop(&s.watch);
    if (code)
        log_error("%s", e.message);
    else
        log_info("stopped");
    for (uint32_t i = 0; i < s.n_socket; i++)
        socket_free(s.sockets[i]);
    core_free(s.core);
    frontends_release(&s.frontends);
    if (s.signal_fd >= 0)
        close(s.signal_fd);
    return code;
}
