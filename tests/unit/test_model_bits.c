/* SPDX-License-Identifier: Apache-2.0 */
/* The same prompt gives the same bits: fed whole or in chunks, alone or beside others, by any
 * number of threads, with every set of kernels; and a token decoded is the token prefilled (DESIGN
 * section 6). Compared with memcmp. */
#include "golden.h"
#include "rounds.h"

#define VOCAB_MAX 512u
#define N_LONG    120u

static const struct {
    const char *name;
    bool dtype_auto; /* false: `dtype` */
    enum quantization quantization;
    enum dtype dtype;
} cases[] = {
    {"llama", false, QUANTIZE_NOT, DT_F32},
    {"llama-bf16-sharded", true, QUANTIZE_NOT, DT_F32},
    {"llama-bias-tied", true, QUANTIZE_NOT, DT_F32},
    {"mistral", false, QUANTIZE_NOT, DT_F32},
    {"qwen2-sliding-bf16", true, QUANTIZE_NOT, DT_F32},
    {"qwen2-sliding-bf16", false, QUANTIZE_NOT, DT_F32},
    {"qwen3-v5cfg-f16", true, QUANTIZE_NOT, DT_F32},
    {"llama-rope-dynamic", true, QUANTIZE_NOT, DT_F32},
    {"llama-bias-tied", true, QUANTIZE_INT8, DT_F32},
    {"qwen2-sliding-bf16", true, QUANTIZE_INT8, DT_F32},
    {"llama-bias-tied", true, QUANTIZE_INT4, DT_F32},
    {"qwen3", false, QUANTIZE_INT4, DT_F32},
    {"deepseek_v2", true, QUANTIZE_NOT, DT_BF16},
    {"deepseek_v2-group", true, QUANTIZE_INT4, DT_F32},
    {"deepseek_v3", false, QUANTIZE_NOT, DT_F32},
    {"gemma2", false, QUANTIZE_NOT, DT_F32},
    {"gemma2", false, QUANTIZE_INT4, DT_BF16},
    {"gpt_neox", true, QUANTIZE_NOT, DT_F32},
    {"gpt_neox-seq", true, QUANTIZE_INT8, DT_F32},
    {"granite", false, QUANTIZE_NOT, DT_F32},
    {"phi", true, QUANTIZE_NOT, DT_F32},
    {"phi3", false, QUANTIZE_NOT, DT_F32},
    {"phi3-longrope", true, QUANTIZE_NOT, DT_F32},
    {"qwen3_moe", false, QUANTIZE_NOT, DT_F32},
    {"qwen3_moe", false, QUANTIZE_INT4, DT_F32},
    {"mixtral", false, QUANTIZE_NOT, DT_BF16},
    {"mixtral", false, QUANTIZE_INT8, DT_F32},
    {"olmoe", true, QUANTIZE_NOT, DT_F32},
    {"olmoe-clip", true, QUANTIZE_NOT, DT_F32},
    {"opt-bare", true, QUANTIZE_NOT, DT_F32},
    {"opt-post", false, QUANTIZE_NOT, DT_F32},
    {"opt-post", false, QUANTIZE_INT8, DT_F32},
    {"opt-post", true, QUANTIZE_INT4, DT_F32},
    {"granitemoe", true, QUANTIZE_NOT, DT_F32},
    {"gpt_oss", false, QUANTIZE_NOT, DT_F32},
    {"gpt_oss", true, QUANTIZE_INT8, DT_F32},
    {"gpt_oss-mxfp4", true, QUANTIZE_NOT, DT_BF16},
    {"gpt_oss-mxfp4", false, QUANTIZE_INT4, DT_F32},
    {"qwen2_moe", false, QUANTIZE_NOT, DT_BF16},
    {"qwen2_moe", true, QUANTIZE_INT4, DT_F32},
    {"gemma3n", false, QUANTIZE_NOT, DT_F32},
    {"gemma3n", true, QUANTIZE_NOT, DT_BF16},
    {"gemma3n-two", false, QUANTIZE_INT8, DT_F32},
    {"gemma4", false, QUANTIZE_NOT, DT_F32},
    {"gemma4", false, QUANTIZE_NOT, DT_BF16},
    {"gemma4", false, QUANTIZE_INT8, DT_F32},
    {"gemma4-dense", true, QUANTIZE_INT4, DT_F32},
    {"gemma4-moe", false, QUANTIZE_NOT, DT_F32},
    {"gemma4_unified", true, QUANTIZE_NOT, DT_BF16},
    {"cohere2_moe", false, QUANTIZE_NOT, DT_F32},
    {"cohere2_moe", true, QUANTIZE_INT8, DT_F32},
    {"cohere2_moe-sigmoid", true, QUANTIZE_NOT, DT_BF16},
    {"mimo_v2_flash", false, QUANTIZE_NOT, DT_F32},
    {"mimo_v2_flash", true, QUANTIZE_INT8, DT_BF16},
    {"minimax", false, QUANTIZE_NOT, DT_F32},
    {"minimax", true, QUANTIZE_NOT, DT_BF16},
    {"minimax", false, QUANTIZE_INT8, DT_F32},
    {"olmo_hybrid", false, QUANTIZE_NOT, DT_F32},
    {"olmo_hybrid", true, QUANTIZE_INT4, DT_F32},
    {"olmo_hybrid-rope", true, QUANTIZE_NOT, DT_BF16},
    {"lfm2", false, QUANTIZE_NOT, DT_F32},
    {"lfm2", false, QUANTIZE_NOT, DT_BF16},
    {"lfm2", false, QUANTIZE_INT8, DT_F32},
    {"lfm2-bias", true, QUANTIZE_NOT, DT_F32},
    {"lfm2-bias", true, QUANTIZE_INT4, DT_F32},
    {"qwen3_next", false, QUANTIZE_NOT, DT_F32},
    {"qwen3_next", false, QUANTIZE_NOT, DT_BF16},
    {"qwen3_next", false, QUANTIZE_INT8, DT_F32},
    {"mamba2", false, QUANTIZE_NOT, DT_F32},
    {"mamba2-bias", true, QUANTIZE_NOT, DT_F32},
    {"mamba2", false, QUANTIZE_INT8, DT_F32},
    {"mamba", true, QUANTIZE_NOT, DT_F32},
    {"falcon_mamba", false, QUANTIZE_INT8, DT_F32},
    {"bamba", false, QUANTIZE_NOT, DT_BF16},
    {"falcon_h1", false, QUANTIZE_NOT, DT_F32},
    {"falcon_h1-norm", true, QUANTIZE_NOT, DT_BF16},
    {"granitemoehybrid", false, QUANTIZE_NOT, DT_F32},
    {"jamba", false, QUANTIZE_NOT, DT_F32},
    {"nemotron_h", true, QUANTIZE_NOT, DT_F32},
    {"nemotron_h-moe", false, QUANTIZE_INT8, DT_F32},
    {"nemotron_h-latent", true, QUANTIZE_NOT, DT_F32},
    {"nemotron_h-latent", false, QUANTIZE_INT4, DT_F32},
};

