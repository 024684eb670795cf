/* SPDX-License-Identifier: Apache-2.0 */
/* Determinism (DESIGN section 6) through the whole engine: what a request gets alone, in a pool of
 * its own, it gets to the last bit among 2 to 200 random neighbours, in chunks of any size, with
 * any number of threads, from a cold prefix cache and a warm one, under both policies, with its
 * blocks anywhere in the pool, preempted at random steps and then swapped or recomputed, with
 * draft tokens and without; for each KV dtype.
 *
 * The tables below are what every run plays. QUIRE_DETERMINISM_RUNS=N adds N ways put together at
 * random; each prints its number, and QUIRE_DETERMINISM_FIRST=K begins with number K. */
#include "engine_bits.h"
#include "engine/sched/kv.h"

#define SUBJECTS   8 /* requests that are compared; the others only get in their way */
#define NEIGHBOURS 200
#define MODEL_LEN  144u
#define LEN_BLOCKS (MODEL_LEN / KV_BLOCK_TOKENS) /* the smallest pool */
#define THIEVES    64

enum how {
    CACHED = 1 << 0,     /* prefix cache on, the requests twice: cold, then warm */
    PLACED = 1 << 1,     /* blocks come from anywhere in the pool */
    ROBBED = 1 << 2,     /* now and then all free blocks are gone for some steps */
    PRIORITIES = 1 << 3, /* --scheduling-policy priority */
    TENANTS = 1 << 4,    /* of several tenants, with limits on long prompts */
    PREEMPTED = 1 << 5,  /* now and then the last one loses its place, not for want of blocks */
    SWAPPED = 1 << 6,    /* what is preempted goes to host memory while there is room, and back */
    HOW_ALL = CACHED | PLACED | ROBBED | PRIORITIES | TENANTS | PREEMPTED | SWAPPED
};

struct kind { /* what decides the bits beside the request */
    const char *model;
    enum dtype dtype, kv;
};
struct way { /* what must not */
    uint32_t n_neighbour, chunk, n_seq, n_block, n_thread;
    const char *speculative;
    uint32_t how;
};

static struct bits_answer alone[BITS_REQUESTS], among[BITS_REQUESTS];
static uint64_t state;

static uint32_t roll(uint32_t n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % n;
}

/* the pool: the linker puts these between the scheduler and kv.c */

static struct {
    struct kv_pool *pool; /* of the engine that was opened last */
    uint32_t how;
    struct kv_table tables[THIEVES];
    kv_block blocks[THIEVES][LEN_BLOCKS];
    uint32_t n_thief;
} place;

enum q_code __real_kv_init(struct kv_pool *p, uint32_t n_block, uint32_t n_table,
                           uint32_t seq_blocks_max, struct q_err *e);
void __real_kv_drop(struct kv_pool *p, struct kv_table *t);
enum q_code __wrap_kv_init(struct kv_pool *p, uint32_t n_block, uint32_t n_table,
                           uint32_t seq_blocks_max, struct q_err *e);
void __wrap_kv_drop(struct kv_pool *p, struct kv_table *t);
void __real_scheduler_check(const struct scheduler *s);
void __wrap_scheduler_check(const struct scheduler *s);

static void shuffle(struct kv_pool *p)
{
    for (uint32_t i = p->n_free; i > 1; i--) {
        uint32_t j = roll(i);
        kv_block b = p->free[i - 1];
        p->free[i - 1] = p->free[j];
        p->free[j] = b;
    }
}

enum q_code __wrap_kv_init(struct kv_pool *p, uint32_t n_block, uint32_t n_table,
                           uint32_t seq_blocks_max, struct q_err *e)
{
    enum q_code rc = __real_kv_init(p, n_block, n_table, seq_blocks_max, e);
    if (rc)
        return rc;
    place.pool = p;
    place.n_thief = 0;
    if (place.how & PLACED)
        shuffle(p);
    return Q_OK;
}

void __wrap_kv_drop(struct kv_pool *p, struct kv_table *t)
{
    __real_kv_drop(p, t);
    if (place.how & PLACED)
        shuffle(p);
}

/* The core checks the scheduler after each step. While blocks are robbed they have no sequence. */
void __wrap_scheduler_check(const struct scheduler *s)
{
    if (!place.n_thief)
        __real_scheduler_check(s);
}

