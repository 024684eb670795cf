/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "common/hub/config_internal.h"

/* transformers' defaults for absent keys */
static const struct family {
    const char *model_type;
    bool off;                /* use_sliding_window is false when absent */
    uint32_t window;         /* sliding_window when absent */
    uint32_t pattern;        /* without layer_types each such layer has no window; 0: all have it */
    uint32_t rope_interval;  /* without no_rope_layers each such layer is not rotated; 0: all are */
    bool rope_in_windows;    /* where there is a window's length, only layers with it are rotated */
    bool always_has_windows; /* and without one no layer is */
    /* The pattern's layers are the first, the one a pattern further …; and the key of the window
     * counts tokens on both sides of a token. */
    bool both_ways;
    const char *pattern_key, *window_key; /* NULL: the usual ones */
    uint32_t n_full;      /* max_window_layers when absent: the first layers, without a window */
    bool chunks;          /* windows are chunks of positions, in the layers with rope */
    const char *rope_key; /* all layers are rotated where it is "rope", else none; NULL: no key */
    bool full_first;      /* the pattern's layers are the first, the one a pattern further … */
    bool kinds;           /* attention_types says which layers have windows */
    /* Without layer_types a list of 0 (all tokens) and 1 (the window); without both the first layer
     * and those of the pattern have no window. The key of the window that is `size_key` counts
     * tokens before a token. */
    const char *hybrid_key, *size_key;
    bool dense_first; /* first_k_dense_replace layers have a pattern of their own */
} families[] = {
    {
        .model_type = "afmoe",
        .window = 1024,
        .pattern = 4,
        .rope_in_windows = true,
        .always_has_windows = true,
        .pattern_key = "global_attn_every_n_layers",
    },
    {
        .model_type = "cohere2",
        .window = 4096,
        .pattern = 4,
        .rope_in_windows = true,
        .always_has_windows = true,
    },
    {
        .model_type = "cohere2_moe",
        .window = 4096,
        .pattern = 4,
        .rope_in_windows = true,
        .always_has_windows = true,
        .dense_first = true,
    },
    {.model_type = "dots1", .window = 4096, .n_full = 62},
    {.model_type = "exaone4", .window = 4096, .pattern = 4, .rope_in_windows = true},
    {.model_type = "exaone_moe", .window = 4096, .pattern = 4, .rope_in_windows = true},
    {.model_type = "gemma2", .window = 4096, .pattern = 2},
    {.model_type = "gemma3_text", .window = 4096, .pattern = 6},
    {.model_type = "gemma3n_text", .window = 512, .pattern = 5},
    {.model_type = "gemma4_text", .window = 512, .pattern = 6},
    {.model_type = "gemma4_unified_text", .window = 1024, .pattern = 6},
    {.model_type = "gpt_neo", .window = 256, .window_key = "window_size", .kinds = true},
    {.model_type = "gpt_oss", .window = 128, .pattern = 2},
    {.model_type = "granite_swa", .window = 128, .pattern = 4, .full_first = true},
    {.model_type = "granitemoe_swa", .window = 128, .pattern = 4, .full_first = true},
    {.model_type = "granitemoehybrid", .rope_key = "position_embedding_type"},
    {
        .model_type = "llama4_text",
        .window = 8192,
        .rope_interval = 4,
        .window_key = "attention_chunk_size",
        .chunks = true,
    },
    {.model_type = "mellum", .window = 1024, .pattern = 1},
    {.model_type = "mimo", .off = true},
    {
        .model_type = "mimo_v2_flash",
        .window = 129,
        .pattern = 6,
        .hybrid_key = "hybrid_layer_pattern",
        .size_key = "sliding_window_size",
    },
    {.model_type = "ministral", .window = 4096},
    {
        .model_type = "modernbert",
        .window = 128,
        .pattern = 3,
        .both_ways = true,
        .pattern_key = "global_attn_every_n_layers",
        .window_key = "local_attention",
    },
    {.model_type = "olmo3", .window = 4096, .pattern = 4},
    {.model_type = "qwen2", .off = true},
    {.model_type = "qwen2_moe", .off = true},
    {.model_type = "qwen3", .off = true},
    {.model_type = "qwen3_moe", .off = true},
    {.model_type = "smollm3", .off = true, .rope_interval = 4},
    {.model_type = "vaultgemma", .window = 4096, .pattern = 2},
    {.model_type = ""}, /* every other */
};

