/* SPDX-License-Identifier: Apache-2.0 */
/* Seconds in which a loop makes no turn are counted, whatever the clock says in between. */
#include "check.h"
#include "engine/server/loop_watch.h"

static void seconds_without_a_turn(void **state)
{
    struct loop_watch_count c = {0};
    (void)state;
    assert_int_equal(loop_watch_second(&c, 5), 0);
    assert_int_equal(loop_watch_second(&c, 5), 1);
    assert_int_equal(loop_watch_second(&c, 5), 2);
    assert_int_equal(loop_watch_second(&c, 6), 0); /* one turn is enough */
    assert_int_equal(loop_watch_second(&c, 6), 1);
}

static void fail_hanging(uint32_t seconds)
{
    fail_msg("a loop that is watched for no time hangs for %u s", seconds);
}

static void limits_follow_the_heartbeat(void **state)
{
    static const struct {
        uint32_t heartbeat_ms, limit_s;
    } cases[] = {{10, 10}, {1000, 10}, {1500, 15}, {60000, 600}};
    struct q_err e = Q_ERR_INIT;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct loop_watch w = {0};
        loop_watch_stop(&w); /* not started */
        assert_ok(loop_watch_start(&w, cases[i].heartbeat_ms, fail_hanging, &e), &e);
        assert_int_equal(w.limit_s, cases[i].limit_s);
        loop_watch_turn(&w);
        loop_watch_stop(&w);
        loop_watch_stop(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seconds_without_a_turn),
        cmocka_unit_test(limits_follow_the_heartbeat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
