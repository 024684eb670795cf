/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of items of a modality with a limit: a step has so many of all its sequences, and ends a
 * chunk before those beyond it; rows of others count for nothing. */
#include "check.h"
#include "common/mem.h"
#include "engine/sched/scheduler.h"
#include "proto/items.h"

#define N_PROMPT 30u
#define LIMIT    5u

static const uint32_t eos_ids[] = {2};
static const struct scheduler_config config = {
    .limits =
        {
            .max_num_seqs = 4,
            .max_num_batched_tokens = 64,
            .max_model_len = 64,
            .logit_rows_max = 8,
            .known_max = 128,
            .item_mib = 1,
        },
    .n_block = 16,
    .queue_max = 4,
    .vocab_size = 100,
    .eos_ids = eos_ids,
    .n_eos = 1,
    .item_rows_max = {LIMIT},
};
static struct q_err e;

static void submit(struct scheduler *s, uint64_t req_id, const struct step_item *items, uint32_t n)
{
    uint32_t prompt[N_PROMPT];
    for (uint32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = 7;
    struct msg_submit m = {
        .req_id = req_id,
        .prompt = {prompt, N_PROMPT},
        .top_p = 1.0f,
        .repetition_penalty = 1.0f,
        .max_tokens = 2,
    };
    step_items_put(&m, items, n, 64);
    assert_ok(scheduler_submit(s, 1, &m, 0, &e), &e);
}

/* Rows of the sequences of the next step, which is not computed: two may be in flight. */
static uint32_t plan(struct scheduler *s, uint32_t rows[4])
{
    size_t n, n_result;
    struct step_view v;
    bool planned;
    assert_ok(step_bytes_max(&n, &n_result, &config.limits, &e), &e);
    void *memory = q_alloc(n);
    assert_ok(scheduler_plan(s, memory, n, 0, &planned, &e), &e);
    scheduler_check(s);
    assert_true(planned);
    assert_ok(step_view(&v, memory, n, &config.limits, &e), &e);
    const uint32_t n_seq = v.head->n_seq;
    for (uint32_t i = 0; i < n_seq; i++)
        rows[i] = v.seqs[i].n_token;
    q_free(memory);
    return n_seq;
}

static void test_alone(void **state)
{
    static const struct step_item items[] = {
        {.position = 4, .n_token = 8, .offset = 1024},
        {.position = 15, .n_token = 9, .modality = 1, .offset = 1024},
    };
    struct scheduler *s = NULL;
    uint32_t rows[4] = {0};
    (void)state;
    assert_ok(scheduler_new(&s, &config, &e), &e);
    submit(s, 1, items, 2);
    assert_int_equal(plan(s, rows), 1);
    assert_int_equal(rows[0], 4 + LIMIT);
    assert_int_equal(plan(s, rows), 1);
    assert_int_equal(rows[0], N_PROMPT - 4 - LIMIT);
    scheduler_free(s);
}

static void test_beside_another(void **state)
{
    static const struct step_item first[] = {{.position = 4, .n_token = 8, .offset = 1024}};
    static const struct step_item second[] = {{.position = 0, .n_token = 8, .offset = 1024}};
    struct scheduler *s = NULL;
    uint32_t rows[4] = {0};
    (void)state;
    assert_ok(scheduler_new(&s, &config, &e), &e);
    submit(s, 1, first, 1);
    submit(s, 2, second, 1);
    assert_int_equal(plan(s, rows), 2);
    assert_int_equal(rows[0], 4 + LIMIT);
    assert_int_equal(rows[1], 1); /* beyond the limit, since it is admitted */
    assert_int_equal(plan(s, rows), 2);
    assert_int_equal(rows[0], N_PROMPT - 4 - LIMIT); /* the last three of eight */
    assert_int_equal(rows[1], LIMIT - 3);
    scheduler_free(s);
}

static void test_no_limit(void **state)
{
    static const struct step_item items[] = {{.n_token = 29, .modality = 1, .offset = 1024}};
    struct scheduler *s = NULL;
    uint32_t rows[4] = {0};
    (void)state;
    assert_ok(scheduler_new(&s, &config, &e), &e);
    submit(s, 1, items, 1);
    assert_int_equal(plan(s, rows), 1);
    assert_int_equal(rows[0], N_PROMPT);
    scheduler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_beside_another),
        cmocka_unit_test(test_no_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
