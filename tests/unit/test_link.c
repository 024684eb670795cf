/* SPDX-License-Identifier: Apache-2.0 */
/* link against an engine in memory. */
#include "link_run.h"

/* The key's name and its salt of the prefix cache are sent along, also with a replay. */
static void test_submit_says_whose(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    generations[0].generation = (struct generation){
        .calls = &calls,
        .prompt = prompt,
        .n_prompt = 3,
        .priority = -7,
        .tenant = 11,
        .weight = 3,
        .arrived_ms = 1,
        .cache_salt = {5, 6},
        .n_cache_salt = 32,
        .no_prefix_cache = true,
        .n_shared = 2,
    };
    sample_params_default(&generations[0].generation.params);
    assert_ok(link_open(&link_now, &generations[0].generation, &e), &e);
    for (uint64_t instance = 1; instance < 3; instance++) {
        greet(instance, 10);
        struct msg_submit m = next_submit();
        assert_int_equal((int32_t)m.priority, -7);
        assert_true(m.tenant == 11 && m.weight == 3 && m.age_ms > 0);
        assert_int_equal(m.cache_salt.n, 32);
        assert_int_equal(m.cache_salt.data[1], 6);
        assert_true(m.no_prefix_cache);
        assert_int_equal(m.n_shared, 2);
    }
}

static void test_reset_needs_an_engine(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    static struct arena a = ARENA_INIT(1 << 16);
    struct msg_reset_prefix_cache m;
    assert_fails(link_reset_prefix_cache(&link_now, "r", &e), Q_UNAVAILABLE, "not available", &e);
    assert_true(no_more(MSG_reset_prefix_cache));
    greet(1, 10);
    q_err_reset(&e);
    assert_ok(link_reset_prefix_cache(&link_now, "r", &e), &e);
    const struct buf *b = next_frame(MSG_reset_prefix_cache);
    assert_ok(msg_reset_prefix_cache_decode(&m, b->data, b->len, &a, &e), &e);
    assert_true(m.reason.n == 1 && *m.reason.data == 'r');
    connected = false;
    assert_fails(link_reset_prefix_cache(&link_now, "r", &e), Q_UNAVAILABLE, "not available", &e);
}

/* Output that was there before the generation: it counts, is not given, and the next token is
 * behind it. */
static void test_a_flow_that_has_begun(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    const uint32_t begun[] = {8, 9}, token = 10;
    generations[0].generation = (struct generation){
        .calls = &calls,
        .prompt = prompt,
        .n_prompt = 3,
        .begun = begun,
        .n_begun = 2,
    };
    sample_params_default(&generations[0].generation.params);
    greet(1, 10);
    assert_ok(link_open(&link_now, &generations[0].generation, &e), &e);
    for (uint64_t instance = 2; instance < 4; instance++) { /* also after a restart */
        struct msg_submit m = next_submit();
        assert_true(m.emitted.n == 2 && m.emitted.data[0] == 8 && m.emitted.data[1] == 9);
        if (instance == 2)
            greet(instance, 10);
        else
            give_tokens(m.req_id, 2, &token, 1, FINISH_LENGTH);
    }
    assert_int_equal(generations[0].n, 1);
    assert_int_equal(generations[0].tokens[0], 10);
}

static struct msg_command_done told;
static char told_code[32];

static void on_command_done(void *ctx, const struct msg_command_done *m)
{
    assert_ptr_equal(ctx, &told);
    told = *m;
    snprintf(told_code, sizeof told_code, "%.*s", (int)m->code.n, m->code.data);
}

