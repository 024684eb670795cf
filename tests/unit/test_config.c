/* SPDX-License-Identifier: Apache-2.0 */
#include <jansson.h>
#include <math.h>
#include "folder.h"
#include "common/hub/config.h"
#include "common/mem.h"

#define MODELS "tests/data/models/"

static struct model_config c, d;
static struct generation_defaults g;
static struct q_err e;

/* Load a config.json that is `base` with `more` (members, each after a comma) added. */
static enum q_code load_text(const char *more)
{
    struct folder f;
    struct buf b = BUF_INIT;
    folder_init(&f);
    buf_printf(
        &b,
        "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 512, \"hidden_size\": 64, "
        "\"intermediate_size\": 96, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "
        "\"max_position_embeddings\": 256%s}",
        more);
    folder_write(&f, "config.json", b.data, b.len);
    buf_release(&b);
    enum q_code rc = model_config_load(&c, &g, f.path, &e);
    folder_release(&f);
    return rc;
}

static void test_defaults(void **state)
{
    (void)state;
    assert_ok(load_text(""), &e);
    assert_int_equal(c.n_kv_head, 4);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.dtype, DT_F32);
    assert_int_equal(c.n_eos, 0);
    assert_int_equal(c.bos_id, UINT32_MAX);
    assert_string_equal(c.hidden_act, "silu");
    assert_false(c.tie_word_embeddings);
    assert_true(c.rope.kind == ROPE_DEFAULT && c.rope.theta == 10000);
    assert_ok(load_text(", \"model_type\": \"qwen3\""), &e);
    assert_int_equal(c.head_dim, 128);
    assert_ok(
        load_text(
            ", \"num_key_value_heads\": 2, \"head_dim\": 24, \"torch_dtype\": \"torch.bfloat16\""),
        &e);
    assert_int_equal(c.n_kv_head, 2);
    assert_int_equal(c.head_dim, 24);
    assert_int_equal(c.dtype, DT_BF16);
}

#define NEOX    ", \"model_type\": \"gpt_neox\""
#define GEMMA   ", \"model_type\": \"gemma2\""
#define PHI     ", \"model_type\": \"phi3\""
#define GPT_OSS ", \"model_type\": \"gpt_oss\""

/* What transformers takes when keys are absent, and what a null means. */
static void test_families(void **state)
{
    (void)state;
    assert_ok(load_text(NEOX), &e);
    assert_string_equal(c.hidden_act, "gelu");
    assert_true(c.attention_bias && c.attention_out_bias && c.forward.parallel_residual);
    assert_true(c.rms_norm_eps == 1e-5 && c.forward.rotary_fraction == 0.25);
    assert_int_equal(model_config_n_rot(&c), 4);
    assert_ok(load_text(NEOX ", \"rotary_emb_base\": 500, \"layer_norm_eps\": 1e-3"), &e);
    assert_true(c.rope.theta == 500 && c.rms_norm_eps == 1e-3);
    assert_ok(load_text(GEMMA ", \"hidden_act\": \"relu\""), &e);
    assert_string_equal(c.hidden_act, "gelu_pytorch_tanh");
    assert_true(c.tie_word_embeddings && c.forward.query_scalar == 256);
    assert_true(c.forward.attention_soft_cap == 50 && c.forward.logit_soft_cap == 30);
    assert_true(c.window[0] == 4096 && c.window[1] == 0);
    assert_int_equal(c.head_dim, 256);
    assert_ok(load_text(GEMMA ", \"attn_logit_softcapping\": null, \"sliding_window\": null, "
                              "\"final_logit_softcapping\": 7"),
              &e);
    assert_true(c.forward.attention_soft_cap == 0 && c.forward.logit_soft_cap == 7);
    assert_int_equal(c.window[0], 0);
    assert_ok(load_text(PHI ", \"sliding_window\": 9, \"original_max_position_embeddings\": 32, "
                            "\"partial_rotary_factor\": 0.25, \"rope_scaling\": {\"type\": \"su\", "
                            "\"short_factor\": [1, 2], \"long_factor\": [3, 4.5]}"),
              &e);
    assert_true(c.window[0] == 9 && c.window[1] == 9);
    assert_true(c.rope.kind == ROPE_LONG && c.rope.original_max_position == 32);
    assert_true(c.rope.short_factor[1] == 2 && c.rope.long_factor[1] == 4.5f);
    assert_true(c.forward.attention_soft_cap == 0 && c.rms_norm_eps == 1e-5);
    assert_ok(load_text(", \"model_type\": \"granite\", \"logits_scaling\": 8"), &e);
    assert_true(c.forward.logit_multiplier == 0.125 && c.forward.attention_multiplier == 1);
    assert_true(c.forward.residual_multiplier == 1 && c.forward.embedding_multiplier == 1);
    assert_ok(load_text(", \"model_type\": \"granitemoe\", \"residual_multiplier\": 0.5"), &e);
    assert_true(c.forward.residual_multiplier == 0.5 && c.moe.n_expert == 8 && c.moe.n_used == 2);
    assert_true(c.moe.width == 96 && c.moe.layers[0] && c.moe.layers[2]);
    assert_ok(load_text(GPT_OSS ", \"num_key_value_heads\": 2, \"hidden_act\": \"silu\""), &e);
    assert_string_equal(c.hidden_act, "quick_gelu"); /* its limited form is no other */
    assert_true(c.forward.glu_limit == 7 && c.rms_norm_eps == 1e-5 && c.rope.theta == 15e4);
    assert_true(c.attention_bias && c.attention_out_bias && c.head_dim == 64);
    assert_true(c.moe.n_expert == 128 && c.moe.n_used == 4 && c.moe.width == 96);
    assert_true(c.window[0] == 128 && c.window[1] == 0 && c.window[2] == 128);
    assert_ok(load_text(GPT_OSS ", \"swiglu_limit\": 5.5, \"num_experts_per_tok\": 2, "
                                "\"quantization_config\": {\"quant_method\": \"mxfp4\"}"),
              &e);
    assert_true(c.forward.glu_limit == 5.5 && c.moe.n_used == 2);
    assert_true(c.quant.method == QUANT_MXFP4 && c.quant.bits == 4 && c.quant.group_size == 32);
    assert_fails(load_text(GPT_OSS ", \"swiglu_limit\": 0"), Q_CORRUPT, "swiglu_limit", &e);
    assert_fails(load_text(GPT_OSS ", \"swiglu_limit\": \"7\""), Q_CORRUPT, "swiglu_limit", &e);
    assert_ok(load_text(", \"model_type\": \"phi\", \"qk_layernorm\": false"), &e);
    assert_string_equal(c.hidden_act, "gelu_new");
    assert_true(c.forward.rotary_fraction == 0.5 && c.rms_norm_eps == 1e-5);
    assert_fails(load_text(", \"model_type\": \"phi\", \"qk_layernorm\": true"), Q_UNSUPPORTED,
                 "qk_layernorm true is not supported for model_type \"phi\", only false", &e);
}

