/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher only waits: for signals, for the logs of ranks, for the end of a rank. A rank that
 * ends with an error closes its sockets, so the others fail in their next message and end by
 * themselves, with LAUNCH_EXIT_PEER; END_MS later those that still compute are killed. The cause of
 * the run's end is the rank that ended first with another code: order of death alone would name a
 * rank that failed because of it. */
#include "engine/distill/launch.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/parse.h"
#include "engine/distill/launch_internal.h"
#include "engine/distill/transport_internal.h"

#define END_MS           2000 /* from a rank's failure to the end of the others */
#define RESTART_MS       100  /* before the first restart; doubles */
#define RESTART_MS_MAX   5000
#define CANNOT_RUN_FIRST 126 /* exit codes of a program that cannot be run: 126, 127 */

struct launch {
    const struct launch_options *o;
    struct launch_process *ranks; /* [n_rank] */
    int signal_fd;
    uint32_t n_running, n_ended, n_restart;
    int stop_signal;    /* the first SIGTERM, SIGINT or SIGHUP; 0: none */
    bool was_killed;    /* a second one came */
    int64_t kill_at_ms; /* 0: not due */
};

bool launch_is_rank(void)
{
    return getenv(TRANSPORT_SIZE) || transport_mpi_is_rank();
}

static uint32_t number_in(const char *name)
{
    const char *text = getenv(name);
    int64_t value = 0;
    struct q_err ignored;
    return text && parse_i64(&value, text, 0, UINT32_MAX, name, &ignored) == Q_OK ? (uint32_t)value
                                                                                  : 0;
}

uint32_t launch_n_restart(void)
{
    return number_in(LAUNCH_RESTARTED);
}

uint32_t launch_n_thread(void)
{
    return number_in(LAUNCH_THREADS);
}

int launch_exit_code(enum q_code rc, bool peer_failed)
{
    if (rc == Q_OK)
        return LAUNCH_EXIT_OK;
    if (peer_failed)
        return LAUNCH_EXIT_PEER;
    switch (rc) {
    case Q_INVALID:
    case Q_UNSUPPORTED:
    case Q_NOT_FOUND:
    case Q_MISMATCH:
    case Q_TOO_LARGE:
    case Q_CORRUPT:
        return LAUNCH_EXIT_USAGE;
    default:
        return LAUNCH_EXIT_INTERNAL;
    }
}

/* ---- one run of the ranks ---- */

static void signal_ranks(struct launch *l, int number)
{
    for (uint32_t rank = 0; rank < l->o->n_rank; rank++)
        if (l->ranks[rank].pid) {
            kill(l->ranks[rank].pid, number);
            l->ranks[rank].was_killed = l->ranks[rank].was_killed || number == SIGKILL;
        }
}

static void stop(struct launch *l, int number)
{
    if (l->stop_signal && (number == SIGHUP || number == SIGPIPE))
        return; /* a terminal or a pipe that is closed can send several */
    if (l->stop_signal) {
        log_warning("signal %d (%s) again: the ranks are killed", number, strsignal(number));
        l->was_killed = true;
        signal_ranks(l, SIGKILL);
        return;
    }
    log_info("signal %d (%s): the ranks finish their step", number, strsignal(number));
    l->stop_signal = number;
    signal_ranks(l, SIGTERM);
}

