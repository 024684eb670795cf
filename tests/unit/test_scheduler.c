/* SPDX-License-Identifier: Apache-2.0 */
/* Single behaviours of the scheduler, step by step; tests/sim plays them all at once. Here the
 * worker is the test: it reads the planned step and answers with tokens of the test's choice. */
#include "check.h"
#include "common/mem.h"
#include "engine/sched/scheduler.h"

#define EOS 2u

static const uint32_t eos_ids[] = {EOS};
static const struct scheduler_config small = {
    .limits =
        {
            .max_num_seqs = 4,
            .max_num_batched_tokens = 32,
            .max_model_len = 64,
            .logit_rows_max = 8,
            .known_max = 64,
        },
    .n_block = 8,
    .queue_max = 6,
    .vocab_size = 100,
    .eos_ids = eos_ids,
    .n_eos = 1,
};

struct bench { /* a scheduler, and the steps it has in flight */
    struct scheduler *s;
    struct step_limits limits;
    size_t n, result_n;
    void *memory[SCHEDULER_IN_FLIGHT_MAX], *result;
    struct step_view steps[SCHEDULER_IN_FLIGHT_MAX];
    uint32_t n_known[4]; /* history by slot, as the worker has it */
    uint32_t i_step, n_step;
    struct scheduler_output out[8];
    uint32_t n_out;
};
static struct q_err e;
static int64_t now_us; /* 0 but where a test moves it */

static struct bench *bench_new(const struct scheduler_config *c)
{
    static struct bench b;
    memset(&b, 0, sizeof b);
    b.limits = c->limits;
    assert_ok(scheduler_new(&b.s, c, &e), &e);
    assert_ok(step_bytes_max(&b.n, &b.result_n, &c->limits, &e), &e);
    for (uint32_t i = 0; i < SCHEDULER_IN_FLIGHT_MAX; i++)
        b.memory[i] = q_alloc(b.n);
    b.result = q_alloc(b.result_n);
    return &b;
}

static void bench_free(struct bench *b)
{
    scheduler_check(b->s);
    scheduler_free(b->s);
    for (uint32_t i = 0; i < SCHEDULER_IN_FLIGHT_MAX; i++)
        q_free(b->memory[i]);
    q_free(b->result);
}

static uint32_t prompt[64]; /* all token 7 */

static struct msg_submit request(uint64_t req_id, uint32_t n_prompt, uint32_t max_tokens)
{
    for (int i = 0; i < 64; i++)
        prompt[i] = 7;
    return (struct msg_submit){
        .req_id = req_id,
        .prompt = {prompt, n_prompt},
        .top_p = 1.0f,
        .repetition_penalty = 1.0f,
        .max_tokens = max_tokens,
    };
}

static void submit(struct bench *b, uint64_t req_id, uint32_t n_prompt, uint32_t max_tokens)
{
    struct msg_submit m = request(req_id, n_prompt, max_tokens);
    assert_ok(scheduler_submit(b->s, 0, &m, now_us, &e), &e);
    scheduler_check(b->s);
}

/* Plan one step; NULL when there is nothing to compute. */
static struct step_view *plan(struct bench *b)
{
    bool planned;
    uint32_t i = (b->i_step + b->n_step) % SCHEDULER_IN_FLIGHT_MAX;
    assert_ok(scheduler_plan(b->s, b->memory[i], b->n, now_us, &planned, &e), &e);
    scheduler_check(b->s);
    if (!planned)
        return NULL;
    b->n_step++;
    assert_ok(step_view(&b->steps[i], b->memory[i], b->n, &b->limits, &e), &e);
    return &b->steps[i];
}

/* The result of the oldest step, sampling `token` everywhere, not settled yet. */
static struct step_result compute(struct bench *b, uint32_t token)
{
    const struct step_view *v = &b->steps[b->i_step];
    struct step_result r;
    uint32_t n_row = 0, i_admit = 0;
    assert_ok(step_result_layout(&r, b->result, b->result_n, 8, 0, &e), &e);
    for (uint32_t i = 0; i < v->head->n_seq; i++) {
        const struct step_seq *q = &v->seqs[i];
        uint32_t n_known = q->start + q->n_token;
        if (q->flags & STEP_ADMIT)
            b->n_known[q->slot] = v->admits[i_admit++].n_known;
        if (q->flags & STEP_SAMPLE) /* is the whole history, which may have grown */
            b->n_known[q->slot] = n_known;
        for (uint32_t k = 1; k <= q->n_token && q->flags & STEP_PROMPT_LOGPROBS; k++)
            if (q->start + k < b->n_known[q->slot])
                r.rows[n_row++] = (struct step_row){
                    .slot = q->slot,
                    .position = q->start + k,
                    .token = 7,
                    .is_prompt = 1,
                };
        if (q->flags & STEP_SAMPLE)
            r.rows[n_row++] =
                (struct step_row){.slot = q->slot, .position = n_known, .token = token};
    }
    assert_int_equal(n_row, v->head->n_logit);
    assert_ok(step_result_layout(&r, b->result, b->result_n, n_row, 0, &e), &e);
    r.head->step = v->head->step;
    return r;
}