/* Falcon's flags: KV heads, norms of branches and biases follow from several keys. */
static void test_falcon(void **state)
{
    (void)state;
    static const char sizes[] = "\"architectures\": [\"FalconForCausalLM\"], \"model_type\": "
                                "\"falcon\", \"vocab_size\": 8, \"hidden_size\": 64, "
                                "\"n_layer\": 1, \"n_head\": 8";
    static const struct {
        const char *flags;
        uint32_t n_kv_head;
        bool parallel, shared_norm, alibi, bias;
    } cases[] = {
        {"", 1, true, true, false, false},
        {", \"multi_query\": false, \"parallel_attn\": false, \"alibi\": true, \"bias\": true", 8,
         false, false, true, true},
        {", \"new_decoder_architecture\": true, \"num_kv_heads\": 2", 2, true, false, false, false},
        {", \"new_decoder_architecture\": true, \"n_head_kv\": 4, \"num_ln_in_parallel_attn\": 1",
         4, true, true, false, false},
        {", \"num_kv_heads\": 8", 1, true, true, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        const size_t n = (size_t)snprintf(text, sizeof text, "{%s%s}", sizes, cases[i].flags);
        assert_ok(model_config_parse(&c, text, n, "config.json", &e), &e);
        assert_int_equal(c.n_kv_head, cases[i].n_kv_head);
        assert_int_equal(c.forward.parallel_residual, cases[i].parallel);
        assert_int_equal(c.forward.shared_norm, cases[i].shared_norm);
        assert_int_equal(c.forward.alibi, cases[i].alibi);
        assert_int_equal(c.mlp_bias, cases[i].bias);
        assert_int_equal(c.attention_out_bias, cases[i].bias);
        assert_int_equal(c.intermediate_size, 256);
        assert_int_equal(c.max_position, 2048);
    }
}

/* Goldens with both spellings. */
static const char *const spelled[] = {
    "llama",
    "llama-bf16-sharded",
    "llama-bias-tied",
    "llama-draft",
    "llama-rope-dynamic",
    "llama-rope-linear",
    "llama-rope-llama3",
    "mistral",
    "qwen2",
    "qwen2-sliding-bf16",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "mixtral",
    "olmoe",
    "olmoe-clip",
    "afmoe",
    "biogpt",
    "codegen",
    "dbrx",
    "exaone_moe",
    "gpt_bigcode",
    "gpt_bigcode-heads",
    "gpt_neo",
    "granite_swa",
    "granitemoe_swa",
    "hy_v3",
    "mellum",
    "mpt",
    "nanochat",
    "solar_open",
    "deepseek_v2",
    "deepseek_v3",
    "gemma2",
    "gpt_neox",
    "gpt_neox-seq",
    "granite",
    "phi",
    "phi3",
    "phi3-longrope",
    "bloom",
    "cohere",
    "cohere2",
    "exaone4",
    "falcon",
    "gemma",
    "gemma3",
    "glm4",
    "gpt2",
    "gpt2-noprefix",
    "gpt_oss",
    "granitemoe",
    "dots1",
    "ernie4_5_moe",
    "flex_olmo",
    "glm4_moe",
    "glm4_moe_lite",
    "granitemoeshared",
    "hunyuan_v1_moe",
    "minimax_m2",
    "mistral4",
    "phimoe",
    "gptj",
    "olmo",
    "olmo2",
    "opt",
    "opt-bare",
    "opt-post",
    "bamba",
    "falcon_h1",
    "falcon_h1-norm",
    "falcon_mamba",
    "granitemoehybrid",
    "granitemoehybrid-dense",
    "jamba",
    "lfm2",
    "lfm2-bias",
    "lfm2_moe",
    "mamba",
    "mamba2",
    "mamba2-bias",
    "nemotron_h",
    "nemotron_h-latent",
    "nemotron_h-moe",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "smollm3",
    "stablelm",
    "stablelm-parallel",
    "starcoder2",
};

/* config.json and config_v5.json of one model, byte for byte the same. */
static void test_dialects(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof spelled / sizeof *spelled; i++) {
        char from[PATH_MAX], newer[PATH_MAX];
        struct buf b = BUF_INIT;
        struct folder f;
        snprintf(from, sizeof from, MODELS "%s", spelled[i]);
        snprintf(newer, sizeof newer, MODELS "%s/config_v5.json", spelled[i]);
        folder_init(&f);
        assert_ok(file_read(&b, newer, 1u << 20, &e), &e);
        folder_write(&f, "config.json", b.data, b.len);
        folder_copy(&f, from, "generation_config.json");
        assert_ok(model_config_load(&c, &g, from, &e), &e);
        assert_ok(model_config_load(&d, &g, f.path, &e), &e);
        assert_memory_equal(&c, &d, sizeof c);
        buf_release(&b);
        folder_release(&f);
    }
}

static void test_golden_values(void **state)
{
    (void)state;
    assert_ok(model_config_load(&c, &g, MODELS "llama", &e), &e);
    assert_int_equal(c.n_eos, 2); /* generation_config.json's list */
    assert_int_equal(c.eos_ids[0], 502);
    assert_int_equal(c.eos_ids[1], 505);
    assert_int_equal(c.bos_id, 501);
    assert_ok(model_config_load(&c, &g, MODELS "llama-rope-yarn", &e), &e);
    assert_true(c.rope.kind == ROPE_YARN && c.rope.factor == 4 &&
                c.rope.original_max_position == 64);
    assert_true(c.rope.beta_fast == 8 && c.rope.truncate && c.dtype == DT_BF16);
    assert_ok(model_config_load(&c, &g, MODELS "mistral", &e), &e);
    assert_int_equal(c.window[0], 24);
    assert_int_equal(c.window[1], 24);
    assert_ok(model_config_load(&c, &g, MODELS "qwen2", &e), &e);
    assert_int_equal(c.window[0], 0); /* use_sliding_window false */
    assert_ok(model_config_load(&c, &g, MODELS "qwen2-sliding-bf16", &e), &e);
    assert_int_equal(c.window[0], 0);
    assert_int_equal(c.window[1], 16);
    assert_int_equal(c.window[2], 16);
}

static void test_windows(void **state)
{
    (void)state;
    assert_ok(load_text(", \"sliding_window\": 7"), &e);
    assert_int_equal(c.window[0], 7);
    assert_ok(load_text(", \"sliding_window\": 7, \"use_sliding_window\": false"), &e);
    assert_int_equal(c.window[0], 0);
    assert_ok(load_text(", \"sliding_window\": 7, \"model_type\": \"qwen2\""), &e);
    assert_int_equal(c.window[0], 0);
    assert_ok(load_text(", \"sliding_window\": null, \"layer_types\": null"), &e);
    assert_int_equal(c.window[2], 0);
    assert_ok(
        load_text(
            ", \"sliding_window\": 7, \"layer_types\": [\"sliding_attention\", \"full_attention\", "
            "\"sliding_attention\"]"),
        &e);
    assert_int_equal(c.window[0], 7);
    assert_int_equal(c.window[1], 0);
    assert_int_equal(c.window[2], 7);
}

