/* SPDX-License-Identifier: Apache-2.0 */
/* swap: the pool of host blocks beside a naive model, the cost model, and the copies that steps
 * request of the worker when the scheduler preempts, restores, aborts and forgets. */
#include <string.h>
#include "check.h"
#include "common/mem.h"
#include "engine/sched/scheduler.h"
#include "engine/sched/swap.h"

#define N_HOLD   8u
#define N_BLOCK  64u /* of the first pool */
#define N_HOST   20u
#define N_COPIES 12u
#define VOCAB    100u

static struct q_err e;
static uint64_t state;

static uint32_t roll(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % n;
}

/* the pool alone */

static struct swap_pool pool;
static struct swap_held held[N_HOLD];
static uint32_t want[N_HOLD][N_HOST];          /* what each one's blocks hold */
static uint32_t memory[N_BLOCK], host[N_HOST]; /* as a worker has it */

static void check(void)
{
    swap_check_begin(&pool);
    for (uint32_t i = 0; i < N_HOLD; i++)
        swap_check_held(&pool, &held[i]);
    swap_check_end(&pool);
}

/* The copies of a step, as a worker does them. */
static void send(void)
{
    for (uint32_t i = 0; i < pool.n_out; i++)
        host[pool.outs[i].host] = memory[pool.outs[i].block];
    for (uint32_t i = 0; i < pool.n_in; i++) {
        memory[pool.ins[i].block] = host[pool.ins[i].host];
        host[pool.ins[i].host] = UINT32_MAX;
    }
    swap_sent(&pool);
}

static void hold(uint32_t i)
{
    kv_block blocks[N_HOST];
    struct swap_held h = {.n_block = 1 + roll(6), .i_block = roll(3)};
    uint32_t first = roll(N_BLOCK - N_HOST);
    h.n_row = (h.i_block + h.n_block) * KV_BLOCK_TOKENS - roll(KV_BLOCK_TOKENS);
    if (!swap_has_room(&pool, h.n_block))
        return;
    for (uint32_t j = 0; j < pool.n_out; j++) /* its blocks are used until the copy is done */
        if (pool.outs[j].block >= first && pool.outs[j].block < first + h.n_block)
            return;
    for (uint32_t j = 0; j < h.n_block; j++) {
        blocks[j] = first + j;
        memory[first + j] = want[i][j] = roll(1u << 30);
    }
    swap_out(&pool, &h, blocks);
    held[i] = h;
}

/* Copied back into other blocks, all of it or what is missing behind shared ones. */
static void bring(uint32_t i)
{
    const struct swap_held h = held[i];
    kv_block blocks[2 * N_HOST];
    uint32_t n_shared = h.i_block + roll(h.n_block);
    for (uint32_t j = 0; j < h.i_block + h.n_block; j++)
        blocks[j] = N_BLOCK - N_HOST + j;
    assert_int_equal(swap_n_in(&h, n_shared), h.i_block + h.n_block - n_shared);
    assert_int_equal(swap_n_in(&h, h.i_block + h.n_block), 0);
    if (h.i_block)
        assert_int_equal(swap_n_in(&h, h.i_block - 1), 0);
    swap_in(&pool, &held[i], blocks, n_shared);
    send();
    for (uint32_t j = n_shared; j < h.i_block + h.n_block; j++)
        assert_int_equal(memory[blocks[j]], want[i][j - h.i_block]);
}

static void the_pool_does_what_a_naive_one_would(void **unused)
{
    (void)unused;
    uint32_t n_full = 0, n_back = 0;
    assert_ok(swap_init(&pool, N_HOST, N_COPIES, &e), &e);
    for (uint32_t i_round = 0; i_round < 200000; i_round++) {
        uint32_t i = roll(N_HOLD), what = roll(100);
        if (what < 50 && !held[i].n_block) {
            hold(i);
            n_full += !held[i].n_block;
        } else if (what < 70 && held[i].n_block) {
            bring(i);
            n_back++;
        } else if (what < 85) {
            swap_drop(&pool, &held[i]);
        } else if (what < 99) {
            send();
        } else {
            swap_forget(&pool);
            for (uint32_t j = 0; j < N_HOLD; j++)
                held[j].n_block = 0;
        }
        check();
    }
    assert_true(n_full > 100 && n_back > 1000);
    for (uint32_t i = 0; i < N_HOLD; i++)
        swap_drop(&pool, &held[i]);
    assert_int_equal(pool.n_used, 0);
    assert_int_equal(pool.n_out, 0); /* copies without a reader are not done */
    swap_release(&pool);
}

