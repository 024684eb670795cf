/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>
#include "common/hub/config_internal.h"

#define CONV_MAX  8u   /* rows that a convolution sums */
#define HEAD_MAX  256u /* elements of a head or of a state */
#define HEADS_MAX (1u << 12)
#define WIDTH_MAX (1u << 20) /* as intermediate_size's */

/* How a config without a list of the layers' types says which layers have the mixer. */
enum layer_rule {
    ALL,               /* all have it, and no attention */
    BESIDE,            /* all have it, and attention */
    BUT_LISTED,        /* all but those in list_key; without the list none has it */
    BUT_LISTED_IF_ANY, /* the same; without the list all have it */
    BUT_FIRST_OF_TWO,  /* those with 0 in list_key; without it all but the first, the third … */
    BUT_MULTIPLES,     /* all but those whose number from 1 interval_key divides */
    BUT_PERIOD,        /* all but one of attn_layer_period layers, attn_layer_offset */
    BY_LETTERS /* hybrid_override_pattern: M has it, * attention, - an MLP, E experts; no layer has
                  two */
};

struct scan_names { /* keys of state space models */
    const char *n_head, *head_dim, *n_group, *n_state, *width, *proj_bias;
    uint32_t n_head_absent, head_dim_absent, n_group_absent, n_state_absent;
};

/* clang-format off */
/* Members of a family: the convolution ahead of a scan, by the names of its keys. */
#define MAMBA_CONV(width, bias) \
    .conv_key = width, .conv_bias_key = bias, .conv_width = 4, .conv_bias = true
/* Those of Qwen's gated delta nets: attention in every fourth layer. */
#define DELTA_NET                                                                       \
    .mixer = MIXER_DELTA, .rule = BUT_MULTIPLES, .type = "linear_attention",            \
    .interval_key = "full_attention_interval", .interval = 4,                           \
    .conv_key = "linear_conv_kernel_dim", .conv_width = 4
/* clang-format on */

