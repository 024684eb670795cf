/* SPDX-License-Identifier: Apache-2.0 */
/* device: an engine whose worker computes on a device gives the bits of one whose worker computes
 * on the CPU with the reference's kernels. The device is the fake one (fake_device.h): memory that
 * the host cannot touch, work that happens no sooner than somebody waits for it, graphs that hold
 * the arguments of their recording. */
#include "common/log.h"
#include "device_near.h"
#include "plain_twin.h"
#include "rounds.h"

static struct bits_answer expected[BITS_REQUESTS];

static void on_device(struct core_config *c)
{
    device_choose(c, "/tests/libquire-fake.so");
}

static uint64_t count_of(const char *what)
{
    return *(const uint64_t *)device_symbol("/tests/libquire-fake.so", what);
}

static uint64_t n_launch(void)
{
    return count_of("fake_n_launch");
}

/* The same requests on both; what: which case. */
static void compare(struct core_config c, const struct golden *g, uint32_t n, const char *what)
{
    snprintf(c.worker.cpu_isa, sizeof c.worker.cpu_isa, "none");
    struct core_config cpu = c;
    *cpu.worker.device = *cpu.worker.device_library = '\0';
    device_answers(&cpu, g, n);
    memcpy(expected, answers, sizeof expected);
    device_answers(&c, g, n);
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(&expected[i], &answers[i], sizeof expected[i]) != 0)
            fail_msg("%s: request %u has other bits on the device", what, i);
}

static void every_model_gives_the_bits_of_the_cpu(void **state)
{
    (void)state;
    static const char *const models[] = {"llama-rope-dynamic", "llama-rope-yarn", "llama-bias-tied",
                                         "qwen2-sliding-bf16", "llama-bf16-sharded"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct golden g;
        golden_get(&g, models[i]);
        struct core_config c = config_of(g.dir);
        c.worker.max_model_len = strcmp(models[i], "llama-rope-dynamic") ? 144 : 64;
        g.n = c.worker.max_model_len == 64 ? 2 : g.n; /* those that fit */
        c.worker.dtype = DT_F32; /* that one is in float16: inputs_of_16_bits */
        c.worker.dtype_auto = strcmp(models[i], "llama-rope-dynamic") != 0;
        c.worker.max_num_seqs = 4;
        c.worker.max_num_batched_tokens = 48;
        on_device(&c);
        compare(c, &g, g.n, models[i]);
    }
}

static void every_dtype_and_quantization(void **state)
{
    (void)state;
    static const struct {
        enum dtype dtype, kv;
        enum quantization quantization;
    } cases[] = {
        {DT_F32, DT_F32, QUANTIZE_NOT},   {DT_BF16, DT_BF16, QUANTIZE_NOT},
        {DT_F32, DT_I8, QUANTIZE_NOT},    {DT_BF16, DT_I8, QUANTIZE_INT8},
        {DT_F32, DT_BF16, QUANTIZE_INT4},
    };
    struct golden g;
    golden_get(&g, "qwen3");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct core_config c = config_of(g.dir);
        c.worker.dtype = cases[i].dtype;
        c.worker.kv_given = true;
        c.worker.kv_dtype = cases[i].kv;
        c.worker.quantization = cases[i].quantization;
        c.worker.max_model_len = 144;
        on_device(&c);
        compare(c, &g, g.n, dtype_name(cases[i].kv));
    }
}

/* Every row of logits comes to the host, and no step is ahead. */
static void the_host_samples(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "qwen3");
    struct core_config c = config_of(g.dir);
    c.worker.max_model_len = 144;
    on_device(&c);
    assert_int_equal(setenv("QUIRE_FAKE_NO_SAMPLE", "1", 1), 0);
    compare(c, &g, 2 * g.n, "sampled by the host");
    assert_int_equal(unsetenv("QUIRE_FAKE_NO_SAMPLE"), 0);
}

struct layers_case {
    const char *model;
    enum dtype dtype;
    enum quantization quantization;
};

/* All of the golden's prompts; the first three, which are short, under a sanitizer. */
static void compare_all(const struct layers_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct golden g;
        golden_get(&g, cases[i].model);
        struct core_config c = config_of(g.dir);
        c.worker.dtype = cases[i].dtype;
        c.worker.quantization = cases[i].quantization;
        c.worker.max_model_len = 144;
        on_device(&c);
        compare(c, &g, ROUNDS(g.n, 3), cases[i].model);
    }
}

