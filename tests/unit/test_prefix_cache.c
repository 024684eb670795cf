/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix cache through scheduler, ring and worker: the same bits of tokens and logprobs from a
 * cold cache, a warm one and none; which requests share blocks; which tokens are computed again. */
#include "core_run.h"
#include <signal.h>

#define N_NEW 20

struct answer {
    struct bits_answer bits;
    uint32_t n_cached;
};
struct prompt {
    uint32_t ids[GOLDEN_TOKENS], n;
};

static uint32_t n_submitted;

static struct core_config config_with(const struct golden *g, bool prefix_cache)
{
    struct core_config c = config_of(g->dir);
    c.worker.dtype_auto = true;
    c.worker.n_block = 64;
    c.prefix_cache = prefix_cache;
    return c;
}

static void begin(void)
{
    bits_forget(&engine);
    n_submitted = 0;
}

static struct msg_submit request(const struct prompt *p)
{
    return (struct msg_submit){
        .prompt = {p->ids, p->n},
        .top_p = 1,
        .repetition_penalty = 1,
        .n_logprob = 1 + BITS_TOP,
        .max_tokens = N_NEW,
        .ignore_eos = true,
    };
}

static void ask(struct msg_submit m)
{
    struct q_err e = Q_ERR_INIT;
    m.req_id = n_submitted++;
    assert_ok(core_submit(engine.core, 1, &m, &e), &e);
}

/* One request alone: its answer. */
static struct answer alone(struct msg_submit m)
{
    begin();
    ask(m);
    finish_all(n_submitted);
    return (struct answer){answers[0], engine.notes[0].n_cached};
}

static void expect_same(const struct bits_answer *a, const struct bits_answer *want,
                        const char *what)
{
    if (memcmp(a, want, sizeof *a) != 0)
        fail_msg("%s: other tokens, or other bits of logprobs", what);
}

static void append_answer(struct prompt *p, const struct bits_answer *a)
{
    for (uint32_t k = 0; k < a->n; k++)
        p->ids[p->n++] = a->sampled[k].token;
}

/* Prompts that end in a block, at its end, one after it, and that begin alike. */
static uint32_t make_prompts(struct prompt *out, const struct golden *g, const struct answer *said)
{
    static const uint32_t lengths[] = {48, 33, 100, 112, 16, 5};
    uint32_t n = 0;
    for (uint32_t i = 0; i < sizeof lengths / sizeof *lengths; i++, n++) {
        out[n].n = lengths[i];
        for (uint32_t k = 0; k < out[n].n; k++) {
            const struct golden_prompt *p = &g->prompts[i % 2 ? 0 : k / 32 % g->n];
            out[n].ids[k] = p->ids[k % p->n];
        }
    }
    if (said) { /* a conversation continues: prompt, answer, more */
        out[n] = out[0];
        append_answer(&out[n], &said->bits);
        for (uint32_t k = 0; k < 7; k++)
            out[n].ids[out[n].n++] = 3 + k % 5;
        n++;
    }
    return n;
}

static uint32_t found_of(uint32_t n_prompt)
{
    return n_prompt % STEP_BLOCK_TOKENS ? n_prompt / STEP_BLOCK_TOKENS * STEP_BLOCK_TOKENS
                                        : n_prompt - 1;
}

struct how { /* the engine with the cache; the one without drafts nothing and chunks otherwise */
    const char *model;
    uint32_t chunk, n_thread;
    struct speculation speculation;
    bool int8;
};

