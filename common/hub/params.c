/* SPDX-License-Identifier: Apache-2.0 */
/* params.json does not say the type of the weights: that of the final norm in the files is taken,
 * bfloat16 where there are none (--load-format dummy). Meta's files leave out the width of the MLP,
 * which their code computes of three other numbers.
 * Sources: mistral-inference (args.py), llama-models (args.py, model.py: FeedForward), vLLM
 * (transformers_utils/configs/mistral.py: defaults of lengths). */
#include "common/hub/params.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/download.h"
#include "common/file.h"
#include "common/hub/config_quant.h"
#include "common/hub/config_source.h"
#include "common/hub/gguf_config.h"
#include "common/hub/hub_json.h"
#include "common/hub/safetensors.h"

#define POSITIONS_DEFAULT 128000 /* tokens, where the file does not say: as vLLM */
#define BOS_ID            1      /* of all tokenizers of Mistral's layout, and of Llama 1 and 2 */
#define EOS_ID            2

enum param_kind {
    SIZE,    /* a whole number above 0 */
    NUMBER,  /* above 0 */
    FLAG,    /* true or false */
    LENGTH,  /* of the MLP and of sequences: read apart */
    EXPERTS, /* an object */
    YARN,    /* an object */
    UNUSED,  /* does not change what is computed */
    ONLY_OFF /* null, false, or an empty object: refused otherwise */
};

/* Keys of params.json. */
static const struct param {
    const char *key, *config; /* NULL: none of the same meaning */
    enum param_kind kind;
} table[] = {
    // clang-format off
    {"dim",                     "hidden_size",         SIZE},
    {"n_layers",                "num_hidden_layers",   SIZE},
    {"n_heads",                 "num_attention_heads", SIZE},
    {"n_kv_heads",              "num_key_value_heads", SIZE},
    {"head_dim",                "head_dim",            SIZE},
    {"vocab_size",              "vocab_size",          SIZE},
    {"sliding_window",          "sliding_window",      SIZE},
    {"norm_eps",                "rms_norm_eps",        NUMBER},
    {"rope_theta",              "rope_theta",          NUMBER},
    {"tied_embeddings",         "tie_word_embeddings", FLAG},
    {"hidden_dim",              "intermediate_size",   LENGTH},
    {"multiple_of",             NULL,                  LENGTH},
    {"ffn_dim_multiplier",      NULL,                  LENGTH},
    {"max_seq_len",             NULL,                  LENGTH},
    {"max_position_embeddings", NULL,                  LENGTH},
    {"moe",                     NULL,                  EXPERTS},
    {"yarn",                    NULL,                  YARN},
    {"model_type",              NULL,                  UNUSED},
    {"max_batch_size",          NULL,                  UNUSED},
    {"use_biases",              NULL,                  ONLY_OFF},
    {"use_scaled_rope",         NULL,                  ONLY_OFF},
    {"quantization",            NULL,                  ONLY_OFF},
    {"lora",                    NULL,                  ONLY_OFF},
    {"vision_encoder",          NULL,                  ONLY_OFF},
    {"multimodal",              NULL,                  ONLY_OFF},
    {"llama_4_scaling",         NULL,                  ONLY_OFF},
    // clang-format on
};

static const struct hub_json_range sizes = {1, 1 << 28};

static const struct param *find_param(const char *key)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].key, key) == 0)
            return &table[i];
    return NULL;
}

static bool is_off(const json_t *v)
{
    return json_is_null(v) || json_is_false(v) || (json_is_object(v) && !json_object_size(v));
}

/* Set a key; the value's reference is taken. */
static enum q_code set(json_t *config, const char *key, json_t *value, struct q_err *e)
{
    return json_object_set_new(config, key, value) == 0
               ? Q_OK
               : q_fail(e, Q_NO_MEMORY, "out of memory reading params.json");
}

/* ---- keys ---- */

static enum q_code set_size(json_t *config, const struct hub_json_at *at, const struct param *p,
                            struct q_err *e)
{
    int64_t value = 0;
    const json_t *found = hub_json_find(at, p->key);
    if (json_is_array(found))
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: %s is a list, a value for each layer, which is not supported", at->path,
                      p->key);
    if (json_integer_value(found) == -1 && strcmp(p->key, "vocab_size") == 0)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: vocab_size is -1, which stands for the tokenizer's; write the number of "
                      "rows of tok_embeddings.weight",
                      at->path);
    const enum q_code rc = hub_json_int(&value, at, p->key, sizes, e);
    return rc ? rc : set(config, p->config, json_integer(value), e);
}

