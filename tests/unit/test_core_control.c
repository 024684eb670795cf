/* SPDX-License-Identifier: Apache-2.0 */
/* A core that is controlled: pauses of all three kinds, other weights while requests run,
 * profiles. */
#include <signal.h>
#include <stdlib.h>
#include "checkpoint.h"
#include "core_run.h"
#include "engine/grammar/grammar.h"

static struct golden g;
static struct folder folder;
static char other_dir[PATH_MAX];                      /* the same model, other weights */
static struct bits_answer with_other[GOLDEN_PROMPTS]; /* what they answer */

static struct q_err e;

static uint32_t n_token(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g.n; i++)
        n += answers[i].n;
    return n;
}

static uint32_t n_ended(enum finish_reason why)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g.n; i++)
        n += answers[i].finish == why;
    return n;
}

static struct scheduler_stats stats(void)
{
    struct scheduler_stats s;
    core_stats(engine.core, &s);
    return s;
}

/* All prompts are with the core, `max_num_seqs` of them have begun, and some tokens have come. */
static void begin(const struct core_config *c, uint32_t n_first)
{
    open_core(c);
    for (uint32_t i = 0; i < g.n; i++)
        submit_prompt(i, &g.prompts[i], 0);
    assert_ok(core_step(engine.core, &e), &e);
    while (n_token() < n_first)
        run_once(&e);
}

static struct core_config two_at_once(void)
{
    struct core_config c = config_of(g.dir);
    c.worker.max_num_seqs = 2;
    c.prefix_cache = true;
    return c;
}

static void turn_until_paused(void)
{
    while (!core_paused(engine.core))
        run_once(&e);
    uint32_t n = n_token();
    for (int i = 0; i < 3; i++)
        assert_ok(core_step(engine.core, &e), &e);
    assert_int_equal(n_token(), n); /* nothing is in flight, nothing is planned */
    assert_int_equal(stats().n_in_flight, 0);
}

static void check_all(const char *what)
{
    for (uint32_t i = 0; i < g.n; i++)
        check_answer(i, &g.prompts[i], what);
}

static void a_pause_keeps_requests(void **state)
{
    (void)state;
    struct core_config c = two_at_once();
    begin(&c, 5);
    assert_false(core_pausing(engine.core) || core_paused(engine.core));
    core_pause(engine.core, IN_FLIGHT_KEEP, true);
    assert_true(core_pausing(engine.core));
    turn_until_paused();
    assert_int_equal(stats().n_running, 2);
    assert_int_equal(stats().kv_blocks_cached, 0);
    core_resume(engine.core);
    assert_false(core_pausing(engine.core) || core_paused(engine.core));
    finish_all(g.n);
    check_all("after a pause");
    core_free(engine.core);
}

/* Their tokens stay delivered, no further ones are sent, and new requests wait. */
static void a_pause_aborts_requests(void **state)
{
    (void)state;
    struct core_config c = two_at_once();
    begin(&c, 5);
    uint32_t n = n_token(), n_done = engine.n_finished;
    core_pause(engine.core, IN_FLIGHT_ABORT, false);
    assert_int_equal(engine.n_finished, g.n);
    assert_int_equal(n_ended(FINISH_ABORT), g.n - n_done);
    assert_int_equal(n_token(), n);
    assert_int_equal(stats().kv_blocks_used, 0);
    turn_until_paused();
    bits_forget(&engine);
    submit_prompt(0, &g.prompts[0], 0);
    assert_ok(core_step(engine.core, &e), &e);
    assert_true(core_paused(engine.core));
    assert_int_equal(stats().n_waiting, 1);
    core_resume(engine.core);
    finish_all(1);
    check_answer(0, &g.prompts[0], "after a pause that aborted");
    core_free(engine.core);
}

