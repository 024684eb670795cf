/* SPDX-License-Identifier: Apache-2.0 */
/* The layer program: as it is printed for models of several families, of families that no model of
 * the tests has, what is refused, what program_check finds, and how program_fuse cuts it. */
#include <string.h>
#include "check.h"
#include "common/buf.h"
#include "common/file.h"
#include "engine/model/forward/features.h"
#include "engine/model/forward/program_cut.h"
#include "engine/model/forward/program_memory.h"
#include "engine/model/forward/program_text.h"
#include "engine/model/model_show.h"

#define MODELS   "tests/data/models/"
#define PROGRAMS "tests/data/programs/"

static struct q_err e = Q_ERR_INIT;

/* ---- printed ---- */

/* Made anew by: build/dev/bin/quire-check-model tests/data/models/MODEL --program --dtype DTYPE
 * --quantization METHOD > tests/data/programs/NAME.txt; look at the difference. */
static const struct {
    const char *model, *text;
    enum dtype dtype;
    enum quantization quantization;
} printed[] = {
    {"deepseek_v2", "deepseek_v2-int8", DT_F32, QUANTIZE_INT8},
    {"deepseek_v3", "deepseek_v3", DT_F32, QUANTIZE_NOT},
    {"gemma2", "gemma2", DT_F32, QUANTIZE_NOT},
    {"gpt_neox", "gpt_neox-int8", DT_F32, QUANTIZE_INT8},
    {"gpt_neox-seq", "gpt_neox-seq-bf16", DT_BF16, QUANTIZE_NOT},
    {"granite", "granite", DT_F32, QUANTIZE_NOT},
    {"phi", "phi-bf16", DT_BF16, QUANTIZE_NOT},
    {"phi3-longrope", "phi3-longrope-bf16", DT_BF16, QUANTIZE_NOT},
    {"llama", "llama", DT_F32, QUANTIZE_NOT},
    {"llama-bias-tied", "llama-bias-tied-int4", DT_F32, QUANTIZE_INT4},
    {"mistral", "mistral-bf16", DT_BF16, QUANTIZE_NOT},
    {"olmoe", "olmoe-int8", DT_F32, QUANTIZE_INT8},
    {"qwen2-sliding-bf16", "qwen2-sliding-bf16", DT_BF16, QUANTIZE_NOT},
    {"qwen2_moe", "qwen2_moe-int8", DT_F32, QUANTIZE_INT8},
    {"qwen3", "qwen3", DT_F32, QUANTIZE_NOT},
    {"bloom", "bloom", DT_F32, QUANTIZE_NOT},
    {"cohere", "cohere-int8", DT_F32, QUANTIZE_INT8},
    {"cohere2", "cohere2", DT_F32, QUANTIZE_NOT},
    {"cohere2_moe", "cohere2_moe", DT_F32, QUANTIZE_NOT},
    {"cohere2_moe-sigmoid", "cohere2_moe-sigmoid-int8", DT_BF16, QUANTIZE_INT8},
    {"exaone4", "exaone4-bf16", DT_BF16, QUANTIZE_NOT},
    {"falcon", "falcon", DT_F32, QUANTIZE_NOT},
    {"gemma", "gemma", DT_F32, QUANTIZE_NOT},
    {"gemma3", "gemma3", DT_F32, QUANTIZE_NOT},
    {"glm4", "glm4-bf16", DT_BF16, QUANTIZE_NOT},
    {"gpt2", "gpt2", DT_F32, QUANTIZE_NOT},
    {"gptj", "gptj-int8", DT_F32, QUANTIZE_INT8},
    {"olmo", "olmo", DT_F32, QUANTIZE_NOT},
    {"olmo2", "olmo2-bf16", DT_BF16, QUANTIZE_NOT},
    {"olmo_hybrid", "olmo_hybrid", DT_F32, QUANTIZE_NOT},
    {"opt", "opt", DT_F32, QUANTIZE_NOT},
    {"opt-bare", "opt-bare-bf16", DT_BF16, QUANTIZE_NOT},
    {"opt-post", "opt-post", DT_F32, QUANTIZE_NOT},
    {"smollm3", "smollm3", DT_F32, QUANTIZE_NOT},
    {"stablelm", "stablelm", DT_F32, QUANTIZE_NOT},
    {"stablelm-parallel", "stablelm-parallel", DT_F32, QUANTIZE_NOT},
    {"starcoder2", "starcoder2", DT_F32, QUANTIZE_NOT},
    {"granitemoe", "granitemoe", DT_F32, QUANTIZE_NOT},
    {"gpt_oss", "gpt_oss-int8", DT_F32, QUANTIZE_INT8},
    {"gpt_oss-mxfp4", "gpt_oss-mxfp4-bf16", DT_BF16, QUANTIZE_NOT},
    {"dots1", "dots1", DT_F32, QUANTIZE_NOT},
    {"ernie4_5_moe", "ernie4_5_moe", DT_F32, QUANTIZE_NOT},
    {"flex_olmo", "flex_olmo-bf16", DT_BF16, QUANTIZE_NOT},
    {"glm4_moe", "glm4_moe-int8", DT_F32, QUANTIZE_INT8},
    {"glm4_moe_lite", "glm4_moe_lite", DT_F32, QUANTIZE_NOT},
    {"granitemoeshared", "granitemoeshared", DT_F32, QUANTIZE_NOT},
    {"hunyuan_v1_moe", "hunyuan_v1_moe", DT_F32, QUANTIZE_NOT},
    {"llama4", "llama4", DT_F32, QUANTIZE_NOT},
    {"mimo_v2_flash", "mimo_v2_flash", DT_F32, QUANTIZE_NOT},
    {"minimax", "minimax-bf16", DT_BF16, QUANTIZE_NOT},
    {"minimax_m2", "minimax_m2", DT_F32, QUANTIZE_NOT},
    {"mistral4", "mistral4", DT_F32, QUANTIZE_NOT},
    {"phimoe", "phimoe-int8", DT_F32, QUANTIZE_INT8},
    {"apertus", "apertus", DT_F32, QUANTIZE_NOT},
    {"baichuan2-13b", "baichuan2-13b-bf16", DT_BF16, QUANTIZE_NOT},
    {"gemma3-vision", "gemma3-vision-int8", DT_F32, QUANTIZE_INT8},
    {"gemma3n", "gemma3n", DT_F32, QUANTIZE_NOT},
    {"gemma3n-two", "gemma3n-two-int8", DT_BF16, QUANTIZE_INT8},
    {"gemma4", "gemma4", DT_F32, QUANTIZE_NOT},
    {"gemma4-moe", "gemma4-moe-int8", DT_F32, QUANTIZE_INT8},
    {"gemma4_unified", "gemma4_unified", DT_F32, QUANTIZE_NOT},
    {"hunyuan_v1_dense", "hunyuan_v1_dense", DT_F32, QUANTIZE_NOT},
    {"minicpm3", "minicpm3", DT_F32, QUANTIZE_NOT},
    {"ministral3", "ministral3", DT_F32, QUANTIZE_NOT},
    {"lfm2", "lfm2", DT_F32, QUANTIZE_NOT},
    {"lfm2-bias", "lfm2-bias-bf16", DT_BF16, QUANTIZE_NOT},
    {"qwen3_next", "qwen3_next-int8", DT_F32, QUANTIZE_INT8},
    {"mamba2", "mamba2", DT_F32, QUANTIZE_NOT},
    {"falcon_h1-norm", "falcon_h1-norm-bf16", DT_BF16, QUANTIZE_NOT},
    {"granitemoehybrid", "granitemoehybrid", DT_F32, QUANTIZE_NOT},
    {"nemotron_h", "nemotron_h-bf16", DT_BF16, QUANTIZE_NOT},
    {"nemotron_h-moe", "nemotron_h-moe", DT_F32, QUANTIZE_NOT},
    {"nemotron_h-latent", "nemotron_h-latent-int8", DT_F32, QUANTIZE_INT8},
    {"jamba", "jamba-int8", DT_F32, QUANTIZE_INT8},
    {"afmoe", "afmoe-bf16", DT_BF16, QUANTIZE_NOT},
    {"codegen", "codegen", DT_F32, QUANTIZE_NOT},
    {"gpt_neo", "gpt_neo", DT_F32, QUANTIZE_NOT},
    {"granitemoe_swa", "granitemoe_swa", DT_F32, QUANTIZE_NOT},
    {"mpt", "mpt-int8", DT_F32, QUANTIZE_INT8},
    {"nanochat", "nanochat", DT_F32, QUANTIZE_NOT},
    {"biogpt", "biogpt", DT_F32, QUANTIZE_NOT},
    {"dbrx", "dbrx-bf16", DT_BF16, QUANTIZE_NOT},
    {"exaone_moe", "exaone_moe-int8", DT_F32, QUANTIZE_INT8},
    {"gpt_bigcode", "gpt_bigcode-bf16", DT_BF16, QUANTIZE_NOT},
    {"granite_swa", "granite_swa", DT_F32, QUANTIZE_NOT},
    {"hy_v3", "hy_v3", DT_F32, QUANTIZE_NOT},
    {"mellum", "mellum", DT_F32, QUANTIZE_NOT},
    {"olmoe-clip", "olmoe-clip-bf16", DT_BF16, QUANTIZE_NOT},
    {"solar_open", "solar_open", DT_F32, QUANTIZE_NOT},
};