static const struct family {
    const char *model_type;
    enum layer_mixer mixer;
    enum layer_rule rule;
    const char *type; /* the mixer's in layer_types */
    const char *list_key, *interval_key;
    uint32_t interval; /* when absent */
    const char *conv_key, *conv_bias_key;
    uint32_t conv_width; /* when absent */
    bool conv_bias;      /* likewise */
    bool no_mlp;         /* a layer is its mixer or attention alone */
    bool adjusts_mlp;    /* the MLP's width is made of another number */
    double norm_eps;     /* of norms of the mixer's own: MIXER_SCAN: mixer_rms_eps when absent; 0:
                            rms_norm_eps */
    bool by_heads;       /* sizes that are absent are made of those of attention, and one layer at
                            least has attention */
    struct scan_names names;
} families[] = {
    {
        .model_type = "bamba",
        .mixer = MIXER_SSD,
        .rule = BUT_LISTED_IF_ANY,
        .type = "linear_attention",
        .list_key = "attn_layer_indices",
        MAMBA_CONV("mamba_d_conv", "mamba_conv_bias"),
        .names = {"mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", NULL,
                  "mamba_proj_bias", 128, 0, 1, 256},
    },
    {
        .model_type = "falcon_h1",
        .mixer = MIXER_SSD,
        .rule = BESIDE,
        .type = "hybrid",
        MAMBA_CONV("mamba_d_conv", "mamba_conv_bias"),
        .names = {"mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", "mamba_d_ssm",
                  "mamba_proj_bias", 128, 0, 1, 256},
    },
    {
        .model_type = "falcon_mamba",
        .mixer = MIXER_SCAN,
        .rule = ALL,
        .type = "linear_attention",
        MAMBA_CONV("conv_kernel", "use_conv_bias"),
        .no_mlp = true,
        .norm_eps = 1e-6,
        .names = {.n_state = "state_size", .proj_bias = "use_bias", .n_state_absent = 16},
    },
    {
        .model_type = "granitemoehybrid",
        .mixer = MIXER_SSD,
        .rule = ALL,
        .type = "linear_attention",
        MAMBA_CONV("mamba_d_conv", "mamba_conv_bias"),
        .names = {"mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state", NULL,
                  "mamba_proj_bias", 128, 0, 1, 256},
    },
    {
        .model_type = "jamba",
        .mixer = MIXER_SCAN,
        .rule = BUT_PERIOD,
        .type = "linear_attention",
        MAMBA_CONV("mamba_d_conv", "mamba_conv_bias"),
        .names = {.n_state = "mamba_d_state", .proj_bias = "mamba_proj_bias", .n_state_absent = 16},
    },
    {
        .model_type = "lfm2",
        .mixer = MIXER_CONV,
        .rule = BUT_LISTED,
        .type = "conv",
        .list_key = "full_attn_idxs",
        .conv_key = "conv_L_cache",
        .conv_bias_key = "conv_bias",
        .conv_width = 3,
        .adjusts_mlp = true,
    },
    {
        .model_type = "lfm2_moe",
        .mixer = MIXER_CONV,
        .rule = BUT_LISTED,
        .type = "conv",
        .list_key = "full_attn_idxs",
        .conv_key = "conv_L_cache",
        .conv_bias_key = "conv_bias",
        .conv_width = 3,
    },
    {
        .model_type = "mamba",
        .mixer = MIXER_SCAN,
        .rule = ALL,
        .type = "linear_attention",
        MAMBA_CONV("conv_kernel", "use_conv_bias"),
        .no_mlp = true,
        .names = {.n_state = "state_size", .proj_bias = "use_bias", .n_state_absent = 16},
    },
    {
        .model_type = "mamba2",
        .mixer = MIXER_SSD,
        .rule = ALL,
        .type = "linear_attention",
        MAMBA_CONV("conv_kernel", "use_conv_bias"),
        .no_mlp = true,
        .names = {"num_heads", "head_dim", "n_groups", "state_size", NULL, "use_bias", 128, 64, 8,
                  128},
    },
    {
        .model_type = "minimax",
        .mixer = MIXER_LIGHTNING,
        .rule = BUT_FIRST_OF_TWO,
        .type = "linear_attention",
        .list_key = "attn_type_list",
        .norm_eps = 1e-6,
    },
    {
        .model_type = "nemotron_h",
        .mixer = MIXER_SSD,
        .rule = BY_LETTERS,
        .type = "linear_attention",
        MAMBA_CONV("conv_kernel", "use_conv_bias"),
        .no_mlp = true,
        .names = {"mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", NULL,
                  "use_bias", 128, 64, 8, 128},
    },
    {
        .model_type = "olmo_hybrid",
        DELTA_NET,
        .norm_eps = 1e-5,
        .by_heads = true,
    },
    {
        .model_type = "qwen3_5_moe_text",
        DELTA_NET,
    },
    {
        .model_type = "qwen3_5_text",
        DELTA_NET,
    },
    {
        .model_type = "qwen3_next",
        DELTA_NET,
    },
};

static const struct family *family_of(const char *model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].model_type, model_type) == 0)
            return &families[i];
    return NULL;
}

/* ---- which layers ---- */

/* Older and newer names of a layer's kind. */
static bool is_type(const char *type, const char *name)
{
    static const struct {
        const char *older, *newer;
    } same[] = {
        {"attention", "full_attention"},
        {"mamba", "linear_attention"},
    };
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (strcmp(type, same[i].older) == 0)
            type = same[i].newer;
    return strcmp(type, name) == 0;
}