static void rob(void)
{
    struct q_err e = Q_ERR_INIT;
    for (uint32_t n; (n = kv_available(place.pool)) && place.n_thief < THIEVES; place.n_thief++) {
        struct kv_table *t = &place.tables[place.n_thief];
        *t = (struct kv_table){.blocks = place.blocks[place.n_thief]};
        n = n < LEN_BLOCKS ? n : LEN_BLOCKS;
        assert_ok(kv_grow(place.pool, t, n * KV_BLOCK_TOKENS, &e), &e);
    }
}

static void give_back(void)
{
    while (place.n_thief)
        kv_drop(place.pool, &place.tables[--place.n_thief]);
}

/* One turn of the engine. Robbed, it may have nothing to do until it gets its blocks back. */
static void run_once(struct bits_engine *b)
{
    struct q_err e = Q_ERR_INIT;
    struct scheduler_stats s;
    if (place.how & ROBBED) {
        if (!place.n_thief && !roll(6))
            rob();
        else if (!roll(12))
            give_back();
        core_stats(b->core, &s);
        if (s.n_in_flight == 0) {
            give_back();
            assert_ok(core_step(b->core, &e), &e);
        }
    }
    if (place.how & PREEMPTED && !roll(5) && core_preempt_last(b->core))
        assert_ok(core_step(b->core, &e), &e);
    bits_turn(b);
}

/* the requests */

/* Greedy, sampled with a seed and without, penalised, biased, with prompt logprobs, a stop id,
 * forbidden words. */
