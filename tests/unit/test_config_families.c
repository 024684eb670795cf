/* SPDX-License-Identifier: Apache-2.0 */
/* What config.json says in families that spell something in their own way, and of text models that
 * are part of a model with other inputs. */
#include <math.h>
#include "common/hub/config.h"
#include "common/hub/nested.h"
#include "folder.h"

#define MODELS "tests/data/models/"
#define SIZES                                                               \
    "\"vocab_size\": 512, \"hidden_size\": 64, \"intermediate_size\": 96, " \
    "\"num_attention_heads\": 4"
#define BASE SIZES ", \"num_hidden_layers\": 4"
#define LONG ", \"max_position_embeddings\": 256"

static struct model_config c, d;
static struct generation_defaults g;
static struct q_err e;

static enum q_code load(const char *architecture, const char *type, const char *more)
{
    struct buf b = BUF_INIT;
    buf_printf(&b, "{\"architectures\": [\"%s\"], \"model_type\": \"%s\"%s}", architecture, type,
               more);
    const enum q_code rc = model_config_parse(&c, buf_str(&b), b.len, "config.json", &e);
    buf_release(&b);
    return rc;
}

/* config.json and config_v5.json of one model, byte for byte the same. */
static void test_dialects(void **state)
{
    static const char *const models[] = {
        "apertus",
        "arcee",
        "cwm",
        "ernie4_5",
        "glm",
        "helium",
        "hunyuan_v1_dense",
        "hyperclovax",
        "jais2",
        "minicpm3",
        "ministral",
        "ministral3",
        "nemotron",
        "olmo3",
        "phi4-mini",
        "seed_oss",
        "vaultgemma",
        "yi",
        "youtu",
        "gemma3-vision",
        "gemma3n",
        "gemma3n-two",
        "gemma4",
        "gemma4-dense",
        "gemma4-moe",
        "gemma4_unified",
        "cohere2_moe",
        "cohere2_moe-sigmoid",
        "mimo_v2_flash",
        "minimax",
        "olmo_hybrid",
        "olmo_hybrid-rope",
        "mistral3-vision",
        "qwen2_5-vision",
        "qwen3-vision",
    };
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char from[PATH_MAX], newer[PATH_MAX];
        struct buf b = BUF_INIT;
        struct folder f;
        snprintf(from, sizeof from, MODELS "%s", models[i]);
        snprintf(newer, sizeof newer, MODELS "%s/config_v5.json", models[i]);
        folder_init(&f);
        assert_ok(file_read(&b, newer, 1u << 20, &e), &e);
        folder_write(&f, "config.json", b.data, b.len);
        folder_copy(&f, from, "generation_config.json");
        assert_ok(model_config_load(&c, &g, from, &e), &e);
        assert_ok(model_config_load(&d, &g, f.path, &e), &e);
        for (size_t at = 0; at < sizeof c; at++)
            if (((const char *)&c)[at] != ((const char *)&d)[at])
                fail_msg("%s: config.json and config_v5.json differ at byte %zu", models[i], at);
        buf_release(&b);
        folder_release(&f);
    }
}

static void test_biases(void **state)
{
    (void)state;
    assert_ok(load("SeedOssForCausalLM", "seed_oss", "," BASE LONG), &e);
    assert_true(c.attention_bias && !c.attention_out_bias && !c.mlp_bias);
    assert_ok(
        load("SeedOssForCausalLM", "seed_oss", "," BASE LONG ", \"attention_out_bias\": true"), &e);
    assert_true(c.attention_out_bias);
    assert_ok(load("InternLM3ForCausalLM", "internlm3",
                   "," BASE LONG ", \"qkv_bias\": true, \"bias\": false"),
              &e);
    assert_true(c.attention_bias && !c.attention_out_bias && !c.mlp_bias);
    assert_ok(load("InternLM2ForCausalLM", "internlm2", "," BASE LONG ", \"bias\": false"), &e);
    assert_true(!c.attention_bias && !c.attention_out_bias);
    assert_ok(load("GlmForCausalLM", "glm", "," BASE LONG), &e);
    assert_true(c.attention_bias && !c.attention_out_bias && c.head_dim == 128);
}

