/* SPDX-License-Identifier: Apache-2.0 */
/* A rank inherits its sockets, one to each other rank, and learns their numbers from its
 * environment. All other descriptors of the launcher are closed by exec. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/cpus.h"
#include "common/mem.h"
#include "engine/distill/launch_internal.h"
#include "engine/distill/transport_internal.h"

#define FDS_MORE   64 /* descriptors besides the sockets */
#define NO_PROGRAM 127

struct start {
    const struct launch_options *o;
    uint32_t n_restart;
    int *sockets; /* [n_rank][n_rank]: of the first rank, to the second; -1: none */
    struct cpus cpus;
    uint32_t n_thread; /* of all ranks */
    bool pins;         /* each rank has processors of its own */
    pid_t launcher;
};

static int *socket_of(struct start *s, uint32_t rank, uint32_t peer)
{
    return &s->sockets[(size_t)rank * s->o->n_rank + peer];
}

static void raise_fd_limit(uint32_t n_rank)
{
    struct rlimit limit;
    rlim_t wanted = (rlim_t)n_rank * n_rank + FDS_MORE;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit); /* without it socketpair says what is missing */
}

static enum q_code make_sockets(struct start *s, struct q_err *e)
{
    const uint32_t n = s->o->n_rank;
    s->sockets = q_calloc((size_t)n * n, sizeof *s->sockets);
    if (!s->sockets)
        return q_fail(e, Q_NO_MEMORY, "no memory for the sockets of %u ranks", n);
    memset(s->sockets, 0xff, (size_t)n * n * sizeof *s->sockets);
    raise_fd_limit(n);
    for (uint32_t rank = 0; rank < n; rank++)
        for (uint32_t peer = 0; peer < rank; peer++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
                return q_fail(e, Q_IO, "cannot make the sockets of %u ranks: %s", n,
                              strerror(errno));
            *socket_of(s, rank, peer) = pair[0];
            *socket_of(s, peer, rank) = pair[1];
        }
    return Q_OK;
}

static void close_sockets(struct start *s)
{
    const size_t n = (size_t)s->o->n_rank * s->o->n_rank;
    for (size_t i = 0; s->sockets && i < n; i++)
        if (s->sockets[i] >= 0)
            close(s->sockets[i]);
    q_free(s->sockets);
}

/* ---- processors ---- */

static uint32_t threads_of(const struct start *s, uint32_t rank)
{
    Q_ASSERT(s->o->n_rank > 0); /* launch_run checks it */
    uint32_t n = s->n_thread / s->o->n_rank + (rank < s->n_thread % s->o->n_rank);
    return n ? n : 1;
}

/* Processors are divided when there is one for each thread; else all ranks share all of them. */
static void divide(struct start *s)
{
    uint32_t n = s->o->n_thread;
    cpus_init(&s->cpus);
    if (!n)
        n = s->cpus.n_may < s->cpus.n ? s->cpus.n_may : s->cpus.n;
    s->n_thread = n;
    s->pins = n >= s->o->n_rank && n <= s->cpus.n;
}

static void pin_rank(const struct start *s, uint32_t rank)
{
    cpu_set_t own;
    uint32_t first = 0;
    if (!s->pins)
        return;
    for (uint32_t i = 0; i < rank; i++)
        first += threads_of(s, i);
    CPU_ZERO(&own);
    for (uint32_t i = 0; i < threads_of(s, rank); i++)
        CPU_SET(s->cpus.ids[first + i], &own);
    sched_setaffinity(0, sizeof own, &own); /* without it only the speed differs */
}

/* ---- a rank ---- */

static void set_number(const char *name, uint32_t value)
{
    char text[16];
    snprintf(text, sizeof text, "%u", value);
    setenv(name, text, 1);
}

static void set_environment(struct start *s, uint32_t rank)
{
    char text[TRANSPORT_RANKS_MAX * 12];
    size_t n = 0;
    for (uint32_t peer = 0; peer < s->o->n_rank; peer++) {
        int fd = *socket_of(s, rank, peer);
        n += (size_t)snprintf(text + n, sizeof text - n, "%s", peer ? "," : "");
        if (fd < 0) {
            n += (size_t)snprintf(text + n, sizeof text - n, "-");
            continue;
        }
        fcntl(fd, F_SETFD, 0);
        n += (size_t)snprintf(text + n, sizeof text - n, "%d", fd);
    }
    setenv(TRANSPORT_SOCKETS, text, 1);
    set_number(TRANSPORT_RANK, rank);
    set_number(TRANSPORT_SIZE, s->o->n_rank);
    set_number(LAUNCH_THREADS, threads_of(s, rank));
    if (s->n_restart)
        set_number(LAUNCH_RESTARTED, s->n_restart);
    else
        unsetenv(LAUNCH_RESTARTED);
}

/* In the new process. Only this thread runs in it, as in the launcher. */
_Noreturn static void become_rank(struct start *s, uint32_t rank, int log_fd)
{
    sigset_t none;
    const char *program = s->o->program ? s->o->program : "/proc/self/exe";
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0); /* Ctrl-C reaches only the launcher, which forwards it once */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != s->launcher)
        _exit(LAUNCH_EXIT_INTERNAL); /* the launcher ended before the line above */
    if (nothing >= 0)
        dup2(nothing, STDIN_FILENO);
    dup2(log_fd, STDERR_FILENO);
    set_environment(s, rank);
    pin_rank(s, rank);
    execv(program, s->o->argv);
    fprintf(stderr, "%s: %s\n", program, strerror(errno));
    _exit(NO_PROGRAM);
}

static enum q_code start_rank(struct start *s, uint32_t rank, struct launch_process *p,
                              struct q_err *e)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return q_fail(e, Q_IO, "cannot start rank %u: pipe: %s", rank, strerror(errno));
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        become_rank(s, rank, ends[1]);
    int failed = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return q_fail(e, Q_IO, "cannot start rank %u: fork: %s", rank, strerror(failed));
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    p->pid = pid;
    p->log_fd = ends[0];
    return Q_OK;
}

FALLIBLE launch_start(const struct launch_options *o, uint32_t n_restart,
                      struct launch_process *all, struct q_err *e)
{
    struct start s = {.o = o, .n_restart = n_restart, .launcher = getpid()};
    for (uint32_t rank = 0; rank < o->n_rank; rank++)
        all[rank] = (struct launch_process){.log_fd = -1};
    divide(&s);
    enum q_code rc = make_sockets(&s, e);
    for (uint32_t rank = 0; !rc && rank < o->n_rank; rank++)
        rc = start_rank(&s, rank, &all[rank], e);
    close_sockets(&s);
    cpus_release(&s.cpus);
    return rc;
}
