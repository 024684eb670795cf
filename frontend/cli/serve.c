/* SPDX-License-Identifier: Apache-2.0 */
/* quire-serve: runs one engine and its frontends.
 *
 * The supervisor owns all data that must outlive a process: the listening socket (connections wait
 * in its backlog while a frontend is replaced), the table of metrics (counters continue), and the
 * folder of the engine's socket. All other data is in the children. It waits in poll(2) for a
 * signalfd and for the pipe on which frontends report that they are ready; what it does about that
 * is decided in supervise.c. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/hub/adapter_module.h"
#include "common/hub/hub.h"
#include "common/log.h"
#include "common/net.h"
#include "frontend/cli/supervise.h"

#define EXIT_INTERNAL 1
#define EXIT_USAGE    2
#define EXIT_MODEL    3 /* the same codes as the children's (engine/server/server.h) */
#define EXIT_ADDRESS  5

static void reap(struct supervisor *s)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        supervise_death(s, pid, status);
}

/* Files that SIGHUP makes the frontends read again. */
static bool frontends_read_again(const struct options *o)
{
    return *o->api_key_file || *o->ssl_certfile;
}

static void on_signals(struct supervisor *s)
{
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) {
            reap(s);
        } else if (info.ssi_signo == SIGHUP && frontends_read_again(s->options)) {
            supervise_signal(s, 1, SIGHUP);
        } else if (!s->stopping) {
            log_info("stopping");
            supervise_stop(s, 0);
        } else { /* a second signal: stop at once */
            supervise_signal(s, 0, SIGTERM);
        }
    }
}

static void on_ready(struct supervisor *s)
{
    unsigned char byte;
    while (read(s->ready_pipe, &byte, 1) == 1)
        supervise_hear(s, byte);
}

static int watch(struct supervisor *s)
{
    while (!supervise_over(s)) {
        struct pollfd fds[2] = {{s->signals, POLLIN, 0}, {s->ready_pipe, POLLIN, 0}};
        if (poll(fds, 2, supervise_wait_ms(s)) < 0 && errno != EINTR)
            break;
        if (fds[0].revents)
            on_signals(s);
        if (fds[1].revents)
            on_ready(s);
        supervise_due(s);
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

/* A pipe of the shell would be empty for all processes but the first. Missing files are reported by
 * the process that reads them. */
static FALLIBLE check_kept(const char *flag, const char *path, struct q_err *e)
{
    struct stat st;
    if (stat(path, &st) || S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
        return Q_OK;
    return q_fail(e, Q_INVALID,
                  "%s: %s: is a pipe or a device, expected a file: each frontend reads it, and "
                  "again after a restart",
                  flag, path);
}

static FALLIBLE check_files(const struct options *o, struct q_err *e)
{
    enum q_code rc;
    if ((rc = check_kept("--chat-template", o->chat_template, e)) ||
        (rc = check_kept("--api-key-file", o->api_key_file, e)))
        return rc;
    for (size_t i = 0; !rc && i < o->prefix_cache_shared.n; i++)
        rc = check_kept("--prefix-cache-shared", o->prefix_cache_shared.items[i], e);
    return rc;
}

/* The engine knows no name of the model, and a frontend no --lora-modules. */
static FALLIBLE check_adapters(const struct options *o, struct q_err *e)
{
    static struct model_names names;
    char dir[PATH_MAX];
    enum q_code rc;
    if (!o->lora_modules.n)
        return Q_OK;
    if ((rc = hub_resolve_files(dir, o->positional[0], *o->revision ? o->revision : NULL, e)))
        return rc;
    model_names_init(&names, o->positional[0], dir);
    return adapter_modules_check(o, &names, e);
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
    if (check_files(&o, &e)) {
        log_error("%s", e.message);
        return EXIT_USAGE;
    }
    if (net_raise_descriptors(NET_DESCRIPTORS_LEAST, &e)) { /* the children raise theirs further */
        log_error("%s", e.message);
        return EXIT_INTERNAL;
    }
    if (hub_prepare(&o, &e)) { /* before signals are blocked: SIGTERM ends a download */
        log_error("%s", e.message);
        return EXIT_MODEL;
    }
    if (check_adapters(&o, &e)) {
        log_error("%s", e.message);
        return e.code == Q_INVALID ? EXIT_USAGE : EXIT_MODEL;
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
    if (!*o.uds && !o.api_key.n && !*o.api_key_file)
        net_warn_open(o.host, s.resources.listening.port);
    supervise_start(&s);
    return watch(&s);
}
