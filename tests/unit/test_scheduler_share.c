/* SPDX-License-Identifier: Apache-2.0 */
/* A tenant beside others that flood: how long its tokens take, on a virtual clock whose steps cost
 * fixed_us + row_us * rows. The worker is the test and computes up to two steps ahead. */
#include "check.h"
#include "common/mem.h"
#include "engine/sched/row_cost.h"
#include "engine/sched/scheduler.h"

#define N_SEQ      80u
#define N_TOKEN    512u /* rows of a step */
#define MODEL_LEN  1024u
#define PROMPT_MAX 700u
#define FLOOD      1u /* tenants */
#define NEIGHBOUR  2u
#define N_NEW      8u /* tokens that the neighbour asks for */

static struct q_err e;
static const struct scheduler_config config = {
    .limits =
        {
            .max_num_seqs = N_SEQ,
            .max_num_batched_tokens = N_TOKEN,
            .max_model_len = MODEL_LEN,
            .logit_rows_max = N_SEQ,
            .known_max = N_SEQ * MODEL_LEN,
        },
    .n_block = N_SEQ * MODEL_LEN / 16,
    .queue_max = 200,
    .vocab_size = 100,
    .policy = {.max_num_partial_prefills = 1, .max_long_partial_prefills = 1},
};

struct machine {
    struct scheduler *s;
    const struct scheduler_config *config;
    int64_t fixed_us, row_us, now_us;
    size_t n_step_byte, n_result_byte;
    void *memory[SCHEDULER_IN_FLIGHT_MAX], *result;
    struct step_view steps[SCHEDULER_IN_FLIGHT_MAX];
    uint32_t i_step, n_step;
    uint64_t n_req;
    struct scheduler_output out[2 * N_SEQ];
    uint64_t watched; /* request */
    uint32_t n_got;   /* its tokens, and when each came */
    int64_t got_us[N_NEW];
    bool is_over;
    uint64_t n_row; /* of all settled steps */
    uint64_t n_step_done;
    int32_t flood_priority;
    uint32_t neighbour_weight;
};

static void machine_init(struct machine *m, const struct scheduler_config *c, int64_t fixed_us,
                         int64_t row_us)
{
    *m = (struct machine){
        .config = c,
        .fixed_us = fixed_us,
        .row_us = row_us,
        .neighbour_weight = 1,
    };
    assert_ok(scheduler_new(&m->s, c, &e), &e);
    assert_ok(step_bytes_max(&m->n_step_byte, &m->n_result_byte, &c->limits, &e), &e);
    for (uint32_t i = 0; i < SCHEDULER_IN_FLIGHT_MAX; i++)
        m->memory[i] = q_alloc(m->n_step_byte);
    m->result = q_alloc(m->n_result_byte);
}

static void machine_release(struct machine *m)
{
    scheduler_check(m->s);
    scheduler_free(m->s);
    for (uint32_t i = 0; i < SCHEDULER_IN_FLIGHT_MAX; i++)
        q_free(m->memory[i]);
    q_free(m->result);
}

static uint64_t submit(struct machine *m, uint64_t tenant, uint32_t n_prompt, uint32_t n_new)
{
    static uint32_t prompt[PROMPT_MAX];
    const struct msg_submit r = {
        .req_id = ++m->n_req,
        .prompt = {prompt, n_prompt},
        .top_p = 1.0f,
        .repetition_penalty = 1.0f,
        .max_tokens = n_new,
        .ignore_eos = true,
        .tenant = tenant,
        .priority = (uint32_t)(tenant == FLOOD ? m->flood_priority : 0),
        .weight = tenant == NEIGHBOUR ? m->neighbour_weight : 1,
    };
    assert_ok(scheduler_submit(m->s, 0, &r, m->now_us, &e), &e);
    return m->n_req;
}

