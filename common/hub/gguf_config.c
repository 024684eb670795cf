/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of an architecture begin with its name, which is general.architecture: `llama.block_count`.
 * A row of `keys` has the rest, config.json's key and the model types it is for; the first row of a
 * key whose model types suit counts.
 * Sources: ggml (docs/gguf.md), llama.cpp (gguf-py: constants.py; src: llama-model.cpp for values
 * that it does not read from the file). */
#include "common/hub/gguf_config.h"
#include <math.h>
#include <string.h>
#include "common/gguf/gguf_file.h"
#include "common/hub/archs.h"

#define KEY_MAX        128u
#define EOS_MAX        16u /* as config.h's */
#define FACTORS_MAX    512u
#define GEMMA2_27B     46 /* layers: the scores of these two are divided by another number */
#define GEMMA3_27B     62
#define GATING_SOFTMAX 1

static const struct architecture {
    const char *name, *model_type;
    const char *experts_type; /* model_type with experts; NULL: it has none */
} architectures[] = {
    // clang-format off
    {"cohere2",    "cohere2",     NULL},
    {"command-r",  "cohere",      NULL},
    {"exaone4",    "exaone4",     NULL},
    {"gemma",      "gemma",       NULL},
    {"gemma2",     "gemma2",      NULL},
    {"gemma3",     "gemma3_text", NULL},
    {"glm4",       "glm4",        NULL},
    {"gpt2",       "gpt2",        NULL},
    {"granite",    "granite",     NULL},
    {"llama",      "llama",       "mixtral"},
    {"olmo",       "olmo",        NULL},
    {"olmo2",      "olmo2",       NULL},
    {"olmoe",      NULL,          "olmoe"},
    {"phi2",       "phi",         NULL},
    {"phi3",       "phi3",        NULL},
    {"qwen2",      "qwen2",       NULL},
    {"qwen2moe",   NULL,          "qwen2_moe"},
    {"qwen3",      "qwen3",       NULL},
    {"qwen3moe",   NULL,          "qwen3_moe"},
    {"smollm3",    "smollm3",     NULL},
    {"stablelm",   "stablelm",    NULL},
    {"starcoder2", "starcoder2",  NULL},
    // clang-format on
};

enum key_kind {
    SIZE,      /* a whole number above 0, or one for each layer, all the same */
    WINDOW,    /* the same; 0: there is none */
    NUMBER,    /* any number */
    FLAG,      /* a bool */
    UNLESS_IS, /* refused with another value than `only` */
};