/* Which of the Baichuans it is. */
static void test_baichuan(void **state)
{
    (void)state;
    assert_ok(load("BaiChuanForCausalLM", "baichuan", "," BASE LONG), &e);
    assert_true(!c.forward.alibi && !c.forward.unit_head && c.max_position == 256);
    assert_ok(load("BaichuanForCausalLM", "baichuan", "," BASE ", \"model_max_length\": 128"), &e);
    assert_true(c.forward.alibi && !c.forward.unit_head && c.max_position == 128);
    assert_ok(load("BaichuanForCausalLM", "baichuan", "," BASE LONG ", \"z_loss_weight\": 0"), &e);
    assert_true(!c.forward.alibi && c.forward.unit_head);
}

static void test_multipliers(void **state)
{
    (void)state;
    assert_ok(load("MiniCPMForCausalLM", "minicpm",
                   "," BASE LONG ", \"scale_emb\": 12, \"scale_depth\": 1.4, "
                   "\"dim_model_base\": 16"),
              &e);
    assert_true(c.forward.embedding_multiplier == 12 && c.forward.logit_multiplier == 0.25);
    assert_true(c.forward.residual_multiplier == 0.7);
    assert_ok(load("MiniCPM3ForCausalLM", "minicpm3",
                   "," BASE LONG ", \"scale_depth\": null, \"dim_model_base\": null"),
              &e);
    assert_true(c.forward.embedding_multiplier == 12 && c.forward.logit_multiplier == 1);
    assert_true(c.forward.residual_multiplier == 1 && c.latent.value == 16);
    assert_ok(
        load("HyperCLOVAXForCausalLM", "hyperclovax", "," BASE LONG ", \"logits_scaling\": 2"), &e);
    assert_true(c.forward.logit_multiplier == 2 && c.forward.attention_multiplier == 0);
    assert_true(c.forward.post_norms);
}

static void test_ropes(void **state)
{
    (void)state;
    assert_ok(load("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense",
                   "," BASE LONG ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 1, "
                   "\"alpha\": 16}"),
              &e);
    assert_true(c.rope.kind == ROPE_DEFAULT &&
                fabs(c.rope.theta - 1e4 * pow(16, 16 / 14.0)) < 1e-6);
    assert_ok(load("YoutuForCausalLM", "youtu", "," BASE LONG ", \"rope_interleave\": false"), &e);
    assert_true(c.forward.half_rope);
    assert_ok(load("ApertusForCausalLM", "apertus", "," BASE LONG), &e);
    assert_true(c.rope.kind == ROPE_LLAMA3 && c.rope.theta == 12e6 && c.rope.factor == 8);
    assert_ok(load("ApertusForCausalLM", "apertus",
                   "," BASE LONG ", \"rope_theta\": 500, \"rope_scaling\": null"),
              &e);
    assert_true(c.rope.kind == ROPE_LLAMA3 && c.rope.theta == 12e6);
    assert_ok(load("Ministral3ForCausalLM", "ministral3", "," BASE LONG), &e);
    assert_true(c.rope.kind == ROPE_YARN && c.forward.query_growth == 0.1 &&
                c.forward.query_length == 16384);
    assert_fails(load("Ministral3ForCausalLM", "ministral3",
                      "," BASE LONG ", \"rope_parameters\": {\"rope_type\": \"default\", "
                      "\"llama_4_scaling_beta\": 0.1}"),
                 Q_CORRUPT, "but not original_max_position_embeddings", &e);
    assert_ok(load("Olmo3ForCausalLM", "olmo3",
                   "," BASE LONG ", \"rope_theta\": 7000, \"rope_scaling\": {\"rope_type\": "
                   "\"yarn\", \"factor\": 4, \"original_max_position_embeddings\": 64}"),
              &e);
    assert_true(c.rope.kind == ROPE_YARN && c.local_rope.kind == ROPE_DEFAULT);
    assert_true(c.rope.theta == 7000 && c.local_rope.theta == 7000);
    assert_true(c.window[0] == 4096 && c.window[2] == 4096 && c.window[3] == 0);
}