static const char *const caps_names[] = {"none",        "avx2",        "avx2_vnni", "avx512",
                                         "avx512_vnni", "avx512_bf16", "amx"};

static float whole[N_LONG * VOCAB_MAX], other[RUN_BATCH_MAX * VOCAB_MAX];
static uint32_t n_vocab; /* of the model at hand */

struct prompt {
    uint32_t ids[RUN_TOKENS_MAX], n;
};

/* All prompts of the model's golden; returns how many. */
static uint32_t load_prompts(struct prompt *out, const char *dir)
{
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    assert_ok(golden_open(&g, dir, &e), &e);
    json_t *list = json_object_get(g.root, "prompts");
    uint32_t n = (uint32_t)json_array_size(list);
    assert_in_range(n, 5, RUN_SEQS_MAX);
    for (uint32_t i = 0; i < n; i++)
        out[i].n = golden_ids(out[i].ids, json_object_get(json_array_get(list, i), "ids"));
    assert_int_equal(out[n - 1].n, N_LONG);
    golden_close(&g);
    return n;
}

static void assert_same(const float *a, const float *b, uint32_t n_row, const char *what,
                        uint32_t detail)
{
    for (uint32_t i = 0; i < n_row; i++)
        if (memcmp(a + (size_t)i * n_vocab, b + (size_t)i * n_vocab, n_vocab * sizeof *a) != 0)
            fail_msg("%s %u: row %u has other bits", what, detail, i);
}