static void a_pool_of_nothing_has_no_room(void **unused)
{
    (void)unused;
    assert_ok(swap_init(&pool, 0, 0, &e), &e);
    assert_false(swap_has_room(&pool, 1));
    assert_int_equal(swap_n_in(&held[0], 0), 0);
    check();
    swap_release(&pool);
}

static void the_cheaper_way_is_taken(void **unused)
{
    (void)unused;
    struct swap_costs c = {.n_lost = 0};
    assert_true(swap_is_cheaper(&c, 10, 160)); /* unknown: the first copy is measured */
    swap_measure(&c.copy, 10, 1000);           /* 100 us each */
    assert_true(swap_is_cheaper(&c, 10, 160)); /* what a row costs is not known */
    swap_measure(&c.row, 2000, 20000);         /* 10 us each */
    assert_true(swap_is_cheaper(&c, 1, 20));   /* 200 us and 200 us */
    assert_false(swap_is_cheaper(&c, 1, 19));
    assert_true(swap_is_cheaper(&c, 10, 201));
    for (uint32_t i = 0; i < 400; i++) /* new times count, old ones fade */
        swap_measure(&c.row, 2000, 10000);
    assert_false(swap_is_cheaper(&c, 1, 39));
    assert_true(swap_is_cheaper(&c, 1, 41));
    for (uint32_t i = 0; i + 1 < SWAP_RETRY; i++)
        assert_false(swap_is_cheaper(&c, 4, 16));
    assert_true(swap_is_cheaper(&c, 4, 16)); /* is it still so? */
    swap_measure(&c.copy, 4, 20);
    assert_true(swap_is_cheaper(&c, 4, 16));
}

/* the scheduler */

static const uint32_t eos[] = {2};
static const struct scheduler_config config = {
    .limits =
        {
            .max_num_seqs = 4,
            .max_num_batched_tokens = 64,
            .max_model_len = 64,
            .logit_rows_max = 8,
            .known_max = 128,
            .copies_max = 8,
        },
    .n_block = 8,
    .n_swap_block = 16,
    .queue_max = 8,
    .policy = {.preemption = PREEMPT_SWAP},
    .vocab_size = VOCAB,
    .eos_ids = eos,
    .n_eos = 1,
};
static struct scheduler *s;
static struct step_view v;
static void *step, *result;
static size_t n_step, n_result;
static struct step_limits limits;

static void open_with(const struct scheduler_config *c)
{
    limits = c->limits;
    assert_ok(scheduler_new(&s, c, &e), &e);
    assert_ok(step_bytes_max(&n_step, &n_result, &limits, &e), &e);
    step = q_alloc(n_step);
    result = q_alloc(n_result);
}

static void close_all(void)
{
    scheduler_free(s);
    q_free(step);
    q_free(result);
}

/* A prompt of its own: tokens req_id, req_id + 1, … */
static void submit(uint64_t req_id, uint32_t n_prompt, uint32_t n_new)
{
    uint32_t prompt[64];
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = 3 + (uint32_t)(req_id * 7 + i) % (VOCAB - 3);
    const struct msg_submit m = {
        .req_id = req_id,
        .prompt = {prompt, n_prompt},
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = n_new,
    };
    assert_ok(scheduler_submit(s, 0, &m, 0, &e), &e);
}

static bool plan(void)
{
    bool planned;
    assert_ok(scheduler_plan(s, step, n_step, 0, &planned, &e), &e);
    scheduler_check(s);
    if (planned)
        assert_ok(step_view(&v, step, n_step, &limits, &e), &e);
    return planned;
}

