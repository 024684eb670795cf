/* SPDX-License-Identifier: Apache-2.0 */
/* What folders and options say of vectors: architectures, modules.json and its folders, options,
 * and what is refused. */
#include "common/hub/pooling.h"
#include <string.h>
#include "common/mem.h"
#include "folder.h"

static struct pooling p;
static struct model_config c;
static struct q_err e;

struct file {
    const char *name, *text;
};

static enum q_code read_folder(const char *architecture, const char *more, const struct file *files,
                               const struct pooling_options *o)
{
    struct folder f;
    struct buf b = BUF_INIT;
    static const struct pooling_options none = {"auto", "auto", ""};
    folder_init(&f);
    buf_printf(&b,
               "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"vocab_size\": 512, "
               "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_hidden_layers\": 3, "
               "\"num_attention_heads\": 4, \"max_position_embeddings\": 256%s}",
               architecture,
               strstr(architecture, "Modern") ? "modernbert"
               : strstr(architecture, "Bert") ? "bert"
                                              : "llama",
               more);
    folder_write(&f, "config.json", b.data, b.len);
    buf_release(&b);
    for (; files && files->name; files++)
        folder_write(&f, files->name, files->text, strlen(files->text));
    pooling_release(&p);
    enum q_code rc = model_config_load(&c, NULL, f.path, &e);
    if (!rc)
        rc = pooling_read(&p, &c, f.path, o ? o : &none, &e);
    folder_release(&f);
    return rc;
}

static void bases(void **state)
{
    static const struct {
        const char *name, *base;
        enum archs_end end;
    } cases[] = {
        {"LlamaForCausalLM", "LlamaForCausalLM", ARCHS_GENERATES},
        {"LlamaForSequenceClassification", "LlamaForCausalLM", ARCHS_CLASSIFIES},
        {"Qwen3Model", "Qwen3ForCausalLM", ARCHS_EMBEDS},
        {"GPT2LMHeadModel", "GPT2LMHeadModel", ARCHS_GENERATES},
        {"GPT2Model", "GPT2LMHeadModel", ARCHS_EMBEDS},
        {"GPT2ForSequenceClassification", "GPT2LMHeadModel", ARCHS_CLASSIFIES},
        {"BertModel", "BertModel", ARCHS_EMBEDS},
        {"BertForMaskedLM", "BertModel", ARCHS_EMBEDS},
        {"XLMRobertaForSequenceClassification", "XLMRobertaModel", ARCHS_CLASSIFIES},
        {"BertLMHeadModel", NULL, ARCHS_GENERATES},
        {"LlamaForMaskedLM", NULL, ARCHS_GENERATES},
        {"LlamaLMHeadModel", NULL, ARCHS_GENERATES},
        {"BertForTokenClassification", NULL, ARCHS_GENERATES},
        {"Model", NULL, ARCHS_GENERATES},
        {"", NULL, ARCHS_GENERATES},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        enum archs_end end = ARCHS_GENERATES;
        const char *base = archs_base(cases[i].name, &end);
        if (!cases[i].base) {
            assert_null(base);
            continue;
        }
        assert_non_null(base);
        assert_string_equal(base, cases[i].base);
        assert_int_equal(end, cases[i].end);
    }
}

#define MODULES(middle)                                                                       \
    "[{\"idx\": 0, \"path\": \"\", \"type\": \"sentence_transformers.models.Transformer\"}, " \
    "{\"path\": \"1_Pooling\", \"type\": \"sentence_transformers.models.Pooling\"}" middle "]"
#define DENSE     ", {\"path\": \"2_Dense\", \"type\": \"sentence_transformers.models.Dense\"}"
#define NORMALIZE ", {\"path\": \"3\", \"type\": \"sentence_transformers.models.Normalize\"}"