static enum q_code layers_by_type(struct model_config *c, const struct family *f,
                                  const json_t *types, const struct hub_json_at *at,
                                  struct q_err *e)
{
    if (json_array_size(types) != c->n_layer)
        return q_fail(e, Q_CORRUPT,
                      "%s: layer_types has %zu entries, expected num_hidden_layers = %u", at->path,
                      json_array_size(types), c->n_layer);
    for (uint32_t i = 0; i < c->n_layer; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        const bool has_experts = f->rule == BY_LETTERS && type && is_type(type, "moe");
        const bool is_mlp = has_experts || (f->rule == BY_LETTERS && type && is_type(type, "mlp"));
        if (!type || !(is_type(type, f->type) || is_type(type, "full_attention") || is_mlp))
            return q_fail(e, Q_UNSUPPORTED,
                          "%s: layer_types[%u] is \"%.40s\", which is not supported: expected "
                          "full_attention%s or %s",
                          at->path, i, type ? type : "?", f->rule == BY_LETTERS ? ", mlp, moe" : "",
                          f->type);
        c->mixer.experts[i] = has_experts;
        c->mixer.layers[i] =
            is_mlp ? MIXER_NONE : (uint8_t)(is_type(type, f->type) ? f->mixer : MIXER_ATTENTION);
    }
    return Q_OK;
}

static enum q_code layers_by_list(struct model_config *c, const struct family *f,
                                  const struct hub_json_at *at, struct q_err *e)
{
    const json_t *list = hub_json_find(at, f->list_key);
    if (list && !json_is_array(list))
        return q_fail(e, Q_CORRUPT, "%s: %s is %s, expected a list of layer numbers", at->path,
                      f->list_key, hub_json_kind(list));
    for (uint32_t i = 0; i < c->n_layer && (list || f->rule == BUT_LISTED_IF_ANY); i++)
        c->mixer.layers[i] = f->mixer;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *layer = json_array_get(list, i);
        if (!json_is_integer(layer) || json_integer_value(layer) < 0 ||
            json_integer_value(layer) >= c->n_layer)
            return q_fail(e, Q_CORRUPT, "%s: %s[%zu] is %s, expected a layer number below %u",
                          at->path, f->list_key, i,
                          json_is_integer(layer) ? "no layer" : hub_json_kind(layer), c->n_layer);
        c->mixer.layers[json_integer_value(layer)] = MIXER_ATTENTION;
    }
    return Q_OK;
}

static enum q_code layers_by_interval(struct model_config *c, const struct family *f,
                                      const struct hub_json_at *at, struct q_err *e)
{
    int64_t interval = f->interval;
    const enum q_code rc = f->by_heads
                               ? Q_OK
                               : hub_json_int(&interval, at, f->interval_key,
                                              (struct hub_json_range){1, CONFIG_LAYERS_MAX}, e);
    const bool none = f->by_heads && c->n_layer < interval; /* then the last */
    for (uint32_t i = 0; i < c->n_layer && !rc; i++)
        c->mixer.layers[i] =
            (i + 1) % interval && !(none && i + 1 == c->n_layer) ? f->mixer : MIXER_ATTENTION;
    return rc;
}

static enum q_code layers_by_flags(struct model_config *c, const struct family *f,
                                   const struct hub_json_at *at, struct q_err *e)
{
    const json_t *list = hub_json_find(at, f->list_key);
    if (list && json_array_size(list) != c->n_layer)
        return q_fail(e, Q_CORRUPT, "%s: %s has %zu entries, expected num_hidden_layers = %u",
                      at->path, f->list_key, json_array_size(list), c->n_layer);
    for (uint32_t i = 0; i < c->n_layer; i++) {
        const json_t *v = json_array_get(list, i);
        const json_int_t has_kv = list ? json_integer_value(v) : !(i % 2);
        if (list && (!json_is_integer(v) || has_kv < 0 || has_kv > 1))
            return q_fail(e, Q_CORRUPT, "%s: %s[%u] is %s, expected 0 or 1", at->path, f->list_key,
                          i, json_is_integer(v) ? "out of range" : hub_json_kind(v));
        c->mixer.layers[i] = has_kv ? MIXER_ATTENTION : (uint8_t)f->mixer;
    }
    return Q_OK;
}

