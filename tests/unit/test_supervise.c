/* SPDX-License-Identifier: Apache-2.0 */
/* supervise: which children are killed, and what an engine's death tells the next engine, whose
 * frontends hold crashes against the requests that were open. The order of deaths and restarts is
 * tested by tests/sim. */
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include "common/clock.h"
#include "common/death.h"
#include "frontend/cli/supervise.h"

#define ENGINE_HANGS 0xff  /* frontend/api/app.h: APP_ENGINE_HANGS */
#define MINUTE_MS    60000 /* longer than an engine is left alone after its start */
#define SILENT_MS    10000 /* after which a frontend is killed */

static int64_t now_ms = 1000000;
static pid_t last_pid, killed;
static bool is_stopped;
static struct options options;

int64_t __wrap_clock_ms(void);
int64_t __wrap_clock_ms(void)
{
    return now_ms;
}

int __wrap_kill(pid_t pid, int number);
int __wrap_kill(pid_t pid, int number)
{
    assert_int_equal(number, SIGKILL);
    killed = pid;
    return 0;
}

bool __wrap_death_was_stopped(pid_t pid);
bool __wrap_death_was_stopped(pid_t pid)
{
    assert_int_equal(pid, last_pid);
    return is_stopped;
}

uint64_t __wrap_death_oom_kills(void);
uint64_t __wrap_death_oom_kills(void)
{
    return 0;
}

FALLIBLE child_start(struct child *c, struct q_err *e)
{
    (void)e;
    c->pid = ++last_pid;
    c->started_ms = now_ms;
    return Q_OK;
}

static void start_engine(struct supervisor *s)
{
    *s = (struct supervisor){.options = &options, .n = 1};
    snprintf(s->children[0].name, sizeof s->children[0].name, "engine");
    last_pid = 100;
    supervise_start(s);
    assert_int_equal(s->children[0].pid, 101);
    now_ms += MINUTE_MS;
}

static void check_next(struct supervisor *s, const char *death, uint32_t n_failure)
{
    const struct child *engine = &s->children[0];
    assert_string_equal(engine->death, death);
    assert_int_equal(engine->n_failure, n_failure);
    assert_int_equal(engine->pid, 0);
    now_ms += MINUTE_MS;
    supervise_due(s);
    assert_int_equal(engine->pid, 102);
}

static void an_engine_that_hangs_has_crashed(void **state)
{
    (void)state;
    static struct supervisor s;
    start_engine(&s);
    is_stopped = false;
    supervise_hear(&s, ENGINE_HANGS);
    assert_int_equal(killed, 101);
    supervise_death(&s, 101, SIGKILL);
    check_next(&s, "crash: did not respond and was killed", 1);
    is_stopped = true; /* the next one is another process */
    supervise_death(&s, 102, SIGKILL);
    assert_string_equal(s.children[0].death, "other: was killed by signal 9 (Killed)");
}

static void an_engine_that_others_have_stopped_has_not(void **state)
{
    (void)state;
    static struct supervisor s;
    start_engine(&s);
    is_stopped = true;
    supervise_hear(&s, ENGINE_HANGS);
    assert_int_equal(killed, 101);
    supervise_death(&s, 101, SIGKILL);
    check_next(&s, "other: was killed by signal 9 (Killed)", 0);
}

static void other_deaths(void **state)
{
    (void)state;
    static struct supervisor s;
    static const struct {
        int status;
        const char *death;
        uint32_t n_failure;
    } rows[] = {
        {SIGKILL, "other: was killed by signal 9 (Killed)", 0},
        {SIGTERM, "other: was killed by signal 15 (Terminated)", 0},
        {SIGSEGV, "crash: was killed by signal 11 (Segmentation fault)", 1},
        {W_EXITCODE(1, 0), "crash: exited with code 1", 1},
        {W_EXITCODE(4, 0), "other: exited with code 4", 1}, /* it has looked for the cause */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        start_engine(&s);
        supervise_death(&s, 101, rows[i].status);
        check_next(&s, rows[i].death, rows[i].n_failure);
    }
}

static void start_frontend(struct supervisor *s)
{
    *s = (struct supervisor){.options = &options, .n = 2};
    s->children[1].is_frontend = true;
    snprintf(s->children[1].name, sizeof s->children[1].name, "frontend");
    last_pid = 100;
    killed = 0;
    supervise_start(s);
    supervise_hear(s, 0);
    assert_true(supervise_wait_ms(s) > 0);
}

/* As the loop of quire-serve does for so long. */
static void look_for(struct supervisor *s, int64_t ms)
{
    for (int64_t end_ms = now_ms + ms; now_ms < end_ms;) {
        const int64_t wait_ms = supervise_wait_ms(s);
        now_ms = wait_ms >= 0 && now_ms + wait_ms < end_ms ? now_ms + wait_ms : end_ms;
        supervise_due(s);
    }
}

static void a_frontend_that_is_silent_is_killed(void **state)
{
    (void)state;
    static struct supervisor s;
    start_frontend(&s);
    look_for(&s, SILENT_MS - 1);
    assert_int_equal(killed, 0);
    look_for(&s, 1);
    assert_int_equal(killed, 102);
}

/* A frozen container of any length: the time before it counts, and so does that after it. */
static void a_supervisor_that_did_not_run_kills_no_frontend(void **state)
{
    (void)state;
    static struct supervisor s;
    for (int64_t frozen_ms = SILENT_MS - 4000; frozen_ms < 3 * SILENT_MS; frozen_ms += 500) {
        start_frontend(&s);
        look_for(&s, SILENT_MS / 2);
        now_ms += frozen_ms;
        supervise_due(&s);
        assert_int_equal(killed, 0);
        look_for(&s, SILENT_MS / 2 - 1001);
        assert_int_equal(killed, 0);
        look_for(&s, 1001);
        assert_int_equal(killed, 102);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_that_hangs_has_crashed),
        cmocka_unit_test(an_engine_that_others_have_stopped_has_not),
        cmocka_unit_test(other_deaths),
        cmocka_unit_test(a_frontend_that_is_silent_is_killed),
        cmocka_unit_test(a_supervisor_that_did_not_run_kills_no_frontend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