#define I_LLAMA 8

static void show(struct buf *out, size_t i, bool json)
{
    char dir[200];
    const struct model_options o = {
        .dir = dir,
        .dtype = printed[i].dtype,
        .quantization = printed[i].quantization,
    };
    const struct model_show how = {.json = json, .n_token = 2048};
    snprintf(dir, sizeof dir, "%s%s", MODELS, printed[i].model);
    assert_ok(model_show_program(out, &o, &how, &e), &e);
}

static void test_printed(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof printed / sizeof *printed; i++) {
        struct buf got = BUF_INIT, want = BUF_INIT;
        char path[200];
        snprintf(path, sizeof path, "%s%s.txt", PROGRAMS, printed[i].text);
        show(&got, i, false);
        assert_ok(file_read(&want, path, 1u << 20, &e), &e);
        if (strcmp(buf_str(&got), buf_str(&want)) != 0)
            fail_msg("%s is printed otherwise than %s:\n%s", printed[i].model, path, buf_str(&got));
        buf_release(&got);
        buf_release(&want);
    }
}

static void test_json(void **state)
{
    (void)state;
    struct buf got = BUF_INIT;
    show(&got, I_LLAMA, true);
    assert_non_null(strstr(buf_str(&got), "{\"architecture\":\"LlamaForCausalLM\",\"layers\":2,"));
    assert_non_null(strstr(buf_str(&got), "{\"operation\":\"norm\",\"layer\":1,"));
    assert_non_null(strstr(buf_str(&got), "\"fusion\":\"norm heads, rope, store\""));
    assert_string_equal(buf_str(&got) + got.len - 4, "}]}\n");
    buf_release(&got);
}