static const struct key {
    const char *key, *config;
    const char *types; /* "a b": model types; NULL: all */
    enum key_kind kind;
    double only;
} keys[] = {
    // clang-format off
    {"context_length",                   "max_position_embeddings", NULL, SIZE, 0},
    {"embedding_length",                 "hidden_size",             NULL, SIZE, 0},
    {"block_count",                      "num_hidden_layers",       NULL, SIZE, 0},
    {"feed_forward_length",              "intermediate_size",       NULL, SIZE, 0},
    {"attention.head_count",             "num_attention_heads",     NULL, SIZE, 0},
    {"attention.head_count_kv",          "num_key_value_heads",     NULL, SIZE, 0},
    {"attention.key_length",             "head_dim",                NULL, SIZE, 0},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps",            NULL, NUMBER, 0},
    {"attention.layer_norm_epsilon",     "layer_norm_epsilon",      "gpt2", NUMBER, 0},
    {"attention.layer_norm_epsilon",     "norm_epsilon",            "starcoder2", NUMBER, 0},
    {"attention.layer_norm_epsilon",     "layer_norm_eps",          "cohere cohere2 phi stablelm", NUMBER, 0},
    {"attention.layer_norm_epsilon",     NULL,                      "olmo", UNLESS_IS, 1e-5},
    {"attention.clamp_kqv",              "clip_qkv",                "olmo", NUMBER, 0},
    {"attention.clamp_kqv",              NULL,                      NULL, UNLESS_IS, 0},
    {"attention.sliding_window",         "sliding_window",          "cohere2 exaone4 gemma2 gemma3_text phi3", WINDOW, 0},
    {"attention.scale",                  "attention_multiplier",    "granite", NUMBER, 0},
    {"attention.max_alibi_bias",         NULL,                      NULL, UNLESS_IS, 0},
    {"attention.causal",                 NULL,                      NULL, UNLESS_IS, 1},
    {"rope.freq_base",                   "rope_theta",              NULL, NUMBER, 0},
    {"rope.freq_base_swa",               "rope_local_base_freq",    "gemma3_text", NUMBER, 0},
    {"attn_logit_softcapping",           "attn_logit_softcapping",  "gemma2 gemma3_text", NUMBER, 0},
    {"final_logit_softcapping",          "final_logit_softcapping", "gemma2 gemma3_text", NUMBER, 0},
    {"logit_scale",                      "logit_scale",             "cohere cohere2", NUMBER, 0},
    {"logit_scale",                      "logits_scaling",          "granite", NUMBER, 0},
    {"embedding_scale",                  "embedding_multiplier",    "granite", NUMBER, 0},
    {"residual_scale",                   "residual_multiplier",     "granite", NUMBER, 0},
    {"use_parallel_residual",            "use_parallel_residual",   "stablelm", FLAG, 0},
    {"expert_count",                     "num_local_experts",       "mixtral", SIZE, 0},
    {"expert_count",                     "num_experts",             "olmoe qwen2_moe qwen3_moe", SIZE, 0},
    {"expert_used_count",                "num_experts_per_tok",     "mixtral olmoe qwen2_moe qwen3_moe", SIZE, 0},
    {"expert_feed_forward_length",       "moe_intermediate_size",   "qwen2_moe qwen3_moe", SIZE, 0},
    {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", "qwen2_moe", SIZE, 0},
    {"expert_gating_func",               NULL,                      NULL, UNLESS_IS, GATING_SOFTMAX},
    {"expert_weights_scale",             NULL,                      NULL, UNLESS_IS, 1},
    // clang-format on
};

/* Settings that config.json says and the tensors show. */
static const struct shown {
    const char *types, *tensor, *config;
} shown[] = {
    {"stablelm", "blk.0.attn_q.bias", "use_qkv_bias"},
    {"stablelm", "blk.0.attn_q_norm.weight", "qk_layernorm"},
    {"cohere", "blk.0.attn_q_norm.weight", "use_qk_norm"},
    {"starcoder2", "blk.0.ffn_up.bias", "use_bias"},
    {"granite llama smollm3", "blk.0.ffn_up.bias", "mlp_bias"},
    {NULL, "blk.0.attn_q.bias", "attention_bias"},
};

/* Values of keys that the metadata has not. */
static const struct constant {
    const char *types, *config;
    bool value;
} constants[] = {
    {"qwen3_moe", "norm_topk_prob", true},
    {"olmoe qwen2_moe", "norm_topk_prob", false},
};

/* Tokens at which a generation ends, beside those that the metadata names. */
static const char *const end_texts[] = {
    "<|eot_id|>",    "<|im_end|>",    "<|end|>",         "<end_of_turn>",
    "<|endoftext|>", "<|eom_id|>",    "<|end_of_text|>", "<|END_OF_TURN_TOKEN|>",
    "<|user|>",      "[|endofturn|]",
};

struct maker {
    json_t *config;
    const struct gguf *g;
    const struct architecture *a;
    const char *type; /* model_type */
    struct q_err *e;
};

static bool in_list(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = list; p && *p; p += strcspn(p, " ")) {
        p += *p == ' ';
        if (strncmp(p, word, n) == 0 && (p[n] == ' ' || !p[n]))
            return true;
    }
    return false;
}

/* Of all types where the list is NULL. */
static bool suits(const char *types, const char *type)
{
    return !types || in_list(types, type);
}

void gguf_config_names(struct buf *out)
{
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        buf_printf(out, "%s%s", i ? ", " : "", architectures[i].name);
}

/* Set a key; the value's reference is taken. */
static enum q_code set(const struct maker *m, const char *key, json_t *value)
{
    return json_object_set_new(m->config, key, value) == 0
               ? Q_OK
               : q_fail(m->e, Q_NO_MEMORY, "%s: out of memory", m->g->path);
}

/* A value of the architecture; NULL: there is none. name: [KEY_MAX] of it. */
static const struct gguf_value *value_of(const struct maker *m, char name[KEY_MAX], const char *key)
{
    snprintf(name, KEY_MAX, "%s.%s", m->a->name, key);
    return gguf_find(m->g, name);
}

