/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/vision/vision_config.h"
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "common/file.h"
#include "common/hub/hub_json.h"
#include "common/hub/params.h"
#include "common/mem.h"
#include "engine/model/arch_layer.h"

#define IDS_MAX 4294967294.0

struct reading {
    struct vision_config *v;
    struct hub_json_at outer, tower, pixels; /* config.json, its vision_config, the processor's */
    char config_path[PATH_MAX], pixels_path[PATH_MAX];
    json_t *root, *processor;
    struct buf *why; /* what is not supported; "": nothing */
    struct q_err *e;
};

/* What of the model is not supported; the first reason counts. */
__attribute__((format(printf, 2, 3))) static void refuse(struct reading *r, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    if (!r->why->len)
        buf_vprintf(r->why, format, ap);
    va_end(ap);
}

static FALLIBLE read_size(uint32_t *out, const struct hub_json_at *at, const char *key,
                          uint32_t usual, struct q_err *e)
{
    int64_t v = usual;
    const enum q_code rc = hub_json_int(&v, at, key, (struct hub_json_range){1, 1 << 20}, e);
    *out = (uint32_t)v;
    return rc;
}

/* The same of a side of a square: a number, or a list of two that are equal. */
static FALLIBLE read_side(uint32_t *out, struct reading *r, const char *key, uint32_t usual)
{
    const json_t *v = hub_json_find(&r->tower, key);
    if (!json_is_array(v))
        return read_size(out, &r->tower, key, usual, r->e);
    const json_int_t a = json_integer_value(json_array_get(v, 0)),
                     b = json_integer_value(json_array_get(v, 1));
    *out = usual;
    if (json_array_size(v) != 2 || a < 1 || b < 1 || a > 1 << 20)
        return q_fail(r->e, Q_CORRUPT, "%s: vision_config: %s, expected a number or a list of two",
                      r->config_path, key);
    if (a != b)
        refuse(r, "a tower that reads %lld x %lld pixels (%s) is not supported", (long long)b,
               (long long)a, key);
    *out = (uint32_t)a;
    return Q_OK;
}

static FALLIBLE read_text(char out[CONFIG_NAME_MAX], const struct hub_json_at *at, const char *key,
                          const char *usual, struct q_err *e)
{
    const char *v = usual;
    const enum q_code rc = hub_json_str(&v, at, key, e);
    if (!rc && snprintf(out, CONFIG_NAME_MAX, "%s", v) >= (int)CONFIG_NAME_MAX)
        return q_fail(e, Q_CORRUPT, "%s: %s is longer than %u bytes", at->path, key,
                      CONFIG_NAME_MAX - 1);
    return rc;
}

/* ---- the tower ---- */

static FALLIBLE find_tower(struct reading *r)
{
    const char *type = r->v->model->default_tower;
    const json_t *inner = hub_json_find(&r->outer, "vision_config");
    if (inner && !json_is_object(inner))
        return q_fail(r->e, Q_CORRUPT, "%s: vision_config is %s, expected an object",
                      r->config_path, hub_json_kind(inner));
    r->tower = (struct hub_json_at){inner, r->config_path};
    const bool reads = inner && r->v->model->reads_type;
    const enum q_code rc = reads ? hub_json_str(&type, &r->tower, "model_type", r->e) : Q_OK;
    if (rc)
        return rc;
    r->v->tower = vision_tower_of(type);
    if (!r->v->tower)
        refuse(r, "a tower of model_type %.60s is not supported", type);
    return Q_OK;
}

/* How many layers are computed: LLaVA counts them from the end. */
static FALLIBLE read_depth(struct reading *r)
{
    const json_t *layer = hub_json_find(&r->outer, "vision_feature_layer");
    struct model_config *c = &r->v->layers;
    int64_t at = -2;
    if (r->v->model->projector == VISION_SHUFFLE)
        return Q_OK;
    if (r->v->model->projector == VISION_SHUFFLE_MLP)
        at = -1;
    if (json_is_array(layer)) {
        refuse(r, "vision_feature_layer with several layers is not supported");
        return Q_OK;
    }
    const enum q_code rc =
        hub_json_int(&at, &r->outer, "vision_feature_layer",
                     (struct hub_json_range){-(double)c->n_layer - 1, (double)c->n_layer}, r->e);
    at = at < 0 ? at + c->n_layer + 1 : at;
    if (at == 0)
        refuse(r, "a tower without layers is not supported");
    else
        c->n_layer = (uint32_t)at;
    return rc;
}