static void plan(struct machine *m)
{
    bool planned = true;
    while (planned && m->n_step < SCHEDULER_IN_FLIGHT_MAX) {
        const uint32_t i = (m->i_step + m->n_step) % SCHEDULER_IN_FLIGHT_MAX;
        assert_ok(scheduler_plan(m->s, m->memory[i], m->n_step_byte, m->now_us, &planned, &e), &e);
        if (planned)
            assert_ok(step_view(&m->steps[i], m->memory[i], m->n_step_byte, &m->config->limits, &e),
                      &e);
        m->n_step += planned;
    }
}

static void take(struct machine *m, const struct scheduler_output *o)
{
    if (o->req_id != m->watched)
        return;
    assert_true(o->has_token && m->n_got < N_NEW);
    m->got_us[m->n_got++] = m->now_us;
    m->is_over = o->finish != FINISH_NONE;
}

/* The oldest step is computed and settled. False: there is none. */
static bool compute(struct machine *m)
{
    const struct step_view *v = &m->steps[m->i_step];
    struct step_result r;
    uint32_t n_row = 0, n_out;
    plan(m);
    if (m->n_step == 0)
        return false;
    assert_ok(step_result_layout(&r, m->result, m->n_result_byte, v->head->n_logit, 0, &e), &e);
    for (uint32_t i = 0; i < v->head->n_seq; i++)
        if (v->seqs[i].flags & STEP_SAMPLE)
            r.rows[n_row++] = (struct step_row){
                .slot = v->seqs[i].slot,
                .position = v->seqs[i].start + v->seqs[i].n_token,
                .token = 5,
            };
    assert_int_equal(n_row, v->head->n_logit);
    r.head->step = v->head->step;
    m->n_row += v->head->n_token;
    m->now_us += m->fixed_us + m->row_us * v->head->n_token;
    assert_ok(scheduler_settle(m->s, &r, m->now_us, m->out, &n_out, &e), &e);
    m->i_step = (m->i_step + 1) % SCHEDULER_IN_FLIGHT_MAX;
    m->n_step--;
    for (uint32_t i = 0; i < n_out; i++)
        take(m, &m->out[i]);
    if (m->n_step_done++ % 16 == 0)
        scheduler_check(m->s);
    return true;
}

static int64_t in_flight_us(const struct machine *m)
{
    int64_t us = 0;
    for (uint32_t i = 0; i < m->n_step; i++)
        us += m->fixed_us +
              m->row_us * m->steps[(m->i_step + i) % SCHEDULER_IN_FLIGHT_MAX].head->n_token;
    return us;
}

/* A request of the neighbour from its arrival on; times[k]: to token k, without the steps that were
 * in flight when it arrived. Returns how long those took. */
static int64_t ask(struct machine *m, uint32_t n_prompt, int64_t times[N_NEW])
{
    const int64_t wait_us = in_flight_us(m), began_us = m->now_us + wait_us;
    m->watched = submit(m, NEIGHBOUR, n_prompt, N_NEW);
    m->n_got = 0;
    m->is_over = false;
    while (!m->is_over)
        assert_true(compute(m));
    assert_int_equal(m->n_got, N_NEW);
    for (uint32_t i = 0; i < N_NEW; i++)
        times[i] = m->got_us[i] - began_us;
    return wait_us;
}

static void compute_for(struct machine *m, int64_t us)
{
    const int64_t until_us = m->now_us + us;
    while (m->now_us < until_us && compute(m))
        ;
}

/* Steps of few rows, so that the scheduler knows what a row costs. */
static void warm_up(struct machine *m)
{
    for (uint32_t i = 0; i < 4; i++)
        submit(m, FLOOD, 1 + 8 * i, 20);
    while (compute(m))
        ;
}

static void flood(struct machine *m)
{
    for (uint32_t i = 0; i < 64; i++)
        submit(m, FLOOD, 100 + i * 9, 300);
}

/* Long prompts and decodes of another tenant: every token of the neighbour within twice its time
 * alone, from the first request on; those that follow soon do not wait for long steps either. */