/* ---- other families ---- */

static const struct arch_tensor some_tensors[] = {
    {"attn_norm.bias", W_ATTN_NORM_BIAS, {D_HIDDEN}, SHARD_NONE, WHEN_MLP_BIAS},
    {"qkv.bias", W_QKV_HEADS_BIAS, {D_QKV}, SHARD_NONE, WHEN_ATTENTION_BIAS},
};

static struct program_form plain_form(const void *ctx, enum program_weight w, uint32_t layer)
{
    (void)layer;
    const enum dtype *input = ctx;
    const bool floats = *input != DT_I8 || w == PROGRAM_W_ROUTER;
    return (struct program_form){.input = floats ? DT_F32 : DT_I8, .of_norm = !floats};
}

static const enum dtype floats = DT_F32, bytes = DT_I8;

struct family {
    struct arch_layer layer;
    const char *act;
    const char *ops;     /* of layer 1, by their kinds */
    const char *missing; /* first, of what not every executor has; NULL: nothing */
};

static struct model_config some_config(const char *act)
{
    struct model_config c = {
        .vocab_size = 32,
        .hidden_size = 16,
        .intermediate_size = 24,
        .n_layer = 2,
        .n_head = 4,
        .n_kv_head = 2,
        .head_dim = 8,
        .rms_norm_eps = 1e-5,
        .window = {0, 7},
    };
    snprintf(c.hidden_act, sizeof c.hidden_act, "%s", act);
    c.forward = (struct forward_config){
        .attention_soft_cap = 50,
        .logit_soft_cap = 30,
        .query_scalar = 4,
        .parallel_residual = true,
    };
    return c;
}

static void compile(struct layer_program *p, const struct arch_layer *l, const char *act,
                    const enum dtype *input)
{
    const struct arch arch = {
        .name = "Test",
        .tensors = some_tensors,
        .n_tensor = sizeof some_tensors / sizeof *some_tensors,
        .layer = *l,
    };
    struct model_config c = some_config(act);
    const struct program_forms f = {plain_form, input, DT_F32, 0};
    if (l->query_growth) {
        c.forward.query_growth = 0.1;
        c.forward.query_length = 16;
    }
    c.forward.rotary_fraction = l->residual == ARCH_RESIDUAL_CONFIG ? 0.25 : 0;
    *p = (struct layer_program)LAYER_PROGRAM_INIT;
    assert_ok(program_compile(p, &arch, &c, &f, &e), &e);
}

static void kinds_of(struct buf *out, const struct layer_program *p, uint32_t layer)
{
    for (uint32_t i = 0; i < p->n_op; i++)
        if (p->ops[i].layer == layer)
            buf_printf(out, "%s%s", out->len ? " " : "", program_kind_name(p->ops[i].kind));
}

#define BEFORE "norm matmul rope store attention matmul add norm matmul activate matmul add"

