/* SPDX-License-Identifier: Apache-2.0 */
/* Every option of the library (FOR_LIBRARY), taken from options.def itself, set
 * by name through the public library: it must change the core's configuration. One that reaches
 * nothing, or that the library does not know, fails here. */
#include <stdlib.h>
#include "check.h"
#include "common/mem.h"
#include "common/options.h"
#include "engine/library/quire_options.h"

#define MODEL "tests/data/models/llama"

enum { STR, INT, NUM, BYTES, BOOL, LIST, WORDS, JSON, PAIRS };
static const struct row {
    const char *field, *flag, *def;
    int type;
    double min, max;
    uint32_t programs;
} rows[] = {
#define OPT(field, flag, type, def, min, max, programs, help) \
    {#field, flag, def, type, (double)(min), (double)(max), programs},
#include "common/options.def"
};

/* Values that are not their options' defaults; what most numbers can be is in their rows. */
static const struct {
    const char *field, *value, *before, *before_value;
} texts[] = {
    {"log_level", "debug", NULL, NULL},
    {"max_model_len", "64", NULL, NULL},
    {"load_format", "dummy", NULL, NULL},
    {"dtype", "float16", NULL, NULL},
    {"kv_cache_dtype", "int8", NULL, NULL},
    {"speculative_config", "{\"method\": \"ngram\", \"num_speculative_tokens\": 2}", NULL, NULL},
    {"limit_mm_per_prompt", "{\"actions\": 3}", NULL, NULL},
    {"mm_processor_kwargs", "{\"size\": {\"longest_edge\": 512}}", NULL, NULL},
    {"override_generation_config", "{\"temperature\": 0.5}", NULL, NULL},
    {"scheduling_policy", "priority", NULL, NULL},
    {"cpu_isa", "avx2", NULL, NULL},
    {"tokenizer", "tests/data/models/mistral", NULL, NULL},
    {"quantization", "int8", NULL, NULL},
    {"packed_cache", "/tmp/packed", NULL, NULL},
    {"plugin", PLUGIN_VARIATION, NULL, NULL},
    {"plugin_path", "/tmp/plugins", NULL, NULL},
    {"device", "cpu", NULL, NULL},
    {"cuda_library", "/tmp/libquire-cuda.so", NULL, NULL},
    {"cuda_graph_sizes", "1,3", NULL, NULL},
    {"preemption_mode", "recompute", NULL, NULL},
    {"runner", "pooling", NULL, NULL},
    {"convert", "embed", NULL, NULL},
    {"pooler_config", "{\"pooling_type\": \"MEAN\"}", NULL, NULL},
    {"hf_config_path", "tests/data/models/mistral", NULL, NULL},
    {"hf_overrides", "{\"bos_token_id\": 3}", NULL, NULL},
    {"lora_modules", "a=/x", "enable_lora", "1"},
    {"max_loras", "4", "enable_lora", "1"},
    {"max_lora_rank", "8", "enable_lora", "1"},
    {"max_cpu_loras", "64", "enable_lora", "1"},
    {"lora_dtype", "float32", "enable_lora", "1"},
    /* at most max_num_partial_prefills, which is 1 by default */
    {"max_long_partial_prefills", "2", "max_num_partial_prefills", "2"},
};

/* Not the core's: answered by the program, or the library itself uses them (chat_model). */
static bool is_elsewhere(const char *field)
{
    static const char *const names[] = {"help",
                                        "version",
                                        "revision",
                                        "generation_config",
                                        "skip_tokenizer_init",
                                        "tokenizer_revision",
                                        "tokenizer_mode",
                                        "chat_template",
                                        "chat_template_content_format",
                                        "default_chat_template_kwargs",
                                        "tool_call_parser",
                                        "reasoning_parser",
                                        "parse_special_in_content"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], field))
            return true;
    return false;
}

static const char *other_value(const struct row *r, char *out, size_t size)
{
    double by_default = strtod(r->def, NULL);
    if (r->type == BYTES)
        return "3M";
    if (r->type == BOOL)
        return *r->def == '1' ? "0" : "1";
    if (r->type == STR || r->type == JSON || r->type == PAIRS)
        fail_msg("%s: a text this test has no value for; add one to `texts`", r->flag);
    if (r->type == NUM)
        snprintf(out, size, "%g", r->min + (r->max - r->min) / 4);
    else
        snprintf(out, size, "%g", by_default + 1 <= r->max ? by_default + 1 : by_default - 1);
    return out;
}

static void set(struct quire_options *o, const char *name, const char *value)
{
    struct quire_error error;
    if (quire_options_set(o, name, value, &error))
        fail_msg("%s = %s: %s", name, value, error.message);
}

static void config(struct core_config *c, const struct quire_options *o)
{
    struct quire_options full;
    struct q_err e = Q_ERR_INIT;
    assert_ok(quire_options_config(c, &full, o, &e), &e);
}