static void dense_families(void **state)
{
    (void)state;
    static const struct layers_case cases[] = {
        {"bloom", DT_F32, QUANTIZE_NOT},
        {"bloom", DT_BF16, QUANTIZE_INT8},
        {"cohere", DT_F32, QUANTIZE_NOT},
        {"cohere", DT_F32, QUANTIZE_INT8},
        {"cohere2", DT_BF16, QUANTIZE_NOT},
        {"exaone4", DT_BF16, QUANTIZE_NOT},
        {"exaone4", DT_BF16, QUANTIZE_INT8},
        {"falcon", DT_F32, QUANTIZE_NOT},
        {"gemma", DT_F32, QUANTIZE_INT4},
        {"gemma3", DT_F32, QUANTIZE_NOT},
        {"gemma3", DT_BF16, QUANTIZE_INT8},
        {"glm4", DT_BF16, QUANTIZE_NOT},
        {"gpt2", DT_F32, QUANTIZE_NOT},
        {"gpt2-noprefix", DT_BF16, QUANTIZE_INT8},
        {"gptj", DT_BF16, QUANTIZE_NOT},
        {"olmo", DT_F32, QUANTIZE_NOT},
        {"olmo", DT_F32, QUANTIZE_INT8},
        {"olmo2", DT_F32, QUANTIZE_NOT},
        {"olmo2", DT_BF16, QUANTIZE_NOT},
        {"olmo2", DT_F32, QUANTIZE_INT4},
        {"opt", DT_F32, QUANTIZE_NOT},
        {"opt-bare", DT_BF16, QUANTIZE_NOT},
        {"opt-post", DT_F32, QUANTIZE_NOT},
        {"opt-post", DT_BF16, QUANTIZE_INT8},
        {"smollm3", DT_BF16, QUANTIZE_NOT},
        {"stablelm", DT_F32, QUANTIZE_NOT},
        {"stablelm-parallel", DT_F32, QUANTIZE_NOT},
        {"stablelm-parallel", DT_BF16, QUANTIZE_INT8},
        {"starcoder2", DT_BF16, QUANTIZE_NOT},
    };
    compare_all(cases, sizeof cases / sizeof *cases);
}

static void more_dense_families(void **state)
{
    (void)state;
    static const struct layers_case cases[] = {
        {"apertus", DT_F32, QUANTIZE_NOT},
        {"apertus", DT_BF16, QUANTIZE_INT8},
        {"baichuan2-13b", DT_F32, QUANTIZE_NOT},
        {"baichuan2-13b", DT_BF16, QUANTIZE_INT8},
        {"gemma3-vision", DT_F32, QUANTIZE_NOT},
        {"hunyuan_v1_dense", DT_F32, QUANTIZE_NOT},
        {"hunyuan_v1_dense", DT_BF16, QUANTIZE_INT8},
        {"hyperclovax", DT_F32, QUANTIZE_NOT},
        {"internlm2", DT_BF16, QUANTIZE_NOT},
        {"ministral3", DT_F32, QUANTIZE_NOT},
        {"ministral3", DT_BF16, QUANTIZE_NOT},
        {"nemotron", DT_BF16, QUANTIZE_NOT},
        {"biogpt", DT_F32, QUANTIZE_NOT},
        {"codegen", DT_F32, QUANTIZE_NOT},
        {"gpt_bigcode", DT_BF16, QUANTIZE_INT8},
        {"gpt_bigcode-heads", DT_F32, QUANTIZE_NOT},
        {"gpt_neo", DT_BF16, QUANTIZE_NOT},
        {"granite_swa", DT_F32, QUANTIZE_NOT},
        {"mpt", DT_F32, QUANTIZE_NOT},
        {"nanochat", DT_BF16, QUANTIZE_NOT},
    };
    compare_all(cases, sizeof cases / sizeof *cases);
}

/* Families whose layers are made otherwise than llama's. */
static void other_layers(void **state)
{
    (void)state;
    static const struct layers_case cases[] = {
        {"gemma2", DT_F32, QUANTIZE_NOT},        {"gemma2", DT_BF16, QUANTIZE_NOT},
        {"gemma2", DT_F32, QUANTIZE_INT8},       {"gemma2", DT_F32, QUANTIZE_INT4},
        {"gpt_neox", DT_F32, QUANTIZE_NOT},      {"gpt_neox", DT_BF16, QUANTIZE_NOT},
        {"gpt_neox", DT_BF16, QUANTIZE_INT8},    {"gpt_neox-seq", DT_F32, QUANTIZE_INT4},
        {"granite", DT_F32, QUANTIZE_NOT},       {"granite", DT_BF16, QUANTIZE_INT8},
        {"phi", DT_F32, QUANTIZE_NOT},           {"phi", DT_BF16, QUANTIZE_NOT},
        {"phi3", DT_F32, QUANTIZE_NOT},          {"phi3", DT_BF16, QUANTIZE_INT8},
        {"phi3-longrope", DT_F32, QUANTIZE_NOT}, {"phi3-longrope", DT_BF16, QUANTIZE_NOT},
    };
    compare_all(cases, sizeof cases / sizeof *cases);
}