static FALLIBLE read_strategy(struct reading *r)
{
    const char *strategy = "default";
    if (r->v->model->projector == VISION_SHUFFLE)
        return Q_OK;
    const enum q_code rc =
        hub_json_str(&strategy, &r->outer, "vision_feature_select_strategy", r->e);
    const bool is_full = !strcmp(strategy, "full");
    if (!rc && !is_full && strcmp(strategy, "default") != 0)
        return q_fail(r->e, Q_CORRUPT,
                      "%s: vision_feature_select_strategy is \"%.40s\", expected default or full",
                      r->config_path, strategy);
    if (!is_full && !r->v->tower->class_row)
        refuse(r, "vision_feature_select_strategy \"default\" of a tower without a class row is "
                  "not supported");
    if (is_full && r->v->tower->class_row && r->v->model->projector != VISION_MLP)
        refuse(r, "vision_feature_select_strategy \"full\" with rows of several patches is not "
                  "supported");
    r->v->keeps_class = is_full && r->v->tower->class_row;
    return rc;
}

static FALLIBLE read_sizes(struct reading *r)
{
    const struct vision_tower *t = r->v->tower;
    struct model_config *c = &r->v->layers;
    struct q_err *e = r->e;
    uint32_t channels;
    double eps = t->eps;
    enum q_code rc;
    if ((rc = read_size(&c->hidden_size, &r->tower, "hidden_size", t->hidden_size, e)) ||
        (rc = read_size(&c->intermediate_size, &r->tower, "intermediate_size", t->intermediate_size,
                        e)) ||
        (rc = read_size(&c->n_layer, &r->tower, "num_hidden_layers", t->n_layer, e)) ||
        (rc = read_size(&c->n_head, &r->tower, "num_attention_heads", t->n_head, e)) ||
        (rc = read_size(&channels, &r->tower, "num_channels", VISION_CHANNELS, e)) ||
        (rc = read_side(&r->v->image_size, r, "image_size", t->image_size)) ||
        (rc = read_side(&r->v->patch_size, r, "patch_size", t->patch_size)) ||
        (rc = hub_json_number(&eps, &r->tower, "layer_norm_eps", (struct hub_json_range){0, 1},
                              e)) ||
        (rc = read_text(c->hidden_act, &r->tower, "hidden_act", t->act, e)))
        return rc;
    c->rms_norm_eps = eps;
    if (c->n_layer > CONFIG_LAYERS_MAX || c->hidden_size % c->n_head ||
        c->hidden_size / c->n_head > CONFIG_HEAD_MAX)
        return q_fail(e, Q_CORRUPT,
                      "%s: vision_config: num_hidden_layers %u, hidden_size %u and "
                      "num_attention_heads %u; expected at most %u layers, and heads that divide "
                      "hidden_size",
                      r->config_path, c->n_layer, c->hidden_size, c->n_head, CONFIG_LAYERS_MAX);
    if (channels != VISION_CHANNELS)
        refuse(r, "images of %u channels are not supported", channels);
    if (r->v->image_size > VISION_SIDE_MAX || r->v->patch_size > r->v->image_size)
        return q_fail(e, Q_CORRUPT,
                      "%s: vision_config: image_size %u and patch_size %u, expected at most %u, "
                      "and patches that are no larger than the image",
                      r->config_path, r->v->image_size, r->v->patch_size, VISION_SIDE_MAX);
    return Q_OK;
}

/* What the layers are to engine/model: a model without tokens whose rows attend both ways. */
static void complete_layers(struct vision_config *v, const struct model_config *text)
{
    struct model_config *c = &v->layers;
    snprintf(c->architecture, sizeof c->architecture, "%s", v->tower->type);
    snprintf(c->model_type, sizeof c->model_type, "%s", v->tower->type);
    c->n_kv_head = c->n_head;
    c->head_dim = c->hidden_size / c->n_head;
    c->vocab_size = 1;
    c->bos_id = UINT32_MAX;
    c->max_position = v->n_row;
    c->attention_out_bias = c->mlp_bias = true;
    c->dtype = text->dtype;
    c->rope.kind = ROPE_DEFAULT;
    c->rope.theta = 10000;
    c->rope.factor = 1;
}

