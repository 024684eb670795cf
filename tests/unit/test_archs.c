/* SPDX-License-Identifier: Apache-2.0 */
/* Architectures that are not served, each refused by its name; the one of a config that names none;
 * and what the config of some families may not ask for. */
#include <string.h>
#include "check.h"
#include "common/hub/archs.h"
#include "common/hub/config.h"

static struct model_config c;
static struct q_err e = Q_ERR_INIT;

/* Of transformers 5.23 every …ForCausalLM and …LMHeadModel that archs.def has not. A family that is
 * added leaves the list. */
static const char *const refused[] = {
    // clang-format off
    "AXK1ForCausalLM",
    "AXK2ForCausalLM",
    "AriaTextForCausalLM",
    "BailingHybridForCausalLM",
    "BartForCausalLM",
    "BeamForCausalLM",
    "BertGenerationDecoder",
    "BertLMHeadModel",
    "BigBirdForCausalLM",
    "BigBirdPegasusForCausalLM",
    "BitNetForCausalLM",
    "BlenderbotForCausalLM",
    "BlenderbotSmallForCausalLM",
    "BlipTextLMHeadModel",
    "BltForCausalLM",
    "CTRLLMHeadModel",
    "CamembertForCausalLM",
    "ClvpForCausalLM",
    "CohereCompassForCausalLM",
    "CpmAntForCausalLM",
    "CsmDepthDecoderForCausalLM",
    "Data2VecTextForCausalLM",
    "DeepseekV32ForCausalLM",
    "DeepseekV4ForCausalLM",
    "DiffLlamaForCausalLM",
    "DogeForCausalLM",
    "Dots3NoteForCausalLM",
    "ElectraForCausalLM",
    "Emu3ForCausalLM",
    "ErnieForCausalLM",
    "FlaubertWithLMHeadModel",
    "FlintForCausalLM",
    "FuyuForCausalLM",
    "GPTNeoXJapaneseForCausalLM",
    "Gemma4AssistantForCausalLM",
    "Gemma4UnifiedAssistantForCausalLM",
    "GitForCausalLM",
    "GlmMoeDsaForCausalLM",
    "HYV4ForCausalLM",
    "HrmTextForCausalLM",
    "Inkling2ForCausalLM",
    "InklingForCausalLM",
    "JetMoeForCausalLM",
    "KimiLinearForCausalLM",
    "Kolibri1ForCausalLM",
    "Kosmos2TextForCausalLM",
    "Kosmos2_5TextForCausalLM",
    "LagunaForCausalLM",
    "Lfm3ForCausalLM",
    "LongcatFlashForCausalLM",
    "MBartForCausalLM",
    "MarianForCausalLM",
    "MegatronBertForCausalLM",
    "MiniMaxM3VLForCausalLM",
    "MllamaForCausalLM",
    "ModernBertDecoderForCausalLM",
    "MoshiForCausalLM",
    "MusicgenForCausalLM",
    "MusicgenMelodyForCausalLM",
    "MvpForCausalLM",
    "OpenAIGPTLMHeadModel",
    "PLBartForCausalLM",
    "PegasusForCausalLM",
    "PersimmonForCausalLM",
    "Phi4MultimodalForCausalLM",
    "ProphetNetForCausalLM",
    "Qwen4ExpForCausalLM",
    "RecurrentGemmaForCausalLM",
    "ReformerModelWithLMHead",
    "RemBertForCausalLM",
    "RoCBertForCausalLM",
    "RoFormerForCausalLM",
    "RobertaForCausalLM",
    "RobertaPreLayerNormForCausalLM",
    "RwkvForCausalLM",
    "TrOCRForCausalLM",
    "WhisperForCausalLM",
    "XGLMForCausalLM",
    "XLMRobertaForCausalLM",
    "XLMRobertaXLForCausalLM",
    "XLMWithLMHeadModel",
    "XLNetLMHeadModel",
    "XmodForCausalLM",
    "Zamba2ForCausalLM",
    "ZambaForCausalLM",
    "ZayaForCausalLM",
    "xLSTMForCausalLM",
    // clang-format on
};

static enum q_code parse(const char *format, const char *value)
{
    char text[1024];
    const int n = snprintf(text, sizeof text, format, value);
    assert_true(n > 0 && (size_t)n < sizeof text);
    return model_config_parse(&c, text, (size_t)n, "config.json", &e);
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_null(archs_base(refused[i], NULL));
        assert_int_equal(parse("{\"architectures\": [\"%s\"], \"hidden_size\": 64}", refused[i]),
                         Q_UNSUPPORTED);
        if (!strstr(e.message, refused[i]) || !strstr(e.message, "supported are those of") ||
            !strstr(e.message, " more (quire check-model --help lists all), others by plugins "
                               "(--plugin)"))
            fail_msg("%s: %s", refused[i], e.message);
        q_err_reset(&e);
    }
}