/* Its grammar is on the way to the compiler or back, so it is not with the scheduler yet. */
static void a_pause_aborts_what_is_being_compiled(void **state)
{
    (void)state;
    static const char regex[] = "[a-z]+ [0-9]{3}";
    const struct golden_prompt *p = &g.prompts[0];
    const struct msg_submit m = {
        .req_id = 0,
        .prompt = {p->ids, p->n},
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = 8,
        .grammar_kind = GRAMMAR_REGEX,
        .grammar = {(const uint8_t *)regex, sizeof regex - 1},
    };
    struct core_config c = two_at_once();
    open_core(&c);
    assert_ok(core_submit(engine.core, 1, &m, &e), &e);
    assert_true(core_busy(engine.core));
    core_pause(engine.core, IN_FLIGHT_ABORT, false);
    assert_int_equal(engine.n_finished, 1);
    assert_int_equal(answers[0].finish, FINISH_ABORT);
    assert_false(core_busy(engine.core));
    core_resume(engine.core);
    bits_forget(&engine);
    submit_prompt(1, &g.prompts[1], 0); /* and what the compiler gives back later begins nothing */
    finish_all(1);
    assert_int_equal(answers[0].finish, FINISH_NONE);
    assert_int_equal(answers[0].n, 0);
    core_free(engine.core);
}

static void a_pause_waits_for_what_has_begun(void **state)
{
    (void)state;
    struct core_config c = two_at_once();
    begin(&c, 5);
    uint32_t n_begun = stats().n_begun, n_done = engine.n_finished;
    assert_int_equal(n_begun, 2);
    core_pause(engine.core, IN_FLIGHT_WAIT, false);
    assert_true(core_pausing(engine.core) && !core_paused(engine.core));
    turn_until_paused();
    assert_int_equal(engine.n_finished, n_done + n_begun);
    assert_int_equal(n_ended(FINISH_LENGTH), engine.n_finished);
    assert_int_equal(stats().n_waiting, g.n - engine.n_finished);
    assert_int_equal(stats().n_begun, 0);
    core_resume(engine.core);
    finish_all(g.n);
    check_all("after a pause that waited");
    core_free(engine.core);
}

/* A worker that dies in the middle of it puts those that have begun back into the queue: they are
 * finished all the same. */
static void a_pause_waits_through_a_death(void **state)
{
    (void)state;
    struct core_config c = two_at_once();
    c.in_process = false;
    c.worker_program = program_beside("/bin/quire-worker");
    begin(&c, 5);
    uint32_t n_done = engine.n_finished;
    core_pause(engine.core, IN_FLIGHT_WAIT, false);
    assert_int_equal(kill(core_worker_pid(engine.core), SIGKILL), 0);
    while (core_n_restart(engine.core) == 0)
        run_once(&e);
    turn_until_paused();
    assert_int_equal(engine.n_finished, n_done + 2);
    core_resume(engine.core);
    finish_all(g.n);
    check_all("after a death in a pause");
    core_free(engine.core);
}

static FALLIBLE reload(const char *dir, enum in_flight_mode mode)
{
    struct q_err result = Q_ERR_INIT;
    enum q_code rc;
    q_err_reset(&e);
    if ((rc = core_reload(engine.core, dir, mode, &e)))
        return rc;
    assert_true(core_reloading(engine.core));
    struct q_err more = Q_ERR_INIT;
    assert_fails(core_reload(engine.core, dir, mode, &more), Q_UNAVAILABLE, "in progress", &more);
    assert_ok(core_step(engine.core, &e), &e);
    while (!core_take_reload(engine.core, &result)) {
        run_once(&e);
        assert_int_equal(e.code, Q_OK);
    }
    assert_false(core_reloading(engine.core));
    e = result;
    return result.code;
}

static void check_with_other(uint32_t i, uint32_t n_before, const char *what)
{
    const struct bits_answer *a = &answers[i], *want = &with_other[i];
    assert_int_equal(a->finish, FINISH_LENGTH);
    assert_int_equal(a->n, want->n);
    for (uint32_t k = n_before; k < a->n; k++)
        if (a->sampled[k].token != want->sampled[k].token)
            fail_msg("%s, request %u: token %u is %u, with the new weights it is %u", what, i, k,
                     a->sampled[k].token, want->sampled[k].token);
}