/* Token 50 for everybody, which took so long. */
static void settle(uint32_t copy_us, uint32_t forward_us)
{
    struct step_result r;
    struct scheduler_output out[8];
    uint32_t n = 0;
    assert_ok(step_result_layout(&r, result, n_result, 8, 0, &e), &e);
    for (uint32_t i = 0; i < v.head->n_seq; i++)
        if (v.seqs[i].flags & STEP_SAMPLE)
            r.rows[n++] = (struct step_row){
                .slot = v.seqs[i].slot,
                .position = v.seqs[i].start + v.seqs[i].n_token,
                .token = 50,
            };
    assert_ok(step_result_layout(&r, result, n_result, n, 0, &e), &e);
    r.head->step = v.head->step;
    r.head->copy_us = copy_us;
    r.head->forward_us = forward_us;
    assert_ok(scheduler_settle(s, &r, 0, out, &n, &e), &e);
    scheduler_check(s);
}

static struct scheduler_stats stats(void)
{
    struct scheduler_stats st;
    scheduler_stats(s, &st);
    return st;
}

/* Two of 40 tokens in three blocks each run; the second is preempted. */
static void two_and_a_preemption(const struct scheduler_config *c)
{
    open_with(c);
    submit(1, 40, 20);
    submit(2, 24, 30);
    assert_true(plan());
    settle(0, 640);
    assert_true(scheduler_preempt_last(s));
    scheduler_check(s);
    assert_int_equal(stats().n_preemption, 1);
    assert_int_equal(stats().n_running, 1);
}

static void what_was_computed_goes_out_and_comes_back(void **unused)
{
    (void)unused;
    two_and_a_preemption(&config);
    assert_int_equal(stats().n_swapped, 1);
    assert_int_equal(stats().n_waiting, 0);
    assert_int_equal(stats().swap_blocks_used, 2);
    assert_int_equal(stats().swap_blocks_total, 16);
    assert_true(plan()); /* there is room: it comes back at once */
    assert_int_equal(v.head->n_out, 2);
    assert_int_equal(v.head->n_in, 2);
    assert_int_equal(v.outs[0].block, 3); /* where its blocks were */
    assert_int_equal(v.outs[0].host, v.ins[0].host);
    assert_int_equal(v.outs[1].host, v.ins[1].host);
    assert_int_equal(v.head->n_admit, 1);
    assert_int_equal(v.admits[0].n_restored, 24);
    assert_int_equal(v.admits[0].n_cached, 0);
    const struct step_seq *q = &v.seqs[1];
    assert_int_equal(q->start, 24);
    assert_int_equal(q->n_token, 1);
    assert_int_equal(q->flags, STEP_ADMIT | STEP_SAMPLE);
    assert_int_equal(v.blocks[0], v.ins[0].block); /* it decodes into the second */
    assert_int_equal(v.blocks[1], v.ins[1].block);
    settle(10, 100);
    assert_int_equal(stats().n_swap_out + stats().n_swap_in, 2);
    assert_int_equal(stats().swap_blocks_out + stats().swap_blocks_in, 4);
    assert_int_equal(stats().n_swapped + stats().swap_blocks_used, 0);
    assert_true(plan());
    assert_int_equal(v.head->n_out + v.head->n_in, 0);
    close_all();
}

static void nothing_is_copied_for_one_that_is_gone(void **unused)
{
    (void)unused;
    two_and_a_preemption(&config);
    assert_true(scheduler_abort(s, 0, 2));
    scheduler_check(s);
    assert_int_equal(stats().swap_blocks_used, 0);
    assert_true(plan());
    assert_int_equal(v.head->n_out + v.head->n_in, 0);
    close_all();
    two_and_a_preemption(&config);
    scheduler_worker_lost(s); /* host memory was the worker's */
    scheduler_check(s);
    assert_int_equal(stats().n_swapped + stats().swap_blocks_used, 0);
    assert_true(plan());
    assert_int_equal(v.head->n_admit, 2);
    assert_int_equal(v.head->n_out + v.head->n_in, 0);
    close_all();
    two_and_a_preemption(&config);
    scheduler_reset_prefix_cache(s); /* it would be published when it is back */
    scheduler_check(s);
    assert_int_equal(stats().n_swapped, 0);
    assert_true(plan());
    assert_int_equal(v.head->n_out + v.head->n_in, 0);
    assert_int_equal(v.seqs[1].n_token, 25);
    close_all();
}

