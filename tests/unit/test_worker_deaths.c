/* SPDX-License-Identifier: Apache-2.0 */
/* core: requests that kill the worker, at once or late, one or several among many, or that hang it:
 * they end with an error, all others with the golden tokens, and the engine continues. */
#include "core_run.h"
#include "fault_worker.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/clock.h"
#include "engine/core/core_internal.h"

#define LONG_S 3600 /* a limit of a step that is reached by a jump of the clock alone */

static int64_t jumped_ms;

int64_t __real_clock_ms(void);
int64_t __wrap_clock_ms(void);
int64_t __wrap_clock_ms(void)
{
    return __real_clock_ms() + jumped_ms;
}

static struct core_config fault_config(const struct golden *g)
{
    struct core_config c = config_of(g->dir);
    c.in_process = false;
    c.worker_program = program_beside("/tests/fault_worker");
    return c;
}

static void submit_faulty(uint64_t req_id, uint32_t fault)
{
    static const uint32_t before = 11;
    struct golden_prompt p = {.ids = {before, FAULT_POISON, fault}, .n = 3, .n_greedy = 24};
    submit_prompt(req_id, &p, 0);
}

/* n requests, of which those in `faulty` (a bit each) have that fault. */
static void run_with(const struct golden *g, const struct core_config *c, uint32_t n,
                     uint64_t faulty, uint32_t fault)
{
    struct q_err e = Q_ERR_INIT;
    open_core(c);
    for (uint32_t i = 0; i < n; i++)
        if (faulty >> i & 1)
            submit_faulty(i, fault);
        else
            submit_prompt(i, &g->prompts[i % g->n], 0);
    finish_all(n);
    for (uint32_t i = 0; i < n; i++)
        if (faulty >> i & 1) {
            assert_int_equal(answers[i].finish, FINISH_ERROR);
            assert_int_equal(engine.notes[i].why.code, Q_INTERNAL);
            assert_non_null(
                strstr(engine.notes[i].why.message, "crashed each time it computed this"));
        } else {
            check_answer(i, &g->prompts[i % g->n], "beside a culprit");
        }
    assert_ok(core_step(engine.core, &e), &e);
    assert_true(core_state(engine.core, NULL) != CORE_FAILED);
}

static void the_culprit_ends_and_all_others_finish(void **state)
{
    (void)state;
    static const uint32_t faults[] = {FAULT_AT_ONCE, FAULT_DECODING};
    static const uint64_t who[] = {1u << 3, 1u << 0 | 1u << 5 | 1u << 9};
    struct golden g;
    golden_get(&g, "qwen2");
    for (uint32_t i = 0; i < 4; i++) {
        struct core_config c = fault_config(&g);
        run_with(&g, &c, 10, who[i / 2], faults[i % 2]);
        uint64_t n = core_n_restart(engine.core);
        print_message("fault %u, culprits %#x: %u restarts\n", faults[i % 2], (unsigned)who[i / 2],
                      (unsigned)n);
        assert_true(n >= 3 && n <= 12);
        core_free(engine.core);
    }
}

/* More than the deaths in a row that end an engine: each culprit starts that count anew. */
static void many_culprits_in_a_row_do_not_end_the_engine(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "qwen2");
    struct core_config c = fault_config(&g);
    run_with(&g, &c, 10, 0x3fe, FAULT_AT_ONCE);
    core_free(engine.core);
}

/* Chunks, few blocks and few slots: suspects wait and come back like everybody else. */
static void culprits_are_found_in_a_small_pool(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "qwen2");
    struct core_config c = fault_config(&g);
    c.worker.max_model_len = 144;
    c.worker.n_block = 11;
    c.worker.max_num_batched_tokens = 16;
    c.worker.max_num_seqs = 3;
    run_with(&g, &c, 12, 1u << 2 | 1u << 7, FAULT_DECODING);
    core_free(engine.core);
}

static void a_suspect_may_be_aborted(void **state)
{
    (void)state;
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    golden_get(&g, "qwen2");
    struct core_config c = fault_config(&g);
    open_core(&c);
    submit_prompt(0, &g.prompts[0], 0);
    submit_faulty(1, FAULT_AT_ONCE);
    assert_ok(core_step(engine.core, &e), &e);
    while (core_n_restart(engine.core) < 2) {
        run_once(&e);
        assert_int_equal(e.code, Q_OK);
    }
    assert_true(core_abort(engine.core, 1, 1));
    finish_all(1);
    check_answer(0, &g.prompts[0], "after the abort of a suspect");
    core_free(engine.core);
}

