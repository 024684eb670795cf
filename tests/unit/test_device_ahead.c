/* SPDX-License-Identifier: Apache-2.0 */
/* device_ahead: the next step is given to a device before the host has seen the tokens of this one,
 * whatever happens meanwhile: rows that look at tokens, an end, an abort, a preemption. The device
 * is the fake one in its lazy mood: it does nothing unless somebody waits, so each step that is
 * settled here had the next one behind it, and a worker that wants a step's tokens first never gets
 * them. The answers are those of the CPU, to the bit. */
#include "common/thinking_budget.h"
#include "common/tokenizer/tokenizer.h"
#include "device_run.h"
#include "engine/grammar/grammar.h"
#include "fake_device.h"

#define LIBRARY "/tests/libquire-fake.so"
#define TINY    "deploy/model/quire-tiny"
#define N_EARLY 8u /* tokens of request 0 in the lazy mood; it has 12 */

typedef void submit_fn(uint64_t req_id, const struct golden_prompt *p);

static struct bits_answer expected[BITS_REQUESTS];
static struct golden llama;

static struct core_config config(void)
{
    struct core_config c = config_of(llama.dir);
    c.worker.max_model_len = 144;
    snprintf(c.worker.cpu_isa, sizeof c.worker.cpu_isa, "none");
    return c;
}

static void on_cpu(const struct core_config *c, submit_fn *give, uint32_t n)
{
    struct core_config cpu = *c;
    *cpu.worker.device = *cpu.worker.device_library = '\0';
    open_core(&cpu);
    for (uint32_t i = 0; i < n; i++)
        give(i, &llama.prompts[i % llama.n]);
    finish_all(n);
    core_free(engine.core);
    memcpy(expected, answers, sizeof expected);
}

static atomic_bool *lazy(void)
{
    return device_symbol(LIBRARY, "fake_is_lazy");
}

/* Open, submit, and be lazy from the first step on. */
static struct fake_ahead *begin(const struct core_config *c, submit_fn *give, uint32_t n)
{
    struct q_err e = Q_ERR_INIT;
    open_core(c);
    struct fake_ahead *ahead = device_symbol(LIBRARY, "fake_ahead");
    *ahead = (struct fake_ahead){0};
    atomic_store(lazy(), true);
    for (uint32_t i = 0; i < n; i++)
        give(i, &llama.prompts[i % llama.n]);
    assert_ok(core_step(engine.core, &e), &e);
    return ahead;
}

static void until(uint32_t req_id, uint32_t n_token)
{
    while (answers[req_id].n < n_token)
        bits_turn(&engine);
}

static void end(uint32_t n)
{
    atomic_store(lazy(), false);
    bits_wait(&engine, n);
    core_free(engine.core);
}

static void compare(uint32_t i, const char *what)
{
    if (memcmp(&expected[i], &answers[i], sizeof expected[i]) != 0)
        fail_msg("%s: request %u has other bits on the device", what, i);
}

/* Forward pass and sampling of the next step were launched behind this one. */
static void steps_follow_each_other(void **state)
{
    (void)state;
    struct core_config c = config();
    on_cpu(&c, device_submit, 6);
    for (uint32_t i = 0; i < 2; i++) {
        device_choose(&c, LIBRARY);
        c.worker.enforce_eager = i;
        const struct fake_ahead *ahead = begin(&c, device_submit, 6);
        until(0, N_EARLY);
        assert_true(ahead->n_forward >= 1 && ahead->n_sample >= 1);
        end(6);
        for (uint32_t k = 0; k < 6; k++)
            compare(k, "plain");
    }
}

/* Bad words and repeated n-grams, made of what would come without them. */
static void submit_looking(uint64_t req_id, const struct golden_prompt *p)
{
    const uint32_t bad[] = {1, p->greedy[1], 2, p->greedy[2], p->greedy[3]};
    struct msg_submit m = {
        .req_id = req_id,
        .prompt = {p->ids, p->n},
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = 12,
        .ignore_eos = true,
        .n_logprob = 1 + BITS_TOP,
        .seed = req_id,
    };
    struct q_err e = Q_ERR_INIT;
    if (req_id % 3 == 0)
        m.bad_words.data = bad, m.bad_words.n = sizeof bad / sizeof *bad;
    if (req_id % 3 == 1)
        m.no_repeat_ngram = 2;
    if (req_id % 3 == 2)
        m.temperature = 0.8f;
    assert_ok(core_submit(engine.core, 1, &m, &e), &e);
}

/* The forward pass is launched at once, the sampling when the tokens have arrived. */
static void rows_that_look_at_tokens_hold_up_sampling_only(void **state)
{
    (void)state;
    struct core_config c = config();
    on_cpu(&c, submit_looking, 6);
    assert_int_not_equal(expected[0].sampled[1].token, llama.prompts[0].greedy[1]);
    device_choose(&c, LIBRARY);
    const struct fake_ahead *ahead = begin(&c, submit_looking, 6);
    until(0, N_EARLY);
    assert_true(ahead->n_forward >= 1);
    end(6);
    for (uint32_t i = 0; i < 6; i++)
        compare(i, "looking");
}

