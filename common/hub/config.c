/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers of config.json are read by a table of keys, struct members and ranges. The ranges
 * ensure that every product of two such numbers and an element size that the engine computes fits
 * in 63 bits. The defaults of transformers for absent keys depend on the model type in a few cases;
 * these are in a second table. */
#include "common/hub/config.h"
#include <limits.h>
#include <string.h>
#include "common/download.h"
#include "common/file.h"
#include "common/hub/archs.h"
#include "common/hub/config_internal.h"
#include "common/hub/nested.h"
#include "common/hub/params.h"

#define VOCAB_MAX     (1u << 24)
#define POSITIONS_MAX (1u << 28)
#define RECURRENT_MAX (1u << 15) /* of a model that has states only and says no length */

struct field {
    const char *key;
    size_t offset; /* of a uint32_t in struct model_config */
    uint32_t min, max;
    bool required;
};

static const struct field fields[] = {
    {"vocab_size", offsetof(struct model_config, vocab_size), 1, VOCAB_MAX, true},
    {"hidden_size", offsetof(struct model_config, hidden_size), 1, 1u << 18, true},
    {"intermediate_size", offsetof(struct model_config, intermediate_size), 1, 1u << 20, true},
    {"num_hidden_layers", offsetof(struct model_config, n_layer), 1, CONFIG_LAYERS_MAX, true},
    {"num_attention_heads", offsetof(struct model_config, n_head), 1, 1u << 12, true},
    {"num_key_value_heads", offsetof(struct model_config, n_kv_head), 1, 1u << 12, false},
    {"head_dim", offsetof(struct model_config, head_dim), 1, CONFIG_HEAD_MAX, false},
    {"max_position_embeddings", offsetof(struct model_config, max_position), 1, POSITIONS_MAX,
     true},
};

/* Other names of sizes, by model type; transformers takes both. only: the key is another's. */
static const struct {
    const char *model_type, *key, *other;
    bool only;
} spellings[] = {
    // clang-format off
    {"baichuan", "max_position_embeddings", "model_max_length", false},
    {"bloom",  "hidden_size",             "n_embed", false},
    {"bloom",  "num_hidden_layers",       "n_layer", false},
    {"bloom",  "num_attention_heads",     "n_head", false},
    {"bloom",  "intermediate_size",       "n_inner", false},
    {"bloom",  "max_position_embeddings", "seq_length", false},
    {"codegen", "hidden_size",            "n_embd", false},
    {"codegen", "num_hidden_layers",      "n_layer", false},
    {"codegen", "num_attention_heads",    "n_head", false},
    {"codegen", "intermediate_size",      "n_inner", false},
    {"codegen", "max_position_embeddings", "n_positions", false},
    {"dbrx",   "hidden_size",             "d_model", true}, /* the other is the experts' */
    {"dbrx",   "intermediate_size",       "ffn_hidden_size", false},
    {"dbrx",   "num_hidden_layers",       "n_layers", false},
    {"dbrx",   "num_attention_heads",     "n_heads", false},
    {"dbrx",   "num_key_value_heads",     "kv_n_heads", false},
    {"dbrx",   "max_position_embeddings", "max_seq_len", false},
    {"distilbert", "hidden_size",         "dim", false},
    {"distilbert", "intermediate_size",   "hidden_dim", false},
    {"distilbert", "num_hidden_layers",   "n_layers", false},
    {"distilbert", "num_attention_heads", "n_heads", false},
    {"exaone", "num_hidden_layers",       "num_layers", false},
    {"falcon", "num_hidden_layers",       "n_layer", false},
    {"falcon", "num_attention_heads",     "n_head", false},
    {"falcon", "num_key_value_heads",     "num_kv_heads", false},
    {"falcon", "num_key_value_heads",     "n_head_kv", false},
    {"falcon", "intermediate_size",       "ffn_hidden_size", false},
    {"gpt2",   "hidden_size",             "n_embd", false},
    {"gpt2",   "num_hidden_layers",       "n_layer", false},
    {"gpt2",   "num_attention_heads",     "n_head", false},
    {"gpt2",   "intermediate_size",       "n_inner", false},
    {"gpt2",   "max_position_embeddings", "n_positions", false},
    {"gpt_bigcode", "hidden_size",        "n_embd", false},
    {"gpt_bigcode", "num_hidden_layers",  "n_layer", false},
    {"gpt_bigcode", "num_attention_heads", "n_head", false},
    {"gpt_bigcode", "intermediate_size",  "n_inner", false},
    {"gpt_bigcode", "max_position_embeddings", "n_positions", false},
    {"gpt_neo", "num_hidden_layers",      "num_layers", false},
    {"gpt_neo", "num_attention_heads",    "num_heads", false},
    {"gptj",   "hidden_size",             "n_embd", false},
    {"gptj",   "num_hidden_layers",       "n_layer", false},
    {"gptj",   "num_attention_heads",     "n_head", false},
    {"gptj",   "intermediate_size",       "n_inner", false},
    {"gptj",   "max_position_embeddings", "n_positions", false},
    {"hunyuan_v1_dense", "head_dim",      "attention_head_dim", false},
    {"lfm2",   "intermediate_size",       "block_ff_dim", false},
    {"llama4_text", "intermediate_size",  "intermediate_size_mlp", true}, /* the other is the experts' */
    {"mpt",    "hidden_size",             "d_model", false},
    {"mpt",    "num_hidden_layers",       "n_layers", false},
    {"mpt",    "num_attention_heads",     "n_heads", false},
    {"mpt",    "max_position_embeddings", "max_seq_len", false},
    {"nemotron_h", "head_dim",            "attention_head_dim", false},
    {"opt",    "intermediate_size",       "ffn_dim", false},
    // clang-format on
};