static enum q_code fail_value(const struct maker *m, const char *key, const char *expected)
{
    return q_fail(m->e, Q_CORRUPT, "%s: %s is of another kind or out of range, expected %s",
                  m->g->path, key, expected);
}

/* ---- keys ---- */

/* Of an array the elements are those of the layers. */
static enum q_code read_size(int64_t *out, const struct maker *m, const struct gguf_value *v,
                             const char *name)
{
    int64_t other = 0;
    if (v->kind != GGUF_ARRAY) {
        if (gguf_whole(v, out) && *out > 0)
            return Q_OK;
        return fail_value(m, name, "a whole number above 0");
    }
    for (uint64_t i = 0; i < v->n; i++) {
        if (!gguf_element_whole(v, i, &other) || other <= 0)
            return fail_value(m, name, "whole numbers above 0");
        if (i && other != *out)
            return q_fail(m->e, Q_UNSUPPORTED,
                          "%s: %s differs between layers (%lld and %lld), which is not supported",
                          m->g->path, name, (long long)*out, (long long)other);
        *out = other;
    }
    return v->n ? Q_OK : fail_value(m, name, "a number for each layer");
}

static enum q_code check_only(const struct maker *m, const struct gguf_value *v, const char *name,
                              double only)
{
    double found = 0;
    bool flag = false;
    if (gguf_bool(v, &flag))
        found = flag;
    else if (!gguf_number(v, &found))
        return fail_value(m, name, "a number");
    if (fabs(found - only) <= 1e-6 * fabs(only))
        return Q_OK;
    return q_fail(m->e, Q_UNSUPPORTED, "%s: %s is %g, which is not supported, expected %g",
                  m->g->path, name, found, only);
}

static enum q_code set_key(const struct maker *m, const struct key *k)
{
    char name[KEY_MAX];
    const struct gguf_value *v = value_of(m, name, k->key);
    int64_t size = 0;
    double number = 0;
    bool flag = false;
    enum q_code rc;
    if (!v)
        return Q_OK;
    switch (k->kind) {
    case SIZE:
    case WINDOW:
        if (k->kind == WINDOW && gguf_whole(v, &size) && size == 0)
            return Q_OK;
        rc = read_size(&size, m, v, name);
        return rc ? rc : set(m, k->config, json_integer(size));
    case NUMBER:
        if (!gguf_number(v, &number) || !isfinite(number))
            return fail_value(m, name, "a number");
        return set(m, k->config, json_real(number));
    case FLAG:
        if (!gguf_bool(v, &flag))
            return fail_value(m, name, "true or false");
        return set(m, k->config, json_boolean(flag));
    default:
        return check_only(m, v, name, k->only);
    }
}

static enum q_code set_keys(const struct maker *m)
{
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !rc; i++) {
        bool is_first = suits(keys[i].types, m->type);
        for (size_t k = 0; k < i && is_first; k++)
            is_first = strcmp(keys[k].key, keys[i].key) != 0 || !suits(keys[k].types, m->type);
        if (is_first)
            rc = set_key(m, &keys[i]);
    }
    return rc;
}

/* ---- what the tensors show ---- */

static enum q_code set_shown(const struct maker *m)
{
    const struct gguf_tensor *embedding = gguf_tensor(m->g, "token_embd.weight");
    const bool tied = !gguf_tensor(m->g, "output.weight");
    enum q_code rc = Q_OK;
    if (!embedding || embedding->n_dim != 2)
        return q_fail(m->e, Q_CORRUPT,
                      "%s: the tensor token_embd.weight is missing, or is no matrix", m->g->path);
    if ((rc = set(m, "vocab_size", json_integer((json_int_t)embedding->shape[0]))) ||
        (rc = set(m, "tie_word_embeddings", json_boolean(tied))))
        return rc;
    for (size_t i = 0; i < sizeof shown / sizeof *shown && !rc; i++)
        if (suits(shown[i].types, m->type))
            rc = set(m, shown[i].config, json_boolean(gguf_tensor(m->g, shown[i].tensor) != NULL));
    for (size_t i = 0; i < sizeof constants / sizeof *constants && !rc; i++)
        if (suits(constants[i].types, m->type))
            rc = set(m, constants[i].config, json_boolean(constants[i].value));
    return rc;
}