/* One array a layer in the cache; swapped blocks have it too. */
static void latent_attention(void **state)
{
    (void)state;
    static const struct layers_case cases[] = {
        {"deepseek_v2", DT_F32, QUANTIZE_NOT},
        {"deepseek_v2", DT_BF16, QUANTIZE_INT8},
        {"deepseek_v2-group", DT_BF16, QUANTIZE_NOT},
        {"deepseek_v2-group", DT_F32, QUANTIZE_INT4},
        {"deepseek_v3", DT_F32, QUANTIZE_NOT},
        {"deepseek_v3", DT_F32, QUANTIZE_INT8},
        {"glm4_moe_lite", DT_F32, QUANTIZE_NOT},
        {"minicpm3", DT_F32, QUANTIZE_NOT},
        {"youtu", DT_BF16, QUANTIZE_NOT},
    };
    compare_all(cases, sizeof cases / sizeof *cases);
}

static void mixtures_of_experts(void **state)
{
    (void)state;
    static const struct layers_case cases[] = {
        {"qwen3_moe", DT_F32, QUANTIZE_NOT},
        {"qwen3_moe", DT_BF16, QUANTIZE_INT8},
        {"qwen3_moe", DT_F32, QUANTIZE_INT4}, /* gate and up in 4 bits, down int8 */
        {"mixtral", DT_BF16, QUANTIZE_NOT},
        {"olmoe", DT_F32, QUANTIZE_NOT},
        {"olmoe", DT_F32, QUANTIZE_INT4},
        {"qwen2_moe", DT_F32, QUANTIZE_NOT},
        {"qwen2_moe", DT_BF16, QUANTIZE_NOT},
        {"qwen2_moe", DT_BF16, QUANTIZE_INT8},
        {"qwen2_moe", DT_F32, QUANTIZE_INT4},
        {"granitemoe", DT_F32, QUANTIZE_NOT},
        {"granitemoe", DT_BF16, QUANTIZE_INT8},
        {"gpt_oss", DT_F32, QUANTIZE_NOT},
        {"gpt_oss", DT_BF16, QUANTIZE_INT8},
        {"gpt_oss-mxfp4", DT_BF16, QUANTIZE_NOT},
        {"gpt_oss-mxfp4", DT_F32, QUANTIZE_INT4},
        {"hunyuan_v1_moe", DT_F32, QUANTIZE_NOT},
        {"exaone_moe", DT_F32, QUANTIZE_NOT},
        {"granitemoe_swa", DT_F32, QUANTIZE_NOT},
        {"hy_v3", DT_BF16, QUANTIZE_NOT},
        {"mellum", DT_F32, QUANTIZE_NOT},
        {"solar_open", DT_F32, QUANTIZE_NOT},
        {"nemotron_h-moe", DT_F32, QUANTIZE_NOT}, /* no gate */
        {"nemotron_h-moe", DT_BF16, QUANTIZE_NOT},
        {"nemotron_h-moe", DT_BF16, QUANTIZE_INT8},
        {"nemotron_h-moe", DT_F32, QUANTIZE_INT4},
        {"nemotron_h-latent", DT_F32, QUANTIZE_NOT}, /* between two products */
        {"nemotron_h-latent", DT_BF16, QUANTIZE_INT8},
        {"cohere2_moe", DT_F32, QUANTIZE_NOT}, /* beside attention */
        {"cohere2_moe", DT_BF16, QUANTIZE_INT8},
        {"cohere2_moe-sigmoid", DT_BF16, QUANTIZE_NOT},
        {"mimo_v2_flash", DT_F32, QUANTIZE_NOT}, /* heads of V filled up with zeros */
        {"mimo_v2_flash", DT_BF16, QUANTIZE_INT8},
        {"mimo_v2_flash", DT_F32, QUANTIZE_INT4},
    };
    compare_all(cases, sizeof cases / sizeof *cases);
}