/* Control messages, the engine's answers, and the state of sleep and weights in heartbeats. */
static void test_orders_and_states(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    static struct arena a = ARENA_INIT(1 << 16);
    const struct msg_command order = {
        .order_id = 5,
        .kind = ENGINE_COMMAND_RELOAD,
        .path = {"/w", 2},
    };
    const struct msg_control pause = {.pause = CONTROL_PAUSE, .pause_mode = IN_FLIGHT_WAIT};
    const struct link_engine *g = link_engine(&link_now);
    struct msg_command sent;
    struct msg_control controlled;
    link_now.set.on_command_done = on_command_done;
    link_now.set.ctx = &told;
    assert_fails(link_command(&link_now, &order, &e), Q_UNAVAILABLE, "not available", &e);
    greet(1, 10);
    assert_true(g->instance == 1 && !strcmp(g->fingerprint, "fp"));
    q_err_reset(&e);
    assert_ok(link_command(&link_now, &order, &e), &e);
    const struct buf *b = next_frame(MSG_command);
    assert_ok(msg_command_decode(&sent, b->data, b->len, &a, &e), &e);
    assert_true(msg_command_equal(&sent, &order));
    GIVE(command_done, {.order_id = 5, .code = {"MISMATCH", 8}, .message = {"no", 2}});
    assert_true(told.order_id == 5 && !strcmp(told_code, "MISMATCH"));
    assert_ok(link_control(&link_now, &pause, &e), &e);
    b = next_frame(MSG_control);
    assert_ok(msg_control_decode(&controlled, b->data, b->len, &a, &e), &e);
    assert_true(msg_control_equal(&controlled, &pause));
    GIVE(heartbeat, {.pausing = true, .fingerprint = {"fp_2", 4}});
    assert_true(g->pausing && !g->paused && !strcmp(g->fingerprint, "fp_2"));
    GIVE(heartbeat, {.pausing = true, .paused = true}); /* without the state of weights */
    assert_true(g->pausing && g->paused && !strcmp(g->fingerprint, "fp_2"));
    GIVE(heartbeat, {.step = 3});
    assert_true(!g->pausing && !g->paused);
    greet(2, 10);
    assert_true(g->instance == 2 && !strcmp(g->fingerprint, "fp"));
}

static void test_submit_tokens_finish(void **state)
{
    (void)state;
    link_tick(&link_now);
    next_frame(MSG_hello);
    open_generation(0);
    assert_true(no_more(MSG_submit)); /* no engine yet */
    greet(1, 10);
    assert_int_equal(link_state(&link_now), LINK_UP);
    struct msg_submit m = next_submit();
    assert_int_equal(m.prompt.n, 3);
    assert_int_equal(m.emitted.n, 0);
    assert_int_equal(m.seed, 40);
    assert_int_equal(m.n_logprob, 0);
    give_tokens(m.req_id, 0, (uint32_t[]){7, 8}, 2, FINISH_NONE);
    give_tokens(m.req_id, 2, (uint32_t[]){9}, 1, FINISH_LENGTH);
    assert_int_equal(generations[0].n, 3);
    assert_int_equal(generations[0].tokens[2], 9);
    assert_int_equal(generations[0].finish, FINISH_LENGTH);
    assert_int_equal(link_n_open(&link_now), 0);
    link_flush(&link_now);
    assert_true(no_more(MSG_abort)); /* nothing to abort: it is finished */
}

static void test_credit_and_order(void **state)
{
    (void)state;
    greet(1, 2);
    for (int i = 0; i < 4; i++)
        open_generation(i);
    struct msg_submit first = next_submit(), second = next_submit();
    assert_true(no_more(MSG_submit));
    assert_int_equal(first.seed, 40);
    assert_int_equal(second.seed, 41);
    give_tokens(second.req_id, 0, (uint32_t[]){7}, 1, FINISH_STOP);
    assert_int_equal(next_submit().seed, 42);
    uint64_t before = metric_value(METRIC_FRAMES_DROPPED);
    link_receive(&link_now, "\x92\x08\x81\x01\x07", 5); /* a reserved tag: skipped */
    assert_true(no_more(MSG_submit));
    assert_true(metric_value(METRIC_FRAMES_DROPPED) == before);
    give_tokens(first.req_id, 0, (uint32_t[]){7}, 1, FINISH_STOP);
    assert_int_equal(next_submit().seed, 43);
}

/* An engine that disagrees only after it has taken requests has none of them any more. */
static void test_refused_while_requests_run(void **state)
{
    (void)state;
    static const char code[] = "MISMATCH", why[] = "another model";
    greet(1, 2);
    open_generation(0);
    uint64_t id = next_submit().req_id;
    GIVE(error, {.code = {code, strlen(code)}, .message = {why, strlen(why)}});
    assert_int_equal(link_state(&link_now), LINK_REFUSED);
    link_check(&link_now);
    give_tokens(id, 0, (uint32_t[]){7}, 1, FINISH_NONE);
    assert_int_equal(generations[0].n, 0);
    greet(2, 2);
    uint64_t again = next_submit().req_id;
    assert_int_not_equal(again, id);
    give_tokens(again, 0, (uint32_t[]){7}, 1, FINISH_STOP);
    assert_int_equal(generations[0].n, 1);
    assert_int_equal(generations[0].finish, FINISH_STOP);
}