static void check_model(const struct how *how)
{
    struct golden g;
    struct prompt prompts[8];
    struct answer want[8];
    golden_get(&g, how->model);
    struct core_config c = config_with(&g, false);
    c.worker.kv_given = how->int8;
    c.worker.kv_dtype = DT_I8;
    open_core(&c);
    uint32_t n = make_prompts(prompts, &g, NULL);
    struct answer said = alone(request(&prompts[0]));
    n = make_prompts(prompts, &g, &said);
    for (uint32_t i = 0; i < n; i++)
        want[i] = alone(request(&prompts[i]));
    assert_int_equal(want[n - 1].n_cached, 0);
    core_free(engine.core);

    c.prefix_cache = true;
    c.worker.max_num_batched_tokens = how->chunk;
    c.worker.n_thread = how->n_thread;
    c.worker.speculation = how->speculation;
    open_core(&c);
    for (uint32_t round = 0; round < 2; round++)
        for (uint32_t i = 0; i < n; i++) {
            struct answer a = alone(request(&prompts[i]));
            expect_same(&a.bits, &want[i].bits, round ? "warm" : "cold");
            if (round)
                assert_int_equal(a.n_cached, found_of(prompts[i].n));
            else if (i == n - 1 && strcmp(how->model, "llama-rope-dynamic") != 0)
                assert_true(a.n_cached >= 64); /* of the answer too */
        }
    core_reset_prefix_cache(engine.core);
    begin();
    for (uint32_t i = 0; i < 3 * n; i++) /* shared while they are computed, in the same step too */
        ask(request(&prompts[i % n]));
    finish_all(n_submitted);
    for (uint32_t i = 0; i < 3 * n; i++)
        expect_same(&answers[i], &want[i % n].bits, "together");
    core_free(engine.core);
}

static void cold_warm_and_none_give_the_same_bits(void **state)
{
    (void)state;
    check_model(&(struct how){"llama", 64, 2, {0}, false});
    check_model(&(struct how){"llama", 7, 1, {0}, true});
    check_model(&(struct how){"llama-rope-dynamic", 512, 1, {0}, false});
    check_model(&(struct how){"qwen2-sliding-bf16", 40, 2, {0}, false});
    check_model(&(struct how){"qwen3", 512, 2, {0}, false});
    check_model(&(struct how){"mistral", 16, 1, {0}, true});
}

/* Rows of wrong draft tokens leave nothing that others could find. */
static void draft_tokens_leave_nothing_wrong(void **state)
{
    (void)state;
    struct how how = {"llama", 64, 2, {SPECULATE_NGRAM, 4, 1, 3, ""}, false};
    check_model(&how);
    how.speculation = (struct speculation){.method = SPECULATE_DRAFT, .n_draft_token = 3};
    snprintf(how.speculation.draft_dir, sizeof how.speculation.draft_dir, GOLDENS_DIR "/%s",
             "llama-draft");
    check_model(&how);
}

/* Blocks with rows of before a reset are never found, not even when they are full in the end. */
static void a_reset_reaches_what_runs(void **state)
{
    (void)state;
    struct golden g;
    struct prompt prompts[8], all;
    struct q_err e = Q_ERR_INIT;
    golden_get(&g, "llama");
    struct core_config c = config_with(&g, true);
    open_core(&c);
    make_prompts(prompts, &g, NULL);
    struct msg_submit m =
        request(&prompts[5]); /* 5 tokens: the first block fills with the answer */
    begin();
    ask(m);
    assert_ok(core_step(engine.core, &e), &e);
    while (answers[0].n < 3)
        bits_turn(&engine);
    core_reset_prefix_cache(engine.core);
    finish_all(n_submitted);
    all = prompts[5];
    append_answer(&all, &answers[0]);
    assert_int_equal(alone(request(&all)).n_cached, 0);
    assert_int_equal(alone(request(&all)).n_cached, 16);
    core_free(engine.core);
}

