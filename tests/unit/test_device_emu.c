/* SPDX-License-Identifier: Apache-2.0 */
/* device_emu: the engine over the CUDA kernels as they are, on the host emulation: worker, graphs,
 * sampling, KV pool and swap space give the tokens of the CPU. The kernels add in another order
 * than the CPU, so where two tokens are as good as equally likely either may come; everywhere else
 * they must agree. One mistake in a launch's arguments, a layout or a graph shows here. */
#include <stdatomic.h>
#include "device_near.h"
#include "fake_cuda.h"
#include "fp8_inputs.h"

static struct bits_answer expected[BITS_REQUESTS];

static void on_device(struct core_config *c)
{
    device_choose(c, "/tests/libquire-fake-cuda.so");
    c->worker.max_model_len = 144;
    c->worker.max_num_seqs = 4;
    c->worker.max_num_batched_tokens = 40;
}

/* The same requests on both. */
static void compare(struct core_config c, const struct golden *g, uint32_t n, const char *what,
                    float margin)
{
    struct golden short_ones = *g; /* emulation takes its time */
    const uint32_t most = c.worker.max_model_len == 64 ? 4 : 3;
    short_ones.n = g->n < most ? g->n : most;
    near_compare(&c, &short_ones, n, what, margin);
}

static void goldens_of_float32(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "llama");
    struct core_config c = config_of(g.dir);
    on_device(&c);
    open_core(&c);
    const uint32_t n = 3;
    for (uint32_t i = 0; i < n; i++)
        submit_prompt(i, &g.prompts[i], 0);
    finish_all(n);
    for (uint32_t i = 0; i < n; i++)
        check_answer(i, &g.prompts[i], "llama");
    core_free(engine.core);
}

static void every_kind_of_request(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "qwen3");
    struct core_config c = config_of(g.dir);
    on_device(&c);
    compare(c, &g, 9, "every kind", 1e-3f);
}

struct emu_case {
    const char *model;
    enum dtype dtype, kv;
    enum quantization quantization;
    float margin;
};

static const struct emu_case dtypes[] = {
    {"qwen3", DT_BF16, DT_BF16, QUANTIZE_NOT, 0.05f},
    {"llama", DT_F16, DT_I8, QUANTIZE_NOT, 0.05f},
    {"qwen2", DT_BF16, DT_I8, QUANTIZE_INT8, 0.3f},
    {"mistral", DT_BF16, DT_BF16, QUANTIZE_INT4, 0.3f},
    {"llama", DT_BF16, DT_BF16, QUANTIZE_FP8, 0.6f},
    {"qwen3", DT_BF16, DT_F8_E4M3, QUANTIZE_NOT, 0.6f},
    {"qwen3_moe", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f}, /* bf16 may tip a choice */
    {"qwen2_moe", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"gemma2", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"gemma2", DT_BF16, DT_BF16, QUANTIZE_NOT, 0.05f},
    {"gpt_neox", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"gpt_neox", DT_BF16, DT_BF16, QUANTIZE_INT8, 0.3f},
    {"gpt_neox-seq", DT_BF16, DT_BF16, QUANTIZE_NOT, 0.05f},
    {"granite", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"phi", DT_BF16, DT_BF16, QUANTIZE_NOT, 0.05f},
    {"phi3", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"phi3-longrope", DT_BF16, DT_BF16, QUANTIZE_NOT, 0.05f},
    {"mixtral", DT_BF16, DT_BF16, QUANTIZE_NOT, 0.05f},
    {"mixtral", DT_BF16, DT_BF16, QUANTIZE_INT8, 0.3f},
    {"granitemoe", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"gpt_oss", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"gpt_oss-mxfp4", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"gpt_oss-mxfp4", DT_BF16, DT_BF16, QUANTIZE_NOT, 0.1f},
    {"bloom", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"bloom", DT_BF16, DT_BF16, QUANTIZE_INT8, 0.3f},
    {"cohere", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"exaone4", DT_BF16, DT_BF16, QUANTIZE_NOT, 0.05f},
    {"gemma3", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"gpt2-noprefix", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"olmo", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"olmo2", DT_F16, DT_BF16, QUANTIZE_NOT, 0.05f},
    {"stablelm-parallel", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"deepseek_v2", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"deepseek_v2-group", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"deepseek_v3", DT_F32, DT_BF16, QUANTIZE_NOT, 0.05f},
    {"afmoe", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"llama4", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"llama4", DT_BF16, DT_BF16, QUANTIZE_NOT, 0.1f},
    {"ernie4_5_moe", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"phimoe", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"dbrx", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"cohere2_moe", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"minimax", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"mimo_v2_flash", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"olmo_hybrid", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"gemma4_unified", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"flex_olmo", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"gemma4", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"gemma4-dense", DT_BF16, DT_BF16, QUANTIZE_NOT, 0.05f},
    {"gemma4-moe", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"lfm2", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"lfm2-bias", DT_BF16, DT_BF16, QUANTIZE_NOT, 0.05f},
    {"qwen3_next", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"qwen3_5", DT_BF16, DT_BF16, QUANTIZE_NOT, 0.05f},
    {"falcon_mamba", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"mamba2", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"mamba2-bias", DT_BF16, DT_BF16, QUANTIZE_INT8, 0.3f},
    {"falcon_h1", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"jamba", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"nemotron_h-moe", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"nemotron_h-latent", DT_F32, DT_F32, QUANTIZE_NOT, 1e-3f},
    {"llama-gptq", DT_F32, DT_F32, QUANTIZE_NOT, 0.3f},
    {"llama-gptq-act8", DT_F32, DT_F32, QUANTIZE_NOT, 0.3f},
    {"llama-torchao-int8-int4", DT_F32, DT_F32, QUANTIZE_NOT, 0.3f},
};
#define N_DTYPE (sizeof dtypes / sizeof *dtypes)

