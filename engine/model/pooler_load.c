/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors of a pooler's layers: of a classifier in the model's files, of each Dense in the
 * files of its own folder, where they are named linear.weight and linear.bias. */
#include <limits.h>
#include <string.h>
#include "common/hub/safetensors.h"
#include "common/mem.h"
#include "engine/model/pooler_internal.h"

struct loader {
    struct pooler *p;
    const struct tensor_set *files; /* NULL: dummy */
    const char *dir;
    struct q_err *e;
};

static enum q_code check_shape(const struct loader *l, const struct tensor *t, uint32_t n_row,
                               uint32_t n_col)
{
    const bool is_vector = n_col == 0;
    const bool fits = t->n_dim == (is_vector ? 1u : 2u) && t->shape[0] == n_row &&
                      (is_vector || t->shape[1] == n_col);
    if (t->dtype != DT_F32 && t->dtype != DT_F16 && t->dtype != DT_BF16)
        return q_fail(l->e, Q_MISMATCH, "%s: tensor %s has dtype %s, expected F32, F16 or BF16",
                      t->file, t->name, dtype_name(t->dtype));
    if (fits)
        return Q_OK;
    return is_vector
               ? q_fail(l->e, Q_MISMATCH,
                        "%s: tensor %s has %u dimensions, the first %llu, "
                        "expected [%u]",
                        t->file, t->name, t->n_dim, (unsigned long long)t->shape[0], n_row)
               : q_fail(l->e, Q_MISMATCH, "%s: tensor %s has shape [%llu, %llu], expected [%u, %u]",
                        t->file, t->name, (unsigned long long)t->shape[0],
                        (unsigned long long)(t->n_dim > 1 ? t->shape[1] : 0), n_row, n_col);
}

/* Dummy numbers in -0.05 … 0.05. */
static float dummy(size_t i)
{
    return (float)((i * 2654435761u >> 8) % 1000) * 1e-4f - 0.05f;
}

/* n_col 0: a vector. */
static enum q_code read_tensor(float **out, const struct loader *l, const char *name,
                               uint32_t n_row, uint32_t n_col)
{
    const size_t n = (size_t)n_row * (n_col ? n_col : 1);
    const struct tensor *t = l->files ? tensor_find(l->files, name) : NULL;
    enum q_code rc;
    if (l->files && !t)
        return q_fail(l->e, Q_NOT_FOUND, "%s: tensor %s is missing, expected shape [%u%s%u]",
                      l->dir, name, n_row, n_col ? ", " : " x ", n_col ? n_col : 1);
    if (t && (rc = check_shape(l, t, n_row, n_col)))
        return rc;
    if (!(*out = q_alloc(n * sizeof **out)))
        return q_fail(l->e, Q_NO_MEMORY, "out of memory for %s", name);
    for (size_t i = 0; i < n; i++)
        (*out)[i] = t ? tensor_number(t, i) : dummy(i);
    return Q_OK;
}

struct wanted {
    const char *name, *norm; /* norm NULL: none */
    uint32_t n_in, n_out;
    enum arch_head_bias bias;
    enum pooling_act act;
};

static enum q_code add_layer(const struct loader *l, const struct wanted *w)
{
    char name[ARCH_NAME_MAX];
    struct pooler_layer *to = &l->p->layers[l->p->n_layer++];
    enum q_code rc;
    *to = (struct pooler_layer){.n_in = w->n_in, .n_out = w->n_out, .act = w->act};
    snprintf(name, sizeof name, "%s.weight", w->name);
    if ((rc = read_tensor(&to->weight, l, name, w->n_out, w->n_in)))
        return rc;
    snprintf(name, sizeof name, "%s.bias", w->name);
    const bool has_bias = w->bias == ARCH_HEAD_BIAS || (w->bias == ARCH_HEAD_MAY_BIAS && l->files &&
                                                        tensor_find(l->files, name));
    if (has_bias && (rc = read_tensor(&to->bias, l, name, w->n_out, 0)))
        return rc;
    if (!w->norm)
        return Q_OK;
    snprintf(name, sizeof name, "%s.weight", w->norm);
    return read_tensor(&to->norm, l, name, w->n_out, 0);
}

static enum q_code load_classifier(struct loader *l, const struct pooler_args *a)
{
    const struct arch_head *head = arch_heads(a->arch);
    struct tensor_set *files = NULL;
    enum q_code rc = Q_OK;
    l->dir = a->dir;
    if (a->format != LOAD_DUMMY)
        rc = tensor_set_open_as(&files, a->dir, load_format_files(a->format), l->e);
    l->files = files;
    for (uint32_t i = 0; i < ARCH_HEAD_LAYERS && head[i].name && !rc; i++) {
        const bool is_last = i + 1 == ARCH_HEAD_LAYERS || !head[i + 1].name;
        rc = add_layer(l, &(struct wanted){
                              .name = head[i].name,
                              .norm = head[i].norm,
                              .n_in = a->config->hidden_size,
                              .n_out = is_last ? a->pooling->n_out : a->config->hidden_size,
                              .bias = head[i].bias,
                              .act = head[i].act,
                          });
    }
    tensor_set_free(files);
    return rc;
}

static enum q_code load_dense(struct loader *l, const struct pooler_args *a,
                              const struct pooling_dense *d)
{
    char dir[PATH_MAX];
    struct tensor_set *files = NULL;
    enum q_code rc = path_join(dir, sizeof dir, a->dir, d->path, l->e);
    l->dir = dir;
    if (!rc && a->format != LOAD_DUMMY)
        rc = tensor_set_open(&files, dir, l->e);
    l->files = files;
    if (!rc)
        rc = add_layer(l, &(struct wanted){
                              .name = "linear",
                              .n_in = d->n_in,
                              .n_out = d->n_out,
                              .bias = d->has_bias ? ARCH_HEAD_BIAS : ARCH_HEAD_NO_BIAS,
                              .act = d->act,
                          });
    tensor_set_free(files);
    l->dir = NULL;
    l->files = NULL;
    return rc;
}

FALLIBLE pooler_new(struct pooler **out, const struct pooler_args *a, struct q_err *e)
{
    struct pooler *p = q_calloc(1, sizeof *p);
    struct loader l = {.p = p, .e = e};
    enum q_code rc = Q_OK;
    if (!p)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a pooler");
    p->n_in = p->width = a->config->hidden_size;
    p->n_out = a->pooling->n_out;
    p->act = a->pooling->act;
    p->eps = (float)a->config->rms_norm_eps;
    if (a->pooling->makes == ARCHS_CLASSIFIES)
        rc = load_classifier(&l, a);
    for (uint32_t i = 0; i < a->pooling->n_dense && !rc; i++)
        rc = load_dense(&l, a, &a->pooling->dense[i]);
    for (uint32_t i = 0; i < p->n_layer; i++)
        p->width = p->layers[i].n_out > p->width ? p->layers[i].n_out : p->width;
    if (rc)
        pooler_free(p);
    else
        *out = p;
    return rc;
}

void pooler_free(struct pooler *p)
{
    for (uint32_t i = 0; p && i < p->n_layer; i++) {
        q_free(p->layers[i].weight);
        q_free(p->layers[i].bias);
        q_free(p->layers[i].norm);
    }
    q_free(p);
}