static void by_architecture(void **state)
{
    (void)state;
    assert_int_equal(read_folder("LlamaForCausalLM", "", NULL, NULL), Q_OK);
    assert_int_equal(p.makes, ARCHS_GENERATES);
    assert_int_equal(read_folder("LlamaModel", "", NULL, NULL), Q_OK);
    assert_true(p.makes == ARCHS_EMBEDS && p.kind == POOLING_LAST);
    assert_true(p.act == POOLING_ACT_NORMALIZE && p.n_out == 64);
    assert_int_equal(read_folder("BertModel", "", NULL, NULL), Q_OK);
    assert_true(p.makes == ARCHS_EMBEDS && p.kind == POOLING_CLS && p.pair_types);
    assert_int_equal(read_folder("LlamaForSequenceClassification",
                                 ", \"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}", NULL,
                                 NULL),
                     Q_OK);
    char text[32];
    assert_true(p.makes == ARCHS_CLASSIFIES && p.kind == POOLING_LAST && p.n_out == 3);
    assert_true(p.act == POOLING_ACT_SOFTMAX);
    assert_string_equal(pooling_label(&p, 2, text), "c");
    assert_string_equal(pooling_label(&p, 7, text), "LABEL_7");
    assert_int_equal(
        read_folder("BertForSequenceClassification", ", \"num_labels\": 1", NULL, NULL), Q_OK);
    assert_true(p.kind == POOLING_CLS && p.n_out == 1 && p.act == POOLING_ACT_SIGMOID);
    assert_int_equal(read_folder("BertForSequenceClassification",
                                 ", \"num_labels\": 1, \"sentence_transformers\": "
                                 "{\"activation_fn\": \"torch.nn.modules.linear.Identity\"}",
                                 NULL, NULL),
                     Q_OK);
    assert_true(p.act == POOLING_ACT_NONE);
    static const struct file newer[] = {
        {"config_sentence_transformers.json",
         "{\"model_type\": \"CrossEncoder\", \"prompts\": {}, \"default_prompt_name\": null, "
         "\"activation_fn\": \"torch.nn.modules.linear.Identity\"}"},
        {NULL, NULL},
    };
    assert_int_equal(
        read_folder("BertForSequenceClassification", ", \"num_labels\": 1", newer, NULL), Q_OK);
    assert_true(p.act == POOLING_ACT_NONE);
    assert_int_equal(read_folder("BertForSequenceClassification",
                                 ", \"num_labels\": 1, \"sentence_transformers\": "
                                 "{\"activation_fn\": \"torch.nn.modules.activation.Sigmoid\"}",
                                 newer, NULL),
                     Q_OK);
    assert_true(p.act == POOLING_ACT_NONE);
    assert_int_equal(read_folder("ModernBertForSequenceClassification",
                                 ", \"classifier_pooling\": \"mean\"", NULL, NULL),
                     Q_OK);
    assert_true(p.kind == POOLING_MEAN && p.n_out == 2);
    assert_int_equal(read_folder("LlamaModel", ", \"matryoshka_dimensions\": [16, 32]", NULL, NULL),
                     Q_OK);
    assert_true(p.is_matryoshka && p.n_dim == 2 && p.dims[1] == 32);
}

static void by_modules(void **state)
{
    const struct file files[] = {
        {"modules.json", MODULES(DENSE NORMALIZE)},
        {"1_Pooling/config.json", "{\"pooling_mode_mean_tokens\": true}"},
        {"2_Dense/config.json",
         "{\"in_features\": 64, \"out_features\": 16, \"bias\": false, \"activation_function\": "
         "\"torch.nn.modules.activation.Tanh\"}"},
        {"sentence_bert_config.json", "{\"max_seq_length\": 128, \"do_lower_case\": false}"},
        {NULL, NULL},
    };
    const struct pooling_options generate = {"generate", "auto", ""};
    (void)state;
    assert_int_equal(read_folder("LlamaForCausalLM", "", files, NULL), Q_OK);
    assert_true(p.makes == ARCHS_EMBEDS && p.kind == POOLING_MEAN && p.n_dense == 1);
    assert_true(p.n_out == 16 && p.dense[0].act == POOLING_ACT_TANH && !p.dense[0].has_bias);
    assert_true(p.act == POOLING_ACT_NORMALIZE && p.max_length == 128);
    assert_string_equal(p.dense[0].path, "2_Dense");
    assert_int_equal(read_folder("LlamaForCausalLM", "", files, &generate), Q_OK);
    assert_int_equal(p.makes, ARCHS_GENERATES);
    const struct file plain[] = {
        {"modules.json", MODULES("")},
        {"1_Pooling/config.json", "{\"pooling_mode\": \"lasttoken\"}"},
        {NULL, NULL},
    };
    assert_int_equal(read_folder("LlamaModel", "", plain, NULL), Q_OK);
    assert_true(p.kind == POOLING_LAST && p.act == POOLING_ACT_NONE);
    const struct file list[] = {
        {"modules.json", MODULES("")},
        {"1_Pooling/config.json", "{\"pooling_mode\": [\"max\"]}"},
        {NULL, NULL},
    };
    assert_int_equal(read_folder("LlamaModel", "", list, NULL), Q_OK);
    assert_int_equal(p.kind, POOLING_MAX);
}