/* A pool that holds two sequences: preempted ones find their own blocks, or those of others. */
static void a_small_pool_gives_the_same_bits(void **state)
{
    (void)state;
    struct golden g;
    struct prompt prompts[8];
    struct answer want[8];
    struct scheduler_stats s;
    golden_get(&g, "llama");
    struct core_config c = config_with(&g, false);
    open_core(&c);
    uint32_t n = make_prompts(prompts, &g, NULL);
    for (uint32_t i = 0; i < n; i++)
        want[i] = alone(request(&prompts[i]));
    core_free(engine.core);
    c = config_with(&g, true);
    c.worker.max_model_len = 144;
    c.worker.n_block = 11;
    open_core(&c);
    begin();
    for (uint32_t i = 0; i < 4 * n; i++)
        ask(request(&prompts[i % n]));
    finish_all(n_submitted);
    for (uint32_t i = 0; i < 4 * n; i++)
        expect_same(&answers[i], &want[i % n].bits, "small pool");
    core_stats(engine.core, &s);
    assert_true(s.n_preemption > 0 && s.prefix_hits > 0 && s.prefix_hits < s.prefix_queries);
    core_free(engine.core);
}

/* One step of one row. */
static void a_prompt_found_whole_computes_one_row(void **state)
{
    (void)state;
    struct golden g;
    struct prompt prompts[8];
    struct scheduler_stats before, after;
    golden_get(&g, "llama");
    struct core_config c = config_with(&g, true);
    open_core(&c);
    make_prompts(prompts, &g, NULL);
    struct msg_submit m = request(&prompts[0]); /* 48 tokens */
    m.max_tokens = 1;
    struct answer cold = alone(m);
    core_stats(engine.core, &before);
    struct answer warm = alone(m);
    core_stats(engine.core, &after);
    expect_same(&warm.bits, &cold.bits, "one row");
    assert_int_equal(warm.n_cached, 47);
    assert_int_equal(after.step - before.step, 1);
    assert_int_equal(after.iteration_tokens[0] - before.iteration_tokens[0], 1);
    assert_int_equal(after.prefix_hits - before.prefix_hits, 47);
    assert_int_equal(after.prefix_queries - before.prefix_queries, 48);
    assert_int_equal(after.prompt_tokens - before.prompt_tokens, 48);
    core_free(engine.core);
}

/* The first 40 tokens are public, so two blocks; what follows them is each salt's own. */
static void public_prefixes_are_shared_between_salts(void **state)
{
    (void)state;
    struct golden g;
    struct prompt prompts[8];
    golden_get(&g, "llama");
    struct core_config c = config_with(&g, true);
    open_core(&c);
    make_prompts(prompts, &g, NULL);
    struct msg_submit m = request(&prompts[2]), a = m, b = m, no = m;
    a.cache_salt = (struct proto_bytes){(const uint8_t *)"ant", 3};
    b.cache_salt = (struct proto_bytes){(const uint8_t *)"bee", 3};
    no.no_prefix_cache = true;
    struct answer want = alone(no);
    a.n_shared = b.n_shared = 40;
    assert_int_equal(alone(a).n_cached, 0);
    struct answer other = alone(b);
    assert_int_equal(other.n_cached, 32);
    expect_same(&other.bits, &want.bits, "after another's public prefix");
    assert_int_equal(alone(m).n_cached,
                     32); /* without a salt all blocks are public, and no request has its own */
    assert_int_equal(alone(a).n_cached, 96);
    assert_int_equal(alone(b).n_cached, 96);
    a.n_shared = 15; /* not one whole block */
    assert_int_equal(alone(a).n_cached, 0);
    b.n_shared = UINT32_MAX; /* more than there is: the prompt is public, the answer is not */
    assert_int_equal(alone(b).n_cached, 96);
    core_free(engine.core);
}

static void salts_do_not_share_and_some_stay_out(void **state)
{
    (void)state;
    struct golden g;
    struct prompt prompts[8];
    golden_get(&g, "llama");
    struct core_config c = config_with(&g, true);
    open_core(&c);
    make_prompts(prompts, &g, NULL);
    struct msg_submit m = request(&prompts[2]), salted = m, out = m;
    salted.cache_salt = (struct proto_bytes){(const uint8_t *)"key of a tenant", 15};
    out.no_prefix_cache = true;
    struct answer first = alone(out);
    assert_int_equal(alone(m).n_cached, 0); /* nothing was left there */
    assert_int_equal(alone(out).n_cached, 0);
    assert_int_equal(alone(salted).n_cached, 0);
    assert_int_equal(alone(salted).n_cached, 96);
    assert_int_equal(alone(m).n_cached, 96);
    core_reset_prefix_cache(engine.core);
    assert_int_equal(alone(salted).n_cached, 0);
    struct answer last = alone(m);
    assert_int_equal(last.n_cached, 0);
    expect_same(&last.bits, &first.bits, "after a reset");
    core_free(engine.core);
}

