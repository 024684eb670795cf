/* SPDX-License-Identifier: Apache-2.0 */
/* link: an engine that dies again and again. A generation that kills it is found among others,
 * kills from outside are held against none, and other weights continue no answer. */
#include "link_run.h"

#define CRASH    "crash: was killed by signal 11 (Segmentation fault)"
#define KILL     "other: was killed by signal 9 (Killed)"
#define N        6u
#define LONG     12u /* tokens of an answer */
#define TOKEN_MS 7   /* between them: the fourth of a trial comes in its 21st millisecond */

static int64_t now_ms = 1000000;

int64_t __wrap_clock_ms(void);
int64_t __wrap_clock_ms(void)
{
    return now_ms;
}

static void greet_after(uint64_t instance, const char *death, const char *fingerprint)
{
    static const uint8_t digest[32];
    GIVE(hello, {.wire_min = 1,
                 .wire_max = 1,
                 .digest = {digest, 32},
                 .instance = instance,
                 .credit = N,
                 .max_model_len = 100,
                 .heartbeat_ms = 50,
                 .fingerprint = {fingerprint, strlen(fingerprint)},
                 .death = {death, strlen(death)}});
}

static void open_all(uint32_t n)
{
    struct q_err e = Q_ERR_INIT;
    for (uint32_t i = 0; i < n; i++) {
        generations[i].generation = (struct generation){
            .calls = &calls,
            .prompt = prompt,
            .n_prompt = 3,
            .params = {.max_tokens = LONG},
        };
        assert_ok(link_open(&link_now, &generations[i].generation, &e), &e);
    }
}

/* The engine gives the next token of an answer, which is its number. */
static void give_next(struct seen *s)
{
    const uint32_t token = s->n;
    now_ms += TOKEN_MS;
    give_tokens(s->generation.wire_id, s->n, &token, 1,
                s->n + 1 == LONG ? FINISH_LENGTH : FINISH_NONE);
}

static bool runs(const struct seen *s)
{
    return s->generation.list == &link_now.running;
}

/* An engine's life: tokens for all that it has, in turn, until the killer would get its token
 * number `fatal`, or for n_round rounds. True: it was killed. */
static bool live(uint32_t killer, uint32_t fatal, uint32_t n_round)
{
    for (uint32_t k = 0; k < n_round; k++)
        for (uint32_t i = 0; i < N; i++) {
            if (!runs(&generations[i]))
                continue;
            if (i == killer && generations[i].n == fatal)
                return true;
            give_next(&generations[i]);
        }
    return false;
}

static void check_answer(const struct seen *s)
{
    assert_int_equal(s->finish, FINISH_LENGTH);
    assert_int_equal(s->n, LONG);
    for (uint32_t i = 0; i < LONG; i++)
        assert_int_equal(s->tokens[i], i);
}

static void the_killer_of_engines_is_found(void **state)
{
    (void)state;
    static const uint32_t fatals[] = {0, 1, 5};
    for (uint32_t k = 0; k < 3; k++) {
        const uint32_t killer = k + 1;
        uint64_t instance = 10;
        uint32_t n_death = 0;
        assert_int_equal(setup(NULL), 0);
        greet_after(instance, "", "fp");
        open_all(N);
        while (live(killer, fatals[k], 3 * LONG)) {
            assert_true(++n_death <= 4);
            greet_after(++instance, CRASH, "fp");
            n_frame = n_read = 0;
        }
        assert_int_equal(generations[killer].error, Q_INTERNAL);
        assert_non_null(strstr(generations[killer].message, "last one was killed by signal 11 (S"));
        assert_non_null(strstr(generations[killer].message, "crashed 3 times"));
        assert_int_equal(n_death, 3);
        for (uint32_t i = 0; i < N; i++)
            if (i != killer)
                check_answer(&generations[i]);
        assert_false(link_now.suspecting);
        if (k < 2)
            teardown(NULL);
    }
}

/* While suspects are tried, the engine has one generation, and new ones wait. */
static void suspects_are_alone(void **state)
{
    (void)state;
    greet_after(1, "", "fp");
    open_all(4);
    greet_after(2, CRASH, "fp");
    assert_int_equal(link_now.running.n, 4);
    greet_after(3, CRASH, "fp");
    assert_int_equal(link_now.running.n, 1);
    assert_true(runs(&generations[0]));
    for (int i = 0; i < 8; i++)
        assert_false(next_submit().alone);
    assert_true(next_submit().alone && no_more(MSG_submit));
    struct q_err e = Q_ERR_INIT;
    generations[4].generation = (struct generation){
        .calls = &calls,
        .prompt = prompt,
        .n_prompt = 3,
        .params = {.max_tokens = LONG},
    };
    assert_ok(link_open(&link_now, &generations[4].generation, &e), &e);
    assert_int_equal(link_now.running.n, 1);
    for (uint32_t i = 0; i < 4; i++) { /* each passes by its fourth token, or by its end */
        assert_true(runs(&generations[i]));
        assert_int_equal(link_now.running.n, 1);
        if (i == 2)
            link_close(&link_now, &generations[i].generation);
        else
            for (int k = 0; k < 4; k++)
                give_next(&generations[i]);
        link_tick(&link_now);
    }
    assert_int_equal(link_now.running.n, 4);
    assert_false(link_now.suspecting);
    assert_false(live(N, 0, LONG));
    for (uint32_t i = 0; i < 5; i++)
        if (i != 2)
            check_answer(&generations[i]);
}

/* Many tokens at once do not end a trial, and the abort of the one that passed comes before the
 * submit of the next. */