/* Sizes when absent, by model type: so many times hidden_size, or the number. */
static const struct {
    const char *model_type, *key;
    uint32_t times, number;
} absent_sizes[] = {
    // clang-format off
    {"afmoe",       "head_dim",                0, 128},
    {"bamba",       "num_key_value_heads",     0, 8},
    {"bloom",       "intermediate_size",       4, 0},
    {"bloom",       "max_position_embeddings", 0, 2048}, /* slopes have no end: that of training */
    {"codegen",     "intermediate_size",       4, 0},
    {"cohere2_moe", "head_dim",                0, 128},
    {"cwm",         "head_dim",                0, 128},
    {"dbrx",        "num_key_value_heads",     0, 1},
    {"ernie4_5",    "head_dim",                0, 128},
    {"ernie4_5_moe", "num_key_value_heads",    0, 4},
    {"exaone",      "intermediate_size",       4, 0},
    {"falcon",      "intermediate_size",       4, 0},
    {"falcon",      "max_position_embeddings", 0, 2048},
    {"falcon_h1",   "num_key_value_heads",     0, 8},
    {"falcon_mamba", "intermediate_size",      2, 0}, /* no layer has these: no attention, no MLP */
    {"falcon_mamba", "num_attention_heads",    0, 1},
    {"falcon_mamba", "head_dim",               0, 64},
    {"falcon_mamba", "max_position_embeddings", 0, RECURRENT_MAX},
    {"gemma",       "head_dim",                0, 256},
    {"gemma2",      "head_dim",                0, 256},
    {"gemma3_text", "head_dim",                0, 256},
    {"gemma3n_text", "head_dim",               0, 256},
    {"gemma3n_text", "num_key_value_heads",    0, 2},
    {"gemma4_text", "head_dim",                0, 256},
    {"gemma4_text", "num_key_value_heads",     0, 4},
    {"gemma4_unified_text", "head_dim",        0, 256},
    {"gemma4_unified_text", "num_key_value_heads", 0, 4},
    {"glm",         "head_dim",                0, 128},
    {"glm4",        "head_dim",                0, 128},
    {"glm4_moe",    "num_key_value_heads",     0, 8},
    {"gpt2",        "intermediate_size",       4, 0},
    {"gpt_bigcode", "intermediate_size",       4, 0},
    {"gpt_neo",     "intermediate_size",       4, 0},
    {"gpt_oss",     "head_dim",                0, 64},
    {"gptj",        "intermediate_size",       4, 0},
    {"granite_swa", "num_key_value_heads",     0, 4},
    {"helium",      "head_dim",                0, 128},
    {"hy_v3",       "head_dim",                0, 128},
    {"hy_v3",       "num_key_value_heads",     0, 8},
    {"internlm3",   "head_dim",                0, 128},
    {"iquestcoder", "head_dim",                0, 128},
    {"jamba",       "num_key_value_heads",     0, 8},
    {"lfm2_moe",    "num_key_value_heads",     0, 8},
    {"llama4_text", "head_dim",                0, 128},
    {"llama4_text", "intermediate_size",       0, 16384},
    {"llama4_text", "num_key_value_heads",     0, 8},
    {"mamba",       "intermediate_size",       2, 0},
    {"mamba",       "num_attention_heads",     0, 1},
    {"mamba",       "head_dim",                0, 64},
    {"mamba",       "max_position_embeddings", 0, RECURRENT_MAX},
    {"mamba2",      "intermediate_size",       2, 0},
    {"mamba2",      "num_attention_heads",     0, 1},
    {"mamba2",      "head_dim",                0, 64},
    {"mamba2",      "max_position_embeddings", 0, RECURRENT_MAX},
    {"mellum",      "head_dim",                0, 128},
    {"mellum",      "num_key_value_heads",     0, 4},
    {"mimo_v2_flash", "head_dim",              0, 192},
    {"mimo_v2_flash", "num_key_value_heads",   0, 4},
    {"minimax_m2",  "head_dim",                0, 128},
    {"minimax_m2",  "num_key_value_heads",     0, 8},
    {"ministral3",  "head_dim",                0, 128},
    {"mpt",         "intermediate_size",       4, 0},
    {"nemotron_h",  "num_key_value_heads",     0, 8},
    {"nemotron_h",  "head_dim",                0, 128},
    {"nemotron_h",  "max_position_embeddings", 0, 4096},
    {"phimoe",      "num_key_value_heads",     0, 8},
    {"qwen3",       "head_dim",                0, 128},
    {"qwen3_5_moe_text", "head_dim",           0, 256},
    {"qwen3_5_moe_text", "intermediate_size",  4, 0}, /* no layer has it: all have experts */
    {"qwen3_5_moe_text", "num_key_value_heads", 0, 2},
    {"qwen3_5_text", "head_dim",               0, 256},
    {"qwen3_5_text", "num_key_value_heads",    0, 4},
    {"qwen3_next",  "head_dim",                0, 256},
    {"seed_oss",    "head_dim",                0, 128},
    {"solar_open",  "head_dim",                0, 128},
    {"solar_open",  "intermediate_size",       4, 0}, /* no layer has it: all have experts */
    {"solar_open",  "num_key_value_heads",     0, 8},
    {"vaultgemma",  "head_dim",                0, 256},
    // clang-format on
};