static void ask_again(void)
{
    bits_forget(&engine);
    for (uint32_t i = 0; i < g.n; i++)
        submit_prompt(i, &g.prompts[i], 0);
    finish_all(g.n);
}

/* Every request ends with the weights it began with: old ones, then new ones, and nothing that is
 * cached of the old is used. A later worker has the new ones too. */
static void reload_after_what_has_begun(void **state)
{
    (void)state;
    char first[CORE_FINGERPRINT_MAX];
    for (int in_process = 0; in_process < 2; in_process++) {
        struct core_config c = two_at_once();
        c.in_process = in_process;
        c.worker_program = program_beside("/bin/quire-worker");
        begin(&c, 5);
        snprintf(first, sizeof first, "%s", core_info(engine.core)->fingerprint);
        assert_ok(reload(other_dir, IN_FLIGHT_WAIT), &e);
        uint32_t n_old = engine.n_finished;
        assert_true(n_old >= 2 && n_old < g.n);
        assert_string_not_equal(first, core_info(engine.core)->fingerprint);
        assert_string_equal(core_weights_dir(engine.core), other_dir);
        finish_all(g.n);
        for (uint32_t i = 0; i < g.n; i++)
            if (i < n_old)
                check_answer(i, &g.prompts[i], "before the reload");
            else
                check_with_other(i, 0, "after the reload");
        ask_again();
        for (uint32_t i = 0; i < g.n; i++)
            check_with_other(i, 0, "after the reload, again");
        if (!in_process) {
            assert_int_equal(kill(core_worker_pid(engine.core), SIGKILL), 0);
            ask_again();
            for (uint32_t i = 0; i < g.n; i++)
                check_with_other(i, 0, "by the worker after");
        }
        assert_ok(reload(g.dir, IN_FLIGHT_WAIT), &e); /* and back */
        assert_string_equal(first, core_info(engine.core)->fingerprint);
        ask_again();
        check_all("with the first weights again");
        core_free(engine.core);
    }
}

/* Those that are kept go on exactly as if the new weights were asked to continue their tokens. */
static void reload_in_the_middle_of_requests(void **state)
{
    (void)state;
    static struct bits_answer at_reload[GOLDEN_PROMPTS];
    struct core_config c = config_of(g.dir), fresh = config_of(other_dir);
    c.prefix_cache = true;
    begin(&c, 3 * g.n);
    assert_ok(core_reload(engine.core, other_dir, IN_FLIGHT_KEEP, &e), &e);
    struct q_err result;
    while (!core_take_reload(engine.core, &result)) {
        memcpy(at_reload, answers, sizeof at_reload); /* none comes after the order is given */
        run_once(&e);
    }
    assert_int_equal(result.code, Q_OK);
    assert_int_equal(stats().n_begun, g.n);
    memcpy(at_reload, answers, sizeof at_reload);
    finish_all(g.n);
    static struct bits_answer kept[GOLDEN_PROMPTS];
    memcpy(kept, answers, sizeof kept);
    core_free(engine.core);
    open_core(&fresh);
    for (uint32_t i = 0; i < g.n; i++) {
        struct golden_prompt p = g.prompts[i];
        for (uint32_t k = 0; k < at_reload[i].n; k++)
            p.greedy[k] = at_reload[i].sampled[k].token;
        submit_prompt(i, &p, at_reload[i].n);
    }
    finish_all(g.n);
    for (uint32_t i = 0; i < g.n; i++) {
        uint32_t n_old = at_reload[i].n;
        assert_true(n_old > 0 && n_old < kept[i].n);
        for (uint32_t k = 0; k < kept[i].n; k++) { /* old ones, then new ones */
            assert_int_equal(kept[i].sampled[k].token, answers[i].sampled[k].token);
            assert_true(k >= n_old || kept[i].sampled[k].token == g.prompts[i].greedy[k]);
        }
    }
    core_free(engine.core);
}