/* What the largest part of the weights is computed in: blocks stand for floats. */
static enum q_code set_dtype(const struct maker *m)
{
    uint64_t n_f16 = 0, n_f32 = 0, n = 0;
    for (uint64_t i = 0; i < m->g->n_tensor; i++) {
        const struct gguf_tensor *t = &m->g->tensors[i];
        const uint64_t numbers = t->n_bytes / t->type->bytes * t->type->block;
        n += numbers;
        n_f16 += strcmp(t->type->name, "F16") ? 0 : numbers;
        n_f32 += strcmp(t->type->name, "F32") ? 0 : numbers;
    }
    return set(m, "torch_dtype",
               json_string(n_f32 > n / 2   ? "float32"
                           : n_f16 > n / 2 ? "float16"
                                           : "bfloat16"));
}

/* Blocks of Q4_0 are int4 where most numbers are such; else blocks stand for floats. */
static enum q_code set_quantization(const struct maker *m)
{
    uint64_t n_blocks = 0, n_q4_0 = 0;
    for (uint64_t i = 0; i < m->g->n_tensor; i++) {
        const struct gguf_tensor *t = &m->g->tensors[i];
        const uint64_t numbers = t->n_bytes / t->type->bytes * t->type->block;
        n_blocks += t->type->read_as == GGUF_BLOCKS ? numbers : 0;
        n_q4_0 += strcmp(t->type->name, "Q4_0") ? 0 : numbers;
    }
    if (!n_blocks)
        return Q_OK;
    json_t *quantization = json_pack("{s:s}", "quant_method", "gguf");
    if (quantization && n_q4_0 > n_blocks / 2)
        (void)json_object_set_new(quantization, "bits", json_integer(4));
    return set(m, "quantization_config", quantization);
}

static json_int_t size_of(const struct maker *m, const char *config)
{
    return json_integer_value(json_object_get(m->config, config));
}

static json_int_t head_dim_of(const struct maker *m)
{
    const json_int_t given = size_of(m, "head_dim"), heads = size_of(m, "num_attention_heads");
    return given ? given : heads ? size_of(m, "hidden_size") / heads : 0;
}

/* V's heads are as wide as K's. */
static enum q_code set_heads(const struct maker *m)
{
    char name[KEY_MAX];
    int64_t width = 0;
    const struct gguf_value *v = value_of(m, name, "attention.value_length");
    const json_int_t head = head_dim_of(m);
    if (v && (!gguf_whole(v, &width) || width != head))
        return q_fail(m->e, Q_UNSUPPORTED,
                      "%s: %s is %lld, which differs from attention.key_length, %lld; this is not "
                      "supported",
                      m->g->path, name, (long long)width, (long long)head);
    return head ? set(m, "head_dim", json_integer(head)) : Q_OK;
}

/* Scores are divided by its square root; the file does not say it. */
static enum q_code set_query_scalar(const struct maker *m)
{
    const json_int_t n_layer = size_of(m, "num_hidden_layers");
    const bool is_2 = strcmp(m->type, "gemma2") == 0, is_3 = strcmp(m->type, "gemma3_text") == 0;
    const bool by_hidden = (is_2 && n_layer == GEMMA2_27B) || (is_3 && n_layer == GEMMA3_27B);
    const json_int_t heads = size_of(m, "num_attention_heads");
    if ((!is_2 && !is_3) || !heads)
        return Q_OK;
    return set(m, "query_pre_attn_scalar",
               json_integer(by_hidden ? size_of(m, "hidden_size") / heads : head_dim_of(m)));
}

/* Which layers have a window: a period, or a bool for each. */
static enum q_code set_windows(const struct maker *m)
{
    char name[KEY_MAX];
    const struct gguf_value *v = value_of(m, name, "attention.sliding_window_pattern");
    int64_t n = 0;
    if (!v || !size_of(m, "sliding_window"))
        return Q_OK;
    if (gguf_whole(v, &n) && n > 0)
        return set(m, "sliding_window_pattern", json_integer(n));
    json_t *types = v->kind == GGUF_ARRAY && v->n < KEY_MAX * 8 ? json_array() : NULL;
    bool ok = types != NULL;
    for (uint64_t i = 0; ok && i < v->n; i++)
        ok = gguf_element_whole(v, i, &n) &&
             json_array_append_new(types,
                                   json_string(n ? "sliding_attention" : "full_attention")) == 0;
    if (ok)
        return set(m, "layer_types", types);
    json_decref(types);
    return fail_value(m, name, "a whole number above 0, or true or false for each layer");
}