static enum q_code read_name(char out[CONFIG_NAME_MAX], const struct hub_json_at *at,
                             const char *key, const char *text, struct q_err *e)
{
    if (strlen(text) >= CONFIG_NAME_MAX)
        return q_fail(e, Q_CORRUPT, "%s: %s has %zu characters, expected at most %u", at->path, key,
                      strlen(text), CONFIG_NAME_MAX - 1);
    memcpy(out, text, strlen(text) + 1);
    return Q_OK;
}

static enum q_code load_architecture(char name[CONFIG_NAME_MAX], const struct hub_json_at *at,
                                     struct q_err *e)
{
    const json_t *list = hub_json_find(at, "architectures");
    const char *architecture = json_string_value(json_array_get(list, 0));
    const char *type = json_string_value(hub_json_find(at, "model_type"));
    const char *expected = type ? archs_of_type(type) : NULL;
    char types[ARCHS_TYPES_MAX];
    enum q_code rc;
    if (!architecture)
        return q_fail(e, Q_CORRUPT,
                      "%s: architectures is %s, expected a list with one name: %s%s%s", at->path,
                      list ? hub_json_kind(list) : "missing",
                      expected ? expected : "that of one of the model types ",
                      expected ? ", for model_type " : "", expected ? type : archs_types(types));
    if ((rc = archs_check(architecture, at->path, e)))
        return !hub_json_find(at, "auto_map")
                   ? rc
                   : q_wrap(e, "the model needs code of its folder (auto_map), which is never "
                               "executed, with --trust-remote-code neither; a plugin can serve "
                               "its architecture (--plugin)");
    return read_name(name, at, "architectures", architecture, e);
}