/* Which layers have experts, in three layers. */
static void assert_layers(bool first, bool second, bool third)
{
    assert_int_equal(c.moe.layers[0], first);
    assert_int_equal(c.moe.layers[1], second);
    assert_int_equal(c.moe.layers[2], third);
    assert_false(c.moe.layers[3]);
}

static void test_experts(void **state)
{
#define MOE ", \"model_type\": \"qwen3_moe\""
    (void)state;
    assert_ok(load_text(", \"num_experts\": 8"), &e); /* of no family that has them */
    assert_int_equal(c.moe.n_expert, 0);
    assert_ok(load_text(", \"model_type\": \"mixtral\", \"norm_topk_prob\": false"), &e);
    assert_true(c.moe.n_expert == 8 && c.moe.n_used == 2 && c.moe.width == 96);
    assert_true(c.moe.renormalize && c.moe.shared_width == 0); /* always */
    assert_layers(true, true, true);
    assert_ok(load_text(", \"model_type\": \"olmoe\""), &e);
    assert_true(c.moe.n_expert == 64 && c.moe.n_used == 8 && c.moe.width == 96);
    assert_false(c.moe.renormalize);
    assert_ok(load_text(", \"model_type\": \"qwen2_moe\""), &e);
    assert_true(c.moe.n_expert == 60 && c.moe.n_used == 4 && c.moe.width == 1408);
    assert_int_equal(c.moe.shared_width, 5632);
    assert_ok(load_text(MOE), &e);
    assert_true(c.moe.n_expert == 128 && c.moe.n_used == 8 && c.moe.width == 768);
    assert_false(c.moe.renormalize);
    assert_int_equal(c.head_dim, 16);
    assert_ok(load_text(MOE ", \"num_local_experts\": 16, \"norm_topk_prob\": true, "
                            "\"decoder_sparse_step\": 2, \"mlp_only_layers\": null"),
              &e);
    assert_true(c.moe.n_expert == 16 && c.moe.renormalize);
    assert_layers(false, true, false);
    assert_ok(load_text(MOE ", \"mlp_only_layers\": [2, 0, 99]"), &e);
    assert_layers(false, true, false);
    assert_ok(load_text(MOE ", \"num_experts\": 0"), &e);
    assert_int_equal(c.moe.n_expert, 0);
    assert_layers(false, false, false);
}

#define OF(type) ", \"model_type\": \"" type "\""

/* What transformers takes when keys of these families are absent, and their own spellings. */
static void test_other_experts(void **state)
{
    (void)state;
    assert_ok(load_text(OF("glm4_moe") ", \"num_key_value_heads\": 2"), &e);
    assert_true(c.moe.n_expert == 128 && c.moe.n_used == 8 && c.moe.width == 1408);
    assert_true(c.moe.shared_width == 1408 && c.moe.scale == 1 && c.moe.n_group == 1);
    assert_true(c.forward.rotary_fraction == 0.5 && !c.forward.qk_norm && c.moe.renormalize);
    assert_layers(false, true, true);
    assert_ok(load_text(OF("glm4_moe_lite") ", \"mlp_layer_types\": [\"dense\", \"dense\", "
                                            "\"sparse\"], \"rope_interleave\": false"),
              &e);
    assert_true(c.moe.scale == 1.8 && c.latent.rank == 512 && c.latent.value == 256);
    assert_true(c.forward.half_rope);
    assert_layers(false, false, true);
    assert_ok(load_text(OF("kimi_k2") ", \"n_group\": 1, \"topk_group\": 1"), &e);
    assert_string_equal(c.model_type, "deepseek_v3");
    assert_int_equal(c.moe.n_expert, 256);
    assert_ok(load_text(OF("dots1") ", \"n_routed_experts\": 4, \"num_experts_per_tok\": 2, "
                                    "\"max_window_layers\": 2, \"sliding_window\": 9"),
              &e);
    assert_true(c.moe.shared_width == 0 && !c.moe.renormalize && c.window[1] == 0);
    assert_int_equal(c.window[2], 9);
    assert_layers(true, true, true);
    assert_ok(load_text(OF("ernie4_5_moe") ", \"moe_layer_end_index\": [1, 1], \"moe_k\": 2, "
                                           "\"num_key_value_heads\": 2, \"use_bias\": true"),
              &e);
    assert_true(c.moe.n_expert == 64 && c.moe.n_used == 2 && c.moe.shared_width == 2 * 1536);
    assert_true(c.tie_word_embeddings && c.mlp_bias && c.attention_bias && c.rope.theta == 5e5);
    assert_layers(false, true, false);
    assert_ok(load_text(OF("minimax_m2") ", \"rotary_dim\": 64, \"num_key_value_heads\": 2"), &e);
    assert_true(c.head_dim == 128 && model_config_n_rot(&c) == 64 && c.rope.theta == 5e6);
    assert_true(c.moe.n_expert == 256 && c.moe.width == 96 && c.moe.renormalize);
    assert_ok(load_text(OF("phimoe") ", \"num_key_value_heads\": 2, \"lm_head_bias\": true"), &e);
    assert_true(c.moe.mixer == 0.02 && c.head_bias && c.rope.theta == 1e6);
    assert_ok(load_text(OF("granitemoeshared") ", \"shared_intermediate_size\": 40"), &e);
    assert_int_equal(c.moe.shared_width, 40);
    assert_ok(load_text(OF("hunyuan_v1_moe") ", \"num_experts\": 4, \"moe_topk\": [2, 2, 2], "
                                             "\"rope_scaling\": {\"type\": \"dynamic\", "
                                             "\"alpha\": 16, \"factor\": 1}"),
              &e);
    assert_true(c.moe.n_used == 2 && c.moe.shared_width == 96 && c.rope.kind == ROPE_DEFAULT);
    assert_true(fabs(c.rope.theta - 1e4 * pow(16, 16.0 / 14)) < 1e-6);
}

#define LLAMA4 OF("llama4_text") ", \"intermediate_size_mlp\": 200, \"num_key_value_heads\": 2"

