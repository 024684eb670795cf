/* SPDX-License-Identifier: Apache-2.0 */
/* launch: ranks of this program that end well, die, fail, hang, are stopped and start again; which
 * cause the run has, what the log says, and that no rank outlives its launcher. */
#include "check.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/cpus.h"
#include "common/file.h"
#include "common/log.h"
#include "engine/distill/launch.h"
#include "engine/distill/transport.h"
#include "folder.h"

#define HANG_SECONDS 120 /* for what never ends, on a machine with other work */
#define LOG_MAX      ((size_t)1 << 20)
#define NOTES        "QUIRE_TEST_LAUNCH" /* environment: a folder for notes of ranks */

/* ---- a rank: this program with the arguments "rank MODE" ---- */

/* A file of the folder: its name says what has happened. */
static void note(const char *what, unsigned number)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s-%u", getenv(NOTES), what, number);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
}

static volatile sig_atomic_t n_term;
static void on_term(int number)
{
    (void)number;
    n_term++;
}

struct rank_run {
    struct transport *t;
    uint32_t rank;
    struct q_err e;
};

/* All ranks are here. */
static void meet(struct rank_run *r)
{
    struct transport_group all = transport_all(r->t);
    uint64_t x = r->rank;
    enum q_code rc = transport_max(r->t, &all, &x, &r->e);
    if (rc) {
        fprintf(stderr, "meet: %s\n", r->e.message);
        int code = launch_exit_code(rc, transport_peer_failed(r->t));
        transport_fail(r->t, r->e.message);
        exit(code);
    }
}

_Noreturn static void die(struct rank_run *r)
{
    (void)r;
    fprintf(stderr, "about to die");
    raise(SIGKILL);
    abort();
}

static int rank_well(struct rank_run *r)
{
    meet(r);
    return launch_is_rank() && launch_n_thread() ? 0 : 1;
}

static int rank_kill(struct rank_run *r)
{
    meet(r);
    note("run", launch_n_restart());
    if (r->rank == 1)
        die(r);
    meet(r);
    return 0;
}

static int rank_kill_once(struct rank_run *r)
{
    return launch_n_restart() ? rank_well(r) : rank_kill(r);
}

/* Rank 2 fails; the others see it and end after it or before the launcher sees it. */
static int rank_fail(struct rank_run *r)
{
    meet(r);
    note("run", launch_n_restart());
    if (r->rank == 2) {
        fprintf(stderr, "the loss is no number\n");
        transport_fail(r->t, "the loss is no number");
        r->t = NULL;
        return LAUNCH_EXIT_NUMBERS;
    }
    meet(r);
    return 0;
}

static int rank_usage(struct rank_run *r)
{
    note("run", launch_n_restart());
    transport_fail(r->t, "wrong");
    r->t = NULL;
    return LAUNCH_EXIT_USAGE;
}

/* Rank 1 dies, rank 0 computes on and never sees it. */
static int rank_busy(struct rank_run *r)
{
    meet(r);
    if (r->rank == 1)
        die(r);
    while (pause() < 0)
        continue;
    return 1;
}

static int rank_term(struct rank_run *r)
{
    signal(SIGTERM, on_term);
    meet(r);
    note("ready", r->rank);
    while (!n_term)
        usleep(1000);
    usleep(100000); /* a second one would come here */
    note("terms", (unsigned)n_term * 10 + r->rank);
    meet(r);
    return 0;
}

static int rank_stubborn(struct rank_run *r)
{
    signal(SIGTERM, SIG_IGN);
    meet(r);
    note("ready", r->rank);
    while (pause() < 0)
        continue;
    return 1;
}

static int rank_log(struct rank_run *r)
{
    if (r->rank == 1) {
        char text[10001];
        memset(text, 'x', sizeof text - 1);
        text[sizeof text - 1] = 0;
        fprintf(stderr, "a line\n{\"json\": 1}\n\n%s\nno end", text);
    }
    meet(r);
    return 0;
}