static enum q_code load_names(struct model_config *c, const struct hub_json_at *at, struct q_err *e)
{
    const char *type = "";
    enum q_code rc;
    if ((rc = load_architecture(c->architecture, at, e)) ||
        (rc = hub_json_str(&type, at, "model_type", e)) ||
        (rc = read_name(c->model_type, at, "model_type", archs_like(type), e)))
        return rc;
    for (char *p = c->model_type; *p; p++)
        *p = *p == '-' ? '_' : *p; /* as tables have it: xlm-roberta is xlm_roberta */
    return Q_OK;
}

/* Features that no family supports are rejected by name, because ignoring them gives wrong
 * answers. Models with a text model that is served: nested.def. */
static enum q_code refuse_features(const struct hub_json_at *at, struct q_err *e)
{
    if (hub_json_find(at, "text_config") && !hub_json_find(at, "hidden_size"))
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: a nested text_config is not supported for this architecture", at->path);
    return Q_OK;
}

/* The key that the config has of a size: its own, or another spelling. */
static const char *key_of(const struct model_config *c, const struct hub_json_at *at,
                          const char *key)
{
    const bool is_there = hub_json_find(at, key);
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        if (strcmp(spellings[i].model_type, c->model_type) == 0 &&
            strcmp(spellings[i].key, key) == 0 &&
            (spellings[i].only || (!is_there && hub_json_find(at, spellings[i].other))))
            return spellings[i].other;
    return key;
}

/* Another spelling of a size; NULL: there is none. */
static const char *other_spelling(const struct model_config *c, const char *key)
{
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        if (strcmp(spellings[i].model_type, c->model_type) == 0 &&
            strcmp(spellings[i].key, key) == 0)
            return spellings[i].other;
    return NULL;
}

/* A required size is missing: name the key, the accepted values, and the other keys that the
 * architecture requires. */
static enum q_code fail_missing(const struct model_config *c, const struct hub_json_at *at,
                                const struct field *f, struct q_err *e)
{
    struct buf needed = BUF_INIT;
    uint32_t n_missing = 0;
    const char *other = other_spelling(c, f->key);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (!fields[i].required)
            continue;
        buf_printf(&needed, "%s%s", needed.len ? ", " : "", fields[i].key);
        n_missing += !hub_json_find(at, key_of(c, at, fields[i].key));
    }
    enum q_code rc =
        q_fail(e, Q_CORRUPT,
               "%s: %s%s%s%s is missing, expected a whole number from %u to %u; %s requires %s%s",
               at->path, f->key, other ? " (or " : "", other ? other : "", other ? ")" : "", f->min,
               f->max, c->architecture, buf_str(&needed),
               n_missing > 1 ? " (more than one of these is missing)" : "");
    buf_release(&needed);
    return rc;
}

/* Nemotron H: the list of the layers' kinds says how many there are. */
static int64_t size_when_absent(const struct model_config *c, const char *key,
                                const struct hub_json_at *at)
{
    if (strcmp(key, "num_hidden_layers") == 0)
        return (int64_t)json_array_size(hub_json_find(at, "layers_block_type"));
    for (size_t i = 0; i < sizeof absent_sizes / sizeof *absent_sizes; i++)
        if (strcmp(absent_sizes[i].model_type, c->model_type) == 0 &&
            strcmp(absent_sizes[i].key, key) == 0)
            return (int64_t)absent_sizes[i].times * c->hidden_size + absent_sizes[i].number;
    return 0;
}

/* Gemma 3n: a width of each layer, which have to be the same; how many there are is checked by
 * config_streams.c. */