/* Jamba's defaults. */
static enum q_code layers_by_period(struct model_config *c, const struct family *f,
                                    const struct hub_json_at *at, struct q_err *e)
{
    int64_t period = 8, offset = 4;
    enum q_code rc;
    if ((rc = hub_json_int(&period, at, "attn_layer_period",
                           (struct hub_json_range){1, CONFIG_LAYERS_MAX}, e)) ||
        (rc = hub_json_int(&offset, at, "attn_layer_offset",
                           (struct hub_json_range){0, CONFIG_LAYERS_MAX}, e)))
        return rc;
    if (offset >= period)
        return q_fail(e, Q_CORRUPT,
                      "%s: attn_layer_offset is %lld, expected less than attn_layer_period %lld",
                      at->path, (long long)offset, (long long)period);
    for (uint32_t i = 0; i < c->n_layer; i++)
        c->mixer.layers[i] = i % period == offset ? MIXER_ATTENTION : f->mixer;
    return Q_OK;
}

static enum q_code layers_by_letters(struct model_config *c, const struct family *f,
                                     const struct hub_json_at *at, struct q_err *e)
{
    static const char key[] = "hybrid_override_pattern";
    const char *letters = "";
    const enum q_code rc = hub_json_str(&letters, at, key, e);
    if (rc)
        return rc;
    if (strlen(letters) != c->n_layer)
        return q_fail(e, Q_CORRUPT,
                      "%s: %s has %zu letters, expected num_hidden_layers = %u of them", at->path,
                      key, strlen(letters), c->n_layer);
    for (uint32_t i = 0; i < c->n_layer; i++) {
        if (!strchr("M*-E", letters[i]))
            return q_fail(
                e, Q_UNSUPPORTED,
                "%s: %s has the letter %c, expected M (Mamba), * (attention), - (MLP) and "
                "E (experts)",
                at->path, key, letters[i]);
        c->mixer.experts[i] = letters[i] == 'E';
        c->mixer.layers[i] = letters[i] == 'M'   ? f->mixer
                             : letters[i] == '*' ? (uint8_t)MIXER_ATTENTION
                                                 : (uint8_t)MIXER_NONE;
    }
    return Q_OK;
}

static enum q_code load_layers(struct model_config *c, const struct family *f,
                               const struct hub_json_at *at, struct q_err *e)
{
    const json_t *types = hub_json_find(at, "layer_types");
    types = types ? types : hub_json_find(at, "layers_block_type");
    c->mixer.kind = f->mixer;
    c->mixer.beside = f->rule == BESIDE;
    if (types)
        return layers_by_type(c, f, types, at, e);
    switch (f->rule) {
    case BUT_LISTED:
    case BUT_LISTED_IF_ANY:
        return layers_by_list(c, f, at, e);
    case BUT_MULTIPLES:
        return layers_by_interval(c, f, at, e);
    case BUT_FIRST_OF_TWO:
        return layers_by_flags(c, f, at, e);
    case BUT_PERIOD:
        return layers_by_period(c, f, at, e);
    case BY_LETTERS:
        return layers_by_letters(c, f, at, e);
    default:
        memset(c->mixer.layers, f->mixer, c->n_layer);
        return Q_OK;
    }
}

/* ---- sizes ---- */

struct size {
    const char *key;
    uint32_t *out;
    uint32_t absent, max;
};

static enum q_code read_sizes(const struct size *sizes, size_t n, const struct hub_json_at *at,
                              struct q_err *e)
{
    for (size_t i = 0; i < n; i++) {
        int64_t value = sizes[i].absent;
        const enum q_code rc =
            hub_json_int(&value, at, sizes[i].key, (struct hub_json_range){1, sizes[i].max}, e);
        if (rc)
            return rc;
        *sizes[i].out = (uint32_t)value;
    }
    return Q_OK;
}

static enum q_code check_groups(const struct mixer_config *m, const char *groups, const char *heads,
                                const struct hub_json_at *at, struct q_err *e)
{
    if (m->n_value_head % m->n_key_head == 0)
        return Q_OK;
    return q_fail(e, Q_CORRUPT, "%s: %s %u is not a multiple of %s %u", at->path, heads,
                  m->n_value_head, groups, m->n_key_head);
}

/* Heads of a delta net. Olmo Hybrid's absent sizes: three fourths of hidden_size are keys, and
 * values are twice as wide. */