static void reload_ends_or_finds_none(void **state)
{
    (void)state;
    struct core_config c = two_at_once();
    begin(&c, 5);
    assert_ok(reload(other_dir, IN_FLIGHT_ABORT), &e);
    assert_int_equal(n_ended(FINISH_ABORT) + n_ended(FINISH_LENGTH), g.n);
    ask_again();
    check_with_other(0, 0, "after a reload that aborted");
    core_pause(engine.core, IN_FLIGHT_KEEP, false); /* idle and paused */
    assert_ok(reload(g.dir, IN_FLIGHT_WAIT), &e);
    assert_true(core_paused(engine.core));
    core_resume(engine.core);
    ask_again();
    check_all("after a reload in a pause");
    core_free(engine.core);
}

/* Quantized weights are packed again too: back to the first ones gives the first answers. */
static void reload_packs_int8_again(void **state)
{
    (void)state;
    static struct bits_answer first[BITS_REQUESTS];
    struct core_config c = two_at_once();
    c.worker.quantization = QUANTIZE_INT8;
    begin(&c, 1);
    finish_all(g.n);
    memcpy(first, answers, sizeof first);
    assert_ok(reload(other_dir, IN_FLIGHT_KEEP), &e);
    ask_again();
    bool differs = false;
    for (uint32_t i = 0; i < g.n; i++)
        differs |= memcmp(first[i].sampled, answers[i].sampled, sizeof first[i].sampled) != 0;
    assert_true(differs);
    assert_ok(reload(g.dir, IN_FLIGHT_KEEP), &e);
    ask_again();
    for (uint32_t i = 0; i < g.n; i++)
        assert_memory_equal(first[i].sampled, answers[i].sampled, sizeof first[i].sampled);
    core_free(engine.core);
}

/* Asleep without a worker, the next one reads the new weights; with one, it reads them at once. */
static void reload_while_asleep(void **state)
{
    (void)state;
    for (uint32_t level = 1; level <= 2; level++) {
        struct core_config c = two_at_once();
        begin(&c, 5);
        assert_ok(core_sleep(engine.core, level, &e), &e);
        while (!core_sleeping(engine.core))
            run_once(&e);
        assert_fails(core_reload(engine.core, other_dir, IN_FLIGHT_WAIT, &e), Q_INVALID,
                     "sleep mode", &e);
        uint32_t n_before[GOLDEN_PROMPTS];
        for (uint32_t i = 0; i < g.n; i++)
            n_before[i] = answers[i].n;
        assert_ok(core_reload(engine.core, other_dir, IN_FLIGHT_KEEP, &e), &e);
        struct q_err result = Q_ERR_INIT;
        assert_ok(core_step(engine.core, &e), &e);
        while (!core_take_reload(engine.core, &result))
            run_once(&e);
        assert_int_equal(result.code, Q_OK);
        core_wake(engine.core);
        finish_all(g.n);
        for (uint32_t i = 0; i < g.n; i++)
            if (n_before[i] == 0)
                check_with_other(i, 0, "after sleep");
        core_free(engine.core);
    }
}