static const struct family families[] = {
    {{0}, "silu", BEFORE, NULL},
    {
        {
            .norms = ARCH_NORMS_BOTH,
            .windows = true,
            .soft_caps = true,
            .scales = true,
            .mlp = ARCH_MLP_GATED,
            .activations = ARCH_ACTS_GELU,
        },
        "gelu_pytorch_tanh",
        "norm matmul rope store attention matmul norm add norm matmul activate matmul norm add",
        "Test: layer 0: a soft cap of scores",
    },
    {
        {.norms = ARCH_NORMS_AFTER},
        "silu",
        "matmul rope store attention matmul norm add matmul activate matmul norm add",
        "Test: layer 0: a norm of a branch's output",
    },
    {
        {.norms = ARCH_NORMS_SUM, .positions = ARCH_LEARNED},
        "silu",
        "matmul store attention matmul add norm matmul activate matmul add norm",
        "learned positions",
    },
    {
        {
            .norm = ARCH_NORM_LAYER,
            .residual = ARCH_RESIDUAL_CONFIG,
            .mlp = ARCH_MLP_PLAIN,
            .activations = 1u << ARCH_GELU,
        },
        "gelu",
        "norm matmul rope store attention norm matmul activate matmul add matmul add",
        "LayerNorm",
    },
    {
        {.residual = ARCH_RESIDUAL_SHARED_NORM, .positions = ARCH_ALIBI},
        "silu",
        "norm matmul store attention norm matmul activate matmul add matmul add",
        "ALiBi",
    },
    {
        {.qk_norm = ARCH_QK_NORM_WHOLE, .positions = ARCH_ROPE_INTERLEAVED, .bidirectional = true},
        "silu",
        "norm matmul norm norm rope store attention matmul add norm matmul activate matmul add",
        "interleaved rope",
    },
    {{.sinks = true}, "silu", BEFORE, "attention sinks"},
    {
        {.qk_norm = ARCH_QK_NORM_HEADS, .qk_norm_behind_rope = true},
        "silu",
        "norm matmul rope norm norm store attention matmul add norm matmul activate matmul add",
        NULL,
    },
    {
        {.query_growth = ARCH_QUERY_GROWTH_ALL},
        "silu",
        "norm matmul rope scale q store attention matmul add norm matmul activate matmul add",
        "a multiplier of q by its position",
    },
    {
        {.query_growth = ARCH_QUERY_GROWTH_NO_ROPE, .positions = ARCH_NO_POSITIONS},
        "silu",
        "norm matmul scale q store attention matmul add norm matmul activate matmul add",
        "a multiplier of q by its position",
    },
    {{.query_growth = ARCH_QUERY_GROWTH_NO_ROPE}, "silu", BEFORE, NULL},
    {
        {.mlp = ARCH_MLP_PLAIN, .activations = 1u << ARCH_XIELU},
        "xielu",
        BEFORE,
        "activations other than silu",
    },
    {{.norms = ARCH_NORMS_CONFIG}, "silu", BEFORE, NULL},
};
#define N_FAMILY (sizeof families / sizeof *families)

static void test_families(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FAMILY; i++) {
        struct layer_program p;
        struct buf got = BUF_INIT;
        compile(&p, &families[i].layer, families[i].act, &floats);
        kinds_of(&got, &p, 1);
        assert_string_equal(buf_str(&got), families[i].ops);
        buf_release(&got);
        program_release(&p);
    }
}

#define ON_NOTHING ((enum executor)16) /* that no row of features.def names */

/* An executor that has nothing beyond the kinds refuses by the name of what is asked for first; the
 * CPU's refuses by some name or runs it. */
static void test_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FAMILY; i++) {
        struct layer_program p;
        compile(&p, &families[i].layer, families[i].act, &floats);
        if (families[i].missing)
            assert_fails(features_check(&p, ON_NOTHING, "Test", &e), Q_UNSUPPORTED,
                         families[i].missing, &e);
        else
            assert_ok(features_check(&p, ON_NOTHING, "Test", &e), &e);
        if (features_check(&p, ON_CPU, "Test", &e))
            assert_non_null(strstr(e.message, " is not supported on the CPU yet"));
        program_release(&p);
    }
}

/* What a device lacks is refused at load, by its name. */
static void test_refused_on_devices(void **state)
{
    static struct model_config c;
    const struct program_forms f = {plain_form, &floats, DT_F32, 0};
    const struct pipeline_stage first = {.n_layer = 1, .has_embedding = true};
    struct layer_program p = LAYER_PROGRAM_INIT;
    const struct arch *arch = NULL;
    (void)state;
    assert_ok(model_config_load(&c, NULL, MODELS "nemotron_h-moe", &e), &e);
    assert_ok(arch_find(&arch, c.architecture, &e), &e);
    assert_ok(program_compile(&p, arch, &c, &f, &e), &e);
    assert_ok(features_check(&p, ON_DEVICE, arch->name, &e), &e);
    assert_ok(program_cut(&p, &first, &e), &e);
    assert_fails(features_check(&p, ON_DEVICE, arch->name, &e), Q_UNSUPPORTED,
                 "NemotronHForCausalLM: a pipeline stage is not supported on devices yet", &e);
    program_release(&p);
}