static void compare_case(const struct emu_case *what, const struct golden *g, struct core_config *c)
{
    on_device(c);
    c->worker.dtype = what->dtype;
    compare(*c, g, 3, what->model, what->margin);
}

static void dtype_and_quantization(void **state)
{
    const struct emu_case *what = *state;
    struct golden g;
    golden_get(&g, what->model);
    struct core_config c = config_of(g.dir);
    c.worker.kv_given = true;
    c.worker.kv_dtype = what->kv;
    c.worker.quantization = what->quantization;
    compare_case(what, &g, &c);
}

/* What checkpoints hold in few bits, by the CUDA kernels: in 16 bits, in act-order, in fp8 as it is
 * and packed anew (which is made floats on the CPU). */
static const struct emu_case few_bits[] = {
    {.model = "gptq-4-act-one", .dtype = DT_BF16, .margin = 0.3f},
    {.model = "packed-4-asym", .dtype = DT_BF16, .margin = 0.3f},
    {.model = "packed-4", .dtype = DT_F16, .margin = 0.3f},
    {.model = "int8", .dtype = DT_BF16, .margin = 0.3f},
    {.model = "fp8", .dtype = DT_BF16, .margin = 0.3f},
    {.model = "fp8-block", .dtype = DT_F16, .margin = 0.3f},
    {.model = "experts-gptq-4-act", .dtype = DT_BF16, .margin = 0.3f},
    {.model = "experts-awq-4", .dtype = DT_F16, .margin = 0.3f},
    {.model = "torchao-intx-asym", .dtype = DT_BF16, .margin = 0.3f},
    {.model = "torchao-tiles", .dtype = DT_F32, .margin = 1e-3f},
    {.model = "torchao-mixed", .dtype = DT_BF16, .margin = 0.3f},
};
#define N_FEW_BITS (sizeof few_bits / sizeof *few_bits)

static void checkpoint_in_few_bits(void **state)
{
    const struct emu_case *what = *state;
    struct golden g;
    near_quantized(&g, what->model);
    struct core_config c = config_of(g.dir);
    c.worker.max_model_len = 64;
    compare_case(what, &g, &c);
}