static struct token_list tiny_prompt;

static void submit_choice(uint64_t req_id, const struct golden_prompt *p)
{
    static const char source[] = "[\"{\\\"answer\\\": true}\", \"{\\\"answer\\\": false}\"]";
    const bool free = req_id >= 2;
    const struct msg_submit m = {
        .req_id = req_id,
        .prompt = {tiny_prompt.ids, tiny_prompt.n},
        .temperature = 0.9f,
        .top_p = 1,
        .repetition_penalty = 1,
        .seed = 7 + req_id,
        .n_logprob = 1 + BITS_TOP,
        .max_tokens = 12,
        .ignore_eos = free,
        .grammar_kind = free ? 0 : GRAMMAR_CHOICE,
        .grammar = {(const unsigned char *)source, free ? 0 : sizeof source - 1},
    };
    struct q_err e = Q_ERR_INIT;
    (void)p;
    assert_ok(core_submit(engine.core, 1, &m, &e), &e);
}

/* Masks come from a thread, for the tokens that have just arrived; forced tokens are drafted, and
 * then one step is in flight at a time, or not. */
static void grammars(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct tokenizer *t;
    assert_ok(tokenizer_open(&t, TINY, &e), &e);
    tiny_prompt = (struct token_list)TOKEN_LIST_INIT;
    assert_ok(tokenizer_encode(t, "Once upon", 9, true, &tiny_prompt, &e), &e);
    struct core_config c = config();
    snprintf(c.worker.model_dir, sizeof c.worker.model_dir, TINY);
    c.worker.max_num_seqs = 4;
    on_cpu(&c, submit_choice, 4);
    device_choose(&c, LIBRARY);
    for (uint32_t i = 0; i < 2; i++) {
        c.no_jump_forward = i;
        const struct fake_ahead *ahead = begin(&c, submit_choice, i ? 2 : 0);
        if (i)
            until(0, 3);
        assert_true(!i || ahead->n_forward >= 1);
        atomic_store(lazy(), false);
        for (uint32_t k = i ? 2 : 0; k < 4; k++)
            submit_choice(k, NULL);
        assert_ok(core_step(engine.core, &e), &e);
        end(4);
        for (uint32_t k = 0; k < 4; k++)
            compare(k, i ? "grammars" : "forced tokens");
    }
    token_list_release(&tiny_prompt);
    tokenizer_free(t);
}

static struct token_list budget_words;
static uint32_t n_end; /* ids of the end, the last of the words */

/* Reasoning that is open ends after req_id tokens; without a thinking budget every fourth. */
static void submit_budget(uint64_t req_id, const struct golden_prompt *p)
{
    const struct msg_submit m = {
        .req_id = req_id,
        .prompt = {tiny_prompt.ids, tiny_prompt.n},
        .temperature = 0.9f,
        .top_p = 1,
        .repetition_penalty = 1,
        .seed = 7 + req_id,
        .n_logprob = 1 + BITS_TOP,
        .max_tokens = 12,
        .ignore_eos = true,
        .thinking = {budget_words.ids, req_id % 4 == 3 ? 0 : budget_words.n},
    };
    struct q_err e = Q_ERR_INIT;
    (void)p;
    budget_words.ids[0] = (uint32_t)req_id;
    assert_ok(core_submit(engine.core, 1, &m, &e), &e);
}

static void add_budget_tag(uint32_t kind, const char *tag, const struct token_list *ids)
{
    struct q_err e = Q_ERR_INIT;
    const uint32_t head[] = {kind, (uint32_t)strlen(tag), ids ? (uint32_t)ids->n : 0};
    for (size_t i = 0; i < 3; i++)
        assert_ok(token_list_add(&budget_words, head[i], &e), &e);
    for (const char *c = tag; *c; c++)
        assert_ok(token_list_add(&budget_words, (unsigned char)*c, &e), &e);
    for (size_t i = 0; ids && i < ids->n; i++)
        assert_ok(token_list_add(&budget_words, ids->ids[i], &e), &e);
}