/* With the prefix cache: blocks found there are not copied back, blocks that others hold not even
 * out; and when those others' are gone, what is held is of no use. */
static void the_prefix_cache_comes_first(void **unused)
{
    (void)unused;
    struct scheduler_config c = config;
    c.prefix_cache = true;
    two_and_a_preemption(&c);
    assert_true(plan()); /* its one full block is still cached */
    assert_int_equal(v.head->n_out, 2);
    assert_int_equal(v.head->n_in, 1);
    assert_int_equal(v.admits[0].n_cached, 16);
    assert_int_equal(v.admits[0].n_restored, 24);
    assert_int_equal(v.blocks[0], 3);
    assert_int_equal(v.blocks[1], v.ins[0].block);
    assert_int_equal(v.seqs[1].start, 24);
    close_all();
    open_with(&c);
    submit(1, 40, 20); /* both with the same prompt */
    assert_true(plan());
    settle(0, 640);
    uint32_t prompt[41];
    for (uint32_t i = 0; i < 41; i++)
        prompt[i] = i < 40 ? 3 + (7 + i) % (VOCAB - 3) : 9;
    const struct msg_submit m = {
        .req_id = 2,
        .prompt = {prompt, 41},
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = 20,
    };
    assert_ok(scheduler_submit(s, 0, &m, 0, &e), &e);
    assert_true(plan());
    assert_int_equal(v.admits[0].n_cached, 32);
    settle(0, 640);
    assert_true(scheduler_preempt_last(s));
    assert_int_equal(stats().swap_blocks_used, 1); /* of its three */
    assert_true(scheduler_abort(s, 0, 1));
    scheduler_reset_prefix_cache(s);
    assert_true(plan());
    assert_int_equal(v.head->n_out + v.head->n_in, 0);
    assert_int_equal(v.seqs[0].start, 0);
    close_all();
}

static void modes_and_room(void **unused)
{
    (void)unused;
    struct scheduler_config c = config;
    c.policy.preemption = PREEMPT_RECOMPUTE;
    two_and_a_preemption(&c);
    assert_int_equal(stats().n_swap_out, 0);
    assert_int_equal(stats().n_waiting, 1);
    close_all();
    c = config;
    c.n_swap_block = 1; /* it has two */
    two_and_a_preemption(&c);
    assert_int_equal(stats().n_swap_out, 0);
    close_all();
    c.n_swap_block = 0;
    c.limits.copies_max = 0;
    two_and_a_preemption(&c);
    assert_int_equal(stats().n_swap_out, 0);
    close_all();
    c = config;
    c.limits.copies_max = 3; /* a sequence of max_model_len has four */
    assert_fails(scheduler_new(&s, &c, &e), Q_INVALID, "copies_max: expected at least 4", &e);
    c = config;
    c.policy.preemption = PREEMPT_AUTO;
    two_and_a_preemption(&c); /* nothing is known of copies yet */
    assert_int_equal(stats().n_swap_out, 1);
    assert_true(plan());
    settle(4000, 100); /* four copies of 1 ms; 64 rows took 640 us */
    assert_true(scheduler_preempt_last(s));
    assert_int_equal(stats().n_swap_out, 1);
    assert_int_equal(stats().n_preemption, 2);
    close_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pool_does_what_a_naive_one_would),
        cmocka_unit_test(a_pool_of_nothing_has_no_room),
        cmocka_unit_test(the_cheaper_way_is_taken),
        cmocka_unit_test(what_was_computed_goes_out_and_comes_back),
        cmocka_unit_test(nothing_is_copied_for_one_that_is_gone),
        cmocka_unit_test(the_prefix_cache_comes_first),
        cmocka_unit_test(modes_and_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