/* What a tower may have and none of ours computes. */
static FALLIBLE read_rest(struct reading *r)
{
    struct model_config *c = &r->v->layers;
    const bool is_internvl = r->v->model->projector == VISION_SHUFFLE_MLP;
    bool norms_qk = false, is_absolute = true, is_mean = true;
    const char *norm = "layer_norm";
    enum q_code rc;
    c->attention_bias = !is_internvl;
    if (!is_internvl)
        return Q_OK;
    if ((rc = hub_json_bool(&c->attention_bias, &r->tower, "attention_bias", r->e)) ||
        (rc = hub_json_bool(&norms_qk, &r->tower, "use_qk_norm", r->e)) ||
        (rc = hub_json_bool(&is_absolute, &r->tower, "use_absolute_position_embeddings", r->e)) ||
        (rc = hub_json_bool(&is_mean, &r->tower, "use_mean_pooling", r->e)) ||
        (rc = hub_json_str(&norm, &r->tower, "norm_type", r->e)))
        return rc;
    if (norms_qk || !is_absolute || !is_mean || strcmp(norm, "layer_norm") != 0)
        refuse(r,
               "a tower with use_qk_norm, norms of type %.20s, without positions or without "
               "use_mean_pooling is not supported",
               norm);
    return Q_OK;
}

static FALLIBLE read_tower(struct reading *r)
{
    enum q_code rc;
    if ((rc = find_tower(r)) || r->why->len || (rc = read_sizes(r)) || (rc = read_rest(r)) ||
        (rc = read_depth(r)) || (rc = read_strategy(r)))
        return rc;
    struct vision_config *v = r->v;
    v->n_side = v->image_size / v->patch_size;
    v->n_row = v->n_side * v->n_side + (v->tower->class_row != NULL);
    v->n_patch = VISION_CHANNELS * v->patch_size * v->patch_size;
    if (v->n_row > VISION_ROWS_MAX)
        return q_fail(
            r->e, Q_CORRUPT,
            "%s: vision_config: image_size %u and patch_size %u make %u rows, expected at "
            "most %u",
            r->config_path, v->image_size, v->patch_size, v->n_row, VISION_ROWS_MAX);
    return Q_OK;
}

/* ---- the projector ---- */

static FALLIBLE read_mlp(struct reading *r)
{
    struct vision_config *v = r->v;
    enum arch_activation act;
    enum q_code rc = read_text(v->projector_act, &r->outer, "projector_hidden_act", "gelu", r->e);
    v->has_projector_bias = true;
    if (!rc && v->model->projector == VISION_MLP)
        rc = hub_json_bool(&v->has_projector_bias, &r->outer, "multimodal_projector_bias", r->e);
    if (!rc && (!arch_activation_parse(&act, v->projector_act) || act == ARCH_XIELU))
        refuse(r, "projector_hidden_act \"%s\" is not supported", v->projector_act);
    return rc;
}

static FALLIBLE read_projector(struct reading *r, const struct model_config *text)
{
    struct vision_config *v = r->v;
    enum q_code rc = Q_OK;
    double ratio = 0.5;
    v->text_size = text->hidden_size;
    v->shuffle = 1;
    if (v->model->projector == VISION_SHUFFLE)
        rc = read_size(&v->shuffle, &r->outer, "scale_factor", 2, r->e);
    if (v->model->projector == VISION_SHUFFLE_MLP) {
        rc = hub_json_number(&ratio, &r->outer, "downsample_ratio",
                             (struct hub_json_range){1.0 / 64, 1}, r->e);
        v->shuffle = (uint32_t)(1 / ratio + 0.5);
    }
    if (rc)
        return rc;
    if (v->n_side % v->shuffle)
        return q_fail(
            r->e, Q_CORRUPT, "%s: %s does not divide the %u patches of a side", r->config_path,
            v->model->projector == VISION_SHUFFLE ? "scale_factor" : "downsample_ratio", v->n_side);
    if (v->model->projector != VISION_MLP && v->shuffle < 2)
        refuse(r, "rows of a single patch (scale_factor, downsample_ratio) are not supported");
    if (v->model->projector != VISION_SHUFFLE)
        rc = read_mlp(r);
    const uint32_t n = v->n_side / v->shuffle;
    v->n_token = n * n + v->keeps_class;
    return rc;
}