static void by_options(void **state)
{
    const struct pooling_options pooling = {"pooling", "auto", ""}, embed = {"auto", "embed", ""},
                                 classify = {"pooling", "classify", "{\"use_activation\": false}"},
                                 mean = {"pooling", "embed",
                                         "{\"pooling_type\": \"mean\", \"normalize\": false}"};
    (void)state;
    assert_int_equal(read_folder("LlamaForCausalLM", "", NULL, &pooling), Q_OK);
    assert_true(p.makes == ARCHS_EMBEDS && p.kind == POOLING_LAST);
    assert_int_equal(read_folder("LlamaForCausalLM", "", NULL, &embed), Q_OK);
    assert_true(p.makes == ARCHS_EMBEDS);
    assert_int_equal(read_folder("LlamaForCausalLM", "", NULL, &classify), Q_OK);
    assert_true(p.makes == ARCHS_CLASSIFIES && p.n_out == 2 && p.act == POOLING_ACT_NONE);
    assert_int_equal(read_folder("LlamaForCausalLM", "", NULL, &mean), Q_OK);
    assert_true(p.kind == POOLING_MEAN && p.act == POOLING_ACT_NONE);
}

static void pair_types(void **state)
{
    static const struct {
        const char *text;
        bool want;
    } cases[] = {
        {"{\"tokenizer_class\": \"BertTokenizer\"}", true},
        {"{\"tokenizer_class\": \"PreTrainedTokenizerFast\"}", false},
        {"{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"model_input_names\": "
         "[\"input_ids\", \"token_type_ids\", \"attention_mask\"]}",
         true},
        {"{\"tokenizer_class\": \"BertTokenizer\", \"model_input_names\": [\"input_ids\"]}", false},
        {"{}", true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct file files[] = {{"tokenizer_config.json", cases[i].text}, {NULL, NULL}};
        assert_int_equal(read_folder("BertModel", "", files, NULL), Q_OK);
        assert_int_equal(p.pair_types, cases[i].want);
    }
}

static void refuses(const char *architecture, const char *more, const struct file *files,
                    const struct pooling_options *o, const char *message)
{
    if (read_folder(architecture, more, files, o) == Q_OK)
        fail_msg("%s: accepted, expected \"%s\"", architecture, message);
    if (!strstr(e.message, message))
        fail_msg("\"%s\" does not contain \"%s\"", e.message, message);
    q_err_reset(&e);
}

static void refused_options(void **state)
{
    static const struct {
        const char *architecture;
        struct pooling_options o;
        const char *message;
    } cases[] = {
        {"LlamaModel", {"generate", "auto", ""}, "--runner generate"},
        {"LlamaForCausalLM", {"generate", "embed", ""}, "--runner generate"},
        {"LlamaForCausalLM", {"draft", "auto", ""}, "--runner is \"draft\""},
        {"LlamaForCausalLM", {"pooling", "reward", ""}, "--convert is \"reward\""},
        {"LlamaForCausalLM", {"pooling", "none", ""}, "--convert none"},
        {"LlamaForCausalLM", {"auto", "auto", "{\"pooling_type\": \"CLS\"}"}, "--pooler-config"},
        {"LlamaModel", {"auto", "auto", "{\"pooling_type\": \"STEP\"}"}, "LAST, CLS, MEAN, MAX"},
        {"LlamaModel", {"auto", "auto", "{\"logit_bias\": 1}"}, "\"logit_bias\" is not supported"},
        {"LlamaModel", {"auto", "auto", "{\"normalize\": 1}"}, "normalize"},
        {"LlamaModel", {"auto", "auto", "[]"}, "--pooler-config"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses(cases[i].architecture, "", NULL, &cases[i].o, cases[i].message);
}

static void refused_folders(void **state)
{
    static const struct {
        const char *modules, *pooling, *dense, *message;
    } cases[] = {
        {"{}", "", "", "expected a list of modules"},
        {"[1]", "", "", "expected an object"},
        {"[", "", "", "modules.json"},
        {MODULES(""), "{}", "", "0 pooling modes"},
        {MODULES(""), "{\"pooling_mode\": \"median\"}", "", "0 pooling modes"},
        {MODULES(""), "{\"pooling_mode_max_tokens\": true, \"pooling_mode_cls_token\": true}", "",
         "2 pooling modes"},
        {MODULES(""), "{\"pooling_mode_cls_token\": true, \"pooling_mode_mean_tokens\": true}", "",
         "2 pooling modes"},
        {MODULES(NORMALIZE DENSE), "{}", "", "in this order"},
        {MODULES(", {\"path\": \"2\", \"type\": \"models.CNN\"}"), "{}", "", "models.CNN"},
        {"[{\"path\": \"\", \"type\": \"x.Transformer\"}, {\"path\": \"../x\", \"type\": "
         "\"x.Pooling\"}]",
         "", "", "no folder in the model's folder"},
        {MODULES(DENSE), "{\"pooling_mode_cls_token\": true}", "{\"in_features\": 64}",
         "out_features"},
        {MODULES(DENSE), "{\"pooling_mode_cls_token\": true}",
         "{\"in_features\": 32, \"out_features\": 8}", "in_features is 32"},
        {MODULES(DENSE), "{\"pooling_mode_cls_token\": true}",
         "{\"in_features\": 64, \"out_features\": 8, \"activation_function\": \"a.Mish\"}",
         "a.Mish"},
        {MODULES(""), "{\"pooling_mode\": [\"cls\", \"mean\"]}", "", "2 pooling modes"},
        {MODULES(DENSE), "{\"pooling_mode\": \"cls\"}",
         "{\"in_features\": 64, \"out_features\": 64, \"use_residual\": true}",
         "use_residual is not supported"},
        {MODULES(DENSE), "{\"pooling_mode\": \"cls\"}",
         "{\"in_features\": 64, \"out_features\": 64, \"module_input_name\": \"token_embeddings\"}",
         "a Dense from \"token_embeddings\" to \"sentence_embedding\" is not supported"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct file files[] = {
            {"modules.json", cases[i].modules},
            {"1_Pooling/config.json", cases[i].pooling},
            {"2_Dense/config.json", cases[i].dense},
            {NULL, NULL},
        };
        refuses("LlamaModel", "", files, NULL, cases[i].message);
    }
    const char *const without = "{\"pooling_mode\": \"mean\", \"include_prompt\": false}";
    struct file prompts[] = {
        {"modules.json", MODULES("")},
        {"1_Pooling/config.json", without},
        {"config_sentence_transformers.json",
         "{\"prompts\": {\"a\": \"\", \"b\": \"say: \"}, \"default_prompt_name\": \"b\"}"},
        {NULL, NULL},
    };
    refuses("LlamaModel", "", prompts, NULL, "include_prompt is false");
    prompts[1].text = "{\"pooling_mode\": \"cls\", \"include_prompt\": false}";
    refuses("LlamaModel", "", prompts, NULL, "include_prompt is false");
    prompts[1].text = "{\"pooling_mode\": \"lasttoken\", \"include_prompt\": false}";
    assert_int_equal(read_folder("LlamaModel", "", prompts, NULL), Q_OK);
    const struct file no_default[] = {
        {"modules.json", MODULES("")},
        {"1_Pooling/config.json", without},
        {"config_sentence_transformers.json", "{\"prompts\": {\"b\": \"say: \"}}"},
        {NULL, NULL},
    };
    assert_int_equal(read_folder("LlamaModel", "", no_default, NULL), Q_OK);
    refuses("LlamaModel", ", \"matryoshka_dimensions\": [0]", NULL, NULL, "matryoshka_dimensions");
    refuses("BertModel", ", \"position_embedding_type\": \"relative_key\"", NULL, NULL,
            "relative_key");
    refuses("BertModel", ", \"is_decoder\": true", NULL, NULL, "is_decoder");
}

static int end(void **state)
{
    (void)state;
    pooling_release(&p);
    return 0;
}

static void prompts(void **state)
{
    static const char name[] = "config_sentence_transformers.json";
    static const struct {
        const char *text, *prompt; /* NULL: none */
        size_t n;                  /* prompts */
        const char *message;       /* NULL: it is read */
    } cases[] = {
        {"{\"prompts\": {\"query\": \"q: \", \"document\": \"\"}, \"default_prompt_name\": null}",
         NULL, 2, NULL},
        {"{\"prompts\": {\"query\": \"q: \"}, \"default_prompt_name\": \"query\"}", "q: ", 1, NULL},
        {"{\"__version__\": {}, \"similarity_fn_name\": \"cosine\"}", NULL, 0, NULL},
        {"{\"prompts\": null}", NULL, 0, NULL},
        {"{\"prompts\": [1]}", NULL, 0, "prompts is a list, expected an object"},
        {"{\"prompts\": {\"query\": 1}}", NULL, 0, "the prompt \"query\" is a whole number"},
        {"{\"prompts\": {}, \"default_prompt_name\": \"x\"}", NULL, 0,
         "\"x\" is none of its prompts"},
        {"[", NULL, 0, name},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct file files[] = {{name, cases[i].text}, {NULL, NULL}};
        const enum q_code rc = read_folder("BertModel", "", files, NULL);
        if (cases[i].message) {
            assert_fails(rc, Q_CORRUPT, cases[i].message, &e);
            continue;
        }
        assert_ok(rc, &e);
        assert_int_equal(json_object_size(p.prompts), cases[i].n);
        assert_true(!cases[i].prompt == !p.prompt);
        if (p.prompt)
            assert_string_equal(p.prompt, cases[i].prompt);
    }
}

/* Of sentence-transformers' own file, or else of an encoder's tokenizer. */
static void lengths(void **state)
{
    static const struct {
        const char *architecture, *own, *tokenizer;
        uint32_t length;
    } cases[] = {
        {"BertModel", "{\"max_seq_length\": 128}", "{\"model_max_length\": 64}", 128},
        {"BertModel", "{\"max_seq_length\": null}", "{\"model_max_length\": 64}", 64},
        {"BertModel", "{\"module_output_name\": \"a\"}", "{\"model_max_length\": 64.0}", 0},
        {"BertModel", "{}", "{\"model_max_length\": 1000000000000000019884624838656}", 0},
        {"BertForSequenceClassification", "{}", "{\"model_max_length\": 64}", 64},
        {"LlamaModel", "{}", "{\"model_max_length\": 64}", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct file files[] = {
            {"sentence_bert_config.json", cases[i].own},
            {"tokenizer_config.json", cases[i].tokenizer},
            {NULL, NULL},
        };
        assert_int_equal(read_folder(cases[i].architecture, "", files, NULL), Q_OK);
        assert_int_equal(p.max_length, cases[i].length);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bases),           cmocka_unit_test(by_architecture),
        cmocka_unit_test(by_modules),      cmocka_unit_test(by_options),
        cmocka_unit_test(pair_types),      cmocka_unit_test(refused_options),
        cmocka_unit_test(refused_folders), cmocka_unit_test(prompts),
        cmocka_unit_test(lengths),
    };
    return cmocka_run_group_tests(tests, NULL, end);
}