static enum q_code set_number(json_t *config, const struct hub_json_at *at, const struct param *p,
                              struct q_err *e)
{
    double value = 0;
    const enum q_code rc =
        hub_json_number(&value, at, p->key, (struct hub_json_range){1e-12, 1e12}, e);
    return rc ? rc : set(config, p->config, json_real(value), e);
}

static enum q_code set_flag(json_t *config, const struct hub_json_at *at, const struct param *p,
                            struct q_err *e)
{
    bool value = false;
    const enum q_code rc = hub_json_bool(&value, at, p->key, e);
    return rc ? rc : set(config, p->config, json_boolean(value), e);
}

/* {"num_experts": 8, "num_experts_per_tok": 2} */
static enum q_code set_experts(json_t *config, const struct hub_json_at *at, struct q_err *e)
{
    const struct hub_json_at moe = {hub_json_find(at, "moe"), at->path};
    int64_t n = 0, n_used = 0;
    enum q_code rc;
    if (!json_is_object(moe.object))
        return q_fail(e, Q_CORRUPT, "%s: moe is %s, expected an object", at->path,
                      hub_json_kind(moe.object));
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)(uintptr_t)moe.object, key, value)
        if (strcmp(key, "num_experts") != 0 && strcmp(key, "num_experts_per_tok") != 0)
            return q_fail(e, Q_UNSUPPORTED,
                          "%s: moe.%.40s is not supported; expected num_experts and "
                          "num_experts_per_tok alone",
                          at->path, key);
    if ((rc = hub_json_int(&n, &moe, "num_experts", sizes, e)) ||
        (rc = hub_json_int(&n_used, &moe, "num_experts_per_tok", sizes, e)))
        return rc;
    if (!n || !n_used)
        return q_fail(e, Q_CORRUPT, "%s: moe has no num_experts or no num_experts_per_tok",
                      at->path);
    rc = set(config, "num_local_experts", json_integer(n), e);
    return rc ? rc : set(config, "num_experts_per_tok", json_integer(n_used), e);
}

/* {"factor", "original_max_position_embeddings", "beta" (fast), "alpha" (slow), "apply_scale"} */
static enum q_code set_yarn(json_t *config, const struct hub_json_at *at, struct q_err *e)
{
    static const struct {
        const char *key, *config;
    } keys[] = {
        {"factor", "factor"},
        {"original_max_position_embeddings", "original_max_position_embeddings"},
        {"beta", "beta_fast"},
        {"alpha", "beta_slow"},
    };
    const struct hub_json_at yarn = {hub_json_find(at, "yarn"), at->path};
    bool scaled = true;
    enum q_code rc = Q_OK;
    if (!json_is_object(yarn.object))
        return q_fail(e, Q_CORRUPT, "%s: yarn is %s, expected an object", at->path,
                      hub_json_kind(yarn.object));
    json_t *rope = json_object();
    if (!rope || json_object_set_new(rope, "rope_type", json_string("yarn")))
        rc = q_fail(e, Q_NO_MEMORY, "out of memory reading params.json");
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !rc; i++) {
        double value = 0;
        rc = hub_json_number(&value, &yarn, keys[i].key, (struct hub_json_range){1e-12, 1e12}, e);
        if (!rc && value != 0)
            rc = set(rope, keys[i].config, json_real(value), e);
    }
    if (!rc && !(rc = hub_json_bool(&scaled, &yarn, "apply_scale", e)) && !scaled)
        rc = set(rope, "attention_factor", json_real(1), e);
    if (rc) {
        json_decref(rope);
        return rc;
    }
    return set(config, "rope_scaling", rope, e);
}

/* ---- lengths ---- */

/* The width of the MLP: as it is written, or as Meta's code computes it: two thirds of 4 dim, times
 * a factor, rounded up to a multiple. */
