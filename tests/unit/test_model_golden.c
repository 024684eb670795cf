/* SPDX-License-Identifier: Apache-2.0 */
/* Every causal golden of a family that archs.def has, in --dtype float32 (tolerances: 2e-4
 * of the largest logit, 1e-4 of the largest hidden value, 1e-3 on log-probabilities, greedy tokens
 * identical), and in half precision where the checkpoint is stored so. */
#include "golden.h"
#include "engine/model/forward/rotary.h"
#include "rounds.h"

#define VOCAB_MAX  2048u
#define MODELS_MAX 512u
#define N_GREEDY   24u

static const char *const models[] = {
    "afmoe",
    "apertus",
    "arcee",
    "baichuan",
    "baichuan2-13b",
    "bamba",
    "biogpt",
    "bloom",
    "codegen",
    "cohere",
    "cohere2",
    "cohere2_moe",
    "cohere2_moe-sigmoid",
    "cwm",
    "dbrx",
    "deepseek_v2",
    "deepseek_v2-group",
    "deepseek_v3",
    "dots1",
    "ernie4_5",
    "ernie4_5_moe",
    "exaone",
    "exaone4",
    "exaone_moe",
    "falcon",
    "falcon_h1",
    "falcon_h1-norm",
    "falcon_mamba",
    "flex_olmo",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3-vision",
    "gemma3n",
    "gemma3n-two",
    "gemma4",
    "gemma4-dense",
    "gemma4-moe",
    "gemma4_unified",
    "glm",
    "glm4",
    "glm4_moe",
    "glm4_moe_lite",
    "gpt2",
    "gpt2-noprefix",
    "gpt_bigcode",
    "gpt_bigcode-heads",
    "gpt_neo",
    "gpt_neox",
    "gpt_neox-seq",
    "gpt_oss",
    "gpt_oss-mxfp4",
    "gptj",
    "granite",
    "granite_swa",
    "granitemoe",
    "granitemoe_swa",
    "granitemoehybrid",
    "granitemoehybrid-dense",
    "granitemoeshared",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "hy_v3",
    "hyperclovax",
    "internlm",
    "internlm2",
    "internlm3",
    "iquestcoder",
    "jais2",
    "jamba",
    "kimi_k2",
    "lfm2",
    "lfm2-bias",
    "lfm2_moe",
    "llama",
    "llama-bf16-sharded",
    "llama-bias-tied",
    "llama-bin",
    "llama-draft",
    "llama-rope-dynamic",
    "llama-rope-linear",
    "llama-rope-llama3",
    "llama-rope-yarn",
    "llama-torchao-int4",
    "llama4",
    "mamba",
    "mamba2",
    "mamba2-bias",
    "mellum",
    "mimo_v2_flash",
    "minicpm",
    "minicpm-longrope",
    "minicpm3",
    "minimax",
    "minimax_m2",
    "mistral4",
    "ministral",
    "ministral3",
    "mistral",
    "mistral3-vision",
    "mixtral",
    "mpt",
    "nanochat",
    "nemotron",
    "nemotron_h",
    "nemotron_h-latent",
    "nemotron_h-moe",
    "olmo",
    "olmo2",
    "olmo3",
    "olmo_hybrid",
    "olmo_hybrid-rope",
    "olmoe",
    "olmoe-clip",
    "opt",
    "opt-bare",
    "opt-post",
    "phi",
    "phi3",
    "phi3-longrope",
    "phi4-mini",
    "phimoe",
    "qwen2",
    "qwen2-sliding-bf16",
    "qwen2_5-vision",
    "qwen2_moe",
    "qwen3",
    "qwen3-v5cfg-f16",
    "qwen3-vision",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_moe",
    "qwen3_next",
    "seed_oss",
    "smollm3",
    "solar_open",
    "stablelm",
    "stablelm-parallel",
    "starcoder2",
    "vaultgemma",
    "yi",
    "youtu",
};
#define N_MODEL (sizeof models / sizeof *models)

