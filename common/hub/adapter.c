/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns are Python's regular expressions, which PCRE2 reads: those that PEFT's users write mean
 * the same in both. Each is compiled once, anchored as PEFT anchors it; a match may take
 * MATCH_STEPS_MAX steps. */
#include "common/hub/adapter.h"
#define PCRE2_CODE_UNIT_WIDTH 8
#include <limits.h>
#include <math.h>
#include <pcre2.h>
#include <string.h>
#include "common/hub/hub_json.h"
#include "common/mem.h"

#define CONFIG_BYTES_MAX ((size_t)4 << 20)
#define MATCH_STEPS_MAX  100000u

struct pattern { /* of rank_pattern or alpha_pattern */
    pcre2_code *code;
    double value;
};

struct adapter_config {
    char path[PATH_MAX];
    char base[PATH_MAX];
    json_t *root; /* the lists below are its own */
    uint32_t rank;
    double alpha;
    bool rslora, all_linear;
    pcre2_code *targets, *excluded; /* where they are expressions */
    const json_t *target_list, *excluded_list;
    int64_t *layers; /* [n_layer] of layers_to_transform */
    size_t n_layer;
    bool of_layers;
    pcre2_code **layer_patterns; /* [n_layer_pattern] with the layer's number as group 1 */
    size_t n_layer_pattern;
    struct pattern *ranks, *alphas; /* [n_rank], [n_alpha] in the order of the file */
    size_t n_rank, n_alpha;
    pcre2_match_context *limits;
};

struct reader {
    struct adapter_config *c;
    struct hub_json_at at;
    struct q_err *e;
};

static enum q_code bad(const struct reader *r, const char *key, const json_t *v, const char *wanted)
{
    return q_fail(r->e, Q_CORRUPT, "%s: %s is %s, expected %s", r->at.path, key, hub_json_kind(v),
                  wanted);
}

/* ---- what is refused ---- */

static bool is_set(const json_t *v)
{
    if (!v || json_is_null(v) || json_is_false(v))
        return false;
    if (json_is_array(v))
        return json_array_size(v) > 0;
    return !json_is_object(v) || json_object_size(v) > 0;
}