static FALLIBLE read_placeholder(struct reading *r, const struct model_config *text)
{
    const char *const *keys = r->v->model->token_keys;
    int64_t id = -1;
    enum q_code rc = Q_OK;
    for (size_t i = 0; i < 2 && keys[i] && id < 0 && !rc; i++)
        rc = hub_json_int(&id, &r->outer, keys[i], (struct hub_json_range){0, IDS_MAX}, r->e);
    if (rc)
        return rc;
    if (id < 0 || id >= (int64_t)text->vocab_size)
        return q_fail(r->e, Q_CORRUPT,
                      "%s: %s is %s, expected the id of the token that stands for an image, below "
                      "the vocabulary's %u",
                      r->config_path, keys[0], id < 0 ? "missing" : "too large", text->vocab_size);
    r->v->placeholder = (uint32_t)id;
    return Q_OK;
}

/* ---- pixels ---- */

/* An edge of a size: a number, or {"shortest_edge": n} and others; 0: not given. */
static FALLIBLE read_edge(uint32_t *out, const struct reading *r, const char *key, const char *edge)
{
    const json_t *v = hub_json_find(&r->pixels, key);
    int64_t n = 0;
    *out = 0;
    if (json_is_integer(v)) {
        if (json_integer_value(v) < 1 || json_integer_value(v) > VISION_SIDE_MAX)
            return q_fail(r->e, Q_CORRUPT, "%s: %s is %lld, expected 1 to %u", r->pixels.path, key,
                          (long long)json_integer_value(v), VISION_SIDE_MAX);
        if (strcmp(edge, "longest_edge") != 0)
            *out = (uint32_t)json_integer_value(v);
        return Q_OK;
    }
    if (!v)
        return Q_OK;
    if (!json_is_object(v))
        return q_fail(r->e, Q_CORRUPT, "%s: %s is %s, expected an object", r->pixels.path, key,
                      hub_json_kind(v));
    const struct hub_json_at at = {v, r->pixels.path};
    const enum q_code rc =
        hub_json_int(&n, &at, edge, (struct hub_json_range){1, VISION_SIDE_MAX}, r->e);
    *out = (uint32_t)n;
    return rc;
}

static FALLIBLE read_numbers(double out[VISION_CHANNELS], const struct reading *r, const char *key)
{
    const json_t *v = hub_json_find(&r->pixels, key);
    if (!v)
        return Q_OK;
    for (size_t i = 0; i < VISION_CHANNELS; i++) {
        const json_t *one = json_array_get(v, i);
        out[i] = json_number_value(one);
        if (json_array_size(v) != VISION_CHANNELS || !json_is_number(one) || out[i] < -1e6 ||
            out[i] > 1e6)
            return q_fail(r->e, Q_CORRUPT, "%s: %s, expected a list of %u numbers", r->pixels.path,
                          key, VISION_CHANNELS);
    }
    return Q_OK;
}

static FALLIBLE read_scale(struct reading *r)
{
    struct vision_config *v = r->v;
    double mean[VISION_CHANNELS], std[VISION_CHANNELS], factor = 1 / 255.0;
    bool rescales = true, normalizes = true;
    enum q_code rc;
    memcpy(mean, v->model->mean, sizeof mean);
    memcpy(std, v->model->std, sizeof std);
    if ((rc = read_numbers(mean, r, "image_mean")) || (rc = read_numbers(std, r, "image_std")) ||
        (rc = hub_json_bool(&rescales, &r->pixels, "do_rescale", r->e)) ||
        (rc = hub_json_bool(&normalizes, &r->pixels, "do_normalize", r->e)) ||
        (rc = hub_json_number(&factor, &r->pixels, "rescale_factor",
                              (struct hub_json_range){0, 1e6}, r->e)))
        return rc;
    for (size_t i = 0; i < VISION_CHANNELS; i++) {
        if (std[i] == 0)
            return q_fail(r->e, Q_CORRUPT, "%s: image_std has a 0", r->pixels.path);
        v->scale[i] = (float)((rescales ? factor : 1) / (normalizes ? std[i] : 1));
        v->offset[i] = (float)(normalizes ? -mean[i] / std[i] : 0);
    }
    return Q_OK;
}