static int rank_processors(struct rank_run *r)
{
    cpu_set_t own;
    sched_getaffinity(0, sizeof own, &own);
    note("threads", launch_n_thread() * 10 + r->rank);
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &own))
            note(r->rank ? "second" : "first", cpu);
    return 0;
}

static const struct {
    const char *name;
    int (*run)(struct rank_run *r);
} modes[] = {
    {"well", rank_well},
    {"kill", rank_kill},
    {"kill-once", rank_kill_once},
    {"fail", rank_fail},
    {"usage", rank_usage},
    {"busy", rank_busy},
    {"term", rank_term},
    {"stubborn", rank_stubborn},
    {"log", rank_log},
    {"processors", rank_processors},
};

static int run_rank(const char *mode)
{
    struct rank_run r = {.e = Q_ERR_INIT};
    alarm(HANG_SECONDS);
    if (transport_open(&r.t, &r.e) != Q_OK) {
        fprintf(stderr, "%s\n", r.e.message);
        return 1;
    }
    r.rank = transport_rank(r.t);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(modes[i].name, mode) == 0) {
            int code = modes[i].run(&r);
            transport_close(r.t);
            return code;
        }
    return 1;
}

/* ---- a launcher: a child of the test ---- */

struct run {
    struct folder folder;
    pid_t pid;
    int status;
    char *log;
};

static void run_begin(struct run *r, const char *mode, struct launch_options o)
{
    char *argv[] = {"test_distill_launch", "rank", (char *)(uintptr_t)mode, NULL};
    folder_init(&r->folder);
    setenv(NOTES, r->folder.path, 1);
    fflush(NULL);
    r->pid = fork();
    assert_true(r->pid >= 0);
    if (r->pid)
        return;
    char path[128];
    struct q_err e = Q_ERR_INIT;
    int code = 0;
    snprintf(path, sizeof path, "%s/log", r->folder.path);
    int fd = open(path, O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(fd, STDERR_FILENO);
    log_setup("launcher", LOG_INFO, false);
    alarm(HANG_SECONDS);
    o.argv = argv;
    if (launch_run(&o, &code, &e) != Q_OK) {
        fprintf(stderr, "launch_run: %s\n", e.message);
        code = 99;
    }
    _exit(code);
}

static bool noted(const struct run *r, const char *what, unsigned number)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s-%u", r->folder.path, what, number);
    return file_exists(path);
}

static void wait_for_note(const struct run *r, const char *what, unsigned number)
{
    for (int i = 0; i < HANG_SECONDS * 1000 && !noted(r, what, number); i++)
        usleep(1000);
    assert_true(noted(r, what, number));
}

/* The exit code of the launcher has to be `want`. */
static void run_end(struct run *r, int want)
{
    static struct buf log = BUF_INIT;
    char path[128];
    struct q_err e = Q_ERR_INIT;
    assert_int_equal(waitpid(r->pid, &r->status, 0), r->pid);
    snprintf(path, sizeof path, "%s/log", r->folder.path);
    buf_reset(&log);
    assert_ok(file_read(&log, path, LOG_MAX, &e), &e);
    r->log = (char *)(uintptr_t)buf_str(&log);
    if (!WIFEXITED(r->status) || WEXITSTATUS(r->status) != want)
        fail_msg("status %#x, wanted exit code %d; log:\n%s", (unsigned)r->status, want, r->log);
}

static void run_release(struct run *r)
{
    folder_release(&r->folder);
}

static void assert_logged(const struct run *r, const char *text)
{
    if (!strstr(r->log, text))
        fail_msg("no \"%s\" in:\n%s", text, r->log);
}

/* ---- the tests ---- */

static void test_well(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 4; n += 3) {
        struct run r;
        run_begin(&r, "well", (struct launch_options){.n_rank = n, .max_restarts = 1});
        run_end(&r, 0);
        run_release(&r);
    }
}