/* Gates, chunks, weighed inputs, sums of experts apart, biased and mixed routing. */
static void other_attention_and_routing(void **state)
{
    (void)state;
    static const struct layers_case cases[] = {
        {"afmoe", DT_F32, QUANTIZE_NOT},         {"afmoe", DT_BF16, QUANTIZE_INT8},
        {"llama4", DT_F32, QUANTIZE_NOT},        {"llama4", DT_BF16, QUANTIZE_NOT},
        {"llama4", DT_BF16, QUANTIZE_INT8},      {"ernie4_5_moe", DT_F32, QUANTIZE_NOT},
        {"ernie4_5_moe", DT_F32, QUANTIZE_INT4}, {"phimoe", DT_F32, QUANTIZE_NOT},
        {"phimoe", DT_BF16, QUANTIZE_INT8},      {"flex_olmo", DT_BF16, QUANTIZE_NOT},
    };
    compare_all(cases, sizeof cases / sizeof *cases);
}

/* Convolutions, delta nets, Mamba: alone, beside attention, and in the same layer. */
static void layers_with_states(void **state)
{
    (void)state;
    static const struct layers_case cases[] = {
        {"lfm2", DT_F32, QUANTIZE_NOT},
        {"lfm2-bias", DT_BF16, QUANTIZE_NOT},
        {"lfm2", DT_BF16, QUANTIZE_INT8},
        {"lfm2_moe", DT_F32, QUANTIZE_NOT},
        {"qwen3_next", DT_F32, QUANTIZE_NOT},
        {"qwen3_next", DT_BF16, QUANTIZE_INT8},
        {"qwen3_5", DT_F32, QUANTIZE_NOT},
        {"qwen3_5_moe", DT_F32, QUANTIZE_NOT},
        {"mamba", DT_F32, QUANTIZE_NOT},
        {"falcon_mamba", DT_BF16, QUANTIZE_NOT},
        {"mamba2", DT_F32, QUANTIZE_NOT},
        {"mamba2", DT_F32, QUANTIZE_INT8},
        {"mamba2-bias", DT_BF16, QUANTIZE_NOT},
        {"bamba", DT_F32, QUANTIZE_NOT},
        {"falcon_h1", DT_F32, QUANTIZE_NOT},
        {"falcon_h1-norm", DT_BF16, QUANTIZE_INT8},
        {"jamba", DT_F32, QUANTIZE_NOT},
        {"jamba", DT_F32, QUANTIZE_INT4},
        {"nemotron_h", DT_F32, QUANTIZE_NOT},
        {"granitemoehybrid", DT_F32, QUANTIZE_NOT},
        {"granitemoehybrid-dense", DT_BF16, QUANTIZE_NOT},
        {"minimax", DT_F32, QUANTIZE_NOT},
        {"minimax", DT_BF16, QUANTIZE_INT8},
        {"olmo_hybrid", DT_F32, QUANTIZE_NOT},
        {"olmo_hybrid-rope", DT_BF16, QUANTIZE_INT8},
    };
    compare_all(cases, sizeof cases / sizeof *cases);
}

/* Layers with heads of another size and number, K and V of another layer, inputs of the token. */
static void layers_of_two_kinds(void **state)
{
    (void)state;
    static const struct layers_case cases[] = {
        {"gemma4", DT_F32, QUANTIZE_NOT},        {"gemma4", DT_BF16, QUANTIZE_NOT},
        {"gemma4", DT_BF16, QUANTIZE_INT8},      {"gemma4-dense", DT_F32, QUANTIZE_NOT},
        {"gemma4-dense", DT_F32, QUANTIZE_INT4}, {"gemma4-moe", DT_F32, QUANTIZE_NOT},
        {"gemma4-moe", DT_BF16, QUANTIZE_INT8},  {"gemma4_unified", DT_BF16, QUANTIZE_NOT},
    };
    compare_all(cases, sizeof cases / sizeof *cases);
}

/* Blocks whose layers have other sizes go to host memory and come back. */
static void blocks_of_two_sizes_are_swapped(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "gemma4-dense");
    struct core_config c = config_of(g.dir);
    c.worker.max_model_len = 144;
    on_device(&c);
    c.worker.n_block = 12;
    c.worker.swap_bytes = 1 << 20;
    c.policy.preemption = PREEMPT_SWAP;
    compare(c, &g, 2 * g.n, "blocks of two sizes");
}

