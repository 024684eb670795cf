/* SPDX-License-Identifier: Apache-2.0 */
/* Requests with LoRA adapters: at most max_loras different ones in a step, none waits for ever, one
 * whose adapter is away waits until the owner has it, and cached blocks are the adapter's own. */
#include "check.h"
#include "common/mem.h"
#include "engine/sched/scheduler.h"

#define N_REQUEST 24u

static struct q_err e;
static uint32_t eos_ids[] = {2}, prompt[32];
static uint64_t away; /* a bit for each adapter that the worker has not */
static uint32_t n_asked;

static bool is_ready(void *ctx, uint32_t adapter)
{
    (void)ctx;
    n_asked++;
    return !(away >> adapter & 1);
}

struct bench {
    struct scheduler *s;
    struct step_limits limits;
    void *memory, *result;
    size_t n_memory, n_result;
    uint32_t adapter_of[N_REQUEST], by_slot[8];
    uint32_t n_done, most; /* different adapters of a step at most */
    bool has_ended[N_REQUEST];
};

static void bench_init(struct bench *b, uint32_t max_loras)
{
    *b = (struct bench){
        .limits =
            {
                .max_num_seqs = 8,
                .max_num_batched_tokens = 64,
                .max_model_len = 64,
                .logit_rows_max = 8,
                .known_max = 256,
            },
    };
    const struct scheduler_config c = {
        .limits = b->limits,
        .n_block = 64,
        .queue_max = N_REQUEST,
        .vocab_size = 100,
        .eos_ids = eos_ids,
        .n_eos = 1,
        .prefix_cache = true,
        .max_loras = max_loras,
        .adapter_ready = is_ready,
    };
    away = 0;
    n_asked = 0;
    assert_ok(scheduler_new(&b->s, &c, &e), &e);
    assert_ok(step_bytes_max(&b->n_memory, &b->n_result, &c.limits, &e), &e);
    b->memory = q_alloc(b->n_memory);
    b->result = q_alloc(b->n_result);
}

static void bench_release(struct bench *b)
{
    scheduler_free(b->s);
    q_free(b->memory);
    q_free(b->result);
}

static void submit(struct bench *b, uint32_t i, uint32_t adapter, uint32_t n_token)
{
    for (uint32_t k = 0; k < 32; k++)
        prompt[k] = 7;
    const struct msg_submit m = {
        .req_id = i,
        .prompt = {prompt, 31},
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = n_token,
        .adapter_id = adapter,
    };
    b->adapter_of[i] = adapter;
    assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e);
}

static void count_adapters(struct bench *b, const struct step_view *v)
{
    uint32_t used[64], n = 0, i_admit = 0;
    for (uint32_t i = 0; i < v->head->n_seq; i++) {
        if (v->seqs[i].flags & STEP_ADMIT)
            b->by_slot[v->seqs[i].slot] = v->admits[i_admit++].adapter;
        const uint32_t adapter = b->by_slot[v->seqs[i].slot];
        uint32_t k = 0;
        while (k < n && used[k] != adapter)
            k++;
        if (adapter && k == n)
            used[n++] = adapter;
    }
    b->most = n > b->most ? n : b->most;
}

/* One step, its result settled; false: there was nothing to compute. */
static bool step(struct bench *b)
{
    struct scheduler_output out[16];
    struct step_view v;
    struct step_result r;
    uint32_t n_out, n_row = 0;
    bool planned;
    assert_ok(scheduler_plan(b->s, b->memory, b->n_memory, 0, &planned, &e), &e);
    scheduler_check(b->s);
    if (!planned)
        return false;
    assert_ok(step_view(&v, b->memory, b->n_memory, &b->limits, &e), &e);
    count_adapters(b, &v);
    assert_ok(step_result_layout(&r, b->result, b->n_result, 8, 0, &e), &e);
    for (uint32_t i = 0; i < v.head->n_seq; i++)
        if (v.seqs[i].flags & STEP_SAMPLE)
            r.rows[n_row++] = (struct step_row){
                .slot = v.seqs[i].slot,
                .position = v.seqs[i].start + v.seqs[i].n_token,
                .token = 9,
            };
    r.head->step = v.head->step;
    r.head->n_row = n_row;
    r.head->error = Q_OK;
    assert_ok(scheduler_settle(b->s, &r, 0, out, &n_out, &e), &e);
    for (uint32_t i = 0; i < n_out; i++)
        if (out[i].finish) {
            assert_false(b->has_ended[out[i].req_id]);
            b->has_ended[out[i].req_id] = true;
            b->n_done++;
        }
    return true;
}

static void at_most_max_loras_in_a_step(void **state)
{
    (void)state;
    for (uint32_t max = 1; max <= 5; max++) {
        struct bench b;
        bench_init(&b, max);
        for (uint32_t i = 0; i < N_REQUEST; i++)
            submit(&b, i, i * 7 % 6, 3 + i % 5);
        while (b.n_done < N_REQUEST)
            assert_true(step(&b)); /* each ends, so none starves */
        assert_int_equal(b.most, max);
        bench_release(&b);
    }
}

/* New requests of running adapters do not overtake one that waits for a place for its own. */
static void none_starves(void **state)
{
    struct bench b;
    uint32_t next = 3, n_step = 0;
    (void)state;
    bench_init(&b, 1);
    submit(&b, 0, 1, 4);
    submit(&b, 1, 1, 8);
    assert_true(step(&b));
    submit(&b, 2, 2, 1);
    while (!b.has_ended[2]) {
        assert_true(step(&b));
        if (next < N_REQUEST)
            submit(&b, next++, 1, 8);
        assert_true(++n_step < 20);
    }
    bench_release(&b);
}

static void one_that_is_away_waits(void **state)
{
    struct bench b;
    (void)state;
    bench_init(&b, 2);
    away = 1u << 3;
    submit(&b, 0, 3, 2);
    assert_false(step(&b));
    assert_int_equal(n_asked, 1);
    away = 0;
    while (!b.has_ended[0])
        assert_true(step(&b));
    assert_int_equal(scheduler_count_adapter(b.s, 3, false), 0);
    bench_release(&b);
}

static void requests_of_one_end(void **state)
{
    struct scheduler_output o;
    struct bench b;
    uint32_t n = 0;
    (void)state;
    bench_init(&b, 2);
    for (uint32_t i = 0; i < 6; i++)
        submit(&b, i, 1 + i % 2, 4);
    assert_true(step(&b));
    assert_int_equal(scheduler_count_adapter(b.s, 2, false), 3);
    for (; scheduler_end_adapter(b.s, 2, &o); n++) {
        assert_int_equal(o.req_id % 2, 1);
        assert_int_equal(o.finish, FINISH_ERROR);
    }
    assert_int_equal(n, 3);
    scheduler_check(b.s);
    while (b.n_done < 3)
        assert_true(step(&b));
    bench_release(&b);
}

static void cached_blocks_are_the_adapters_own(void **state)
{
    struct scheduler_stats stats;
    struct bench b;
    (void)state;
    bench_init(&b, 4);
    for (uint32_t i = 0; i < 6; i++) {
        submit(&b, i, i % 3, 1);
        while (!b.has_ended[i])
            assert_true(step(&b));
        scheduler_stats(b.s, &stats);
        assert_int_equal(stats.prefix_hits, i < 3 ? 0 : 16 * (i - 2));
    }
    bench_release(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_most_max_loras_in_a_step),
        cmocka_unit_test(none_starves),
        cmocka_unit_test(one_that_is_away_waits),
        cmocka_unit_test(requests_of_one_end),
        cmocka_unit_test(cached_blocks_are_the_adapters_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
