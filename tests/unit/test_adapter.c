/* SPDX-License-Identifier: Apache-2.0 */
/* Adapter folders: which modules a config names, by PEFT's rules; ranks and scales; what is refused
 * and how; and factors that do not fit the model. */
#include "folder.h"
#include <math.h>
#include "common/hub/adapter.h"
#include "common/hub/config.h"
#include "common/hub/safetensors_write.h"
#include "engine/model/lora/lora.h"

static struct q_err e;

static struct adapter_config *parse(const char *more)
{
    char text[2000];
    struct adapter_config *c = NULL;
    snprintf(text, sizeof text, "{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 16%s%s}",
             *more ? ", " : "", more);
    assert_ok(adapter_config_parse(&c, text, strlen(text), "c.json", &e), &e);
    return c;
}

static bool targets(const char *more, const char *module)
{
    struct adapter_config *c = parse(more);
    bool yes = false;
    assert_ok(adapter_targets(&yes, c, module, strstr(module, "lm_head") != NULL, &e), &e);
    adapter_config_free(c);
    return yes;
}

static void modules_by_pefts_rules(void **state)
{
    static const struct {
        const char *config, *module;
        bool yes;
    } cases[] = {
        {"\"target_modules\": [\"q_proj\"]", "model.layers.0.self_attn.q_proj", true},
        {"\"target_modules\": [\"q_proj\"]", "model.layers.0.self_attn.my_q_proj", false},
        {"\"target_modules\": [\"self_attn.q_proj\"]", "model.layers.0.self_attn.q_proj", true},
        {"\"target_modules\": [\"model.layers.1.q\"]", "model.layers.1.q", true},
        {"\"target_modules\": \".*q_proj\"", "model.layers.0.self_attn.q_proj", true},
        {"\"target_modules\": \"q_proj\"", "model.layers.0.self_attn.q_proj", false},
        {"\"target_modules\": \"model.layers.(0|2).*(q|v)_proj\"", "model.layers.2.a.v_proj", true},
        {"\"target_modules\": \"model.layers.(0|2).*(q|v)_proj\"", "model.layers.1.a.v_proj",
         false},
        {"\"target_modules\": \"all-linear\"", "model.layers.1.mlp.up_proj", true},
        {"\"target_modules\": \"all-linear\"", "lm_head", false},
        {"\"target_modules\": [\"lm_head\"]", "lm_head", true},
        {"\"target_modules\": [\"q\"], \"layers_to_transform\": 1", "model.layers.1.q", true},
        {"\"target_modules\": [\"q\"], \"layers_to_transform\": [1, 12]", "model.layers.12.q",
         true},
        {"\"target_modules\": [\"q\"], \"layers_to_transform\": [1, 12]", "model.layers.2.q",
         false},
        {"\"target_modules\": [\"q\"], \"layers_to_transform\": []", "model.layers.2.q", true},
        {"\"target_modules\": [\"q\"], \"layers_to_transform\": 2, \"layers_pattern\": \"h\"",
         "transformer.h.2.attn.q", true},
        {"\"target_modules\": [\"q\"], \"layers_to_transform\": 2, \"layers_pattern\": [\"x\", "
         "\"y\"]",
         "transformer.h.2.attn.q", false},
        {"\"target_modules\": [\"q\"], \"exclude_modules\": [\"1.q\"]", "model.layers.1.q", false},
        {"\"target_modules\": [\"q\"], \"exclude_modules\": \".*layers.1.*\"", "model.layers.1.q",
         false},
        {"\"target_modules\": [\"q\"], \"exclude_modules\": \".*layers.1.*\"", "model.layers.2.q",
         true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (targets(cases[i].config, cases[i].module) != cases[i].yes)
            fail_msg("%s: %s", cases[i].config, cases[i].module);
}

static void check_size(const char *more, const char *module, uint32_t rank, double scale)
{
    struct adapter_config *c = parse(more);
    struct adapter_size size;
    assert_ok(adapter_size_of(&size, c, module, &e), &e);
    assert_int_equal(size.rank, rank);
    assert_true(fabs(size.scale - scale) < 1e-6);
    adapter_config_free(c);
}

static void ranks_and_scales(void **state)
{
#define Q "\"target_modules\": [\"q\", \"v\"]"
    (void)state;
    check_size(Q, "model.layers.0.q", 8, 2);
    check_size(Q ", \"use_rslora\": true", "model.layers.0.q", 8, 16 / sqrt(8));
    check_size(Q ", \"rank_pattern\": {\"q\": 4}", "model.layers.0.q", 4, 4);
    check_size(Q ", \"rank_pattern\": {\"q\": 4}", "model.layers.0.v", 8, 2);
    check_size(Q ", \"rank_pattern\": {\"layers.1.*\": 2}", "model.layers.1.v", 2, 8);
    check_size(Q ", \"rank_pattern\": {\"^model.layers.0.q\": 2}, \"alpha_pattern\": {\"q\": 3}",
               "model.layers.0.q", 2, 1.5);
    check_size(Q ", \"alpha_pattern\": {\"0.q\": 1, \"q\": 2}", "model.layers.0.q", 8, 0.125);
    check_size(Q ", \"use_rslora\": true, \"rank_pattern\": {\"q\": 4}", "x.q", 4, 8);
}

static void what_is_refused(void **state)
{
    static const struct {
        const char *text;
        enum q_code code;
        const char *part;
    } cases[] = {
        {"[]", Q_CORRUPT, "c.json"},
        {"{\"r\": 8}", Q_UNSUPPORTED, "peft_type is \"\", expected LORA"},
        {"{\"peft_type\": \"LOHA\"}", Q_UNSUPPORTED, "peft_type is \"LOHA\""},
        {"{\"peft_type\": \"LORA\", \"lora_alpha\": 1}", Q_CORRUPT, "r (the rank) is missing"},
        {"{\"peft_type\": \"LORA\", \"r\": 8}", Q_CORRUPT, "lora_alpha is missing"},
        {"{\"peft_type\": \"LORA\", \"r\": 0, \"lora_alpha\": 1}", Q_CORRUPT, "r is 0"},
        {"{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 1}", Q_CORRUPT, "target_modules"},
        {"{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 1, \"target_modules\": 3}", Q_CORRUPT,
         "target_modules"},
        {"{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 1, \"target_modules\": [3]}",
         Q_CORRUPT, "target_modules"},
        {"{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 1, \"target_modules\": \"(\"}",
         Q_CORRUPT, "no regular expression"},
        {"{\"peft_type\": \"LORA\", \"use_dora\": true}", Q_UNSUPPORTED, "DoRA"},
        {"{\"peft_type\": \"LORA\", \"bias\": \"lora_only\"}", Q_UNSUPPORTED,
         "bias is \"lora_only\""},
        {"{\"peft_type\": \"LORA\", \"lora_bias\": true}", Q_UNSUPPORTED, "lora_bias"},
        {"{\"peft_type\": \"LORA\", \"modules_to_save\": [\"embed_tokens\", \"lm_head\"]}",
         Q_UNSUPPORTED, "modules_to_save (\"embed_tokens\" …)"},
        {"{\"peft_type\": \"LORA\", \"init_lora_weights\": \"pissa_niter_4\"}", Q_UNSUPPORTED,
         "pissa"},
        {"{\"peft_type\": \"LORA\", \"target_parameters\": [\"x\"]}", Q_UNSUPPORTED,
         "target_parameters"},
        {"{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 1, \"target_modules\": [\"q\"], "
         "\"rank_pattern\": {\"q\": \"4\"}}",
         Q_CORRUPT, "rank_pattern"},
        {"{\"peft_type\": \"LORA\", \"r\": 8, \"lora_alpha\": 1, \"target_modules\": [\"q\"], "
         "\"layers_to_transform\": [\"1\"]}",
         Q_CORRUPT, "layers_to_transform"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct adapter_config *c = NULL;
        const enum q_code rc =
            adapter_config_parse(&c, cases[i].text, strlen(cases[i].text), "c.json", &e);
        if (rc != cases[i].code || !strstr(e.message, cases[i].part))
            fail_msg("%s: code %d, \"%s\"", cases[i].text, rc, e.message);
        assert_null(c);
        q_err_reset(&e);
    }
}

static void expressions_end(void **state)
{
    struct adapter_config *c = parse("\"target_modules\": \"(a*)*(a*)*(a*)*(a*)*b\"");
    char module[200];
    bool yes;
    (void)state;
    memset(module, 'a', sizeof module);
    module[sizeof module - 1] = 0;
    const enum q_code rc = adapter_targets(&yes, c, module, false, &e);
    assert_true(rc == Q_TOO_LARGE || (rc == Q_OK && !yes));
    q_err_reset(&e);
    adapter_config_free(c);
}

static void names_of_tensors(void **state)
{
    char module[ADAPTER_MODULE_MAX];
    enum adapter_factor f;
    (void)state;
    assert_true(
        adapter_tensor_parse(module, &f, "base_model.model.model.layers.0.q.lora_B.weight"));
    assert_string_equal(module, "model.layers.0.q");
    assert_int_equal(f, ADAPTER_B);
    assert_false(adapter_tensor_parse(module, &f, "model.layers.0.q.lora_B.weight"));
    assert_false(adapter_tensor_parse(module, &f, "base_model.model.q.lora_C.weight"));
    assert_false(adapter_tensor_parse(module, &f, "base_model.model..lora_A.weight.x"));
    assert_false(adapter_tensor_parse(module, &f, "base_model.model..lora_A.weigh"));
}

/* ---- against the model ---- */

struct factor {
    const char *name;
    uint64_t shape[2];
    enum dtype dtype;
};

static void write_adapter(const struct folder *f, const char *config, const struct factor *of,
                          size_t n)
{
    struct safetensors_item items[8];
    struct buf out = BUF_INIT;
    uint64_t n_file;
    for (size_t i = 0; i < n; i++)
        items[i] = (struct safetensors_item){
            .name = of[i].name,
            .dtype = of[i].dtype,
            .n_dim = 2,
            .shape = {of[i].shape[0], of[i].shape[1]},
        };
    assert_ok(safetensors_layout(items, n, &out, &n_file, &e), &e);
    while (out.len < n_file)
        buf_add_char(&out, 0);
    folder_write(f, "adapter_model.safetensors", out.data, out.len);
    buf_release(&out);
    folder_text(f, "adapter_config.json", config);
}

#define NAME(layer, module, factor) \
    "base_model.model.model.layers." layer "." module ".lora_" factor ".weight"
#define CONFIG(rest) "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 4, " rest "}"

#define Q_CONFIG   CONFIG("\"target_modules\": [\"q_proj\"], \"layers_to_transform\": 0")
#define ALL_CONFIG CONFIG("\"target_modules\": \".*\"")
static const struct {
    const char *config;
    struct factor of[2];
    size_t n;
    enum q_code code;
    const char *part;
} misfits[] = {
    {Q_CONFIG,
     {
         {NAME("0", "self_attn.q_proj", "A"), {4, 64}, DT_F32},
         {NAME("0", "self_attn.q_proj", "B"), {64, 4}, DT_BF16},
     },
     2,
     Q_OK,
     NULL},
    {Q_CONFIG,
     {{NAME("0", "self_attn.q_proj", "A"), {4, 64}, DT_F32}},
     1,
     Q_CORRUPT,
     "lora_B of module model.layers.0.self_attn.q_proj is missing"},
    {Q_CONFIG,
     {
         {NAME("0", "self_attn.q_proj", "A"), {4, 63}, DT_F32},
         {NAME("0", "self_attn.q_proj", "B"), {64, 4}, DT_F32},
     },
     2,
     Q_MISMATCH,
     "is [4, 63], the model takes [4, 64]"},
    {Q_CONFIG,
     {
         {NAME("0", "self_attn.q_proj", "A"), {4, 64}, DT_F32},
         {NAME("0", "self_attn.q_proj", "B"), {32, 4}, DT_F32},
     },
     2,
     Q_MISMATCH,
     "is [32, 4], the model takes [64, 4]"},
    {Q_CONFIG,
     {
         {NAME("0", "self_attn.q_proj", "A"), {4, 64}, DT_I8},
         {NAME("0", "self_attn.q_proj", "B"), {64, 4}, DT_F32},
     },
     2,
     Q_UNSUPPORTED,
     "expected float32, float16 or bfloat16"},
    {Q_CONFIG,
     {{NAME("1", "self_attn.q_proj", "A"), {4, 64}, DT_F32}},
     1,
     Q_CORRUPT,
     "target_modules of adapter_config.json does not name the module"},
    {ALL_CONFIG,
     {{NAME("9", "self_attn.q_proj", "A"), {4, 64}, DT_F32}},
     1,
     Q_MISMATCH,
     "has no module model.layers.9.self_attn.q_proj"},
    {ALL_CONFIG,
     {{NAME("0", "self_attn.qkv_proj", "A"), {4, 64}, DT_F32}},
     1,
     Q_MISMATCH,
     "has no module model.layers.0.self_attn.qkv_proj"},
    {ALL_CONFIG,
     {{NAME("00", "self_attn.q_proj", "A"), {4, 64}, DT_F32}},
     1,
     Q_MISMATCH,
     "has no module"},
    {ALL_CONFIG,
     {{"base_model.model.lm_head.lora_A.weight", {4, 64}, DT_F32}},
     1,
     Q_UNSUPPORTED,
     "module lm_head: adapters of the matrix of the logits"},
    {ALL_CONFIG,
     {{"base_model.model.model.embed_tokens.lora_A.weight", {4, 64}, DT_F32}},
     1,
     Q_UNSUPPORTED,
     "adapters of the embedding"},
    {ALL_CONFIG,
     {{"base_model.model.model.embed_tokens.lora_embedding_A", {4, 64}, DT_F32}},
     1,
     Q_UNSUPPORTED,
     "adapters of the embedding"},
    {ALL_CONFIG,
     {
         {"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector.weight",
          {4, 64},
          DT_F32},
     },
     1,
     Q_UNSUPPORTED,
     "DoRA"},
    {ALL_CONFIG, /* what PEFT saves of an adapter of lm_head, and of one with other tokens */
     {{"base_model.model.lm_head.base_layer.weight", {512, 64}, DT_F32}},
     1,
     Q_UNSUPPORTED,
     "adapters of lm_head and of the embedding are not supported"},
    {ALL_CONFIG,
     {{"base_model.model.model.embed_tokens.weight", {512, 64}, DT_F32}},
     1,
     Q_UNSUPPORTED,
     "a whole embedding (PEFT's save_embedding_layers) is not supported"},
    {ALL_CONFIG,
     {{"base_model.model.lm_head.weight", {512, 64}, DT_F32}},
     1,
     Q_UNSUPPORTED,
     "a whole lm_head"},
    {ALL_CONFIG,
     {{"something.else", {4, 64}, DT_F32}},
     1,
     Q_UNSUPPORTED,
     "no factor of an adapter"},
};

static void factors_that_do_not_fit(void **state)
{
    struct model_config *c = calloc(1, sizeof *c);
    (void)state;
    assert_ok(model_config_load(c, NULL, "tests/data/models/llama", &e), &e);
    for (size_t i = 0; i < sizeof misfits / sizeof *misfits; i++) {
        struct folder f;
        folder_init(&f);
        write_adapter(&f, misfits[i].config, misfits[i].of, misfits[i].n);
        const struct lora_options o = {f.path, DT_F32, 16}, small = {f.path, DT_F32, 3};
        const enum q_code rc = lora_check(c, &o, &e);
        if (rc != misfits[i].code || (rc && !strstr(e.message, misfits[i].part)))
            fail_msg("case %zu: code %d, \"%s\"", i, rc, e.message);
        q_err_reset(&e);
        if (!rc)
            assert_fails(lora_check(c, &small, &e), Q_UNSUPPORTED, "more than --max-lora-rank 3",
                         &e);
        folder_release(&f);
    }
    free(c);
}

static void folders_without_files(void **state)
{
    struct model_config *c = calloc(1, sizeof *c);
    struct folder f;
    (void)state;
    folder_init(&f);
    const struct lora_options o = {f.path, DT_F32, 16};
    assert_ok(model_config_load(c, NULL, "tests/data/models/llama", &e), &e);
    assert_fails(lora_check(c, &o, &e), Q_NOT_FOUND, "adapter_config.json", &e);
    folder_text(&f, "adapter_config.json", CONFIG("\"target_modules\": [\"q_proj\"]"));
    assert_fails(lora_check(c, &o, &e), Q_NOT_FOUND, "adapter_model.safetensors", &e);
    folder_text(&f, "adapter_model.safetensors", "cut");
    assert_fails(lora_check(c, &o, &e), Q_CORRUPT, "adapter_model.safetensors", &e);
    folder_release(&f);
    free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(modules_by_pefts_rules), cmocka_unit_test(ranks_and_scales),
        cmocka_unit_test(what_is_refused),        cmocka_unit_test(expressions_end),
        cmocka_unit_test(names_of_tensors),       cmocka_unit_test(factors_that_do_not_fit),
        cmocka_unit_test(folders_without_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