/* ---- rope ---- */

/* Part of a head's elements that is rotated. */
static enum q_code set_fraction(const struct maker *m)
{
    char name[KEY_MAX];
    const struct gguf_value *v = value_of(m, name, "rope.dimension_count");
    const json_int_t head = head_dim_of(m);
    int64_t n = 0;
    if (!v || strcmp(m->type, "gpt2") == 0)
        return Q_OK;
    if (!gguf_whole(v, &n) || n < 2 || n > head)
        return fail_value(m, name, "a whole number from 2 to the elements of a head");
    if (in_list("glm4 phi phi3 stablelm",
                m->type)) /* half an element more: rounding down gives n */
        return set(m, "partial_rotary_factor",
                   json_real(n == head ? 1 : ((double)n + 0.5) / (double)head));
    return n == head ? Q_OK
                     : q_fail(m->e, Q_UNSUPPORTED,
                              "%s: %s is %lld of %lld elements of a head, which is not supported "
                              "for %s, only all of them",
                              m->g->path, name, (long long)n, (long long)head, m->a->name);
}

/* A tensor of factors as a list; NULL: there is none. */
static enum q_code read_factors(json_t **out, const struct maker *m, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor(m->g, name);
    *out = NULL;
    if (!t)
        return Q_OK;
    if (strcmp(t->type->name, "F32") != 0 || t->n_dim != 1 || t->shape[0] > FACTORS_MAX)
        return q_fail(m->e, Q_CORRUPT, "%s: tensor %s is no vector of at most %u F32 numbers",
                      m->g->path, name, FACTORS_MAX);
    *out = json_array();
    for (uint64_t i = 0; *out && i < t->shape[0]; i++) {
        float factor;
        memcpy(&factor, t->data + i * sizeof factor, sizeof factor);
        if (!isfinite(factor) || json_array_append_new(*out, json_real((double)factor)))
            return q_fail(m->e, Q_CORRUPT, "%s: tensor %s: number %llu is not finite", m->g->path,
                          name, (unsigned long long)i);
    }
    return *out ? Q_OK : q_fail(m->e, Q_NO_MEMORY, "%s: out of memory", m->g->path);
}

/* Numbers of `rope` from those of the metadata. */
static enum q_code set_rope_numbers(const struct maker *m, json_t *rope)
{
    static const struct {
        const char *key, *config;
    } numbers[] = {
        {"rope.scale_linear", "factor"}, /* of older files */
        {"rope.scaling.factor", "factor"},
        {"rope.scaling.original_context_length", "original_max_position_embeddings"},
        {"rope.scaling.attn_factor", "attention_factor"},
        {"rope.scaling.yarn_beta_fast", "beta_fast"},
        {"rope.scaling.yarn_beta_slow", "beta_slow"},
    };
    char name[KEY_MAX];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const struct gguf_value *v = value_of(m, name, numbers[i].key);
        double number = 0;
        if (!v)
            continue;
        if (!gguf_number(v, &number) || !isfinite(number))
            return fail_value(m, name, "a number");
        if (number != 0 && json_object_set_new(rope, numbers[i].config, json_real(number)))
            return q_fail(m->e, Q_NO_MEMORY, "%s: out of memory", m->g->path);
    }
    return Q_OK;
}

/* Frequencies are divided by a list of factors: longrope with one list or two. */
static enum q_code set_factors(const struct maker *m, json_t *rope, bool *found)
{
    json_t *shorts = NULL, *longs = NULL;
    enum q_code rc;
    bool ok = true;
    *found = false;
    if ((rc = read_factors(&shorts, m, "rope_freqs.weight")))
        goto out;
    if (shorts) {
        *found = true; /* those of Llama 3: for any length */
        (void)json_object_del(rope, "original_max_position_embeddings");
        ok = !json_object_set(rope, "short_factor", shorts) &&
             !json_object_set(rope, "long_factor", shorts) &&
             !json_object_set_new(rope, "attention_factor", json_real(1));
    } else if (!(rc = read_factors(&shorts, m, "rope_factors_short.weight")) &&
               !(rc = read_factors(&longs, m, "rope_factors_long.weight"))) {
        *found = shorts && longs;
        ok = !*found || (!json_object_set(rope, "short_factor", shorts) &&
                         !json_object_set(rope, "long_factor", longs));
    }
    if (!rc && *found)
        ok = ok && !json_object_set_new(rope, "rope_type", json_string("longrope"));
    if (!rc && !ok)
        rc = q_fail(m->e, Q_NO_MEMORY, "%s: out of memory", m->g->path);
out:
    json_decref(shorts);
    json_decref(longs);
    return rc;
}