static const struct family *family_of(const char *model_type)
{
    const struct family *f = families;
    while (*f->model_type && strcmp(f->model_type, model_type) != 0)
        f++;
    return f;
}

/* ---- layers without rope ---- */

static enum q_code load_no_rope(struct model_config *c, const struct family *f,
                                const struct hub_json_at *at, struct q_err *e)
{
    const json_t *list = hub_json_find(at, "no_rope_layers");
    int64_t interval = f->rope_interval;
    enum q_code rc;
    if (!f->rope_interval)
        return Q_OK;
    if (json_array_size(list) == 0)
        list = NULL; /* an empty list is none, as in transformers */
    if ((rc = hub_json_int(&interval, at, "no_rope_layer_interval",
                           (struct hub_json_range){1, UINT32_MAX}, e)))
        return rc;
    if (list && json_array_size(list) != c->n_layer)
        return q_fail(e, Q_CORRUPT,
                      "%s: no_rope_layers has %zu entries, expected num_hidden_layers = %u",
                      at->path, json_array_size(list), c->n_layer);
    for (uint32_t i = 0; i < c->n_layer; i++) {
        const json_t *rotates = json_array_get(list, i);
        if (list && !json_is_integer(rotates))
            return q_fail(e, Q_CORRUPT, "%s: no_rope_layers[%u] is %s, expected 1 (rope) or 0",
                          at->path, i, hub_json_kind(rotates));
        c->no_rope[i] = list ? json_integer_value(rotates) == 0 : (i + 1) % interval == 0;
    }
    return Q_OK;
}

/* Granite 4: by the kind of positions. */
static enum q_code load_position_type(struct model_config *c, const struct family *f,
                                      const struct hub_json_at *at, struct q_err *e)
{
    const char *type = "nope";
    const enum q_code rc = f->rope_key ? hub_json_str(&type, at, f->rope_key, e) : Q_OK;
    if (rc || !f->rope_key)
        return rc;
    for (uint32_t i = 0; i < c->n_layer; i++)
        c->no_rope[i] = strcmp(type, "rope") != 0;
    return Q_OK;
}

static void rotate_windows_only(struct model_config *c, const struct family *f, bool any)
{
    any = any || f->always_has_windows;
    for (uint32_t i = 0; i < c->n_layer && f->rope_in_windows; i++)
        c->no_rope[i] = any && !c->window[i];
}

/* ---- windows ---- */

struct windows { /* as the config has them */
    const json_t *types;
    const char *letters; /* "LLLG": a layer of each, repeated; L has the window */
    int64_t pattern, n_full;
    int64_t n_first, first_pattern; /* of the first layers, behind which `pattern` begins anew */
    const bool *local;              /* [n_layer]; NULL: the others count */
};

