/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/plugin/trial.h"
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SURVIVED 77 /* exit status of a child that came to its end */

/* A crash ends it, whatever the program that it was forked from does with its own. */
static _Noreturn void child(const struct trial *t)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* one that hangs does not outlive a parent that is killed */
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++)
        signal(crashes[i], SIG_DFL);
    t->run(t->ctx);
    _exit(SURVIVED);
}

/* Has it ended in time? Without pidfd_open (old kernels) this waits as long as it takes. */
static bool ends(pid_t pid, int limit_ms)
{
    const int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (fd < 0)
        return true;
    const int n = poll(&p, 1, limit_ms);
    close(fd);
    return n != 0;
}

FALLIBLE plugin_trial(bool *ran, const struct trial *t, struct q_err *e)
{
    int status = 0;
    *ran = false;
    const pid_t pid = fork();
    if (pid == 0)
        child(t);
    if (pid < 0) /* no process to be had: it runs here at once */
        return Q_OK;
    const bool ended = ends(pid, t->limit_ms);
    if (!ended)
        kill(pid, SIGKILL);
    if (waitpid(pid, &status, 0) != pid) /* the program that has the library takes all children */
        return Q_OK;
    if (!ended)
        return q_fail(e, Q_UNAVAILABLE, "plugin %s hung %s: it took more than %d s", t->plugin,
                      t->when, t->limit_ms / 1000);
    if (WIFSIGNALED(status))
        return q_fail(e, Q_UNAVAILABLE, "plugin %s crashed %s: signal %d (%s)", t->plugin, t->when,
                      WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (WEXITSTATUS(status) != SURVIVED)
        return q_fail(e, Q_UNAVAILABLE, "plugin %s ended the process %s, with status %d", t->plugin,
                      t->when, WEXITSTATUS(status));
    *ran = true;
    return Q_OK;
}