static const struct program_op *find(const struct layer_program *p, enum program_kind kind,
                                     uint32_t layer)
{
    for (uint32_t i = 0; i < p->n_op; i++)
        if (p->ops[i].kind == kind && p->ops[i].layer == layer)
            return &p->ops[i];
    fail_msg("no %s in layer %u", program_kind_name(kind), layer);
    return NULL;
}

/* Keys of the config have an effect in the families that use them, and only there. */
static void test_config_counts(void **state)
{
    (void)state;
    struct layer_program p;
    compile(&p, &families[1].layer, families[1].act, &floats);
    const struct program_op *a = find(&p, PROGRAM_ATTENTION, 1);
    assert_true(a->attention.soft_cap == 50 && a->attention.scale == 0.5f);
    assert_int_equal(a->attention.window, 7);
    assert_int_equal(find(&p, PROGRAM_ATTENTION, 0)->attention.window, 0);
    assert_true(find(&p, PROGRAM_SOFT_CAP, PROGRAM_NO_LAYER)->cap == 30);
    assert_int_equal(find(&p, PROGRAM_ROPE, 0)->rope.n_rot, 8);
    program_release(&p);
    compile(&p, &families[0].layer, families[0].act, &floats);
    a = find(&p, PROGRAM_ATTENTION, 1);
    assert_true(a->attention.soft_cap == 0 && a->attention.window == 0);
    assert_int_equal(p.ops[p.n_op - 1].kind, PROGRAM_MATMUL);
    assert_int_equal(find(&p, PROGRAM_MATMUL, 0)->bias, PROGRAM_W_NONE);
    program_release(&p);
}

static void test_refused_activation(void **state)
{
    (void)state;
    const struct arch arch = {.name = "Test", .layer = {.activations = ARCH_ACTS_GELU}};
    const struct model_config c = some_config("silu");
    const struct program_forms f = {plain_form, &floats, DT_F32, 0};
    struct layer_program p = LAYER_PROGRAM_INIT;
    assert_fails(program_compile(&p, &arch, &c, &f, &e), Q_UNSUPPORTED,
                 "hidden_act \"silu\" is not supported for Test, expected \"gelu\", \"gelu_new\"",
                 &e);
    program_release(&p);
}

/* ---- checked ---- */

static void test_check(void **state)
{
    (void)state;
    static const struct {
        enum program_kind kind;
        size_t offset; /* of a uint16_t or uint32_t in the operation */
        uint32_t value;
        bool wide;
        const char *part;
    } wrong[] = {
#define SHORT(kind, field, value, part) \
    {kind, offsetof(struct program_op, field), value, false, part}
#define LONG(kind, field, value, part)                              \
    {                                                               \
        kind, offsetof(struct program_op, field), value, true, part \
    }
        SHORT(PROGRAM_MATMUL, in[0].buffer, PROGRAM_B_O, "no operation has written"),
        SHORT(PROGRAM_MATMUL, in[0].dtype, DT_BF16, "the element type it reads differs"),
        SHORT(PROGRAM_MATMUL, in[0].buffer, PROGRAM_BUFFERS, "its buffer does not exist"),
        SHORT(PROGRAM_MATMUL, in[0].buffer, PROGRAM_B_NONE, "too few or too many inputs"),
        SHORT(PROGRAM_MATMUL, in[1].buffer, PROGRAM_B_H, "too few or too many inputs"),
        LONG(PROGRAM_MATMUL, in[0].n_col, 17, "columns that no operation has written"),
        LONG(PROGRAM_MATMUL, weight, PROGRAM_W_NONE, "it has no weight"),
        LONG(PROGRAM_MATMUL, weight, PROGRAM_W_ATTN_NORM, "its weight has the wrong kind"),
        LONG(PROGRAM_MATMUL, weight, PROGRAM_WEIGHTS, "its weight does not exist"),
        LONG(PROGRAM_ADD, weight, PROGRAM_W_OUT, "it takes no weight"),
        LONG(PROGRAM_ADD, in[0].n_col, 8, "shapes do not agree: in = out"),
        LONG(PROGRAM_NORM, norm.unit, 5, "of whole units"),
        LONG(PROGRAM_ROPE, rope.n_rot, 10, "n_rot of it"),
        LONG(PROGRAM_ROPE, in[0].col, 1, "in place, but its input and output buffers differ"),
        LONG(PROGRAM_STORE, attention.n_kv_head, 3, "K and V of KV heads"),
        LONG(PROGRAM_ATTENTION, attention.n_head, 3, "heads of head_dim"),
        LONG(PROGRAM_ACTIVATE, out.n_col, 5, "twice that when gated"),
        LONG(PROGRAM_STORE, layer, 1, "the KV cache of a layer that has stored no K and V"),
        LONG(PROGRAM_ADD, layer, 2, "its layer does not exist"),
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct layer_program p;
        compile(&p, &families[0].layer, "silu", &floats);
        char *op = (char *)(uintptr_t)find(&p, wrong[i].kind, 0);
        const uint16_t narrow = (uint16_t)wrong[i].value;
        if (wrong[i].wide)
            memcpy(op + wrong[i].offset, &wrong[i].value, sizeof wrong[i].value);
        else
            memcpy(op + wrong[i].offset, &narrow, sizeof narrow);
        assert_fails(program_check(&p, &e), Q_INVALID, wrong[i].part, &e);
        program_release(&p);
    }
}