/* GPT-Neo: attention_types has pairs of a list of kinds and how often it is repeated. */
static enum q_code read_kinds(bool *local, uint32_t n_layer, const struct hub_json_at *at,
                              struct q_err *e)
{
    const json_t *types = hub_json_find(at, "attention_types");
    size_t n = 0, n_named = types ? 0 : n_layer;
    for (size_t i = 0; i < json_array_size(types); i++) {
        const json_t *pair = json_array_get(types, i), *kinds = json_array_get(pair, 0);
        const json_int_t n_time = json_integer_value(json_array_get(pair, 1));
        const size_t n_kind = json_array_size(kinds);
        if (n_time > 0) /* more than there may be layers is enough to be wrong */
            n_named +=
                n_kind * (size_t)(n_time < CONFIG_LAYERS_MAX ? n_time : CONFIG_LAYERS_MAX + 1);
        for (json_int_t k = 0; n_kind && k < n_time && n < n_layer; k++)
            for (size_t j = 0; j < n_kind && n < n_layer; j++) {
                const char *kind = json_string_value(json_array_get(kinds, j));
                if (!kind || (strcmp(kind, "global") != 0 && strcmp(kind, "local") != 0))
                    return q_fail(e, Q_UNSUPPORTED,
                                  "%s: attention_types[%zu] has the kind \"%.40s\", expected "
                                  "global or local",
                                  at->path, i, kind ? kind : "?");
                local[n++] = strcmp(kind, "local") == 0;
            }
    }
    for (; !types && n < n_layer; n++)
        local[n] = n % 2; /* transformers' default */
    if (n_named != n_layer)
        return q_fail(e, Q_CORRUPT,
                      "%s: attention_types has %zu layers, expected num_layers = %u: pairs of a "
                      "list of global and local and how often it is repeated",
                      at->path, n_named, n_layer);
    return Q_OK;
}

/* Command A with experts: of the layers without. */
static enum q_code read_first(struct windows *w, const struct family *f,
                              const struct hub_json_at *at, struct q_err *e)
{
    const struct hub_json_range layers = {0, CONFIG_LAYERS_MAX}, steps = {1, UINT32_MAX};
    enum q_code rc;
    w->first_pattern = 1;
    if (!f->dense_first || (rc = hub_json_int(&w->n_first, at, "first_k_dense_replace", layers, e)))
        return f->dense_first ? rc : Q_OK;
    return hub_json_int(&w->first_pattern, at, "prefix_dense_sliding_window_pattern", steps, e);
}

/* MiMo V2 Flash. */
static enum q_code read_hybrid(bool *local, uint32_t n_layer, const struct family *f,
                               const struct hub_json_at *at, struct q_err *e)
{
    const json_t *list = hub_json_find(at, f->hybrid_key);
    for (uint32_t i = 0; i < n_layer; i++)
        local[i] = i > 0 && (i + 1) % f->pattern;
    if (!list)
        return Q_OK;
    if (json_array_size(list) != n_layer)
        return q_fail(e, Q_CORRUPT, "%s: %s has %zu entries, expected num_hidden_layers = %u",
                      at->path, f->hybrid_key, json_array_size(list), n_layer);
    for (uint32_t i = 0; i < n_layer; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 1)
            return q_fail(e, Q_CORRUPT, "%s: %s[%u] is %s, expected 0 or 1", at->path,
                          f->hybrid_key, i, json_is_integer(v) ? "out of range" : hub_json_kind(v));
        local[i] = json_integer_value(v) == 1;
    }
    return Q_OK;
}

static enum q_code read_pattern(struct windows *w, const struct family *f,
                                const struct hub_json_at *at, struct q_err *e)
{
    const char *keys[] = {"_sliding_window_pattern", "sliding_window_pattern", f->pattern_key};
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && keys[i] && !rc; i++) {
        const json_t *v = hub_json_find(at, keys[i]);
        w->letters = json_is_string(v) ? json_string_value(v) : w->letters;
        if (!json_is_string(v))
            rc = hub_json_int(&w->pattern, at, keys[i], (struct hub_json_range){0, UINT32_MAX}, e);
    }
    if (!rc && w->letters && (!*w->letters || w->letters[strspn(w->letters, "LG")]))
        rc = q_fail(e, Q_CORRUPT,
                    "%s: sliding_window_pattern is \"%.40s\", expected a number or letters L "
                    "(window) and G (full attention)",
                    at->path, w->letters);
    return rc;
}

/* layer_types gives the kind of each layer; without it, the pattern, and the first
 * max_window_layers layers have full attention; without these, every layer has the window. */