static void every_engine_option_is_used(void **state)
{
    (void)state;
    static struct core_config before, after;
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        struct quire_options o;
        char number[32];
        const char *value = NULL;
        if (!(r->programs & FOR_LIBRARY) || is_elsewhere(r->field))
            continue;
        quire_options_init(&o, sizeof o);
        o.model = MODEL;
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
            if (!strcmp(texts[k].field, r->field)) {
                value = texts[k].value;
                if (texts[k].before)
                    set(&o, texts[k].before, texts[k].before_value);
            }
        if (!value)
            value = other_value(r, number, sizeof number);
        config(&before, &o);
        set(&o, r->flag, value);
        config(&after, &o);
        if (!memcmp(&before, &after, sizeof before))
            fail_msg("%s = %s changes nothing of the core", r->flag, value);
        q_free(after.adapters.modules);
        quire_options_release(&o);
        n++;
    }
    print_message("%u options\n", n);
    assert_true(n >= 20);
}

/* The fields' defaults and those of the command line are the same. */
static void the_library_starts_from_the_same_defaults(void **state)
{
    (void)state;
    static struct core_config plain, named;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *r = &rows[i];
        struct quire_options o;
        if (!(r->programs & FOR_LIBRARY) || is_elsewhere(r->field) ||
            !strcmp(r->field, "log_level")) /* a library logs errors only */
            continue;
        quire_options_init(&o, sizeof o);
        o.model = MODEL;
        config(&plain, &o);
        set(&o, r->flag, r->def);
        config(&named, &o);
        if (memcmp(&plain, &named, sizeof plain) != 0)
            fail_msg("%s: the library's default is not \"%s\"", r->flag, r->def);
        quire_options_release(&o);
    }
}

/* vLLM's names are taken too: those of options, those without effect, and refusals with reasons. */
static void the_library_knows_vllms_names(void **state)
{
    (void)state;
    static struct core_config c;
    struct quire_options o;
    struct quire_error error;
    quire_options_init(&o, sizeof o);
    o.model = MODEL;
    set(&o, "device_memory_utilization", "0.25");
    set(&o, "--max-model-len", "1k");
    assert_int_equal(o.max_model_len, 1000);
    set(&o, "spec_method", "ngram");
    set(&o, "speculative-config.num_speculative_tokens", "3");
    set(&o, "override-generation-config.temperature", "0.5");
    set(&o, "trust_remote_code", "true");
    set(&o, "tensor-parallel-size", "1");
    config(&c, &o);
    assert_true(c.worker.memory_part == 0.25);
    assert_true(c.override.has_temperature && c.override.temperature == 0.5);
    assert_int_equal(quire_options_set(&o, "tensor_parallel_size", "2", &error), QUIRE_UNSUPPORTED);
    assert_non_null(strstr(error.message, "an engine uses one device"));
    assert_int_equal(quire_options_set(&o, "enable_lora_bias", "true", &error), QUIRE_UNSUPPORTED);
    assert_int_equal(quire_options_set(&o, "tensor_parallel", "2", &error), QUIRE_NOT_FOUND);
    assert_non_null(strstr(error.message, "--tensor-parallel-size"));
    assert_int_equal(quire_options_set(&o, "config", "x.yaml", &error), QUIRE_NOT_FOUND);
    assert_int_equal(quire_options_set(&o, "port", "80", &error), QUIRE_NOT_FOUND);
    assert_int_equal(
        quire_options_set(&o, "override_generation_config", "{\"temperature\"", &error),
        QUIRE_INVALID);
    quire_options_release(&o);
}

static void sizes_of_graphs_are_sorted(void **state)
{
    (void)state;
    static struct core_config c;
    struct quire_options o;
    static const uint32_t want[] = {1, 2, 4, 16};
    quire_options_init(&o, sizeof o);
    o.model = MODEL;
    set(&o, "cuda_graph_sizes", "4,2,16,1,2,4");
    config(&c, &o);
    assert_int_equal(c.worker.n_graph_size, 4);
    assert_memory_equal(c.worker.graph_sizes, want, sizeof want);
    quire_options_release(&o);
}

/* vLLM's command lines name the method that a checkpoint has. */
static void a_checkpoints_own_quantization_may_be_named(void **state)
{
    (void)state;
    static struct core_config c;
    static const struct {
        const char *model, *name, *part; /* NULL: taken */
    } cases[] = {
        {"tests/data/models/qwen2-awq", "awq", NULL},
        {"tests/data/models/qwen2-awq", "awq_marlin", NULL},
        {"tests/data/models/llama-gptq", "gptq_marlin", NULL},
        {"tests/data/models/llama-gptq", "awq", "of gptq"},
        {MODEL, "gptq", "not quantized"},
        {MODEL, "bitsandbytes", "expected none"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct quire_options o, full;
        struct q_err e = Q_ERR_INIT;
        quire_options_init(&o, sizeof o);
        o.model = cases[i].model;
        set(&o, "quantization", cases[i].name);
        enum q_code rc = quire_options_config(&c, &full, &o, &e);
        quire_options_release(&o);
        if (cases[i].part) {
            assert_fails(rc, Q_INVALID, cases[i].part, &e);
            continue;
        }
        assert_ok(rc, &e);
        assert_int_equal(c.worker.quantization, QUANTIZE_NOT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_engine_option_is_used),
        cmocka_unit_test(the_library_starts_from_the_same_defaults),
        cmocka_unit_test(the_library_knows_vllms_names),
        cmocka_unit_test(sizes_of_graphs_are_sorted),
        cmocka_unit_test(a_checkpoints_own_quantization_may_be_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