static struct msg_submit subject(const struct golden *g, uint32_t i)
{
    static const uint32_t ids[] = {5, 9}, bad[] = {1, 7, 2, 11, 12};
    static const float bias[] = {2, -3};
    const struct golden_prompt *p = &g->prompts[i % g->n];
    struct msg_submit m = {
        .req_id = i,
        .prompt = {p->ids, p->n},
        .top_p = 1,
        .repetition_penalty = 1,
        .n_logprob = 1 + BITS_TOP,
        .max_tokens = 20,
        .ignore_eos = true,
    };
    if (i % 2) {
        m.temperature = 0.9f;
        m.seed = i == 7 ? 0 : 1000 + i; /* 0: none was given */
        m.top_k = i == 1 ? 20 : 0;
        m.top_p = i == 3 ? 0.9f : 1;
        m.min_p = i == 7 ? 0.02f : 0;
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
    if (i == 6) {
        m.frequency_penalty = 0.4f;
        m.bad_words = (struct proto_u32s){bad, sizeof bad / sizeof *bad};
    }
    return m;
}

/* Its prompt may begin as a subject's: the blocks that a subject finds in the cache, or another
 * computes for it in the same step, are then a neighbour's. */
static struct msg_submit neighbour(const struct golden *g, uint32_t *prompt, uint32_t n_vocab)
{
    uint32_t n = 1 + roll(roll(4) ? 30 : 100);
    for (uint32_t j = 0; j < n; j++)
        prompt[j] = roll(n_vocab);
    if (!roll(3)) {
        const struct golden_prompt *p = &g->prompts[roll(g->n)];
        const uint32_t n_same = 1 + roll(p->n);
        memcpy(prompt, p->ids, n_same * sizeof *prompt);
        n = n > n_same ? n : n_same;
    }
    return (struct msg_submit){
        .prompt = {prompt, n},
        .top_p = 1,
        .repetition_penalty = 1,
        .temperature = roll(2) ? 1.1f : 0,
        .seed = roll(1000),
        .n_logprob = roll(3),
        .n_prompt_logprob = roll(8) ? 0 : 2,
        .max_tokens = 1 + roll(30),
        .ignore_eos = roll(2),
    };
}

static void submit(struct bits_engine *b, struct msg_submit m)
{
    if (place.how & PRIORITIES)
        m.priority = roll(5) - 2; /* in two's complement */
    if (place.how & TENANTS) {
        m.tenant = roll(4);
        m.weight = 1 + roll(3);
    }
    bits_submit(b, &m);
}

/* All subjects and so many neighbours, in random order, a random number of steps apart. Returns how
 * many tokens of subjects were in the cache. */
static uint32_t play_requests(struct bits_engine *b, const struct golden *g, uint32_t n_neighbour)
{
    const uint32_t n_vocab = core_info(b->core)->shape.vocab_size, n = SUBJECTS + n_neighbour;
    uint32_t i_subject = 0, i_neighbour = 0, n_cached = 0;
    bits_forget(b);
    while (i_subject + i_neighbour < n) {
        uint32_t prompt[GOLDEN_TOKENS], left = SUBJECTS - i_subject;
        if (left && roll(n - i_subject - i_neighbour) < left) {
            submit(b, subject(g, i_subject++));
        } else {
            struct msg_submit m = neighbour(g, prompt, n_vocab);
            m.req_id = SUBJECTS + i_neighbour++;
            submit(b, m);
        }
        for (uint32_t j = roll(3); j && b->n_finished < i_subject + i_neighbour; j--)
            run_once(b);
    }
    while (b->n_finished < n)
        run_once(b);
    give_back();
    bits_wait(b, n);
    for (uint32_t i = 0; i < SUBJECTS; i++)
        n_cached += b->notes[i].n_cached;
    return n_cached;
}

/* Each subject alone in an engine of one slot. */
static void run_alone(const struct golden *g, const struct core_config *like)
{
    struct bits_engine b;
    struct core_config c = *like;
    c.worker.max_num_seqs = 1;
    c.worker.max_num_batched_tokens = 512;
    c.worker.n_thread = 1;
    c.worker.n_block = LEN_BLOCKS;
    place.how = 0;
    bits_open(&b, &c, alone);
    for (uint32_t i = 0; i < SUBJECTS; i++) {
        const struct msg_submit m = subject(g, i);
        bits_submit(&b, &m);
        while (b.n_finished == i)
            bits_turn(&b);
    }
    bits_finish(&b, SUBJECTS);
}

static void compare(const struct kind *k, const struct way *w, const char *round)
{
    for (uint32_t i = 0; i < SUBJECTS; i++)
        if (memcmp(&alone[i], &among[i], sizeof alone[i]) != 0)
            fail_msg("%s, KV %s: request %u is not what it is alone; %s, %u neighbours, chunk %u, "
                     "%u sequences, %u blocks, %u threads, how %#x, speculation %s",
                     k->model, dtype_name(k->kv), i, round, w->n_neighbour, w->chunk, w->n_seq,
                     w->n_block, w->n_thread, w->how, w->speculative);
}

static struct core_config config_for(const struct golden *g, const struct kind *k)
{
    struct core_config c = bits_config(g->dir);
    c.worker.max_model_len = MODEL_LEN;
    c.worker.dtype = k->dtype;
    c.worker.kv_given = true;
    c.worker.kv_dtype = k->kv;
    return c;
}

struct counts {
    uint64_t n_preemption, n_cached, n_swap_in;
};

static void run_among(const struct golden *g, const struct kind *k, const struct way *w,
                      struct counts *counts)
{
    struct q_err e = Q_ERR_INIT;
    struct bits_engine b;
    struct core_config c = config_for(g, k);
    c.worker.max_num_batched_tokens = w->chunk;
    c.worker.max_num_seqs = w->n_seq;
    c.worker.n_block = w->n_block;
    c.worker.n_thread = w->n_thread;
    c.prefix_cache = w->how & CACHED;
    c.policy.by_priority = w->how & PRIORITIES;
    c.policy.preemption = w->how & SWAPPED ? PREEMPT_SWAP : PREEMPT_RECOMPUTE;
    c.worker.swap_bytes = w->how & SWAPPED ? 128 << 10 << roll(4) : 0;
    if (w->how & TENANTS) {
        c.policy.max_num_partial_prefills = 2;
        c.policy.max_long_partial_prefills = 1;
        c.policy.long_prefill_token_threshold = 40;
    }
    assert_ok(speculative_parse(&c.worker.speculation, w->speculative, &e), &e);
    place.how = w->how;
    bits_open(&b, &c, among);
    play_requests(&b, g, w->n_neighbour);
    compare(k, w, "cold");
    if (w->how & CACHED) {
        counts->n_cached += play_requests(&b, g, w->n_neighbour / 2);
        compare(k, w, "warm");
    }
    struct scheduler_stats s = bits_finish(&b, b.n_finished);
    assert_int_equal(s.swap_blocks_used, 0);
    counts->n_preemption += s.n_preemption;
    counts->n_swap_in += s.n_swap_in;
}

#define NGRAM                                                                           \
    "{\"method\": \"ngram\", \"num_speculative_tokens\": 3, \"prompt_lookup_min\": 1, " \
    "\"prompt_lookup_max\": 2}"
#define DRAFT "{\"model\": \"" GOLDENS_DIR "/llama-draft\", \"num_speculative_tokens\": 4}"

static struct counts play(const struct kind *k, const struct way *ways, size_t n_way, uint64_t seed)
{
    struct golden g;
    struct counts counts = {0};
    golden_get(&g, k->model);
    const struct core_config c = config_for(&g, k);
    run_alone(&g, &c);
    for (size_t i = 0; i < n_way; i++) {
        state = seed + i;
        run_among(&g, k, &ways[i], &counts);
    }
    print_message("%s, KV %s: %llu preemptions, %llu times swapped and back, %llu tokens of "
                  "subjects were cached\n",
                  k->model, dtype_name(k->kv), (unsigned long long)counts.n_preemption,
                  (unsigned long long)counts.n_swap_in, (unsigned long long)counts.n_cached);
    return counts;
}

static void in_f32_nothing_changes_a_bit(void **unused)
{
    (void)unused;
    static const struct kind llama = {"llama", DT_F32, DT_F32};
    static const struct way ways[] = {
        {2, 16, 4, 40, 1, "", CACHED},
        {20, 64, 16, 20, 2, "", CACHED | PRIORITIES},
        {200, 512, 200, 2000, 2, "", PLACED | TENANTS},
        {60, 64, 64, 80, 1, NGRAM, CACHED | PLACED},
        {200, 2048, 64, 120, 1, "", ROBBED | PRIORITIES},
        {40, 1, 3, 12, 1, "", PLACED},
        {30, 100, 24, 18, 2, NGRAM, TENANTS},
        {30, 64, 16, 200, 2, DRAFT, CACHED | ROBBED},
        {40, 200, 16, 300, 2, "", CACHED | PLACED | ROBBED | PRIORITIES | TENANTS},
    };
    struct counts n = play(&llama, ways, sizeof ways / sizeof *ways, 0);
    assert_true(n.n_preemption > 0 && n.n_cached > 0); /* how often depends on the machine's pace */
}

static void in_bf16_nothing_changes_a_bit(void **unused)
{
    (void)unused;
    static const struct kind qwen2 = {"qwen2-sliding-bf16", DT_BF16, DT_BF16};
    static const struct way ways[] = {
        {20, 16, 16, 20, 2, "", CACHED},
        {100, 512, 100, 1000, 2, "", PLACED | CACHED},
        {50, 64, 32, 40, 1, NGRAM, PRIORITIES},
        {30, 33, 8, 60, 1, "", ROBBED | CACHED},
    };
    struct counts n = play(&qwen2, ways, sizeof ways / sizeof *ways, 0);
    assert_true(n.n_preemption > 0 && n.n_cached > 0);
}

static void for_every_kv_dtype(void **unused)
{
    (void)unused;
    static const struct kind kinds[] = {
        {"llama", DT_F32, DT_BF16},
        {"llama", DT_F32, DT_I8},
        {"qwen2-sliding-bf16", DT_BF16, DT_F32},
        {"qwen2-sliding-bf16", DT_BF16, DT_I8},
    };
    static const struct way ways[] = {
        {40, 40, 24, 60, 2, "", CACHED | PLACED | ROBBED},
        {20, 512, 8, 14, 1, NGRAM, CACHED | PRIORITIES | TENANTS},
    };
    struct counts sum = {0};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct counts n = play(&kinds[i], ways, sizeof ways / sizeof *ways, 0);
        sum.n_preemption += n.n_preemption;
        sum.n_cached += n.n_cached;
    }
    assert_true(sum.n_preemption > 0 && sum.n_cached > 0);
}