/* Some blocks are 2^15 times larger than their neighbours (make.py there). */
static void scales_of_blocks(void **state)
{
    static const char *const names[] = {"fp8-block-128", "experts-fp8-block-128"};
    const uint32_t most = device_max_tokens;
    (void)state;
    device_max_tokens = 2; /* logprobs of a prompt are what is compared */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct golden g;
        near_quantized(&g, names[i]);
        struct core_config c = config_of(g.dir);
        on_device(&c);
        c.worker.dtype = DT_BF16;
        c.worker.max_model_len = 64;
        near_compare(&c, &g, 5, names[i], 0.3f);
    }
    device_max_tokens = most;
}

/* Inputs in the checkpoint's scales, by kernels that norm and quantize in one and by those that
 * quantize alone, of many rows and of one. */
static void fp8_inputs_in_the_scales_of_the_checkpoint(void **state)
{
    static const struct fp8_inputs in = {
        .scales = {0.004f, 0.002f, 0.003f, 0.0008f, 0.003f, 0.005f, 0.0002f},
    };
    static struct fp8_model m;
    struct golden g;
    struct folder f;
    (void)state;
    fp8_model_read(&m);
    near_quantized(&g, "fp8");
    fp8_folder(&f, &in);
    struct core_config c = config_of(f.path);
    on_device(&c);
    c.worker.max_model_len = 64;
    open_core(&c);
    const double dynamic = fp8_worst_of(&m, &g, g.n);
    fp8_set(m.scales, in.scales);
    const double given = fp8_worst_of(&m, &g, g.n);
    core_free(engine.core);
    print_message("%g; were they dynamic %g\n", given, dynamic);
    assert_true(given < 0.02 && dynamic > 0.05);
    folder_release(&f);
}

/* All experts are taken, so that no rounding tips a choice. */
static void experts_in_fp8(void **state)
{
    static const char used[] = "\"num_experts_per_tok\": 2";
    (void)state;
    struct q_err e = Q_ERR_INIT;
    struct buf text = BUF_INIT;
    struct golden g;
    struct folder f;
    golden_get(&g, "mixtral");
    folder_init(&f);
    folder_copy(&f, g.dir, "model.safetensors");
    snprintf(g.dir + strlen(g.dir), sizeof g.dir - strlen(g.dir), "/config.json");
    assert_ok(file_read(&text, g.dir, 1 << 16, &e), &e);
    char *at = strstr(text.data, used);
    assert_non_null(at);
    at[sizeof used - 2] = '4';
    folder_write(&f, "config.json", text.data, text.len);
    snprintf(g.dir, sizeof g.dir, "%s", f.path);
    struct core_config c = config_of(g.dir);
    c.worker.dtype = DT_BF16;
    c.worker.quantization = QUANTIZE_FP8;
    on_device(&c);
    compare(c, &g, 3, "experts in fp8", 0.6f);
    buf_release(&text);
    folder_release(&f);
}

/* --deterministic: one sequence at a time without graphs, and all together with them, give the same
 * bits. */
static void the_same_bits_alone_and_together(void **state)
{
    (void)state;
    static const struct {
        const char *model;
        enum dtype dtype;
        enum quantization quantization;
    } cases[] = {
        {"qwen3", DT_BF16, QUANTIZE_NOT},
        {"qwen3", DT_F16, QUANTIZE_INT4},
        {"falcon_h1", DT_BF16, QUANTIZE_NOT}, /* states go through other chunks */
        {"qwen3_next", DT_F32, QUANTIZE_NOT},
    };
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        struct golden g;
        golden_get(&g, cases[n].model);
        g.n = 3;
        struct core_config c = config_of(g.dir);
        on_device(&c);
        c.worker.dtype = cases[n].dtype;
        c.worker.quantization = cases[n].quantization;
        c.worker.deterministic = true;
        device_answers(&c, &g, 3);
        memcpy(expected, answers, sizeof expected);
        c.worker.max_num_seqs = 1;
        c.worker.max_num_batched_tokens = 16;
        c.worker.enforce_eager = true;
        device_answers(&c, &g, 3);
        for (uint32_t i = 0; i < 3; i++)
            if (memcmp(&expected[i], &answers[i], sizeof expected[i]) != 0)
                fail_msg("%s, %s: request %u has other bits alone", cases[n].model,
                         dtype_name(c.worker.dtype), i);
    }
}