/* Which token is forced depends on those that have just arrived. */
static void thinking_budgets(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct tokenizer *t;
    struct token_list ids = TOKEN_LIST_INIT;
    assert_ok(tokenizer_open(&t, TINY, &e), &e);
    tiny_prompt = budget_words = (struct token_list)TOKEN_LIST_INIT;
    assert_ok(tokenizer_encode(t, "Once upon", 9, true, &tiny_prompt, &e), &e);
    assert_ok(tokenizer_encode(t, "</think>", 8, false, &ids, &e), &e);
    assert_ok(token_list_add(&budget_words, 0, &e), &e);
    assert_ok(token_list_add(&budget_words, THINKING_OPENED, &e), &e);
    add_budget_tag(THINKING_START, "<think>", NULL);
    add_budget_tag(THINKING_END_OF, "</think>", &ids);
    n_end = (uint32_t)ids.n;
    struct core_config c = config();
    snprintf(c.worker.model_dir, sizeof c.worker.model_dir, TINY);
    on_cpu(&c, submit_budget, 6);
    for (uint32_t i = 0; i < 6; i++)
        for (uint32_t k = 0; k < n_end && i % 4 != 3; k++)
            assert_int_equal(expected[i].sampled[i + k].token, ids.ids[k]);
    device_choose(&c, LIBRARY);
    begin(&c, submit_budget, 6);
    end(6);
    for (uint32_t i = 0; i < 6; i++)
        compare(i, "limited");
    token_list_release(&ids);
    token_list_release(&budget_words);
    token_list_release(&tiny_prompt);
    tokenizer_free(t);
}

/* Request 1 stops by a token that the step in flight does not know of. */
static void submit_stopping(uint64_t req_id, const struct golden_prompt *p)
{
    const struct msg_submit m = {
        .req_id = req_id,
        .prompt = {p->ids, p->n},
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = 12,
        .ignore_eos = true,
        .no_prefix_cache = true,
        .stop_ids = {&p->greedy[2], req_id == 1},
        .n_logprob = 1 + BITS_TOP,
    };
    struct q_err e = Q_ERR_INIT;
    assert_ok(core_submit(engine.core, 1, &m, &e), &e);
}

/* Both leave blocks and slots to those that wait, while a step that uses them is in flight. */
static void an_end_and_an_abort_in_flight(void **state)
{
    (void)state;
    struct core_config c = config();
    c.worker.max_num_seqs = 3;
    on_cpu(&c, submit_stopping, 8);
    assert_int_equal(expected[1].finish, FINISH_STOP);
    device_choose(&c, LIBRARY);
    c.worker.n_block = 14;
    const struct fake_ahead *ahead = begin(&c, submit_stopping, 8);
    until(2, 2);
    assert_true(core_abort(engine.core, 1, 2));
    until(0, N_EARLY);
    const uint32_t n = answers[2].n;
    assert_true(ahead->n_forward >= 1 && ahead->n_sample >= 1);
    end(7);
    assert_int_equal(answers[2].n, n); /* what was in flight is dropped */
    assert_memory_equal(expected[2].sampled, answers[2].sampled, n * sizeof *answers[2].sampled);
    for (uint32_t i = 0; i < 8; i++)
        if (i != 2)
            compare(i, "after an abort");
}

/* Blocks are copied out and in behind the step in flight, which is not waited for. */
static void a_preemption_in_flight(void **state)
{
    (void)state;
    struct core_config c = config();
    c.worker.swap_bytes = 1 << 20;
    c.policy.preemption = PREEMPT_SWAP;
    on_cpu(&c, device_submit, 4);
    for (uint32_t i = 0; i < 2; i++) {
        device_choose(&c, LIBRARY);
        c.policy.preemption = i ? PREEMPT_RECOMPUTE : PREEMPT_SWAP;
        const struct fake_ahead *ahead = begin(&c, device_submit, 4);
        for (uint32_t n = 2; n < N_EARLY; n += 2) {
            until(0, n);
            assert_true(core_preempt_last(engine.core));
        }
        until(0, N_EARLY + 1);
        assert_true(ahead->n_forward >= 1 && ahead->n_sample >= 1);
        assert_true(i || ahead->n_wait >= 1);
        end(4);
        for (uint32_t k = 0; k < 4; k++)
            compare(k, i ? "recomputed" : "swapped");
    }
}

/* Gaps count between steps that follow each other, not while there is nothing to do. */
static void gaps_are_told(void **state)
{
    (void)state;
    struct core_config c = config();
    device_choose(&c, LIBRARY);
    for (uint32_t is_cpu = 0; is_cpu < 2; is_cpu++) {
        struct scheduler_stats s;
        if (is_cpu)
            *c.worker.device = *c.worker.device_library = '\0';
        open_core(&c);
        for (uint32_t i = 0; i < 3; i++) {
            device_submit(i, &llama.prompts[i]);
            finish_all(i + 1);
        }
        core_stats(engine.core, &s);
        assert_int_equal(s.n_gap, s.step - 3); /* each request's first follows none */
        if (!is_cpu) /* before each forward pass, and before its sampling */
            assert_int_equal(s.gap_us, (uint64_t)(2 * FAKE_MS * 1000) * s.n_gap);
        core_free(engine.core);
    }
}

static int setup(void **state)
{
    (void)state;
    golden_get(&llama, "llama");
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_follow_each_other),
        cmocka_unit_test(rows_that_look_at_tokens_hold_up_sampling_only),
        cmocka_unit_test(grammars),
        cmocka_unit_test(thinking_budgets),
        cmocka_unit_test(an_end_and_an_abort_in_flight),
        cmocka_unit_test(a_preemption_in_flight),
        cmocka_unit_test(gaps_are_told),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
