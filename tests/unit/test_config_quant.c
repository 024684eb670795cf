/* SPDX-License-Identifier: Apache-2.0 */
/* quantization_config of HQQ, compressed-tensors' integers of 2 to 8 bits, whether inputs of fp8
 * are dynamic, and what tools write seldom; the rest is in test_config.c. */
#include "common/hub/config.h"
#include "check.h"

static struct model_config c;
static struct q_err e;

/* A config.json with this quantization_config. */
static enum q_code load(const char *quantization)
{
    char text[1024];
    const int n = snprintf(text, sizeof text,
                           "{\"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 512, "
                           "\"hidden_size\": 64, \"intermediate_size\": 96, "
                           "\"num_hidden_layers\": 3, \"num_attention_heads\": 4, "
                           "\"max_position_embeddings\": 256, \"quantization_config\": %s}",
                           quantization);
    assert_true(n > 0 && (size_t)n < sizeof text);
    return model_config_parse(&c, text, (size_t)n, "config.json", &e);
}

#define HQQ(config)    "{\"quant_method\": \"hqq\", \"quant_config\": " config "}"
#define PARAMS(params) "{\"weight_quant_params\": {" params "}}"
#define GROUP(format, weights) \
    "{\"format\": \"" format "\", \"weights\": {" weights ", \"type\": \"int\"}}"
#define COMPRESSED(groups) \
    "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {" groups "}}"
#define GPTQ(more)      "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 128, " more "}"
#define IN_GROUPS(bits) "\"num_bits\": " bits ", \"strategy\": \"group\", \"group_size\": 128"

static void test_accepted(void **state)
{
    static const struct {
        const char *text;
        enum quant_method method;
        uint32_t bits, group, group_bits, whole_bits;
    } all[] = {
        {HQQ(PARAMS("\"nbits\": 3, \"group_size\": 64, \"axis\": 1")), QUANT_HQQ, 3, 0, 0, 0},
        {HQQ("{\"a\": " PARAMS("\"nbits\": 4") ", \"b\": " PARAMS("\"nbits\": 8") "}"), QUANT_HQQ,
         8, 0, 0, 0},
        {COMPRESSED("\"a\": " GROUP("pack-quantized", IN_GROUPS("5"))), QUANT_PACKED, 5, 128, 0, 0},
        {COMPRESSED("\"a\": " GROUP("pack-quantized", IN_GROUPS("2"))), QUANT_PACKED, 2, 128, 0, 0},
        {COMPRESSED("\"a\": " GROUP("int-quantized", IN_GROUPS("4") ", \"symmetric\": false")),
         QUANT_INT8, 4, 128, 4, 0},
        {COMPRESSED("\"a\": " GROUP("int-quantized", "\"num_bits\": 8")), QUANT_INT8, 8, 0, 0, 8},
        {COMPRESSED("\"a\": " GROUP("int-quantized", IN_GROUPS("4")) ", \"b\": " GROUP(
             "int-quantized", "\"num_bits\": 8")),
         QUANT_PACKED, 4, 128, 4, 8},
        {GPTQ("\"format\": \"gptq_v2\""), QUANT_GPTQ, 4, 128, 0, 0},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"checkpoint_format\": \"gemv\"}",
         QUANT_AWQ_ROWS, 4, 0, 0, 0},
        {"{\"quant_method\": \"intel/auto-round\", \"bits\": 4, \"group_size\": 128, "
         "\"backend\": \"auto_round:gptq:exllamav2\"}",
         QUANT_GPTQ, 4, 128, 0, 0},
        {"{\"quant_method\": \"compressed-tensors\", \"config_groups\": {}, \"kv_cache_scheme\": "
         "{\"num_bits\": 8}}",
         QUANT_NONE, 0, 0, 0, 0},
        {"{\"quant_method\": \"compressed-tensors\", \"transform_config\": {}, "
         "\"sparsity_config\": {\"format\": \"dense\"}, \"config_groups\": {\"a\": " GROUP(
             "pack-quantized", IN_GROUPS("4")) "}}",
         QUANT_PACKED, 4, 128, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_ok(load(all[i].text), &e);
        assert_int_equal(c.quant.method, all[i].method);
        assert_int_equal(c.quant.bits, all[i].bits);
        assert_int_equal(c.quant.group_size, all[i].group);
        assert_int_equal(c.quant.group_bits, all[i].group_bits);
        assert_int_equal(c.quant.whole_bits, all[i].whole_bits);
        assert_int_equal(c.quant.zeros_less_one,
                         all[i].method == QUANT_GPTQ && !strstr(all[i].text, "gptq_v2"));
    }
}