static void test_duplicates_are_dropped(void **state)
{
    (void)state;
    double before = metric_value(METRIC_TOKENS_DUPLICATE);
    greet(1, 10);
    open_generation(0);
    uint64_t id = next_submit().req_id;
    give_tokens(id, 0, (uint32_t[]){7, 8}, 2, FINISH_NONE);
    give_tokens(id, 0, (uint32_t[]){7, 8}, 2, FINISH_NONE);
    give_tokens(id, 1, (uint32_t[]){8, 9}, 2, FINISH_NONE); /* overlaps */
    assert_int_equal(generations[0].n, 3);
    assert_int_equal(generations[0].tokens[2], 9);
    give_tokens(id, 2, (uint32_t[]){9}, 1, FINISH_LENGTH); /* the end of it is news */
    assert_int_equal(generations[0].n, 3);
    assert_true(metric_value(METRIC_TOKENS_DUPLICATE) == before + 4);
    assert_int_equal(generations[0].finish, FINISH_LENGTH);
}

static void test_gap_is_submitted_again(void **state)
{
    (void)state;
    double before = metric_value(METRIC_TOKENS_GAP);
    greet(1, 10);
    open_generation(0);
    uint64_t id = next_submit().req_id;
    give_tokens(id, 0, (uint32_t[]){7}, 1, FINISH_NONE);
    give_tokens(id, 2, (uint32_t[]){9}, 1, FINISH_NONE);
    assert_int_equal(generations[0].n, 1);
    assert_true(metric_value(METRIC_TOKENS_GAP) == before + 1);
    link_tick(&link_now);
    struct msg_submit again = next_submit();
    assert_int_not_equal(again.req_id, id);
    assert_int_equal(again.emitted.n, 1);
    assert_int_equal(again.emitted.data[0], 7);
    give_tokens(id, 1, (uint32_t[]){99}, 1, FINISH_NONE); /* of the old submission: of no request */
    give_tokens(again.req_id, 1, (uint32_t[]){8}, 1, FINISH_STOP);
    assert_int_equal(generations[0].n, 2);
    assert_int_equal(generations[0].tokens[1], 8);
}

static void test_another_instance_gets_prompt_and_tokens(void **state)
{
    (void)state;
    greet(1, 10);
    open_generation(0);
    open_generation(1);
    uint64_t id = next_submit().req_id;
    next_submit();
    give_tokens(id, 0, (uint32_t[]){7, 8}, 2, FINISH_NONE);
    greet(1, 10); /* a second hello of the same engine has no effect */
    assert_true(no_more(MSG_submit));
    greet(2, 10);
    struct msg_submit a = next_submit(), b = next_submit();
    assert_int_equal(a.seed, 40);
    assert_int_equal(a.emitted.n, 2);
    assert_int_equal(b.seed, 41);
    assert_int_equal(b.emitted.n, 0);
    give_tokens(a.req_id, 2, (uint32_t[]){9}, 1, FINISH_STOP);
    assert_int_equal(generations[0].n, 3);
}

/* An engine that heard nothing of us for too long drops our requests. Its silence makes us greet
 * it. */
static void test_forgotten_by_the_engine(void **state)
{
    (void)state;
    greet(1, 10);
    open_generation(0);
    uint64_t id = next_submit().req_id;
    give_tokens(id, 0, (uint32_t[]){7}, 1, FINISH_NONE);
    link_now.beat_ms -= 100; /* twice its heartbeat */
    link_tick(&link_now);
    assert_int_equal(link_state(&link_now), LINK_UP);
    next_frame(MSG_hello);
    greet(1, 10);
    struct msg_submit again = next_submit();
    assert_int_equal(again.emitted.n, 1);
    assert_int_not_equal(again.req_id, id);
    greet(1, 10);
    assert_true(no_more(MSG_submit));
}