static void a_trial_lasts_a_while(void **state)
{
    (void)state;
    static const uint32_t tokens[LONG] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    greet_after(1, "", "fp");
    open_all(2);
    greet_after(2, CRASH, "fp");
    greet_after(3, CRASH, "fp");
    assert_true(runs(&generations[0]));
    give_tokens(generations[0].generation.wire_id, 0, tokens, 5, FINISH_NONE);
    now_ms += 19;
    give_tokens(generations[0].generation.wire_id, 5, tokens + 5, 1, FINISH_NONE);
    link_tick(&link_now);
    assert_true(runs(&generations[0]) && generations[0].generation.n_lost == 2);
    const uint32_t n = n_frame;
    now_ms++;
    give_tokens(generations[0].generation.wire_id, 6, tokens + 6, 1, FINISH_NONE);
    assert_int_equal(generations[0].generation.n_lost, 0);
    assert_true(runs(&generations[1]));
    assert_int_equal(n_frame, n + 2);
    assert_int_equal(proto_peek(frames[n].data, frames[n].len), MSG_abort);
    assert_int_equal(proto_peek(frames[n + 1].data, frames[n + 1].len), MSG_submit);
    for (int k = 0; k < 4; k++)
        give_next(&generations[1]);
    link_tick(&link_now);
    assert_false(live(N, 0, LONG));
    check_answer(&generations[0]);
    check_answer(&generations[1]);
}

static void greet_tried(uint64_t instance, uint64_t tried)
{
    static const uint8_t digest[32];
    GIVE(hello, {.wire_min = 1,
                 .wire_max = 1,
                 .digest = {digest, 32},
                 .instance = instance,
                 .credit = N,
                 .max_model_len = 100,
                 .heartbeat_ms = 50,
                 .fingerprint = {"fp", 2},
                 .death = {CRASH, strlen(CRASH)},
                 .has_trials = true,
                 .has_tried = true,
                 .tried = tried});
}

/* The engine says that it is our turn. */
static void give_turn(const struct seen *s)
{
    GIVE(error, {.req_id = s->generation.wire_id, .code = {"UNAVAILABLE", 11}, .alone = true});
}

/* The engine knows whose request was on trial when it crashed; the link may not know that it was
 * not its own, because its connection was lost before. */
static void trials_of_others_blame_nobody(void **state)
{
    (void)state;
    const uint64_t other = link_now.instance + 1;
    uint64_t instance = 1;
    greet_tried(instance, 0);
    open_all(1);
    greet_tried(++instance, other); /* ours had gone back, and the link did not know yet */
    assert_int_equal(generations[0].generation.n_lost, 0);
    greet_tried(++instance, 0);
    greet_tried(++instance, 0);
    assert_true(link_now.suspecting);
    for (int i = 0; i < 4; i++) {
        assert_true(runs(&generations[0]));
        give_turn(&generations[0]);
        greet_tried(++instance, i % 2 ? other : 0);
        assert_int_equal(generations[0].generation.n_lost, 2);
        n_frame = n_read = 0;
    }
    give_turn(&generations[0]);
    greet_tried(++instance, link_now.instance);
    assert_int_equal(generations[0].error, Q_INTERNAL);
    assert_non_null(strstr(generations[0].message, "crashed 3 times"));
}

static void kills_from_outside_blame_nobody(void **state)
{
    (void)state;
    greet_after(1, "", "fp");
    open_all(N);
    for (uint64_t i = 2; i < 12; i++) {
        greet_after(i, KILL, "fp");
        n_frame = n_read = 0;
        assert_int_equal(link_now.running.n, N);
    }
    assert_false(live(N, 0, LONG));
    for (uint32_t i = 0; i < N; i++)
        check_answer(&generations[i]);
}

/* Tokens in between clear a generation of old crashes. */
static void progress_clears(void **state)
{
    (void)state;
    greet_after(1, "", "fp");
    open_all(2);
    for (uint64_t i = 2; i < 4; i++) {
        for (int k = 0; k < 4; k++) {
            give_next(&generations[0]);
            give_next(&generations[1]);
        }
        greet_after(i, CRASH, "fp");
        assert_int_equal(link_now.running.n, 2);
    }
    assert_false(live(N, 0, LONG));
    check_answer(&generations[0]);
    check_answer(&generations[1]);
}

static void other_weights_continue_no_answer(void **state)
{
    (void)state;
    greet_after(1, "", "fp_1");
    open_all(3);
    give_next(&generations[0]);
    give_next(&generations[2]);
    greet_after(2, KILL, "fp_2");
    for (uint32_t i = 0; i < 3; i += 2) {
        assert_int_equal(generations[i].error, Q_MISMATCH);
        assert_non_null(strstr(generations[i].message, "fp_2, before fp_1"));
    }
    assert_int_equal(link_now.running.n, 1); /* nothing was answered yet */
    assert_false(live(N, 0, LONG));
    check_answer(&generations[1]);
}

static void without_replay_they_end(void **state)
{
    (void)state;
    link_now.set.no_replay = true;
    greet_after(1, "", "fp");
    open_all(3);
    give_next(&generations[0]);
    greet_after(2, KILL, "fp");
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(generations[i].error, Q_UNAVAILABLE);
        assert_non_null(strstr(generations[i].message, "--no-replay"));
    }
    link_close(&link_now, &generations[0].generation);
    open_all(1); /* new ones are served */
    generations[0].n = 0;
    assert_false(live(N, 0, LONG));
    check_answer(&generations[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_killer_of_engines_is_found, NULL, teardown),
        cmocka_unit_test_setup_teardown(suspects_are_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(a_trial_lasts_a_while, setup, teardown),
        cmocka_unit_test_setup_teardown(trials_of_others_blame_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(kills_from_outside_blame_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(progress_clears, setup, teardown),
        cmocka_unit_test_setup_teardown(other_weights_continue_no_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(without_replay_they_end, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