/* Recomputed ones in the first way, swapped ones in the others, the KV of a draft model too. */
static void preempted_by_recompute_and_by_swap(void **unused)
{
    (void)unused;
    static const struct kind kinds[] = {
        {"llama", DT_F32, DT_F32},   {"llama", DT_F32, DT_BF16},
        {"llama", DT_F32, DT_I8},    {"qwen2-sliding-bf16", DT_BF16, DT_BF16},
        {"gemma4", DT_F32, DT_I8},   /* blocks of two sizes, K and V that layers share */
        {"gemma3n", DT_F32, DT_F32}, /* several residual streams */
    };
    static const struct way ways[] = {
        {30, 64, 24, 20, 1, "", PREEMPTED | PLACED},
        {30, 64, 24, 20, 2, "", PREEMPTED | PLACED | SWAPPED},
        {30, 33, 16, 16, 1, NGRAM, PREEMPTED | SWAPPED | CACHED | PRIORITIES},
        {30, 100, 24, 30, 2, DRAFT, PREEMPTED | SWAPPED | PLACED | ROBBED},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t n_way = strcmp(kinds[i].model, "llama") ? 3 : 4; /* the draft is llama's */
        struct counts n = play(&kinds[i], ways, 1, i);
        assert_true(n.n_preemption > 0 && n.n_swap_in == 0);
        n = play(&kinds[i], ways + 1, n_way - 1, i);
        assert_true(n.n_preemption > 0 && n.n_swap_in > 0);
    }
}