static void settle(struct bench *b, uint32_t token)
{
    struct step_result r = compute(b, token);
    assert_ok(scheduler_settle(b->s, &r, now_us, b->out, &b->n_out, &e), &e);
    scheduler_check(b->s);
    b->i_step = (b->i_step + 1) % SCHEDULER_IN_FLIGHT_MAX;
    b->n_step--;
}

static struct scheduler_stats stats(struct bench *b)
{
    struct scheduler_stats st;
    scheduler_stats(b->s, &st);
    return st;
}

static void test_one_request(void **state)
{
    (void)state;
    struct bench *b = bench_new(&small);
    assert_null(plan(b));
    submit(b, 5, 20, 3);
    struct step_view *v = plan(b);
    assert_int_equal(v->head->step, 1);
    assert_int_equal(v->head->n_seq, 1);
    assert_int_equal(v->seqs[0].flags, STEP_ADMIT | STEP_SAMPLE);
    assert_int_equal(v->seqs[0].n_token, 20);
    assert_int_equal(v->seqs[0].n_new_block, 2);
    assert_int_equal(v->admits[0].n_stop_id, 1);
    assert_int_equal(v->stop_ids[0], EOS);
    settle(b, 50);
    assert_int_equal(b->n_out, 1);
    assert_int_equal(b->out[0].req_id, 5);
    assert_true(b->out[0].has_token && b->out[0].seq == 0 && b->out[0].token == 50);
    for (uint32_t i = 1; i < 3; i++) {
        v = plan(b);
        assert_int_equal(v->seqs[0].start, 19 + i);
        assert_int_equal(v->seqs[0].flags, STEP_SAMPLE);
        settle(b, 50 + i);
        assert_int_equal(b->out[0].seq, i);
        assert_int_equal(b->out[0].finish, i < 2 ? FINISH_NONE : FINISH_LENGTH);
    }
    assert_null(plan(b));
    assert_int_equal(stats(b).kv_blocks_used, 0);
    assert_int_equal(stats(b).n_finished, 1);
    assert_int_equal(stats(b).prompt_tokens, 20);
    assert_int_equal(stats(b).generation_tokens, 3);
    assert_int_equal(stats(b).iteration_tokens[0], 2); /* two decode steps */
    assert_int_equal(stats(b).iteration_tokens[5], 1); /* 17 … 32 */
    bench_free(b);
}

/* Tokens alone until it is over; returns how, and how many there were. */
static enum finish_reason run_alone(const struct msg_submit *m, uint32_t token, uint32_t *n_token,
                                    uint32_t *stop_id)
{
    struct bench *b = bench_new(&small);
    enum finish_reason finish = FINISH_NONE;
    assert_ok(scheduler_submit(b->s, 0, m, 0, &e), &e);
    *n_token = 0;
    while (!finish && plan(b)) {
        settle(b, token);
        *n_token += b->n_out && b->out[0].has_token;
        finish = b->n_out ? b->out[0].finish : FINISH_NONE;
        *stop_id = b->out[0].stop_id;
    }
    bench_free(b);
    return finish;
}

static void test_finish(void **state)
{
    (void)state;
    uint32_t n, stop_id, stops[] = {9, EOS};
    struct msg_submit m = request(1, 3, 10);
    assert_int_equal(run_alone(&m, 50, &n, &stop_id), FINISH_LENGTH);
    assert_int_equal(n, 10);
    assert_int_equal(run_alone(&m, EOS, &n, &stop_id), FINISH_STOP);
    assert_int_equal(n, 1);
    assert_int_equal(stop_id, 0);
    m.ignore_eos = true;
    assert_int_equal(run_alone(&m, EOS, &n, &stop_id), FINISH_LENGTH);
    m.stop_ids = (struct proto_u32s){stops, 2};
    assert_int_equal(run_alone(&m, EOS, &n, &stop_id), FINISH_STOP); /* asked for by its id */
    assert_int_equal(stop_id, EOS + 1);
    m.ignore_eos = false;
    assert_int_equal(run_alone(&m, EOS, &n, &stop_id), FINISH_STOP);
    assert_int_equal(stop_id, 0); /* an eos first of all */
    assert_int_equal(run_alone(&m, 9, &n, &stop_id), FINISH_STOP);
    assert_int_equal(stop_id, 10);
    m.min_tokens = 4;
    assert_int_equal(run_alone(&m, 9, &n, &stop_id), FINISH_STOP);
    assert_int_equal(n, 5); /* four that cannot stop it, one that does */
    m = request(1, 60, 10);
    assert_int_equal(run_alone(&m, 50, &n, &stop_id), FINISH_LENGTH);
    assert_int_equal(n, 4); /* max_model_len 64 */
}

static void test_emitted(void **state)
{
    (void)state;
    struct bench *b = bench_new(&small);
    const uint32_t emitted[] = {40, 41, 42};
    struct msg_submit m = request(1, 5, 5);
    m.emitted = (struct proto_u32s){emitted, 3};
    assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e);
    struct step_view *v = plan(b);
    assert_int_equal(v->admits[0].n_known, 8);
    assert_int_equal(v->admits[0].n_prompt, 5);
    assert_int_equal(v->known[7], 42);
    settle(b, 50);
    assert_int_equal(b->out[0].seq, 3);
    plan(b);
    settle(b, 51);
    assert_int_equal(b->out[0].seq, 4);
    assert_int_equal(b->out[0].finish, FINISH_LENGTH);
    m.max_tokens = 3;
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_INVALID, "emitted", &e);
    bench_free(b);
}

