/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/vision/vision_weights.h"
#include <stdio.h>
#include <string.h>
#include "common/mem.h"
#include "engine/model/load/weight_names.h"
#include "engine/model/model_state.h"

/* ---- the layers ---- */

/* clang-format off */
static const struct arch_tensor layer_tensors[VISION_LAYER_TENSORS] = {
    {"encoder.layers.%u.layer_norm1.weight",        W_ATTN_NORM,      {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layers.%u.layer_norm1.bias",          W_ATTN_NORM_BIAS, {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.q_proj.weight",   W_Q,              {D_Q, D_HIDDEN},     SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.q_proj.bias",     W_Q_BIAS,         {D_Q},               SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.k_proj.weight",   W_K,              {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.k_proj.bias",     W_K_BIAS,         {D_KV},              SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.v_proj.weight",   W_V,              {D_KV, D_HIDDEN},    SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.v_proj.bias",     W_V_BIAS,         {D_KV},              SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.out_proj.weight", W_O,              {D_HIDDEN, D_Q},     SHARD_COLS, WHEN_ALWAYS},
    {"encoder.layers.%u.self_attn.out_proj.bias",   W_O_BIAS,         {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layers.%u.layer_norm2.weight",        W_MLP_NORM,       {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layers.%u.layer_norm2.bias",          W_MLP_NORM_BIAS,  {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
    {"encoder.layers.%u.mlp.fc1.weight",            W_UP,             {D_INTER, D_HIDDEN}, SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.mlp.fc1.bias",              W_UP_BIAS,        {D_INTER},           SHARD_ROWS, WHEN_ALWAYS},
    {"encoder.layers.%u.mlp.fc2.weight",            W_DOWN,           {D_HIDDEN, D_INTER}, SHARD_COLS, WHEN_ALWAYS},
    {"encoder.layers.%u.mlp.fc2.bias",              W_DOWN_BIAS,      {D_HIDDEN},          SHARD_NONE, WHEN_ALWAYS},
};
/* clang-format on */

static const struct arch_layer layer = {
    .norm = ARCH_NORM_LAYER,
    .positions = ARCH_NO_POSITIONS,
    .mlp = ARCH_MLP_PLAIN,
    .activations = ARCH_ACTS_GELU | 1u << ARCH_SILU | 1u << ARCH_RELU,
    .bidirectional = true,
};

static void make_family(struct vision_weights *w, const struct vision_config *v, const char *prefix)
{
    for (size_t i = 0; i < VISION_LAYER_TENSORS; i++) {
        snprintf(w->names[i], sizeof w->names[i], "%s%s", prefix, layer_tensors[i].name);
        w->tensors[i] = layer_tensors[i];
        w->tensors[i].name = w->names[i];
    }
    w->arch = (struct arch){
        .name = v->tower->type,
        .tensors = w->tensors,
        .n_tensor = VISION_LAYER_TENSORS,
        .layer = layer,
        .is_part = true,
    };
}

static FALLIBLE load_layers(struct vision_weights *w, const struct vision_config *v,
                            const struct model_options *o, struct q_err *e)
{
    const struct model_options mine = {
        .dir = o->dir,
        .weights_dir = o->weights_dir,
        .format = o->format,
        .dtype = o->dtype,
        .dtype_auto = o->dtype_auto,
        .stage = {.n_layer = v->layers.n_layer},
        .kern = o->kern,
        .team = o->team,
        .no_fusion = o->no_fusion,
    };
    const struct model_family f = {&w->arch, &v->layers};
    return model_load_family(&w->layers, &f, &mine, e);
}

/* ---- what is before and behind them ---- */

enum end_kind { END_VECTOR, END_MATRIX };
struct end {
    const char *prefix, *name;
    enum end_kind kind;
    uint32_t rows, cols; /* a vector's rows and columns are one list of numbers */
    void *to;            /* const float * or struct packed */
    float dummy;         /* what its numbers are without files: around it */
};
#define ENDS_MAX 16u

struct loading {
    struct vision_weights *w;
    const struct vision_config *v;
    const struct model_options *o;
    struct tensor_set *files; /* NULL: dummy numbers */
    struct end ends[ENDS_MAX];
    uint32_t n;
    struct q_err *e;
};

static void want(struct loading *l, struct end end)
{
    Q_ASSERT(l->n < ENDS_MAX);
    l->ends[l->n++] = end;
}

static void want_vector(struct loading *l, const char *prefix, const char *name, uint32_t n,
                        const float **to)
{
    want(l, (struct end){prefix, name, END_VECTOR, n, 1, to, 0});
}

static void want_norm(struct loading *l, const char *prefix, const char *const names[2],
                      const float **weight, const float **bias)
{
    const uint32_t n = l->v->layers.hidden_size;
    want(l, (struct end){prefix, names[0], END_VECTOR, n, 1, weight, 1});
    want(l, (struct end){prefix, names[1], END_VECTOR, n, 1, bias, 0});
}

static void want_tower(struct loading *l, const char *prefix)
{
    static const char *const first[] = {"pre_layrnorm.weight", "pre_layrnorm.bias"};
    static const char *const last[] = {"post_layernorm.weight", "post_layernorm.bias"};
    struct vision_weights *w = l->w;
    const struct vision_config *v = l->v;
    const uint32_t hidden = v->layers.hidden_size;
    want(l, (struct end){prefix, "embeddings.patch_embedding.weight", END_MATRIX, hidden,
                         v->n_patch, &w->patch, 0});
    if (v->tower->has_patch_bias)
        want_vector(l, prefix, "embeddings.patch_embedding.bias", hidden, &w->patch_bias);
    if (v->tower->has_class)
        want_vector(l, prefix, "embeddings.class_embedding", hidden, &w->class_row);
    want(l, (struct end){prefix, "embeddings.position_embedding.weight", END_VECTOR, v->n_row,
                         hidden, &w->positions, 0});
    if (v->tower->has_first_norm)
        want_norm(l, prefix, first, &w->first_norm, &w->first_norm_bias);
    if (v->model->has_last_norm)
        want_norm(l, prefix, last, &w->last_norm, &w->last_norm_bias);
}

static void want_projector(struct loading *l, const char *prefix)
{
    struct vision_weights *w = l->w;
    const struct vision_config *v = l->v;
    const uint32_t hidden = v->layers.hidden_size, text = v->text_size;
    if (v->model->projector == VISION_SHUFFLE) {
        want(l, (struct end){prefix, "modality_projection.proj.weight", END_MATRIX, text,
                             hidden * v->shuffle * v->shuffle, &w->project[0], 0});
        return;
    }
    want(l, (struct end){prefix, "linear_1.weight", END_MATRIX, text, hidden, &w->project[0], 0});
    want(l, (struct end){prefix, "linear_2.weight", END_MATRIX, text, text, &w->project[1], 0});
    if (!v->has_projector_bias)
        return;
    want_vector(l, prefix, "linear_1.bias", text, &w->project_bias[0]);
    want_vector(l, prefix, "linear_2.bias", text, &w->project_bias[1]);
}

/* The first prefix with which the files have the tensor; the first of all if there is none. */
static const char *find_prefix(const struct loading *l, const char *const prefixes[VISION_NAMES],
                               const char *tensor)
{
    char name[ARCH_NAME_MAX];
    for (size_t i = 0; l->files && i < VISION_NAMES && prefixes[i]; i++) {
        snprintf(name, sizeof name, "%s%s", prefixes[i], tensor);
        if (tensor_find(l->files, name))
            return prefixes[i];
    }
    return prefixes[0];
}

static bool has_numbers(const struct tensor *t, const struct end *end)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->n_dim; i++)
        n *= t->shape[i];
    return n == (uint64_t)end->rows * end->cols && (end->cols == 1 || t->shape[0] == end->rows);
}

static FALLIBLE find_end(const struct tensor **out, const struct loading *l, const struct end *end)
{
    char name[ARCH_NAME_MAX];
    snprintf(name, sizeof name, "%s%s", end->prefix, end->name);
    const struct tensor *t = *out = l->files ? tensor_find(l->files, name) : NULL;
    if (!l->files)
        return Q_OK;
    if (!t)
        return q_fail(l->e, Q_NOT_FOUND, "%s: tensor %s is missing",
                      l->o->weights_dir ? l->o->weights_dir : l->o->dir, name);
    if (t->dtype != DT_F32 && t->dtype != DT_F16 && t->dtype != DT_BF16)
        return q_fail(l->e, Q_UNSUPPORTED, "%s: tensor %s is %s, expected F32, F16 or BF16",
                      t->file, name, dtype_name(t->dtype));
    if (!has_numbers(t, end))
        return q_fail(l->e, Q_MISMATCH,
                      "%s: tensor %s has another shape than the %u x %u of config.json", t->file,
                      name, end->rows, end->cols);
    return Q_OK;
}

/* 16-bit numbers stay as they are in float32, which is exact. */
static enum dtype packed_dtype(const struct loading *l, const struct tensor *t)
{
    const enum dtype compute = model_shape(l->w->layers)->compute_dtype;
    return compute != DT_F32 ? compute : t ? t->dtype : DT_F32;
}

static float number_at(const struct tensor *t, size_t i)
{
    uint16_t half;
    float v;
    if (t->dtype == DT_F32) {
        memcpy(&v, (const char *)t->data + i * sizeof v, sizeof v);
        return v;
    }
    memcpy(&half, (const char *)t->data + i * sizeof half, sizeof half);
    return t->dtype == DT_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

/* Dummy numbers: uniform with a deviation of 0.02, by place alone. */
static float dummy_at(const struct end *end, size_t i)
{
    uint32_t h = (uint32_t)i * 0x9e3779b9u + (uint32_t)strlen(end->name) * 0x85ebca6bu;
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    return end->dummy + (float)(int32_t)(h ^ h >> 16) * (0.03464f / 2147483648.0f);
}

static FALLIBLE fill_matrix(const struct loading *l, const struct end *end, const struct tensor *t,
                            void *data)
{
    struct packed *to = end->to;
    const size_t n = (size_t)end->rows * end->cols;
    float *made = t ? NULL : q_alloc(n * sizeof *made);
    if (!t && !made)
        return q_fail(l->e, Q_NO_MEMORY, "%s: out of memory for %s", l->o->dir, end->name);
    for (size_t i = 0; made && i < n; i++)
        made[i] = dummy_at(end, i);
    *to = (struct packed){
        .data = data,
        .n_out = end->rows,
        .n_in = end->cols,
        .dtype = packed_dtype(l, t),
    };
    const struct pack_args a = {
        .dst = data,
        .dst_dtype = to->dtype,
        .src = t ? t->data : made,
        .src_dtype = t ? t->dtype : DT_F32,
        .n_out = end->rows,
        .n_in = end->cols,
        .n_out_total = end->rows,
    };
    l->o->kern->pack(&a, &(struct kern_exec){.nth = 1});
    q_free(made);
    return Q_OK;
}

static void fill_vector(const struct end *end, const struct tensor *t, float *data)
{
    const size_t n = (size_t)end->rows * end->cols;
    for (size_t i = 0; i < n; i++)
        data[i] = t ? number_at(t, i) : dummy_at(end, i);
    *(const float **)end->to = data;
}

static size_t end_bytes(const struct loading *l, const struct end *end, const struct tensor *t)
{
    return end->kind == END_MATRIX ? packed_bytes(packed_dtype(l, t), end->rows, end->cols)
                                   : (size_t)end->rows * end->cols * sizeof(float);
}

static FALLIBLE load_ends(struct loading *l)
{
    struct region_cutter c = {0};
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < l->n && !rc; i++) {
        const struct tensor *t;
        if (!(rc = find_end(&t, l, &l->ends[i])))
            (void)region_cut(&c, 1, end_bytes(l, &l->ends[i], t));
    }
    if (rc || (rc = region_init(&l->w->memory, c.used, "weights of images", l->e)))
        return rc;
    c = (struct region_cutter){.base = l->w->memory.data};
    for (uint32_t i = 0; i < l->n && !rc; i++) {
        const struct end *end = &l->ends[i];
        const struct tensor *t;
        if ((rc = find_end(&t, l, end)))
            return rc;
        void *data = region_cut(&c, 1, end_bytes(l, end, t));
        if (end->kind == END_MATRIX)
            rc = fill_matrix(l, end, t, data);
        else
            fill_vector(end, t, data);
    }
    return rc;
}

static FALLIBLE load(struct loading *l)
{
    static const char patch[] = "embeddings.patch_embedding.weight";
    const char *dir = l->o->weights_dir ? l->o->weights_dir : l->o->dir;
    const bool shuffles = l->v->model->projector == VISION_SHUFFLE;
    enum q_code rc = Q_OK;
    if (l->o->format != LOAD_DUMMY &&
        (rc = tensor_set_open_as(&l->files, dir, load_format_files(l->o->format), l->e)))
        return rc;
    const char *prefix = find_prefix(l, l->v->tower->prefixes, patch);
    make_family(l->w, l->v, prefix);
    if ((rc = load_layers(l->w, l->v, l->o, l->e)))
        return rc;
    want_tower(l, prefix);
    want_projector(l,
                   find_prefix(l, l->v->model->prefixes,
                               shuffles ? "modality_projection.proj.weight" : "linear_1.weight"));
    return load_ends(l);
}

FALLIBLE vision_weights_load(struct vision_weights **out, const struct vision_config *v,
                             const struct model_options *o, struct q_err *e)
{
    struct loading l = {.w = q_calloc(1, sizeof *l.w), .v = v, .o = o, .e = e};
    if (!l.w)
        return q_fail(e, Q_NO_MEMORY, "%s: out of memory for the tower", o->dir);
    const enum q_code rc = load(&l);
    if (l.files)
        tensor_set_free(l.files);
    if (rc)
        vision_weights_free(l.w);
    else
        *out = l.w;
    return rc;
}

void vision_weights_free(struct vision_weights *w)
{
    if (!w)
        return;
    model_free(w->layers);
    region_release(&w->memory);
    q_free(w);
}

uint64_t vision_weights_bytes(const struct vision_weights *w)
{
    return w ? model_shape(w->layers)->weight_bytes + w->memory.size : 0;
}