/* LLaVA: the shortest edge, then the middle; or both edges at once. */
static FALLIBLE read_square(struct reading *r)
{
    struct vision_config *v = r->v;
    uint32_t shortest, height, crop_height, crop_width;
    bool resizes = true, crops = v->tower->class_row != NULL;
    enum q_code rc;
    if ((rc = read_edge(&shortest, r, "size", "shortest_edge")) ||
        (rc = read_edge(&height, r, "size", "height")) ||
        (rc = read_edge(&crop_height, r, "crop_size", "height")) ||
        (rc = read_edge(&crop_width, r, "crop_size", "width")) ||
        (rc = hub_json_bool(&resizes, &r->pixels, "do_resize", r->e)) ||
        (rc = hub_json_bool(&crops, &r->pixels, "do_center_crop", r->e)))
        return rc;
    const bool is_plain = json_is_integer(hub_json_find(&r->pixels, "size"));
    if (!shortest && !height)
        shortest = v->image_size;
    if (!resizes)
        refuse(r, "images that are not resized (do_resize) are not supported");
    else if (shortest && (!is_plain || crops)) {
        if (!crops || shortest < v->image_size ||
            (crop_height && (crop_height != v->image_size || crop_width != v->image_size)))
            refuse(r,
                   "images of other sizes than %u x %u (size, crop_size, do_center_crop) are "
                   "not supported",
                   v->image_size, v->image_size);
        v->shortest_edge = shortest;
    } else if ((height ? height : shortest) != v->image_size)
        refuse(r, "images of other sizes than %u x %u (size) are not supported", v->image_size,
               v->image_size);
    return Q_OK;
}

static FALLIBLE read_tiles(struct reading *r)
{
    struct vision_config *v = r->v;
    uint32_t longest, tile;
    bool splits = true, resizes = true;
    enum q_code rc;
    if ((rc = read_edge(&longest, r, "size", "longest_edge")) ||
        (rc = read_edge(&tile, r, "max_image_size", "longest_edge")) ||
        (rc = hub_json_bool(&splits, &r->pixels, "do_image_splitting", r->e)) ||
        (rc = hub_json_bool(&resizes, &r->pixels, "do_resize", r->e)))
        return rc;
    v->longest_edge = longest ? longest : v->model->longest_edge;
    v->splits = splits;
    if (!resizes)
        refuse(r, "images that are not resized (do_resize) are not supported");
    if (tile && tile != v->image_size)
        refuse(r, "tiles of %u x %u pixels (max_image_size) are not supported by a tower of %u",
               tile, tile, v->image_size);
    const uint64_t side = (v->longest_edge + v->image_size - 1) / v->image_size;
    if (side * side > VISION_TILES_MAX)
        refuse(r, "images of more than %u tiles (size) are not supported", VISION_TILES_MAX);
    return Q_OK;
}

/* transformers' processor of InternVL always divides an image, whatever crop_to_patches says. */
static FALLIBLE read_grid(struct reading *r)
{
    struct vision_config *v = r->v;
    uint32_t height;
    enum q_code rc;
    if ((rc = read_edge(&height, r, "size", "height")) ||
        (rc = read_size(&v->tiles_min, &r->pixels, "min_patches", 1, r->e)) ||
        (rc = read_size(&v->tiles_max, &r->pixels, "max_patches", 12, r->e)))
        return rc;
    if (height && height != v->image_size)
        refuse(r, "tiles of %u x %u pixels (size) are not supported by a tower of %u", height,
               height, v->image_size);
    if (v->tiles_min > v->tiles_max || v->tiles_max >= VISION_TILES_MAX)
        return q_fail(r->e, Q_CORRUPT,
                      "%s: min_patches %u and max_patches %u, expected at most %u, and no fewer "
                      "than min_patches",
                      r->pixels.path, v->tiles_min, v->tiles_max, VISION_TILES_MAX - 1);
    return Q_OK;
}

static FALLIBLE read_pixels(struct reading *r)
{
    int64_t filter = r->v->model->filter;
    enum q_code rc =
        hub_json_int(&filter, &r->pixels, "resample", (struct hub_json_range){0, 5}, r->e);
    if (rc || (rc = read_scale(r)))
        return rc;
    if (filter > IMAGE_BICUBIC)
        refuse(r, "resample %d is not supported, expected 0 to 3", (int)filter);
    r->v->filter = (enum image_filter)filter;
    switch (r->v->model->cut) {
    case VISION_CUT_TILES:
        return read_tiles(r);
    case VISION_CUT_GRID:
        return read_grid(r);
    default:
        return read_square(r);
    }
}

