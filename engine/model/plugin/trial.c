/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/plugin/trial.h"
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "engine/model/plugin/entry.h"

#define TRIAL_MS 30000
#define SURVIVED 77 /* exit status of a child that came to its end */

/* A crash ends it, whatever the program that it was forked from does with its own. */
static _Noreturn void child(const char *path)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* one that hangs does not outlive a parent that is killed */
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++)
        signal(crashes[i], SIG_DFL);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    plugin_entry *entry = handle ? plugin_entry_of(handle) : NULL;
    if (entry)
        (void)entry();
    _exit(SURVIVED);
}

/* Has it ended in time? Without pidfd_open (old kernels) this waits as long as it takes. */
static bool ends(pid_t pid)
{
    const int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (fd < 0)
        return true;
    const int n = poll(&p, 1, TRIAL_MS);
    close(fd);
    return n != 0;
}

FALLIBLE plugin_trial(const char *path, struct q_err *e)
{
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0)
        child(path);
    if (pid < 0) /* no process to be had: it is loaded here at once */
        return Q_OK;
    const bool ended = ends(pid);
    if (!ended)
        kill(pid, SIGKILL);
    if (waitpid(pid, &status, 0) != pid) /* the program that has the library takes all children */
        return Q_OK;
    if (!ended)
        return q_fail(e, Q_UNAVAILABLE, "plugin %s: loading it took more than %d s", path,
                      TRIAL_MS / 1000);
    if (WIFSIGNALED(status))
        return q_fail(e, Q_UNAVAILABLE, "plugin %s crashed while it was loaded: signal %d (%s)",
                      path, WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (WEXITSTATUS(status) != SURVIVED)
        return q_fail(e, Q_UNAVAILABLE,
                      "plugin %s ended the process while it was loaded, with status %d", path,
                      WEXITSTATUS(status));
    return Q_OK;
}