static enum q_code check_refused(const struct reader *r)
{
    static const struct {
        const char *key, *what;
    } keys[] = {
        {"use_dora", "DoRA (use_dora)"},
        {"use_qalora", "QA-LoRA (use_qalora)"},
        {"use_bdlora", "BD-LoRA (use_bdlora)"},
        {"alora_invocation_tokens", "activated LoRA (alora_invocation_tokens)"},
        {"arrow_config", "arrow routing (arrow_config)"},
        {"kasa_config", "KaSA (kasa_config)"},
        {"monteclora_config", "MonteCLoRA (monteclora_config)"},
        {"velora_config", "VeLoRA (velora_config)"},
        {"lora_bias", "a bias of lora_B (lora_bias)"},
        {"layer_replication", "layer_replication"},
        {"target_parameters", "target_parameters (matrices of experts in one tensor)"},
        {"trainable_token_indices", "trainable_token_indices (rows of the embedding)"},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (is_set(hub_json_find(&r->at, keys[i].key)))
            return q_fail(r->e, Q_UNSUPPORTED, "%s: %s is not supported; expected plain LoRA",
                          r->at.path, keys[i].what);
    return Q_OK;
}

/* Whole modules beside the low-rank ones. */
static enum q_code check_saved(const struct reader *r)
{
    const json_t *saved = hub_json_find(&r->at, "modules_to_save");
    const json_t *first = json_is_array(saved) ? json_array_get(saved, 0) : saved;
    if (!is_set(saved))
        return Q_OK;
    return q_fail(r->e, Q_UNSUPPORTED,
                  "%s: modules_to_save (\"%.60s\"%s) is not supported: the adapter replaces whole "
                  "modules; merge it into the model instead",
                  r->at.path, json_is_string(first) ? json_string_value(first) : "?",
                  json_array_size(saved) > 1 ? " …" : "");
}

/* Adapters that belong to other weights than those of the model. */
static enum q_code check_init(const struct reader *r)
{
    static const char *const names[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};
    const json_t *init = hub_json_find(&r->at, "init_lora_weights");
    for (size_t i = 0; json_is_string(init) && i < sizeof names / sizeof *names; i++)
        if (!strncmp(json_string_value(init), names[i], strlen(names[i])))
            return q_fail(r->e, Q_UNSUPPORTED,
                          "%s: init_lora_weights \"%.40s\" changes the model's own weights; "
                          "convert the adapter to plain LoRA (PEFT's "
                          "path_initial_model_for_weight_conversion)",
                          r->at.path, json_string_value(init));
    return Q_OK;
}

static enum q_code check_kind(const struct reader *r)
{
    const char *peft = NULL, *bias = "none";
    enum q_code rc = hub_json_str(&peft, &r->at, "peft_type", r->e);
    if (rc || (rc = hub_json_str(&bias, &r->at, "bias", r->e)))
        return rc;
    if (!peft || strcmp(peft, "LORA") != 0)
        return q_fail(r->e, Q_UNSUPPORTED, "%s: peft_type is \"%.40s\", expected LORA", r->at.path,
                      peft ? peft : "");
    if (strcmp(bias, "none") != 0)
        return q_fail(r->e, Q_UNSUPPORTED, "%s: bias is \"%.40s\", expected none", r->at.path,
                      bias);
    if ((rc = check_refused(r)) || (rc = check_saved(r)))
        return rc;
    return check_init(r);
}

/* ---- expressions ---- */

static enum q_code compile(pcre2_code **out, const struct reader *r, const char *key,
                           const char *text)
{
    char wrapped[ADAPTER_TEXT_MAX + 64];
    int error;
    PCRE2_SIZE at;
    PCRE2_UCHAR why[120];
    const bool of_layer = !strcmp(key, "layers_pattern"), of_size = strstr(key, "_pattern");
    const char *form = of_layer  ? "^.*\\.(?:%s)\\.(\\d+)\\."
                       : of_size ? "^(?:.*\\.)?(?:%s)$"
                                 : "^(?:%s)$";
    if (strlen(text) > ADAPTER_TEXT_MAX)
        return q_fail(r->e, Q_TOO_LARGE, "%s: %s: an expression has more than %u bytes", r->at.path,
                      key, ADAPTER_TEXT_MAX);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(wrapped, sizeof wrapped, form, text);
#pragma GCC diagnostic pop
    *out = pcre2_compile((PCRE2_SPTR)wrapped, PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &at, NULL);
    if (*out)
        return Q_OK;
    pcre2_get_error_message(error, why, sizeof why);
    return q_fail(r->e, Q_CORRUPT, "%s: %s: \"%.80s\" is no regular expression: %s", r->at.path,
                  key, text, (const char *)why);
}

/* A number in the first group, where it has one. */
static enum q_code match(bool *yes, int64_t *number, const struct adapter_config *c,
                         const pcre2_code *code, const char *text, struct q_err *e)
{
    pcre2_match_data *m = pcre2_match_data_create(2, NULL);
    if (!m)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", c->path);
    const int n = pcre2_match(code, (PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, 0, 0, m, c->limits);
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m);
    enum q_code rc = Q_OK;
    *yes = n >= 0;
    if (n < 0 && n != PCRE2_ERROR_NOMATCH)
        rc = q_fail(e, Q_TOO_LARGE,
                    "%s: an expression for module names takes more than %u steps for %.100s",
                    c->path, MATCH_STEPS_MAX, text);
    if (*yes && number) {
        *number = 0;
        for (PCRE2_SIZE i = at[2]; n > 1 && i < at[3] && *number < INT32_MAX; i++)
            *number = *number * 10 + (text[i] - '0');
    }
    pcre2_match_data_free(m);
    return rc;
}

/* ---- reading ---- */

/* A list of strings, or an expression. */
static enum q_code read_modules(const struct reader *r, const char *key, const json_t **list,
                                pcre2_code **code)
{
    const json_t *v = hub_json_find(&r->at, key);
    if (!v)
        return Q_OK;
    if (json_is_string(v))
        return compile(code, r, key, json_string_value(v));
    if (!json_is_array(v) || json_array_size(v) > ADAPTER_PATTERNS_MAX)
        return bad(r, key, v, "a list of at most 4096 names, or one expression");
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i)))
            return bad(r, key, json_array_get(v, i), "names in its list");
    *list = v;
    return Q_OK;
}