/* A device multiplies float16 by float16, and 4 bits by 16, where the CPU has float32 and int8. */
static void inputs_of_16_bits(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        enum dtype dtype;
        enum quantization quantization;
        float margin;
    } cases[] = {
        {"qwen3-v5cfg-f16", DT_F16, QUANTIZE_NOT, 0.05f},
        {"llama", DT_F16, QUANTIZE_NOT, 0.05f},
        {"qwen3-v5cfg-f16", DT_BF16, QUANTIZE_INT4, 0.6f},
        {"llama", DT_F16, QUANTIZE_INT4, 0.6f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct golden g;
        golden_get(&g, cases[i].model);
        struct core_config c = config_of(g.dir);
        c.worker.dtype = cases[i].dtype;
        c.worker.quantization = cases[i].quantization;
        c.worker.max_model_len = 144;
        on_device(&c);
        const uint64_t n_half = count_of("fake_n_half");
        near_compare(&c, &g, g.n, cases[i].model, cases[i].margin);
        assert_int_equal(count_of("fake_n_half") > n_half, cases[i].quantization == QUANTIZE_INT4);
    }
}

/* Every kind of tests/data/quantized: act-order, compressed-tensors, and what becomes int8. */
static void every_kind_of_integers(void **state)
{
    (void)state;
    static const char *const names[] = {"gptq-4",        "gptq-4-asym",    "gptq-4-v2-row",
                                        "gptq-4-act",    "gptq-4-act-one", "gptq-8-act",
                                        "awq-4",         "packed-4",       "packed-4-asym",
                                        "packed-8-row",  "int8",           "experts-gptq-4-act",
                                        "experts-awq-4", "packed-embed",   "int8-tied"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const uint64_t n_half = count_of("fake_n_half");
        struct golden g;
        near_quantized(&g, names[i]);
        struct core_config c = config_of(g.dir);
        on_device(&c);
        c.worker.max_model_len = 64;
        near_compare(&c, &g, 2 * g.n, names[i],
                     0.02f); /* but for the logits' matrix the CPU's bits */
        assert_int_equal(count_of("fake_n_half"), n_half);
        c.worker.dtype = DT_BF16;
        /* in turn, since these take as long as all else here, and where the embedding is tied */
        if (i % 4 == 0 || strstr(names[i], "tied"))
            near_compare(&c, &g, g.n, names[i], 0.3f);
    }
}

/* What starting and ending it logs. */
static void start_log(struct buf *out, const struct core_config *c)
{
    FILE *log = tmpfile();
    const int saved = dup(STDERR_FILENO);
    assert_non_null(log);
    dup2(fileno(log), STDERR_FILENO);
    log_setup("test", LOG_INFO, false);
    open_core(c);
    core_free(engine.core);
    log_setup("test", LOG_ERROR, false);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(log);
    buf_reset(out);
    for (int b; (b = fgetc(log)) != EOF;)
        buf_add_char(out, (char)b);
    fclose(log);
}

/* A checkpoint in fp8 that left some matrices as they were: so they stay, but for what is one
 * matrix with others. The CPU has floats of all. */
static void fp8_and_floats(void **state)
{
    (void)state;
    struct golden g;
    struct buf text = BUF_INIT;
    near_quantized(&g, "fp8-some");
    struct core_config c = config_of(g.dir);
    c.worker.max_model_len = 64;
    c.worker.dtype = DT_BF16;
    on_device(&c);
    near_compare(&c, &g, g.n, "fp8-some", 0.3f);
    start_log(&text, &c);
    assert_non_null(strstr(buf_str(&text),
                           "fp8: 4 matrices as the checkpoint has them, 0 with their "
                           "scales of blocks; made e4m3 with a scale for each output: "
                           "0 of other blocks, 1 of floats; 3 stay floats (BF16)"));
    assert_non_null(
        strstr(buf_str(&text), "inputs of 2 matrices are multiplied in the checkpoint's"));
    assert_non_null(strstr(buf_str(&text), "input_scale of 2 matrices is not used: others of"));
    *c.worker.device = *c.worker.device_library = '\0';
    start_log(&text, &c);
    assert_non_null(strstr(buf_str(&text), "become floats (BF16)"));
    assert_non_null(strstr(buf_str(&text), "input_scale of 4 matrices is not used: activations"));
    buf_release(&text);
}

/* Checkpoints with scales of 128 x 128 blocks are multiplied as they are: blocks that are 2^15
 * times larger than their neighbours take nothing from these. All seven matrices; of the experts'
 * model q, k and v cannot be one matrix so, since k ends within a turn of 16 outputs. */