static void test_check_order(void **state)
{
    (void)state;
    struct layer_program p;
    compile(&p, &families[0].layer, "silu", &floats);
    const struct program_op first = p.ops[1]; /* the norm behind its product */
    p.ops[1] = p.ops[2];
    p.ops[2] = first;
    assert_fails(program_check(&p, &e), Q_INVALID, "operation 1 (matmul of layer 0)", &e);
    p.n_op = 1;
    assert_fails(program_check(&p, &e), Q_INVALID, "has no operation that writes logits", &e);
    program_release(&p);
}

/* ---- fused ---- */

static void stages_of(struct buf *out, const struct layer_program *p, uint32_t layer)
{
    for (uint32_t i = 0; i < p->n_stage; i++)
        if (p->ops[p->stages[i].first].layer == layer)
            buf_printf(out, "%u", p->stages[i].n);
}

static struct program_form gated_form(const void *ctx, enum program_weight w, uint32_t layer)
{
    struct program_form f = plain_form(ctx, w, layer);
    f.interleaved = w == PROGRAM_W_GATE_UP;
    return f;
}

static void test_fuse(void **state)
{
    (void)state;
    static const struct {
        const enum dtype *input;
        uint32_t fusions;
        bool interleaved;
        const char *stages; /* operations in each of layer 1 */
    } cases[] = {
        {&floats, 0, false, "111111111111"},
        {&floats, 0, true, "11111111211"},
        {&floats, PROGRAM_FUSE(MATMUL_ADD), false, "1111121112"},
        {&floats, PROGRAM_FUSE(QKV_EPILOGUE), false, "11211111111"},
        {&floats, PROGRAM_FUSE(ADD_NORM), false, "11111121111"},
        {&floats, PROGRAM_FUSE_ALL, true, "11212122"},
        {&bytes, 0, false, "1111111111111111"},
        {&bytes, PROGRAM_FUSE(NORM_QUANTIZE), false, "21111111211111"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct layer_program p;
        struct buf got = BUF_INIT;
        const struct program_forms f = {cases[i].interleaved ? gated_form : plain_form,
                                        cases[i].input, DT_F32, 0};
        compile(&p, &families[0].layer, "silu", cases[i].input);
        assert_ok(program_fuse(&p, &f, cases[i].fusions, &e), &e);
        stages_of(&got, &p, 1);
        assert_string_equal(buf_str(&got), cases[i].stages);
        buf_release(&got);
        program_release(&p);
    }
}

/* e4m3 in one scale, but for experts: theirs is *ctx. */
static struct program_form scaled_form(const void *ctx, enum program_weight w, uint32_t layer)
{
    const float *of_experts = ctx;
    (void)layer;
    if (w == PROGRAM_W_ROUTER)
        return (struct program_form){.input = DT_F32};
    return (struct program_form){
        .input = DT_F8_E4M3,
        .of_norm = true,
        .x_scale = w == PROGRAM_W_EXPERT_GATE_UP ? *of_experts : 0.5f,
    };
}

/* A shared expert and the others read the same bytes only where both are in the same scale; 0: each
 * row has its own. */
static void test_bytes_in_another_scale(void **state)
{
    static const struct {
        float of_experts;
        uint32_t n_quantize; /* of what the MLP's norm makes */
    } cases[] = {{0.5f, 1}, {0.25f, 2}, {0, 2}};
    const struct arch arch = {
        .name = "Test",
        .tensors = some_tensors,
        .n_tensor = sizeof some_tensors / sizeof *some_tensors,
    };
    struct model_config c = some_config("silu");
    (void)state;
    c.moe.n_expert = 4;
    c.moe.n_used = 2;
    c.moe.width = c.moe.shared_width = 24;
    c.moe.layers[1] = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct layer_program p = LAYER_PROGRAM_INIT;
        const struct program_forms f = {scaled_form, &cases[i].of_experts, DT_F32, 0};
        uint32_t n = 0;
        assert_ok(program_compile(&p, &arch, &c, &f, &e), &e);
        for (uint32_t k = 0; k < p.n_op; k++)
            n += p.ops[k].layer == 1 && p.ops[k].kind == PROGRAM_QUANTIZE &&
                 p.ops[k].out.buffer == PROGRAM_B_H_Q && p.ops[k].weight != PROGRAM_W_QKV;
        assert_int_equal(n, cases[i].n_quantize);
        program_release(&p);
    }
}