/* A late engine confirms that it has the requests: none is sent twice. */
static void test_a_late_engine_keeps_its_requests(void **state)
{
    (void)state;
    static const uint8_t digest[32];
    greet(1, 10);
    open_generation(0);
    uint64_t id = next_submit().req_id;
    for (int i = 0; i < 3; i++) {
        link_now.beat_ms -= 100;
        link_now.hello_ms = 0;
        link_tick(&link_now);
        next_frame(MSG_hello);
        GIVE(hello,
             {.wire_min = 1, .wire_max = 1, .digest = {digest, 32}, .instance = 1, .known = true});
    }
    assert_int_equal(link_state(&link_now), LINK_UP);
    assert_true(no_more(MSG_submit));
    give_tokens(id, 0, (uint32_t[]){7}, 1, FINISH_STOP);
    assert_int_equal(generations[0].n, 1);
}

static void test_lost_connection(void **state)
{
    (void)state;
    greet(1, 10);
    open_generation(0);
    next_submit();
    connected = false;
    link_now.sent_beat_ms = 0; /* a heartbeat is due */
    link_tick(&link_now);
    assert_int_equal(link_state(&link_now), LINK_CONNECTING);
    assert_int_equal(link_n_open(&link_now), 1);
    connected = true;
    link_tick(&link_now);
    next_frame(MSG_hello);
    greet(1, 10); /* the same engine still computes the old submission, which is aborted */
    next_frame(MSG_abort);
    next_submit();
}

static void test_silence(void **state)
{
    (void)state;
    greet(1, 10);
    open_generation(0);
    link_now.beat_ms -= 1000000;
    link_tick(&link_now);
    assert_int_equal(link_state(&link_now), LINK_CONNECTING);
    assert_non_null(strstr(link_reason(&link_now), "does not respond"));
    generations[0].generation.since_ms -= 2000; /* beyond engine_timeout_ms */
    link_tick(&link_now);
    assert_int_equal(generations[0].error, Q_UNAVAILABLE);
    assert_true(generations[0].retry_after_ms > 0);
    assert_int_equal(link_n_open(&link_now), 0);
}

/* A frozen container: this process did not listen, so the engine was not silent. */
static void test_a_loop_that_did_not_run(void **state)
{
    (void)state;
    greet(1, 10);
    link_tick(&link_now);
    link_now.beat_ms -= 60000;
    link_now.tick_ms -= 60000;
    link_tick(&link_now);
    assert_int_equal(link_state(&link_now), LINK_UP);
    link_now.beat_ms -= 5000; /* lost, but not for as long as an engine that hangs */
    link_tick(&link_now);
    assert_int_equal(link_state(&link_now), LINK_CONNECTING);
    link_now.silent_since_ms -= 60000;
    link_now.tick_ms -= 60000;
    link_tick(&link_now);
    assert_false(link_hangs(&link_now));
    link_now.silent_since_ms -= 60000;
    link_tick(&link_now);
    assert_true(link_hangs(&link_now));
}

/* An engine that hung was replaced; the next one loads for longer than a hang takes. */
static void test_a_loading_engine_does_not_hang(void **state)
{
    (void)state;
    assert_string_equal(link_code(&link_now), "engine_unreachable");
    greet(1, 4);
    assert_string_equal(link_code(&link_now), "");
    link_now.beat_ms -= 60000;
    link_tick(&link_now);
    assert_string_equal(link_code(&link_now), "engine_stalled");
    assert_true(link_hangs(&link_now));
    assert_true(metric_value(METRIC_ENGINE_STALLED) == 1 && metric_value(METRIC_ENGINE_UP) == 0);
    GIVE(error, {.code = {"UNAVAILABLE", 11}, .message = {"loading 3 %", 11}});
    assert_false(link_hangs(&link_now));
    assert_string_equal(link_code(&link_now), "engine_loading");
    assert_true(metric_value(METRIC_ENGINE_LOADING) == 1 &&
                metric_value(METRIC_ENGINE_STALLED) == 0);
    greet(2, 4);
    assert_string_equal(link_code(&link_now), "");
    assert_true(metric_value(METRIC_ENGINE_LOADING) == 0 && metric_value(METRIC_ENGINE_UP) == 1);
    GIVE(drain, {.reason = {"", 0}});
    assert_string_equal(link_code(&link_now), "engine_draining");
}