/* llama.cpp multiplies yarn's own factor by attn_factor. */
static void join_attention_factor(json_t *rope)
{
    const json_t *given = json_object_get(rope, "attention_factor");
    const double factor = json_number_value(json_object_get(rope, "factor"));
    if (given && factor > 0)
        (void)json_object_set_new(
            rope, "attention_factor",
            json_real(json_number_value(given) * (1 + 0.1 * log(factor > 1 ? factor : 1))));
}

static enum q_code set_rope_kind(const struct maker *m, json_t *rope)
{
    static const char *const kinds[] = {"none", "linear", "yarn", "longrope"};
    char name[KEY_MAX];
    const struct gguf_value *v = value_of(m, name, "rope.scaling.type");
    const bool scales = json_object_get(rope, "factor"); /* without a kind linearly */
    struct gguf_text text = {scales ? "linear" : "none", scales ? 6 : 4};
    size_t i = 0;
    if (v && !gguf_text(v, &text))
        return fail_value(m, name, "a text");
    while (i < 4 && (strlen(kinds[i]) != text.n || memcmp(kinds[i], text.s, text.n) != 0))
        i++;
    if (i == 4)
        return q_fail(m->e, Q_UNSUPPORTED,
                      "%s: %s is \"%.*s\", expected none, linear, yarn or longrope", m->g->path,
                      name, text.n < 40 ? (int)text.n : 40, text.s);
    if (i == 3) /* without its factors it is none */
        i = 0;
    if (i == 2)
        join_attention_factor(rope);
    return json_object_set_new(rope, "rope_type", json_string(i ? kinds[i] : "default"))
               ? q_fail(m->e, Q_NO_MEMORY, "%s: out of memory", m->g->path)
               : Q_OK;
}

static enum q_code set_rope(const struct maker *m)
{
    json_t *rope = json_object();
    bool has_factors = false;
    enum q_code rc = rope ? set_fraction(m) : q_fail(m->e, Q_NO_MEMORY, "out of memory");
    if (rc || (rc = set_rope_numbers(m, rope)) || (rc = set_factors(m, rope, &has_factors)) ||
        (!has_factors && (rc = set_rope_kind(m, rope)))) {
        json_decref(rope);
        return rc;
    }
    if (has_factors && json_object_get(rope, "original_max_position_embeddings") &&
        (rc = set(m, "original_max_position_embeddings",
                  json_incref(json_object_get(rope, "original_max_position_embeddings"))))) {
        json_decref(rope);
        return rc;
    }
    return set(m, "rope_scaling", rope);
}

/* ---- tokens ---- */

static bool has_id(const json_t *list, int64_t id)
{
    size_t i;
    const json_t *v;
    json_array_foreach (list, i, v)
        if (json_integer_value(v) == id)
            return true;
    return false;
}

static bool add_id(json_t *list, int64_t id)
{
    return id < 0 || has_id(list, id) || json_array_size(list) >= EOS_MAX ||
           json_array_append_new(list, json_integer(id)) == 0;
}

/* Control tokens with the texts of `end_texts`. */
static bool add_end_texts(const struct maker *m, json_t *list)
{
    enum { CONTROL = 3 };
    struct gguf_texts tokens;
    struct gguf_text text;
    const struct gguf_value *kinds = gguf_find(m->g, "tokenizer.ggml.token_type");
    bool ok = true;
    if (!gguf_texts_of(&tokens, gguf_find(m->g, "tokenizer.ggml.tokens")))
        return true;
    for (int64_t id = 0; ok && gguf_texts_next(&tokens, &text); id++) {
        int64_t kind = 0;
        if (!text.n || (text.s[0] != '<' && text.s[0] != '['))
            continue;
        for (size_t i = 0; ok && i < sizeof end_texts / sizeof *end_texts; i++)
            if (strlen(end_texts[i]) == text.n && !memcmp(end_texts[i], text.s, text.n) &&
                gguf_element_whole(kinds, (uint64_t)id, &kind) && kind == CONTROL)
                ok = add_id(list, id);
    }
    return ok;
}

