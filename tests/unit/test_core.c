/* SPDX-License-Identifier: Apache-2.0 */
/* core: golden tokens through scheduler, ring and worker, the same in any batch, chunk and pool;
 * deaths of the worker; what cannot be loaded; broken logits. */
#include "core_run.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include "common/clock.h"
#include "common/file.h"
#include "common/mem.h"

static void run_golden(const struct golden *g, const struct core_config *c, const char *what)
{
    open_core(c);
    for (uint32_t i = 0; i < g->n; i++)
        submit_prompt(i, &g->prompts[i], 0);
    finish_all(g->n);
    for (uint32_t i = 0; i < g->n; i++)
        check_answer(i, &g->prompts[i], what);
    core_free(engine.core);
}

static void every_golden_model_gives_its_greedy_tokens(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_GOLDEN_MODEL; i++) {
        struct golden g;
        golden_get(&g, golden_models[i]);
        struct core_config c = config_of(g.dir);
        run_golden(&g, &c, golden_models[i]);
    }
}

/* The same tokens for every batch, chunk size and pool; small pools preempt all the time. */
static void batch_chunk_and_pool_change_nothing(void **state)
{
    (void)state;
    static const char *const models[] = {"llama", "mistral"};
    static const uint32_t chunks[] = {1, 5, 16, 33, 512}, seqs[] = {1, 2, 3, 8};
    uint64_t n_preemption = 0;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct golden g;
        golden_get(&g, models[m]);
        for (uint32_t i = 0; i < 10; i++) {
            struct core_config c = config_of(g.dir);
            struct scheduler_stats s;
            c.worker.max_model_len = 144;
            c.worker.n_block = i % 2 ? 9 : 11; /* the longest needs 9 */
            c.worker.max_num_batched_tokens = chunks[i % 5];
            c.worker.max_num_seqs = seqs[i % 4];
            c.worker.n_thread = i % 4 == 3 ? 2 : 1;
            char what[100];
            snprintf(what, sizeof what, "%s, %u blocks, chunk %u, %u sequences", models[m],
                     c.worker.n_block, chunks[i % 5], seqs[i % 4]);
            open_core(&c);
            for (uint32_t j = 0; j < 3 * g.n; j++)
                submit_prompt(j, &g.prompts[j % g.n], 0);
            finish_all(3 * g.n);
            for (uint32_t j = 0; j < 3 * g.n; j++)
                check_answer(j, &g.prompts[j % g.n], what);
            core_stats(engine.core, &s);
            n_preemption += s.n_preemption;
            core_free(engine.core);
        }
    }
    print_message("%llu preemptions\n", (unsigned long long)n_preemption);
    assert_true(n_preemption > 5);
}

/* A replayed request continues at the token where it stopped. */
static void emitted_tokens_are_continued(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "llama");
    struct core_config c = config_of(g.dir);
    open_core(&c);
    for (uint32_t i = 0; i < g.n; i++)
        submit_prompt(i, &g.prompts[i], 1 + 5 * i);
    finish_all(g.n);
    for (uint32_t i = 0; i < g.n; i++)
        check_answer(i, &g.prompts[i], "continued");
    core_free(engine.core);
}

static void aborted_requests_leave_nothing(void **state)
{
    (void)state;
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    struct scheduler_stats s;
    golden_get(&g, "llama");
    struct core_config c = config_of(g.dir);
    open_core(&c);
    for (uint32_t round = 0; round < 20; round++) {
        bits_forget(&engine);
        for (uint32_t i = 0; i < g.n; i++)
            submit_prompt(i, &g.prompts[i], 0);
        for (uint32_t i = 0; i < round; i++)
            assert_ok(core_step(engine.core, &e), &e);
        if (round % 2)
            assert_int_equal(core_abort_frontend(engine.core, 1), g.n - engine.n_finished);
        else
            for (uint32_t i = 0; i < g.n; i++)
                core_abort(engine.core, 1, i);
        core_stats(engine.core, &s);
        assert_int_equal(s.kv_blocks_used, 0);
        assert_false(core_abort(engine.core, 1, 0));
        answers[0].finish = FINISH_NONE;
        answers[0].n = 0;
        engine.n_finished = 0;
        submit_prompt(0, &g.prompts[0], 0);
        finish_all(1);
        check_answer(0, &g.prompts[0], "after aborts");
    }
    core_free(engine.core);
}

/* The pool does not hold all that could run, so there is swap space. */
static void with_swap(struct core_config *c)
{
    c->worker.n_block = 24;
    c->worker.swap_bytes = 1 << 20;
    c->policy.preemption = PREEMPT_SWAP;
}

/* So many of those that run go to host memory. */
static void swap_out_last(uint32_t n)
{
    struct scheduler_stats s;
    for (uint32_t i = 0; i < n; i++)
        assert_true(core_preempt_last(engine.core));
    core_stats(engine.core, &s);
    assert_int_equal(s.n_swapped, n);
}

