/* SPDX-License-Identifier: Apache-2.0 */
/* Layers of two kinds, by their attention: those with a window have the heads that the config says
 * first, those without one (the wide ones) may have others. The last layers may have no K and V of
 * their own, and each layer may have an input of the token beside the residual stream. */
#include "common/hub/config_kinds.h"
#include <string.h>
#include "common/hub/config_internal.h"

#define INPUT_MAX       (1u << 16) /* columns of a layer's input */
#define INPUT_VOCAB_MAX (1u << 24)

/* transformers' defaults for absent keys */
static const struct family {
    const char *model_type;
    uint32_t wide_head_dim; /* global_head_dim; 0: all layers have the same heads */
    uint32_t input, input_vocab;
    uint32_t n_reader;
    uint32_t value_dim;  /* v_head_dim when absent; 0: no such key */
    bool narrow_doubles; /* layers with a window have twice the KV heads: swa_num_key_value_heads */
    bool short_table;    /* ids that the table of inputs has no row for take its first one */
} families[] = {
    {
        .model_type = "gemma3n_text",
        .input = 256,
        .input_vocab = 1u << 18,
        .n_reader = 15,
        .short_table = true,
    },
    {.model_type = "gemma4_text", .wide_head_dim = 512, .input = 256, .input_vocab = 1u << 18},
    {.model_type = "gemma4_unified_text", .wide_head_dim = 512}, /* and no inputs */
    {.model_type = "mimo_v2_flash", .value_dim = 128, .narrow_doubles = true},
};

static const struct family *family_of(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].model_type, model_type) == 0)
            return &families[i];
    return NULL;
}

static bool is_wide(const struct model_config *c, uint32_t layer)
{
    return layer < c->n_layer && c->layers.wide[layer];
}

uint32_t model_config_head_dim(const struct model_config *c, uint32_t layer)
{
    return is_wide(c, layer) ? c->layers.wide_head_dim : c->head_dim;
}

uint32_t model_config_kv_heads(const struct model_config *c, uint32_t layer)
{
    return is_wide(c, layer) ? c->layers.wide_n_kv_head : c->n_kv_head;
}

uint32_t model_config_head_dim_max(const struct model_config *c)
{
    return c->layers.wide_head_dim > c->head_dim ? c->layers.wide_head_dim : c->head_dim;
}

uint32_t model_config_n_rot_wide(const struct model_config *c)
{
    return c->layers.wide_head_dim && c->layers.wide_head_dim != c->head_dim
               ? c->layers.wide_head_dim
               : model_config_n_rot(c);
}

bool model_config_reads_kv(const struct model_config *c, uint32_t layer)
{
    return layer < c->n_layer && layer + c->layers.n_kv_reader >= c->n_layer;
}

uint32_t model_config_kv_of(const struct model_config *c, uint32_t layer)
{
    uint32_t i = layer;
    while (i > 0 && (model_config_reads_kv(c, i) || c->layers.wide[i] != c->layers.wide[layer]))
        i--;
    return i;
}

/* ---- heads ---- */

struct heads {
    int64_t dim, n_kv;
};

/* transformers 5 saves per_layer_config, {"5": {"head_dim": 512}, …}, in place of the other keys. */
static enum q_code read_layer(struct heads *h, const struct hub_json_at *at, uint32_t layer,
                              struct q_err *e)
{
    const struct hub_json_at list = {hub_json_find(at, "per_layer_config"), at->path};
    char key[16];
    enum q_code rc;
    snprintf(key, sizeof key, "%u", layer);
    const struct hub_json_at one = {hub_json_find(&list, key), at->path};
    if (!json_is_object(one.object))
        return Q_OK;
    if ((rc = hub_json_int(&h->dim, &one, "head_dim", (struct hub_json_range){2, CONFIG_HEAD_MAX},
                           e)))
        return rc;
    return hub_json_int(&h->n_kv, &one, "num_key_value_heads",
                        (struct hub_json_range){1, CONFIG_HEAD_MAX}, e);
}

static enum q_code read_layers(struct heads *wide, const struct model_config *c,
                               const struct hub_json_at *at, struct q_err *e)
{
    const struct heads narrow = {c->head_dim, c->n_kv_head};
    bool any = false;
    for (uint32_t i = 0; i < c->n_layer; i++) {
        struct heads h = narrow;
        const enum q_code rc = read_layer(&h, at, i, e);
        if (rc)
            return rc;
        const struct heads *wanted = !c->layers.wide[i] ? &narrow : any ? wide : &h;
        if (h.dim != wanted->dim || h.n_kv != wanted->n_kv)
            return q_fail(e, Q_UNSUPPORTED,
                          "%s: per_layer_config[\"%u\"]: heads that differ within the layers of "
                          "one kind in layer_types are not supported",
                          at->path, i);
        *wide = c->layers.wide[i] ? h : *wide;
        any = any || c->layers.wide[i];
    }
    return Q_OK;
}

