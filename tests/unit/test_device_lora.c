/* SPDX-License-Identifier: Apache-2.0 */
/* device_lora: LoRA adapters on a device. With the reference's kernels requests of a mix of
 * adapters, more than there are slots, have the CPU's bits: by graphs and without, over every form
 * of the base, preempted, with draft tokens, loaded and unloaded while others run. With the CUDA
 * kernels on the emulation they have PEFT's tokens, and with --deterministic the same bits alone
 * and beside rows of other adapters. A step without adapters launches none of their kernels. */
#include "core_run.h"
#include "common/mem.h"
#include "device_run.h"
#include "folder.h"

#define DATA      "tests/data/lora/"
#define REFERENCE "/tests/libquire-fake.so"
#define EMULATION "/tests/libquire-fake-cuda.so"
#define BASE      "tests/data/models/llama"
#define ADAPTERS  4u
#define GOLDENS   6u

static struct bits_answer expected[BITS_REQUESTS];
static struct folder louder[2]; /* the adapters of the tree with another lora_alpha */
static const char *const names[ADAPTERS] = {"r4", "r8", "louder-r4", "louder-r8"};

static int make_adapters(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        const char *from = i ? DATA "llama-lora-r8" : DATA "llama-lora-r4";
        struct buf text = BUF_INIT;
        struct q_err e = Q_ERR_INIT;
        char path[PATH_MAX];
        folder_init(&louder[i]);
        folder_copy(&louder[i], from, "adapter_model.safetensors");
        snprintf(path, sizeof path, "%s/adapter_config.json", from);
        assert_ok(file_read(&text, path, 1 << 16, &e), &e);
        char *alpha = strstr(text.data, "\"lora_alpha\": ");
        assert_non_null(alpha);
        alpha[14] = '9'; /* the first digit */
        folder_write(&louder[i], "adapter_config.json", text.data, text.len);
        buf_release(&text);
    }
    return 0;
}

static int drop_adapters(void **state)
{
    (void)state;
    folder_release(&louder[0]);
    folder_release(&louder[1]);
    return 0;
}

static const char *folder_of(uint32_t i)
{
    return i >= 2 ? louder[i - 2].path : i ? DATA "llama-lora-r8" : DATA "llama-lora-r4";
}

/* Adapters for a core, which takes the list. library NULL: the CPU. */
static struct core_config config_with(const char *library, uint32_t n)
{
    struct core_config c = config_of(BASE);
    struct adapter_settings *s = &c.adapters;
    c.worker.max_model_len = 144;
    c.worker.max_num_seqs = 4;
    c.worker.max_num_batched_tokens = 40;
    c.worker.n_block = 64;
    snprintf(c.worker.cpu_isa, sizeof c.worker.cpu_isa, "none");
    if (library)
        device_choose(&c, library);
    c.worker.max_lora_rank = 8;
    c.worker.lora_dtype_auto = true;
    c.worker.max_loras = s->max_loras = 2;
    s->max_in_memory = 3;
    s->n = n;
    s->modules = q_calloc(ADAPTERS, sizeof *s->modules);
    assert_non_null(s->modules);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(s->modules[i].name, sizeof s->modules[i].name, "%s", names[i]);
        snprintf(s->modules[i].path, sizeof s->modules[i].path, "%s", folder_of(i));
    }
    return c;
}

static void submit(uint64_t req_id, const struct golden_prompt *p, const char *adapter,
                   uint32_t max_tokens)
{
    const struct msg_submit m = {
        .req_id = req_id,
        .prompt = {p->ids, p->n},
        .adapter = {adapter, strlen(adapter)},
        .top_p = 1,
        .repetition_penalty = 1,
        .max_tokens = max_tokens,
        .ignore_eos = true,
        .n_logprob = req_id % 2 ? 1 + BITS_TOP : 0,
        .seed = req_id,
        .temperature = req_id % 3 == 2 ? 0.8f : 0,
    };
    struct q_err e = Q_ERR_INIT;
    assert_ok(core_submit(engine.core, 1, &m, &e), &e);
}

/* Request i has adapter i % 5 - 1; every fifth has none. */
static const char *adapter_of(uint32_t i)
{
    return i % (ADAPTERS + 1) ? names[i % (ADAPTERS + 1) - 1] : "";
}

struct mix {
    uint32_t n, n_prompt, max_tokens; /* requests, of the golden's first prompts */
};