static void a_killed_worker_is_replaced_and_nothing_is_lost(void **state)
{
    (void)state;
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    for (uint32_t n_before = 0; n_before < 60; n_before += 7) {
        golden_get(&g, n_before < 30 ? "qwen2" : "lfm2"); /* the second has states of sequences */
        struct core_config c = config_of(g.dir);
        c.in_process = false;
        c.worker_program = program_beside("/bin/quire-worker");
        with_swap(&c);
        open_core(&c);
        pid_t first = core_worker_pid(engine.core);
        assert_true(first > 0);
        for (uint32_t i = 0; i < g.n; i++)
            submit_prompt(i, &g.prompts[i], 0);
        uint32_t n_token = 0;
        assert_ok(core_step(engine.core, &e), &e);
        while (n_token < n_before) {
            run_once(&e);
            n_token = 0;
            for (uint32_t i = 0; i < g.n; i++)
                n_token += answers[i].n;
        }
        if (n_before)
            swap_out_last(1);
        assert_int_equal(kill(first, SIGKILL), 0);
        finish_all(g.n);
        for (uint32_t i = 0; i < g.n; i++)
            check_answer(i, &g.prompts[i], "after kill -9");
        assert_int_equal(core_n_restart(engine.core), 1);
        assert_true(core_worker_pid(engine.core) != first);
        core_free(engine.core);
    }
}

static uint32_t tokens_so_far(uint32_t n)
{
    uint32_t n_token = 0;
    for (uint32_t i = 0; i < n; i++)
        n_token += answers[i].n;
    return n_token;
}

static void put_to_sleep(uint32_t level)
{
    struct q_err e = Q_ERR_INIT;
    struct scheduler_stats s;
    assert_ok(core_sleep(engine.core, level, &e), &e);
    assert_ok(core_step(engine.core, &e), &e);
    while (!core_sleeping(engine.core))
        run_once(&e);
    assert_ok(core_step(engine.core, &e), &e);
    assert_int_equal(core_wait_ms(engine.core), -1);
    core_stats(engine.core, &s);
    assert_int_equal(s.n_running + s.n_in_flight, 0);
    assert_int_equal(s.kv_blocks_used, 0);
    if (level == 2)
        assert_int_equal(core_worker_pid(engine.core), 0);
}

/* Asleep in the middle of everything, some in host memory, by level 1, by 2, by 2 after 1, the
 * worker a thread or a process; a request comes meanwhile. */
static void sleep_loses_nothing(void **state)
{
    (void)state;
    static const uint32_t levels[][2] = {{1, 0}, {2, 0}, {1, 2}};
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    golden_get(&g, "llama");
    for (uint32_t i = 0; i < 6; i++) {
        struct core_config c = config_of(g.dir);
        c.in_process = i % 2;
        c.worker_program = program_beside("/bin/quire-worker");
        with_swap(&c);
        open_core(&c);
        assert_fails(core_sleep(engine.core, 3, &e), Q_INVALID, "expected 1", &e);
        for (uint32_t j = 0; j + 1 < g.n; j++)
            submit_prompt(j, &g.prompts[j], 0);
        assert_ok(core_step(engine.core, &e), &e);
        while (tokens_so_far(g.n) < 10 + i)
            run_once(&e);
        swap_out_last(2);
        for (int j = 0; j < 2 && levels[i / 2][j]; j++)
            put_to_sleep(levels[i / 2][j]);
        uint32_t n_token = tokens_so_far(g.n);
        submit_prompt(g.n - 1, &g.prompts[g.n - 1], 0);
        assert_ok(core_step(engine.core, &e), &e);
        assert_true(core_sleeping(engine.core) && tokens_so_far(g.n) == n_token);
        core_wake(engine.core);
        assert_false(core_sleeping(engine.core));
        assert_ok(core_step(engine.core, &e), &e);
        finish_all(g.n);
        for (uint32_t j = 0; j < g.n; j++)
            check_answer(j, &g.prompts[j], "after sleep");
        assert_int_equal(core_n_restart(engine.core), 0);
        core_free(engine.core);
    }
}

static void a_worker_that_always_dies_is_given_up(void **state)
{
    (void)state;
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    golden_get(&g, "llama");
    struct core_config c = config_of(g.dir);
    c.in_process = false;
    c.worker_program = "/bin/false";
    assert_ok(core_new(&engine.core, &c, bits_sink, &engine, &e), &e);
    int64_t until = clock_ms() + 30000;
    while (core_state(engine.core, NULL) != CORE_FAILED && clock_ms() < until)
        run_once(&e);
    assert_fails(core_step(engine.core, &e), Q_UNAVAILABLE, "exited with code 1", &e);
    assert_true(core_worker_died(engine.core));
    core_free(engine.core);
    c.worker_program = "/nowhere/quire-worker";
    assert_fails(core_new(&engine.core, &c, bits_sink, &engine, &e), Q_NOT_FOUND,
                 "/nowhere/quire-worker", &e);
}