/* The number of KV heads of wide layers counts where their V is K. */
static enum q_code read_keys(struct heads *wide, const struct layers_config *l,
                             const struct hub_json_at *at, struct q_err *e)
{
    const enum q_code rc = hub_json_int(&wide->dim, at, "global_head_dim",
                                        (struct hub_json_range){2, CONFIG_HEAD_MAX}, e);
    if (rc || !l->wide_v_is_k)
        return rc;
    return hub_json_int(&wide->n_kv, at, "num_global_key_value_heads",
                        (struct hub_json_range){1, CONFIG_HEAD_MAX}, e);
}

/* A key that must repeat another number. */
static enum q_code check_same(const struct hub_json_at *at, const char *key, uint32_t number,
                              struct q_err *e)
{
    int64_t n = number;
    const enum q_code rc = hub_json_int(&n, at, key, (struct hub_json_range){1, UINT32_MAX}, e);
    if (rc || n == number)
        return rc;
    return q_fail(e, Q_UNSUPPORTED, "%s: %s %lld is not supported, only %u, that of other layers",
                  at->path, key, (long long)n, number);
}

/* MiMo V2 Flash: the KV heads that config.json says first are those of layers without a window;
 * a scale of V, whose heads are narrower than K's. */
static enum q_code load_narrow(struct model_config *c, const struct family *f,
                               const struct hub_json_at *at, struct q_err *e)
{
    int64_t n_kv = 2 * (int64_t)c->n_kv_head, value = f->value_dim;
    double scale = json_is_null(json_object_get(at->object, "attention_value_scale")) ? 1 : 0.707;
    enum q_code rc;
    if ((rc = hub_json_int(&n_kv, at, "swa_num_key_value_heads",
                           (struct hub_json_range){1, CONFIG_HEAD_MAX}, e)) ||
        (rc = hub_json_int(&value, at, "v_head_dim", (struct hub_json_range){1, CONFIG_HEAD_MAX},
                           e)) ||
        (rc = hub_json_number(&scale, at, "attention_value_scale",
                              (struct hub_json_range){1e-6, 1e6}, e)) ||
        (rc = check_same(at, "swa_num_attention_heads", c->n_head, e)) ||
        (rc = check_same(at, "swa_head_dim", c->head_dim, e)) ||
        (rc = check_same(at, "swa_v_head_dim", (uint32_t)value, e)))
        return rc;
    if (c->n_head % n_kv || value > c->head_dim)
        return q_fail(e, Q_CORRUPT,
                      "%s: layers with a window have %lld KV heads, expected a divisor of "
                      "num_attention_heads %u; v_head_dim is %lld, expected at most head_dim %u",
                      at->path, (long long)n_kv, c->n_head, (long long)value, c->head_dim);
    c->n_kv_head = (uint32_t)n_kv;
    c->layers.value_dim = value == c->head_dim ? 0 : (uint32_t)value;
    c->forward.value = scale == 1 ? 0 : scale;
    return Q_OK;
}

static enum q_code load_heads(struct model_config *c, const struct family *f,
                              const struct hub_json_at *at, struct q_err *e)
{
    struct layers_config *l = &c->layers;
    const bool by_layer = json_is_object(hub_json_find(at, "per_layer_config"));
    struct heads wide = {f->wide_head_dim, c->n_kv_head};
    l->wide_head_dim = c->head_dim;
    l->wide_n_kv_head = c->n_kv_head;
    if (f->narrow_doubles)
        return load_narrow(c, f, at, e);
    if (!f->wide_head_dim)
        return Q_OK;
    enum q_code rc = hub_json_bool(&l->wide_v_is_k, at, "attention_k_eq_v", e);
    if (rc || (rc = by_layer ? read_layers(&wide, c, at, e) : read_keys(&wide, l, at, e)))
        return rc;
    if (wide.dim % 2 || c->n_head % wide.n_kv)
        return q_fail(e, Q_CORRUPT,
                      "%s: layers with full attention have heads of %lld and %lld KV heads, "
                      "expected an even number, and a divisor of num_attention_heads %u",
                      at->path, (long long)wide.dim, (long long)wide.n_kv, c->n_head);
    l->wide_head_dim = (uint32_t)wide.dim;
    l->wide_n_kv_head = (uint32_t)wide.n_kv;
    return Q_OK;
}

