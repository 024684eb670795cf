/* SPDX-License-Identifier: Apache-2.0 */
/* speculation: n-gram lookup, what --speculative-config accepts, and that tokens, logprobs and
 * their bits are the same with draft tokens and without, greedy and sampled, in any batch and
 * pool. */
#include "engine_bits.h"
#include "engine/worker/speculate.h"

struct run {                 /* how to run the requests */
    const char *speculative; /* --speculative-config */
    uint32_t n_request, n_block, chunk, n_seq, n_thread;
    float temperature;
};

static struct bits_answer answers[2][BITS_REQUESTS];

/* Prompts of the golden, some twice, each with a seed of its own; the answers go to `out`. */
static struct scheduler_stats run(const struct run *r, const struct golden *g,
                                  struct bits_answer *out)
{
    struct q_err e = Q_ERR_INIT;
    struct bits_engine b;
    struct core_config c = bits_config(g->dir);
    c.worker.n_block = r->n_block;
    c.worker.max_num_batched_tokens = r->chunk;
    c.worker.max_num_seqs = r->n_seq;
    c.worker.n_thread = r->n_thread;
    assert_ok(speculative_parse(&c.worker.speculation, r->speculative, &e), &e);
    bits_open(&b, &c, out);
    for (uint32_t i = 0; i < r->n_request; i++) {
        const struct golden_prompt *p = &g->prompts[i % g->n];
        const struct msg_submit m = {
            .req_id = i,
            .prompt = {p->ids, p->n},
            .top_p = 0.95f,
            .repetition_penalty = i % 3 ? 1 : 1.2f,
            .temperature = r->temperature,
            .seed = 100 + i,
            .n_logprob = 4,
            .n_prompt_logprob = i % 4 == 2 ? 2 : 0,
            .max_tokens = p->n_greedy - i % 3,
            .ignore_eos = i % 2,
        };
        bits_submit(&b, &m);
    }
    return bits_finish(&b, r->n_request);
}

static void compare(const struct run *r)
{
    for (uint32_t i = 0; i < r->n_request; i++)
        if (memcmp(&answers[0][i], &answers[1][i], sizeof answers[0][i]) != 0)
            fail_msg("%s: request %u of %u differs: %u and %u tokens; %u blocks, chunk %u",
                     r->speculative, i, r->n_request, answers[0][i].n, answers[1][i].n, r->n_block,
                     r->chunk);
}

#define DRAFT(n) "{\"model\": \"" GOLDENS_DIR "/llama-draft\", \"num_speculative_tokens\": " #n "}"
#define NGRAM(n, min)                                                                     \
    "{\"method\": \"ngram\", \"prompt_lookup_min\": " #min ", \"prompt_lookup_max\": 3, " \
    "\"num_speculative_tokens\": " #n "}"

static void the_same_bits_with_draft_tokens_and_without(void **state)
{
    (void)state;
    static const char *const ways[] = {DRAFT(4), NGRAM(3, 1), DRAFT(1), NGRAM(8, 1), DRAFT(7)};
    struct golden g;
    golden_get(&g, "llama");
    uint64_t n_preemption = 0;
    for (uint32_t i = 0; i < 10; i++) {
        struct run r = {
            .speculative = "",
            .n_request = i % 2 ? 11 : 3,
            .n_block = i % 3 ? 24 : 10,
            .chunk = i % 4 ? 64 : 7,
            .n_seq = i % 2 ? 8 : 2,
            .n_thread = 1 + i % 2,
            .temperature = i < 5 ? 0 : 0.9f,
        };
        struct scheduler_stats s = run(&r, &g, answers[0]);
        assert_int_equal(s.n_draft, 0);
        r.speculative = ways[i % 5];
        s = run(&r, &g, answers[1]);
        n_preemption += s.n_preemption;
        assert_true(s.n_draft > 0 && s.n_draft_token >= s.n_draft);
        assert_true(s.n_accepted_token <= s.n_draft_token);
        compare(&r);
    }
    assert_true(n_preemption > 0);
}

/* The draft was distilled from the model: the golden has the number of its draft tokens that are
 * accepted. */