static enum q_code read_widths(int64_t *out, const struct field *f, const struct hub_json_at *at,
                               const json_t *list, struct q_err *e)
{
    const json_t *first = json_array_get(list, 0);
    const json_int_t n = json_integer_value(first);
    if (!json_is_integer(first) || n < f->min || n > f->max)
        return q_fail(e, Q_CORRUPT, "%s: %s[0] is not a whole number from %u to %u", at->path,
                      f->key, f->min, f->max);
    for (size_t i = 1; i < json_array_size(list); i++)
        if (!json_equal(json_array_get(list, i), first))
            return q_fail(e, Q_UNSUPPORTED,
                          "%s: %s[%zu] is not %s[0] = %lld: layers with MLPs of different widths "
                          "are not supported",
                          at->path, f->key, i, f->key, (long long)n);
    *out = n;
    return Q_OK;
}

static enum q_code load_size(struct model_config *c, const struct field *f,
                             const struct hub_json_at *at, struct q_err *e)
{
    int64_t value = size_when_absent(c, f->key, at);
    const char *key = key_of(c, at, f->key);
    const json_t *list = hub_json_find(at, key);
    const bool is_list = strcmp(c->model_type, "gemma3n_text") == 0 &&
                         strcmp(key, "intermediate_size") == 0 && json_is_array(list);
    const struct hub_json_range range = {f->min, f->max};
    const enum q_code rc =
        is_list ? read_widths(&value, f, at, list, e) : hub_json_int(&value, at, key, range, e);
    if (rc)
        return rc;
    if (value == 0 && f->required)
        return fail_missing(c, at, f, e);
    if (value > f->max)
        return q_fail(e, Q_CORRUPT, "%s: %s is %lld, expected at most %u", at->path, f->key,
                      (long long)value, f->max);
    const uint32_t small = (uint32_t)value;
    memcpy((char *)c + f->offset, &small, sizeof small);
    return Q_OK;
}

/* Falcon: flags say whether the number of KV heads counts; GPT-BigCode: one says that it is 1. */
static enum q_code load_kv_heads(struct model_config *c, const struct hub_json_at *at,
                                 struct q_err *e)
{
    bool grouped = false, one = true;
    enum q_code rc;
    if (c->n_kv_head == 0)
        c->n_kv_head = c->n_head;
    if (strcmp(c->model_type, "falcon") != 0 && strcmp(c->model_type, "gpt_bigcode") != 0)
        return Q_OK;
    if ((rc = hub_json_bool(&grouped, at, "new_decoder_architecture", e)) ||
        (rc = hub_json_bool(&one, at, "multi_query", e)))
        return rc;
    if (!grouped)
        c->n_kv_head = one ? 1 : c->n_head;
    return Q_OK;
}

static enum q_code load_sizes(struct model_config *c, const struct hub_json_at *at, struct q_err *e)
{
    enum q_code rc;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if ((rc = load_size(c, &fields[i], at, e)))
            return rc;
    if ((rc = load_kv_heads(c, at, e)))
        return rc;
    if (c->n_head % c->n_kv_head)
        return q_fail(e, Q_CORRUPT,
                      "%s: num_attention_heads %u is not a multiple of num_key_value_heads %u",
                      at->path, c->n_head, c->n_kv_head);
    if (strcmp(c->model_type, "codegen") == 0 && c->n_head % 4)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: %u heads are not supported for model_type \"codegen\", expected a "
                      "multiple of 4",
                      at->path, c->n_head);
    if (c->head_dim == 0 && c->hidden_size % c->n_head)
        return q_fail(e, Q_CORRUPT,
                      "%s: head_dim is missing and hidden_size %u is not a multiple of %u heads",
                      at->path, c->hidden_size, c->n_head);
    if (c->head_dim == 0)
        c->head_dim = c->hidden_size / c->n_head;
    if (c->head_dim > CONFIG_HEAD_MAX)
        return q_fail(e, Q_CORRUPT, "%s: hidden_size %u / %u heads gives a head_dim above %u",
                      at->path, c->hidden_size, c->n_head, CONFIG_HEAD_MAX);
    if (c->head_dim % 2)
        return q_fail(e, Q_CORRUPT,
                      "%s: head_dim is %u, expected an even number (rotary embedding)", at->path,
                      c->head_dim);
    return Q_OK;
}