static enum q_code set_width(json_t *config, const struct hub_json_at *at, struct q_err *e)
{
    int64_t width = 0, multiple = 0;
    double factor = 1;
    enum q_code rc;
    if ((rc = hub_json_int(&width, at, "hidden_dim", sizes, e)) ||
        (rc = hub_json_int(&multiple, at, "multiple_of", sizes, e)) ||
        (rc = hub_json_number(&factor, at, "ffn_dim_multiplier", (struct hub_json_range){1e-3, 64},
                              e)))
        return rc;
    if (!width && !multiple)
        return q_fail(e, Q_CORRUPT, "%s: hidden_dim is missing (or multiple_of, as Meta's have it)",
                      at->path);
    if (!width) {
        const int64_t dim = json_integer_value(json_object_get(config, "hidden_size"));
        const int64_t two_thirds = 8 * dim / 3; /* of 4 dim, rounded down */
        width = (int64_t)(factor * (double)two_thirds);
        width = (width + multiple - 1) / multiple * multiple;
    }
    return set(config, "intermediate_size", json_integer(width), e);
}

static enum q_code set_positions(json_t *config, const struct hub_json_at *at, struct q_err *e)
{
    int64_t n = POSITIONS_DEFAULT;
    enum q_code rc;
    if ((rc = hub_json_int(&n, at, "max_seq_len", sizes, e)) ||
        (rc = hub_json_int(&n, at, "max_position_embeddings", sizes, e)))
        return rc;
    return set(config, "max_position_embeddings", json_integer(n), e);
}

/* ---- the whole ---- */

static enum q_code set_key(json_t *config, const struct hub_json_at *at, const char *key,
                           const json_t *value, struct q_err *e)
{
    const struct param *p = find_param(key);
    if (!p)
        return json_is_null(value)
                   ? Q_OK
                   : q_fail(e, Q_UNSUPPORTED,
                            "%s: the key %.60s is not known, and what it changes would be lost; "
                            "use the model in the layout of Hugging Face (config.json)",
                            at->path, key);
    if (json_is_null(value))
        return Q_OK;
    switch (p->kind) {
    case SIZE:
        return set_size(config, at, p, e);
    case NUMBER:
        return set_number(config, at, p, e);
    case FLAG:
        return set_flag(config, at, p, e);
    case EXPERTS:
        return set_experts(config, at, e);
    case YARN:
        return set_yarn(config, at, e);
    case ONLY_OFF:
        if (!is_off(value))
            return q_fail(e, Q_UNSUPPORTED,
                          "%s: %s is not supported in this layout; use the model in the layout of "
                          "Hugging Face (config.json)",
                          at->path, key);
        return Q_OK;
    default:
        return Q_OK;
    }
}

/* A key that every file has, under its own name. */
static enum q_code check_needed(const struct hub_json_at *at, struct q_err *e)
{
    static const char *const needed[] = {"dim", "n_layers", "n_heads", "vocab_size", "norm_eps"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!hub_json_find(at, needed[i]))
            return q_fail(e, Q_CORRUPT,
                          "%s: %s is missing; params.json of Mistral's layout has dim, n_layers, "
                          "n_heads, vocab_size, norm_eps and hidden_dim",
                          at->path, needed[i]);
    return Q_OK;
}

/* is_meta: the file is Meta's, whose rope has the older base. */
static enum q_code set_names(json_t *config, enum dtype dtype, bool is_meta, struct q_err *e)
{
    /* mistral-inference infers the base so: files from before rope_theta have a window */
    const double theta = is_meta || json_object_get(config, "sliding_window") ? 1e4 : 1e6;
    static const char *const types[] = {
        [DT_F32] = "float32",
        [DT_F16] = "float16",
        [DT_BF16] = "bfloat16",
    };
    const bool is_moe = json_object_get(config, "num_local_experts") != NULL;
    const char *type = dtype == DT_F32 || dtype == DT_F16 ? types[dtype] : types[DT_BF16];
    enum q_code rc;
    if ((rc = set(config, "model_type", json_string(is_moe ? "mixtral" : "mistral"), e)) ||
        (rc = set(config, "architectures",
                  json_pack("[s]", is_moe ? "MixtralForCausalLM" : "MistralForCausalLM"), e)) ||
        (rc = set(config, "hidden_act", json_string("silu"), e)) ||
        (rc = set(config, "torch_dtype", json_string(type), e)) ||
        (rc = set(config, "bos_token_id", json_integer(BOS_ID), e)))
        return rc;
    if (!json_object_get(config, "rope_theta") &&
        (rc = set(config, "rope_theta", json_real(theta), e)))
        return rc;
    /* absent in a config.json of Mistral, the window would be transformers' default */
    if (!json_object_get(config, "sliding_window") &&
        (rc = set(config, "sliding_window", json_null(), e)))
        return rc;
    return set(config, "eos_token_id", json_integer(EOS_ID), e);
}

