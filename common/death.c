/* SPDX-License-Identifier: Apache-2.0 */
#include "common/death.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include "common/buf.h"
#include "common/file.h"

#define VMSTAT_BYTES_MAX ((size_t)1 << 20)
#define STAT_BYTES_MAX   4096

uint64_t death_oom_kills_of(const char *vmstat)
{
    static const char name[] = "oom_kill ";
    for (const char *line = vmstat; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, name, sizeof name - 1))
            return strtoull(line + sizeof name - 1, NULL, 10);
    }
    return 0;
}

uint64_t death_oom_kills(void)
{
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    uint64_t n = 0;
    if (file_read(&text, "/proc/vmstat", VMSTAT_BYTES_MAX, &e) == Q_OK)
        n = death_oom_kills_of(buf_str(&text));
    buf_release(&text);
    return n;
}

bool death_from_outside(int status, bool was_oom)
{
    static const int sent[] = {SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGQUIT};
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++)
        if (WIFSIGNALED(status) && WTERMSIG(status) == sent[i])
            return !was_oom;
    return false;
}

/* Of /proc/PID/stat, man 5 proc. */
struct process_state {
    char letter; /* 0: there is no such process */
    unsigned flags;
};
#define PF_EXITING 0x4u /* include/linux/sched.h of Linux: its threads end, its memory is freed */

/* Both stand behind the process's name in parentheses, which may hold any byte. */
static struct process_state state_of(pid_t pid)
{
    struct buf text = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    struct process_state state = {0};
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (file_read(&text, path, STAT_BYTES_MAX, &e) == Q_OK) {
        const char *after = strrchr(buf_str(&text), ')');
        if (!after ||
            sscanf(after + 1, " %c %*d %*d %*d %*d %*d %u", &state.letter, &state.flags) != 2)
            state = (struct process_state){0};
    }
    buf_release(&text);
    return state;
}

bool death_was_stopped(pid_t pid)
{
    siginfo_t info = {.si_pid = 0};
    const int what = WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT;
    if (waitid(P_PID, (id_t)pid, &info, what) == 0 && info.si_pid == pid)
        return true;
    const char state = state_of(pid).letter; /* the stop of a debugger is not told to the parent */
    return state == 'T' || state == 't';
}

bool death_has_begun(pid_t pid)
{
    const struct process_state state = state_of(pid);
    return state.letter == 'Z' || state.letter == 'X' || state.flags & PF_EXITING;
}

void death_describe(int status, bool was_oom, char *out, size_t size)
{
    if (WIFSIGNALED(status))
        snprintf(out, size, "was killed by signal %d (%s%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)), was_oom ? ", out of memory" : "");
    else
        snprintf(out, size, "exited with code %d", WEXITSTATUS(status));
}
