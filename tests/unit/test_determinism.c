/* SPDX-License-Identifier: Apache-2.0 */
/* Determinism (DESIGN section 6) through the whole engine: what a request gets alone, it gets to
 * the last bit among 2 to 200 random neighbours, in chunks of any size, with any number of threads,
 * in a pool so small that it is preempted, with guesses and without. */
#include "engine_bits.h"

#define SUBJECTS 6 /* requests that are compared; the others only get in their way */

static struct bits_answer alone[BITS_REQUESTS], among[BITS_REQUESTS];
static uint64_t state;

static uint32_t roll(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % n;
}

/* Greedy, sampled, penalised, biased, with prompt logprobs, with a stop id. */
static struct msg_submit subject(const struct golden *g, uint32_t i)
{
    static const uint32_t ids[] = {5, 9};
    static const float bias[] = {2, -3};
    const struct golden_prompt *p = &g->prompts[i % g->n];
    struct msg_submit m = {.req_id = i,
                           .prompt = {p->ids, p->n},
                           .top_p = 1,
                           .repetition_penalty = 1,
                           .n_logprob = 1 + BITS_TOP,
                           .max_tokens = 20,
                           .ignore_eos = true};
    if (i % 2) {
        m.temperature = 0.9f;
        m.seed = 1000 + i;
        m.top_k = i == 1 ? 20 : 0;
        m.top_p = i == 3 ? 0.9f : 1;
    }
    if (i == 2)
        m.n_prompt_logprob = 3;
    if (i == 4) {
        m.repetition_penalty = 1.3f;
        m.presence_penalty = 0.5f;
    }
    if (i == 5) {
        m.bias_ids = (struct proto_u32s){ids, 2};
        m.bias = (struct proto_f32s){bias, 2};
        m.stop_ids = (struct proto_u32s){ids, 1};
    }
    return m;
}

static void submit_neighbour(struct bits_engine *b, uint32_t i, uint32_t n_vocab)
{
    uint32_t prompt[100];
    const uint32_t n = 1 + roll(roll(4) ? 30 : 100);
    for (uint32_t j = 0; j < n; j++)
        prompt[j] = roll(n_vocab);
    const struct msg_submit m = {.req_id = i,
                                 .prompt = {prompt, n},
                                 .top_p = 1,
                                 .repetition_penalty = 1,
                                 .temperature = roll(2) ? 1.1f : 0,
                                 .seed = roll(1000),
                                 .n_logprob = roll(3),
                                 .n_prompt_logprob = roll(8) ? 0 : 2,
                                 .max_tokens = 1 + roll(30),
                                 .ignore_eos = roll(2)};
    bits_submit(b, &m);
}

/* Each subject in an engine of one slot with nobody else. */
static void run_alone(const struct golden *g, const struct core_config *like)
{
    struct bits_engine b;
    struct core_config c = *like;
    c.worker.max_num_seqs = 1;
    c.worker.max_num_batched_tokens = 512;
    c.worker.n_thread = 1;
    c.worker.n_block = 9;
    bits_open(&b, &c, alone);
    for (uint32_t i = 0; i < SUBJECTS; i++) {
        const struct msg_submit m = subject(g, i);
        bits_submit(&b, &m);
        while (b.n_finished == i)
            bits_turn(&b);
    }
    bits_finish(&b, SUBJECTS);
}

/* All subjects and so many neighbours, in random order, a random number of steps apart. */
static struct scheduler_stats run_among(const struct golden *g, const struct core_config *c,
                                        uint32_t n_neighbour)
{
    struct bits_engine b;
    uint32_t i_subject = 0, i_neighbour = 0, n = SUBJECTS + n_neighbour;
    bits_open(&b, c, among);
    const uint32_t n_vocab = core_info(b.core)->shape.vocab_size;
    while (i_subject + i_neighbour < n) {
        uint32_t left = SUBJECTS - i_subject;
        if (left && roll(n - i_subject - i_neighbour) < left) {
            const struct msg_submit m = subject(g, i_subject++);
            bits_submit(&b, &m);
        } else {
            submit_neighbour(&b, SUBJECTS + i_neighbour++, n_vocab);
        }
        for (uint32_t j = roll(3); j && b.n_finished < i_subject + i_neighbour; j--)
            bits_turn(&b);
    }
    return bits_finish(&b, n);
}