static void test_refused(void **state)
{
    static const struct {
        const char *text;
        enum q_code code;
        const char *part;
    } all[] = {
        {"{\"quant_method\": \"hqq\"}", Q_CORRUPT, "hqq's quant_config is"},
        {HQQ("{}"), Q_CORRUPT, "hqq's quant_config is"},
        {HQQ("{\"mlp.up_proj\": {}}"), Q_CORRUPT, "hqq's weight_quant_params is"},
        {HQQ("{\"mlp.up_proj\": 3}"), Q_CORRUPT, "quant_config.mlp.up_proj is a whole number"},
        {HQQ(PARAMS("\"nbits\": 1")), Q_UNSUPPORTED, "nbits 1 are not supported, expected 2, 3, 4"},
        {HQQ(PARAMS("\"nbits\": 1.58")), Q_UNSUPPORTED, "hqq with nbits that is no whole number"},
        {HQQ(PARAMS("\"nbits\": 4, \"axis\": 0")), Q_UNSUPPORTED, "hqq with axis 0"},
        {HQQ(PARAMS("\"nbits\": 4, \"channel_wise\": false")), Q_UNSUPPORTED,
         "hqq with one scale for a whole matrix is not supported"},
        {HQQ(PARAMS("\"nbits\": 4, \"view_as_float\": true")), Q_UNSUPPORTED, "hqq with view_as"},
        {COMPRESSED("\"a\": " GROUP("pack-quantized", IN_GROUPS("1"))), Q_UNSUPPORTED,
         "num_bits 1 are not supported, expected 2 to 8"},
        {COMPRESSED("\"a\": " GROUP("pack-quantized", IN_GROUPS("7")) ", \"b\": " GROUP(
             "pack-quantized", IN_GROUPS("4"))),
         Q_UNSUPPORTED, "pack-quantized with 7 bits beside other groups is not supported"},
        {COMPRESSED("\"a\": " GROUP("int-quantized", "\"num_bits\": 8, \"strategy\": \"tensor\", "
                                                     "\"symmetric\": false")),
         Q_UNSUPPORTED, "int-quantized with strategy tensor, asymmetric is not supported"},
        {"{\"quant_method\": \"compressed-tensors\", \"config_groups\": {}}", Q_CORRUPT,
         "config_groups is an object, expected an object with a group at least"},
        {"{\"quant_method\": \"compressed-tensors\", \"transform_config\": {\"config_groups\": "
         "{\"R3\": {\"type\": \"hadamard\"}}}, \"config_groups\": {}}",
         Q_UNSUPPORTED, "with a transform_config"},
        {"{\"quant_method\": \"compressed-tensors\", \"sparsity_config\": {\"format\": "
         "\"sparse-24-bitmask\"}, \"config_groups\": {}}",
         Q_UNSUPPORTED, "sparsity_config's format \"sparse-24-bitmask\""},
        {GPTQ("\"is_marlin_format\": true"), Q_UNSUPPORTED,
         "gptq's checkpoint_format \"marlin\" is not supported"},
        {"{\"quant_method\": \"awq\", \"bits\": 4, \"format\": \"gemv_fast\"}", Q_UNSUPPORTED,
         "awq's version \"gemv_fast\" is not supported"},
        {"{\"quant_method\": \"intel/auto-round\", \"bits\": 4, \"backend\": "
         "\"auto_round:exllamav2\"}",
         Q_UNSUPPORTED, "auto-round's packing_format \"auto_round:exllamav2\""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_fails(load(all[i].text), all[i].code, all[i].part, &e);
}

#define FLOATS(more)                                                                         \
    "{\"format\": \"float-quantized\", \"weights\": {\"num_bits\": 8, \"type\": \"float\", " \
    "\"strategy\": \"tensor\"}" more "}"
#define INPUTS(dynamic) ", \"input_activations\": {\"num_bits\": 8, \"dynamic\": " dynamic "}"

/* Where one group's inputs may have scales, the tensors say it. */
static void test_inputs_of_fp8(void **state)
{
    static const struct {
        const char *text;
        bool dynamic;
    } all[] = {
        {"{\"quant_method\": \"fp8\", \"activation_scheme\": \"static\"}", false},
        {"{\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\"}", true},
        {"{\"quant_method\": \"fbgemm_fp8\"}", false},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\"}", false},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8_PER_CHANNEL_PER_TOKEN\"}", true},
        {COMPRESSED("\"a\": " FLOATS(INPUTS("true"))), true},
        {COMPRESSED("\"a\": " FLOATS(INPUTS("false"))), false},
        {COMPRESSED("\"a\": " FLOATS("")), false},
        {COMPRESSED("\"a\": " FLOATS(INPUTS("\"local\""))), false},
        {COMPRESSED("\"a\": " FLOATS(INPUTS("true")) ", \"b\": " FLOATS(INPUTS("true"))), true},
        {COMPRESSED("\"a\": " FLOATS(INPUTS("true")) ", \"b\": " FLOATS(INPUTS("false"))), false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_ok(load(all[i].text), &e);
        assert_int_equal(c.quant.method, QUANT_FP8);
        assert_int_equal(c.quant.dynamic_inputs, all[i].dynamic);
    }
    assert_fails(load("{\"quant_method\": \"fp8\", \"activation_scheme\": 3}"), Q_CORRUPT,
                 "activation_scheme", &e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_inputs_of_fp8),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("config_quant", tests, NULL, NULL);
}
