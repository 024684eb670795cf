/* SPDX-License-Identifier: Apache-2.0 */
#include "common/child.h"
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define RETURNED 77   /* exit status of a child whose function returned */
#define KILL_MS  5000 /* from SIGKILL to the end; a process in a driver's call may take longer */

/* A crash ends the child, whatever the program does about its own. */
static _Noreturn void be_child(void (*run)(void *), void *ctx)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; i < sizeof crashes / sizeof *crashes; i++)
        signal(crashes[i], SIG_DFL);
    run(ctx);
    _exit(RETURNED);
}

/* Has the process of this descriptor ended within so many milliseconds? Without a descriptor (a
 * kernel before 5.3) the caller waits as long as it takes. */
static bool ends_within(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return fd < 0 || poll(&p, 1, ms) != 0;
}

struct child_result child_run(void (*run)(void *ctx), void *ctx, int limit_ms)
{
    const struct child_result none = {CHILD_NONE, 0}, hung = {CHILD_HUNG, 0};
    int status = 0;
    const pid_t pid = fork();
    if (pid == 0)
        be_child(run, ctx);
    if (pid < 0)
        return none;
    const int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    const bool in_time = ends_within(fd, limit_ms);
    bool has_ended = in_time;
    if (!in_time) {
        kill(pid, SIGKILL);
        has_ended = ends_within(fd, KILL_MS);
    }
    if (fd >= 0)
        close(fd);
    if (!has_ended)
        return hung;
    if (waitpid(pid, &status, 0) != pid) /* the program takes the end of every child */
        return in_time ? none : hung;
    if (!in_time)
        return hung;
    if (WIFSIGNALED(status))
        return (struct child_result){CHILD_KILLED, WTERMSIG(status)};
    if (WEXITSTATUS(status) != RETURNED)
        return (struct child_result){CHILD_EXITED, WEXITSTATUS(status)};
    return (struct child_result){CHILD_DONE, 0};
}