static void test_refused_for_its_model(void **state)
{
    (void)state;
    uint8_t digest[32] = {1};
    open_generation(0);
    GIVE(hello, {.wire_min = 1,
                 .wire_max = 1,
                 .digest = {digest, 32},
                 .instance = 1,
                 .credit = 9,
                 .model = {"other", 5}});
    assert_int_equal(link_state(&link_now), LINK_REFUSED);
    assert_non_null(strstr(link_reason(&link_now), "other"));
    link_tick(&link_now);
    assert_int_equal(generations[0].error, Q_UNAVAILABLE);
    assert_true(no_more(MSG_submit));
    GIVE(hello, {.wire_min = 7, .wire_max = 9, .instance = 2, .credit = 9});
    assert_non_null(strstr(link_reason(&link_now), "wire"));
    greet(3, 10); /* replaced by the right one */
    assert_int_equal(link_state(&link_now), LINK_UP);
}

static void test_errors_of_the_engine(void **state)
{
    (void)state;
    greet(1, 10);
    for (int i = 0; i < 3; i++)
        open_generation(i);
    uint64_t full = next_submit().req_id, begun = next_submit().req_id, bad = next_submit().req_id;
    GIVE(error,
         {.req_id = full, .code = {"NO_SPACE", 8}, .message = {"queue", 5}, .retry_after_ms = 700});
    assert_int_equal(generations[0].error, Q_NO_SPACE);
    assert_int_equal(generations[0].retry_after_ms, 700);
    give_tokens(begun, 0, (uint32_t[]){7}, 1, FINISH_NONE);
    GIVE(error,
         {.req_id = begun, .code = {"NO_SPACE", 8}, .message = {"queue", 5}, .retry_after_ms = 1});
    assert_int_equal(generations[1].error, Q_OK); /* its client was promised the rest */
    GIVE(error, {.req_id = bad, .code = {"INVALID", 7}, .message = {"why", 3}});
    assert_int_equal(generations[2].error, Q_INVALID);
    generations[1].generation.not_before_ms = 0;
    link_tick(&link_now);
    assert_int_equal(next_submit().emitted.n, 1);
    GIVE(error, {.req_id = 12345, .code = {"?", 1}, .message = {"x", 1}}); /* of no request */
}

/* An engine's longest message reaches the client's answer with its last byte. */
static void test_long_messages(void **state)
{
    (void)state;
    char text[Q_MESSAGE_MAX], want[Q_MESSAGE_MAX + 32];
    memset(text, 'm', sizeof text - 1);
    text[sizeof text - 1] = 0;
    text[sizeof text - 2] = '.';
    greet(1, 10);
    open_generation(0);
    GIVE(error, {.req_id = next_submit().req_id,
                 .code = {"INVALID", 7},
                 .message = {text, sizeof text - 1}});
    assert_string_equal(generations[0].message, text);
    GIVE(error, {.code = {"MISMATCH", 8}, .message = {text, sizeof text - 1}});
    assert_string_equal(link_reason(&link_now), text);
    open_generation(1);
    link_tick(&link_now);
    snprintf(want, sizeof want, "the engine is not available: %s", text);
    assert_string_equal(generations[1].message, want);
}

/* What an engine had taken comes back to the next one all at once, and that may have less room. */
static void test_taken_flows_are_not_refused(void **state)
{
    (void)state;
    greet(1, 10);
    open_generation(0);
    next_submit();
    greet(2, 10); /* another engine */
    uint64_t again = next_submit().req_id;
    GIVE(error,
         {.req_id = again, .code = {"NO_SPACE", 8}, .message = {"queue", 5}, .retry_after_ms = 1});
    assert_int_equal(generations[0].error, Q_OK);
    generations[0].generation.not_before_ms = 0;
    link_tick(&link_now);
    give_tokens(next_submit().req_id, 0, (uint32_t[]){7}, 1, FINISH_STOP);
    assert_int_equal(generations[0].n, 1);
}