enum q_code params_to_config(json_t **out, const json_t *params, enum dtype dtype, const char *path,
                             struct q_err *e)
{
    const struct hub_json_at at = {params, path};
    json_t *config = json_object(), *value;
    const char *key;
    enum q_code rc =
        config ? check_needed(&at, e) : q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    json_object_foreach ((json_t *)(uintptr_t)params, key, value)
        if (!rc)
            rc = set_key(config, &at, key, value, e);
    if (rc || (rc = set_width(config, &at, e)) || (rc = set_positions(config, &at, e)) ||
        (rc = set_names(config, dtype, hub_json_find(&at, "multiple_of") != NULL, e)))
        json_decref(config);
    else
        *out = config;
    return rc;
}

/* The type of the weights beside it. Files that cannot be read are reported by those that load
 * them. */
static enum dtype dtype_of(const char *dir)
{
    struct tensor_set *files = NULL;
    enum dtype dtype = DT_BF16;
    if (tensor_set_open(&files, dir, NULL))
        return dtype;
    const struct tensor *norm = tensor_find(files, "norm.weight");
    if (norm)
        dtype = norm->dtype;
    tensor_set_free(files);
    return dtype;
}

static enum q_code add_params(struct buf *out, const char *path, const char *dir, struct q_err *e)
{
    json_t *params = NULL, *config = NULL;
    char *text = NULL;
    enum q_code rc = hub_json_load(&params, path, e);
    if (!rc && !(rc = params_to_config(&config, params, dtype_of(dir), path, e))) {
        text = json_dumps(config, JSON_COMPACT | JSON_REAL_PRECISION(17));
        rc = text ? Q_OK : q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    }
    if (text) {
        json_free_t release;
        json_get_alloc_funcs(NULL, &release);
        buf_add_str(out, text);
        release(text);
        rc = buf_check(out, path, e);
    }
    json_decref(config);
    json_decref(params);
    return rc;
}

/* config.json, params.json or a GGUF file's metadata, as they are. */
static enum q_code read_own(struct buf *out, char path[PATH_MAX], const char *dir, struct q_err *e)
{
    enum q_code rc;
    if (weight_files_is_gguf(dir))
        return snprintf(path, PATH_MAX, "%s", dir) < PATH_MAX
                   ? gguf_config_text(out, dir, e)
                   : q_fail(e, Q_TOO_LARGE, "%s: the path is too long", dir);
    if (weight_files_has_params(dir)) {
        rc = path_join(path, PATH_MAX, dir, "params.json", e);
        return rc ? rc : add_params(out, path, dir, e);
    }
    if ((rc = path_join(path, PATH_MAX, dir, "config.json", e)) ||
        (rc = file_read(out, path, HUB_JSON_FILE_MAX, e)) ||
        (rc = download_check(out->data, out->len, path, e)))
        return rc;
    return config_quant_add_file(out, dir, path, e);
}

/* The text with the values of --hf-overrides. */
static enum q_code add_merged(struct buf *out, struct buf *own, const char *overrides,
                              const char *path, struct q_err *e)
{
    json_t *root = NULL;
    char *text = NULL;
    enum q_code rc = hub_json_parse(&root, buf_str(own), own->len, path, e);
    if (!rc && !(rc = config_source_merge(root, overrides, path, e))) {
        text = json_dumps(root, JSON_REAL_PRECISION(17));
        if (text)
            buf_add_str(out, text);
        rc = text ? buf_check(out, path, e) : q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    }
    if (text) {
        json_free_t release;
        json_get_alloc_funcs(NULL, &release);
        release(text);
    }
    json_decref(root);
    return rc;
}

enum q_code params_read_config(struct buf *out, char path[PATH_MAX], const char *dir,
                               struct q_err *e)
{
    const struct config_source *source = config_source_find(dir);
    struct buf own = BUF_INIT;
    if (!source)
        return read_own(out, path, dir, e);
    enum q_code rc = read_own(*source->overrides ? &own : out, path,
                              *source->config_dir ? source->config_dir : dir, e);
    if (!rc && *source->overrides)
        rc = add_merged(out, &own, source->overrides, path, e);
    buf_release(&own);
    return rc;
}