static void test_refused(void **state)
{
    (void)state;
    struct bench *b = bench_new(&small);
    struct msg_submit m = request(1, 0, 1);
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_INVALID, "prompt: is empty", &e);
    m = request(1, 64, 1);
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_INVALID, "max_model_len", &e);
    m = request(1, 5, 0);
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_INVALID, "max_tokens", &e);
    m = request(1, 5, 1);
    prompt[3] = 100;
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_INVALID,
                 "prompt: token id 100 at position 3", &e);
    m = request(1, 5, 9);
    const uint32_t emitted[] = {7, 100};
    m.emitted = (struct proto_u32s){emitted, 2};
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_INVALID, "emitted: token id 100", &e);
    m = request(1, 5, 9);
    m.top_p = 0.0f;
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_INVALID, "top_p", &e);
    submit(b, 1, 5, 1);
    m = request(1, 5, 1);
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_MISMATCH, "req_id 1", &e);
    assert_ok(scheduler_submit(b->s, 1, &m, 0, &e), &e); /* another frontend's 1 */
    for (uint64_t i = 2; i < 10; i++)
        submit(b, i, 5, 1);
    m = request(11, 5, 1);
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_NO_SPACE, "full with 10 waiting requests",
                 &e);
    bench_free(b);
}

static void test_config(void **state)
{
    (void)state;
    struct scheduler *s;
    struct scheduler_config c = small;
    c.n_block = 3;
    assert_fails(scheduler_new(&s, &c, &e), Q_INVALID, "max_model_len to at most 48", &e);
    c = small;
    c.limits.max_num_seqs = 0;
    assert_fails(scheduler_new(&s, &c, &e), Q_INVALID, "max_num_seqs", &e);
    c = small;
    c.limits.logit_rows_max = 3;
    assert_fails(scheduler_new(&s, &c, &e), Q_INVALID, "logit_rows_max", &e);
    c = small;
    c.limits.known_max = 63;
    assert_fails(scheduler_new(&s, &c, &e), Q_INVALID, "known_max", &e);
    c = small;
    c.queue_max = UINT32_MAX;
    assert_fails(scheduler_new(&s, &c, &e), Q_INVALID, "queue_max", &e);
    c = small;
    c.n_eos = STEP_EOS_MAX + 1;
    assert_fails(scheduler_new(&s, &c, &e), Q_INVALID, "eos ids", &e);
}

/* A prompt larger than a step goes in chunks; decode rows come before its chunks; the rest is
 * filled from the queue. */
static void test_chunks_and_order(void **state)
{
    (void)state;
    struct bench *b = bench_new(&small);
    submit(b, 1, 50, 3);
    struct step_view *v = plan(b);
    assert_int_equal(v->seqs[0].n_token, 32);
    assert_int_equal(v->seqs[0].flags, STEP_ADMIT);
    assert_int_equal(v->seqs[0].n_new_block, 4);
    submit(b, 2, 10, 3);
    submit(b, 3, 10, 3);
    settle(b, 50);
    assert_int_equal(b->n_out, 0);
    v = plan(b);
    assert_int_equal(v->head->n_seq, 3); /* 18 of the first, 10 of the second, 4 of the third */
    assert_int_equal(v->seqs[0].n_token, 18);
    assert_int_equal(v->seqs[0].flags, STEP_SAMPLE);
    assert_int_equal(v->seqs[1].n_token, 10);
    assert_int_equal(v->seqs[2].n_token, 4);
    assert_int_equal(v->head->n_token, 32);
    settle(b, 50);
    assert_int_equal(b->n_out, 2);
    v = plan(b);
    assert_int_equal(v->seqs[0].n_token, 1);
    assert_int_equal(v->seqs[1].n_token, 1);
    assert_int_equal(v->seqs[2].n_token, 6);
    settle(b, 50);
    bench_free(b);
}

static void test_two_in_flight(void **state)
{
    (void)state;
    struct bench *b = bench_new(&small);
    submit(b, 1, 5, 10);
    submit(b, 2, 5, 2);
    assert_non_null(plan(b));
    struct step_view *v = plan(b); /* tokens of the first step are not known yet */
    assert_int_equal(v->head->n_seq, 2);
    assert_int_equal(v->seqs[0].start, 5);
    assert_null(plan(b)); /* two is the limit */
    settle(b, 50);
    v = plan(b); /* the second request's last token is in flight: nothing more for it */
    assert_int_equal(v->head->n_seq, 1);
    assert_int_equal(v->seqs[0].start, 6);
    settle(b, EOS); /* both end, one by an eos; a row of it is still in flight */
    assert_int_equal(b->n_out, 2);
    assert_int_equal(b->out[0].finish, FINISH_STOP);
    assert_int_equal(stats(b).kv_blocks_used, 0);
    submit(b, 3, 5, 2); /* takes the same slot and blocks at once */
    v = plan(b);
    assert_int_equal(v->seqs[0].flags, STEP_ADMIT | STEP_SAMPLE);
    settle(b, 60); /* the dropped row */
    assert_int_equal(b->n_out, 0);
    settle(b, 61);
    assert_int_equal(b->n_out, 1);
    assert_int_equal(b->out[0].req_id, 3);
    assert_int_equal(b->out[0].token, 61);
    bench_free(b);
}