static void test_refused(void **state)
{
    static const struct {
        const char *architecture, *type, *more, *part;
    } cases[] = {
        {"MiniCPMForCausalLM", "minicpm", "\"sparse_config\": {\"kernel_size\": 32}",
         "sparse_config is not supported for model_type \"minicpm\""},
        {"ApertusForCausalLM", "apertus", "\"post_norm\": true", "post_norm true"},
        {"HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", "\"use_cla\": true", "use_cla true"},
        {"HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", "\"use_qk_norm\": false",
         "use_qk_norm false"},
        {"YoutuForCausalLM", "youtu", "\"attention_bias\": true", "attention_bias true"},
        {"IQuestCoderForCausalLM", "iquestcoder", "\"clip_qkv\": 8", "clip_qkv is not supported"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char more[400];
        snprintf(more, sizeof more, "," BASE LONG ", %s", cases[i].more);
        assert_fails(load(cases[i].architecture, cases[i].type, more), Q_UNSUPPORTED, cases[i].part,
                     &e);
    }
}

/* What Python writes in place of numbers that JSON has not; in strings it is text. */
static void test_infinities(void **state)
{
    (void)state;
    assert_ok(load("LlamaForCausalLM", "llama",
                   "," BASE LONG ", \"limits\": [0.0, Infinity, -Infinity], \"rms_norm_eps\": NaN, "
                   "\"hidden_act\": \"\\\"Infinity\""),
              &e);
    assert_string_equal(c.hidden_act, "\"Infinity");
    assert_true(c.rms_norm_eps == 1e-6);
    assert_fails(load("LlamaForCausalLM", "llama", "," BASE LONG ", \"x\": Infinite"), Q_CORRUPT,
                 "not valid JSON at line 1", &e);
}

/* ---- text models ---- */

#define GEMMA3 "Gemma3ForConditionalGeneration"

static void test_nested(void **state)
{
    (void)state;
    assert_ok(load(GEMMA3, "gemma3",
                   ", \"eos_token_id\": [1, 106], \"torch_dtype\": \"bfloat16\", "
                   "\"vision_config\": {\"hidden_size\": 8}, \"text_config\": {\"model_type\": "
                   "\"gemma3_text\", \"hidden_size\": 2560, \"intermediate_size\": 10240, "
                   "\"num_hidden_layers\": 34, \"sliding_window\": 1024, \"eos_token_id\": 1, "
                   "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}}"),
              &e);
    assert_string_equal(c.architecture, "Gemma3ForCausalLM");
    assert_string_equal(c.outer, GEMMA3);
    assert_string_equal(nested_inputs(c.outer), "images");
    assert_true(c.vocab_size == 262208 && c.n_head == 8 && c.n_kv_head == 4 && c.head_dim == 256);
    assert_true(c.n_layer == 34 && c.window[0] == 1024 && c.window[5] == 0);
    assert_true(c.dtype == DT_BF16 && c.tie_word_embeddings && c.n_eos == 2);
    assert_true(c.rope.kind == ROPE_LINEAR && c.rope.factor == 8);
    assert_ok(load("InternVLChatModel", "internvl_chat",
                   ", \"llm_config\": {\"model_type\": \"internlm2\"," BASE LONG "}"),
              &e);
    assert_string_equal(c.architecture, "InternLM2ForCausalLM");
}

/* A model whose config.json is the text model's. */
static void test_flat(void **state)
{
    (void)state;
    assert_ok(load("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl",
                   "," BASE LONG ", \"vision_config\": {}, \"rope_scaling\": {\"type\": \"mrope\", "
                   "\"mrope_section\": [2, 3, 3]}"),
              &e);
    assert_string_equal(c.architecture, "Qwen2ForCausalLM");
    assert_string_equal(c.model_type, "qwen2");
    assert_true(c.rope.kind == ROPE_DEFAULT);
}

static void test_tied(void **state)
{
    static const struct {
        const char *outer, *inner;
        bool tied;
    } cases[] = {
        {"true", "false", true}, {"false", "true", true},  {"false", "false", false},
        {"true", "null", true},  {"false", "null", false}, {"null", "true", true},
        {"null", "null", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char more[500];
        snprintf(more, sizeof more,
                 ", \"tie_word_embeddings\": %s, \"text_config\": {\"model_type\": \"mistral\", "
                 "\"num_key_value_heads\": 2, \"tie_word_embeddings\": %s," BASE LONG "}",
                 cases[i].outer, cases[i].inner);
        assert_ok(load("Mistral3ForConditionalGeneration", "mistral3", more), &e);
        assert_int_equal(c.tie_word_embeddings, cases[i].tied);
    }
}

static void test_nested_refused(void **state)
{
    (void)state;
    assert_fails(load(GEMMA3, "gemma3", ", \"text_config\": [1]"), Q_CORRUPT,
                 "text_config is a list, expected an object", &e);
    assert_fails(load(GEMMA3, "gemma3", ", \"text_config\": {\"model_type\": \"zamba2\"}"),
                 Q_UNSUPPORTED,
                 "the text model of " GEMMA3 " is of model_type zamba2, which is not", &e);
    assert_fails(load("MllamaForConditionalGeneration", "mllama",
                      ", \"text_config\": {\"model_type\": \"mllama_text_model\"}"),
                 Q_UNSUPPORTED, "architecture MllamaForConditionalGeneration is not supported", &e);
    assert_fails(load("Qwen2VLForConditionalGeneration", "qwen2_vl", ", \"hidden_size\": 64"),
                 Q_CORRUPT, "vocab_size is missing", &e);
}

#define LFM2                                                                                 \
    "{\"architectures\": [\"Lfm2ForCausalLM\"], \"model_type\": \"lfm2\", \"hidden_size\": " \
    "2048, "                                                                                 \
    "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"num_hidden_layers\": 16, "   \
    "\"max_position_embeddings\": 128000, \"vocab_size\": 65536, \"block_ff_dim\": 12288, "  \
    "\"block_auto_adjust_ff_dim\": true, \"block_ffn_dim_multiplier\": 1.0, "                \
    "\"block_multiple_of\": 256, \"conv_L_cache\": 3, \"conv_bias\": false, "                \
    "\"norm_eps\": 1e-05, \"eos_token_id\": 7%s}"

/* LFM2-1.2B as the hub has it; then what of its layers is refused. */
static void test_mixers(void **state)
{
    static const struct {
        const char *more;
        enum q_code code;
        const char *part;
    } cases[] = {
        {", \"full_attn_idxs\": 4", Q_CORRUPT, "expected a list of layer numbers"},
        {", \"full_attn_idxs\": [16]", Q_CORRUPT, "expected a layer number below 16"},
        {", \"full_attn_idxs\": [-1]", Q_CORRUPT, "expected a layer number below 16"},
        {", \"layer_types\": [\"conv\"]", Q_CORRUPT, "layer_types has 1"},
        {", \"layer_types\": [\"mamba\",2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", Q_UNSUPPORTED,
         "expected full_attention or conv"},
        {", \"block_dim\": 2048, \"block_ffn_dim_multiplier_\": 0", Q_OK, ""},
    };
    char all[2048];
    (void)state;
    snprintf(all, sizeof all, LFM2, ", \"full_attn_idxs\": [2, 5, 8, 10, 12, 14]");
    assert_ok(model_config_parse(&c, all, strlen(all), "config.json", &e), &e);
    assert_int_equal(c.intermediate_size, 8192);
    assert_int_equal(c.mixer.conv_width, 3);
    assert_true(c.tie_word_embeddings && c.rope.theta == 1e6);
    for (uint32_t i = 0; i < 16; i++)
        assert_int_equal(model_config_has_kv(&c, i),
                         i == 2 || i == 5 || i == 8 || i == 10 || i == 12 || i == 14);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(all, sizeof all, LFM2, cases[i].more);
        if (cases[i].code)
            assert_fails(model_config_parse(&c, all, strlen(all), "config.json", &e), cases[i].code,
                         cases[i].part, &e);
        else
            assert_ok(model_config_parse(&c, all, strlen(all), "config.json", &e), &e);
    }
}

/* Of "M*-": Mamba, attention, an MLP. */
static void check_single_layers(void)
{
    assert_true(model_config_has_mixer(&c, 0) && !model_config_has_kv(&c, 0));
    assert_true(!model_config_has_mixer(&c, 1) && model_config_has_kv(&c, 1));
    assert_true(!model_config_has_mixer(&c, 2) && !model_config_has_kv(&c, 2));
    assert_true(c.mixer.no_mlp[0] && c.mixer.no_mlp[1] && !c.mixer.no_mlp[2]);
    assert_int_equal(c.moe.n_expert, 0);
}

/* State space models: sizes by each family's names, and what of them is refused. */
static void test_state_space(void **state)
{
#define SSM_SIZES "\"vocab_size\": 64, \"hidden_size\": 32, \"num_hidden_layers\": 3"
#define SSM_HEADS                                                                           \
    ", \"intermediate_size\": 48, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, " \
    "\"max_position_embeddings\": 64"
    static const char mamba2[] =
        "\"architectures\": [\"Mamba2ForCausalLM\"], \"model_type\": \"mamba2\", "
        "\"num_heads\": 4, \"head_dim\": 16, \"n_groups\": 2, " SSM_SIZES;
    static const char bamba[] =
        "\"architectures\": [\"BambaForCausalLM\"], \"model_type\": \"bamba\", "
        "\"mamba_n_heads\": 4, " SSM_SIZES SSM_HEADS;
    static const char jamba[] =
        "\"architectures\": [\"JambaForCausalLM\"], \"model_type\": \"jamba\", " SSM_SIZES
            SSM_HEADS;
    static const char nemotron[] =
        "\"architectures\": [\"NemotronHForCausalLM\"], \"model_type\": \"nemotron_h\", "
        "\"mamba_num_heads\": 4, \"mamba_head_dim\": 8, \"n_groups\": 1, " SSM_SIZES SSM_HEADS;
    static const char falcon[] =
        "\"architectures\": [\"FalconH1ForCausalLM\"], \"model_type\": "
        "\"falcon_h1\", \"mamba_n_heads\": 4, \"mamba_d_ssm\": 64, " SSM_SIZES SSM_HEADS;
    static const struct {
        const char *base, *more;
        enum q_code code;
        const char *part;
    } cases[] = {
        {mamba2, ", \"time_step_limit\": [0.0, Infinity]", Q_OK, ""},
        {mamba2, ", \"time_step_limit\": [0.5, {\"__float__\": \"Infinity\"}]", Q_OK, ""},
        {mamba2, ", \"time_step_limit\": [1]", Q_CORRUPT, "expected two numbers from 0 on"},
        {mamba2, ", \"time_step_limit\": [-1, 2]", Q_CORRUPT, "expected two numbers from 0 on"},
        {mamba2, ", \"expand\": 3", Q_CORRUPT, "do not make the 96 columns of the layer"},
        {mamba2, ", \"state_size\": 257", Q_CORRUPT, "state_size is 257"},
        {mamba2, ", \"conv_kernel\": 9", Q_CORRUPT, "conv_kernel is 9"},
        {mamba2, ", \"hidden_act\": \"gelu\"", Q_OK, ""}, /* refused by the program */
        {bamba, ", \"attn_layer_indices\": [1]", Q_OK, ""},
        {bamba, ", \"attn_layer_indices\": [3]", Q_CORRUPT, "expected a layer number below 3"},
        {bamba, ", \"mamba_d_head\": \"auto\", \"attention_bias\": true", Q_UNSUPPORTED,
         "attention_bias true is not supported"},
        {bamba, ", \"mamba_n_groups\": 3", Q_CORRUPT, "mamba_n_heads 4 is not a multiple of"},
        {jamba, ", \"attn_layer_period\": 2, \"attn_layer_offset\": 2", Q_CORRUPT,
         "attn_layer_offset is 2, expected less than attn_layer_period 2"},
        {jamba, ", \"mamba_dt_rank\": 0", Q_CORRUPT, "mamba_dt_rank is 0"},
        {nemotron, ", \"hybrid_override_pattern\": \"M*-\"", Q_OK, ""},
        {nemotron, ", \"hybrid_override_pattern\": \"M*\"", Q_CORRUPT, "has 2 letters"},
        {nemotron, ", \"hybrid_override_pattern\": \"M*X\"", Q_UNSUPPORTED,
         "has the letter X, expected M (Mamba), * (attention), - (MLP) and E (experts)"},
        {nemotron, ", \"hybrid_override_pattern\": \"M*E\", \"moe_latent_size\": 0", Q_CORRUPT,
         "moe_latent_size is 0"},
        {nemotron, ", \"hybrid_override_pattern\": \"M*-\", \"mamba_hidden_act\": \"relu\"",
         Q_UNSUPPORTED, "mamba_hidden_act \"relu\""},
        {falcon, ", \"mlp_multipliers\": [1, 0.5]", Q_OK, ""},
        {falcon, ", \"mlp_multipliers\": [1]", Q_CORRUPT, "expected a list of 2 numbers"},
        {falcon, ", \"ssm_multipliers\": 2", Q_CORRUPT, "expected a list of 5 numbers"},
        {falcon, ", \"projectors_bias\": true", Q_UNSUPPORTED, "projectors_bias true"},
    };
    char all[2048];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(all, sizeof all, "{%s%s}", cases[i].base, cases[i].more);
        if (cases[i].code)
            assert_fails(model_config_parse(&c, all, strlen(all), "config.json", &e), cases[i].code,
                         cases[i].part, &e);
        else
            assert_ok(model_config_parse(&c, all, strlen(all), "config.json", &e), &e);
        if (cases[i].base == nemotron && !cases[i].code)
            check_single_layers();
        if (cases[i].base == mamba2 && !cases[i].code) /* no length of its own */
            assert_int_equal(c.max_position, 1u << 15);
        if (cases[i].base == falcon && !cases[i].code)
            assert_true(model_config_has_mixer(&c, 2) && model_config_has_kv(&c, 2));
    }
}

