/* SPDX-License-Identifier: Apache-2.0 */
/* How real children ended. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#include "common/death.h"

/* The wait status of a child that ends by this signal, or with this code. */
static int status_of(int signal_number, int code)
{
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        signal(signal_number ? signal_number : SIGUSR1, SIG_DFL);
        if (signal_number)
            kill(getpid(), signal_number);
        _exit(code);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void check_cause(int signal_number, int code, bool outside, const char *text)
{
    char said[80];
    const int status = status_of(signal_number, code);
    death_describe(status, false, said, sizeof said);
    assert_string_equal(said, text);
    assert_int_equal(death_from_outside(status, false), outside);
    assert_false(death_from_outside(status, true));
}

static void signals_of_others_are_told_from_crashes(void **state)
{
    (void)state;
    check_cause(SIGKILL, 0, true, "was killed by signal 9 (Killed)");
    check_cause(SIGTERM, 0, true, "was killed by signal 15 (Terminated)");
    check_cause(SIGHUP, 0, true, "was killed by signal 1 (Hangup)");
    check_cause(SIGABRT, 0, false, "was killed by signal 6 (Aborted)");
    check_cause(SIGILL, 0, false, "was killed by signal 4 (Illegal instruction)");
    check_cause(0, 4, false, "exited with code 4");
    char said[80];
    death_describe(status_of(SIGKILL, 0), true, said, sizeof said);
    assert_string_equal(said, "was killed by signal 9 (Killed, out of memory)");
}

static void kills_for_lack_of_memory_are_counted(void **state)
{
    (void)state;
    assert_int_equal(death_oom_kills_of("nr_free_pages 7\noom_kill 12\nswap_ra 0\n"), 12);
    assert_int_equal(death_oom_kills_of("oom_kill 3\n"), 3);
    assert_int_equal(death_oom_kills_of("xoom_kill 3\noom_kills 4\n"), 0);
    assert_int_equal(death_oom_kills_of(""), 0);
    assert_int_equal(death_oom_kills(), death_oom_kills()); /* reads what this kernel has */
}

static pid_t start_child(void) /* which waits until it is killed */
{
    const pid_t pid = fork();
    if (pid == 0)
        for (;;)
            pause();
    return pid;
}

static void a_child_that_is_or_was_stopped_is_known(void **state)
{
    (void)state;
    siginfo_t info;
    const pid_t pid = start_child();
    assert_false(death_was_stopped(pid));
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOWAIT), 0);
    assert_true(death_was_stopped(pid));
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WSTOPPED), 0); /* another one has taken it */
    assert_true(death_was_stopped(pid));
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WCONTINUED | WNOWAIT), 0);
    assert_true(death_was_stopped(pid));
    assert_true(death_was_stopped(pid));
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WCONTINUED), 0);
    assert_false(death_was_stopped(pid));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_false(death_was_stopped(pid));
    assert_int_equal(waitpid(pid, NULL, 0), pid); /* its end was left to this */
    assert_false(death_was_stopped(pid));
}

static void a_child_that_ends_is_known(void **state)
{
    (void)state;
    siginfo_t info;
    const pid_t pid = start_child();
    assert_false(death_has_begun(pid));
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WSTOPPED), 0);
    assert_false(death_has_begun(pid));
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_true(death_has_begun(pid));
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    assert_false(death_has_begun(pid)); /* there is none */
}

/* A debugger's stop is told to the debugger alone. */
static void a_child_that_a_debugger_stops_is_known(void **state)
{
    (void)state;
    siginfo_t info;
    int pipe_fd[2], status;
    char said = 0;
    assert_int_equal(pipe(pipe_fd), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
        if (write(pipe_fd[1], "b", 1) == 1)
            for (;;)
                pause();
        _exit(1);
    }
    assert_int_equal(read(pipe_fd[0], &said, 1), 1);
    const pid_t debugger = fork();
    if (debugger == 0) {
        const bool has = ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0 &&
                         ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0 &&
                         waitpid(pid, &status, __WALL) == pid;
        if (write(pipe_fd[1], has ? "y" : "n", 1) == 1)
            for (;;)
                pause();
        _exit(1);
    }
    assert_int_equal(read(pipe_fd[0], &said, 1), 1);
    if (said == 'y')
        assert_true(death_was_stopped(pid));
    const pid_t both[] = {debugger, pid};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kill(both[i], SIGKILL), 0);
        assert_int_equal(waitid(P_PID, (id_t)both[i], &info, WEXITED), 0);
    }
    close(pipe_fd[0]);
    close(pipe_fd[1]);
    if (said != 'y')
        skip_without("permission to ptrace");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(signals_of_others_are_told_from_crashes),
        cmocka_unit_test(a_child_that_is_or_was_stopped_is_known),
        cmocka_unit_test(a_child_that_ends_is_known),
        cmocka_unit_test(a_child_that_a_debugger_stops_is_known),
        cmocka_unit_test(kills_for_lack_of_memory_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