static void beside_flood(int64_t fixed_us, int64_t row_us, uint32_t n_prompt)
{
    struct machine m;
    int64_t alone[N_NEW], beside[N_NEW];
    /* Half of a step's rows are fewer than all: a long prompt needs one more chunk. */
    const int64_t more_us = n_prompt > N_TOKEN / 2 ? fixed_us + N_TOKEN * row_us : 0;
    machine_init(&m, &config, fixed_us, row_us);
    assert_int_equal(ask(&m, n_prompt, alone), 0);
    machine_release(&m);
    machine_init(&m, &config, fixed_us, row_us);
    warm_up(&m);
    flood(&m);
    for (uint32_t k = 0; k < 10; k++) {
        const int64_t wait_us = ask(&m, n_prompt, beside);
        for (uint32_t i = 0; i < N_NEW; i++)
            assert_in_range(beside[i], 0, 2 * alone[i] + more_us);
        if (k)
            assert_in_range(wait_us, 0, 2 * (2 * fixed_us + row_us * (n_prompt + 2)));
        compute_for(&m, 3 * (fixed_us + row_us));
    }
    machine_release(&m);
}

static void test_neighbour(void **state)
{
    (void)state;
    const int64_t costs[][2] = {{1000, 10}, {1000, 100}, {500, 500}, {100, 400}};
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++) {
        beside_flood(costs[i][0], costs[i][1], 1);
        beside_flood(costs[i][0], costs[i][1], 16);
        beside_flood(costs[i][0], costs[i][1], 200);
        beside_flood(costs[i][0], costs[i][1], 700); /* two chunks alone */
    }
}

/* The steps that a flood takes by itself: those of full rows, and a neighbour that came and went
 * does not change that after a while; meanwhile it has half of its speed or more. */
static void test_alone(void **state)
{
    (void)state;
    struct machine m;
    int64_t times[N_NEW];
    machine_init(&m, &config, 1000, 100);
    warm_up(&m);
    flood(&m);
    m.n_row = 0;
    for (uint32_t i = 1; i <= 3; i++) {
        assert_true(compute(&m));
        assert_int_equal(m.n_row, i * N_TOKEN);
    }
    ask(&m, 16, times);
    m.n_row = 0;
    compute_for(&m, 500000);
    assert_in_range(m.n_row, 500000 / (2 * 100 + 100 / 10), 500000 / 100);
    compute_for(&m, 600000);
    m.n_row = 0;
    for (uint32_t i = 1; i <= 4; i++) { /* two of them were planned before */
        assert_true(compute(&m));
        if (i == 2)
            m.n_row = 0;
    }
    assert_int_equal(m.n_row, 2 * N_TOKEN);
    while (compute(&m))
        ;
    machine_release(&m);
}

/* The longest time of the neighbour's later tokens beside n other tenants with a flood each. */
static int64_t token_us(struct machine *m, uint32_t n)
{
    int64_t times[N_NEW];
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t i = 0; i < 8; i++)
            submit(m, t ? NEIGHBOUR + t : FLOOD, 300, 100);
    compute_for(m, 4 * (m->fixed_us + N_TOKEN * m->row_us));
    ask(m, 16, times);
    int64_t longest_us = 0;
    for (uint32_t i = 1; i < N_NEW; i++)
        longest_us = times[i] - times[i - 1] > longest_us ? times[i] - times[i - 1] : longest_us;
    return longest_us;
}

/* Each tenant adds one time of the neighbour's step alone; one of double weight is slowed half. */
static void test_many_tenants(void **state)
{
    (void)state;
    struct machine m;
    for (uint32_t n = 1; n <= 8; n++) {
        machine_init(&m, &config, 1000, 50);
        warm_up(&m);
        assert_in_range(token_us(&m, n), 1050, (1 + (int64_t)n) * 1050);
        machine_release(&m);
    }
    machine_init(&m, &config, 1000, 50);
    m.neighbour_weight = 2;
    warm_up(&m);
    assert_in_range(token_us(&m, 2), 1050, 1050 + 2 * 1050 / 2);
    machine_release(&m);
}

/* Many tenants decode and one has a long prompt: it takes half of each step, not the share of one
 * row, and no step takes longer than twice those of the others. */