/* Gemma 4: layers of two kinds, K and V that layers share, inputs of layers. */
static void test_kinds(void **state)
{
    static const char base[] =
        "\"architectures\": [\"Gemma4ForCausalLM\"], \"model_type\": \"gemma4_text\", "
        "\"vocab_size\": 64, \"hidden_size\": 32, \"intermediate_size\": 48, "
        "\"num_hidden_layers\": 6, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"head_dim\": 8, \"max_position_embeddings\": 64";
    static const struct {
        const char *more;
        enum q_code code;
        const char *part;
    } cases[] = {
        {"", Q_OK, ""},
        {", \"num_kv_shared_layers\": 1", Q_CORRUPT, "layer 5 has no K and V"},
        {", \"num_kv_shared_layers\": 6", Q_CORRUPT, "expected less than the 6 layers"},
        {", \"use_bidirectional_attention\": \"vision\"", Q_OK, ""},
        {", \"use_bidirectional_attention\": \"all\"", Q_UNSUPPORTED, "only null and \"vision\""},
        {", \"sliding_window\": null", Q_CORRUPT, "expected a number of tokens"},
        {", \"global_head_dim\": 7", Q_CORRUPT, "expected an even number"},
        {", \"attention_k_eq_v\": true, \"num_global_key_value_heads\": 3", Q_CORRUPT,
         "a divisor of num_attention_heads 4"},
        {", \"vocab_size_per_layer_input\": 63", Q_CORRUPT, "expected at least vocab_size 64"},
        {", \"per_layer_config\": {\"1\": {\"head_dim\": 16}}", Q_UNSUPPORTED,
         "per_layer_config[\"1\"]"},
        {", \"enable_moe_block\": true", Q_CORRUPT, "num_experts is missing"},
        {", \"num_experts\": 4", Q_OK, ""}, /* without the switch it does not count */
    };
    char all[2048];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(all, sizeof all, "{%s%s}", base, cases[i].more);
        if (cases[i].code)
            assert_fails(model_config_parse(&c, all, strlen(all), "config.json", &e), cases[i].code,
                         cases[i].part, &e);
        else
            assert_ok(model_config_parse(&c, all, strlen(all), "config.json", &e), &e);
        if (cases[i].code)
            continue;
        assert_int_equal(c.window[0], 512);
        assert_int_equal(c.window[5], 0);
        assert_int_equal(model_config_head_dim(&c, 0), 8);
        assert_int_equal(model_config_head_dim(&c, 5), 512);
        assert_int_equal(model_config_kv_heads(&c, 5), 2);
        assert_int_equal(c.layers.input, 256);
        assert_int_equal(c.rope.kind, ROPE_PROPORTIONAL);
        assert_true(c.rope.proportion == 0.25 && c.rope.theta == 1e6 && c.local_rope.theta == 1e4);
    }
}