static void fp8_with_scales_of_blocks(void **state)
{
    static const struct {
        const char *name, *says;
    } cases[] = {
        {"fp8-block-128",
         "7 matrices as the checkpoint has them, 7 with their scales of blocks; made "
         "e4m3 with a scale for each output: 0 of other blocks, 0 of floats; 1 stay floats"},
        {"experts-fp8-block-128",
         "10 matrices as the checkpoint has them, 10 with their scales of blocks; made "
         "e4m3 with a scale for each output: 3 of other blocks, 0 of floats; 2 stay floats"},
    };
    const uint32_t most = device_max_tokens;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct golden g;
        struct buf text = BUF_INIT;
        near_quantized(&g, cases[i].name);
        struct core_config c = config_of(g.dir);
        c.worker.max_model_len = 64;
        c.worker.dtype = i ? DT_F16 : DT_BF16;
        on_device(&c);
        device_max_tokens = 3; /* logprobs of the prompts are what is compared */
        near_compare(&c, &g, 5, cases[i].name, 0.3f);
        device_max_tokens = most;
        start_log(&text, &c);
        if (!strstr(buf_str(&text), cases[i].says))
            fail_msg("%s: the log says\n%s", cases[i].name, buf_str(&text));
        buf_release(&text);
    }
}

/* Lines of the start-up log about 4-bit weights: each of these. */
static void check_log(const struct core_config *c, const char *const *lines, size_t n)
{
    struct buf text = BUF_INIT;
    start_log(&text, c);
    for (size_t i = 0; i < n && lines[i]; i++)
        if (!strstr(buf_str(&text), lines[i]))
            fail_msg("the log does not say \"%s\":\n%s", lines[i], buf_str(&text));
    buf_release(&text);
}

/* Beside float32 of the dequantized weights on the CPU. In act-order each expert has an order of
 * its own; in experts-mixed one has none, and one matrix of one expert was left as floats. */
static void experts_of_4_bits(void **state)
{
    static const struct {
        const char *name, *lines[3];
    } cases[] = {
        {"experts-gptq-4-act",
         {"0 of 64, 14 of 32 (14 in act-order); 0 as int8; 1 stay floats (BF16)"}},
        {"experts-awq-4", {"0 of 64, 14 of 32 (0 in act-order); 0 as int8; 1 stay floats (BF16)"}},
        {"experts-mixed",
         {"0 of 64, 8 of 32 (8 in act-order); 6 as int8; 1 stay floats (BF16)",
          "int4: 6 as int8: the checkpoint left them, or a part of them, as floats"}},
        {"experts-shared",
         {"0 of 64, 16 of 32 (16 in act-order); 0 as int8; 1 stay floats (BF16)"}},
        {"gptq-4-act",
         {"int4: 2 as int8: their parts (q, k and v; gate and up) have different act-orders"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder twin;
        struct golden g;
        near_quantized(&g, cases[i].name);
        plain_twin(&twin, g.dir);
        struct core_config c = config_of(g.dir);
        on_device(&c);
        c.worker.max_model_len = 64;
        c.worker.dtype = DT_BF16;
        const struct near_case near = {cases[i].name, 0.1f, twin.path};
        const uint64_t n_half = count_of("fake_n_half");
        near_compare_case(&c, &g, g.n, &near);
        assert_true(count_of("fake_n_half") > n_half);
        check_log(&c, cases[i].lines, 3);
        folder_release(&twin);
    }
}

/* Frequencies that depend on how long the prompt is: no table of positions serves them. */
static void dynamic_rope_beyond_the_trained_length(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "llama-rope-dynamic");
    struct core_config c = config_of(g.dir);
    c.worker.max_model_len = 160;
    on_device(&c);
    compare(c, &g, g.n, "dynamic rope");
}

/* Draft tokens of a draft model on the device, by lookup, and no speculation: the same tokens. */
static void speculation_changes_nothing(void **state)
{
    (void)state;
    struct golden g, draft;
    golden_get(&g, "llama");
    golden_get(&draft, "llama-draft");
    for (uint32_t i = 0; i < 2; i++) {
        struct core_config c = config_of(g.dir);
        struct speculation *s = &c.worker.speculation;
        c.worker.max_model_len = 144;
        *s = (struct speculation){
            .method = i ? SPECULATE_DRAFT : SPECULATE_NGRAM,
            .n_draft_token = 3,
            .ngram_min = 1,
            .ngram_max = 3,
        };
        if (i)
            snprintf(s->draft_dir, sizeof s->draft_dir, "%s", draft.dir);
        c.worker.swap_bytes = i ? 1 << 20 : 0;
        c.policy.preemption = i ? PREEMPT_SWAP : PREEMPT_AUTO;
        on_device(&c);
        c.worker.n_block = i ? 12 : 64; /* 12: some are swapped, the draft's blocks too */
        compare(c, &g, 2 * g.n, i ? "draft" : "ngram");
    }
}

/* What a checkpoint has as integers stays as it is, as on the CPU. */
static void quantized_checkpoints(void **state)
{
    (void)state;
    static const char *const models[] = {"llama-gptq", "llama-gptq-act8", "qwen2-awq"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        struct golden g;
        golden_get(&g, models[i]);
        struct core_config c = config_of(g.dir);
        c.worker.max_model_len = 144;
        on_device(&c);
        near_compare(&c, &g, g.n, models[i], 0.1f);
    }
}

static void graphs_change_nothing(void **state)
{
    (void)state;
    static const struct {
        uint32_t sizes[4], n;
        bool eager;
    } cases[] = {{{0}, 0, false}, {{0}, 0, true}, {{3}, 1, false}, {{2, 5, 7}, 3, false}};
    struct golden g;
    golden_get(&g, "llama");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct core_config c = config_of(g.dir);
        c.worker.max_model_len = 144;
        c.worker.enforce_eager = cases[i].eager;
        c.worker.n_graph_size = cases[i].n;
        memcpy(c.worker.graph_sizes, cases[i].sizes, sizeof cases[i].sizes);
        on_device(&c);
        const uint64_t before = n_launch();
        compare(c, &g, 2 * g.n, "graphs");
        assert_int_equal(n_launch() > before, !cases[i].eager);
    }
}