/* Chunks, layers without rope, and a text model within another one. */
static void test_llama4(void **state)
{
    (void)state;
    assert_ok(load_text(LLAMA4 ", \"no_rope_layers\": []"), &e);
    assert_true(c.intermediate_size == 200 && c.moe.width == 96 && c.moe.shared_width == 96);
    assert_true(c.window[0] == 8192 && c.forward.chunks && !c.no_rope[2] && c.head_dim == 128);
    assert_true(c.forward.query_growth == 0.1 && c.forward.query_length == 8192);
    assert_true(c.forward.query_first == 1 && c.forward.qk_norm);
    assert_layers(true, true, true);
    assert_ok(load_text(LLAMA4 ", \"no_rope_layers\": [1, 0, 1], \"attention_chunk_size\": 32, "
                               "\"interleave_moe_layer_step\": 2, \"rope_scaling\": "
                               "{\"rope_type\": \"llama3\", \"factor\": 8, "
                               "\"low_freq_factor\": 1, \"high_freq_factor\": 1, "
                               "\"original_max_position_embeddings\": 64}"),
              &e);
    assert_true(c.window[0] == 32 && c.window[1] == 0 && c.no_rope[1] && !c.no_rope[2]);
    assert_layers(false, true, false);
    assert_ok(load_text(LLAMA4 ", \"moe_layers\": [2], \"attn_temperature_tuning\": false"), &e);
    assert_layers(false, false, true);
    assert_true(c.forward.query_growth == 0);
    static const char nested[] =
        "{\"architectures\": [\"Llama4ForConditionalGeneration\"], \"model_type\": \"llama4\", "
        "\"torch_dtype\": \"bfloat16\", \"text_config\": {\"model_type\": \"llama4_text\", "
        "\"vocab_size\": 8, \"hidden_size\": 16, \"intermediate_size\": 24, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 8, "
        "\"max_position_embeddings\": 64}}";
    assert_ok(model_config_parse(&c, nested, sizeof nested - 1, "config.json", &e), &e);
    assert_string_equal(c.architecture, "Llama4ForCausalLM");
    assert_string_equal(c.outer, "Llama4ForConditionalGeneration");
    assert_true(c.dtype == DT_BF16 && c.moe.width == 24 && c.intermediate_size == 16384);
    assert_ok(load_text(", \"time_step_limit\": [0.0, Infinity], \"name\": \"Infinity\", "
                        "\"rope_theta\": -Infinity"),
              &e); /* Python's JSON */
    assert_true(c.rope.theta == 10000);
    assert_fails(load_text(", \"rope_theta\": Infinit"), Q_CORRUPT, "not valid JSON", &e);
    static const char bare[] = "{\"architectures\": [\"Llama4ForConditionalGeneration\"]}";
    assert_fails(model_config_parse(&c, bare, sizeof bare - 1, "config.json", &e), Q_CORRUPT,
                 "vocab_size is missing", &e);
}