static void test_close_aborts_in_one_message(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct arena a = ARENA_INIT(1 << 20);
    struct msg_abort m;
    greet(1, 10);
    open_generation(0);
    open_generation(1);
    uint64_t id = next_submit().req_id;
    link_close(&link_now, &generations[0].generation);
    link_close(&link_now, &generations[1].generation);
    link_close(&link_now, &generations[1].generation); /* a closed one is fine */
    link_flush(&link_now);
    const struct buf *b = next_frame(MSG_abort);
    assert_ok(msg_abort_decode(&m, b->data, b->len, &a, &e), &e);
    assert_int_equal(m.req_ids.n, 2);
    assert_true(m.req_ids.data[0] == id);
    link_flush(&link_now);
    assert_true(no_more(MSG_abort));
    give_tokens(id, 0, (uint32_t[]){7}, 1, FINISH_NONE);
    assert_int_equal(generations[0].n, 0);
    arena_release(&a);
}

static void test_close_inside_the_call(void **state)
{
    (void)state;
    greet(1, 10);
    open_generation(0);
    generations[0].close_in_call = true;
    give_tokens(next_submit().req_id, 0, (uint32_t[]){7}, 1, FINISH_NONE);
    assert_int_equal(link_n_open(&link_now), 0);
    link_flush(&link_now);
    next_frame(MSG_abort);
}

static void test_drain(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    greet(1, 10);
    GIVE(drain, {.reason = {"bye", 3}});
    assert_int_equal(link_state(&link_now), LINK_DRAINING);
    open_generation(0);
    link_tick(&link_now);
    assert_true(no_more(MSG_submit));
    greet(2, 10);
    next_submit();
    link_end(&link_now, "it ends"); /* what is open, and what comes */
    assert_int_equal(generations[0].error, Q_UNAVAILABLE);
    assert_int_equal(link_open(&link_now, &generations[0].generation, &e), Q_UNAVAILABLE);
    assert_string_equal(e.message, "it ends");
}

static void test_prompt_rows_come_once(void **state)
{
    (void)state;
    uint32_t zero = 0, n_row = 1, n = 1, id7 = 7, rank = 1, two = 2;
    uint32_t ids2[2] = {7, 8}, ranks2[2] = {1, 1};
    float value = -1, values2[2] = {-1, -2};
    greet(1, 10);
    open_generation(0);
    uint64_t id = next_submit().req_id;
    GIVE(output, {.req_ids = {&id, 1},
                  .seq = {&zero, 1},
                  .n_token = {&zero, 1},
                  .n_prompt_row = {&n_row, 1},
                  .n_prompt_logprob = {&n, 1},
                  .prompt_logprob_ids = {&id7, 1},
                  .prompt_logprobs = {&value, 1},
                  .prompt_ranks = {&rank, 1}});
    assert_int_equal(generations[0].n_prompt_row, 1);
    greet(2, 10); /* the next engine sends both rows */
    id = next_submit().req_id;
    GIVE(output, {.req_ids = {&id, 1},
                  .seq = {&zero, 1},
                  .n_token = {&zero, 1},
                  .n_prompt_row = {&two, 1},
                  .n_prompt_logprob = {&n, 1},
                  .prompt_logprob_ids = {ids2, 2},
                  .prompt_logprobs = {values2, 2},
                  .prompt_ranks = {ranks2, 2}});
    assert_int_equal(generations[0].n_prompt_row, 2);
}

/* Columns that do not fit together deliver nothing and are counted. */
static void test_hostile_columns(void **state)
{
    (void)state;
    double before = metric_value(METRIC_FRAMES_DROPPED);
    uint32_t tokens[] = {7, 8, 9}, big = 1000000, one = 1, nine = 9, zero = 0;
    greet(1, 10);
    open_generation(0);
    uint64_t id = next_submit().req_id, two[] = {id, id};
    GIVE(output, {.req_ids = {&id, 1}, .n_token = {&big, 1}, .tokens = {tokens, 3}});
    GIVE(output, {.req_ids = {&id, 1}, .n_token = {&one, 1}});
    GIVE(output, {.req_ids = {two, 2}, .n_token = {&one, 1}, .tokens = {tokens, 1}});
    GIVE(output, {.req_ids = {&id, 1}, .finish = {&nine, 1}});
    GIVE(
        output,
        {.req_ids = {&id, 1}, .n_token = {&one, 1}, .tokens = {tokens, 1}, .n_logprob = {&big, 1}});
    GIVE(
        output,
        {.req_ids = {&id, 1}, .n_token = {&one, 1}, .tokens = {tokens, 1}, .n_logprob = {&one, 1}});
    GIVE(output, {.req_ids = {&id, 1}, .n_token = {&zero, 1}, .tokens = {tokens, 1}});
    GIVE(output, {.req_ids = {&id, 1}, .n_prompt_row = {&big, 1}, .n_prompt_logprob = {&one, 1}});
    link_receive(&link_now, "\xff\xff", 2);
    link_receive(&link_now, "", 0);
    assert_true(metric_value(METRIC_FRAMES_DROPPED) == before + 10);
    assert_int_equal(generations[0].n, 0);
    assert_int_equal(link_n_open(&link_now), 1);
}