static enum q_code read_targets(const struct reader *r)
{
    struct adapter_config *c = r->c;
    const json_t *v = hub_json_find(&r->at, "target_modules");
    enum q_code rc;
    c->all_linear = json_is_string(v) && !strcmp(json_string_value(v), "all-linear");
    if (!c->all_linear && (rc = read_modules(r, "target_modules", &c->target_list, &c->targets)))
        return rc;
    if (!c->all_linear && !c->targets && !json_array_size(c->target_list))
        return q_fail(r->e, Q_CORRUPT,
                      "%s: target_modules is missing or empty, expected a list of names, an "
                      "expression or \"all-linear\"",
                      r->at.path);
    return read_modules(r, "exclude_modules", &c->excluded_list, &c->excluded);
}

static enum q_code read_layers(const struct reader *r)
{
    struct adapter_config *c = r->c;
    const json_t *v = hub_json_find(&r->at, "layers_to_transform");
    const size_t n = json_is_array(v) ? json_array_size(v) : v ? 1 : 0;
    if (v && !json_is_integer(v) && (!json_is_array(v) || n > ADAPTER_PATTERNS_MAX))
        return bad(r, "layers_to_transform", v, "a layer's number, or a list of at most 4096");
    c->of_layers = n > 0;
    c->layers = q_calloc(n + 1, sizeof *c->layers);
    if (!c->layers)
        return q_fail(r->e, Q_NO_MEMORY, "%s: out of memory", r->at.path);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_integer(one))
            return bad(r, "layers_to_transform", one, "a layer's number");
        c->layers[c->n_layer++] = json_integer_value(one);
    }
    return Q_OK;
}

static enum q_code read_layer_patterns(const struct reader *r)
{
    struct adapter_config *c = r->c;
    const json_t *v = hub_json_find(&r->at, "layers_pattern");
    const size_t n = json_is_array(v) ? json_array_size(v) : json_is_string(v) ? 1 : 0;
    enum q_code rc = Q_OK;
    if (v && !json_is_string(v) && (!json_is_array(v) || n > ADAPTER_PATTERNS_MAX))
        return bad(r, "layers_pattern", v, "a name, or a list of at most 4096");
    c->layer_patterns = q_calloc(n + 1, sizeof *c->layer_patterns);
    if (!c->layer_patterns)
        return q_fail(r->e, Q_NO_MEMORY, "%s: out of memory", r->at.path);
    for (size_t i = 0; i < n && !rc; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        rc = json_is_string(one) ? compile(&c->layer_patterns[c->n_layer_pattern++], r,
                                           "layers_pattern", json_string_value(one))
                                 : bad(r, "layers_pattern", one, "a name");
    }
    if (!rc && !c->n_layer_pattern) /* PEFT's rule where there is none */
        rc = compile(&c->layer_patterns[c->n_layer_pattern++], r, "layers_pattern", "[^.]*");
    return rc;
}

static enum q_code read_sizes(const struct reader *r, const char *key, struct pattern **out,
                              size_t *n)
{
    const json_t *v = hub_json_find(&r->at, key), *one;
    const char *name;
    enum q_code rc = Q_OK;
    if (v && (!json_is_object(v) || json_object_size(v) > ADAPTER_PATTERNS_MAX))
        return bad(r, key, v, "an object of at most 4096 numbers");
    *out = q_calloc(json_object_size(v) + 1, sizeof **out);
    if (!*out)
        return q_fail(r->e, Q_NO_MEMORY, "%s: out of memory", r->at.path);
    json_object_foreach ((json_t *)(uintptr_t)v, name, one) {
        if (!json_is_number(one))
            return bad(r, key, one, "a number for each name");
        if ((rc = compile(&(*out)[*n].code, r, key, name)))
            return rc;
        (*out)[(*n)++].value = json_number_value(one);
    }
    return rc;
}