/* ---- the whole ---- */

/* Of Gemma 4 transformers gives the last layer full attention whatever layer_types says. */
static enum q_code load_kinds(struct model_config *c, const struct family *f,
                              const struct hub_json_at *at, struct q_err *e)
{
    const json_t *types = hub_json_find(at, "layer_types");
    const uint32_t n_named = c->n_layer - (f->wide_head_dim ? 1 : 0);
    bool any_window = false;
    if (n_named < c->n_layer)
        c->window[n_named] = 0;
    for (uint32_t i = 0; i < c->n_layer; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        any_window = any_window || c->window[i];
        c->layers.wide[i] = !c->window[i];
        if (type && !c->window[i] && i < n_named && strcmp(type, "full_attention") != 0)
            return q_fail(e, Q_CORRUPT,
                          "%s: layer_types[%u] is sliding_attention and sliding_window is absent "
                          "or 0, expected a number of tokens",
                          at->path, i);
    }
    if (any_window || types || c->n_layer == 1)
        return Q_OK;
    return q_fail(e, Q_CORRUPT, "%s: sliding_window is 0, expected a number of tokens", at->path);
}

/* Of Gemma 3n transformers ignores a number that leaves no layer. */
static enum q_code load_readers(struct model_config *c, const struct family *f,
                                const struct hub_json_at *at, struct q_err *e)
{
    int64_t n = f->n_reader;
    enum q_code rc;
    if ((rc = hub_json_int(&n, at, "num_kv_shared_layers", (struct hub_json_range){0, UINT32_MAX},
                           e)) ||
        (f->wide_head_dim &&
         (rc = hub_json_bool(&c->layers.reader_mlp, at, "use_double_wide_mlp", e))))
        return rc;
    if (n >= c->n_layer && f->n_reader)
        n = 0;
    if (n >= c->n_layer)
        return q_fail(e, Q_CORRUPT,
                      "%s: num_kv_shared_layers is %lld, expected less than the %u layers",
                      at->path, (long long)n, c->n_layer);
    c->layers.n_kv_reader = (uint32_t)n;
    for (uint32_t i = 0; i < c->n_layer; i++)
        if (c->layers.wide[model_config_kv_of(c, i)] != c->layers.wide[i])
            return q_fail(e, Q_CORRUPT,
                          "%s: layer %u has no K and V (num_kv_shared_layers %u), and no layer of "
                          "its kind in layer_types has any",
                          at->path, i, c->layers.n_kv_reader);
    return Q_OK;
}

static enum q_code load_inputs(struct layers_config *l, const struct family *f,
                               const struct hub_json_at *at, struct q_err *e)
{
    int64_t input = f->input, vocab = f->input_vocab;
    enum q_code rc;
    if (!f->input)
        return Q_OK;
    if ((rc = hub_json_int(&input, at, "hidden_size_per_layer_input",
                           (struct hub_json_range){0, INPUT_MAX}, e)) ||
        (rc = hub_json_int(&vocab, at, "vocab_size_per_layer_input",
                           (struct hub_json_range){1, INPUT_VOCAB_MAX}, e)))
        return rc;
    l->input = (uint32_t)input;
    l->input_vocab = (uint32_t)vocab;
    return Q_OK;
}

/* Images attend both ways in some models; text does so where it says "all". */
static enum q_code check_direction(const struct model_config *c, const struct hub_json_at *at,
                                   struct q_err *e)
{
    const json_t *way = hub_json_find(at, "use_bidirectional_attention");
    if (!way || json_is_false(way) ||
        (json_is_string(way) && strcmp(json_string_value(way), "vision") == 0))
        return Q_OK;
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: use_bidirectional_attention is not supported for model_type \"%s\", only "
                  "null and \"vision\"",
                  at->path, c->model_type);
}

enum q_code config_kinds_load(struct model_config *c, const struct hub_json_at *at, struct q_err *e)
{
    const struct family *f = family_of(c->model_type);
    enum q_code rc;
    if (!f)
        return Q_OK;
    if ((rc = check_direction(c, at, e)) || (rc = load_kinds(c, f, at, e)) ||
        (rc = load_heads(c, f, at, e)) || (rc = load_readers(c, f, at, e)))
        return rc;
    if ((rc = load_inputs(&c->layers, f, at, e)) || c->layers.input_vocab >= c->vocab_size ||
        c->layers.input == 0 || f->short_table)
        return rc;
    return q_fail(e, Q_CORRUPT,
                  "%s: vocab_size_per_layer_input is %u, expected at least vocab_size %u", at->path,
                  c->layers.input_vocab, c->vocab_size);
}