/* Requests of a mix of adapters; some come while others run. */
static void run_mix(const struct core_config *c, struct mix m)
{
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    golden_get(&g, "llama");
    open_core(c);
    for (uint32_t i = 0; i < m.n; i++) {
        submit(i, &g.prompts[i % m.n_prompt], adapter_of(i), m.max_tokens);
        if (i % 3 == 2)
            assert_ok(core_step(engine.core, &e), &e);
    }
    finish_all(m.n);
    core_free(engine.core);
    for (uint32_t i = 0; i < m.n; i++)
        assert_int_equal(answers[i].finish, FINISH_LENGTH);
}

struct mix_case {
    const char *what;
    enum dtype dtype;
    enum quantization quantization;
    bool eager, swaps, drafts;
};

static void set_case(struct core_config *c, const struct mix_case *k)
{
    c->worker.dtype = k->dtype;
    c->worker.quantization = k->quantization;
    c->worker.enforce_eager = k->eager;
    if (k->swaps) {
        c->worker.n_block = 12;
        c->worker.swap_bytes = 1 << 20;
        c->policy.preemption = PREEMPT_SWAP;
    }
    if (k->drafts)
        c->worker.speculation = (struct speculation){
            .method = SPECULATE_NGRAM,
            .n_draft_token = 3,
            .ngram_min = 1,
            .ngram_max = 3,
        };
}

static void the_bits_of_the_cpu(void **state)
{
    static const struct mix_case cases[] = {
        {.what = "float32", .dtype = DT_F32},
        {.what = "bfloat16", .dtype = DT_BF16},
        {.what = "int8", .dtype = DT_BF16, .quantization = QUANTIZE_INT8},
        {.what = "int4", .dtype = DT_F32, .quantization = QUANTIZE_INT4},
        {.what = "without graphs", .dtype = DT_F32, .eager = true},
        {.what = "preempted", .dtype = DT_F32, .swaps = true},
        {.what = "draft tokens", .dtype = DT_F32, .drafts = true},
    };
    const struct mix m = {12, 4, 10};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct core_config cpu = config_with(NULL, ADAPTERS);
        struct core_config device = config_with(REFERENCE, ADAPTERS);
        set_case(&cpu, &cases[i]);
        set_case(&device, &cases[i]);
        run_mix(&cpu, m);
        memcpy(expected, answers, sizeof expected);
        run_mix(&device, m);
        for (uint32_t k = 0; k < m.n; k++)
            if (memcmp(&expected[k], &answers[k], sizeof expected[k]) != 0)
                fail_msg("%s: request %u has other bits on the device", cases[i].what, k);
    }
}

static uint64_t n_shrink(void)
{
    return *(const uint64_t *)device_symbol(REFERENCE, "fake_n_shrink");
}

/* The same answers as those of an engine that takes no adapters, and none of their kernels. */
static void steps_without_adapters(void **state)
{
    struct golden g;
    (void)state;
    golden_get(&g, "llama");
    for (uint32_t takes = 0; takes < 2; takes++) {
        struct core_config c = config_with(REFERENCE, takes ? ADAPTERS : 0);
        c.worker.max_lora_rank = takes ? 8 : 0;
        c.adapters.max_loras = takes ? 2 : 0;
        open_core(&c);
        const uint64_t before = n_shrink();
        for (uint32_t i = 0; i < 6; i++)
            submit(i, &g.prompts[i % 4], "", 12);
        finish_all(6);
        assert_int_equal(n_shrink(), before);
        if (takes) {
            submit(6, &g.prompts[1], names[0], 12);
            finish_all(7);
            assert_true(n_shrink() > before);
        }
        core_free(engine.core);
        if (!takes)
            memcpy(expected, answers, sizeof expected);
    }
    assert_memory_equal(expected, answers, 6 * sizeof *answers);
}

/* Adapters come, are replaced and go while requests run. */
static void run_changes(const struct core_config *c)
{
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    struct adapter_module m = {.name = "new"};
    golden_get(&g, "llama");
    open_core(c);
    for (uint32_t i = 0; i < 3; i++)
        submit(i, &g.prompts[i], names[i % 2], 20);
    assert_ok(core_step(engine.core, &e), &e);
    for (uint32_t i = 0; i < ADAPTERS; i++) {
        snprintf(m.path, sizeof m.path, "%s", folder_of((i + 1) % ADAPTERS));
        assert_ok(core_load_adapter(engine.core, &m, i > 0, &e), &e);
        submit(3 + i, &g.prompts[i], "new", 10);
        bits_turn(&engine);
    }
    assert_ok(core_unload_adapter(engine.core, "new", &e), &e);
    submit(7, &g.prompts[3], names[0], 10);
    finish_all(8);
    core_free(engine.core);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(answers[i].finish, FINISH_LENGTH);
}