static void a_worker_that_hangs_is_replaced(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "qwen2");
    struct core_config c = fault_config(&g);
    c.worker_timeout_s = 1;
    run_with(&g, &c, 4, 1u << 1, FAULT_HANGING);
    assert_non_null(strstr(engine.notes[1].why.message, "--worker-timeout"));
    core_free(engine.core);
    c.worker_timeout_s = 300;
    c.stall_timeout_s = 1; /* many times what a step of this model takes */
    run_with(&g, &c, 4, 1u << 1, FAULT_HANGING);
    assert_non_null(strstr(engine.notes[1].why.message, "exceeded the step limit of "));
    core_free(engine.core);
    /* One that is stopped from outside is no request's fault: nothing is lost. */
    c.worker_program = program_beside("/bin/quire-worker");
    open_core(&c);
    assert_int_equal(kill(core_worker_pid(engine.core), SIGSTOP), 0);
    submit_prompt(0, &g.prompts[0], 0);
    finish_all(1);
    check_answer(0, &g.prompts[0], "after SIGSTOP");
    assert_true(core_n_restart(engine.core) >= 1);
    core_free(engine.core);
}

static void wait_restart(uint64_t n)
{
    struct q_err e = Q_ERR_INIT;
    while (core_n_restart(engine.core) < n || core_state(engine.core, NULL) != CORE_READY) {
        run_once(&e);
        assert_int_equal(e.code, Q_OK);
    }
}

/* Kills from outside in the middle of a step, as many in a row as an engine survives, are no
 * request's fault: not even that of the one that is computed each time. */
static void kills_from_outside_are_nobodys_fault(void **state)
{
    (void)state;
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    golden_get(&g, "qwen2");
    struct core_config c = fault_config(&g);
    open_core(&c);
    submit_prompt(0, &g.prompts[0], 0);
    submit_faulty(1, FAULT_HANGING); /* no step is finished */
    for (uint32_t i = 1; i <= CORE_RESTARTS_MAX; i++) {
        assert_ok(core_step(engine.core, &e), &e);
        assert_int_equal(kill(core_worker_pid(engine.core), SIGKILL), 0);
        wait_restart(i);
    }
    assert_int_equal(answers[1].finish, FINISH_NONE);
    assert_true(core_abort(engine.core, 1, 1));
    core_free(engine.core); /* the worker hangs in its step */
    /* Beside a request that does crash the worker, the crash is found and the kills are not. */
    open_core(&c);
    submit_prompt(0, &g.prompts[0], 0);
    submit_faulty(1, FAULT_DECODING);
    assert_ok(core_step(engine.core, &e), &e);
    assert_int_equal(kill(core_worker_pid(engine.core), SIGKILL), 0);
    finish_all(2);
    assert_int_equal(answers[1].finish, FINISH_ERROR);
    assert_non_null(strstr(engine.notes[1].why.message, "signal 4 (Illegal instruction)"));
    check_answer(0, &g.prompts[0], "beside kills and a culprit");
    core_free(engine.core);
}

/* Let the worker begin a step; it does not finish it. Stop it there, perhaps continue it. */
static void stop_in_step(bool stops, bool continues)
{
    struct q_err e = Q_ERR_INIT;
    siginfo_t info;
    const pid_t pid = core_worker_pid(engine.core);
    assert_ok(core_step(engine.core, &e), &e);
    while (!ring_computing(engine.core->ring))
        usleep(1000);
    if (stops) {
        assert_int_equal(kill(pid, SIGSTOP), 0);
        assert_int_equal(waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOWAIT), 0);
    }
    if (continues) {
        assert_int_equal(kill(pid, SIGCONT), 0);
        assert_int_equal(waitid(P_PID, (id_t)pid, &info, WCONTINUED | WNOWAIT), 0);
    }
}

/* Let the step exceed its limit: once more if this process was slow. */
static void exceed_limit(void)
{
    struct q_err e = Q_ERR_INIT;
    for (int i = 0; i < 2 && core_worker_pid(engine.core); i++) {
        jumped_ms += core_wait_ms(engine.core);
        assert_ok(core_step(engine.core, &e), &e);
    }
    assert_int_equal(core_worker_pid(engine.core), 0);
}