static enum q_code is_sliding(bool *out, const struct model_config *c, const struct windows *w,
                              uint32_t i, const struct hub_json_at *at, struct q_err *e)
{
    const bool by_letter = w->letters && w->letters[i % strlen(w->letters)] == 'G';
    const struct family *f = family_of(c->model_type);
    const uint32_t n_first = i < w->n_first ? 0 : (uint32_t)w->n_first;
    const uint32_t nth = (f->both_ways || f->full_first ? i : i + 1) - n_first;
    const int64_t pattern = i < w->n_first ? w->first_pattern : w->pattern;
    const bool by_pattern = !w->letters && pattern && nth % pattern == 0;
    const bool full = i < w->n_full || by_letter || by_pattern;
    const bool by_rope = f->rope_interval; /* those that have none */
    const bool chunks = f->chunks;         /* or those that have one */
    const char *type = w->types ? json_string_value(json_array_get(w->types, i)) : NULL;
    const char *windowed = chunks ? "chunked_attention" : "sliding_attention";
    *out = w->local   ? w->local[i]
           : w->types ? type && strcmp(type, windowed) == 0
           : by_rope  ? c->no_rope[i] != chunks
                      : !full;
    *out = *out && model_config_has_kv(c, i);
    if (!w->types || *out || !model_config_has_kv(c, i) ||
        (type && (strcmp(type, "full_attention") == 0 || c->mixer.kind)))
        return Q_OK; /* other kinds of layers: config_mixers.c */
    return q_fail(e, Q_UNSUPPORTED,
                  "%s: layer_types[%u] is \"%.40s\", which is not supported: expected "
                  "full_attention or %s",
                  at->path, i, type ? type : "?", windowed);
}

enum q_code config_layers_load(struct model_config *c, const struct hub_json_at *at,
                               struct q_err *e)
{
    const struct family *f = family_of(c->model_type);
    struct windows w = {
        .types = hub_json_find(at, "layer_types"),
        .pattern = f->pattern,
        .n_full = f->n_full,
    };
    int64_t window = f->window;
    bool use = !f->off, local[CONFIG_LAYERS_MAX];
    enum q_code rc;
    const char *window_key = f->window_key ? f->window_key : "sliding_window";
    if (f->kinds && (rc = read_kinds(local, c->n_layer, at, e)))
        return rc;
    if (f->hybrid_key && !w.types && (rc = read_hybrid(local, c->n_layer, f, at, e)))
        return rc;
    w.local = f->kinds || (f->hybrid_key && !w.types) ? local : NULL;
    if (json_is_null(json_object_get(at->object, window_key)))
        window = 0;
    if ((rc = hub_json_int(&window, at, window_key, (struct hub_json_range){0, UINT32_MAX}, e)) ||
        (rc = hub_json_bool(&use, at, "use_sliding_window", e)) ||
        (rc = hub_json_int(&w.n_full, at, "max_window_layers",
                           (struct hub_json_range){0, UINT32_MAX}, e)) ||
        (rc = read_pattern(&w, f, at, e)) || (rc = read_first(&w, f, at, e)) ||
        (rc = load_no_rope(c, f, at, e)) || (rc = load_position_type(c, f, at, e)))
        return rc;
    if (w.types && json_array_size(w.types) != c->n_layer)
        return q_fail(e, Q_CORRUPT,
                      "%s: layer_types has %zu entries, expected num_hidden_layers = %u", at->path,
                      json_array_size(w.types), c->n_layer);
    if (f->size_key && hub_json_find(at, f->size_key)) {
        window -= 1;
        if ((rc = hub_json_int(&window, at, f->size_key, (struct hub_json_range){1, UINT32_MAX - 1},
                               e)))
            return rc;
        window += 1; /* with the token itself */
    }
    c->forward.chunks = f->chunks;
    if (f->both_ways && window)
        window = window / 2 + 1; /* with the token itself, on each side */
    for (uint32_t i = 0; i < c->n_layer; i++) {
        bool sliding;
        if ((rc = is_sliding(&sliding, c, &w, i, at, e)))
            return rc;
        c->window[i] = sliding && use ? (uint32_t)window : 0;
    }
    rotate_windows_only(c, f, window != 0);
    return Q_OK;
}