static void test_prompt_beside_many(void **state)
{
    (void)state;
    const uint32_t n_other = 60, n_prompt = PROMPT_MAX;
    struct machine m;
    machine_init(&m, &config, 1000, 100);
    warm_up(&m);
    for (uint32_t i = 0; i < n_other; i++)
        submit(&m, NEIGHBOUR + 1 + i, 1, 300);
    compute_for(&m, 50000);
    const int64_t others_us = 1000 + n_other * 100;
    m.watched = submit(&m, NEIGHBOUR, n_prompt, N_NEW);
    uint32_t n_step = 0;
    for (int64_t at_us = m.now_us; m.n_got == 0; at_us = m.now_us, n_step++) {
        assert_true(compute(&m));
        assert_in_range(m.now_us - at_us, others_us, 2 * others_us + 2 * 100); /* as fitted */
    }
    const uint32_t n_share = n_other + 1000 / 100;
    assert_in_range(n_step, n_prompt / n_share, n_prompt / n_share + 4); /* two were in flight */
    machine_release(&m);
}

/* The more urgent tenant has all rows: a share protects equals, and priorities stand above it. */
static void test_priorities(void **state)
{
    (void)state;
    struct scheduler_config c = config;
    struct machine m;
    c.policy.by_priority = true;
    machine_init(&m, &c, 1000, 50);
    warm_up(&m);
    m.flood_priority = -1;
    flood(&m);
    const uint64_t id = submit(&m, NEIGHBOUR, 16, N_NEW);
    m.n_row = 0;
    for (uint32_t i = 1; i <= 10; i++) {
        if (i == 5) /* nor is it expected back */
            assert_true(scheduler_abort(m.s, 0, id));
        assert_true(compute(&m));
        assert_int_equal(m.n_row, i * N_TOKEN);
    }
    machine_release(&m);
    machine_init(&m, &c, 1000, 50); /* and the less urgent one is limited */
    warm_up(&m);
    m.flood_priority = 1;
    assert_in_range(token_us(&m, 1), 1050, 2 * 1050);
    machine_release(&m);
}

static void test_row_cost(void **state)
{
    (void)state;
    struct row_cost c = {0};
    assert_true(row_cost_fixed_rows(&c) == ROW_COST_GUESS);
    row_cost_note(&c, 0, 100); /* no measurements */
    row_cost_note(&c, 8, 0);
    for (uint32_t i = 0; i < 10; i++)
        row_cost_note(&c, 8, 1800);
    assert_true(row_cost_fixed_rows(&c) == ROW_COST_GUESS); /* one size says nothing of a row */
    for (uint32_t n = 1; n <= 4096; n *= 4)
        row_cost_note(&c, n, 1000 + 100 * (int64_t)n);
    assert_in_range(row_cost_fixed_rows(&c) * 1000, 9999, 10001);
    row_cost_note(&c, 16, 1000000); /* one slow step changes little */
    assert_in_range(row_cost_fixed_rows(&c) * 1000, 9000, 11000);
    for (uint32_t i = 0; i < 1000; i++) /* many do */
        for (uint32_t n = 1; n <= 4096; n *= 4)
            row_cost_note(&c, n, 1000 + 1000 * (int64_t)n);
    assert_in_range(row_cost_fixed_rows(&c) * 1000, 500, 1500);
    c = (struct row_cost){0};
    for (uint32_t n = 1; n <= 256; n *= 2)
        row_cost_note(&c, n, 1000); /* memory alone limits it */
    assert_true(row_cost_fixed_rows(&c) == ROW_COST_MAX);
    for (uint32_t n = 1; n <= 256; n *= 2)
        row_cost_note(&c, n, n * 2); /* nothing is fixed */
    assert_true(row_cost_fixed_rows(&c) < 0.001);
    row_cost_note(&c, UINT32_MAX, INT64_MAX);
    assert_true(row_cost_fixed_rows(&c) >= 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_neighbour),    cmocka_unit_test(test_alone),
        cmocka_unit_test(test_many_tenants), cmocka_unit_test(test_prompt_beside_many),
        cmocka_unit_test(test_priorities),   cmocka_unit_test(test_row_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
