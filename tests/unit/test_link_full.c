/* SPDX-License-Identifier: Apache-2.0 */
/* A link beside an engine that takes no more: when it submits again and when it asks whether the
 * engine still knows it, on a virtual clock. */
#include "link_run.h"

#define RETRY_MS 200 /* without a time of the engine's */

static int64_t now_ms = 1000000;

int64_t __wrap_clock_ms(void);
int64_t __wrap_clock_ms(void)
{
    return now_ms;
}

static uint32_t count_hellos(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_frame; i++)
        n += proto_peek(frames[i].data, frames[i].len) == MSG_hello;
    return n;
}

/* An open generation with a token, whose last submission has the returned id. */
static uint64_t begin(void)
{
    greet(1, 10);
    open_generation(0);
    const uint64_t id = next_submit().req_id;
    give_tokens(id, 0, (uint32_t[]){7}, 1, FINISH_NONE);
    return id;
}

/* Refused for lack of room, it is submitted again after the engine's time, or after RETRY_MS, and
 * not a millisecond before. */
static void test_submits_again(void **state)
{
    (void)state;
    const uint32_t times_ms[] = {0, 1, 350, 0};
    uint64_t id = begin();
    for (size_t i = 0; i < sizeof times_ms / sizeof *times_ms; i++) {
        const int64_t wait_ms = times_ms[i] ? times_ms[i] : RETRY_MS;
        GIVE(error, {.req_id = id,
                     .code = {"NO_SPACE", 8},
                     .message = {"queue", 5},
                     .retry_after_ms = times_ms[i]});
        now_ms += wait_ms - 1;
        link_pump(&link_now);
        assert_true(no_more(MSG_submit));
        now_ms++;
        link_pump(&link_now);
        const struct msg_submit m = next_submit();
        assert_int_equal(m.emitted.n, 1);
        id = m.req_id;
    }
    assert_int_equal(generations[0].error, Q_OK);
}

/* An engine that does not know the frontend answers UNAVAILABLE to each submission: hello is sent
 * at most once in RETRY_MS, however often that comes; for a full queue it is not sent at all. */
static void test_asks_seldom(void **state)
{
    (void)state;
    uint64_t id = begin();
    link_now.hello_ms = now_ms;
    for (int ms = 0; ms < 10 * RETRY_MS; ms += RETRY_MS / 10) {
        const uint32_t n_before = count_hellos();
        const bool is_due = now_ms - link_now.hello_ms >= RETRY_MS;
        GIVE(error, {.req_id = id,
                     .code = {"UNAVAILABLE", 11},
                     .message = {"who", 3},
                     .retry_after_ms = 1});
        assert_int_equal(count_hellos() - n_before, is_due);
        now_ms += RETRY_MS / 10;
        link_pump(&link_now);
        id = next_submit().req_id;
    }
    const uint32_t n_hello = count_hellos();
    assert_in_range(n_hello, 9, 10);
    now_ms += RETRY_MS;
    GIVE(error, {.req_id = id, .code = {"NO_SPACE", 8}, .message = {"queue", 5}});
    assert_int_equal(count_hellos(), n_hello);
    assert_int_equal(generations[0].error, Q_OK);
}

static void open_of(struct link_request *r, int i)
{
    struct q_err e = Q_ERR_INIT;
    generations[i].generation = (struct generation){
        .calls = &calls,
        .prompt = prompt,
        .n_prompt = 3,
        .params = {.max_tokens = 5},
        .request = r,
    };
    assert_ok(link_open(&link_now, &generations[i].generation, &e), &e);
}

static void give_full(uint64_t id, uint32_t retry_after_ms)
{
    GIVE(error, {.req_id = id,
                 .code = {"NO_SPACE", 8},
                 .message = {"queue", 5},
                 .retry_after_ms = retry_after_ms});
}

/* A request is refused with its first generation. If that one is accepted, the others wait for
 * room: one more after the engine's time, and one more for each that begins. */
static void test_accepts_whole_requests(void **state)
{
    (void)state;
    struct link_request request = {.window = 0};
    uint64_t ids[4];
    greet(1, 10);
    for (int i = 0; i < 4; i++) {
        open_of(&request, i);
        ids[i] = next_submit().req_id;
    }
    for (int i = 1; i < 4; i++)
        give_full(ids[i], 100);
    assert_true(request.accepted && request.n_submitted == 1 && request.window == 1);
    now_ms += 99;
    link_pump(&link_now);
    assert_true(no_more(MSG_submit));
    now_ms++;
    link_pump(&link_now);
    ids[1] = next_submit().req_id;
    assert_true(no_more(MSG_submit));
    give_tokens(ids[1], 0, (uint32_t[]){7}, 1, FINISH_NONE);
    ids[2] = next_submit().req_id;
    assert_true(no_more(MSG_submit));
    give_tokens(ids[0], 0, (uint32_t[]){7}, 1, FINISH_STOP); /* one that ends makes room, too */
    ids[3] = next_submit().req_id;
    give_full(ids[3], 0); /* the first one is not there any more */
    for (int i = 0; i < 4; i++)
        assert_int_equal(generations[i].error, Q_OK);
    for (int i = 0; i < 4; i++)
        link_close(&link_now, &generations[i].generation);
    assert_int_equal(request.n_submitted, 0);
}

static void test_refuses_whole_requests(void **state)
{
    (void)state;
    struct link_request request = {.window = 0};
    greet(1, 10);
    open_of(&request, 0);
    open_of(&request, 1);
    give_full(next_submit().req_id, 700);
    assert_int_equal(generations[0].error, Q_NO_SPACE);
    assert_int_equal(generations[0].retry_after_ms, 700);
    link_close(&link_now, &generations[1].generation); /* as its owner does then */
    assert_false(request.accepted);
}

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_submits_again), TEST(test_asks_seldom),
                                       TEST(test_accepts_whole_requests),
                                       TEST(test_refuses_whole_requests)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