static void test_abort(void **state)
{
    (void)state;
    struct bench *b = bench_new(&small);
    submit(b, 1, 20, 10);
    submit(b, 2, 5, 10);
    assert_non_null(plan(b));
    assert_non_null(plan(b));
    assert_true(scheduler_abort(b->s, 0, 1));
    assert_false(scheduler_abort(b->s, 0, 1));
    assert_false(scheduler_abort(b->s, 1, 2)); /* another frontend's */
    assert_int_equal(stats(b).kv_blocks_used, 1);
    submit(b, 1, 5, 10); /* its id again, and its entry */
    for (int i = 0; i < 2; i++) {
        settle(b, 50);
        assert_int_equal(b->n_out, 1);
        assert_int_equal(b->out[0].req_id, 2);
    }
    assert_int_equal(scheduler_abort_frontend(b->s, 0), 2);
    assert_int_equal(scheduler_abort_frontend(b->s, 0), 0);
    assert_int_equal(stats(b).n_aborted, 3);
    assert_int_equal(stats(b).kv_blocks_used, 0);
    assert_null(plan(b));
    bench_free(b);
}

/* Three sequences of two blocks each in a pool of eight grow until blocks run out. */
static void test_preemption(void **state)
{
    (void)state;
    struct bench *b = bench_new(&small);
    for (uint64_t i = 1; i <= 3; i++)
        submit(b, i, 30, 34);
    uint32_t n_token[4] = {0};
    bool seen = false;
    for (int i_round = 0; i_round < 400 && (plan(b) || b->n_step); i_round++) {
        if (stats(b).n_preemption && !seen) {
            seen = true; /* the youngest went back to the queue; older ones run on */
            assert_int_equal(stats(b).n_waiting, 1);
            assert_int_equal(stats(b).n_running, 2);
        }
        settle(b, 50);
        for (uint32_t i = 0; i < b->n_out; i++) {
            assert_int_equal(b->out[i].seq, n_token[b->out[i].req_id]);
            n_token[b->out[i].req_id]++;
        }
    }
    assert_true(seen);
    for (int i = 1; i <= 3; i++)
        assert_int_equal(n_token[i], 34);
    assert_int_equal(stats(b).prompt_tokens, 90); /* recomputing is not counted */
    bench_free(b);
}

/* The logit rows of a step bound a chunk with prompt logprobs; every position comes once.
 */
static void test_prompt_logprobs(void **state)
{
    (void)state;
    struct bench *b = bench_new(&small);
    struct msg_submit m = request(1, 20, 2);
    m.n_prompt_logprob = 1;
    assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e);
    static const uint32_t chunks[] = {8, 8, 4};
    uint32_t next = 1;
    for (int i = 0; i < 3; i++) {
        struct step_view *v = plan(b);
        assert_int_equal(v->seqs[0].n_token, chunks[i]);
        assert_int_equal(v->head->n_logit, chunks[i]);
        assert_true(v->seqs[0].flags & STEP_PROMPT_LOGPROBS);
        settle(b, 50);
        assert_int_equal(b->n_out, 1);
        for (uint32_t k = 0; k < b->out[0].n_prompt_row; k++)
            assert_int_equal(b->out[0].prompt_rows[k].position, next++);
    }
    assert_int_equal(next, 20);
    assert_true(b->out[0].has_token);
    assert_false(plan(b)->seqs[0].flags & STEP_PROMPT_LOGPROBS);
    bench_free(b);
}

/* A replay: the rows after the prompt tell nothing about it, and are not asked. */
static void test_prompt_logprobs_replayed(void **state)
{
    (void)state;
    struct bench *b = bench_new(&small);
    const uint32_t emitted[] = {40, 41, 42};
    struct msg_submit m = request(1, 5, 9);
    m.n_prompt_logprob = 1;
    m.emitted = (struct proto_u32s){emitted, 3};
    assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e);
    struct step_view *v = plan(b);
    assert_int_equal(v->seqs[0].flags, STEP_ADMIT | STEP_PROMPT_LOGPROBS);
    assert_int_equal(v->seqs[0].n_token, 4);
    settle(b, 50);
    assert_int_equal(b->out[0].n_prompt_row, 4);
    assert_int_equal(b->out[0].prompt_rows[3].position, 4);
    v = plan(b);
    assert_int_equal(v->seqs[0].flags, STEP_SAMPLE);
    assert_int_equal(v->seqs[0].n_token, 4);
    settle(b, 50);
    assert_int_equal(b->out[0].seq, 3);
    assert_int_equal(b->out[0].n_prompt_row, 0);
    bench_free(b);
}