static enum q_code load_three(const char *architecture, const char *type, const char *more)
{
    char all[1024];
    snprintf(all, sizeof all,
             ", \"vocab_size\": 64, \"hidden_size\": 32, \"intermediate_size\": 48, "
             "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"num_hidden_layers\": 3" LONG
             ", %s",
             more);
    return load(architecture, type, all);
}

/* Families of which a layer differs from its neighbours in more than its mixer or window. */
static void test_mixed(void **state)
{
    static const struct {
        const char *architecture, *type, *more;
        enum q_code code;
        const char *part;
    } cases[] = {
        {"OlmoHybridForCausalLM", "olmo_hybrid", "\"attention_bias\": true", Q_UNSUPPORTED,
         "attention_bias true"},
        {"OlmoHybridForCausalLM", "olmo_hybrid", "\"layer_types\": [\"full_attention\"]", Q_CORRUPT,
         "layer_types has 1 entries"},
        {"OlmoHybridForCausalLM", "olmo_hybrid", "\"linear_num_key_heads\": 3", Q_CORRUPT,
         "linear_num_value_heads 4 is not a multiple of linear_num_key_heads 3"},
        {"OlmoHybridForCausalLM", "olmo_hybrid", "\"linear_key_head_dim\": 200", Q_CORRUPT,
         "heads of 200 and 400 elements, expected 1 to 256"},
        {"MiniMaxForCausalLM", "minimax", "\"sliding_window\": 16", Q_UNSUPPORTED,
         "sliding_window is not supported"},
        {"MiniMaxForCausalLM", "minimax", "\"postnorm\": false", Q_UNSUPPORTED, "postnorm false"},
        {"MiniMaxForCausalLM", "minimax", "\"attn_type_list\": [0, 2, 0]", Q_CORRUPT,
         "attn_type_list[1] is out of range"},
        {"MiniMaxForCausalLM", "minimax", "\"head_dim\": 512", Q_UNSUPPORTED,
         "head_dim 512 is not supported"},
        {"MiniMaxForCausalLM", "minimax", "\"mlp_beta_factor\": 0", Q_CORRUPT, "mlp_beta_factor"},
        {"Cohere2MoeForCausalLM", "cohere2_moe", "\"expert_selection_fn\": \"tanh\"", Q_UNSUPPORTED,
         "expected softmax or sigmoid"},
        {"Cohere2MoeForCausalLM", "cohere2_moe", "\"shared_expert_combination_strategy\": \"max\"",
         Q_UNSUPPORTED, "expected average or sum"},
        {"MiMoV2FlashForCausalLM", "mimo_v2_flash", "\"hybrid_layer_pattern\": [0, 1]", Q_CORRUPT,
         "hybrid_layer_pattern has 2 entries"},
        {"MiMoV2FlashForCausalLM", "mimo_v2_flash", "\"hybrid_layer_pattern\": [0, 1, 2]",
         Q_CORRUPT, "hybrid_layer_pattern[2] is out of range"},
        {"MiMoV2FlashForCausalLM", "mimo_v2_flash", "\"moe_layer_freq\": [0, true, 1]", Q_CORRUPT,
         "moe_layer_freq[1] is"},
        {"MiMoV2FlashForCausalLM", "mimo_v2_flash", "\"add_full_attention_sink_bias\": true",
         Q_UNSUPPORTED, "add_full_attention_sink_bias true"},
        {"MiMoV2FlashForCausalLM", "mimo_v2_flash", "\"swa_head_dim\": 64", Q_UNSUPPORTED,
         "swa_head_dim 64 is not supported, only 192"},
        {"MiMoV2FlashForCausalLM", "mimo_v2_flash", "\"v_head_dim\": 200", Q_CORRUPT,
         "v_head_dim is 200, expected at most head_dim 192"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(load_three(cases[i].architecture, cases[i].type, cases[i].more), cases[i].code,
                     cases[i].part, &e);
    assert_ok(load_three("OlmoHybridForCausalLM", "olmo_hybrid", "\"bos_token_id\": 1"), &e);
    assert_true(c.mixer.key_dim == 6 && c.mixer.value_dim == 12 && c.mixer.negative);
    assert_true(model_config_has_mixer(&c, 1) && model_config_has_kv(&c, 2)); /* the last of 3 */
    assert_false(c.no_rope[2]);
    assert_ok(load_three("OlmoHybridForCausalLM", "olmo_hybrid", "\"rope_theta\": null"), &e);
    assert_true(c.no_rope[2]);
    assert_ok(load_three("MiniMaxForCausalLM", "minimax", "\"mlp_alpha_factor\": 3.5"), &e);
    assert_true(model_config_has_kv(&c, 0) && model_config_has_mixer(&c, 1));
    assert_true(c.forward.mlp_kept == 3.5 && c.forward.mlp_out == 0 && c.rope.theta == 1e6);
    assert_ok(load_three("MiniMaxM1ForCausalLM", "minimax_m1",
                         "\"attn_type_list\": [0, 1, 0], \"rotary_dim\": 4, \"postnorm\": true, "
                         "\"layernorm_full_attention_alpha\": 2"),
              &e);
    assert_string_equal(c.model_type, "minimax");
    assert_true(model_config_has_mixer(&c, 0) && model_config_has_kv(&c, 1));
    assert_true(model_config_n_rot(&c) == 4 && c.forward.attention_kept == 2);
    assert_ok(load_three("Cohere2MoeForCausalLM", "cohere2_moe", "\"num_shared_experts\": 1"), &e);
    assert_true(c.moe.averages && !c.moe.sigmoid && !c.forward.rms_norm && c.head_dim == 128);
    assert_ok(load_three("MiMoV2FlashForCausalLM", "mimo_v2_flash", "\"sliding_window_size\": 128"),
              &e);
    assert_true(c.window[0] == 0 && c.window[1] == 129 && c.n_kv_head == 4);
    assert_true(model_config_kv_heads(&c, 0) == 2 && c.layers.value_dim == 128);
    assert_true(model_config_n_rot(&c) == 64 && model_config_n_rot_wide(&c) == 64);
    assert_true(c.forward.value == 0.707 && !c.moe.layers[0] && c.moe.layers[1]);
}

/* Gemma 3n: several residual streams, sparse gates, a width of each layer. */
static void test_streams(void **state)
{
    static const char base[] =
        "\"architectures\": [\"Gemma3nForCausalLM\"], \"model_type\": \"gemma3n_text\", "
        "\"vocab_size\": 64, \"hidden_size\": 32, \"num_hidden_layers\": 12, "
        "\"num_attention_heads\": 4, \"head_dim\": 8, \"max_position_embeddings\": 64";
    static const struct {
        const char *more;
        enum q_code code;
        const char *part;
    } cases[] = {
        {", \"intermediate_size\": 48", Q_OK, ""},
        {", \"intermediate_size\": [48, 48, 48, 48, 48, 48, 48, 48, 48, 48, 48, 48]", Q_OK, ""},
        {", \"intermediate_size\": [48, 48]", Q_CORRUPT, "expected num_hidden_layers = 12"},
        {", \"intermediate_size\": [48, 40]", Q_UNSUPPORTED, "intermediate_size[1]"},
        {", \"intermediate_size\": [\"48\"]", Q_CORRUPT, "intermediate_size[0]"},
        {", \"intermediate_size\": 48, \"activation_sparsity_pattern\": [0.5]", Q_CORRUPT,
         "a list of 1 entries"},
        {", \"intermediate_size\": 48, \"activation_sparsity_pattern\": 0.5", Q_CORRUPT,
         "one number for each of the 12 layers"},
        {", \"intermediate_size\": 48, \"activation_sparsity_pattern\": "
         "[0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]",
         Q_CORRUPT, "activation_sparsity_pattern[2]"},
        {", \"intermediate_size\": 48, \"altup_num_inputs\": 5", Q_CORRUPT, "expected 2 to 4"},
        {", \"intermediate_size\": 48, \"altup_active_idx\": 1", Q_UNSUPPORTED, "expected 0"},
        {", \"intermediate_size\": 48, \"laurel_rank\": 0", Q_CORRUPT, "laurel_rank"},
        {", \"intermediate_size\": 48, \"num_kv_shared_layers\": 9", Q_CORRUPT,
         "layer 4 has no K and V"},
    };
    char all[2048];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(all, sizeof all, "{%s%s}", base, cases[i].more);
        if (cases[i].code) {
            assert_fails(model_config_parse(&c, all, strlen(all), "config.json", &e), cases[i].code,
                         cases[i].part, &e);
            continue;
        }
        assert_ok(model_config_parse(&c, all, strlen(all), "config.json", &e), &e);
        assert_int_equal(c.intermediate_size, 48);
        assert_int_equal(c.n_kv_head, 2);
        assert_int_equal(c.window[3], 512);
        assert_int_equal(c.window[4], 0);
        assert_int_equal(c.window[11], 512);
        assert_int_equal(c.layers.n_kv_reader, 0); /* 15 by default, of which none is left */
        assert_int_equal(c.layers.input_vocab, 1 << 18);
        assert_true(c.streams.n == 4 && c.streams.rank == 64 && c.streams.scaled);
        assert_true(c.streams.sparsity[9] == 0.95f && c.streams.sparsity[10] == 0);
        assert_true(c.rope.theta == 1e6 && c.local_rope.theta == 1e4);
    }
    assert_true(fabs(config_normal_quantile(0.95) - 1.6448536269514722) < 1e-14);
    assert_true(fabs(config_normal_quantile(1e-9) + 5.9978070150076865) < 1e-12);
}

/* Without a window's length all layers are rotated, with one only those that have it. */
static void test_rope_in_windows(void **state)
{
    (void)state;
    static const char all_full[] =
        "\"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\"]%s";
    char more[256];
    snprintf(more, sizeof more, all_full, "");
    assert_ok(load_three("Exaone4ForCausalLM", "exaone4", more), &e);
    assert_true(c.no_rope[0] && c.no_rope[2] && !c.window[0]); /* 4096 is the default */
    snprintf(more, sizeof more, all_full, ", \"sliding_window\": null");
    assert_ok(load_three("Exaone4ForCausalLM", "exaone4", more), &e);
    assert_true(!c.no_rope[0] && !c.no_rope[2] && !c.window[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dialects),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_baichuan),
        cmocka_unit_test(test_multipliers),
        cmocka_unit_test(test_ropes),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_infinities),
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_flat),
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_nested_refused),
        cmocka_unit_test(test_mixers),
        cmocka_unit_test(test_state_space),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_rope_in_windows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
