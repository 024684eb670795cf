/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/plugin/trial.h"
#include <dlfcn.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "engine/model/plugin/entry.h"

#define TRIAL_MS 30000
#define SURVIVED 77 /* exit status of a child that came to its end */

/* A crash ends it, whatever the program that it was forked from does with its own. */
static _Noreturn void child(void (*run)(void *ctx), void *ctx)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* one that hangs does not outlive a parent that is killed */
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++)
        signal(crashes[i], SIG_DFL);
    run(ctx);
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

/* when: "while it was loaded". *ran: it came to its end in a process of its own. */
static FALLIBLE try_in_child(bool *ran, const char *plugin, const char *when,
                             void (*run)(void *ctx), void *ctx, struct q_err *e)
{
    int status = 0;
    *ran = false;
    const pid_t pid = fork();
    if (pid == 0)
        child(run, ctx);
    if (pid < 0) /* no process to be had: it runs here at once */
        return Q_OK;
    const bool ended = ends(pid);
    if (!ended)
        kill(pid, SIGKILL);
    if (waitpid(pid, &status, 0) != pid) /* the program that has the library takes all children */
        return Q_OK;
    if (!ended)
        return q_fail(e, Q_UNAVAILABLE, "plugin %s hung %s: it took more than %d s", plugin, when,
                      TRIAL_MS / 1000);
    if (WIFSIGNALED(status))
        return q_fail(e, Q_UNAVAILABLE, "plugin %s crashed %s: signal %d (%s)", plugin, when,
                      WTERMSIG(status), strsignal(WTERMSIG(status)));
    if (WEXITSTATUS(status) != SURVIVED)
        return q_fail(e, Q_UNAVAILABLE, "plugin %s ended the process %s, with status %d", plugin,
                      when, WEXITSTATUS(status));
    *ran = true;
    return Q_OK;
}

static void load(void *path)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    plugin_entry *entry = handle ? plugin_entry_of(handle) : NULL;
    if (entry)
        (void)entry();
}

FALLIBLE plugin_trial(const char *path, struct q_err *e)
{
    char copy[PATH_MAX];
    bool ran;
    snprintf(copy, sizeof copy, "%s", path);
    return try_in_child(&ran, path, "while it was loaded", load, copy, e);
}

FALLIBLE plugin_trial_call(bool *ran, const struct plugin_arch *a, const char *callback,
                           void (*run)(void *ctx), void *ctx, struct q_err *e)
{
    char when[64];
    snprintf(when, sizeof when, "in its callback %s", callback);
    return try_in_child(ran, plugin_arch_text(a), when, run, ctx, e);
}