static void test_worker_lost(void **state)
{
    (void)state;
    struct bench *b = bench_new(&small);
    submit(b, 1, 20, 10);
    submit(b, 2, 5, 10);
    submit(b, 3, 25, 10);
    assert_non_null(plan(b));
    settle(b, 50);
    assert_non_null(plan(b));
    assert_non_null(plan(b));
    scheduler_worker_lost(b->s);
    b->n_step = 0;
    scheduler_check(b->s);
    assert_int_equal(stats(b).n_running, 0);
    assert_int_equal(stats(b).n_in_flight, 0);
    assert_int_equal(stats(b).kv_blocks_used, 0);
    struct step_view *v = plan(b);
    assert_int_equal(v->admits[0].n_known, 21); /* with the token that was settled */
    assert_int_equal(v->known[20], 50);
    assert_int_equal(v->admits[1].n_known, 6);
    settle(b, 51);
    assert_int_equal(b->out[0].seq, 1);
    scheduler_worker_lost(b->s); /* with nothing in flight */
    bench_free(b);
}

/* A result that is not the one asked for changes nothing, and the right one is taken after it. */
static void test_wrong_results(void **state)
{
    (void)state;
    struct bench *b = bench_new(&small);
    struct msg_submit m = request(1, 4, 5);
    m.n_prompt_logprob = 1;
    assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e);
    assert_non_null(plan(b));
    struct step_result r = compute(b, 50); /* three prompt rows, one token */
    assert_int_equal(r.head->n_row, 4);
#define WRONG(place, value, part)                                                                \
    do {                                                                                         \
        __typeof__(place) was_ = (place);                                                        \
        (place) = (value);                                                                       \
        assert_fails(scheduler_settle(b->s, &r, 0, b->out, &b->n_out, &e), Q_CORRUPT, part, &e); \
        assert_int_equal(b->n_out, 0);                                                           \
        (place) = was_;                                                                          \
        scheduler_check(b->s);                                                                   \
    } while (0)
    WRONG(r.head->step, 2, "result of step 2: the oldest in flight is 1");
    WRONG(r.head->error, Q_IO, "failed in the worker: IO");
    WRONG(r.head->n_row, 3, "are missing");
    WRONG(r.head->n_row, 0, "are missing");
    WRONG(r.rows[0].slot, 1, "not in the step");
    WRONG(r.rows[0].slot, 400, "not in the step");
    WRONG(r.rows[1].position, 1, "not the next prompt position");
    WRONG(r.rows[1].is_prompt, 0, "did not request this token");
    WRONG(r.rows[3].is_prompt, 1, "not the next prompt position");
    WRONG(r.rows[3].position, 5, "did not request this token");
    WRONG(r.rows[3].token, 100, "vocabulary");
    settle(b, 50);
    assert_int_equal(b->n_out, 1);
    assert_int_equal(b->out[0].n_prompt_row, 3);
    /* The same result again. */
    assert_fails(scheduler_settle(b->s, &r, 0, b->out, &b->n_out, &e), Q_CORRUPT, "in flight is 0",
                 &e);
    bench_free(b);
}

/* Lay out the result of the step of draft tokens in flight: one sampled row for each of `tokens`,
 * those from `n_predicted` on rejected. */
static struct step_result drafted(struct bench *b, const uint32_t *tokens, uint32_t n,
                                  uint32_t n_predicted)
{
    struct step_view *v = &b->steps[b->i_step];
    struct step_result r;
    assert_ok(step_result_layout(&r, b->result, b->result_n, n, 0, &e), &e);
    r.head->step = v->head->step;
    for (uint32_t i = 0; i < n; i++)
        r.rows[i] = (struct step_row){
            .slot = v->seqs->slot,
            .position = v->seqs->start + 1 + i,
            .token = tokens[i],
            .is_rejected = i >= n_predicted,
        };
    return r;
}

static void take(struct bench *b, const struct step_result *r)
{
    assert_ok(scheduler_settle(b->s, r, 0, b->out, &b->n_out, &e), &e);
    scheduler_check(b->s);
    b->i_step = (b->i_step + 1) % SCHEDULER_IN_FLIGHT_MAX;
    b->n_step--;
}

/* Room for draft tokens as far as length, rows and blocks allow; what is accepted counts, and
 * planning continues behind it. */