static void loaded_and_unloaded_while_serving(void **state)
{
    struct core_config cpu = config_with(NULL, 2), device = config_with(REFERENCE, 2);
    (void)state;
    run_changes(&cpu);
    memcpy(expected, answers, sizeof expected);
    run_changes(&device);
    assert_memory_equal(expected, answers, 8 * sizeof *answers);
}

/* The request of an adapter that finds no memory ends, the others do not. */
static void memory_for_an_adapter_is_refused(void **state)
{
    struct golden g;
    struct q_err e = Q_ERR_INIT;
    struct core_config c = config_with(REFERENCE, 0);
    struct adapter_module m = {.name = "new"};
    uint32_t *refused_in = device_symbol(REFERENCE, "fake_refused_in");
    (void)state;
    golden_get(&g, "llama");
    open_core(&c);
    *refused_in = 1;
    snprintf(m.path, sizeof m.path, "%s", folder_of(0));
    assert_ok(core_load_adapter(engine.core, &m, false, &e), &e);
    submit(0, &g.prompts[1], "new", 4);
    submit(1, &g.prompts[1], "", 4);
    finish_all(2);
    assert_int_equal(*refused_in, 0);
    assert_int_equal(answers[0].finish, FINISH_ERROR);
    assert_int_equal(answers[1].finish, FINISH_LENGTH);
    snprintf(m.path, sizeof m.path, "%s", folder_of(1));
    assert_ok(core_load_adapter(engine.core, &m, true, &e), &e);
    submit(2, &g.prompts[1], "new", 4);
    finish_all(3);
    assert_int_equal(answers[2].finish, FINISH_LENGTH);
    core_free(engine.core);
}

static void read_golden(struct golden_prompt *out, const char *name, uint32_t i)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, DATA "llama-lora-%s/golden.json", name);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    const json_t *p = json_array_get(json_object_get(root, "prompts"), i);
    out->n = golden_ids(json_object_get(p, "ids"), out->ids);
    out->n_greedy = golden_ids(json_object_get(p, "greedy"), out->greedy);
    json_decref(root);
}

/* Both adapters in the same steps: prompts of 5, 17 and 33 tokens of one, 1, 5 and 17 of the other.
 */
static void goldens_by_cuda_kernels(void **state)
{
    static struct golden_prompt prompts[GOLDENS];
    struct core_config c = config_with(EMULATION, 2);
    (void)state;
    open_core(&c);
    for (uint32_t i = 0; i < GOLDENS; i++) {
        struct golden_prompt *p = &prompts[i];
        read_golden(p, names[i % 2], (i + 1) / 2);
        p->n_greedy = 6;
        submit(6 * i, p, names[i % 2], p->n_greedy); /* multiples of 6: greedy, no logprobs */
    }
    finish_all(GOLDENS);
    core_free(engine.core);
    for (uint32_t i = 0; i < GOLDENS; i++)
        check_answer(6 * i, &prompts[i], names[i % 2]);
}

static void the_same_bits_alone_and_together(void **state)
{
    const struct mix m = {5, 3, 4};
    struct core_config together = config_with(EMULATION, ADAPTERS);
    struct core_config apart = config_with(EMULATION, ADAPTERS);
    (void)state;
    together.worker.dtype = apart.worker.dtype = DT_BF16;
    together.worker.deterministic = apart.worker.deterministic = true;
    together.worker.max_loras = together.adapters.max_loras = 3;
    apart.worker.max_num_seqs = 1;
    apart.worker.max_num_batched_tokens = 16;
    apart.worker.enforce_eager = true;
    run_mix(&together, m);
    memcpy(expected, answers, sizeof expected);
    run_mix(&apart, m);
    for (uint32_t i = 0; i < m.n; i++)
        if (memcmp(&expected[i], &answers[i], sizeof expected[i]) != 0)
            fail_msg("request %u has other bits alone", i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_of_the_cpu),
        cmocka_unit_test(steps_without_adapters),
        cmocka_unit_test(loaded_and_unloaded_while_serving),
        cmocka_unit_test(memory_for_an_adapter_is_refused),
        cmocka_unit_test(goldens_by_cuda_kernels),
        cmocka_unit_test(the_same_bits_alone_and_together),
    };
    return cmocka_run_group_tests(tests, make_adapters, drop_adapters);
}
