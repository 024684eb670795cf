/* SPDX-License-Identifier: Apache-2.0 */
/* The limit of a step's time: never below what steps of its size took, and near it. */
#include "check.h"
#include "engine/core/step_cost.h"

#define LEAST 10000000 /* us */

static uint64_t work_of(uint32_t n_seq, uint32_t start, uint32_t n_token)
{
    static struct step_seq seqs[8];
    struct step_head head = {.n_seq = n_seq, .n_token = n_seq * n_token};
    const struct step_view v = {.head = &head, .seqs = seqs};
    for (uint32_t i = 0; i < n_seq; i++)
        seqs[i] = (struct step_seq){.start = start, .n_token = n_token};
    return step_cost_work(&v);
}

static void work_grows_with_rows_and_contexts(void **state)
{
    (void)state;
    assert_true(work_of(1, 0, 1) < work_of(2, 0, 1));
    assert_true(work_of(1, 0, 1) < work_of(1, 9000, 1));
    assert_true(work_of(1, 0, 512) < work_of(1, 0, 1024));
    assert_true(work_of(8, 1u << 20, 8192) > 0);
}

static void unseen_steps_have_the_time_of_a_slow_machine(void **state)
{
    (void)state;
    struct step_cost small = {.n_param = 1000000}, large = {.n_param = 7000000000u};
    assert_int_equal(step_cost_limit_us(&small, work_of(1, 0, 4), LEAST), LEAST);
    assert_true(step_cost_limit_us(&large, work_of(1, 0, 2048), LEAST) > INT64_C(20000) * 1000000);
}

static void seen_steps_bound_the_next(void **state)
{
    (void)state;
    struct step_cost c = {.n_param = 7000000000u};
    const uint64_t decode = work_of(1, 100, 1), chunk = work_of(1, 0, 2048);
    step_cost_note(&c, decode, 50000);
    assert_int_equal(step_cost_limit_us(&c, decode, LEAST), LEAST);
    assert_int_equal(step_cost_limit_us(&c, decode, 0), 50000 * STEP_COST_FACTOR);
    /* a size that was not seen: at least in proportion to the work */
    assert_true(step_cost_limit_us(&c, chunk, 0) >=
                (int64_t)(chunk / decode / 2) * 50000 * STEP_COST_FACTOR);
    step_cost_note(&c, chunk, 4000000);
    assert_int_equal(step_cost_limit_us(&c, chunk, LEAST), 4000000 * STEP_COST_FACTOR);
    assert_int_equal(step_cost_limit_us(&c, decode, LEAST), LEAST);
    /* a smaller one that was not seen takes no longer than a larger one that was */
    struct step_cost d = {.n_param = 7000000000u};
    step_cost_note(&d, chunk, 4000000);
    assert_int_equal(step_cost_limit_us(&d, decode, 0), 4000000 * STEP_COST_FACTOR);
}

/* One slow step is forgotten by many fast ones, and the limit is always above the last step. */
static void slow_steps_are_forgotten(void **state)
{
    (void)state;
    struct step_cost c = {.n_param = 1};
    step_cost_note(&c, 5000, 1000000);
    for (int i = 0; i < 200; i++) {
        step_cost_note(&c, 5000, 1000 + i);
        assert_true(step_cost_limit_us(&c, 5000, 0) >= (1000 + i) * STEP_COST_FACTOR);
    }
    assert_true(step_cost_limit_us(&c, 5000, 0) < 3000 * STEP_COST_FACTOR);
    step_cost_note(&c, UINT64_MAX, INT64_MAX); /* no overflow */
    assert_true(step_cost_limit_us(&c, UINT64_MAX, 0) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_grows_with_rows_and_contexts),
        cmocka_unit_test(unseen_steps_have_the_time_of_a_slow_machine),
        cmocka_unit_test(seen_steps_bound_the_next),
        cmocka_unit_test(slow_steps_are_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