static void test_draft_tokens(void **state)
{
    (void)state;
    struct scheduler_config c = small;
    const uint32_t tokens[] = {50, 51, 52, 53};
    c.n_draft_token = 3;
    struct bench *b = bench_new(&c);
    submit(b, 1, 14, 12);
    assert_non_null(plan(b));
    assert_null(plan(b)); /* how far the sequence will be is not known before the result */
    settle(b, 50);
    const struct step_view *v = plan(b);
    assert_int_equal(v->seqs->flags, STEP_SAMPLE | STEP_SPECULATE);
    assert_int_equal(v->seqs->n_token, 4);
    assert_int_equal(v->seqs->n_new_block, 1); /* positions 14 to 17 */
    assert_int_equal(v->head->n_logit, 4);
    struct step_result r = drafted(b, tokens, 4, 3);
    WRONG(r.rows[0].is_rejected, 1, "first token is marked rejected");
    WRONG(r.rows[1].is_rejected, 1, "an accepted token follows a rejected one");
    WRONG(r.rows[1].position, 17, "did not request this token");
    WRONG(r.rows[3].slot, 1, "not in the step");
    WRONG(r.head->n_row, 0, "are missing");
    take(b, &r);
    assert_int_equal(b->n_out, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(b->out[i].token == tokens[i] && b->out[i].seq == 1 + i);
    v = plan(b); /* 18 tokens: the row of the newest, at 17, and three behind it */
    assert_int_equal(v->seqs->start, 17);
    assert_int_equal(v->seqs->n_new_block, 0);
    r = drafted(b, tokens, 1, 1); /* no draft tokens were found */
    take(b, &r);
    v = plan(b);
    assert_int_equal(v->seqs->start, 18);
    r = drafted(b, (const uint32_t[]){60, EOS, 61, 62}, 4, 4); /* what follows an eos is dropped */
    take(b, &r);
    assert_int_equal(b->n_out, 2);
    assert_int_equal(b->out[1].finish, FINISH_STOP);
    struct scheduler_stats s;
    scheduler_stats(b->s, &s);
    assert_int_equal(s.n_draft, 2);
    assert_int_equal(s.n_draft_token, 6);
    assert_int_equal(s.n_accepted_token, 5);
    assert_int_equal(s.accepted_at[2], 1);
    submit(b, 2, 40, 3);
    assert_non_null(plan(b)); /* 32 rows, then 8 */
    settle(b, 50);
    assert_non_null(plan(b));
    settle(b, 50);
    assert_int_equal(plan(b)->seqs->n_token, 2); /* two more tokens: one draft token has use */
    bench_free(b);
}

/* A block whose last row is a draft token's is not in the prefix cache before the next step: the
 * draft model has no KV of that row until then, and never if the request ends. */
static void test_draft_tokens_in_cached_blocks(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {50, 51, 52, 53};
    static uint32_t history[17];
    struct scheduler_config c = small;
    c.n_draft_token = 3;
    c.prefix_cache = true;
    for (uint32_t n_accepted = 2; n_accepted <= 3; n_accepted++)
        for (uint32_t n_more = 0; n_more < 2; n_more++) {
            struct bench *b = bench_new(&c);
            const uint32_t n_prompt = 15 - n_accepted; /* the last accepted one is at 15 */
            submit(b, 1, n_prompt, 5 + 3 * n_more);
            assert_non_null(plan(b));
            settle(b, 50);
            assert_int_equal(plan(b)->seqs->n_token, 4);
            struct step_result r = drafted(b, tokens, 4, n_accepted + 1);
            take(b, &r);
            for (uint32_t i = 0; i < 17; i++)
                history[i] = i < n_prompt ? 7 : i == n_prompt ? 50 : tokens[i - n_prompt - 1];
            const bool has_ended = n_accepted == 3 && !n_more;
            assert_int_equal(b->out[b->n_out - 1].finish != FINISH_NONE, has_ended);
            struct msg_submit m = request(2, 0, 1);
            m.prompt = (struct proto_u32s){history, 17};
            assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e);
            assert_non_null(plan(b));
            assert_int_equal(stats(b).prefix_hits, has_ended ? 0 : 16);
            bench_free(b);
        }
}

static void test_small_memory(void **state)
{
    (void)state;
    struct bench *b = bench_new(&small);
    bool planned;
    submit(b, 1, 20, 2);
    assert_fails(scheduler_plan(b->s, b->memory[0], 64, 0, &planned, &e), Q_TOO_LARGE, "step", &e);
    assert_false(planned);
    scheduler_check(b->s);
    assert_non_null(plan(b));
    bench_free(b);
}

/* Every allocation fails once: in scheduler_new, in submit. Nothing leaks, nothing changes. */
static void test_no_memory(void **state)
{
    (void)state;
    struct scheduler *s = NULL;
    struct msg_submit m = request(1, 20, 2);
    enum q_code rc = Q_NO_MEMORY;
    for (int n = 0; rc; n++) {
        mem_fail_after(n);
        rc = scheduler_new(&s, &small, &e);
        mem_fail_after(-1);
        assert_true(rc == Q_OK || rc == Q_NO_MEMORY);
        assert_true(n < 100);
    }
    mem_fail_after(0);
    assert_int_equal(scheduler_submit(s, 0, &m, 0, &e), Q_NO_MEMORY);
    mem_fail_after(-1);
    scheduler_check(s);
    assert_ok(scheduler_submit(s, 0, &m, 0, &e), &e);
    scheduler_check(s);
    scheduler_free(s); /* with a request inside */
}

/* The better priority is admitted first and preempted last. */
static void test_priority(void **state)
{
    (void)state;
    struct scheduler_config c = small;
    c.policy.by_priority = true;
    c.limits.max_num_seqs = 2;
    c.n_block = 4;
    struct bench *b = bench_new(&c);
    struct msg_submit m = request(1, 16, 20);
    m.priority = 3;
    assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e);
    plan(b);
    settle(b, 50);
    m = request(2, 16, 40);
    m.priority = (uint32_t)-1;
    assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e);
    submit(b, 3, 4, 1); /* priority 0: before 1 and behind 2 */
    for (int k = 0; k < 19; k++) {
        plan(b);
        settle(b, 50);
    }
    assert_int_equal(stats(b).n_preemption,
                     1); /* of 1, which came first: 2 needs its third block */
    assert_int_equal(stats(b).n_running, 1);
    uint32_t i_done = 0;
    uint64_t done[3] = {0};
    while (plan(b)) {
        settle(b, 50);
        for (uint32_t k = 0; k < b->n_out; k++)
            if (b->out[k].finish)
                done[i_done++] = b->out[k].req_id;
    }
    assert_true(done[0] == 2 && done[1] == 3 && done[2] == 1);
    bench_free(b);
}