static void test_refused_other_experts(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        enum q_code code;
        const char *part;
    } cases[] = {
        {OF("dots1") ", \"n_routed_experts\": 4", Q_CORRUPT, "num_experts_per_tok is missing"},
        {OF("minimax_m2") ", \"num_key_value_heads\": 2, \"shared_intermediate_size\": 9",
         Q_UNSUPPORTED, "shared_intermediate_size 9"},
        {OF("minimax_m2") ", \"num_key_value_heads\": 2, \"use_routing_bias\": false",
         Q_UNSUPPORTED, "use_routing_bias false"},
        {OF("hunyuan_v1_moe") ", \"moe_topk\": [1, 2]", Q_UNSUPPORTED, "moe_topk differs"},
        {OF("hunyuan_v1_moe") ", \"moe_topk\": [1, \"2\"]", Q_CORRUPT, "moe_topk[1] is a string"},
        {OF("hunyuan_v1_moe") ", \"use_cla\": true", Q_UNSUPPORTED, "use_cla true"},
        {OF("glm4_moe_lite") ", \"attention_bias\": true", Q_UNSUPPORTED, "attention_bias true"},
        {OF("mistral4") ", \"n_group\": 4, \"topk_group\": 2", Q_UNSUPPORTED,
         "n_group 4 is not supported for model_type \"mistral4\", only 1"},
        {OF("glm4_moe_lite") ", \"mlp_layer_types\": [\"dense\"]", Q_CORRUPT, "1 entries"},
        {OF("glm4_moe") ", \"num_key_value_heads\": 2, \"scoring_func\": \"softmax\"",
         Q_UNSUPPORTED, "scoring_func"},
        {OF("phimoe") ", \"num_key_value_heads\": 2, \"num_experts_per_tok\": 3", Q_UNSUPPORTED,
         "a sparse mixer is supported with 2 only"},
        {LLAMA4 ", \"moe_layers\": [3]", Q_CORRUPT, "moe_layers[0] is out of range"},
        {LLAMA4 ", \"layer_types\": [\"full_attention\", \"sliding_attention\", "
                "\"full_attention\"]",
         Q_UNSUPPORTED, "expected full_attention or chunked_attention"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(load_text(cases[i].more), cases[i].code, cases[i].part, &e);
}

static void test_refused_experts(void **state)
{
    (void)state;
    static const struct {
        const char *more, *part;
    } cases[] = {
        {MOE ", \"num_experts\": 1025", "num_experts is 1025, expected 0 to 1024"},
        {MOE ", \"num_experts_per_tok\": 0", "num_experts_per_tok is 0"},
        {MOE ", \"num_experts_per_tok\": 129", "num_experts (num_local_experts), 128"},
        {MOE ", \"moe_intermediate_size\": 0", "moe_intermediate_size is 0"},
        {MOE ", \"decoder_sparse_step\": 0", "decoder_sparse_step is 0"},
        {MOE ", \"mlp_only_layers\": 3", "mlp_only_layers is a whole number"},
        {MOE ", \"mlp_only_layers\": [1, \"2\"]", "mlp_only_layers[1] is a string"},
        {MOE ", \"mlp_only_layers\": [-1]", "mlp_only_layers[0] is below 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(load_text(cases[i].more), Q_CORRUPT, cases[i].part, &e);
    assert_fails(load_text(", \"model_type\": \"mixtral\", \"clip_qkv\": 8"), Q_UNSUPPORTED,
                 "clip_qkv is not supported, expected null", &e);
    assert_ok(load_text(", \"model_type\": \"olmoe\", \"clip_qkv\": null"), &e);
    assert_true(c.forward.clip == 0);
    assert_ok(load_text(", \"model_type\": \"olmoe\", \"clip_qkv\": 8"), &e);
    assert_true(c.forward.clip == 8);
}

/* torchao's quant_type. */
static void test_refused_torchao(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        enum q_code code;
        const char *part;
    } cases[] = {
        {", \"quantization_config\": {\"quant_method\": \"torchao\", \"quant_type\": "
         "{\"default\": {\"_type\": \"Int4WeightOnlyConfig\", \"_version\": 2, \"_data\": "
         "{\"int4_packing_format\": {\"_data\": \"PLAIN_INT32\"}}}}}",
         Q_UNSUPPORTED,
         "torchao's int4_packing_format \"PLAIN_INT32\" is not supported, expected plain or"},
        {", \"quantization_config\": {\"quant_method\": \"torchao\", \"quant_type\": "
         "{\"default\": {\"_type\": \"Int8WeightOnlyConfig\", \"_version\": 1}}}",
         Q_UNSUPPORTED,
         "Int8WeightOnlyConfig of version 1 is not supported, expected version 2 of"},
        {", \"quantization_config\": {\"quant_method\": \"torchao\", \"quant_type\": "
         "{\"default\": {\"_type\": \"IntxWeightOnlyConfig\", \"_version\": 2, \"_data\": "
         "{\"weight_dtype\": {\"_data\": \"uint4\"}}}}}",
         Q_UNSUPPORTED, "weight_dtype \"uint4\" with intx_packing_format \"\" is not supported"},
        {", \"quantization_config\": {\"quant_method\": \"torchao\", \"quant_type\": "
         "{\"default\": {\"_type\": \"Float8WeightOnlyConfig\", \"_version\": 2, \"_data\": "
         "{\"weight_dtype\": {\"_data\": \"float8_e5m2\"}}}}}",
         Q_UNSUPPORTED, "float8 with weight_dtype \"float8_e5m2\""},
        {", \"quantization_config\": {\"quant_method\": \"torchao\", \"quant_type\": "
         "{\"default\": {\"_type\": \"FqnToConfig\", \"_version\": 1, \"_data\": "
         "{\"fqn_to_config\": {\"a\": {\"_type\": \"NVFP4WeightOnlyConfig\", \"_version\": 1}}}}}}",
         Q_UNSUPPORTED, "torchao's quant_type NVFP4WeightOnlyConfig of version 1 is not supported"},
        {", \"quantization_config\": {\"quant_method\": \"torchao\", \"quant_type\": "
         "{\"default\": {\"_type\": \"FqnToConfig\", \"_version\": 1, \"_data\": "
         "{\"fqn_to_config\": {}}}}}",
         Q_CORRUPT, "torchao's fqn_to_config is no object of 1 to 65536 configs by name"},
        {", \"quantization_config\": {\"quant_method\": \"torchao\", \"quant_type\": "
         "{\"default\": {\"_type\": \"FqnToConfig\", \"_version\": 1, \"_data\": "
         "{\"fqn_to_config\": {\"a\": null}}}}}",
         Q_CORRUPT, "torchao's fqn_to_config has no config"},
        {", \"quantization_config\": {\"quant_method\": \"torchao\", \"quant_type\": "
         "\"int4_weight_only\"}",
         Q_UNSUPPORTED, "torchao's quant_type int4_weight_only is a name of older versions"},
        {", \"quantization_config\": {\"quant_method\": \"torchao\"}", Q_UNSUPPORTED,
         "torchao's quant_type missing of version 0 is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(load_text(cases[i].more), cases[i].code, cases[i].part, &e);
}

static void test_refused_quantization(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        enum q_code code;
        const char *part;
    } cases[] = {
        {", \"quantization_config\": {\"quant_method\": \"gptq\"}", Q_UNSUPPORTED, "bits 0"},
        {", \"quantization_config\": 4", Q_CORRUPT, "expected an object"},
        {", \"quantization_config\": {\"quant_method\": \"exl2\"}", Q_UNSUPPORTED, "exl2"},
        {", \"quantization_config\": {\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"}", Q_UNSUPPORTED,
         "e5m2"},
        {", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128]}",
         Q_CORRUPT, "weight_block_size is not a list of two numbers"},
        {", \"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 5}", Q_UNSUPPORTED,
         "bits 5 are not supported, expected 2, 3, 4 or 8"},
        {", \"quantization_config\": {\"quant_method\": \"auto-round\", \"bits\": 4, "
         "\"packing_format\": \"auto_round:llm_compressor\"}",
         Q_UNSUPPORTED, "auto_round:llm_compressor\" with data_type \"int\" is not supported"},
        {", \"quantization_config\": {\"quant_method\": \"bitsandbytes\"}", Q_CORRUPT,
         "load_in_4bit false and load_in_8bit false"},
        {", \"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": "
         "\"NVFP4_AWQ\"}",
         Q_UNSUPPORTED, "quant_algo \"NVFP4_AWQ\" is not supported, expected FP8"},
        {", \"quantization_config\": {\"quant_method\": \"exl3\"}", Q_UNSUPPORTED,
         "quant_method exl3) are not supported, expected gptq, awq"},
        {", \"quantization_config\": {\"producer\": {\"name\": \"other\"}, \"quant_algo\": "
         "\"FP8\"}",
         Q_UNSUPPORTED, "quant_method missing) are not supported"},
        {", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"config_groups\": "
         "{\"a\": {\"format\": \"float-quantized\", \"weights\": {\"num_bits\": 8, \"type\": "
         "\"float\"}}, \"b\": {\"format\": \"pack-quantized\", \"weights\": {\"num_bits\": 4, "
         "\"type\": \"int\"}}}}",
         Q_UNSUPPORTED, "config_groups.b differs from the first"},
        {", \"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 0}",
         Q_CORRUPT, "group_size is 0"},
        {", \"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4, "
         "\"checkpoint_format\": \"marlin\"}",
         Q_UNSUPPORTED, "marlin"},
        {", \"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4, \"version\": "
         "\"gemv_fast\"}",
         Q_UNSUPPORTED, "version \"gemv_fast\" is not supported, expected gemm or gemv"},
        {", \"quantization_config\": {\"quant_method\": \"awq\", \"bits\": 4, \"zero_point\": "
         "false}",
         Q_UNSUPPORTED, "zero_point"},
        {", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": "
         "\"pack-quantized\", \"config_groups\": {}}",
         Q_CORRUPT, "config_groups"},
        {", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": "
         "\"marlin-24\", \"config_groups\": {\"a\": {\"weights\": {\"num_bits\": 4}}}}",
         Q_UNSUPPORTED, "format \"marlin-24\" is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(load_text(cases[i].more), cases[i].code, cases[i].part, &e);
}

/* What quantization_config says. */
static void test_quantization(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        enum quant_method method;
        uint32_t bits;
        bool by_tensor;
    } good[] = {
        {"\"gptq\", \"bits\": 3, \"group_size\": 128", QUANT_GPTQ, 3, false},
        {"\"gptq\", \"bits\": 8, \"dynamic\": {\"+:.*down.*\": {\"bits\": 4}}", QUANT_GPTQ, 4,
         true},
        {"\"awq\", \"w_bit\": 4, \"q_group_size\": 128, \"version\": \"GEMV\"", QUANT_AWQ_ROWS, 4,
         false},
        {"\"auto-round\", \"bits\": 4, \"packing_format\": \"auto_round:auto_awq\"", QUANT_AWQ, 4,
         false},
        {"\"auto-round\", \"bits\": 2, \"backend\": \"auto_round:gptq:exllamav2\"", QUANT_GPTQ, 2,
         false},
        {"\"bitsandbytes\", \"_load_in_4bit\": true, \"load_in_8bit\": false", QUANT_BNB4, 4,
         false},
        {"\"bitsandbytes\", \"load_in_8bit\": true", QUANT_BNB8, 8, false},
        {"\"torchao\", \"quant_type\": {\"default\": {\"_type\": "
         "\"Int8DynamicActivationInt8WeightConfig\", \"_version\": 2}}",
         QUANT_INT8, 8, false},
        {"\"torchao\", \"quant_type\": {\"default\": {\"_type\": \"Float8WeightOnlyConfig\", "
         "\"_version\": 2}}",
         QUANT_FP8, 8, false},
        {"\"torchao\", \"quant_type\": {\"default\": {\"_type\": \"Int4WeightOnlyConfig\", "
         "\"_version\": 2}}",
         QUANT_TORCHAO, 4, false},
        {"\"torchao\", \"quant_type\": {\"default\": {\"_type\": \"IntxWeightOnlyConfig\", "
         "\"_version\": 2, \"_data\": {\"weight_dtype\": {\"_data\": \"int8\"}}}}",
         QUANT_INTX, 8, false},
        {"\"torchao\", \"quant_type\": {\"default\": {\"_type\": \"FqnToConfig\", \"_version\": 1, "
         "\"_data\": {\"module_fqn_to_config\": {\"a\": {\"_type\": \"Int8WeightOnlyConfig\", "
         "\"_version\": 2}, \"b\": {\"_type\": \"Int8DynamicActivationIntxWeightConfig\", "
         "\"_version\": 2, \"_data\": {\"weight_dtype\": {\"_data\": \"int4\"}, "
         "\"weight_granularity\": {\"_type\": \"PerGroup\"}}}}}}}",
         QUANT_INTX, 4, false},
        {"\"torchao\", \"quant_type\": {\"default\": {\"_type\": \"FqnToConfig\", \"_version\": 1, "
         "\"_data\": {\"fqn_to_config\": {\"a\": {\"_type\": \"Int8WeightOnlyConfig\", "
         "\"_version\": 2}, \"b\": {\"_type\": \"Float8WeightOnlyConfig\", \"_version\": 2}}}}}",
         QUANT_TORCHAO, 8, false},
        {"\"modelopt\", \"quant_algo\": \"NVFP4\"", QUANT_FP4, 4, false},
        {"\"modelopt\", \"quantization\": {\"quant_algo\": \"FP8\"}", QUANT_FP8, 8, false},
        {"null, \"producer\": {\"name\": \"modelopt\"}, \"quant_algo\": \"FP8\"", QUANT_FP8, 8,
         false},
        {"\"GPTQ\", \"bits\": 4", QUANT_GPTQ, 4, false},
        {"\"compressed_tensors\", \"config_groups\": {\"a\": {\"format\": \"naive-quantized\", "
         "\"weights\": {\"num_bits\": 8, \"type\": \"int\"}}}",
         QUANT_INT8, 8, false},
        {"\"compressed-tensors\", \"config_groups\": {\"a\": {\"format\": \"naive-quantized\", "
         "\"weights\": {\"num_bits\": 8, \"type\": \"int\", \"strategy\": \"tensor\"}}}",
         QUANT_INT8, 8, false},
        {"\"compressed-tensors\", \"format\": \"float-quantized\", \"config_groups\": {\"a\": "
         "{\"weights\": {\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"block\", "
         "\"block_structure\": \"128x64\"}}}",
         QUANT_FP8, 8, false},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char text[1024];
        snprintf(text, sizeof text, ", \"quantization_config\": {\"quant_method\": %s}",
                 good[i].config);
        assert_ok(load_text(text), &e);
        assert_int_equal(c.quant.method, good[i].method);
        assert_int_equal(c.quant.bits, good[i].bits);
        assert_int_equal(c.quant.by_tensor, good[i].by_tensor);
    }
    assert_true(c.quant.row_block == 128 && c.quant.group_size == 64);
}

/* In a file of its own, as older releases of ModelOpt, AutoGPTQ and AutoAWQ write it. */
static void test_quantization_beside(void **state)
{
    static const struct {
        const char *config, *beside; /* members of config.json; the file's text */
        enum q_code code;
        enum quant_method method;
        const char *part;
        const char *file; /* NULL: hf_quant_config.json */
    } cases[] = {
        {"", "{\"bits\": 8, \"group_size\": 64, \"desc_act\": true, \"sym\": true}", Q_OK,
         QUANT_GPTQ, "", "quantize_config.json"},
        {"", "{\"zero_point\": true, \"q_group_size\": 64, \"w_bit\": 4, \"version\": \"GEMM\"}",
         Q_OK, QUANT_AWQ, "", "quant_config.json"},
        {"", "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 64}", Q_OK, QUANT_AWQ, "",
         "quantize_config.json"},
        {", \"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_8bit\": true}",
         "{\"bits\": 4, \"group_size\": 64}", Q_OK, QUANT_BNB8, "", "quantize_config.json"},
        {"", "{\"bits\": 5, \"group_size\": 64}", Q_UNSUPPORTED, QUANT_NONE, "bits 5",
         "quantize_config.json"},
        {"", "[]", Q_CORRUPT, QUANT_NONE, "quant_config.json", "quant_config.json"},
        {"",
         "{\"producer\": {\"name\": \"modelopt\"}, \"quantization\": {\"quant_algo\": \"FP8\"}}",
         Q_OK, QUANT_FP8, "", NULL},
        {"", "{\"quantization\": {\"quant_algo\": \"NVFP4\", \"group_size\": 16}}", Q_OK, QUANT_FP4,
         "", NULL},
        {", \"quantization_config\": {\"quant_method\": \"bitsandbytes\", \"load_in_8bit\": true}",
         "{\"quantization\": {\"quant_algo\": \"FP8\"}}", Q_OK, QUANT_BNB8, "", NULL},
        {"", "{\"quantization\": {\"quant_algo\": null, \"kv_cache_quant_algo\": \"FP8\"}}", Q_OK,
         QUANT_NONE, "", NULL},
        {"", "{\"quantization\": {\"quant_algo\": \"W4A8_AWQ\"}}", Q_UNSUPPORTED, QUANT_NONE,
         "quant_algo \"W4A8_AWQ\" is not supported, expected FP8", NULL},
        {"", "{\"quantization\": 3}", Q_CORRUPT, QUANT_NONE,
         "hf_quant_config.json: quantization is a whole number, expected an object", NULL},
        {"", "{", Q_CORRUPT, QUANT_NONE, "hf_quant_config.json", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct folder f;
        struct buf b = BUF_INIT;
        folder_init(&f);
        buf_printf(&b,
                   "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 512, "
                   "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 3, "
                   "\"num_attention_heads\": 4, \"rms_norm_eps\": 0.000001, "
                   "\"max_position_embeddings\": 256%s}",
                   cases[i].config);
        folder_write(&f, "config.json", b.data, b.len);
        folder_text(&f, cases[i].file ? cases[i].file : "hf_quant_config.json", cases[i].beside);
        const enum q_code rc = model_config_load(&c, &g, f.path, &e);
        if (cases[i].code) {
            assert_fails(rc, cases[i].code, cases[i].part, &e);
        } else {
            assert_ok(rc, &e);
            assert_int_equal(c.quant.method, cases[i].method);
            assert_true(!cases[i].file || c.quant.group_size == 64 || c.quant.method == QUANT_BNB8);
        }
        buf_release(&b);
        folder_release(&f);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *more;
        enum q_code code;
        const char *part;
    } cases[] = {
        {", \"vocab_size\": 5", Q_CORRUPT, "duplicate"},
        {", \"num_key_value_heads\": 3", Q_CORRUPT, "not a multiple"},
        {", \"num_key_value_heads\": 0", Q_CORRUPT, "is 0, expected 1 to"},
        {", \"head_dim\": 15", Q_CORRUPT, "even"},
        {", \"head_dim\": 4098", Q_CORRUPT, "expected 1 to 4096"},
        {", \"head_dim\": -1", Q_CORRUPT, "is -1"},
        {", \"head_dim\": 1e3", Q_CORRUPT, "a whole number"},
        {", \"head_dim\": 99999999999999999999", Q_CORRUPT,
         "head_dim is a number, expected a whole number"},
        {", \"tie_word_embeddings\": \"yes\"", Q_CORRUPT, "true or false"},
        {", \"torch_dtype\": \"int8\"", Q_UNSUPPORTED, "int8"},
        {", \"torch_dtype\": 3", Q_CORRUPT, "a string"},
        {", \"partial_rotary_factor\": 0.5", Q_UNSUPPORTED, "partial_rotary_factor"},
        {", \"layer_types\": [\"full_attention\"]", Q_CORRUPT, "layer_types has 1"},
        {", \"layer_types\": [\"linear_attention\", \"x\", \"y\"]", Q_UNSUPPORTED,
         "linear_attention"},
        {", \"layer_types\": [1, 2, 3]", Q_UNSUPPORTED, "layer_types[0]"},
        {", \"eos_token_id\": \"x\"", Q_CORRUPT, "eos_token_id"},
        {", \"eos_token_id\": [1, -2]", Q_CORRUPT, "out of range"},
        {", \"eos_token_id\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", Q_CORRUPT, "17 entries"},
        {", \"rope_scaling\": {\"type\": \"linear\"}", Q_CORRUPT, "do not contain factor"},
        {", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}", Q_CORRUPT, "factor is 0"},
        {", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}", Q_CORRUPT,
         "do not contain"},
        {", \"rope_scaling\": {\"rope_type\": \"yarn\"}", Q_CORRUPT, "do not contain factor or"},
        {", \"rope_scaling\": 4", Q_CORRUPT, "expected an object"},
        {", \"rope_parameters\": {\"full_attention\": {}}", Q_UNSUPPORTED, "per layer type"},
        {", \"rope_theta\": 0", Q_CORRUPT, "rope_theta"},
        {", \"rms_norm_eps\": -1", Q_CORRUPT, "rms_norm_eps"},
        {"", Q_OK, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cases[i].code)
            assert_fails(load_text(cases[i].more), cases[i].code, cases[i].part, &e);
        else
            assert_ok(load_text(cases[i].more), &e);
}

static void test_refused_forward(void **state)
{
    (void)state;
    static const struct {
        const char *more, *part;
    } cases[] = {
        {", \"rope_scaling\": {\"type\": \"longrope\"}", "short_factor has 0 entries"},
        {", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1,1,1,1,1,1,1,0]}",
         "short_factor[7] is out of range"},
        {", \"rope_scaling\": {\"type\": \"su\", \"short_factor\": [1,1,1,1,1,1,1,\"2\"]}",
         "short_factor[7] is a string"},
        {", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1,1,1,1,1,1,1,1]}",
         "long_factor has 0 entries, expected a list of 8"},
        {NEOX ", \"rotary_pct\": 0.2",
         "rotary_pct 0.2 of head_dim 16 is 3 elements to rotate, expected an even number from 2"},
        {NEOX ", \"rotary_pct\": 1.5", "rotary_pct is 1.5"},
        {NEOX ", \"rotary_pct\": 0", "rotary_pct 0 of head_dim 16 is 0 elements"},
        {NEOX ", \"layer_norm_eps\": -1", "layer_norm_eps"},
        {NEOX ", \"use_parallel_residual\": 1", "use_parallel_residual"},
        {GEMMA ", \"attn_logit_softcapping\": -1", "attn_logit_softcapping"},
        {GEMMA ", \"final_logit_softcapping\": \"30\"", "final_logit_softcapping"},
        {GEMMA ", \"query_pre_attn_scalar\": 0", "query_pre_attn_scalar"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(load_text(cases[i].more), Q_CORRUPT, cases[i].part, &e);
}

#define LONG_WITH(more)                                                         \
    ", \"rope_scaling\": {\"type\": \"longrope\", "                             \
    "\"short_factor\": [1,1,1,1,1,1,1,1], \"long_factor\": [2,2,2,2,2,2,2,2], " \
    "\"original_max_position_embeddings\": 32" more "}"

/* Phi-3.5-MoE's names of the factor of cos and sin. */
static void test_mscales(void **state)
{
    (void)state;
    assert_ok(load_text(LONG_WITH(", \"short_mscale\": 1.25, \"long_mscale\": 1.25")), &e);
    assert_true(c.rope.attention_factor == 1.25);
    assert_ok(load_text(LONG_WITH("")), &e);
    assert_true(c.rope.attention_factor == 0);
    assert_fails(load_text(LONG_WITH(", \"short_mscale\": 1.25, \"long_mscale\": 1.5")),
                 Q_UNSUPPORTED, "short_mscale 1.25 and long_mscale 1.5 differ", &e);
}

/* head_dim is not given and what follows from the others is too large. */
static void test_refused_head(void **state)
{
    (void)state;
    struct folder f;
    folder_init(&f);
    folder_text(
        &f, "config.json",
        "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 512, \"hidden_size\": 5000, "
        "\"intermediate_size\": 96, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"max_position_embeddings\": 256}");
    assert_fails(model_config_load(&c, &g, f.path, &e), Q_CORRUPT, "head_dim above 4096", &e);
    folder_release(&f);
}

static void test_bad_files(void **state)
{
    (void)state;
    struct folder f;
    folder_init(&f);
    assert_fails(model_config_load(&c, &g, f.path, &e), Q_NOT_FOUND, "config.json", &e);
    folder_text(&f, "config.json", "");
    assert_fails(model_config_load(&c, &g, f.path, &e), Q_CORRUPT, "config.json is empty", &e);
    folder_text(&f, "config.json", "{");
    assert_fails(model_config_load(&c, &g, f.path, &e), Q_CORRUPT, "not valid JSON", &e);
    folder_text(&f, "config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
    assert_fails(model_config_load(&c, &g, f.path, &e), Q_CORRUPT, "is a Git LFS pointer", &e);
    folder_text(&f, "config.json", "[1]");
    assert_fails(model_config_load(&c, &g, f.path, &e), Q_CORRUPT, "a list", &e);
    folder_text(&f, "config.json", "{}");
    assert_fails(model_config_load(&c, &g, f.path, &e), Q_CORRUPT, "architectures is missing", &e);
    folder_text(&f, "config.json",
                "{\"architectures\": [\"LlamaForCausalLM\"], \"text_config\": {}}");
    assert_fails(model_config_load(&c, &g, f.path, &e), Q_UNSUPPORTED, "text_config", &e);
    struct buf deep = BUF_INIT;
    buf_add_str(&deep, "{\"a\":");
    for (int i = 0; i < 100000; i++)
        buf_add_char(&deep, '[');
    folder_write(&f, "config.json", deep.data, deep.len);
    buf_release(&deep);
    assert_fails(model_config_load(&c, &g, f.path, &e), Q_CORRUPT, "not valid JSON", &e);
    folder_release(&f);
}

/* What is wrong first: the architecture, then the sizes that it needs. */
static void test_architectures(void **state)
{
    (void)state;
    struct folder f;
    folder_init(&f);
    static const struct {
        const char *config;
        enum q_code code;
        const char *part;
    } cases[] = {
        {"{\"n_embd\": 768}", Q_CORRUPT,
         "architectures is missing, expected a list with one name: that of one of the model "
         "types afmoe, apertus, arcee, "},
        {"{\"architectures\": [\"Zamba2ForCausalLM\"]}", Q_UNSUPPORTED,
         "architecture Zamba2ForCausalLM is not supported; supported are those of the model types "
         "afmoe, apertus, "},
        {"{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"gpt2\", \"vocab_size\": 8}",
         Q_CORRUPT, "hidden_size (or n_embd) is missing"},
        {"{\"architectures\": [\"Qwen3VForCausalLM\"]}", Q_UNSUPPORTED,
         "Qwen3VForCausalLM is not supported, the most similar is Qwen3ForCausalLM; supported "
         "are"},
        {"{\"architectures\": [\"Qwen3MoeForTokenClassification\"]}", Q_UNSUPPORTED,
         "the most similar is Qwen3MoeForCausalLM;"},
        {"{\"architectures\": [\"LLaMAForCausalLM\"]}", Q_UNSUPPORTED,
         "the most similar is LlamaForCausalLM;"},
        {"{\"architectures\": [\"LlamaForCausalLM\"]}", Q_CORRUPT,
         "vocab_size is missing, expected a whole number from 1 to 16777216; LlamaForCausalLM "
         "requires "
         "vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, "
         "max_position_embeddings (more than one of these is missing)"},
        {"{\"architectures\": [\"MistralForCausalLM\"], \"vocab_size\": 512, \"hidden_size\": 64, "
         "\"intermediate_size\": 96, \"num_hidden_layers\": 3, \"max_position_embeddings\": 256}",
         Q_CORRUPT,
         "num_attention_heads is missing, expected a whole number from 1 to 4096; "
         "MistralForCausalLM requires"},
        {"{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": \"512\"}", Q_CORRUPT,
         "vocab_size is a string, expected a whole number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        folder_text(&f, "config.json", cases[i].config);
        assert_fails(model_config_load(&c, &g, f.path, &e), cases[i].code, cases[i].part, &e);
    }
    assert_fails(load_text(", \"quantization\": {\"group_size\": 64, \"bits\": 4}, "
                           "\"quantization_config\": {\"group_size\": 64, \"bits\": 4}"),
                 Q_UNSUPPORTED, "quantized by MLX", &e);
    assert_fails(load_text(", \"quantization_config\": {\"bits\": 4}"), Q_UNSUPPORTED,
                 "quant_method missing", &e);
    folder_release(&f);
}

static void test_generation_defaults(void **state)
{
    (void)state;
    struct folder f;
    folder_init(&f);
    folder_copy(&f, MODELS "llama", "config.json");
    assert_ok(model_config_load(&c, &g, f.path, &e), &e);
    assert_false(g.has_temperature || g.has_top_k || g.has_max_new_tokens);
    assert_int_equal(c.n_eos, 1);
    folder_text(&f, "generation_config.json",
                "{\"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95, \"min_p\": null, "
                "\"eos_token_id\": [3, 4, 5], "
                "\"repetition_penalty\": 1.1, \"max_new_tokens\": 99}");
    assert_ok(model_config_load(&c, &g, f.path, &e), &e);
    assert_true(g.has_temperature && g.temperature == 0.6 && g.has_top_k && g.top_k == 20);
    assert_true(g.has_top_p && g.top_p == 0.95 && !g.has_min_p && g.has_repetition_penalty);
    assert_true(g.has_max_new_tokens && g.max_new_tokens == 99);
    assert_int_equal(c.n_eos, 3);
    folder_text(&f, "generation_config.json", "{\"top_p\": 3}");
    assert_fails(model_config_load(&c, &g, f.path, &e), Q_CORRUPT, "top_p is 3", &e);
    folder_release(&f);
}

static void *fail_malloc(size_t n)
{
    return q_alloc(n);
}

/* Every allocation of a load fails once, jansson's too: an error, no leak, no crash. */
static void test_out_of_memory(void **state)
{
    (void)state;
    enum q_code rc = Q_NO_MEMORY;
    json_set_alloc_funcs(fail_malloc, q_free);
    for (int64_t n = 0; rc; n++) {
        assert_true(n < 5000);
        q_err_reset(&e);
        mem_fail_after(n);
        rc = model_config_load(&c, &g, MODELS "llama", &e);
        mem_fail_after(-1);
        assert_true(rc == e.code);
    }
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_falcon),
        cmocka_unit_test(test_dialects),
        cmocka_unit_test(test_golden_values),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_refused_forward),
        cmocka_unit_test(test_refused_head),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_architectures),
        cmocka_unit_test(test_generation_defaults),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_refused_experts),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_quantization),
        cmocka_unit_test(test_quantization_beside),
        cmocka_unit_test(test_refused_quantization),
        cmocka_unit_test(test_refused_torchao),
        cmocka_unit_test(test_other_experts),
        cmocka_unit_test(test_llama4),
        cmocka_unit_test(test_refused_other_experts),
        cmocka_unit_test(test_mscales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