static float logits[RUN_TOKENS_MAX * VOCAB_MAX];
static float logprobs[VOCAB_MAX];
static uint32_t free_length; /* of the model's rope: rotary.h */

static void log_softmax(float *out, const float *x, uint32_t n)
{
    double sum = 0, max = x[argmax(x, n)];
    for (uint32_t i = 0; i < n; i++)
        sum += exp(x[i] - max);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (float)(x[i] - max - log(sum));
}

static void check_logits_last(const struct golden *g, uint32_t p, const float *last, uint32_t vocab)
{
    const struct tensor *want = golden_array(g, p, "logits_last");
    assert_non_null(want);
    double d = difference(last, want->data, vocab), most = abs_max(want->data, vocab);
    if (d > 2e-4 * most)
        fail_msg("prompt %u: logits_last differ by %g, at most %g is accepted", p, d, 2e-4 * most);
}

static void check_prompt_logprobs(const json_t *list, const uint32_t *ids, uint32_t n,
                                  uint32_t vocab)
{
    for (uint32_t i = 1; i < n; i++) {
        double want = json_number_value(json_array_get(list, i));
        log_softmax(logprobs, logits + (size_t)(i - 1) * vocab, vocab);
        if (!(fabs(logprobs[ids[i]] - want) <= 1e-3))
            fail_msg("position %u: logprob %g, expected %g", i, logprobs[ids[i]], want);
    }
}

/* The best tokens of each position: four in tests/data/models, twenty in folders of
 * tests/differential/families.py. */
static const struct tensor *top_array(const struct golden *g, uint32_t p, const char *what)
{
    char name[32];
    snprintf(name, sizeof name, "top_%s", what);
    const struct tensor *t = golden_array(g, p, name);
    snprintf(name, sizeof name, "top20_%s", what);
    t = t ? t : golden_array(g, p, name);
    assert_non_null(t);
    return t;
}

/* The k-th best has the golden's logprob, and the golden's id unless a neighbour is closer than the
 * tolerance. */
static void check_top(const struct golden *g, uint32_t p, uint32_t n, uint32_t vocab)
{
    const struct tensor *ids = top_array(g, p, "ids"), *want = top_array(g, p, "logprobs");
    const uint32_t n_top = (uint32_t)ids->shape[1];
    assert_true(ids->shape[0] == n && n_top >= 2 && want->n_bytes == ids->n_bytes);
    for (uint32_t i = 0; i < n; i++) {
        const int32_t *id = (const int32_t *)ids->data + i * n_top;
        const float *lp = (const float *)want->data + i * n_top;
        log_softmax(logprobs, logits + (size_t)i * vocab, vocab);
        for (uint32_t k = 0; k < n_top; k++) {
            uint32_t n_better = 0;
            float mine = logprobs[id[k]];
            if (!(fabsf(mine - lp[k]) <= 1e-3f))
                fail_msg("prompt %u position %u: logprob of %d is %g, expected %g", p, i, id[k],
                         mine, lp[k]);
            for (uint32_t v = 0; v < vocab; v++)
                n_better += logprobs[v] > mine;
            bool close = (k && lp[k - 1] - lp[k] < 1e-3f) ||
                         (k + 1 < n_top && lp[k] - lp[k + 1] < 1e-3f) || k + 1 == n_top;
            if (n_better != k && !close)
                fail_msg("prompt %u position %u: token %d ranks %u, expected %u", p, i, id[k],
                         n_better, k);
        }
    }
}