static void other_families_too(void **unused)
{
    (void)unused;
    static const struct kind kinds[] = {
        {"qwen3", DT_F32, DT_F32},
        {"llama-rope-dynamic", DT_F32, DT_F32},
        {"mistral", DT_F32, DT_F32},
    };
    static const struct way ways[] = {{50, 48, 32, 40, 2, "", CACHED | PLACED | ROBBED}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        play(&kinds[i], ways, 1, 0);
}

/* Layers with a state of each sequence: snapshots in the prefix cache, states of preempted ones. */
static void with_states(void **unused)
{
    (void)unused;
    static const struct kind kinds[] = {
        {"lfm2", DT_F32, DT_F32},       {"lfm2-bias", DT_BF16, DT_BF16},
        {"qwen3_next", DT_F32, DT_F32}, {"mamba2-bias", DT_BF16, DT_BF16},
        {"falcon_h1", DT_F32, DT_F32},  {"jamba", DT_F32, DT_F32},
    };
    static const struct way ways[] = {
        {2, 16, 4, 60, 1, "", CACHED},
        {30, 64, 24, 20, 2, "", PREEMPTED | SWAPPED | CACHED | PLACED},
        {30, 33, 16, 30, 1, "", ROBBED | CACHED | PRIORITIES},
        {60, 512, 64, 200, 2, "", PREEMPTED | PLACED | TENANTS},
    };
    struct counts sum = {0};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const struct counts n = play(&kinds[i], ways, sizeof ways / sizeof *ways, i);
        sum.n_preemption += n.n_preemption;
        sum.n_cached += n.n_cached;
        sum.n_swap_in += n.n_swap_in;
    }
    /* how often depends on the machine's pace, so of each alone it may be 0 */
    assert_true(sum.n_preemption > 0 && sum.n_cached > 0 && sum.n_swap_in > 0);
}

/* Way number i of those that are put together at random. */
static void play_random(uint64_t i)
{
    static const struct kind kinds[] = {
        {"llama", DT_F32, DT_F32},
        {"llama-bf16-sharded", DT_BF16, DT_BF16},
        {"mistral", DT_F32, DT_BF16},
        {"qwen2-sliding-bf16", DT_BF16, DT_F32},
        {"qwen3", DT_F32, DT_I8},
        {"llama-rope-dynamic", DT_F32, DT_F32},
        {"llama-bias-tied", DT_BF16, DT_I8},
        {"qwen2", DT_F16, DT_BF16},
    };
    static const uint32_t neighbours[] = {2, 5, 20, 60, NEIGHBOURS};
    state = i * 977;
    roll(2);
    const struct kind *k = &kinds[roll(sizeof kinds / sizeof *kinds)];
    struct way w = {
        .n_neighbour = neighbours[roll(sizeof neighbours / sizeof *neighbours)],
        .chunk = 1u << roll(12),
        .n_seq = 1u << roll(9),
        .n_block = LEN_BLOCKS + roll(1u << roll(11)),
        .n_thread = 1 + roll(3),
        .how = roll(HOW_ALL + 1),
    };
    const bool is_llama = !strcmp(k->model, "llama");
    const char *const draft_tokens[] = {"", "", NGRAM, is_llama ? DRAFT : NGRAM};
    w.chunk += roll(w.chunk);
    w.speculative = draft_tokens[roll(4)];
    print_message("way %llu: ", (unsigned long long)i);
    play(k, &w, 1, i);
}

static uint64_t number_of(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

static void in_random_ways(void **unused)
{
    (void)unused;
    const uint64_t n = number_of("QUIRE_DETERMINISM_RUNS");
    const uint64_t first = number_of("QUIRE_DETERMINISM_FIRST");
    for (uint64_t i = first; i < first + (n ? n : 1); i++)
        play_random(i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_f32_nothing_changes_a_bit),
        cmocka_unit_test(in_bf16_nothing_changes_a_bit),
        cmocka_unit_test(for_every_kv_dtype),
        cmocka_unit_test(preempted_by_recompute_and_by_swap),
        cmocka_unit_test(other_families_too),
        cmocka_unit_test(with_states),
        cmocka_unit_test(in_random_ways),
    };
    log_setup("test", LOG_ERROR, false);
    cmocka_set_test_filter(getenv("QUIRE_TEST_FILTER"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