static enum q_code load_delta(struct model_config *c, const struct family *f,
                              const struct hub_json_at *at, struct q_err *e)
{
    struct mixer_config *m = &c->mixer;
    const struct size heads[] = {
        {"linear_num_key_heads", &m->n_key_head, f->by_heads ? c->n_head : 16, HEADS_MAX},
        {"linear_num_value_heads", &m->n_value_head, f->by_heads ? c->n_head : 32, HEADS_MAX},
    };
    enum q_code rc = read_sizes(heads, sizeof heads / sizeof *heads, at, e);
    if (rc || (rc = check_groups(m, "linear_num_key_heads", "linear_num_value_heads", at, e)))
        return rc;
    const uint32_t by_heads = (uint32_t)(0.75 * c->hidden_size / m->n_key_head);
    const struct size key = {"linear_key_head_dim", &m->key_dim, f->by_heads ? by_heads : 128,
                             HEAD_MAX};
    if ((rc = read_sizes(&key, 1, at, e)))
        return rc;
    const struct size value = {"linear_value_head_dim", &m->value_dim,
                               f->by_heads ? 2 * m->key_dim : 128, HEAD_MAX};
    m->negative = f->by_heads;
    m->norm_eps = f->norm_eps;
    if ((rc = read_sizes(&value, 1, at, e)) ||
        (f->by_heads && (rc = hub_json_bool(&m->negative, at, "linear_allow_neg_eigval", e))))
        return rc;
    if (m->key_dim > 0 && m->key_dim <= HEAD_MAX && m->value_dim <= HEAD_MAX)
        return Q_OK;
    return q_fail(e, Q_CORRUPT,
                  "%s: hidden_size %u and linear_num_key_heads %u give heads of %u and %u "
                  "elements, expected 1 to %u",
                  at->path, c->hidden_size, m->n_key_head, m->key_dim, m->value_dim, HEAD_MAX);
}

/* Lightning attention: as many heads of q, k and v, of attention's size. */
static enum q_code load_lightning(struct model_config *c, const struct family *f,
                                  const struct hub_json_at *at, struct q_err *e)
{
    struct mixer_config *m = &c->mixer;
    struct forward_config *to = &c->forward;
    const struct {
        const char *key, *older; /* of MiniMax's own folders */
        double *out;
    } factors[] = {
        {"full_attn_alpha_factor", "layernorm_full_attention_alpha", &to->attention_kept},
        {"full_attn_beta_factor", "layernorm_full_attention_beta", &to->attention_out},
        {"linear_attn_alpha_factor", "layernorm_linear_attention_alpha", &to->mixer_kept},
        {"linear_attn_beta_factor", "layernorm_linear_attention_beta", &to->mixer_out},
        {"mlp_alpha_factor", "layernorm_mlp_alpha", &to->mlp_kept},
        {"mlp_beta_factor", "layernorm_mlp_beta", &to->mlp_out},
    };
    m->n_key_head = m->n_value_head = c->n_head;
    m->key_dim = m->value_dim = c->head_dim;
    m->norm_eps = f->norm_eps;
    if (c->head_dim > HEAD_MAX)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: head_dim %u is not supported for model_type \"%s\", at most %u",
                      at->path, c->head_dim, c->model_type, HEAD_MAX);
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        const struct hub_json_range range = {1e-6, 1e6};
        enum q_code rc;
        if ((rc = hub_json_number(factors[i].out, at, factors[i].older, range, e)) ||
            (rc = hub_json_number(factors[i].out, at, factors[i].key, range, e)))
            return rc;
        if (*factors[i].out == 1)
            *factors[i].out = 0; /* no operation */
    }
    return Q_OK;
}

/* "auto": absent. */
static bool is_auto(const struct hub_json_at *at, const char *key)
{
    const char *text = json_string_value(hub_json_find(at, key));
    return !hub_json_find(at, key) || (text && strcmp(text, "auto") == 0);
}