static void test_killed_rank(void **state)
{
    (void)state;
    struct run r;
    run_begin(&r, "kill", (struct launch_options){.n_rank = 3});
    run_end(&r, LAUNCH_EXIT_SIGNAL + SIGKILL);
    assert_logged(&r, "rank 1 was ended by signal 9 (Killed); its last log line: about to die\n");
    assert_logged(&r, "rank 0: meet: rank "); /* 1, or 2 because of it */
    assert_logged(&r, "rank 2: meet: rank ");
    assert_logged(&r, "rank 1 has died");
    run_release(&r);
}

static void test_failed_rank(void **state)
{
    (void)state;
    struct run r;
    run_begin(&r, "fail", (struct launch_options){.n_rank = 3, .max_restarts = 3});
    run_end(&r, LAUNCH_EXIT_NUMBERS);
    assert_logged(&r,
                  "rank 2 has ended with exit code 7; its last log line: the loss is no number");
    assert_logged(&r, "rank 2 has failed: the loss is no number");
    assert_true(noted(&r, "run", 0) && !noted(&r, "run", 1)); /* it would end in the same way */
    run_release(&r);
    run_begin(&r, "usage", (struct launch_options){.n_rank = 2, .max_restarts = 3});
    run_end(&r, LAUNCH_EXIT_USAGE);
    assert_false(noted(&r, "run", 1));
    run_release(&r);
}

static void test_restart(void **state)
{
    (void)state;
    struct run r;
    run_begin(&r, "kill-once", (struct launch_options){.n_rank = 3, .max_restarts = 2});
    run_end(&r, 0);
    assert_logged(&r, "rank 1 was ended by signal 9");
    assert_logged(&r, "restart 1 of 2");
    assert_null(strstr(r.log, "restart 2 of 2"));
    run_release(&r);
}

static void test_crash_loop(void **state)
{
    (void)state;
    struct run r;
    run_begin(&r, "kill", (struct launch_options){.n_rank = 2, .max_restarts = 2});
    run_end(&r, LAUNCH_EXIT_SIGNAL + SIGKILL);
    assert_logged(&r, "the run ends: 2 restarts have not helped");
    assert_true(noted(&r, "run", 0) && noted(&r, "run", 1) && noted(&r, "run", 2));
    assert_false(noted(&r, "run", 3));
    run_release(&r);
}

static void test_busy_rank(void **state)
{
    (void)state;
    struct run r;
    run_begin(&r, "busy", (struct launch_options){.n_rank = 2});
    run_end(&r, LAUNCH_EXIT_SIGNAL + SIGKILL);
    assert_logged(&r, "rank 1 was ended by signal 9");
    assert_null(strstr(r.log, "rank 0 was ended"));
    run_release(&r);
}

static void test_signal(void **state)
{
    (void)state;
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    for (int i = 0; i < 3; i++) {
        struct run r;
        run_begin(&r, "term", (struct launch_options){.n_rank = 2, .max_restarts = 1});
        wait_for_note(&r, "ready", 0);
        wait_for_note(&r, "ready", 1);
        kill(r.pid, signals[i]);
        usleep(20000);
        kill(r.pid, SIGHUP); /* a terminal that is closed later is no second signal */
        run_end(&r, 0);
        assert_logged(&r, "the ranks finish their step");
        assert_true(noted(&r, "terms", 10) && noted(&r, "terms", 11)); /* once */
        run_release(&r);
    }
}

static void test_second_signal(void **state)
{
    (void)state;
    struct run r;
    run_begin(&r, "stubborn", (struct launch_options){.n_rank = 2, .max_restarts = 1});
    wait_for_note(&r, "ready", 0);
    wait_for_note(&r, "ready", 1);
    kill(r.pid, SIGINT);
    usleep(50000); /* two pending ones would be one */
    kill(r.pid, SIGTERM);
    run_end(&r, LAUNCH_EXIT_SIGNAL + SIGINT);
    assert_logged(&r, "the ranks are killed");
    run_release(&r);
}