static void read_signals(struct launch *l)
{
    struct signalfd_siginfo info;
    while (read(l->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            stop(l, (int)info.ssi_signo);
}

static bool has_failed(const struct launch_process *p)
{
    return p->i_end && p->status != 0;
}

static void reap(struct launch *l)
{
    for (uint32_t rank = 0; rank < l->o->n_rank; rank++) {
        struct launch_process *p = &l->ranks[rank];
        if (!p->pid || waitpid(p->pid, &p->status, WNOHANG) != p->pid)
            continue;
        p->pid = 0;
        p->i_end = ++l->n_ended;
        l->n_running--;
        launch_forward_end(p, rank, l->o->n_rank);
        if (has_failed(p) && !l->kill_at_ms)
            l->kill_at_ms = clock_ms() + END_MS;
    }
}

/* Until all ranks have ended. */
static void watch(struct launch *l)
{
    struct pollfd fds[TRANSPORT_RANKS_MAX + 1];
    const uint32_t n = l->o->n_rank;
    while (l->n_running) {
        int wait_ms = -1;
        if (l->kill_at_ms) {
            int64_t left = l->kill_at_ms - clock_ms();
            wait_ms = left > 0 ? (int)left : 0;
        }
        fds[n] = (struct pollfd){.fd = l->signal_fd, .events = POLLIN};
        for (uint32_t rank = 0; rank < n; rank++)
            fds[rank] = (struct pollfd){.fd = l->ranks[rank].log_fd, .events = POLLIN};
        if (poll(fds, n + 1, wait_ms) < 0 && errno != EINTR)
            usleep(1000); /* no memory in the kernel */
        for (uint32_t rank = 0; rank < n; rank++)
            launch_forward(&l->ranks[rank], rank, n);
        read_signals(l);
        reap(l);
        if (l->kill_at_ms && clock_ms() >= l->kill_at_ms) {
            signal_ranks(l, SIGKILL);
            l->kill_at_ms = INT64_MAX;
        }
    }
}

/* ---- why it has ended ---- */

/* Less is nearer to the cause. */
static uint32_t cause_class(const struct launch_process *p)
{
    if (!has_failed(p))
        return 3;
    if (p->was_killed && WIFSIGNALED(p->status) && WTERMSIG(p->status) == SIGKILL)
        return 2;
    return WIFEXITED(p->status) && WEXITSTATUS(p->status) == LAUNCH_EXIT_PEER ? 1 : 0;
}

/* n_rank: all ranks have ended without an error. */
static uint32_t find_cause(const struct launch *l)
{
    uint32_t found = l->o->n_rank;
    for (uint32_t rank = 0; rank < l->o->n_rank; rank++) {
        const struct launch_process *p = &l->ranks[rank];
        if (!has_failed(p))
            continue;
        const struct launch_process *best = found < l->o->n_rank ? &l->ranks[found] : NULL;
        if (!best || cause_class(p) < cause_class(best) ||
            (cause_class(p) == cause_class(best) && p->i_end < best->i_end))
            found = rank;
    }
    return found;
}

static int exit_code_of(int status)
{
    if (WIFSIGNALED(status))
        return LAUNCH_EXIT_SIGNAL + WTERMSIG(status);
    return WEXITSTATUS(status);
}

static void log_cause(const struct launch *l, uint32_t rank)
{
    const struct launch_process *p = &l->ranks[rank];
    const char *last = p->last[0] ? p->last : "nothing";
    if (WIFSIGNALED(p->status))
        log_error("rank %u was ended by signal %d (%s); its last log line: %s", rank,
                  WTERMSIG(p->status), strsignal(WTERMSIG(p->status)), last);
    else
        log_error("rank %u has ended with exit code %d; its last log line: %s", rank,
                  WEXITSTATUS(p->status), last);
}

/* Would the ranks end in the same way again? */
static bool is_final(int code)
{
    return code == LAUNCH_EXIT_OK || code == LAUNCH_EXIT_USAGE || code == LAUNCH_EXIT_NUMBERS ||
           code == CANNOT_RUN_FIRST || code == CANNOT_RUN_FIRST + 1;
}

/* ---- restarts ---- */

/* A signal meanwhile ends the run. */
static void wait_for_restart(struct launch *l)
{
    struct pollfd fd = {.fd = l->signal_fd, .events = POLLIN};
    int64_t delay = RESTART_MS;
    for (uint32_t i = 1; i < l->n_restart && delay < RESTART_MS_MAX; i++)
        delay *= 2;
    int64_t until = clock_ms() + (delay < RESTART_MS_MAX ? delay : RESTART_MS_MAX);
    while (!l->stop_signal && clock_ms() < until) {
        if (poll(&fd, 1, (int)(until - clock_ms())) > 0)
            read_signals(l);
    }
}

/* Runs the ranks once. True: they are to be started again. */
static enum q_code run_once(struct launch *l, int *exit_code, bool *again, struct q_err *e)
{
    const struct launch_options *o = l->o;
    *again = false;
    enum q_code rc = launch_start(o, l->n_restart, l->ranks, e);
    l->n_running = l->n_ended = 0;
    l->kill_at_ms = 0;
    for (uint32_t rank = 0; rank < o->n_rank; rank++)
        l->n_running += l->ranks[rank].pid != 0;
    if (rc)
        signal_ranks(l, SIGKILL);
    watch(l);
    if (rc)
        return rc;
    uint32_t cause = find_cause(l);
    *exit_code = cause < o->n_rank ? exit_code_of(l->ranks[cause].status) : LAUNCH_EXIT_OK;
    if (l->was_killed)
        *exit_code = LAUNCH_EXIT_SIGNAL + l->stop_signal;
    else if (cause < o->n_rank)
        log_cause(l, cause);
    if (is_final(*exit_code) || l->stop_signal)
        return Q_OK;
    *again = l->n_restart < o->max_restarts;
    if (*again)
        log_warning("the ranks start again from the newest state: restart %u of %u",
                    l->n_restart + 1, o->max_restarts);
    else if (o->max_restarts)
        log_error("the run ends: %u restarts have not helped", o->max_restarts);
    return Q_OK;
}

static enum q_code run_all(struct launch *l, int *exit_code, struct q_err *e)
{
    bool again = true;
    enum q_code rc = Q_OK;
    while (!rc && again) {
        rc = run_once(l, exit_code, &again, e);
        if (!again || rc)
            break;
        l->n_restart++;
        wait_for_restart(l);
        if (l->stop_signal) {
            *exit_code = LAUNCH_EXIT_SIGNAL + l->stop_signal;
            break;
        }
    }
    return rc;
}

FALLIBLE launch_run(const struct launch_options *o, int *exit_code, struct q_err *e)
{
    struct launch l = {.o = o};
    sigset_t ours, before;
    if (!o->n_rank || o->n_rank > TRANSPORT_RANKS_MAX)
        return q_fail(e, Q_INVALID, "%u ranks on one machine; 1 to %u are possible (more: mpirun)",
                      o->n_rank, TRANSPORT_RANKS_MAX);
    l.ranks = q_calloc(o->n_rank, sizeof *l.ranks);
    if (!l.ranks)
        return q_fail(e, Q_NO_MEMORY, "no memory for %u ranks", o->n_rank);
    sigemptyset(&ours);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours,
              SIGHUP); /* the terminal is closed; nohup ignores it, and then it never comes */
    sigaddset(&ours, SIGPIPE); /* the reader of the log has ended */
    sigaddset(&ours, SIGCHLD);
    sigprocmask(SIG_BLOCK, &ours, &before);
    l.signal_fd = signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK);
    enum q_code rc = Q_OK;
    if (l.signal_fd < 0)
        rc = q_fail(e, Q_IO, "signalfd: %s", strerror(errno));
    else
        rc = run_all(&l, exit_code, e);
    if (l.signal_fd >= 0)
        close(l.signal_fd);
    sigprocmask(SIG_SETMASK, &before, NULL);
    q_free(l.ranks);
    return rc;
}
