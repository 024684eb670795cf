/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/worker_process.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/death.h"
#include "common/file.h"
#include "engine/worker/worker.h"

extern char **environ;

static FALLIBLE program_path(char out[PATH_MAX], const char *program, struct q_err *e)
{
    if (program && *program) {
        snprintf(out, PATH_MAX, "%s", program);
    } else {
        ssize_t n = readlink("/proc/self/exe", out, PATH_MAX - 1);
        if (n < 0)
            return q_fail(e, Q_IO, "engine: cannot read /proc/self/exe: %s", strerror(errno));
        out[n] = '\0';
        char *slash = strrchr(out, '/');
        size_t at = slash ? (size_t)(slash - out) + 1 : 0;
        if (at + sizeof "quire-worker" > PATH_MAX)
            return q_fail(e, Q_TOO_LARGE, "engine: the path of this program is too long");
        memcpy(out + at, "quire-worker", sizeof "quire-worker");
    }
    if (!file_exists(out))
        return q_fail(e, Q_NOT_FOUND, "engine: the worker program %s does not exist", out);
    return Q_OK;
}

/* The child starts with default signal actions, an empty signal mask and the ring's two descriptors
 * (the file action dup2 of a descriptor onto itself clears close-on-exec); all other descriptors of
 * the engine are close-on-exec. */
static FALLIBLE spawn(pid_t *pid, const char *path, const struct ring *ring, struct q_err *e)
{
    char fds[48];
    char name[] = "quire-worker";
    char *argv[] = {name, fds, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attr;
    sigset_t none, all;
    int memory_fd = ring_memory_fd(ring), event_fd = ring_event_fd(ring);
    int items_fd = ring_items_fd(ring);
    snprintf(fds, sizeof fds, "%d,%d,%d", memory_fd, event_fd, items_fd);
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attr);
    posix_spawn_file_actions_adddup2(&actions, memory_fd, memory_fd);
    posix_spawn_file_actions_adddup2(&actions, event_fd, event_fd);
    if (items_fd >= 0)
        posix_spawn_file_actions_adddup2(&actions, items_fd, items_fd);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setsigdefault(&attr, &all);
    int rc = posix_spawn(pid, path, &actions, &attr, argv, environ);
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&actions);
    return rc ? q_fail(e, Q_IO, "engine: cannot start %s: %s", path, strerror(rc)) : Q_OK;
}

FALLIBLE worker_process_start(struct worker_process *w, struct ring *ring, const char *program,
                              struct q_err *e)
{
    char path[PATH_MAX];
    enum q_code rc;
    Q_ASSERT(ring && !w->pid && !w->has_thread);
    *w = (struct worker_process)WORKER_PROCESS_INIT;
    if ((rc = program_path(path, program, e)) || (rc = spawn(&w->pid, path, ring, e)))
        return rc;
    w->ring = ring;
    w->n_oom = death_oom_kills();
    w->pid_fd = (int)syscall(SYS_pidfd_open, w->pid, 0);
    if (w->pid_fd < 0) {
        rc = q_fail(e, Q_IO, "engine: cannot monitor the worker: %s", strerror(errno));
        worker_process_end(w, 0);
    }
    return rc;
}

static void *thread_main(void *arg)
{
    struct q_err e = Q_ERR_INIT;
    if (worker_run(arg, NULL, &e)) {
        /* the ring has reported the error to the engine */
    }
    return NULL;
}

FALLIBLE worker_process_start_thread(struct worker_process *w, struct ring *ring, struct q_err *e)
{
    Q_ASSERT(ring && !w->pid && !w->has_thread);
    *w = (struct worker_process)WORKER_PROCESS_INIT;
    int rc = pthread_create(&w->thread, NULL, thread_main, ring);
    if (rc)
        return q_fail(e, Q_IO, "engine: cannot start a worker thread: %s", strerror(rc));
    pthread_setname_np(w->thread, "quire-worker");
    w->ring = ring;
    w->has_thread = true;
    return Q_OK;
}

static void forget_process(struct worker_process *w)
{
    Q_ASSERT(w->pid > 0);
    if (w->pid_fd >= 0)
        close(w->pid_fd);
    w->pid_fd = -1;
    w->pid = 0;
}

bool worker_process_ended(struct worker_process *w, struct q_err *e)
{
    int status;
    if (!w->pid || waitpid(w->pid, &status, WNOHANG) != w->pid)
        return false;
    char how[80];
    const bool was_oom = death_oom_kills() > w->n_oom;
    death_describe(status, was_oom, how, sizeof how);
    w->from_outside = death_from_outside(status, was_oom);
    q_fail_text(e, Q_UNAVAILABLE, "the worker (process %d) %s", (int)w->pid, how);
    forget_process(w);
    return true;
}

bool worker_process_was_stopped(const struct worker_process *w)
{
    return w->pid && death_was_stopped(w->pid);
}

bool worker_process_is_ending(const struct worker_process *w)
{
    return w->pid && death_has_begun(w->pid);
}

void worker_process_end(struct worker_process *w, int timeout_ms)
{
    if (w->ring)
        ring_stop(w->ring);
    if (w->has_thread)
        pthread_join(w->thread, NULL);
    if (w->pid) {
        struct pollfd p = {.fd = w->pid_fd, .events = POLLIN};
        if (w->pid_fd < 0 || poll(&p, 1, timeout_ms) != 1)
            kill(w->pid, SIGKILL);
        waitpid(w->pid, NULL, 0);
        forget_process(w);
    }
    *w = (struct worker_process)WORKER_PROCESS_INIT;
}