static void most_tokens_of_the_golden_draft_are_accepted(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "llama");
    const struct run r = {
        .speculative = DRAFT(4),
        .n_request = g.n,
        .n_block = 40,
        .chunk = 128,
        .n_seq = 8,
        .n_thread = 2,
    };
    struct scheduler_stats s = run(&r, &g, answers[0]);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < SCHEDULER_DRAFT_TOKENS_MAX; i++)
        sum += s.accepted_at[i];
    assert_int_equal(sum, s.n_accepted_token);
    assert_int_equal(s.accepted_at[4], 0);
    print_message("%llu of %llu draft tokens were accepted\n",
                  (unsigned long long)s.n_accepted_token, (unsigned long long)s.n_draft_token);
    assert_true(s.n_accepted_token * 10 > s.n_draft_token * 6); /* golden: 0.71 */
}

/* Requests with a draft model, one after another, preempted after every third token; then another
 * takes their blocks first. It is waited for, so that what is counted next does not depend on
 * whether the step that was in flight has come back before it or after. */
static struct scheduler_stats run_preempted(const struct golden *g, enum preemption_mode mode)
{
    struct q_err e = Q_ERR_INIT;
    struct bits_engine b;
    struct core_config c = bits_config(g->dir);
    c.worker.n_block = 20;
    c.worker.max_num_batched_tokens = 288; /* computing again takes one step, like copying back */
    c.worker.swap_bytes = 16 << 20;
    c.policy.preemption = mode;
    c.policy.by_priority = true;
    assert_ok(speculative_parse(&c.worker.speculation, DRAFT(4), &e), &e);
    bits_open(&b, &c, answers[mode == PREEMPT_SWAP]);
    uint32_t n_other = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        const struct golden_prompt *p = &g->prompts[i];
        const struct msg_submit m = {
            .req_id = i,
            .prompt = {p->ids, p->n},
            .top_p = 1,
            .repetition_penalty = 1,
            .max_tokens = p->n_greedy,
        };
        bits_submit(&b, &m);
        for (uint32_t at = 3; b.answers[i].finish == FINISH_NONE;) {
            if (b.answers[i].n < at) {
                bits_turn(&b);
                continue;
            }
            at = b.answers[i].n + 3;
            core_preempt_last(b.core);
            const struct golden_prompt *other = &g->prompts[(i + 1) % g->n];
            const struct msg_submit first = {
                .req_id = g->n + n_other++,
                .prompt = {other->ids, other->n},
                .top_p = 1,
                .repetition_penalty = 1,
                .priority = UINT32_MAX, /* -1: before the preempted */
                .max_tokens = 1,
            };
            bits_submit(&b, &first);
            while (b.answers[first.req_id].finish == FINISH_NONE)
                bits_turn(&b);
        }
    }
    return bits_finish(&b, g->n + n_other);
}

/* The draft's keys and values come back too: it drafts what it would have after computing them
 * again. */
static void the_draft_is_swapped_like_the_model(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "llama");
    struct scheduler_stats again = run_preempted(&g, PREEMPT_RECOMPUTE);
    struct scheduler_stats back = run_preempted(&g, PREEMPT_SWAP);
    print_message("%llu preemptions, %llu and %llu of %llu and %llu draft tokens\n",
                  (unsigned long long)back.n_preemption, (unsigned long long)again.n_accepted_token,
                  (unsigned long long)back.n_accepted_token,
                  (unsigned long long)again.n_draft_token, (unsigned long long)back.n_draft_token);
    assert_memory_equal(answers[0], answers[1], g.n * sizeof answers[0][0]);
    assert_true(back.n_swap_in > 10);
    assert_int_equal(back.n_preemption, again.n_preemption);
    assert_int_equal(back.n_draft_token, again.n_draft_token);
    assert_int_equal(back.n_accepted_token, again.n_accepted_token);
}

/* Runs `m`, which ends at the end of a block, and then all of its history as a prompt. */
static void run_continued(struct bits_engine *b, const uint32_t *history, struct msg_submit *m)
{
    bits_submit(b, m);
    bits_wait(b, ++m->req_id);
    m->prompt = (struct proto_u32s){history, m->prompt.n + m->max_tokens};
    m->max_tokens = 12;
    bits_submit(b, m);
    bits_wait(b, ++m->req_id);
}

