/* SPDX-License-Identifier: Apache-2.0 */
/* Losses of rows are computed in f64, a row by one thread; products by the kernels. */
#include "engine/distill/hidden_loss.h"
#include <math.h>
#include <string.h>
#include "common/mem.h"
#include "engine/distill/row_product.h"
#include "engine/distill/row_share.h"

#define NORM_MIN 1e-12 /* product of two norms below which a row counts as one of zeros */

struct hidden_loss {
    struct hidden_options o;
    struct head_weights w;
    uint32_t n_row_max, n_thread;
    size_t scratch_bytes;
    struct region memory;
    double *losses;         /* [n_row_max] */
    float *p;               /* [n_row_max, n_teacher] rows, then their gradients */
    uint16_t *half;         /* bf16: the gradients, rounded; else NULL */
    unsigned char *scratch; /* [n_thread] */
};

struct pass {
    struct hidden_loss *l;
    const struct hidden_rows *rows;
    const struct hidden_grads *grads;
};

uint32_t hidden_projection_rows(const struct hidden_options *o, uint32_t n_student)
{
    return o->kind != HIDDEN_NONE && o->n_teacher != n_student ? o->n_teacher : 0;
}

static bool has_projection(const struct hidden_loss *l)
{
    return l->w.projection.data != NULL;
}

static struct kern_exec exec_of(const struct hidden_loss *l, uint32_t ith, uint32_t nth)
{
    return row_exec(l->scratch, l->scratch_bytes, ith, nth);
}

static void run(const struct hidden_loss *l, team_fn *phase, struct pass *p)
{
    if (l->w.team)
        team_run(l->w.team, phase, p);
    else
        phase(p, 0, 1);
}

/* ---- losses of rows; p becomes its gradient, times scale ---- */

static double mse_row(float *p, const float *t, uint32_t n, double scale)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double d = (double)p[i] - (double)t[i];
        sum += d * d;
        p[i] = (float)(scale * 2 * d / n);
    }
    return sum / n;
}

static double cosine_row(float *p, const float *t, uint32_t n, double scale)
{
    double pp = 0, tt = 0, pt = 0;
    for (uint32_t i = 0; i < n; i++) {
        pp += (double)p[i] * p[i];
        tt += (double)t[i] * t[i];
        pt += (double)p[i] * t[i];
    }
    const double norms = sqrt(pp) * sqrt(tt);
    if (!(norms > NORM_MIN)) {
        memset(p, 0, n * sizeof *p);
        return 1;
    }
    for (uint32_t i = 0; i < n; i++)
        p[i] = (float)(scale * (pt / pp * p[i] - t[i]) / norms);
    return 1 - pt / norms;
}

/* ---- forward ---- */

/* This thread's rows of a, whose y, x and types are set. */
static void convert_rows(const struct hidden_loss *l, struct convert_args a, struct row_share s,
                         struct kern_exec x)
{
    x = row_exec_alone(x);
    a.n_row = s.end - s.begin;
    a.x_stride = a.y_stride = a.n_col = l->o.n_teacher;
    a.x = (const char *)a.x + (size_t)s.begin * a.n_col * (dtype_bits(a.x_dtype) / 8);
    a.y = (char *)a.y + (size_t)s.begin * a.n_col * (dtype_bits(a.y_dtype) / 8);
    if (a.n_row)
        l->w.kern->convert(&a, &x);
}

static void project(const struct pass *p, const struct kern_exec *x)
{
    const struct hidden_loss *l = p->l;
    const struct linear_args a = {
        .y = l->p,
        .y_dtype = DT_F32,
        .x = p->rows->h,
        .x_dtype = l->w.compute,
        .w = l->w.projection,
        .n_row = p->rows->n,
        .x_stride = l->w.hidden,
        .y_stride = l->o.n_teacher,
    };
    l->w.kern->linear(&a, x);
    team_barrier(l->w.team);
}