/* The test adopts ranks that have lost their launcher. */
static void test_dead_launcher(void **state)
{
    (void)state;
    struct run r;
    int status;
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    run_begin(&r, "stubborn", (struct launch_options){.n_rank = 3});
    for (unsigned rank = 0; rank < 3; rank++)
        wait_for_note(&r, "ready", rank);
    kill(r.pid, SIGKILL);
    assert_int_equal(waitpid(r.pid, &status, 0), r.pid);
    alarm(HANG_SECONDS);
    for (unsigned rank = 0; rank < 3; rank++) {
        assert_true(waitpid(-1, &status, 0) > 0);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    alarm(0);
    assert_int_equal(waitpid(-1, &status, 0), -1);
    prctl(PR_SET_CHILD_SUBREAPER, 0);
    run_release(&r);
}

static void test_log_lines(void **state)
{
    (void)state;
    struct run r;
    run_begin(&r, "log", (struct launch_options){.n_rank = 2});
    run_end(&r, 0);
    assert_logged(&r, "rank 1: a line\n{\"json\": 1}\nrank 1: \nrank 1: xxx");
    assert_logged(&r, "x\nrank 1: no end\n");
    size_t n = 0;
    for (const char *at = r.log; *at; at++)
        n += *at == 'x';
    assert_int_equal(n, 10000);
    run_release(&r);
}

static void test_processors(void **state)
{
    (void)state;
    struct cpus cpus;
    struct run r;
    cpus_init(&cpus);
    const uint32_t n = cpus.n;
    cpus_release(&cpus);
    run_begin(&r, "processors", (struct launch_options){.n_rank = 2, .n_thread = 3});
    run_end(&r, 0);
    assert_true(noted(&r, "threads", 20) && noted(&r, "threads", 11));
    run_release(&r);
    if (n < 2)
        skip_without("second processor");
    run_begin(&r, "processors", (struct launch_options){.n_rank = 2, .n_thread = 2});
    run_end(&r, 0);
    uint32_t n_first = 0, n_second = 0;
    for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        assert_false(noted(&r, "first", cpu) && noted(&r, "second", cpu));
        n_first += noted(&r, "first", cpu);
        n_second += noted(&r, "second", cpu);
    }
    assert_int_equal(n_first, 1);
    assert_int_equal(n_second, 1);
    run_release(&r);
}

static void test_refused(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct run r;
    int code = 0;
    assert_fails(launch_run(&(struct launch_options){.n_rank = 65}, &code, &e), Q_INVALID,
                 "65 ranks on one machine; 1 to 64", &e);
    assert_fails(launch_run(&(struct launch_options){.n_rank = 0}, &code, &e), Q_INVALID, "0 ranks",
                 &e);
    run_begin(&r, "well",
              (struct launch_options){.n_rank = 2, .max_restarts = 5, .program = "/no/program"});
    run_end(&r, 127);
    assert_logged(&r, "/no/program: No such file or directory");
    assert_null(strstr(r.log, "restart"));
    run_release(&r);
}

static void test_exit_codes(void **state)
{
    (void)state;
    assert_int_equal(launch_exit_code(Q_OK, false), 0);
    assert_int_equal(launch_exit_code(Q_IO, true), LAUNCH_EXIT_PEER);
    for (int code = Q_OK + 1; code < Q_CODE_COUNT; code++)
        assert_int_not_equal(launch_exit_code((enum q_code)code, false), 0);
    assert_int_equal(launch_exit_code(Q_INVALID, false), LAUNCH_EXIT_USAGE);
    assert_int_equal(launch_exit_code(Q_IO, false), LAUNCH_EXIT_INTERNAL);
    assert_false(launch_is_rank());
    assert_int_equal(launch_n_restart(), 0);
    assert_int_equal(launch_n_thread(), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_well),          cmocka_unit_test(test_killed_rank),
        cmocka_unit_test(test_failed_rank),   cmocka_unit_test(test_restart),
        cmocka_unit_test(test_crash_loop),    cmocka_unit_test(test_busy_rank),
        cmocka_unit_test(test_signal),        cmocka_unit_test(test_second_signal),
        cmocka_unit_test(test_dead_launcher), cmocka_unit_test(test_log_lines),
        cmocka_unit_test(test_processors),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_exit_codes),
    };
    if (argc > 2 && strcmp(argv[1], "rank") == 0)
        return run_rank(argv[2]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