/* A config.json without an architecture has that of its model_type. */
static void test_absent(void **state)
{
    (void)state;
    static const struct {
        const char *names, *part;
    } cases[] = {
        {"\"architectures\": [], \"model_type\": \"qwen2_moe\"", "Qwen2MoeForCausalLM requires"},
        {"\"architectures\": null, \"model_type\": \"bert\"", "BertModel requires"},
        {"\"model_type\": \"gpt2\"", "GPT2LMHeadModel requires"},
        {"\"model_type\": \"xlm-roberta\"", "XLMRobertaModel requires"},
        {"\"model_type\": \"zamba2\"", "architectures is missing"},
        {"\"architectures\": \"GPT2LMHeadModel\", \"model_type\": \"gpt2\"",
         "architectures is a string, expected a list with one name: GPT2LMHeadModel, for"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(parse("{%s}", cases[i].names), Q_CORRUPT, cases[i].part, &e);
}

/* Whole numbers of any length, as tokenizers have them for "no limit". */
static void test_long_numbers(void **state)
{
    (void)state;
    static const char sizes[] =
        "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 64, \"hidden_size\": 64, "
        "\"intermediate_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"max_position_embeddings\": 64, %s}";
    assert_ok(parse(sizes, "\"a\": 1000000000000000019884624838656, \"b\": [9223372036854775808, "
                           "-1000000000000000000000], \"c\": 0.12345678901234567890123, "
                           "\"hidden_act\": \"1000000000000000019884624838656\", "
                           "\"rope_theta\": 1000000000000000"),
              &e);
    assert_true(c.rope.theta == 1e15);
    assert_string_equal(c.hidden_act, "1000000000000000019884624838656");
    assert_fails(parse(sizes, "\"num_key_value_heads\": 1000000000000000019884624838656"),
                 Q_CORRUPT, "num_key_value_heads is a number, expected a whole number", &e);
}

#define SIZES "\"vocab_size\": 64, \"hidden_size\": 64, \"intermediate_size\": 64, "
#define HEADS "\"num_attention_heads\": 4, \"max_position_embeddings\": 64"
#define GRANITE                                                                                \
    "{\"architectures\": [\"GraniteSWAForCausalLM\"], \"model_type\": \"granite_swa\", " SIZES \
        HEADS ", \"num_hidden_layers\": 4%s}"
#define NEO                                                                            \
    "{\"architectures\": [\"GPTNeoForCausalLM\"], \"model_type\": \"gpt_neo\", " SIZES \
    "\"num_layers\": 4, \"num_heads\": 4, \"max_position_embeddings\": 64%s}"
#define MPT                                                                                   \
    "{\"architectures\": [\"MptForCausalLM\"], \"model_type\": \"mpt\", \"vocab_size\": 64, " \
    "\"d_model\": 64, \"n_heads\": 4, \"n_layers\": 2, \"max_seq_len\": 64%s}"
#define BIGCODE                                                                          \
    "{\"architectures\": [\"GPTBigCodeForCausalLM\"], \"model_type\": \"gpt_bigcode\", " \
    "\"vocab_size\": 64, \"n_embd\": 64, \"n_head\": 4, \"n_layer\": 2, \"n_positions\": 64%s}"

#define DBRX                                                                                    \
    "{\"architectures\": [\"DbrxForCausalLM\"], \"model_type\": \"dbrx\", \"vocab_size\": 64, " \
    "\"d_model\": 64, \"n_heads\": 4, \"n_layers\": 2, \"max_seq_len\": 64, \"ffn_config\": "   \
    "{\"ffn_hidden_size\": 64, \"hidden_size\": 6144%s}}"

#define OSS                                                                                  \
    "{\"architectures\": [\"GptOssForCausalLM\"], \"model_type\": \"gpt_oss\", " SIZES HEADS \
    ", \"num_hidden_layers\": 2, \"head_dim\": 16%s}"
#define MODERN                                                                                \
    "{\"architectures\": [\"ModernBertModel\"], \"model_type\": \"modernbert\", " SIZES HEADS \
    ", \"num_hidden_layers\": 2%s}"
#define DEEPSEEK_2                                                                             \
    "{\"architectures\": [\"DeepseekV2ForCausalLM\"], \"model_type\": \"deepseek_v2\", " SIZES \
        HEADS ", \"num_hidden_layers\": 2%s}"

static void test_config_refused(void **state)
{
    (void)state;
    static const struct {
        const char *base, *more;
        enum q_code code;
        const char *part;
    } cases[] = {
        {DBRX, ", \"moe_normalize_expert_weights\": 2", Q_UNSUPPORTED,
         "moe_normalize_expert_weights is not supported, only 1 and null"},
        {DBRX, ", \"moe_top_k\": 5", Q_CORRUPT, "num_experts_per_tok is 5, expected at most"},
        {DBRX, ", \"ffn_act_fn\": 1", Q_CORRUPT,
         "ffn_act_fn is a whole number, expected an object"},
        {GRANITE, ", \"layer_rope_theta\": [0, 10]", Q_CORRUPT, "layer_rope_theta has 2 entries"},
        {GRANITE, ", \"layer_rope_theta\": [0, 10, 20, 10]", Q_UNSUPPORTED,
         "layer_rope_theta[2] is 20, which is not supported beside 10"},
        {GRANITE, ", \"layer_rope_theta\": [0, 10, \"x\", 10]", Q_CORRUPT,
         "layer_rope_theta[2] is"},
        {GRANITE, ", \"layer_rope_theta\": [0, 10, 0.5, 10]", Q_CORRUPT,
         "layer_rope_theta[2] is out of range"},
        {GRANITE, ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}", Q_UNSUPPORTED,
         "depends on the prompt's length"},
        {NEO, ", \"attention_types\": [[[\"global\"], 3]]", Q_CORRUPT,
         "attention_types has 3 layers, expected num_layers = 4"},
        {NEO, ", \"attention_types\": [[[\"global\", \"far\"], 2]]", Q_UNSUPPORTED,
         "attention_types[0] has the kind \"far\""},
        {NEO, ", \"attention_types\": [[[\"global\"], 4000000000]]", Q_CORRUPT,
         "attention_types has"},
        {NEO, ", \"attention_types\": [[[\"global\", \"local\"], 3]]", Q_CORRUPT,
         "attention_types has 6 layers"},
        {NEO, ", \"attention_types\": 5", Q_CORRUPT, "attention_types has 0 layers"},
        {MPT, ", \"attn_config\": 5", Q_CORRUPT, "attn_config is"},
        {MPT, ", \"attn_config\": {\"qk_ln\": true}", Q_UNSUPPORTED, "qk_ln true is not supported"},
        {MPT, ", \"attn_config\": {\"alibi\": false}", Q_UNSUPPORTED,
         "alibi false is not supported"},
        {MPT, ", \"no_bias\": false", Q_UNSUPPORTED, "no_bias false is not supported"},
        {MPT, ", \"logit_scale\": \"inv_sqrt_d_model\"", Q_UNSUPPORTED,
         "logit_scale is not supported"},
        {OSS, ", \"swiglu_alpha\": 1.5", Q_UNSUPPORTED, "swiglu_alpha 1.5 is not supported"},
        {OSS, ", \"swiglu_alpha\": \"x\"", Q_CORRUPT, "swiglu_alpha is"},
        {MODERN, ", \"classifier_activation\": \"relu\"", Q_UNSUPPORTED,
         "classifier_activation \"relu\" is not supported"},
        {DEEPSEEK_2, ", \"mlp_bias\": true", Q_UNSUPPORTED, "mlp_bias true is not supported"},
        {BIGCODE, ", \"add_cross_attention\": true", Q_UNSUPPORTED, "add_cross_attention true"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(parse(cases[i].base, cases[i].more), cases[i].code, cases[i].part, &e);
}

/* What is read where keys are absent, as transformers' configs have it. */
static void test_defaults(void **state)
{
    (void)state;
    assert_ok(parse(GRANITE, ""), &e);
    assert_true(c.window[0] == 0 && c.window[1] == 128 && c.window[3] == 128);
    assert_true(!c.no_rope[0] && c.rope.theta == 1e4 && c.local_rope.theta == 1e4);
    assert_true(c.n_kv_head == 4 && c.tie_word_embeddings);
    assert_ok(parse(GRANITE, ", \"layer_rope_theta\": [0, 500, 500, 500], \"rope_theta\": 9"), &e);
    assert_true(c.no_rope[0] && !c.no_rope[1] && c.local_rope.theta == 500);
    assert_ok(parse(NEO, ""), &e);
    assert_true(c.window[0] == 0 && c.window[1] == 256 && c.window[2] == 0 && c.window[3] == 256);
    assert_true(c.forward.attention_multiplier == 1);
    assert_ok(parse(MPT, ", \"attn_config\": {\"clip_qkv\": 6, \"softmax_scale\": 0.5}"), &e);
    assert_true(c.forward.clip == 6 && c.forward.attention_multiplier == 0.5);
    assert_true(c.intermediate_size == 256);
    assert_ok(parse(OSS, ", \"swiglu_alpha\": 1.702"), &e);
    assert_ok(parse(MODERN, ", \"classifier_activation\": \"gelu\""), &e);
    assert_ok(parse(DEEPSEEK_2, ", \"mlp_bias\": false"), &e);
    assert_ok(parse(BIGCODE, ""), &e);
    assert_int_equal(c.n_kv_head, 1);
    assert_ok(parse(BIGCODE, ", \"multi_query\": false"), &e);
    assert_int_equal(c.n_kv_head, 4);
    assert_ok(parse("{\"architectures\": [\"GPT2LMHeadModel\"], \"model_type\": \"%s\", "
                    "\"vocab_size\": 64, \"n_embd\": 64, \"n_head\": 4, \"n_layer\": 2, "
                    "\"n_positions\": 64}",
                    "gpt-sw3"),
              &e);
    assert_string_equal(c.model_type, "gpt2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_absent),
        cmocka_unit_test(test_long_numbers), cmocka_unit_test(test_config_refused),
        cmocka_unit_test(test_defaults),
    };
    return cmocka_run_group_tests_name("archs", tests, NULL, NULL);
}