static enum q_code load_dtype(struct model_config *c, const struct hub_json_at *at, struct q_err *e)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } names[] = {{"float32", DT_F32}, {"float16", DT_F16}, {"bfloat16", DT_BF16}};
    const char *text = "float32";
    enum q_code rc;
    if ((rc = hub_json_str(&text, at, "torch_dtype", e)) ||
        (rc = hub_json_str(&text, at, "dtype", e)))
        return rc;
    const char *bare = strncmp(text, "torch.", 6) == 0 ? text + 6 : text;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, bare) == 0) {
            c->dtype = names[i].dtype;
            return Q_OK;
        }
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: dtype \"%.40s\" is not supported, expected float32, float16 or bfloat16",
                  at->path, text);
}

static enum q_code load_ids(struct model_config *c, const struct hub_json_at *at, struct q_err *e)
{
    const json_t *eos = hub_json_find(at, "eos_token_id");
    const json_t *bos = hub_json_find(at, "bos_token_id");
    if (json_is_array(bos))
        bos = json_array_get(bos, 0);
    if (json_is_integer(bos) && json_integer_value(bos) >= 0 &&
        json_integer_value(bos) < UINT32_MAX)
        c->bos_id = (uint32_t)json_integer_value(bos);
    if (!eos)
        return Q_OK;
    size_t n = json_is_array(eos) ? json_array_size(eos) : 1;
    if (n > CONFIG_EOS_MAX)
        return q_fail(e, Q_CORRUPT, "%s: eos_token_id has %zu entries, expected at most %u",
                      at->path, n, CONFIG_EOS_MAX);
    c->n_eos = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(eos) ? json_array_get(eos, i) : eos;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= UINT32_MAX)
            return q_fail(e, Q_CORRUPT, "%s: eos_token_id is or contains %s, expected token ids",
                          at->path,
                          json_is_integer(id) ? "a number out of range" : hub_json_kind(id));
        c->eos_ids[c->n_eos++] = (uint32_t)json_integer_value(id);
    }
    return Q_OK;
}

static enum q_code load_config(struct model_config *c, const struct hub_json_at *at,
                               struct q_err *e)
{
    enum q_code rc;
    if ((rc = load_names(c, at, e)) || (rc = refuse_features(at, e)) ||
        (rc = load_sizes(c, at, e)) || (rc = config_encoder_load(c, at, e)) ||
        (rc = config_latent_load(c, at, e)) || (rc = config_forward_load(c, at, e)) ||
        (rc = load_dtype(c, at, e)) || (rc = config_mixers_load(c, at, e)) ||
        (rc = config_layers_load(c, at, e)) || (rc = config_kinds_load(c, at, e)) ||
        (rc = config_streams_load(c, at, e)) || (rc = load_ids(c, at, e)) ||
        (rc = config_moe_load(c, at, e)) || (rc = config_quant_load(&c->quant, at, e)))
        return rc;
    return config_rope_load(c, at, e);
}

static enum q_code load_sampling(struct generation_defaults *g, const struct hub_json_at *at,
                                 struct q_err *e)
{
    struct {
        const char *key;
        double *out;
        bool *given;
        struct hub_json_range range;
    } numbers[] = {
        {"temperature", &g->temperature, &g->has_temperature, {0, 1e6}},
        {"top_p", &g->top_p, &g->has_top_p, {0, 1}},
        {"min_p", &g->min_p, &g->has_min_p, {0, 1}},
        {"repetition_penalty", &g->repetition_penalty, &g->has_repetition_penalty, {1e-6, 1e6}},
    };
    enum q_code rc;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        *numbers[i].given = hub_json_find(at, numbers[i].key) != NULL;
        if ((rc = hub_json_number(numbers[i].out, at, numbers[i].key, numbers[i].range, e)))
            return rc;
    }
    g->has_top_k = hub_json_find(at, "top_k") != NULL;
    g->has_max_new_tokens = hub_json_find(at, "max_new_tokens") != NULL;
    if ((rc = hub_json_int(&g->top_k, at, "top_k", (struct hub_json_range){-1, UINT32_MAX}, e)))
        return rc;
    return hub_json_int(&g->max_new_tokens, at, "max_new_tokens",
                        (struct hub_json_range){1, UINT32_MAX}, e);
}