/* Three passes a layer, and which buffers outlive one. */
static void test_passes(void **state)
{
    (void)state;
    struct layer_program p;
    const struct program_forms f = {plain_form, &bytes, DT_F32, 0};
    compile(&p, &families[0].layer, "silu", &bytes);
    assert_ok(program_fuse(&p, &f, PROGRAM_FUSE_ALL, &e), &e);
    assert_int_equal(p.n_pass, 1 + 2 * 3 + 1);
    for (uint32_t i = 0; i < p.n_pass; i++) {
        assert_int_equal(p.passes[i].all_rows, i % 3 == 2 && i < 7);
        assert_int_equal(p.passes[i].asked, i == 7);
    }
    static const uint32_t of_step[] = {PROGRAM_B_X, PROGRAM_B_QKV, PROGRAM_B_A};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(p.buffers[of_step[i]].rows, PROGRAM_ROWS_STEP);
    assert_int_equal(p.buffers[PROGRAM_B_H_Q].rows, PROGRAM_ROWS_BLOCK);
    assert_int_equal(p.buffers[PROGRAM_B_ACT].rows, PROGRAM_ROWS_BLOCK);
    assert_true(p.buffers[PROGRAM_B_H_Q].is_stored && p.buffers[PROGRAM_B_X].is_stored);
    assert_false(p.buffers[PROGRAM_B_H].is_stored); /* within norm and quantize */
    assert_false(p.buffers[PROGRAM_B_O].is_stored); /* within matmul and add */
    program_release(&p);
}

/* ---- memory ---- */

static uint64_t bit_of(uint32_t buffer)
{
    return (uint64_t)1 << buffer;
}

static void test_conflicts(void **state)
{
    (void)state;
    struct layer_program p;
    uint64_t with[PROGRAM_BUFFERS_MAX];
    const struct program_forms f = {plain_form, &bytes, DT_F32, 0};
    compile(&p, &families[0].layer, "silu", &bytes);
    assert_ok(program_fuse(&p, &f, PROGRAM_FUSE_ALL, &e), &e);
    program_conflicts(&p, with);
    /* The residual stream beside all that a layer has; q, k and v until attention has read them. */
    assert_true(with[PROGRAM_B_X] & bit_of(PROGRAM_B_H_Q));
    assert_true(with[PROGRAM_B_X] & bit_of(PROGRAM_B_ACT_Q));
    assert_true(with[PROGRAM_B_QKV] & bit_of(PROGRAM_B_H_Q));
    assert_true(with[PROGRAM_B_QKV] & bit_of(PROGRAM_B_A));
    assert_false(with[PROGRAM_B_QKV] & bit_of(PROGRAM_B_A_Q));
    assert_false(with[PROGRAM_B_QKV] & bit_of(PROGRAM_B_ACT));
    assert_false(with[PROGRAM_B_A] & bit_of(PROGRAM_B_ACT));
    for (uint32_t i = 0; i < PROGRAM_BUFFERS_MAX; i++)
        for (uint32_t j = 0; j < PROGRAM_BUFFERS_MAX; j++)
            assert_int_equal(with[i] >> j & 1, with[j] >> i & 1);
    program_release(&p);
}

static void add_op(struct layer_program *p, const struct program_op *op)
{
    assert_ok(program_add(p, op, &e), &e);
}