/* Nothing ends and nothing changes when the folder does not fit. */
static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *dir;
        enum q_code code;
        const char *text;
    } bad[] = {
        {"/nowhere", Q_NOT_FOUND, "/nowhere"},
        {GOLDENS_DIR "/mistral", Q_MISMATCH, "architecture MistralForCausalLM"},
        {GOLDENS_DIR "/llama-rope-linear", Q_MISMATCH,
         "the new config.json has intermediate_size 80, the served model has 96"},
        {NULL, Q_MISMATCH, "has shape"},
        {NULL, Q_CORRUPT, "model.safetensors"},
    };
    char shapes[PATH_MAX], torn[PATH_MAX], path[PATH_MAX];
    struct buf b = BUF_INIT;
    /* another shape and no config.json to say so; half a file */
    checkpoint_write(&folder, &(struct checkpoint){
                                  .from = GOLDENS_DIR "/mistral",
                                  .factor = 1,
                                  .no_config = true,
                                  .name = "shapes",
                              });
    assert_ok(path_join(shapes, sizeof shapes, folder.path, "shapes", &e), &e);
    assert_ok(path_join(path, sizeof path, g.dir, "model.safetensors", &e), &e);
    assert_ok(file_read(&b, path, 1 << 24, &e), &e);
    folder_write(&folder, "torn/model.safetensors", b.data, b.len / 2);
    assert_ok(path_join(torn, sizeof torn, folder.path, "torn", &e), &e);
    buf_release(&b);
    struct core_config c = two_at_once();
    begin(&c, 5);
    core_pause(engine.core, IN_FLIGHT_KEEP, false);
    assert_fails(core_reload(engine.core, other_dir, IN_FLIGHT_WAIT, &e), Q_INVALID, "is paused",
                 &e);
    core_resume(engine.core);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *dir = bad[i].dir ? bad[i].dir : i == 3 ? shapes : torn;
        q_err_reset(&e);
        assert_fails(core_reload(engine.core, dir, IN_FLIGHT_ABORT, &e), bad[i].code, bad[i].text,
                     &e);
        assert_false(core_reloading(engine.core));
    }
    finish_all(g.n);
    check_all("after reloads that were refused");
    core_free(engine.core);
}

/* A checkpoint in 16 bits does not lie in memory as one in 32 does; from random weights too. */
static void reload_of_another_element_type(void **state)
{
    (void)state;
    char half[PATH_MAX];
    checkpoint_write(&folder, &(struct checkpoint){
                                  .from = g.dir,
                                  .factor = 1.25f,
                                  .as_bf16 = true,
                                  .name = "half",
                              });
    assert_ok(path_join(half, sizeof half, folder.path, "half", &e), &e);
    struct core_config c = config_of(half);
    static struct bits_answer want[GOLDEN_PROMPTS];
    begin(&c, 0);
    finish_all(g.n);
    memcpy(want, answers, sizeof want);
    core_free(engine.core);
    for (int dummy = 0; dummy < 2; dummy++) {
        c = config_of(g.dir);
        c.worker.format = dummy ? LOAD_DUMMY : LOAD_AUTO;
        open_core(&c);
        assert_ok(reload(half, IN_FLIGHT_WAIT), &e);
        ask_again();
        for (uint32_t i = 0; i < g.n; i++)
            assert_memory_equal(answers[i].sampled, want[i].sampled, sizeof want[i].sampled);
        assert_ok(reload(g.dir, IN_FLIGHT_WAIT), &e);
        ask_again();
        check_all("in 32 bits again");
        core_free(engine.core);
    }
}

/* The file is taken away between the look at it and the reading. */
static void a_failed_reload_leaves_the_old_weights(void **state)
{
    (void)state;
    char gone[PATH_MAX], path[PATH_MAX];
    checkpoint_write(&folder, &(struct checkpoint){.from = g.dir, .factor = 1.1f, .name = "gone"});
    assert_ok(path_join(gone, sizeof gone, folder.path, "gone", &e), &e);
    assert_ok(path_join(path, sizeof path, gone, "model.safetensors", &e), &e);
    struct core_config c = two_at_once();
    begin(&c, 5);
    char first[CORE_FINGERPRINT_MAX];
    snprintf(first, sizeof first, "%s", core_info(engine.core)->fingerprint);
    assert_ok(core_reload(engine.core, gone, IN_FLIGHT_KEEP, &e), &e);
    unlink(path);
    struct q_err result = Q_ERR_INIT;
    while (!core_take_reload(engine.core, &result))
        run_once(&e);
    assert_int_equal(result.code, Q_NOT_FOUND);
    assert_string_equal(first, core_info(engine.core)->fingerprint);
    assert_string_equal(core_weights_dir(engine.core), g.dir);
    finish_all(g.n);
    check_all("after a reload that failed");
    core_free(engine.core);
}