/* Columns of a state space model: a key of their number, or expand times hidden_size. */
static enum q_code load_width(int64_t *width, const struct model_config *c, const char *key,
                              const struct hub_json_at *at, struct q_err *e)
{
    const char *expand_key = hub_json_find(at, "mamba_expand") ? "mamba_expand" : "expand";
    double expand = 2;
    const enum q_code rc =
        hub_json_number(&expand, at, expand_key, (struct hub_json_range){1.0 / 64, 64}, e);
    *width = (int64_t)(expand * c->hidden_size);
    if (rc || !key)
        return rc;
    return hub_json_int(width, at, key, (struct hub_json_range){1, WIDTH_MAX}, e);
}

/* [least, greatest]; null, as Infinity is read: no limit. */
static enum q_code load_limits(struct mixer_config *m, const struct hub_json_at *at,
                               struct q_err *e)
{
    static const char key[] = "time_step_limit";
    double *limits[] = {&m->step_min, &m->step_max};
    const json_t *list = hub_json_find(at, key);
    m->step_min = 0;
    m->step_max = INFINITY;
    if (!list)
        return Q_OK;
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_array_get(list, i);
        const bool is_none = json_is_null(v) || json_is_object(v); /* {"__float__": "Infinity"} */
        if (json_array_size(list) != 2 || !(is_none || json_is_number(v)) ||
            (json_is_number(v) && !(json_number_value(v) >= 0)))
            return q_fail(e, Q_CORRUPT, "%s: %s is %s, expected two numbers from 0 on", at->path,
                          key, json_is_array(list) ? "another list" : hub_json_kind(list));
        if (json_is_number(v))
            *limits[i] = json_number_value(v);
    }
    return Q_OK;
}

/* Nemotron H: steps have a least one, by another key; the activation is not the MLP's. */
static enum q_code load_least_step(struct mixer_config *m, const struct hub_json_at *at,
                                   struct q_err *e)
{
    const char *act = "silu";
    const enum q_code rc = hub_json_str(&act, at, "mamba_hidden_act", e);
    if (rc)
        return rc;
    if (strcmp(act, "silu") != 0)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: mamba_hidden_act \"%.40s\" is not supported, only \"silu\"", at->path,
                      act);
    m->step_min = 1e-3;
    m->step_max = INFINITY;
    return hub_json_number(&m->step_min, at, "time_step_min", (struct hub_json_range){0, 1e6}, e);
}

/* Mamba 2: heads, and groups of them that share B and C. */
static enum q_code load_ssd(struct model_config *c, const struct family *f,
                            const struct hub_json_at *at, struct q_err *e)
{
    const struct scan_names *n = &f->names;
    struct mixer_config *m = &c->mixer;
    bool has_norm = f->rule != BESIDE;
    int64_t width;
    const struct size sizes[] = {
        {n->n_head, &m->n_value_head, n->n_head_absent, HEADS_MAX},
        {n->n_group, &m->n_key_head, n->n_group_absent, HEADS_MAX},
        {n->n_state, &m->key_dim, n->n_state_absent, HEAD_MAX},
    };
    enum q_code rc;
    if ((rc = load_width(&width, c, n->width, at, e)) ||
        (rc = read_sizes(sizes, sizeof sizes / sizeof *sizes, at, e)) ||
        (rc = check_groups(m, n->n_group, n->n_head, at, e)))
        return rc;
    const int64_t each = width / m->n_value_head;
    m->value_dim = n->head_dim_absent ? n->head_dim_absent : (uint32_t)(each < HEAD_MAX ? each : 0);
    const struct size head = {n->head_dim, &m->value_dim, m->value_dim, HEAD_MAX};
    if (!is_auto(at, n->head_dim) && (rc = read_sizes(&head, 1, at, e)))
        return rc;
    if (m->value_dim == 0 ||
        (f->rule != BY_LETTERS && (int64_t)m->n_value_head * m->value_dim != width))
        return q_fail(e, Q_CORRUPT,
                      "%s: %s %u and %s %u do not make the %lld columns of the layer (%s times "
                      "hidden_size%s%s); a head has at most %u",
                      at->path, n->n_head, m->n_value_head, n->head_dim, m->value_dim,
                      (long long)width, "expand", n->width ? ", or " : "", n->width ? n->width : "",
                      HEAD_MAX);
    if (f->rule == BESIDE && ((rc = hub_json_bool(&has_norm, at, "mamba_rms_norm", e))))
        return rc;
    m->no_norm = !has_norm;
    m->norm_first = f->rule == BESIDE;
    if (m->norm_first && (rc = hub_json_bool(&m->norm_first, at, "mamba_norm_before_gate", e)))
        return rc;
    return f->rule == BY_LETTERS ? load_least_step(m, at, e) : load_limits(m, at, e);
}