/* Answers of the golden from each token on up to the end of a block, each with a cache of its own.
 */
static struct scheduler_stats run_cached(const struct golden *g, bool prefix_cache)
{
    static uint32_t history[BITS_ROWS];
    struct q_err e = Q_ERR_INIT;
    struct bits_engine b;
    struct core_config c = bits_config(g->dir);
    uint64_t req_id = 0;
    c.worker.n_block = 256;
    c.prefix_cache = prefix_cache;
    assert_ok(speculative_parse(&c.worker.speculation, DRAFT(4), &e), &e);
    bits_open(&b, &c, answers[prefix_cache]);
    for (uint32_t i = 0; i < g->n; i++) {
        const struct golden_prompt *p = &g->prompts[i];
        const uint32_t n_most = KERN_BLOCK - (p->n - 1) % KERN_BLOCK;
        memcpy(history, p->ids, p->n * sizeof *history);
        memcpy(history + p->n, p->greedy, p->n_greedy * sizeof *history);
        for (uint32_t at = 0; at + 1 < n_most; at++) {
            struct msg_submit m = {
                .req_id = req_id,
                .prompt = {history, p->n + at},
                .top_p = 1,
                .repetition_penalty = 1,
                .max_tokens = n_most - at,
                .cache_salt = {(const uint8_t *)&req_id, sizeof req_id},
            };
            run_continued(&b, history, &m);
            req_id = m.req_id;
        }
    }
    return bits_finish(&b, (uint32_t)req_id);
}

/* The draft model's KV in cached blocks is whole: it drafts what it would have without the cache.
 */
static void a_cached_block_is_cached_for_the_draft_too(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "llama");
    struct scheduler_stats plain = run_cached(&g, false);
    struct scheduler_stats cached = run_cached(&g, true);
    print_message(
        "%llu cached rows, %llu and %llu of %llu and %llu draft tokens\n",
        (unsigned long long)cached.prefix_hits, (unsigned long long)plain.n_accepted_token,
        (unsigned long long)cached.n_accepted_token, (unsigned long long)plain.n_draft_token,
        (unsigned long long)cached.n_draft_token);
    assert_true(cached.prefix_hits > 0);
    assert_memory_equal(answers[0], answers[1], sizeof answers[0]);
    assert_int_equal(plain.n_draft_token, cached.n_draft_token);
    assert_int_equal(plain.n_accepted_token, cached.n_accepted_token);
}

static void ngrams_are_found_where_they_were_last(void **state)
{
    (void)state;
    const uint32_t h[] = {1, 2, 3, 9, 1, 2, 3, 8, 5, 1, 2, 3};
    const uint32_t n = sizeof h / sizeof *h;
    struct speculation c = {.ngram_min = 1, .ngram_max = 3};
    uint32_t out[16];
    assert_int_equal(speculate_ngram(out, 4, h, n, &c), 4);
    assert_memory_equal(out, ((uint32_t[]){8, 5, 1, 2}), 4 * sizeof *out);
    assert_int_equal(speculate_ngram(out, 16, h, n, &c), 5); /* as far as the history goes */
    assert_int_equal(speculate_ngram(out, 2, h, 9, &c), 0);  /* 5 came never before */
    c.ngram_max = 2;
    assert_int_equal(speculate_ngram(out, 1, h, 6, &c), 1); /* 1 2 before: 3 */
    assert_int_equal(out[0], 3);
    c.ngram_min = 2;
    const uint32_t same[] = {7, 7, 7};
    assert_int_equal(speculate_ngram(out, 4, same, 3, &c), 1);
    assert_int_equal(out[0], 7);
    assert_int_equal(speculate_ngram(out, 4, same, 2, &c), 0); /* nothing before both */
    assert_int_equal(speculate_ngram(out, 4, same, 1, &c), 0);
    assert_int_equal(speculate_ngram(out, 0, h, n, &c), 0);
}

