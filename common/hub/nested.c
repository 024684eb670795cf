/* SPDX-License-Identifier: Apache-2.0 */
#include "common/hub/nested.h"
#include <string.h>
#include "common/hub/archs.h"
#include "common/hub/hub_json.h"

static const struct nested {
    const char *architecture, *text_type, *inputs;
} rows[] = {
#define NESTED(architecture, type, inputs) {#architecture, #type, inputs},
#include "common/hub/nested.def"
};

/* Sizes that text_config leaves to transformers' defaults. */
static const struct {
    const char *type, *key;
    int value;
} defaults[] = {
    {"gemma3_text", "vocab_size", 262208},
    {"gemma3_text", "hidden_size", 2304},
    {"gemma3_text", "intermediate_size", 9216},
    {"gemma3_text", "num_hidden_layers", 26},
    {"gemma3_text", "num_attention_heads", 8},
    {"gemma3_text", "num_key_value_heads", 4},
    {"gemma3_text", "max_position_embeddings", 131072},
    {"gemma3n_text", "vocab_size", 262400},
    {"gemma3n_text", "hidden_size", 2048},
    {"gemma3n_text", "intermediate_size", 16384},
    {"gemma3n_text", "num_hidden_layers", 35},
    {"gemma3n_text", "num_attention_heads", 8},
    {"gemma3n_text", "num_key_value_heads", 2},
    {"gemma3n_text", "max_position_embeddings", 32768},
    {"gemma4_text", "vocab_size", 262144},
    {"gemma4_text", "hidden_size", 2304},
    {"gemma4_text", "intermediate_size", 9216},
    {"gemma4_text", "num_hidden_layers", 30},
    {"gemma4_text", "num_attention_heads", 8},
    {"gemma4_text", "num_key_value_heads", 4},
    {"gemma4_text", "max_position_embeddings", 131072},
    {"gemma4_unified_text", "vocab_size", 262144},
    {"gemma4_unified_text", "hidden_size", 2304},
    {"gemma4_unified_text", "intermediate_size", 9216},
    {"gemma4_unified_text", "num_hidden_layers", 30},
    {"gemma4_unified_text", "num_attention_heads", 8},
    {"gemma4_unified_text", "num_key_value_heads", 4},
    {"gemma4_unified_text", "max_position_embeddings", 262144},
    {"llama", "vocab_size", 32000},
    {"llama", "hidden_size", 4096},
    {"llama", "intermediate_size", 11008},
    {"llama", "num_hidden_layers", 32},
    {"llama", "num_attention_heads", 32},
    {"llama", "max_position_embeddings", 2048},
    {"mistral", "vocab_size", 32000},
    {"mistral", "hidden_size", 4096},
    {"mistral", "intermediate_size", 14336},
    {"mistral", "num_hidden_layers", 32},
    {"mistral", "num_attention_heads", 32},
    {"mistral", "num_key_value_heads", 8},
    {"mistral", "max_position_embeddings", 131072},
    {"mistral4", "vocab_size", 131072},
    {"mistral4", "hidden_size", 4096},
    {"mistral4", "intermediate_size", 12288},
    {"mistral4", "num_hidden_layers", 36},
    {"mistral4", "num_attention_heads", 32},
    {"mistral4", "max_position_embeddings", 1048576},
};

/* Keys that count where the outer object has them. */
static const char *const outer_first[] = {"eos_token_id", "bos_token_id"};
/* Keys that the outer object may have in place of the inner one. */
static const char *const outer_too[] = {"dtype", "torch_dtype", "quantization_config"};

static const struct nested *row_of(const char *architecture)
{
    for (size_t i = 0; architecture && i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].architecture, architecture) == 0)
            return &rows[i];
    return NULL;
}

const char *nested_inputs(const char *architecture)
{
    const struct nested *row = row_of(architecture);
    return row ? row->inputs : NULL;
}

static const char *type_of(const struct nested *row, const json_t *inner, bool is_flat)
{
    const char *type = json_string_value(json_object_get(inner, "model_type"));
    if (is_flat || !type)
        type = row->text_type;
    return archs_like(type);
}

/* Tied where one of the two says so: older folders say it of the text model. */
static int set_tied(json_t *text, const json_t *root)
{
    const char *key = "tie_word_embeddings";
    json_t *outer = json_object_get(root, key), *inner = json_object_get(text, key);
    if (!outer || json_is_true(inner) || (json_is_false(outer) && inner))
        return 0;
    return json_object_set(text, key, outer);
}

static int set_outer(json_t *text, const json_t *root)
{
    int failed = set_tied(text, root);
    for (size_t i = 0; i < sizeof outer_first / sizeof *outer_first; i++)
        if (json_object_get(root, outer_first[i]))
            failed |= json_object_set(text, outer_first[i], json_object_get(root, outer_first[i]));
    for (size_t i = 0; i < sizeof outer_too / sizeof *outer_too; i++)
        if (!json_object_get(text, outer_too[i]) && json_object_get(root, outer_too[i]))
            failed |= json_object_set(text, outer_too[i], json_object_get(root, outer_too[i]));
    return failed;
}

static int set_defaults(json_t *text, const char *type)
{
    int failed = 0;
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (strcmp(defaults[i].type, type) == 0 && !json_object_get(text, defaults[i].key))
            failed |= json_object_set_new(text, defaults[i].key, json_integer(defaults[i].value));
    return failed;
}

FALLIBLE nested_text(json_t **out, const json_t *root, const char *path, struct q_err *e)
{
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    const struct nested *row = row_of(name);
    json_t *inner = json_object_get(root, "text_config");
    if (!inner)
        inner = json_object_get(root, "llm_config");
    *out = NULL;
    if (!row)
        return Q_OK;
    if (inner && !json_is_null(inner) && !json_is_object(inner))
        return q_fail(e, Q_CORRUPT, "%s: text_config is %s, expected an object", path,
                      hub_json_kind(inner));
    const bool is_flat = !json_is_object(inner);
    const char *type = type_of(row, inner, is_flat);
    const char *architecture = archs_of_type(type);
    char types[ARCHS_TYPES_MAX];
    if (!architecture)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: the text model of %s is of model_type %.60s, which is not supported; "
                      "supported are %s",
                      path, name, type, archs_types(types));
    json_t *text = json_copy(is_flat ? (json_t *)(uintptr_t)root : inner);
    if (!text || (!is_flat && set_outer(text, root)) || (!is_flat && set_defaults(text, type)) ||
        json_object_set_new(text, "model_type", json_string(type)) ||
        json_object_set_new(text, "architectures", json_pack("[s]", architecture))) {
        json_decref(text);
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    }
    *out = text;
    return Q_OK;
}