/* Hidden states after every layer, to say which layer goes wrong first. */
static void check_hidden(struct runner *r, const struct golden *g, uint32_t p, const uint32_t *ids,
                         uint32_t n)
{
    const struct model_shape *s = model_shape(r->model);
    float *states[CONFIG_LAYERS_MAX + 1];
    size_t n_value = (size_t)n * s->hidden_size;
    for (uint32_t l = 0; l <= s->n_layer; l++)
        states[l] = malloc(n_value * sizeof(float));
    r->tap = states;
    run_prompt(r, ids, n, n, logits);
    r->tap = NULL;
    for (uint32_t l = 0; l <= s->n_layer; l++) {
        char what[32];
        snprintf(what, sizeof what, "hidden.%u", l);
        const struct tensor *want = golden_array(g, p, what);
        assert_non_null(want);
        assert_int_equal(want->n_bytes, n_value * sizeof(float));
        double d = difference(states[l], want->data, n_value), most = abs_max(want->data, n_value);
        if (d > 1e-4 * most)
            fail_msg("hidden states after layer %u differ by %g, at most %g is accepted", l, d,
                     1e-4 * most);
        free(states[l]);
    }
}

static void check_greedy(struct runner *r, const json_t *prompt, uint32_t *ids, uint32_t n)
{
    uint32_t want[64], vocab = model_shape(r->model)->vocab_size;
    assert_int_equal(golden_ids(want, json_object_get(prompt, "greedy")), N_GREEDY);
    bool crosses =
        json_object_get(prompt, "greedy_kv_cached") != NULL; /* the expected path uses no cache */
    uint32_t n_new = crosses ? 1 : N_GREEDY;
    if (free_length && n <= free_length && n + n_new > free_length + 1)
        n_new = free_length + 1 - n; /* beyond, the reference takes other frequencies */
    run_greedy(r, ids, n, n_new, logits + (size_t)(n - 1) * vocab);
    for (uint32_t i = 0; i < n_new; i++)
        if (ids[n + i] != want[i])
            fail_msg("greedy token %u of a prompt of %u is %u, expected %u", i, n, ids[n + i],
                     want[i]);
}

static void check_prompts(struct runner *r, const struct golden *g)
{
    uint32_t vocab = model_shape(r->model)->vocab_size;
    json_t *prompts = json_object_get(g->root, "prompts");
    assert_true(vocab <= VOCAB_MAX);
    assert_true(json_array_size(prompts) >= 5);
    for (uint32_t p = 0; p < json_array_size(prompts); p++) {
        uint32_t ids[RUN_TOKENS_MAX];
        json_t *prompt = json_array_get(prompts, p);
        uint32_t n = golden_ids(ids, json_object_get(prompt, "ids"));
        if (n == 5 && !json_object_get(g->root, "target")) /* the draft model's golden has none */
            check_hidden(r, g, p, ids, n);
        run_prompt(r, ids, n, n, logits);
        check_logits_last(g, p, logits + (size_t)(n - 1) * vocab, vocab);
        check_prompt_logprobs(json_object_get(prompt, "prompt_logprobs"), ids, n, vocab);
        check_top(g, p, n, vocab);
        check_greedy(r, prompt, ids, n);
    }
}

static void dir_of(char dir[PATH_MAX], const char *model)
{
    snprintf(dir, PATH_MAX, "%s%s", strchr(model, '/') ? "" : GOLDEN_DIR "/", model);
}

/* With every set of kernels the machine has; under a sanitizer with one of them, the next model
 * with the next one: kcheck has all operations in all of them there. */
static void test_float32(void **state)
{
    static const char *const caps_names[] = {"none", "avx2", "avx512", "avx512_bf16"};
    static uint32_t turn;
    char dir[PATH_MAX];
    struct q_err e = Q_ERR_INIT;
    struct golden g;
    uint32_t caps[sizeof caps_names / sizeof *caps_names], n_caps = 0;
    struct model_config c;
    dir_of(dir, *state);
    assert_ok(golden_open(&g, dir, &e), &e);
    assert_ok(model_config_load(&c, NULL, dir, &e), &e);
    free_length = rotary_free_length(&c);
    for (size_t i = 0; i < sizeof caps_names / sizeof *caps_names; i++) {
        assert_ok(kern_caps_parse(&caps[n_caps], caps_names[i], &e), &e);
        /* a machine without the instructions gives the set before again */
        n_caps += n_caps == 0 || caps[n_caps] != caps[n_caps - 1];
    }
    for (uint32_t i = turn++ % ROUNDS(1, n_caps); i < n_caps; i += ROUNDS(1, n_caps)) {
        struct runner r;
        struct runner_options o = {.dir = dir, .n_thread = 2, .caps = caps[i], .dtype = DT_F32};
        assert_ok(runner_open(&r, &o, &e), &e);
        check_prompts(&r, &g);
        runner_close(&r);
    }
    golden_close(&g);
}