static void test_many_slots(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    enum { N = 3000 };
    struct seen *many = q_calloc(N, sizeof *many);
    greet(1, N);
    link_now.send = keep_frame;
    for (int i = 0; i < N; i++) {
        many[i].generation = (struct generation){.calls = &calls, .prompt = prompt, .n_prompt = 3};
        assert_ok(link_open(&link_now, &many[i].generation, &e), &e);
        if (n_frame > FRAMES_MAX / 2) {
            for (uint32_t k = 0; k < n_frame; k++)
                buf_reset(&frames[k]);
            n_frame = n_read = 0;
        }
    }
    for (int i = 0; i < N; i += 3)
        give_tokens(many[i].generation.wire_id, 0, (uint32_t[]){(uint32_t)i}, 1, FINISH_STOP);
    for (int i = 0; i < N; i++) {
        assert_int_equal(many[i].n, i % 3 == 0);
        assert_true(i % 3 || many[i].tokens[0] == (uint32_t)i);
        link_close(&link_now, &many[i].generation);
    }
    assert_int_equal(link_n_open(&link_now), 0);
    q_free(many);
}

/* A request that no frame can carry ends, and those behind it go on. */
static void test_a_request_too_large_for_a_frame(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    const size_t n = PROTO_ARRAY_MAX + 1;
    char *grammar = q_calloc(1, n);
    for (int i = 0; i < 2; i++) {
        generations[i].generation = (struct generation){
            .calls = &calls,
            .prompt = prompt,
            .n_prompt = 3,
        };
        sample_params_default(&generations[i].generation.params);
        generations[i].generation.params.grammar = 1;
        generations[i].generation.params.grammar_data = grammar;
        generations[i].generation.params.n_grammar = (uint32_t)n;
    }
    assert_ok(link_open(&link_now, &generations[0].generation, &e), &e); /* no engine yet */
    open_generation(2);
    greet(1, 10);
    assert_int_equal(generations[0].error, Q_TOO_LARGE);
    assert_non_null(strstr(generations[0].message, "grammar"));
    assert_int_equal(next_submit().req_id, generations[2].generation.wire_id);
    assert_fails(link_open(&link_now, &generations[1].generation, &e), Q_TOO_LARGE, "grammar", &e);
    assert_null(generations[1].generation.list);
    assert_int_equal(link_n_open(&link_now), 1);
    open_generation(3);
    assert_int_equal(next_submit().req_id, generations[3].generation.wire_id);
    q_free(grammar);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_reset_needs_an_engine),
        TEST(test_submit_says_whose),
        TEST(test_a_flow_that_has_begun),
        TEST(test_orders_and_states),
        TEST(test_submit_tokens_finish),
        TEST(test_credit_and_order),
        TEST(test_refused_while_requests_run),
        TEST(test_duplicates_are_dropped),
        TEST(test_gap_is_submitted_again),
        TEST(test_another_instance_gets_prompt_and_tokens),
        TEST(test_forgotten_by_the_engine),
        TEST(test_a_late_engine_keeps_its_requests),
        TEST(test_lost_connection),
        TEST(test_taken_flows_are_not_refused),
        TEST(test_silence),
        TEST(test_a_loop_that_did_not_run),
        TEST(test_a_loading_engine_does_not_hang),
        TEST(test_refused_for_its_model),
        TEST(test_errors_of_the_engine),
        TEST(test_long_messages),
        TEST(test_close_aborts_in_one_message),
        TEST(test_close_inside_the_call),
        TEST(test_drain),
        TEST(test_prompt_rows_come_once),
        TEST(test_hostile_columns),
        TEST(test_many_slots),
        TEST(test_a_request_too_large_for_a_frame),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