static void compare(const struct golden *g, const struct core_config *c, uint32_t n_neighbour)
{
    for (uint32_t i = 0; i < SUBJECTS; i++)
        if (memcmp(&alone[i], &among[i], sizeof alone[i]) != 0)
            fail_msg("%s: request %u is not what it is alone; %u neighbours, chunk %u, %u "
                     "sequences, %u blocks, %u threads",
                     g->dir, i, n_neighbour, c->worker.max_num_batched_tokens,
                     c->worker.max_num_seqs, c->worker.n_block, c->worker.n_thread);
}

struct way {
    uint32_t n_neighbour, chunk, n_seq, n_block, n_thread;
    const char *speculative;
};

#define NGRAM                                                                           \
    "{\"method\": \"ngram\", \"num_speculative_tokens\": 3, \"prompt_lookup_min\": 1, " \
    "\"prompt_lookup_max\": 2}"

static void play(const char *model, enum dtype dtype, const struct way *ways, size_t n_way)
{
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    uint64_t n_preemption = 0;
    golden_get(&g, model);
    struct core_config c = bits_config(g.dir);
    c.worker.dtype = dtype;
    run_alone(&g, &c);
    for (size_t i = 0; i < n_way; i++) {
        const struct way *w = &ways[i];
        state = i;
        c.worker.max_num_batched_tokens = w->chunk;
        c.worker.max_num_seqs = w->n_seq;
        c.worker.n_block = w->n_block;
        c.worker.n_thread = w->n_thread;
        assert_ok(speculative_parse(&c.worker.speculation, w->speculative, &e), &e);
        n_preemption += run_among(&g, &c, w->n_neighbour).n_preemption;
        compare(&g, &c, w->n_neighbour);
    }
    print_message("%s: %llu preemptions\n", model, (unsigned long long)n_preemption);
    assert_true(n_way < 4 || n_preemption > 0);
}

static void in_f32_nothing_changes_a_bit(void **unused)
{
    (void)unused;
    static const struct way ways[] = {{2, 16, 4, 40, 1, ""},        {20, 64, 16, 20, 2, ""},
                                      {200, 512, 200, 2000, 2, ""}, {60, 64, 64, 80, 1, NGRAM},
                                      {200, 2048, 64, 120, 1, ""},  {40, 1, 3, 12, 1, ""},
                                      {30, 100, 24, 18, 2, NGRAM}};
    play("llama", DT_F32, ways, sizeof ways / sizeof *ways);
}

static void in_bf16_nothing_changes_a_bit(void **unused)
{
    (void)unused;
    static const struct way ways[] = {{20, 16, 16, 20, 2, ""},
                                      {100, 512, 100, 1000, 2, ""},
                                      {50, 64, 32, 40, 1, NGRAM},
                                      {30, 33, 8, 14, 1, ""}};
    play("qwen2-sliding-bf16", DT_BF16, ways, sizeof ways / sizeof *ways);
}

static void other_families_too(void **unused)
{
    (void)unused;
    static const struct way ways[] = {{50, 48, 32, 40, 2, ""}};
    play("qwen3", DT_F32, ways, 1);
    play("llama-rope-dynamic", DT_F32, ways, 1);
    play("mistral", DT_F32, ways, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_f32_nothing_changes_a_bit),
        cmocka_unit_test(in_bf16_nothing_changes_a_bit),
        cmocka_unit_test(other_families_too),
    };
    log_setup("test", LOG_ERROR, false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