static void check_chunks(struct runner *r, const struct prompt *p)
{
    static const uint32_t chunks[] = {1, 3, 7, 16, 50};
    for (size_t i = ROUNDS(0, 2); i < ROUNDS(sizeof chunks / sizeof *chunks, 3); i++) {
        run_prompt(r, p->ids, p->n, chunks[i], other);
        assert_same(whole, other, p->n, "chunks of", chunks[i]);
    }
}

/* Logits asked for some rows at a time. */
static void check_parts(struct runner *r, const struct prompt *p)
{
    static const uint32_t steps[] = {1, 7, 64};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        r->logits_step = steps[i];
        run_prompt(r, p->ids, p->n, p->n, other);
        assert_same(whole, other, p->n, "logits in parts of", steps[i]);
    }
    r->logits_step = 0;
}

/* All prompts in one batch; in ragged chunks, so that long prefills stand beside decode rows. */
static void check_batched(struct runner *r, const struct prompt *p, uint32_t n)
{
    struct run_seq seqs[RUN_SEQS_MAX];
    float *logits[RUN_SEQS_MAX];
    for (uint32_t i = 0; i < n; i++) {
        logits[i] = malloc((size_t)N_LONG * n_vocab * sizeof(float));
        seqs[i] = (struct run_seq){.tokens = p[i].ids, .n_prompt = p[i].n, .index = n - 1 - i};
    }
    for (bool more = true; more;) {
        struct run_seq step[RUN_SEQS_MAX];
        uint32_t who[RUN_SEQS_MAX], n_step = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t left = p[i].n - seqs[i].n_done, want = i + 1 == n ? 23 : 1 + 2 * i;
            if (left == 0)
                continue;
            seqs[i].n_next = left < want ? left : want;
            seqs[i].logits = logits[i] + (size_t)seqs[i].n_done * n_vocab;
            who[n_step] = i;
            step[n_step++] = seqs[i];
        }
        more = n_step > 0;
        if (more)
            run_step(r, step, n_step);
        for (uint32_t i = 0; i < n_step; i++)
            seqs[who[i]] = step[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        run_prompt(r, p[i].ids, p[i].n, p[i].n, other);
        assert_same(other, logits[i], p[i].n, "batched prompt", i);
        free(logits[i]);
    }
}

/* More rows in a step than go through a layer's products together, each sequence as alone. */
static void check_blocks(struct runner *r, const struct prompt *p)
{
    enum { N_SEQ = 5 };
    static uint32_t ids[N_SEQ][N_LONG];
    static float together[N_SEQ][N_LONG * VOCAB_MAX];
    struct run_seq seqs[N_SEQ];
    for (uint32_t i = 0; i < N_SEQ; i++) {
        for (uint32_t k = 0; k < p->n; k++)
            ids[i][k] = p->ids[(k + 7 * i) % p->n];
        seqs[i] = (struct run_seq){
            .tokens = ids[i],
            .n_next = p->n,
            .n_prompt = p->n,
            .index = i,
            .logits = together[i],
        };
    }
    run_step(r, seqs, N_SEQ);
    for (uint32_t i = 0; i < N_SEQ; i++) {
        run_prompt(r, ids[i], p->n, p->n, other);
        assert_same(other, together[i], p->n, "of five sequences, number", i);
    }
}

/* Rows whose logits nobody asks for: of whole prompts, which stand beside decoding sequences and
 * chunks, and of a chunk that does not end its prompt. */