FALLIBLE vision_options_processor(struct vision_options *o, const char *text, struct q_err *e)
{
    struct q_err why = Q_ERR_INIT;
    json_t *root = NULL;
    if (*text && hub_json_parse(&root, text, strlen(text), "--mm-processor-kwargs", &why))
        return q_fail(e, Q_INVALID,
                      "--mm-processor-kwargs is no JSON object such as {\"size\": "
                      "{\"longest_edge\": 512}}: %s",
                      why.message);
    json_decref(root);
    if (snprintf(o->processor, sizeof o->processor, "%s", text) >= (int)sizeof o->processor)
        return q_fail(e, Q_INVALID, "--mm-processor-kwargs has %zu bytes, expected at most %zu",
                      strlen(text), sizeof o->processor - 1);
    return Q_OK;
}

static FALLIBLE override_processor(struct reading *r, const struct vision_options *o)
{
    json_t *changes = NULL;
    if (!o || !*o->processor || !r->pixels.object)
        return Q_OK;
    enum q_code rc =
        hub_json_parse(&changes, o->processor, strlen(o->processor), "--mm-processor-kwargs", r->e);
    if (!rc && json_object_update((json_t *)(uintptr_t)r->pixels.object, changes))
        rc = q_fail(r->e, Q_NO_MEMORY, "--mm-processor-kwargs: out of memory");
    json_decref(changes);
    return rc;
}

/* The processor's settings: of preprocessor_config.json, else within processor_config.json. */
static FALLIBLE open_processor(struct reading *r, const char *dir)
{
    static const char *const names[] = {"preprocessor_config.json", "processor_config.json"};
    for (size_t i = 0; i < 2; i++) {
        enum q_code rc;
        if ((rc = path_join(r->pixels_path, sizeof r->pixels_path, dir, names[i], r->e)))
            return rc;
        if (!file_exists(r->pixels_path))
            continue;
        if ((rc = hub_json_load(&r->processor, r->pixels_path, r->e)))
            return rc;
        const json_t *inner = json_object_get(r->processor, "image_processor");
        if (i == 0 || json_is_object(inner)) {
            r->pixels = (struct hub_json_at){i ? inner : r->processor, r->pixels_path};
            return Q_OK;
        }
        json_decref(r->processor);
        r->processor = NULL;
    }
    refuse(r, "%s has neither preprocessor_config.json nor processor_config.json", dir);
    return Q_OK;
}

static FALLIBLE load(struct reading *r, const char *dir, const struct vision_options *o,
                     const struct model_config *text)
{
    struct buf config = BUF_INIT;
    enum q_code rc = params_read_config(&config, r->config_path, dir, r->e);
    if (!rc)
        rc = hub_json_parse(&r->root, buf_str(&config), config.len, r->config_path, r->e);
    buf_release(&config);
    if (rc)
        return rc;
    r->outer = (struct hub_json_at){r->root, r->config_path};
    if ((rc = read_tower(r)) || r->why->len || (rc = open_processor(r, dir)) || r->why->len ||
        (rc = override_processor(r, o)) || (rc = read_projector(r, text)) ||
        (rc = read_placeholder(r, text)))
        return rc;
    rc = read_pixels(r);
    complete_layers(r->v, text);
    return rc;
}

FALLIBLE vision_config_load(struct vision_config **out, const char *dir,
                            const struct vision_options *o, const struct model_config *text,
                            struct buf *why, struct q_err *e)
{
    struct reading *r;
    *out = NULL;
    if ((o && o->none) || !vision_model_of(text->outer))
        return Q_OK;
    if (!(r = q_calloc(1, sizeof *r)) || !(r->v = q_calloc(1, sizeof *r->v))) {
        q_free(r);
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory", dir);
    }
    r->v->model = vision_model_of(text->outer);
    r->why = why;
    r->e = e;
    const enum q_code rc = load(r, dir, o, text);
    if (!rc && !why->len) {
        *out = r->v;
        r->v = NULL;
    }
    json_decref(r->processor);
    json_decref(r->root);
    q_free(r->v);
    q_free(r);
    return rc;
}