/* What is common to all: the sizes that bound requests, and the ids. */
static enum q_code load_unknown(struct model_config *c, const struct hub_json_at *at,
                                struct q_err *e)
{
    const json_t *vocab = hub_json_find(at, "vocab_size");
    const json_t *positions = hub_json_find(at, "max_position_embeddings");
    const json_int_t n_vocab = json_integer_value(vocab), n = json_integer_value(positions);
    c->vocab_size = n_vocab > 0 && n_vocab < VOCAB_MAX ? (uint32_t)n_vocab : VOCAB_MAX;
    c->max_position = n > 0 && n < POSITIONS_MAX ? (uint32_t)n : POSITIONS_MAX;
    return load_ids(c, at, e);
}

/* The file's object, with an architecture: where it names none, that of its model_type, as
 * transformers has it. */
static enum q_code parse_root(json_t **root, const char *text, size_t n, const char *path,
                              struct q_err *e)
{
    enum q_code rc = hub_json_parse(root, text, n, path, e);
    if (rc)
        return rc;
    const struct hub_json_at at = {*root, path};
    const json_t *list = hub_json_find(&at, "architectures");
    const char *type = json_string_value(hub_json_find(&at, "model_type"));
    const char *name = type ? archs_of_type(type) : NULL;
    if (!name || (list && (!json_is_array(list) || json_array_size(list))))
        return Q_OK;
    return json_object_set_new(*root, "architectures", json_pack("[s]", name))
               ? q_fail(e, Q_NO_MEMORY, "%s: no memory for its architecture", path)
               : Q_OK;
}

static enum q_code parse_any(struct model_config *c, const char *text, size_t n, const char *path,
                             struct q_err *e)
{
    json_t *root = NULL;
    enum q_code rc = parse_root(&root, text, n, path, e);
    const struct hub_json_at at = {root, path};
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    if (!rc && name && !archs_type(name) && !archs_added_find(name) && !nested_inputs(name) &&
        !(rc = read_name(c->architecture, &at, "architectures", name, e)))
        rc = load_unknown(c, &at, e);
    else if (!rc)
        rc = model_config_parse(c, text, n, path, e);
    json_decref(root);
    return rc;
}

/* Of a model that takes other inputs too: *root becomes its text model's. */
static enum q_code take_text(struct model_config *c, json_t **root, const char *path,
                             struct q_err *e)
{
    json_t *text;
    enum q_code rc = nested_text(&text, *root, path, e);
    if (rc || !text)
        return rc;
    const struct hub_json_at at = {*root, path};
    const char *name = json_string_value(json_array_get(hub_json_find(&at, "architectures"), 0));
    rc = read_name(c->outer, &at, "architectures", name, e);
    json_decref(*root);
    *root = text;
    return rc;
}

/* MPT, DBRX: keys of attention, experts and their activation are in objects of their own, a later
 * one in an earlier. They become keys of the config, unless it has them. */
static enum q_code take_section(json_t *root, const char *path, struct q_err *e)
{
    static const struct {
        const char *model_type, *key;
    } sections[] = {
        {"mpt", "attn_config"},
        {"dbrx", "attn_config"},
        {"dbrx", "ffn_config"},
        {"dbrx", "ffn_act_fn"},
    };
    const char *type = json_string_value(json_object_get(root, "model_type"));
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        json_t *section = json_object_get(root, sections[i].key);
        if (!type || strcmp(sections[i].model_type, type) != 0 || !section || json_is_null(section))
            continue;
        if (!json_is_object(section))
            return q_fail(e, Q_CORRUPT, "%s: %s is %s, expected an object", path, sections[i].key,
                          hub_json_kind(section));
        if (json_object_update_missing(root, section))
            return q_fail(e, Q_NO_MEMORY, "%s: no memory for its keys", path);
    }
    return Q_OK;
}

enum q_code model_config_parse(struct model_config *c, const char *text, size_t n, const char *path,
                               struct q_err *e)
{
    json_t *root = NULL;
    *c = (struct model_config){.bos_id = UINT32_MAX};
    enum q_code rc = parse_root(&root, text, n, path, e);
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    const struct archs_added *plugin = name ? archs_added_find(name) : NULL;
    if (!rc && plugin)
        rc = plugin->apply(plugin, c, root, path, e);
    else if (!rc && !(rc = take_text(c, &root, path, e)))
        rc = take_section(root, path, e);
    if (!rc)
        rc = load_config(c, &(struct hub_json_at){root, path}, e);
    if (!rc && plugin)
        rc = plugin->resolve(plugin, c, root, path, e);
    json_decref(root);
    return rc;
}