/* A pool that never suffices: blocks go to host memory and come back, or are computed again. */
static void preemption_changes_nothing(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "llama");
    for (uint32_t i = 0; i < 2; i++) {
        struct core_config c = config_of(g.dir);
        c.worker.max_model_len = 144;
        on_device(&c);
        c.worker.n_block = 12;
        c.worker.swap_bytes = i ? 1 << 20 : 0;
        c.policy.preemption = i ? PREEMPT_SWAP : PREEMPT_RECOMPUTE;
        compare(c, &g, 2 * g.n, i ? "swap" : "recompute");
    }
}

/* States of preempted requests stay or are computed again, and snapshots of prompts that come twice
 * are begun with. */
static void states_of_preempted_requests(void **state)
{
    (void)state;
    static const char *const models[] = {"lfm2", "falcon_h1", "mamba2", "qwen3_next"};
    const uint32_t most = device_max_tokens;
    struct scheduler_stats sum = {0};
    device_max_tokens = 24;
    for (uint32_t i = 0; i < 2 * sizeof models / sizeof *models; i++) {
        struct golden g;
        golden_get(&g, models[i / 2]);
        g.n = 4;
        struct core_config c = config_of(g.dir);
        c.worker.max_model_len = 144;
        c.worker.max_num_batched_tokens = 33;
        on_device(&c);
        c.prefix_cache = true;
        c.worker.n_block = 14;
        c.worker.swap_bytes = i % 2 ? 1 << 20 : 0;
        c.policy.preemption = i % 2 ? PREEMPT_SWAP : PREEMPT_RECOMPUTE;
        compare(c, &g, 5 * g.n, models[i / 2]);
        sum.n_preemption += device_stats.n_preemption;
        sum.n_swap_in += device_stats.n_swap_in;
        sum.prefix_hits += device_stats.prefix_hits;
    }
    device_max_tokens = most;
    assert_true(sum.n_preemption > 0 && sum.n_swap_in > 0 && sum.prefix_hits > 0);
}

/* The pool is what is left of the card; too little is said with numbers. */
static void memory_is_measured(void **state)
{
    (void)state;
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    golden_get(&g, "llama");
    struct core_config c = config_of(g.dir);
    on_device(&c);
    c.worker.n_block = 0;
    assert_int_equal(setenv("QUIRE_FAKE_BYTES", "134217728", 1), 0);
    open_core(&c);
    const struct core_info *info = core_info(engine.core);
    const uint64_t kv = (uint64_t)info->n_block * info->shape.kv_block_bytes;
    assert_true(kv < 0.9 * 134217728 && kv > 0.3 * 134217728);
    core_free(engine.core);
    assert_int_equal(setenv("QUIRE_FAKE_BYTES", "33554432", 1), 0);
    assert_ok(core_new(&engine.core, &c, bits_sink, &engine, &e), &e);
    while (core_state(engine.core, NULL) == CORE_LOADING)
        run_once(&e);
    assert_int_equal(core_state(engine.core, NULL), CORE_FAILED);
    q_err_reset(&e);
    assert_fails(core_step(engine.core, &e), Q_NO_MEMORY, "of 33554432 are free", &e);
    core_free(engine.core);
    assert_int_equal(unsetenv("QUIRE_FAKE_BYTES"), 0);
}