/* Mamba: each column is a head of one element. */
static enum q_code load_scan(struct model_config *c, const struct family *f,
                             const struct hub_json_at *at, struct q_err *e)
{
    struct mixer_config *m = &c->mixer;
    const char *rank_key = hub_json_find(at, "mamba_dt_rank") ? "mamba_dt_rank" : "time_step_rank";
    const uint32_t rank = (c->hidden_size + 15) / 16;
    int64_t width;
    const struct size state = {f->names.n_state, &m->key_dim, f->names.n_state_absent, HEAD_MAX};
    const struct size ranks = {rank_key, &m->step_rank, rank, WIDTH_MAX};
    enum q_code rc;
    if ((rc = load_width(&width, c, NULL, at, e)) || (rc = read_sizes(&state, 1, at, e)))
        return rc;
    m->step_rank = rank;
    if (!is_auto(at, rank_key) && (rc = read_sizes(&ranks, 1, at, e)))
        return rc;
    if (width < 1 || width > WIDTH_MAX)
        return q_fail(
            e, Q_CORRUPT,
            "%s: expand times hidden_size gives a layer of %lld columns, expected 1 to %u",
            at->path, (long long)width, WIDTH_MAX);
    m->n_key_head = m->value_dim = 1;
    m->n_value_head = (uint32_t)width;
    m->norm_eps = f->norm_eps;
    if (f->norm_eps == 0)
        return Q_OK;
    return hub_json_number(&m->norm_eps, at, "mixer_rms_eps", (struct hub_json_range){1e-12, 1}, e);
}

/* LFM2: two thirds of the number, times a factor, rounded up to a multiple. */
static enum q_code adjust_width(struct model_config *c, const struct hub_json_at *at,
                                struct q_err *e)
{
    const struct hub_json_range any = {1, WIDTH_MAX};
    int64_t width = c->intermediate_size, multiple = 256;
    double factor = 1;
    bool adjusts = true;
    enum q_code rc;
    if ((rc = hub_json_int(&width, at, "block_ff_dim", any, e)) ||
        (rc = hub_json_bool(&adjusts, at, "block_auto_adjust_ff_dim", e)) ||
        (rc = hub_json_number(&factor, at, "block_ffn_dim_multiplier",
                              (struct hub_json_range){1e-3, 1e3}, e)) ||
        (rc = hub_json_int(&multiple, at, "block_multiple_of", any, e)))
        return rc;
    if (adjusts) {
        const int64_t part = 2 * width / 3;
        width = (int64_t)(factor * (double)part);
        width = (width + multiple - 1) / multiple * multiple;
    }
    if (width < 1 || width > WIDTH_MAX)
        return q_fail(e, Q_CORRUPT,
                      "%s: block_ff_dim with block_ffn_dim_multiplier and block_multiple_of gives "
                      "an MLP of %lld columns, expected 1 to %u",
                      at->path, (long long)width, WIDTH_MAX);
    c->intermediate_size = (uint32_t)width;
    return Q_OK;
}

/* ---- multipliers ---- */

/* A list of n numbers; absent: *out is not changed. */
static enum q_code read_list(double *out, size_t n, const struct hub_json_at *at, const char *key,
                             struct q_err *e)
{
    const json_t *list = hub_json_find(at, key);
    for (size_t i = 0; list && i < n; i++) {
        const double x = json_number_value(json_array_get(list, i));
        if (json_array_size(list) != n || !(x >= 1e-6 && x <= 1e6))
            return q_fail(e, Q_CORRUPT,
                          "%s: %s is %s, expected a list of %zu numbers from 0.000001 to 1000000",
                          at->path, key, json_is_array(list) ? "another list" : hub_json_kind(list),
                          n);
        out[i] = x;
    }
    return Q_OK;
}