/* A worker that others stop in a step exceeds its limit through no fault of the request. Three such
 * steps would blame it, and so would two beside one hang: only the hangs count. */
static void stops_in_a_step_are_nobodys_fault(void **state)
{
    (void)state;
    static const bool stops[] = {true, false, true, false, true, false};
    const uint32_t n = sizeof stops / sizeof *stops;
    struct golden g;
    golden_get(&g, "qwen2");
    struct core_config c = fault_config(&g);
    c.worker_timeout_s = LONG_S;
    open_core(&c);
    submit_faulty(0, FAULT_HANGING);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(answers[0].finish, FINISH_NONE);
        wait_restart(i);
        stop_in_step(stops[i], i % 4 == 2);
        exceed_limit();
        jumped_ms += LONG_S * INT64_C(1000); /* the next worker starts at once */
    }
    assert_int_equal(answers[0].finish, FINISH_ERROR);
    assert_non_null(strstr(engine.notes[0].why.message, ") exceeded the step limit of 3600.0 s"));
    core_free(engine.core);
}

/* A frozen container: clock and step go on where neither the loop nor the worker ran. */
static void a_loop_that_did_not_run_blames_no_worker(void **state)
{
    (void)state;
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    golden_get(&g, "qwen2");
    struct core_config c = fault_config(&g);
    c.worker_timeout_s = LONG_S;
    open_core(&c);
    submit_faulty(0, FAULT_HANGING);
    stop_in_step(false, false);
    const pid_t pid = core_worker_pid(engine.core);
    jumped_ms += 2 * LONG_S * INT64_C(1000);
    assert_ok(core_step(engine.core, &e), &e);
    assert_int_equal(core_worker_pid(engine.core), pid);
    assert_true(core_wait_ms(engine.core) > LONG_S * 500); /* from now on */
    jumped_ms += 2 * LONG_S * INT64_C(1000);               /* a loop that is always late */
    assert_ok(core_step(engine.core, &e), &e);
    assert_int_equal(core_worker_pid(engine.core), 0);
    assert_true(core_abort(engine.core, 1, 0));
    core_free(engine.core);
}

/* The program is replaced while the engine runs: for a while there is none. */
static void a_missing_worker_program_is_waited_for(void **state)
{
    (void)state;
    struct golden g;
    char path[PATH_MAX];
    struct q_err e = Q_ERR_INIT;
    golden_get(&g, "qwen2");
    struct core_config c = fault_config(&g);
    snprintf(path, sizeof path, "%s-%d", c.worker_program, (int)getpid());
    unlink(path);
    assert_int_equal(link(c.worker_program, path), 0);
    c.worker_program = path;
    open_core(&c);
    submit_prompt(0, &g.prompts[0], 0);
    assert_ok(core_step(engine.core, &e), &e);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(kill(core_worker_pid(engine.core), SIGKILL), 0);
    for (int64_t until = clock_ms() + 400; clock_ms() < until;) {
        run_once(&e);
        assert_int_equal(e.code, Q_OK);
    }
    assert_int_equal(core_worker_pid(engine.core), 0);
    assert_int_equal(link(program_beside("/tests/fault_worker"), path), 0);
    finish_all(1);
    check_answer(0, &g.prompts[0], "after a worker whose program was missing");
    core_free(engine.core);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_culprit_ends_and_all_others_finish),
        cmocka_unit_test(many_culprits_in_a_row_do_not_end_the_engine),
        cmocka_unit_test(culprits_are_found_in_a_small_pool),
        cmocka_unit_test(a_suspect_may_be_aborted),
        cmocka_unit_test(a_worker_that_hangs_is_replaced),
        cmocka_unit_test(kills_from_outside_are_nobodys_fault),
        cmocka_unit_test(stops_in_a_step_are_nobodys_fault),
        cmocka_unit_test(a_loop_that_did_not_run_blames_no_worker),
        cmocka_unit_test(a_missing_worker_program_is_waited_for),
    };
    log_setup("test", getenv("QUIRE_TEST_LOG") ? LOG_DEBUG : LOG_ERROR, false);
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