/* A length that is shortened to the blocks that there are (--max-model-len auto). */
static void a_length_that_fits(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "llama");
    struct core_config c = config_of(g.dir);
    on_device(&c);
    c.worker.fit_length = true;
    c.worker.n_block = 9;
    c.worker.max_num_seqs = 4;
    compare(c, &g, g.n, "a length that fits");
    open_core(&c);
    assert_int_equal(core_info(engine.core)->limits.max_model_len, 144);
    core_free(engine.core);
}

/* Too little memory: the start ends with an error that names the part and its size. */
static void every_allocation_may_be_refused(void **state)
{
    (void)state;
    struct golden g, draft;
    struct q_err e = Q_ERR_INIT;
    uint32_t *refused_in = device_symbol("/tests/libquire-fake.so", "fake_refused_in"), n = 0;
    golden_get(&g, "llama-bias-tied");
    golden_get(&draft, "llama-draft");
    struct core_config c = config_of(g.dir);
    on_device(&c);
    c.worker.max_model_len = 64;
    c.worker.swap_bytes = 1 << 20;
    c.worker.speculation = (struct speculation){.method = SPECULATE_DRAFT, .n_draft_token = 2};
    snprintf(c.worker.speculation.draft_dir, PATH_MAX, "%s", draft.dir);
    for (enum core_state now = CORE_FAILED; now == CORE_FAILED; n++) {
        *refused_in = n + 1;
        assert_ok(core_new(&engine.core, &c, bits_sink, &engine, &e), &e);
        while (core_state(engine.core, NULL) == CORE_LOADING)
            run_once(&e);
        now = core_state(engine.core, NULL);
        q_err_reset(&e);
        if (now == CORE_FAILED)
            assert_fails(core_step(engine.core, &e), Q_NO_MEMORY, " bytes", &e);
        core_free(engine.core);
    }
    *refused_in = 0;
    assert_true(n > 25);
}

static void check_refused(const char *model, const char *device, const char *library,
                          const char *why)
{
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    golden_get(&g, model);
    struct core_config c = config_of(g.dir);
    on_device(&c);
    snprintf(c.worker.device, sizeof c.worker.device, "%s", device);
    if (library)
        snprintf(c.worker.device_library, sizeof c.worker.device_library, "%s", library);
    assert_ok(core_new(&engine.core, &c, bits_sink, &engine, &e), &e);
    while (core_state(engine.core, NULL) == CORE_LOADING)
        run_once(&e);
    assert_int_equal(core_state(engine.core, NULL), CORE_FAILED);
    q_err_reset(&e);
    assert_int_not_equal(core_step(engine.core, &e), Q_OK);
    if (!strstr(e.message, why))
        fail_msg("\"%s\" does not say \"%s\"", e.message, why);
    core_free(engine.core);
}

static void what_is_not_there_is_refused(void **state)
{
    (void)state;
    check_refused("llama", "cuda:1", NULL, "device 1, there is 1");
    check_refused("llama", "gpu", NULL, "expected auto, cpu, cuda or cuda:N");
    check_refused("llama", "cuda:x", NULL, "cuda:N");
    check_refused("llama", "cuda", "/nowhere/libquire-cuda.so", "/nowhere/libquire-cuda.so");
    check_refused("llama", "cuda", "libm.so.6", "quire_device_7");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_model_gives_the_bits_of_the_cpu),
        cmocka_unit_test(every_dtype_and_quantization),
        cmocka_unit_test(other_layers),
        cmocka_unit_test(dense_families),
        cmocka_unit_test(latent_attention),
        cmocka_unit_test(more_dense_families),
        cmocka_unit_test(mixtures_of_experts),
        cmocka_unit_test(other_attention_and_routing),
        cmocka_unit_test(layers_of_two_kinds),
        cmocka_unit_test(blocks_of_two_sizes_are_swapped),
        cmocka_unit_test(layers_with_states),
        cmocka_unit_test(inputs_of_16_bits),
        cmocka_unit_test(every_kind_of_integers),
        cmocka_unit_test(fp8_and_floats),
        cmocka_unit_test(fp8_with_scales_of_blocks),
        cmocka_unit_test(experts_of_4_bits),
        cmocka_unit_test(quantized_checkpoints),
        cmocka_unit_test(the_host_samples),
        cmocka_unit_test(dynamic_rope_beyond_the_trained_length),
        cmocka_unit_test(speculation_changes_nothing),
        cmocka_unit_test(graphs_change_nothing),
        cmocka_unit_test(preemption_changes_nothing),
        cmocka_unit_test(states_of_preempted_requests),
        cmocka_unit_test(memory_is_measured),
        cmocka_unit_test(a_length_that_fits),
        cmocka_unit_test(every_allocation_may_be_refused),
        cmocka_unit_test(what_is_not_there_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