/* Falcon-H1. Those of attention's input and of keys are in the scale of scores and in that of the
 * output, which is the same number. */
static enum q_code load_multipliers(struct model_config *c, const struct hub_json_at *at,
                                    struct q_err *e)
{
    struct forward_config *f = &c->forward;
    double key = 1, attention_in = 1, ssm_in = 1, mlp[2] = {1, 1};
    double parts[CONFIG_SSD_PARTS] = {1, 1, 1, 1, 1};
    f->embedding_multiplier = f->attention_out = f->mixer_out = 1;
    const struct {
        const char *key;
        double *out;
    } numbers[] = {
        {"embedding_multiplier", &f->embedding_multiplier},
        {"key_multiplier", &key},
        {"attention_in_multiplier", &attention_in},
        {"attention_out_multiplier", &f->attention_out},
        {"ssm_in_multiplier", &ssm_in},
        {"ssm_out_multiplier", &f->mixer_out},
    };
    enum q_code rc;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if ((rc = hub_json_number(numbers[i].out, at, numbers[i].key,
                                  (struct hub_json_range){1e-6, 1e6}, e)))
            return rc;
    if ((rc = read_list(mlp, 2, at, "mlp_multipliers", e)) ||
        (rc = read_list(parts, CONFIG_SSD_PARTS, at, "ssm_multipliers", e)))
        return rc;
    f->attention_multiplier = key * attention_in * attention_in / sqrt(c->head_dim);
    f->attention_out *= attention_in;
    f->mlp_gate = mlp[0] == 1 ? 0 : mlp[0];
    f->mlp_out = mlp[1];
    for (size_t i = 0; i < CONFIG_SSD_PARTS; i++)
        c->mixer.multipliers[i] = parts[i] * ssm_in == 1 ? 0 : parts[i] * ssm_in;
    return Q_OK;
}

/* ---- the whole ---- */

static enum q_code load_mixer(struct model_config *c, const struct family *f,
                              const struct hub_json_at *at, struct q_err *e)
{
    enum q_code rc;
    switch (f->mixer) {
    case MIXER_CONV:
        c->mixer.bias = c->mixer.conv_bias;
        return f->adjusts_mlp ? adjust_width(c, at, e) : Q_OK;
    case MIXER_DELTA:
        return load_delta(c, f, at, e);
    case MIXER_LIGHTNING:
        return load_lightning(c, f, at, e);
    case MIXER_SSD:
        rc = load_ssd(c, f, at, e);
        return rc || f->rule != BESIDE ? rc : load_multipliers(c, at, e);
    default:
        return load_scan(c, f, at, e);
    }
}

enum q_code config_mixers_load(struct model_config *c, const struct hub_json_at *at,
                               struct q_err *e)
{
    const struct family *f = family_of(c->model_type);
    enum q_code rc;
    if (!f)
        return Q_OK;
    int64_t width = f->conv_width;
    c->mixer.conv_bias = f->conv_bias;
    if ((rc = load_layers(c, f, at, e)) ||
        (f->conv_key &&
         (rc = hub_json_int(&width, at, f->conv_key, (struct hub_json_range){2, CONV_MAX}, e))) ||
        (f->conv_bias_key && (rc = hub_json_bool(&c->mixer.conv_bias, at, f->conv_bias_key, e))) ||
        (f->names.proj_bias && (rc = hub_json_bool(&c->mixer.bias, at, f->names.proj_bias, e))))
        return rc;
    c->mixer.conv_width = (uint32_t)width;
    for (uint32_t i = 0; i < c->n_layer && f->no_mlp; i++)
        c->mixer.no_mlp[i] = c->mixer.layers[i] != MIXER_NONE;
    return load_mixer(c, f, at, e);
}