static void what_cannot_be_loaded_is_said(void **state)
{
    (void)state;
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    golden_get(&g, "llama");
    struct core_config c = config_of("/nowhere");
    assert_fails(core_new(&engine.core, &c, bits_sink, &engine, &e), Q_NOT_FOUND, "/nowhere", &e);
    static const bool in_process[] = {true, false};
    for (int i = 0; i < 2; i++) {
        c = config_of(g.dir);
        c.in_process = in_process[i];
        c.worker_program = program_beside("/bin/quire-worker");
        c.worker.n_block = 1;
        assert_ok(core_new(&engine.core, &c, bits_sink, &engine, &e), &e);
        const struct msg_submit m = {.req_id = 1};
        assert_fails(core_submit(engine.core, 1, &m, &e), Q_UNAVAILABLE, "loading", &e);
        while (core_state(engine.core, NULL) == CORE_LOADING)
            run_once(&e);
        assert_int_equal(core_state(engine.core, NULL), CORE_FAILED);
        assert_fails(core_step(engine.core, &e), Q_NO_MEMORY,
                     "possible remedies: --max-model-len 16, --num-gpu-blocks-override", &e);
        assert_false(core_worker_died(engine.core));
        core_free(engine.core);
    }
}

/* A model folder whose weights are all NaN. */
static void make_broken_model(const char *dir, const char *like)
{
    struct buf b = BUF_INIT;
    struct q_err e = Q_ERR_INIT;
    char path[PATH_MAX];
    uint64_t header = 0;
    mkdir(dir, 0700);
    assert_ok(path_join(path, sizeof path, like, "config.json", &e), &e);
    assert_ok(file_read(&b, path, 1 << 20, &e), &e);
    assert_ok(path_join(path, sizeof path, dir, "config.json", &e), &e);
    assert_ok(file_write(path, b.data, b.len, 0600, &e), &e);
    buf_reset(&b);
    assert_ok(path_join(path, sizeof path, like, "model.safetensors", &e), &e);
    assert_ok(file_read(&b, path, 1 << 24, &e), &e);
    memcpy(&header, b.data, sizeof header);
    memset(b.data + 8 + header, 0xff, b.len - 8 - header);
    assert_ok(path_join(path, sizeof path, dir, "model.safetensors", &e), &e);
    assert_ok(file_write(path, b.data, b.len, 0600, &e), &e);
    buf_release(&b);
}

static void broken_logits_end_their_request_only(void **state)
{
    (void)state;
    struct golden g;
    char dir[64], path[128];
    golden_get(&g, "llama");
    snprintf(dir, sizeof dir, "/tmp/quire-nan-%d", (int)getpid());
    make_broken_model(dir, g.dir);
    struct core_config c = config_of(dir);
    open_core(&c);
    for (uint32_t round = 0; round < 2; round++) { /* the engine still accepts requests */
        bits_forget(&engine);
        for (uint32_t i = 0; i < g.n; i++)
            submit_prompt(i, &g.prompts[i], 0);
        finish_all(g.n);
        for (uint32_t i = 0; i < g.n; i++) {
            assert_int_equal(answers[i].finish, FINISH_ERROR);
            assert_int_equal(answers[i].n, 0);
        }
    }
    assert_int_equal(core_n_restart(engine.core), 0);
    core_free(engine.core);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, i ? "config.json" : "model.safetensors");
        unlink(path);
    }
    rmdir(dir);
}

static void fingerprints_tell_settings_apart(void **state)
{
    (void)state;
    struct golden g;
    char first[CORE_FINGERPRINT_MAX];
    golden_get(&g, "llama-bias-tied");
    struct core_config c = config_of(g.dir);
    open_core(&c);
    snprintf(first, sizeof first, "%s", core_info(engine.core)->fingerprint);
    assert_int_equal(strlen(first), 19);
    core_free(engine.core);
    c.worker.max_num_seqs = 2; /* changes no token */
    open_core(&c);
    assert_string_equal(first, core_info(engine.core)->fingerprint);
    core_free(engine.core);
    c.worker.kv_given = true;
    c.worker.kv_dtype = DT_I8;
    open_core(&c);
    assert_string_not_equal(first, core_info(engine.core)->fingerprint);
    core_free(engine.core);
    c.worker.kv_given = false;
    c.worker.dtype = DT_BF16;
    open_core(&c);
    assert_string_not_equal(first, core_info(engine.core)->fingerprint);
    core_free(engine.core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_golden_model_gives_its_greedy_tokens),
        cmocka_unit_test(batch_chunk_and_pool_change_nothing),
        cmocka_unit_test(emitted_tokens_are_continued),
        cmocka_unit_test(aborted_requests_leave_nothing),
        cmocka_unit_test(a_killed_worker_is_replaced_and_nothing_is_lost),
        cmocka_unit_test(a_worker_that_always_dies_is_given_up),
        cmocka_unit_test(what_cannot_be_loaded_is_said),
        cmocka_unit_test(broken_logits_end_their_request_only),
        cmocka_unit_test(fingerprints_tell_settings_apart),
        cmocka_unit_test(sleep_loses_nothing),
    };
    log_setup("test", getenv("QUIRE_TEST_LOG") ? LOG_DEBUG : LOG_ERROR, false);
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