static enum q_code read_config(const struct reader *r)
{
    struct adapter_config *c = r->c;
    const char *base = "";
    int64_t rank = 0;
    enum q_code rc = check_kind(r);
    if (rc ||
        (rc = hub_json_int(&rank, &r->at, "r", (struct hub_json_range){1, ADAPTER_RANK_MAX},
                           r->e)) ||
        (rc = hub_json_number(&c->alpha, &r->at, "lora_alpha", (struct hub_json_range){-1e6, 1e6},
                              r->e)) ||
        (rc = hub_json_bool(&c->rslora, &r->at, "use_rslora", r->e)) ||
        (rc = hub_json_str(&base, &r->at, "base_model_name_or_path", r->e)))
        return rc;
    if (!rank || !hub_json_find(&r->at, "lora_alpha"))
        return q_fail(r->e, Q_CORRUPT, "%s: %s is missing", r->at.path,
                      rank ? "lora_alpha" : "r (the rank)");
    c->rank = (uint32_t)rank;
    snprintf(c->base, sizeof c->base, "%s", base);
    if ((rc = read_targets(r)) || (rc = read_layers(r)) || (rc = read_layer_patterns(r)) ||
        (rc = read_sizes(r, "rank_pattern", &c->ranks, &c->n_rank)))
        return rc;
    return read_sizes(r, "alpha_pattern", &c->alphas, &c->n_alpha);
}

/* root is taken. */
static enum q_code config_new(struct adapter_config **out, json_t *root, const char *path,
                              struct q_err *e)
{
    struct adapter_config *c = q_calloc(1, sizeof *c);
    enum q_code rc = Q_OK;
    if (!c) {
        json_decref(root);
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    }
    c->root = root;
    snprintf(c->path, sizeof c->path, "%s", path);
    c->limits = pcre2_match_context_create(NULL);
    if (c->limits)
        pcre2_set_match_limit(c->limits, MATCH_STEPS_MAX);
    else
        rc = q_fail(e, Q_NO_MEMORY, "%s: out of memory", path);
    const struct reader r = {c, {root, c->path}, e};
    if (!rc)
        rc = read_config(&r);
    if (rc)
        adapter_config_free(c);
    else
        *out = c;
    return rc;
}

FALLIBLE adapter_config_parse(struct adapter_config **out, const char *data, size_t n,
                              const char *path, struct q_err *e)
{
    json_t *root = NULL;
    enum q_code rc = n > CONFIG_BYTES_MAX ? q_fail(e, Q_TOO_LARGE, "%s: has more than %zu bytes",
                                                   path, CONFIG_BYTES_MAX)
                                          : hub_json_parse(&root, data, n, path, e);
    return rc ? rc : config_new(out, root, path, e);
}

FALLIBLE adapter_config_load(struct adapter_config **out, const char *dir, struct q_err *e)
{
    char path[PATH_MAX];
    json_t *root = NULL;
    enum q_code rc = path_join(path, sizeof path, dir, "adapter_config.json", e);
    if (rc || (rc = hub_json_load(&root, path, e)))
        return rc;
    return config_new(out, root, path, e);
}

void adapter_config_free(struct adapter_config *c)
{
    if (!c)
        return;
    pcre2_code_free(c->targets);
    pcre2_code_free(c->excluded);
    for (size_t i = 0; c->layer_patterns && i < c->n_layer_pattern; i++)
        pcre2_code_free(c->layer_patterns[i]);
    for (size_t i = 0; i < c->n_rank; i++)
        pcre2_code_free(c->ranks[i].code);
    for (size_t i = 0; i < c->n_alpha; i++)
        pcre2_code_free(c->alphas[i].code);
    q_free(c->layer_patterns);
    q_free(c->ranks);
    q_free(c->alphas);
    q_free(c->layers);
    pcre2_match_context_free(c->limits);
    json_decref(c->root);
    q_free(c);
}

/* ---- names ---- */

static bool in_list(const json_t *list, const char *module)
{
    const size_t n = strlen(module);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));
        const size_t n_name = strlen(name);
        if (!strcmp(name, module) ||
            (n > n_name && module[n - n_name - 1] == '.' && !strcmp(module + n - n_name, name)))
            return true;
    }
    return false;
}

static bool is_named(const json_t *list, const char *module)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!strcmp(json_string_value(json_array_get(list, i)), module))
            return true;
    return false;
}