enum q_code generation_defaults_parse(struct model_config *c, struct generation_defaults *g,
                                      const char *text, size_t n, const char *path, struct q_err *e)
{
    json_t *root = NULL;
    *g = (struct generation_defaults){0};
    enum q_code rc = hub_json_parse(&root, text, n, path, e);
    if (!rc)
        rc = load_sampling(g, &(struct hub_json_at){root, path}, e);
    if (!rc)
        rc = load_ids(c, &(struct hub_json_at){root, path}, e);
    json_decref(root);
    return rc;
}

enum q_code generation_defaults_option(struct generation_defaults *g, const char *text,
                                       struct q_err *e)
{
    static const char flag[] = "--override-generation-config";
    static const char *const keys[] = {"temperature",        "top_p",         "top_k", "min_p",
                                       "repetition_penalty", "max_new_tokens"};
    const size_t n_key = sizeof keys / sizeof *keys;
    json_t *root = NULL, *v;
    const char *key;
    *g = (struct generation_defaults){0};
    if (!*text)
        return Q_OK;
    enum q_code rc = hub_json_parse(&root, text, strlen(text), flag, e);
    json_object_foreach (root, key, v) {
        size_t i = 0;
        while (i < n_key && strcmp(keys[i], key) != 0)
            i++;
        if (i == n_key && !rc)
            rc = q_fail(e, Q_INVALID,
                        "%s: \"%.60s\" is not supported; accepted are temperature, top_p, top_k, "
                        "min_p, repetition_penalty and max_new_tokens",
                        flag, key);
    }
    if (!rc && load_sampling(g, &(struct hub_json_at){root, flag}, e))
        rc = e->code = Q_INVALID;
    json_decref(root);
    return rc;
}

void generation_defaults_merge(struct generation_defaults *g,
                               const struct generation_defaults *over)
{
#define TAKE(field)                                           \
    do {                                                      \
        g->has_##field = g->has_##field || over->has_##field; \
        if (over->has_##field)                                \
            g->field = over->field;                           \
    } while (0)
    TAKE(temperature);
    TAKE(top_p);
    TAKE(top_k);
    TAKE(min_p);
    TAKE(repetition_penalty);
    TAKE(max_new_tokens);
#undef TAKE
}

typedef enum q_code parse_fn(struct model_config *c, const char *text, size_t n, const char *path,
                             struct q_err *e);

static enum q_code load_folder(struct model_config *c, struct generation_defaults *g,
                               const char *dir, parse_fn *parse, struct q_err *e)
{
    char path[PATH_MAX];
    struct buf text = BUF_INIT;
    struct generation_defaults unused;
    struct generation_defaults *defaults = g ? g : &unused;
    *c = (struct model_config){.bos_id = UINT32_MAX};
    *defaults = (struct generation_defaults){0};
    enum q_code rc;
    if ((rc = params_read_config(&text, path, dir, e)) ||
        (rc = parse(c, buf_str(&text), text.len, path, e)) ||
        (rc = path_join(path, sizeof path, dir, "generation_config.json", e)) ||
        (rc = download_check_link(path, e)) || !file_exists(path))
        goto out;
    buf_reset(&text);
    if (!(rc = file_read(&text, path, HUB_JSON_FILE_MAX, e)) &&
        !(rc = download_check(text.data, text.len, path, e)))
        rc = generation_defaults_parse(c, defaults, buf_str(&text), text.len, path, e);
out:
    buf_release(&text);
    return rc;
}

enum q_code model_config_load(struct model_config *c, struct generation_defaults *g,
                              const char *dir, struct q_err *e)
{
    return load_folder(c, g, dir, model_config_parse, e);
}

enum q_code model_config_load_any(struct model_config *c, struct generation_defaults *g,
                                  const char *dir, struct q_err *e)
{
    return load_folder(c, g, dir, parse_any, e);
}