/* What a repeated stage reads must outlive the last of them, however early it is read. */
static void test_repeated_stages_keep_their_inputs(void **state)
{
    (void)state;
    struct layer_program p = LAYER_PROGRAM_INIT;
    uint64_t with[PROGRAM_BUFFERS_MAX];
    const struct program_forms f = {plain_form, &floats, DT_F32, 0};
    const struct program_ref x = {PROGRAM_B_X, DT_F32, 0, 16}, h = {PROGRAM_B_H, DT_F32, 0, 16};
    const struct program_ref routes = {PROGRAM_B_ROUTES, DT_F32, 0, 2};
    const struct program_ref act = {PROGRAM_B_EXPERT_ACT, DT_F32, 0, 8};
    const struct program_ref out = {PROGRAM_B_EXPERT_O, DT_F32, 0, 16};
    p.n_buffer = PROGRAM_BUFFERS;
    add_op(&p, &(struct program_op){.kind = PROGRAM_NORM, .in = {x}, .out = h});
    add_op(&p, &(struct program_op){.kind = PROGRAM_ROUTE, .in = {h}, .out = routes});
    add_op(&p, &(struct program_op){.kind = PROGRAM_EXPERTS, .in = {h, routes}, .out = act});
    add_op(&p, &(struct program_op){.kind = PROGRAM_EXPERTS, .in = {act, routes}, .out = out});
    add_op(&p, &(struct program_op){
                   .kind = PROGRAM_COMBINE,
                   .in = {out, routes},
                   .out = x,
                   .onto = true,
               });
    add_op(&p, &(struct program_op){.kind = PROGRAM_NORM, .in = {x}, .out = h});
    assert_ok(program_fuse(&p, &f, 0, &e), &e);
    assert_int_equal(program_repeated(&p, 0), 1);
    assert_int_equal(program_repeated(&p, 2), 3);
    program_conflicts(&p, with);
    assert_true(with[PROGRAM_B_H] & bit_of(PROGRAM_B_EXPERT_O)); /* read by the next rows' first */
    program_release(&p);
}

/* Buffers that are needed one after the other overlap, but where an executor keeps them apart. */
static void test_memory_place(void **state)
{
    (void)state;
    struct layer_program p;
    struct program_memory m = {0};
    uint64_t apart[PROGRAM_BUFFERS_MAX] = {0};
    const struct program_forms f = {plain_form, &bytes, DT_F32, 0};
    compile(&p, &families[0].layer, "silu", &bytes);
    assert_ok(program_fuse(&p, &f, PROGRAM_FUSE_ALL, &e), &e);
    m.sizes[PROGRAM_B_X] = 64;
    m.sizes[PROGRAM_B_H_Q] = 128;
    m.sizes[PROGRAM_B_A_Q] = 192;
    program_memory_place(&m, &p, NULL);
    assert_int_equal(m.n_bytes, 64 + 192);
    assert_true(m.overlaps[PROGRAM_B_A_Q] == (bit_of(PROGRAM_B_A_Q) | bit_of(PROGRAM_B_H_Q)));
    assert_true(m.overlaps[PROGRAM_B_H_Q] == m.overlaps[PROGRAM_B_A_Q]);
    assert_true(m.overlaps[PROGRAM_B_X] == bit_of(PROGRAM_B_X));
    assert_true(m.overlaps[PROGRAM_B_LOGITS] == bit_of(PROGRAM_B_LOGITS));
    apart[PROGRAM_B_H_Q] = bit_of(PROGRAM_B_A_Q);
    apart[PROGRAM_B_A_Q] = bit_of(PROGRAM_B_H_Q);
    program_memory_place(&m, &p, apart);
    assert_int_equal(m.n_bytes, 64 + 128 + 192);
    assert_true(m.overlaps[PROGRAM_B_A_Q] == bit_of(PROGRAM_B_A_Q));
    program_release(&p);
}

static void test_place(void **state)
{
    (void)state;
    enum { N = 5 };
    const size_t sizes[N] = {64, 256, 128, 0, 64};
    /* 0 with 1, 1 with 2, 2 with 4 */
    const uint64_t with[PROGRAM_BUFFERS_MAX] = {0x3, 0x7, 0x16, 0x8, 0x14};
    size_t at[N] = {0};
    assert_int_equal(program_place(at, sizes, with, N), 256 + 128);
    assert_int_equal(at[1], 0);
    assert_int_equal(at[2], 256);
    assert_int_equal(at[0], 256); /* beside 2, with which it has nothing to do */
    assert_int_equal(at[4], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_printed),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_refused_by_name),
        cmocka_unit_test(test_refused_on_devices),
        cmocka_unit_test(test_config_counts),
        cmocka_unit_test(test_refused_activation),
        cmocka_unit_test(test_check),
        cmocka_unit_test(test_check_order),
        cmocka_unit_test(test_fuse),
        cmocka_unit_test(test_bytes_in_another_scale),
        cmocka_unit_test(test_passes),
        cmocka_unit_test(test_conflicts),
        cmocka_unit_test(test_repeated_stages_keep_their_inputs),
        cmocka_unit_test(test_memory_place),
        cmocka_unit_test(test_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
