/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/vision/vision_weights.h"
#include <stdio.h>
#include <string.h>
#include "common/mem.h"
#include "engine/model/load/weight_names.h"
#include "engine/model/model_state.h"

/* ---- the layers ---- */

static const struct arch_layer layer = {
    .norm = ARCH_NORM_LAYER,
    .positions = ARCH_NO_POSITIONS,
    .mlp = ARCH_MLP_PLAIN,
    .activations = ARCH_ACTS_GELU | 1u << ARCH_SILU | 1u << ARCH_RELU,
    .bidirectional = true,
};

static void make_family(struct vision_weights *w, const struct vision_config *v, const char *prefix)
{
    const struct vision_tower *t = v->tower;
    Q_ASSERT(t->n_layer_tensor <= VISION_LAYER_TENSORS);
    for (uint32_t i = 0; i < t->n_layer_tensor; i++) {
        snprintf(w->names[i], sizeof w->names[i], "%s%s", prefix, t->layer[i].name);
        w->tensors[i] = t->layer[i];
        w->tensors[i].name = w->names[i];
    }
    w->arch = (struct arch){
        .name = t->type,
        .tensors = w->tensors,
        .n_tensor = t->n_layer_tensor,
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
    const char *prefix, *name, *end;
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

/* The first product of each projector. */
static const char *const projectors[] = {
    [VISION_MLP] = "linear_1",
    [VISION_SHUFFLE] = "modality_projection.proj",
    [VISION_SHUFFLE_MLP] = "linear_1",
};

static void want(struct loading *l, struct end end)
{
    Q_ASSERT(l->n < ENDS_MAX);
    l->ends[l->n++] = end;
}

/* NAME.weight and NAME.bias of a norm of n columns. */
static void want_norm(struct loading *l, const char *prefix, const char *name, uint32_t n,
                      const float *to[2])
{
    want(l, (struct end){prefix, name, ".weight", END_VECTOR, n, 1, &to[0], 1});
    want(l, (struct end){prefix, name, ".bias", END_VECTOR, n, 1, &to[1], 0});
}

struct product_end { /* of [rows, cols] */
    const char *prefix, *name;
    uint32_t rows, cols;
    struct packed *to;
    const float **bias; /* NULL: none */
};

static void want_product(struct loading *l, const struct product_end *p)
{
    want(l, (struct end){p->prefix, p->name, ".weight", END_MATRIX, p->rows, p->cols, p->to, 0});
    if (p->bias)
        want(l, (struct end){p->prefix, p->name, ".bias", END_VECTOR, p->rows, 1, p->bias, 0});
}

static void want_tower(struct loading *l, const char *prefix)
{
    struct vision_weights *w = l->w;
    const struct vision_config *v = l->v;
    const struct vision_tower *t = v->tower;
    const uint32_t hidden = v->layers.hidden_size;
    const float **bias = t->has_patch_bias ? &w->patch_bias : NULL;
    want_product(l, &(struct product_end){prefix, t->patch, hidden, v->n_patch, &w->patch, bias});
    if (t->class_row)
        want(l, (struct end){prefix, t->class_row, "", END_VECTOR, hidden, 1, &w->class_row, 0});
    want(l, (struct end){prefix, t->positions, "", END_VECTOR, v->n_row, hidden, &w->positions, 0});
    if (t->first_norm)
        want_norm(l, prefix, t->first_norm, hidden, w->first_norm);
    if (v->model->has_last_norm)
        want_norm(l, prefix, t->last_norm, hidden, w->last_norm);
}

static void want_projector(struct loading *l, const char *prefix)
{
    struct vision_weights *w = l->w;
    const struct vision_config *v = l->v;
    const uint32_t n = v->layers.hidden_size * v->shuffle * v->shuffle, text = v->text_size;
    const bool has_bias = v->has_projector_bias;
    const char *first = projectors[v->model->projector];
    if (v->model->projector == VISION_SHUFFLE_MLP)
        want_norm(l, prefix, "layer_norm", n, w->shuffled_norm);
    want_product(l, &(struct product_end){prefix, first, text, n, &w->project[0],
                                          has_bias ? &w->project_bias[0] : NULL});
    if (v->model->projector != VISION_SHUFFLE)
        want_product(l, &(struct product_end){prefix, "linear_2", text, text, &w->project[1],
                                              has_bias ? &w->project_bias[1] : NULL});
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
    const bool is_row = t->n_dim && (t->shape[0] == end->rows || t->shape[0] == 1);
    return n == (uint64_t)end->rows * end->cols && (end->cols == 1 || is_row);
}

static FALLIBLE find_end(const struct tensor **out, const struct loading *l, const struct end *end)
{
    char name[ARCH_NAME_MAX];
    snprintf(name, sizeof name, "%s%s%s", end->prefix, end->name, end->end);
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
        data[i] = t ? tensor_number(t, i) : dummy_at(end, i);
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
    char patch[ARCH_NAME_MAX], project[ARCH_NAME_MAX];
    const char *dir = l->o->weights_dir ? l->o->weights_dir : l->o->dir;
    enum q_code rc = Q_OK;
    if (l->o->format != LOAD_DUMMY &&
        (rc = tensor_set_open_as(&l->files, dir, load_format_files(l->o->format), l->e)))
        return rc;
    snprintf(patch, sizeof patch, "%s.weight", l->v->tower->patch);
    snprintf(project, sizeof project, "%s.weight", projectors[l->v->model->projector]);
    const char *prefix = find_prefix(l, l->v->tower->prefixes, patch);
    make_family(l->w, l->v, prefix);
    if ((rc = load_layers(l->w, l->v, l->o, l->e)))
        return rc;
    want_tower(l, prefix);
    want_projector(l, find_prefix(l, l->v->model->prefixes, project));
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
