/* SPDX-License-Identifier: Apache-2.0 */
/* A row's numbers depend on that row alone: products and norms are the kernels', which promise it,
 * and attention goes through the keys in their order. */
#include "engine/model/plugin/host_rows.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "engine/model/forward/acts.h"
#include "engine/model/forward/matmul.h"
#include "engine/model/model_state.h"
#include "engine/model/plugin/plugin_model.h"

#define ALIGN 64u

static const struct kern_exec alone = {.nth = 1};

__attribute__((format(printf, 2, 3))) static int fail(struct quire_plugin_error *error,
                                                      const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    if (error)
        vsnprintf(error->message, sizeof error->message, format, ap);
    va_end(ap);
    return 1;
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- tensors ---- */

static const struct arch_own *find(const struct quire_model *m, const char *id)
{
    const struct arch *a = &m->arch->arch;
    for (uint32_t i = 0; id && i < a->n_own; i++)
        if (strcmp(a->own[i].tensor->id, id) == 0)
            return &a->own[i];
    return NULL;
}

static size_t number_of(const struct quire_model *m, const struct arch_own *own)
{
    return (size_t)(own - m->arch->arch.own);
}

/* A tensor of this kind that the host can read; NULL: why, in error. */
static const struct packed *read_tensor(const struct quire_model *m, const char *id, uint32_t layer,
                                        struct quire_plugin_error *error)
{
    const struct arch_own *own = find(m, id);
    const struct model *loaded = m->model;
    if (!own) {
        fail(error, "there is no tensor \"%.60s\"", id ? id : "NULL");
        return NULL;
    }
    if (!loaded || !loaded->weights.own) {
        fail(error, "tensor %s: the weights are not loaded in this process", id);
        return NULL;
    }
    const size_t i = number_of(m, own);
    if (loaded->link && (loaded->own_read[i / 64] >> i % 64 & 1)) {
        fail(error, "tensor %s is read by the program, so it lies on the device", id);
        return NULL;
    }
    if (own->of_layer && layer >= m->config.n_layer) {
        fail(error, "tensor %s is of each layer, and layer %u does not exist", id, layer);
        return NULL;
    }
    const struct packed *p = &loaded->weights.own[loaded->weights.own_at[i]];
    return p + (own->of_layer ? layer : 0);
}

static const float *read_vector(const struct quire_model *m, const char *id, uint32_t n,
                                struct quire_plugin_error *error)
{
    const struct packed *p = read_tensor(m, id, 0, error);
    if (!p)
        return NULL;
    if (!p->data || find(m, id)->tensor->kind != QUIRE_VECTOR || p->n_out != n) {
        fail(error, "tensor %s is %s, expected a vector of %u", id,
             !p->data ? "not in the checkpoint" : "of another kind or length", n);
        return NULL;
    }
    return p->data;
}

/* A bias of n numbers; NULL where none is named, or an optional one is not in the checkpoint. */
static bool read_bias(const float **out, const struct quire_model *m, const char *id, uint32_t n,
                      struct quire_plugin_error *error)
{
    *out = NULL;
    if (!id)
        return true;
    const struct packed *p = read_tensor(m, id, 0, error);
    if (p && !p->data && (find(m, id)->tensor->flags & QUIRE_TENSOR_OPTIONAL))
        return true;
    *out = p ? read_vector(m, id, n, error) : NULL;
    return *out != NULL;
}

const float *host_tensor(const struct quire_model *m, const char *id, uint32_t layer,
                         uint32_t *n_row, uint32_t *n_col)
{
    struct quire_plugin_error ignored;
    const struct packed *p = read_tensor(m, id, layer, &ignored);
    if (!p || !p->data || find(m, id)->tensor->kind == QUIRE_MATRIX)
        return NULL;
    if (n_row)
        *n_row = p->n_out;
    if (n_col)
        *n_col = p->n_in;
    return p->data;
}

/* ---- products ---- */

/* Bytes of one row as a product reads it: numbers, their scale, their sums. */
static size_t row_bytes(uint32_t n_in)
{
    const size_t stride = round_up(n_in, KERN_INT8_K);
    return stride + round_up(sizeof(struct quant_row), ALIGN) +
           round_up(stride / KERN_INT8_SUM * sizeof(int16_t), ALIGN);
}

/* What the kernels keep while they multiply. */
static size_t kernel_bytes(const struct quire_model *m)
{
    return round_up(kern_scratch_bytes(KERN_BLOCK, m->config.n_head, m->config.head_dim), ALIGN);
}

/* The kernels' part comes first. */
size_t plugin_rows_bytes(const struct quire_model *m)
{
    const struct arch *a = &m->arch->arch;
    size_t most = 0;
    for (uint32_t i = 0; i < a->n_own; i++)
        if (a->own[i].tensor->kind == QUIRE_MATRIX && row_bytes(m->config.own[i].cols) > most)
            most = row_bytes(m->config.own[i].cols);
    return most + kernel_bytes(m);
}

static bool is_rows(const struct quire_rows *r)
{
    return r && r->rows && r->n_col && r->stride >= r->n_col;
}

/* Row i of the product's input, made into bytes in `work`. */
static struct matmul_rows bytes_of(const struct kern_table *k, const struct packed *w,
                                   const struct quire_rows *in, uint32_t i, unsigned char *work)
{
    const size_t stride = round_up(w->n_in, KERN_INT8_K);
    const struct matmul_rows to = {
        .x = work,
        .stride = stride,
        .dtype = DT_I8,
        .rows = (void *)(work + stride),
        .sums =
            w->group ? (void *)(work + stride + round_up(sizeof(struct quant_row), ALIGN)) : NULL,
    };
    const struct matmul_source from = {
        .x = in->rows + i * in->stride,
        .stride = in->stride,
        .n_row = 1,
        .n_col = w->n_in,
        .order = w->order,
    };
    matmul_quantize(k, &to, &from, &alone);
    return to;
}

static void multiply(const struct quire_model *m, const struct packed *w, const float *bias,
                     const struct quire_rows *in, const struct quire_rows *out)
{
    const struct kern_table *k = m->model->host_kern;
    const bool bytes = w->group || matmul_reads_bytes(w->dtype);
    const uint32_t step = bytes ? 1 : in->n;
    const size_t n_kernel = kernel_bytes(m);
    unsigned char *work = plugin_work_now()->rows;
    const struct kern_exec here = {.nth = 1, .scratch = work, .scratch_bytes = n_kernel};
    for (uint32_t i = 0; i < in->n; i += step) {
        struct matmul_rows x = {.x = in->rows, .stride = in->stride, .dtype = DT_F32};
        if (bytes)
            x = bytes_of(k, w, in, i, work + n_kernel);
        const struct matmul a = {
            .w = w,
            .bias = bias,
            .x = &x,
            .y = out->rows + i * out->stride,
            .y_dtype = DT_F32,
            .y_stride = out->stride,
            .n_row = step,
        };
        matmul_run(k, &a, &here);
    }
}

int host_linear(const struct quire_model *m, const char *matrix, const char *bias,
                const struct quire_rows *in, const struct quire_rows *out,
                struct quire_plugin_error *error)
{
    const struct packed *w = read_tensor(m, matrix, 0, error);
    const float *b = NULL;
    if (!w)
        return 1;
    if (!w->data || find(m, matrix)->tensor->kind != QUIRE_MATRIX || find(m, matrix)->of_layer)
        return fail(error, "linear: tensor %s is %s", matrix,
                    w->data ? "no matrix of the model's own" : "not in the checkpoint");
    if (!is_rows(in) || !is_rows(out) || in->n != out->n || in->n_col != w->n_in ||
        out->n_col != w->n_out)
        return fail(error,
                    "linear: %s is [%u, %u], its input has %u rows of %u, its output %u of %u",
                    matrix, w->n_out, w->n_in, in ? in->n : 0, in ? in->n_col : 0, out ? out->n : 0,
                    out ? out->n_col : 0);
    if (!read_bias(&b, m, bias, w->n_out, error))
        return 1;
    const struct plugin_work *work = plugin_work_now();
    if (!work || !work->rows)
        return fail(error, "linear: only embed_item multiplies");
    multiply(m, w, b, in, out);
    return 0;
}

/* ---- norms, activations ---- */

int host_layer_norm(const struct quire_model *m, const char *weight, const char *bias, double eps,
                    const struct quire_rows *rows, struct quire_plugin_error *error)
{
    if (!is_rows(rows))
        return fail(error, "layer_norm: no rows");
    const float *w = read_vector(m, weight, rows->n_col, error);
    const float *b;
    if (!w || !read_bias(&b, m, bias, rows->n_col, error))
        return 1;
    const struct layer_norm_args a = {
        .y = rows->rows,
        .y_dtype = DT_F32,
        .x = rows->rows,
        .w = w,
        .b = b,
        .n_row = rows->n,
        .n_col = rows->n_col,
        .x_stride = rows->stride,
        .y_stride = rows->stride,
        .eps = (float)eps,
    };
    m->model->host_kern->layer_norm(&a, &alone);
    return 0;
}

int host_rms_norm(const struct quire_model *m, const char *weight, double eps,
                  const struct quire_rows *rows, struct quire_plugin_error *error)
{
    if (!is_rows(rows))
        return fail(error, "rms_norm: no rows");
    const float *w = read_vector(m, weight, rows->n_col, error);
    if (!w)
        return 1;
    const struct rms_norm_args a = {
        .y = rows->rows,
        .y_dtype = DT_F32,
        .x = rows->rows,
        .w = w,
        .n_row = rows->n,
        .n_col = rows->n_col,
        .x_stride = rows->stride,
        .y_stride = rows->stride,
        .eps = (float)eps,
    };
    m->model->host_kern->rms_norm(&a, &alone);
    return 0;
}

/* The kernel's output may not overlap its input. */
static void activate_row(const struct kern_table *k, enum kern_act act, float *row, uint32_t n)
{
    float x[256];
    const uint32_t step = sizeof x / sizeof *x;
    for (uint32_t at = 0; at < n; at += step) {
        const uint32_t part = n - at < step ? n - at : step;
        memcpy(x, row + at, part * sizeof *x);
        const struct activate_args a = {
            .act = act,
            .y = row + at,
            .y_dtype = DT_F32,
            .x = x,
            .n_row = 1,
            .n_col = part,
            .x_stride = part,
            .y_stride = part,
        };
        k->activate(&a, &alone);
    }
}

int host_activate(const char *activation, const struct quire_rows *rows,
                  struct quire_plugin_error *error)
{
    const struct quire_model *m = plugin_model_now();
    enum arch_activation act;
    if (!is_rows(rows) || !m || !m->model)
        return fail(error, "activate: no rows, or not within embed_item");
    if (!activation || !arch_activation_parse(&act, activation) || act == ARCH_XIELU)
        return fail(error,
                    "activate: \"%.40s\" is none; these are silu, gelu, gelu_new, gelu_fast, "
                    "gelu_pytorch_tanh, quick_gelu, relu and relu2",
                    activation ? activation : "NULL");
    for (uint32_t i = 0; i < rows->n; i++)
        activate_row(m->model->host_kern, act_of(act), rows->rows + i * rows->stride, rows->n_col);
    return 0;
}

/* ---- attention ---- */

static float dot(const float *a, const float *b, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* The largest score so far and the sum of exponentials below it are kept, so that no row of scores
 * needs memory. Source: arXiv:1805.02867. */
static void attend_row(const float *q, const struct quire_rows *k, const struct quire_rows *v,
                       float scale, float *out)
{
    float most = -INFINITY, sum = 0;
    memset(out, 0, v->n_col * sizeof *out);
    for (uint32_t j = 0; j < k->n; j++) {
        const float score = dot(q, k->rows + j * k->stride, k->n_col) * scale;
        const float now = score > most ? score : most;
        const float keep = expf(most - now), add = expf(score - now);
        for (uint32_t c = 0; c < v->n_col; c++)
            out[c] = out[c] * keep + add * v->rows[j * v->stride + c];
        sum = sum * keep + add;
        most = now;
    }
    for (uint32_t c = 0; c < v->n_col; c++)
        out[c] /= sum;
}

/* From the first number of the first row to the last of the last. */
static size_t extent(const struct quire_rows *r)
{
    return r->n ? ((r->n - 1) * r->stride + r->n_col) * sizeof(float) : 0;
}

static bool overlap(const struct quire_rows *a, const struct quire_rows *b)
{
    const uintptr_t a_at = (uintptr_t)a->rows, b_at = (uintptr_t)b->rows;
    return a_at < b_at + extent(b) && b_at < a_at + extent(a);
}

int host_attend(const struct quire_rows *q, const struct quire_rows *k, const struct quire_rows *v,
                double scale, const struct quire_rows *out, struct quire_plugin_error *error)
{
    if (!is_rows(q) || !is_rows(k) || !is_rows(v) || !is_rows(out) || q->n_col != k->n_col ||
        k->n != v->n || k->n == 0 || out->n != q->n || out->n_col != v->n_col)
        return fail(error, "attend: rows of q, k, v and out do not fit each other");
    if (overlap(out, q) || overlap(out, k) || overlap(out, v))
        return fail(error, "attend: out overlaps q, k or v; give it rows of its own");
    for (uint32_t i = 0; i < q->n; i++)
        attend_row(q->rows + i * q->stride, k, v, (float)scale, out->rows + i * out->stride);
    return 0;
}