static void a_profile_has_the_steps_between(void **state)
{
    (void)state;
    struct core_config c = two_at_once();
    struct buf text = BUF_INIT;
    begin(&c, 5);
    assert_fails(core_profile_start(engine.core, &e), Q_UNSUPPORTED, "--profiler-dir", &e);
    core_free(engine.core);
    c.profiler_dir = folder.path;
    begin(&c, 5);
    q_err_reset(&e);
    assert_fails(core_profile_stop(engine.core, &e), Q_INVALID, "/start_profile first", &e);
    for (int i = 0; i < 2; i++) {
        char path[PATH_MAX];
        q_err_reset(&e);
        assert_ok(core_profile_start(engine.core, &e), &e);
        snprintf(path, sizeof path, "%s", core_profile_path(engine.core));
        assert_fails(core_profile_start(engine.core, &e), Q_INVALID, path, &e);
        q_err_reset(&e);
        uint64_t n_step = stats().step;
        if (i)
            ask_again();
        else
            finish_all(g.n);
        n_step = stats().step - n_step;
        assert_ok(core_profile_stop(engine.core, &e), &e);
        buf_reset(&text);
        assert_ok(file_read(&text, path, 1 << 24, &e), &e);
        assert_string_equal(buf_str(&text) + text.len - 3, "\n]\n");
        uint64_t n_found = 0;
        for (const char *p = buf_str(&text); (p = strstr(p, "\"name\":\"forward\"")); p++)
            n_found++;
        /* of those in flight when it began nothing is known */
        assert_in_range(n_found, n_step - 2, n_step);
        unlink(path);
    }
    buf_release(&text);
    core_free(engine.core);
    c.profiler_dir = "/proc/nowhere"; /* cannot be made */
    open_core(&c);
    assert_fails(core_profile_start(engine.core, &e), Q_IO, "/proc/nowhere", &e);
    core_free(engine.core);
}

static int setup(void **state)
{
    (void)state;
    golden_get(&g, "llama");
    folder_init(&folder);
    checkpoint_write(&folder, &(struct checkpoint){.from = g.dir, .factor = 1.3f, .name = "other"});
    assert_ok(path_join(other_dir, sizeof other_dir, folder.path, "other", &e), &e);
    struct core_config c = config_of(other_dir);
    begin(&c, 0);
    finish_all(g.n);
    memcpy(with_other, answers, sizeof with_other);
    core_free(engine.core);
    bool differs = false;
    for (uint32_t i = 0; i < g.n; i++)
        for (uint32_t k = 0; k < with_other[i].n; k++)
            differs = differs || with_other[i].sampled[k].token != g.prompts[i].greedy[k];
    assert_true(differs);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    folder_release(&folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pause_keeps_requests),
        cmocka_unit_test(a_pause_aborts_requests),
        cmocka_unit_test(a_pause_aborts_what_is_being_compiled),
        cmocka_unit_test(a_pause_waits_for_what_has_begun),
        cmocka_unit_test(a_pause_waits_through_a_death),
        cmocka_unit_test(reload_after_what_has_begun),
        cmocka_unit_test(reload_in_the_middle_of_requests),
        cmocka_unit_test(reload_ends_or_finds_none),
        cmocka_unit_test(reload_packs_int8_again),
        cmocka_unit_test(reload_while_asleep),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(reload_of_another_element_type),
        cmocka_unit_test(a_failed_reload_leaves_the_old_weights),
        cmocka_unit_test(a_profile_has_the_steps_between),
    };
    log_setup("test", getenv("QUIRE_TEST_LOG") ? LOG_DEBUG : LOG_ERROR, false);
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, setup, teardown);
}