static void check_unasked(struct runner *r, const struct prompt *p)
{
    enum { N_SEQ = 6 };
    const uint32_t asked[N_SEQ] = {1, 1, 0, 3, 1, p->n}, halves = p->n / 2;
    static uint32_t ids[N_SEQ][N_LONG];
    static float together[N_SEQ][N_LONG * VOCAB_MAX];
    struct run_seq seqs[N_SEQ];
    for (uint32_t i = 0; i < N_SEQ; i++) {
        for (uint32_t k = 0; k < p->n; k++)
            ids[i][k] = p->ids[(k + 5 * i) % p->n];
        seqs[i] = (struct run_seq){.tokens = ids[i], .n_prompt = p->n, .index = i};
        seqs[i].n_next = i == 1 ? p->n - 1 : i == 2 ? halves : i == 4 ? p->n - 20 : 0;
    }
    struct run_seq first[] = {seqs[1], seqs[2], seqs[4]};
    run_step(r, first, 3); /* no logits at all */
    seqs[1] = first[0];
    seqs[2] = first[1];
    seqs[4] = first[2];
    for (uint32_t i = 0; i < N_SEQ; i++) {
        seqs[i].n_next = i == 2 ? 11 : p->n - seqs[i].n_done;
        seqs[i].n_unasked = seqs[i].n_next - asked[i];
        seqs[i].logits = asked[i] ? together[i] : NULL;
    }
    run_step(r, seqs, N_SEQ);
    seqs[2].n_next = p->n - seqs[2].n_done;
    seqs[2].n_unasked = seqs[2].n_next - 1;
    seqs[2].logits = together[2];
    run_step(r, &seqs[2], 1);
    for (uint32_t i = 0; i < N_SEQ; i++) {
        const uint32_t n = asked[i] ? asked[i] : 1;
        run_prompt(r, ids[i], p->n, p->n, other);
        assert_same(other + (size_t)(p->n - n) * n_vocab, together[i], n, "asked for, sequence", i);
    }
}

static void check_variant(const char *dir, size_t i_case, uint32_t caps)
{
    static struct prompt prompts[RUN_SEQS_MAX];
    uint32_t n = load_prompts(prompts, dir);
    struct prompt *longest = &prompts[n - 1];
    struct q_err e = Q_ERR_INIT;
    struct runner r;
    for (uint32_t n_thread = 1; n_thread <= ROUNDS(3, 2); n_thread++) {
        struct runner_options o = {
            .dir = dir,
            .n_thread = n_thread,
            .caps = caps,
            .dtype_auto = cases[i_case].dtype_auto,
            .dtype = cases[i_case].dtype,
            .quantization = cases[i_case].quantization,
            .max_model_len = N_LONG + 8,
        };
        assert_ok(runner_open(&r, &o, &e), &e);
        n_vocab = model_shape(r.model)->vocab_size;
        assert_in_range(n_vocab, 1, VOCAB_MAX);
        run_prompt(&r, longest->ids, longest->n, longest->n, n_thread == 1 ? whole : other);
        if (n_thread > 1)
            assert_same(whole, other, longest->n, "threads", n_thread);
        if (n_thread == 1)
            check_chunks(&r, longest);
        if (n_thread == 2)
            check_parts(&r, longest);
        if (n_thread == 2)
            check_batched(&r, prompts, n);
        if (n_thread > 1)
            check_unasked(&r, longest);
        if (n_thread == 2 && caps == kern_caps_machine()) /* the same order with all kernels */
            check_blocks(&r, longest);
        runner_close(&r);
    }
}

/* Under a sanitizer a case has one of the machine's sets of kernels, the next case the next one. */
static void test_bits(void **state)
{
    enum { N_CAPS = sizeof caps_names / sizeof *caps_names };
    size_t i = (size_t)(uintptr_t)*state;
    char dir[PATH_MAX];
    struct q_err e = Q_ERR_INIT;
    uint32_t caps[N_CAPS], n_caps = 0;
    snprintf(dir, sizeof dir, GOLDEN_DIR "/%s", cases[i].name);
    for (size_t k = 0; k < N_CAPS; k++) {
        assert_ok(kern_caps_parse(&caps[n_caps], caps_names[k], &e), &e);
        /* a machine without the instructions gives the set before again */
        n_caps += n_caps == 0 || caps[n_caps] != caps[n_caps - 1];
    }
    for (size_t k = i % ROUNDS(1, n_caps); k < n_caps; k += ROUNDS(1, n_caps))
        check_variant(dir, i, caps[k]);
}

int main(void)
{
    enum { N = sizeof cases / sizeof *cases };
    struct CMUnitTest tests[N];
    for (size_t i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){cases[i].name, test_bits, NULL, NULL, (void *)(uintptr_t)i};
    return _cmocka_run_group_tests("model_bits", tests, N, NULL, NULL);
}