static void forward(void *arg, uint32_t ith, uint32_t nth)
{
    const struct pass *p = arg;
    struct hidden_loss *l = p->l;
    const struct kern_exec x = exec_of(l, ith, nth);
    const struct row_share s = row_share_of(p->rows->n, &x);
    const size_t n_col = l->o.n_teacher;
    const double scale = l->o.weight / p->rows->n_position;
    const struct convert_args copy = {
        .y = l->p,
        .y_dtype = DT_F32,
        .x = p->rows->h,
        .x_dtype = l->w.compute,
    };
    const struct convert_args round = {
        .y = l->half,
        .y_dtype = DT_BF16,
        .x = l->p,
        .x_dtype = DT_F32,
    };
    if (has_projection(l))
        project(p, &x);
    else
        convert_rows(l, copy, s, x);
    for (uint32_t i = s.begin; i < s.end; i++)
        l->losses[i] = (l->o.kind == HIDDEN_MSE ? mse_row : cosine_row)(
            l->p + i * n_col, p->rows->teacher + i * n_col, l->o.n_teacher, scale);
    if (l->half)
        convert_rows(l, round, s, x);
}

double hidden_loss_forward(struct hidden_loss *l, const struct hidden_rows *rows)
{
    struct pass p = {.l = l, .rows = rows};
    double sum = 0;
    run(l, forward, &p);
    for (uint32_t i = 0; i < rows->n; i++)
        sum += l->losses[i];
    return sum;
}

/* ---- backward ---- */

static void backward(void *arg, uint32_t ith, uint32_t nth)
{
    const struct pass *p = arg;
    const struct hidden_loss *l = p->l;
    const struct hidden_grads *g = p->grads;
    const struct kern_exec x = exec_of(l, ith, nth);
    const struct row_product product = {
        .kern = l->w.kern,
        .compute = l->w.compute,
        .n = g->n,
        .n_in = l->w.hidden,
        .n_out = l->o.n_teacher,
        .dy = l->p,
        .dy_rounded = l->half ? (const void *)l->half : l->p,
        .dy_stride = l->o.n_teacher,
        .rounded_stride = l->o.n_teacher,
        .w_columns = l->w.projection_columns,
        .packed_h = g->packed_h,
        .slices = g->slices,
        .slice_stride = g->slice_stride,
        .accumulate = 1,
        .dh = g->dh,
        .w_grad = l->w.projection_grad,
    };
    if (has_projection(l)) {
        row_product_grad_input(&product, &x);
        row_product_grad_weight(&product, &x);
        return;
    }
    const size_t n = (size_t)g->n * l->w.hidden;
    for (size_t i = n * ith / nth; i < n * (ith + 1) / nth; i++)
        g->dh[i] += l->p[i];
}

void hidden_loss_backward(struct hidden_loss *l, const struct hidden_grads *g)
{
    struct pass p = {.l = l, .grads = g};
    run(l, backward, &p);
}

/* ---- life ---- */

/* Run twice (region_cutter). */
static void cut(struct hidden_loss *l, struct region_cutter *c)
{
    const size_t n = (size_t)l->n_row_max * l->o.n_teacher;
    l->losses = region_cut(c, l->n_row_max, sizeof *l->losses);
    l->p = region_cut(c, n, sizeof *l->p);
    if (l->w.compute == DT_BF16 && has_projection(l))
        l->half = region_cut(c, n, sizeof *l->half);
    l->scratch = region_cut(c, l->n_thread, l->scratch_bytes);
}

FALLIBLE hidden_loss_new(struct hidden_loss **out, const struct head_weights *w,
                         const struct hidden_options *o, uint32_t n_row_max, struct q_err *e)
{
    struct hidden_loss *l = q_calloc(1, sizeof *l);
    struct region_cutter c = {0};
    if (!l)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the loss of hidden states");
    Q_ASSERT((w->projection.data != NULL) == (hidden_projection_rows(o, w->hidden) > 0));
    l->o = *o;
    l->w = *w;
    l->n_row_max = n_row_max;
    l->n_thread = w->team ? team_size(w->team) : 1;
    l->scratch_bytes = row_scratch_bytes();
    cut(l, &c);
    const enum q_code rc = region_init(&l->memory, c.used, "hidden states of a chunk of rows", e);
    if (rc) {
        q_free(l);
        return rc;
    }
    c = (struct region_cutter){.base = l->memory.data};
    cut(l, &c);
    *out = l;
    return Q_OK;
}

void hidden_loss_free(struct hidden_loss *l)
{
    if (!l)
        return;
    region_release(&l->memory);
    q_free(l);
}

uint64_t hidden_loss_bytes(const struct hidden_loss *l)
{
    return l ? l->memory.size : 0;
}