static void prompt_logprobs_are_complete(void **state)
{
    (void)state;
    struct golden g;
    struct prompt prompts[8];
    golden_get(&g, "llama");
    struct core_config c = config_with(&g, true);
    open_core(&c);
    make_prompts(prompts, &g, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        struct msg_submit m = request(&prompts[i]), told = m;
        told.n_prompt_logprob = 1 + BITS_TOP;
        core_reset_prefix_cache(engine.core);
        struct answer cold = alone(told);
        assert_int_equal(cold.bits.n_prompt, prompts[i].n - 1);
        assert_int_equal(alone(m).n_cached, found_of(prompts[i].n)); /* it left its blocks */
        struct answer warm = alone(told);
        assert_int_equal(warm.n_cached, 0);
        expect_same(&warm.bits, &cold.bits, "prompt logprobs");
    }
    core_free(engine.core);
}

/* Keys of prompts beyond the trained length (64) are those of their length alone. */
static void dynamic_rope_shares_by_length(void **state)
{
    (void)state;
    struct golden g;
    struct prompt prompts[8];
    golden_get(&g, "llama-rope-dynamic");
    struct core_config c = config_with(&g, true);
    open_core(&c);
    make_prompts(prompts, &g, NULL);
    struct msg_submit m = request(&prompts[3]);
    alone(m);
    m.prompt.n = 111;
    assert_int_equal(alone(m).n_cached, 0);
    m.prompt.n = 60;
    assert_int_equal(alone(m).n_cached, 0);
    m.prompt.n = 50;
    assert_int_equal(alone(m).n_cached, 48);
    m.prompt.n = 112;
    assert_int_equal(alone(m).n_cached, 111);
    core_free(engine.core);
}

/* The memory was the dead worker's. */
static void a_lost_worker_empties_the_cache(void **state)
{
    (void)state;
    struct golden g;
    struct prompt prompts[8];
    golden_get(&g, "llama");
    struct core_config c = config_with(&g, true);
    c.in_process = false;
    c.worker_program = program_beside("/bin/quire-worker");
    open_core(&c);
    make_prompts(prompts, &g, NULL);
    struct msg_submit m = request(&prompts[2]);
    struct answer first = alone(m);
    assert_int_equal(alone(m).n_cached, 96);
    assert_int_equal(kill(core_worker_pid(engine.core), SIGKILL), 0);
    while (!core_n_restart(engine.core))
        bits_turn(&engine);
    struct answer again = alone(m);
    assert_int_equal(again.n_cached, 0);
    expect_same(&again.bits, &first.bits, "new worker");
    assert_int_equal(alone(m).n_cached, 96);
    core_free(engine.core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cold_warm_and_none_give_the_same_bits),
        cmocka_unit_test(draft_tokens_leave_nothing_wrong),
        cmocka_unit_test(a_reset_reaches_what_runs),
        cmocka_unit_test(a_small_pool_gives_the_same_bits),
        cmocka_unit_test(a_prompt_found_whole_computes_one_row),
        cmocka_unit_test(salts_do_not_share_and_some_stay_out),
        cmocka_unit_test(public_prefixes_are_shared_between_salts),
        cmocka_unit_test(prompt_logprobs_are_complete),
        cmocka_unit_test(dynamic_rope_shares_by_length),
        cmocka_unit_test(a_lost_worker_empties_the_cache),
    };
    log_setup("test", LOG_ERROR, false);
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