static enum q_code set_ids(const struct maker *m)
{
    static const char *const names[] = {"tokenizer.ggml.eos_token_id",
                                        "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    int64_t id = 0;
    json_t *list = json_array();
    bool ok = list != NULL;
    if (ok && gguf_whole(gguf_find(m->g, "tokenizer.ggml.bos_token_id"), &id) &&
        set(m, "bos_token_id", json_integer(id))) {
        json_decref(list);
        return Q_NO_MEMORY;
    }
    for (size_t i = 0; ok && i < sizeof names / sizeof *names; i++)
        if (gguf_whole(gguf_find(m->g, names[i]), &id))
            ok = add_id(list, id);
    ok = ok && add_end_texts(m, list);
    if (ok && json_array_size(list))
        return set(m, "eos_token_id", list);
    json_decref(list);
    return ok ? Q_OK : q_fail(m->e, Q_NO_MEMORY, "%s: out of memory", m->g->path);
}

/* ---- the whole ---- */

static enum q_code find_architecture(struct maker *m)
{
    struct gguf_text name = {"", 0};
    struct buf names = BUF_INIT;
    int64_t n_expert = 0;
    char key[KEY_MAX];
    if (!gguf_text(gguf_find(m->g, "general.architecture"), &name))
        return q_fail(m->e, Q_CORRUPT, "%s: general.architecture is missing, or no text",
                      m->g->path);
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if (strlen(architectures[i].name) == name.n &&
            memcmp(architectures[i].name, name.s, name.n) == 0)
            m->a = &architectures[i];
    if (!m->a) {
        gguf_config_names(&names);
        const enum q_code rc = q_fail(
            m->e, Q_UNSUPPORTED,
            "%s: the architecture %.*s is not supported in GGUF files; supported are %s; other "
            "families are served from the original model's folder or id",
            m->g->path, name.n < 40 ? (int)name.n : 40, name.s, buf_str(&names));
        buf_release(&names);
        return rc;
    }
    const bool has_experts =
        gguf_whole(value_of(m, key, "expert_count"), &n_expert) && n_expert > 0;
    m->type = has_experts ? m->a->experts_type : m->a->model_type;
    if (!m->type)
        return q_fail(m->e, Q_UNSUPPORTED,
                      "%s: %s is %lld, which is not supported for the architecture %s", m->g->path,
                      key, (long long)n_expert, m->a->name);
    return Q_OK;
}

static enum q_code make(const struct maker *m)
{
    const char *architecture = archs_of_type(m->type);
    enum q_code rc;
    Q_ASSERT(architecture); /* every model type of the table is one of archs.def */
    if ((rc = set(m, "model_type", json_string(m->type))) ||
        (rc = set(m, "architectures", json_pack("[s]", architecture))) || (rc = set_keys(m)) ||
        (rc = set_shown(m)) || (rc = set_dtype(m)) || (rc = set_quantization(m)) ||
        (rc = set_heads(m)) || (rc = set_query_scalar(m)) || (rc = set_windows(m)) ||
        (rc = set_rope(m)))
        return rc;
    /* without a key in config.json some families have a window, which the file would say */
    if (!json_object_get(m->config, "sliding_window") &&
        (rc = set(m, "sliding_window", json_null())))
        return rc;
    return set_ids(m);
}

enum q_code gguf_to_config(json_t **out, const struct gguf *g, struct q_err *e)
{
    struct maker m = {.config = json_object(), .g = g, .e = e};
    enum q_code rc =
        m.config ? find_architecture(&m) : q_fail(e, Q_NO_MEMORY, "%s: out of memory", g->path);
    if (rc || (rc = make(&m)))
        json_decref(m.config);
    else
        *out = m.config;
    return rc;
}

enum q_code gguf_config_text(struct buf *out, const char *path, struct q_err *e)
{
    struct gguf_file f = GGUF_FILE_INIT;
    json_t *config = NULL;
    char *text = NULL;
    enum q_code rc = gguf_file_open(&f, path, e);
    if (!rc && !(rc = gguf_to_config(&config, &f.g, e))) {
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
    gguf_file_release(&f);
    return rc;
}