static void the_flag_says_what_it_accepts(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct speculation s;
    assert_ok(speculative_parse(&s, "", &e), &e);
    assert_int_equal(s.method, SPECULATE_NOT);
    assert_ok(speculative_parse(&s, "{\"model\": \"ngram\", \"num_speculative_tokens\": 3}", &e),
              &e);
    assert_true(s.method == SPECULATE_NGRAM && s.n_draft_token == 3);
    assert_true(s.ngram_min == 5 && s.ngram_max == 5);
    assert_ok(speculative_parse(&s, "{\"model\": \"[ngram]\", \"num_speculative_tokens\": 3}", &e),
              &e);
    assert_int_equal(s.method, SPECULATE_NGRAM);
    assert_ok(speculative_parse(&s,
                                "{\"method\": \"ngram\", \"num_speculative_tokens\": 3, "
                                "\"draft_tensor_parallel_size\": 1}",
                                &e),
              &e);
    assert_fails(speculative_parse(&s,
                                   "{\"method\": \"ngram\", \"num_speculative_tokens\": 3, "
                                   "\"draft_tensor_parallel_size\": 2}",
                                   &e),
                 Q_INVALID, "draft_tensor_parallel_size must be 1", &e);
    assert_ok(speculative_parse(&s, NGRAM(2, 2), &e), &e);
    assert_true(s.ngram_min == 2 && s.ngram_max == 3);
    assert_ok(speculative_parse(&s, DRAFT(2), &e), &e);
    assert_int_equal(s.method, SPECULATE_DRAFT);
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"{", "not valid JSON"},
        {"[]", "must be a JSON object"},
        {"{\"method\": \"ngram\"}", "num_speculative_tokens is missing (1 to 16)"},
        {"{\"num_speculative_tokens\": 0}", "integer from 1 to 16"},
        {"{\"num_speculative_tokens\": 17}", "integer from 1 to 16"},
        {"{\"num_speculative_tokens\": 2.5}", "integer from 1 to 16"},
        {"{\"num_speculative_tokens\": 2, \"method\": \"medusa\"}", "ngram and draft_model"},
        {"{\"num_speculative_tokens\": 2, \"method\": 7}", "method must be a string"},
        {"{\"num_speculative_tokens\": 2, \"method\": \"draft_model\"}",
         "requires the member model"},
        {"{\"num_speculative_tokens\": 2, \"modell\": \"x\"}", "unknown member \"modell\""},
        {"{\"num_speculative_tokens\": 2, \"prompt_lookup_min\": 4, \"prompt_lookup_max\": 3}",
         "prompt_lookup_min 4 is greater than"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(speculative_parse(&s, bad[i].text, &e), Q_INVALID, bad[i].part, &e);
    assert_fails(
        speculative_parse(&s, "{\"num_speculative_tokens\": 2, \"model\": \"no/such\"}", &e),
        Q_NOT_FOUND, "no/such", &e);
}

static void a_draft_of_another_vocabulary_is_refused(void **state)
{
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct core *core = NULL;
    struct core_config c = bits_config("deploy/model/quire-tiny");
    assert_ok(speculative_parse(&c.worker.speculation, DRAFT(4), &e), &e);
    assert_ok(core_new(&core, &c, bits_sink, NULL, &e), &e);
    while (core_state(core, NULL) == CORE_LOADING) {
        struct pollfd p = {.fd = core_fd(core), .events = POLLIN};
        assert_true(poll(&p, 1, 60000) >= 0);
        if (core_step(core, &e))
            break;
    }
    assert_int_equal(core_state(core, NULL), CORE_FAILED);
    assert_int_equal(e.code, Q_MISMATCH);
    assert_non_null(strstr(e.message, "they must be equal"));
    core_free(core);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ngrams_are_found_where_they_were_last),
        cmocka_unit_test(the_flag_says_what_it_accepts),
        cmocka_unit_test(a_draft_of_another_vocabulary_is_refused),
        cmocka_unit_test(the_same_bits_with_draft_tokens_and_without),
        cmocka_unit_test(most_tokens_of_the_golden_draft_are_accepted),
        cmocka_unit_test(the_draft_is_swapped_like_the_model),
        cmocka_unit_test(a_cached_block_is_cached_for_the_draft_too),
    };
    log_setup("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