/* A prompt of more tokens than the threshold goes in such pieces, one at a time; shorter ones do
 * not wait for the second. */
static void test_long_prefill(void **state)
{
    (void)state;
    struct scheduler_config c = small;
    c.policy = (struct scheduler_policy){
        .long_prefill_token_threshold = 10,
        .max_num_partial_prefills = 2,
        .max_long_partial_prefills = 1,
    };
    c.n_block = 20;
    struct bench *b = bench_new(&c);
    submit(b, 1, 25, 1);
    submit(b, 2, 25, 1);
    submit(b, 3, 5, 1);
    struct step_view *v = plan(b); /* of 32 tokens */
    assert_int_equal(v->head->n_seq, 2);
    assert_int_equal(v->seqs[0].n_token, 10);
    assert_int_equal(v->seqs[1].n_token, 5);
    settle(b, 50);
    assert_int_equal(b->out[0].req_id, 3);
    v = plan(b);
    assert_int_equal(v->head->n_seq, 1);
    settle(b, 50);
    v = plan(b); /* the last piece, so the second long one comes in */
    assert_int_equal(v->head->n_seq, 2);
    assert_int_equal(v->seqs[0].n_token, 5);
    assert_int_equal(v->seqs[1].n_token, 10);
    settle(b, 50);
    assert_int_equal(b->out[0].req_id, 1);
    bench_free(b);
    c.policy.max_long_partial_prefills = 3;
    assert_fails(scheduler_new(&b->s, &c, &e), Q_INVALID,
                 "max_long_partial_prefills: expected at most", &e);
    c.policy = (struct scheduler_policy){.long_prefill_token_threshold = 65};
    assert_fails(scheduler_new(&b->s, &c, &e), Q_INVALID, "max_model_len (64), got 65", &e);
}

/* A new prompt waits for twice the time the last one took, while something runs. */
static void test_delay(void **state)
{
    (void)state;
    struct scheduler_config c = small;
    c.policy.delay_factor = 2;
    struct bench *b = bench_new(&c);
    now_us = 1000;
    submit(b, 1, 20, 10);
    assert_int_equal(plan(b)->head->n_admit, 1); /* nothing runs: at once */
    now_us = 1100;
    settle(b, 50);
    submit(b, 2, 20, 10);
    assert_int_equal(plan(b)->head->n_admit, 0);
    now_us = 1300;
    settle(b, 50);
    assert_int_equal(plan(b)->head->n_admit, 0); /* 200 us, not more */
    now_us = 1301;
    settle(b, 50);
    assert_int_equal(plan(b)->head->n_admit, 1);
    settle(b, 50);
    bench_free(b);
    now_us = 0;
}

static void test_timeout(void **state)
{
    (void)state;
    struct scheduler_config c = small;
    struct scheduler_output o;
    c.policy.request_timeout_us = 5000;
    struct bench *b = bench_new(&c);
    submit(b, 1, 5, 30);
    plan(b);
    settle(b, 50);
    plan(b); /* in flight when its time is up */
    now_us = 2000;
    submit(b, 2, 5, 30);
    struct msg_submit m = request(3, 5, 30);
    m.age_ms = 4;
    assert_ok(scheduler_submit(b->s, 7, &m, now_us, &e), &e);
    assert_int_equal(scheduler_deadline_us(b->s), 3000);
    assert_false(scheduler_take_end(b->s, 2999, &o));
    assert_true(scheduler_take_end(b->s, 3000, &o));
    assert_true(o.req_id == 3 && o.frontend_id == 7 && o.code == Q_TIMEOUT);
    assert_int_equal(o.finish, FINISH_ERROR); /* nothing was given out yet */
    assert_false(scheduler_take_end(b->s, 4999, &o));
    assert_int_equal(scheduler_deadline_us(b->s), 5000);
    assert_true(scheduler_take_end(b->s, 5000, &o));
    assert_true(o.req_id == 1 && o.finish == FINISH_ABORT && o.seq == 1);
    assert_false(scheduler_take_end(b->s, 5000, &o));
    settle(b, 50);
    assert_int_equal(b->n_out, 0);
    assert_true(scheduler_take_end(b->s, 8000, &o));
    assert_int_equal(o.req_id, 2);
    assert_false(scheduler_take_end(b->s, 8000, &o));
    assert_int_equal(scheduler_deadline_us(b->s), INT64_MAX);
    assert_int_equal(stats(b).n_timeout, 3);
    assert_int_equal(stats(b).kv_blocks_used, 0);
    bench_free(b);
    now_us = 0;
}

/* Where no request had to wait, those that the free slots take do not count as waiting. */
static void test_free_slots_are_places(void **state)
{
    (void)state;
    struct scheduler_config c = small;
    c.queue_max = 2;
    c.limits.max_num_seqs = 2;
    struct bench *b = bench_new(&c);
    for (uint64_t id = 1; id <= 4; id++)
        submit(b, id, 5, 2);
    struct msg_submit m = request(5, 5, 2);
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_NO_SPACE, "full with 4 waiting", &e);
    assert_int_equal(plan(b)->head->n_admit, 2);
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_NO_SPACE, "full with 2 waiting", &e);
    assert_true(scheduler_abort(b->s, 0, 4));
    submit(b, 5, 5, 2); /* 3 and 5 wait */
    m.req_id = 6;
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_NO_SPACE, "full with 2 waiting", &e);
    settle(b, 50);
    while (plan(b))
        settle(b, 50);
    for (uint64_t id = 6; id <= 9; id++)
        submit(b, id, 5, 2);
    scheduler_check(b->s);
    bench_free(b);
}