/* Top-1 agrees with float32 on at least 4 of 5 prompts, and no logit is off by more than 5 % of the
 * largest. */
static void test_half(void **state)
{
    char dir[PATH_MAX];
    struct q_err e = Q_ERR_INIT;
    struct golden g;
    struct runner r;
    uint32_t n_agree = 0;
    dir_of(dir, *state);
    struct runner_options o = {
        .dir = dir,
        .n_thread = 2,
        .caps = kern_caps_machine(),
        .dtype_auto = true,
    };
    assert_ok(golden_open(&g, dir, &e), &e);
    assert_ok(runner_open(&r, &o, &e), &e);
    uint32_t vocab = model_shape(r.model)->vocab_size;
    json_t *prompts = json_object_get(g.root, "prompts");
    uint32_t n_prompt = (uint32_t)json_array_size(prompts);
    assert_int_not_equal(model_shape(r.model)->compute_dtype, DT_F32);
    for (uint32_t p = 0; p < n_prompt; p++) {
        uint32_t ids[RUN_TOKENS_MAX];
        uint32_t n = golden_ids(ids, json_object_get(json_array_get(prompts, p), "ids"));
        const struct tensor *want = golden_array(&g, p, "logits_last");
        const float *last = logits + (size_t)(n - 1) * vocab;
        run_prompt(&r, ids, n, n, logits);
        n_agree += argmax(last, vocab) == argmax(want->data, vocab);
        double d = difference(last, want->data, vocab), most = abs_max(want->data, vocab);
        if (d > 0.05 * most)
            fail_msg("prompt %u: logits differ by %g of %g", p, d, most);
    }
    if (n_agree * 5 < n_prompt * 4)
        fail_msg("top-1 agrees on %u of %u prompts", n_agree, n_prompt);
    runner_close(&r);
    golden_close(&g);
}

static const char *tail(const char *model)
{
    const char *slash = strrchr(model, '/');
    return slash ? slash + 1 : model;
}

/* Other folders may be given, which tests/differential/families.py writes. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[2 * MODELS_MAX];
    static char names[2 * MODELS_MAX][64];
    const size_t n_model = argc > 1 ? (size_t)argc - 1 : N_MODEL;
    size_t n = 0;
    for (size_t i = 0; i < n_model && i < MODELS_MAX; i++) {
        char dir[PATH_MAX];
        struct model_config c;
        const char *model = argc > 1 ? argv[i + 1] : models[i];
        dir_of(dir, model);
        snprintf(names[n], sizeof names[n], "%.48s float32", tail(model));
        tests[n] =
            (struct CMUnitTest){names[n], test_float32, NULL, NULL, (void *)(uintptr_t)model};
        n++;
        if (model_config_load(&c, NULL, dir, NULL) || c.dtype == DT_F32)
            continue;
        if (c.moe.n_expert) /* a rounding may change the choice of an expert, by any amount */
            continue;
        snprintf(names[n], sizeof names[n], "%.48s %s", tail(model), dtype_name(c.dtype));
        tests[n] = (struct CMUnitTest){names[n], test_half, NULL, NULL, (void *)(uintptr_t)model};
        n++;
    }
    if (n_model > MODELS_MAX)
        return fprintf(stderr, "%zu folders, at most %u\n", n_model, MODELS_MAX), 2;
    return _cmocka_run_group_tests("model_golden", tests, n, NULL, NULL);
}