static enum q_code in_layers(bool *yes, const struct adapter_config *c, const char *module,
                             struct q_err *e)
{
    int64_t layer = 0;
    enum q_code rc = Q_OK;
    bool found = false;
    *yes = false;
    for (size_t i = 0; i < c->n_layer_pattern && !found && !rc; i++)
        rc = match(&found, &layer, c, c->layer_patterns[i], module, e);
    for (size_t i = 0; i < c->n_layer && found; i++)
        *yes = *yes || c->layers[i] == layer;
    return rc;
}

FALLIBLE adapter_targets(bool *yes, const struct adapter_config *c, const char *module,
                         bool is_head, struct q_err *e)
{
    enum q_code rc;
    *yes = false;
    if (c->excluded) {
        if ((rc = match(yes, NULL, c, c->excluded, module, e)) || *yes) {
            *yes = false;
            return rc;
        }
    } else if (in_list(c->excluded_list, module)) {
        return Q_OK;
    }
    if (c->targets)
        return match(yes, NULL, c, c->targets, module, e);
    if (!c->all_linear && is_named(c->target_list, module)) {
        *yes = true;
        return Q_OK;
    }
    *yes = c->all_linear ? !is_head : in_list(c->target_list, module);
    return *yes && c->of_layers ? in_layers(yes, c, module, e) : Q_OK;
}

static enum q_code size_of(double *out, const struct adapter_config *c, const struct pattern *of,
                           size_t n, const char *module, struct q_err *e)
{
    bool yes = false;
    for (size_t i = 0; i < n && !yes; i++) {
        const enum q_code rc = match(&yes, NULL, c, of[i].code, module, e);
        if (rc)
            return rc;
        *out = yes ? of[i].value : *out;
    }
    return Q_OK;
}

FALLIBLE adapter_size_of(struct adapter_size *out, const struct adapter_config *c,
                         const char *module, struct q_err *e)
{
    double rank = c->rank, alpha = c->alpha;
    enum q_code rc;
    if ((rc = size_of(&rank, c, c->ranks, c->n_rank, module, e)) ||
        (rc = size_of(&alpha, c, c->alphas, c->n_alpha, module, e)))
        return rc;
    if (!(rank >= 1 && rank <= ADAPTER_RANK_MAX) || rank != floor(rank))
        return q_fail(e, Q_CORRUPT, "%s: the rank of %.100s is %g, expected 1 to %u", c->path,
                      module, rank, ADAPTER_RANK_MAX);
    *out = (struct adapter_size){
        .rank = (uint32_t)rank,
        .scale = (float)(alpha / (c->rslora ? sqrt(rank) : rank)),
    };
    return Q_OK;
}

const char *adapter_base(const struct adapter_config *c)
{
    return c->base;
}

/* ---- tensors ---- */

FALLIBLE adapter_tensors_open(struct tensor_set **out, const char *dir, struct q_err *e)
{
    static const char *const names[] = {"adapter_model.safetensors", "adapter_model.bin"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        enum q_code rc = path_join(path, sizeof path, dir, names[i], e);
        if (rc)
            return rc;
        if (file_exists(path))
            return tensor_set_open_file(out, path, e);
    }
    return q_fail(e, Q_NOT_FOUND, "%s: neither adapter_model.safetensors nor adapter_model.bin",
                  dir);
}

bool adapter_tensor_parse(char module[ADAPTER_MODULE_MAX], enum adapter_factor *factor,
                          const char *name)
{
    static const char prefix[] = "base_model.model.";
    static const char *const ends[] = {".lora_A.weight", ".lora_B.weight"};
    if (strncmp(name, prefix, sizeof prefix - 1) != 0)
        return false;
    name += sizeof prefix - 1;
    const size_t n = strlen(name), n_end = strlen(ends[0]);
    for (int i = ADAPTER_A; i <= ADAPTER_B; i++) {
        if (n <= n_end || n - n_end >= ADAPTER_MODULE_MAX || strcmp(name + n - n_end, ends[i]) != 0)
            continue;
        *factor = (enum adapter_factor)i;
        snprintf(module, ADAPTER_MODULE_MAX, "%.*s", (int)(n - n_end), name);
        return true;
    }
    return false;
}