/* A full queue: a tenant with few requests gets in, at the cost of the one with most. */
static void test_pushed_out(void **state)
{
    (void)state;
    struct bench *b = bench_new(&small); /* queue_max 6, and 4 slots are free */
    struct scheduler_output o;
    struct msg_submit m;
    for (uint64_t id = 1; id <= 10; id++) {
        m = request(id, 5, 3);
        m.tenant = 8;
        assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e);
    }
    m.req_id = 11;
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_NO_SPACE, "full with 10 waiting requests",
                 &e);
    assert_false(scheduler_take_end(b->s, 0, &o));
    m.req_id = 12;
    m.tenant = 9;
    assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e);
    m.req_id = 13; /* one end is not taken yet: no second */
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_NO_SPACE, "full with 10 waiting requests",
                 &e);
    assert_true(scheduler_take_end(b->s, 0, &o));
    assert_true(o.req_id == 10 && o.code == Q_NO_SPACE && o.finish == FINISH_ERROR);
    assert_false(scheduler_take_end(b->s, 0, &o));
    scheduler_check(b->s);
    assert_int_equal(stats(b).n_waiting, 10);
    assert_int_equal(stats(b).n_tenant, 2);
    assert_int_equal(stats(b).n_pushed_out, 1);
    m.weight = 1001;
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_INVALID, "weight: expected at most 1000",
                 &e);
    bench_free(b);
}

/* A tenant pays for what is computed: a prompt that is in the cache costs its last token, so the
 * tenant with the longer prompts is next again. */
static void test_cached_prompts_are_free(void **state)
{
    (void)state;
    struct scheduler_config c = small;
    c.limits.max_num_seqs = 1;
    c.prefix_cache = true;
    struct bench *b = bench_new(&c);
    submit(b, 1, 49, 1);
    while (plan(b))
        settle(b, 50);
    for (uint64_t id = 2; id <= 5;
         id++) { /* by turns of tenants 8 and 9; all wait before the first */
        struct msg_submit m = request(id, id % 2 ? 10 : 49, 1);
        m.tenant = id % 2 ? 9 : 8;
        assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e);
    }
    for (uint64_t id = 2; plan(b); id++) { /* else 5 would come before 4 */
        settle(b, 50);
        assert_int_equal(b->n_out, 1);
        assert_int_equal(b->out[0].req_id, id);
    }
    assert_int_equal(stats(b).prefix_hits, 2 * 48);
    bench_free(b);
}

/* The queue's limit of tokens: counts with aborts and admissions, spares a single large request,
 * and makes room by ending one of a tenant with more. */
static void queue_limits_tokens(void **state)
{
    (void)state;
    static const uint32_t words[60];
    struct scheduler_config c = small;
    struct scheduler_output out;
    struct scheduler_stats stats;
    c.queue_token_max = 40;
    struct bench *b = bench_new(&c);
    struct msg_submit m = {
        .req_id = 1,
        .prompt = {words, 50},
        .max_tokens = 1,
        .tenant = 1,
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
    };
    assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e); /* more than the limit, but alone */
    m.req_id = 2;
    m.prompt.n = 1;
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_NO_SPACE, "1 waiting requests of 50", &e);
    assert_true(scheduler_abort(b->s, 0, 1));
    m.prompt.n = 12;
    for (m.req_id = 3; m.req_id < 6; m.req_id++)
        assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e);
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_NO_SPACE, "of 36 tokens", &e);
    m.tenant = 2;
    m.prompt.n = 17;
    assert_fails(scheduler_submit(b->s, 0, &m, 0, &e), Q_NO_SPACE, "of 36 tokens", &e);
    m.prompt.n = 16;
    assert_ok(scheduler_submit(b->s, 0, &m, 0, &e), &e); /* the last of tenant 1 goes */
    assert_true(scheduler_take_end(b->s, 0, &out));
    assert_true(out.req_id == 5 && out.code == Q_NO_SPACE);
    scheduler_stats(b->s, &stats);
    assert_int_equal(stats.n_waiting_token, 12 + 12 + 16);
    scheduler_check(b->s);
    bench_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queue_limits_tokens),
        cmocka_unit_test(test_one_request),
        cmocka_unit_test(test_finish),
        cmocka_unit_test(test_emitted),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_chunks_and_order),
        cmocka_unit_test(test_two_in_flight),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_prompt_logprobs_replayed),
        cmocka_unit_test(test_worker_lost),
        cmocka_unit_test(test_wrong_results),
        cmocka_unit_test(test_draft_tokens),
        cmocka_unit_test(test_draft_tokens_in_cached_blocks),
        cmocka_unit_test(test_small_memory),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_priority),
        cmocka_unit_test(test_long_prefill),
        cmocka_unit_test(test_delay),
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_free_slots_are_places),
        cmocka_unit_test(test_pushed_out),
        cmocka_unit_test(test_cached_prompts_are_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