/* Blocks go to host memory and come back; steps are not graphs. */
static void swapped_and_eager(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "llama");
    struct core_config c = config_of(g.dir);
    on_device(&c);
    c.worker.enforce_eager = true;
    c.worker.max_model_len = 64;
    c.worker.n_block = 5;
    c.worker.swap_bytes = 1 << 20;
    c.policy.preemption = PREEMPT_SWAP;
    compare(c, &g, 5, "swap", 1e-3f);
}

/* The second half of the requests begins with snapshots of the first one's states. */
static void snapshots_of_states(void **state)
{
    (void)state;
    struct golden g;
    golden_get(&g, "falcon_h1");
    struct core_config c = config_of(g.dir);
    on_device(&c);
    c.worker.max_model_len = 64;
    c.prefix_cache = true;
    compare(c, &g, 8, "snapshots", 1e-3f);
    assert_true(device_stats.prefix_hits > 0);
}

/* Two steps are sent before the worker can look: it gives both to the device, and waits then. */
static void the_next_step_does_not_wait_for_tokens(void **state)
{
    (void)state;
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    golden_get(&g, "llama");
    struct core_config c = config_of(g.dir);
    on_device(&c);
    open_core(&c);
    atomic_bool *closed = device_symbol("/tests/libquire-fake-cuda.so", "fake_cuda_is_closed");
    struct fake_cuda *cuda = device_symbol("/tests/libquire-fake-cuda.so", "fake_cuda");
    atomic_store(closed, true);
    submit_prompt(0, &g.prompts[1], 0);
    cuda->n_ahead = 0;
    assert_ok(core_step(engine.core, &e), &e);
    atomic_store(closed, false);
    finish_all(1);
    check_answer(0, &g.prompts[1], "ahead");
    assert_true(cuda->n_ahead > 1); /* all kernels of a step */
    core_free(engine.core);
}

/* The draft model's draft tokens are sampled there and become tokens of the histories there. */
static void a_draft_model_proposes(void **state)
{
    (void)state;
    struct golden g, draft;
    golden_get(&g, "llama");
    golden_get(&draft, "llama-draft");
    struct core_config c = config_of(g.dir);
    on_device(&c);
    c.worker.speculation = (struct speculation){.method = SPECULATE_DRAFT, .n_draft_token = 2};
    snprintf(c.worker.speculation.draft_dir, sizeof c.worker.speculation.draft_dir, "%s",
             draft.dir);
    open_core(&c);
    submit_prompt(0, &g.prompts[1], 0);
    finish_all(1);
    check_answer(0, &g.prompts[1], "draft");
    core_free(engine.core);
}

static const struct CMUnitTest others[] = {
    cmocka_unit_test(goldens_of_float32),
    cmocka_unit_test(every_kind_of_request),
    cmocka_unit_test(scales_of_blocks),
    cmocka_unit_test(fp8_inputs_in_the_scales_of_the_checkpoint),
    cmocka_unit_test(experts_in_fp8),
    cmocka_unit_test(the_same_bits_alone_and_together),
    cmocka_unit_test(swapped_and_eager),
    cmocka_unit_test(snapshots_of_states),
    cmocka_unit_test(the_next_step_does_not_wait_for_tokens),
    cmocka_unit_test(a_draft_model_proposes),
};
#define N_OTHER (sizeof others / sizeof *others)

int main(int argc, char **argv)
{
    struct CMUnitTest tests[N_DTYPE + N_FEW_BITS + N_OTHER];
    size_t n = 0;
    device_max_tokens = 5;
    for (size_t i = 0; i < N_OTHER; i++)
        tests[n++] = others[i];
    for (size_t i = 0; i < N_DTYPE; i++)
        tests[n++] = (struct CMUnitTest){
            .name = dtypes[i].model,
            .test_func = dtype_and_quantization,
            .initial_state = (void *)(uintptr_t)&dtypes[i],
        };
    for (size_t i = 0; i < N_FEW_BITS; i++)
        tests[n++] = (struct CMUnitTest){
            .name = few_bits[i].model,
            .test_func = checkpoint_in_few_bits,
            .initial_state = (void *)(uintptr_t)&few_bits[i],
        };
    return check_run_part(tests, n, argc, argv);
}
