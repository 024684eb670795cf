/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk of n rows, of which a thread has a share where nothing else is said:
 *
 *     forward    rows of x, one after another -> norm -> h
 *                z = h Wᵀ                                        panels of W
 *     (teacher)  its rows                                        the owner; it may use the team
 *     loss       z -> loss of each row, z = its gradient
 *     backward   dh = z W                                        panels of Wᵀ, or rows
 *                dW += zᵀ h                                      slices of the vocabulary
 *     (hidden)   dh += …                                         hidden_loss.h
 *     norm       dx of the rows; dw += …                         columns
 *
 * z is the largest array and exists once: the loss writes the gradient over the logits, zᵀ exists a
 * slice at a time in each thread (row_product.h). */
#include "engine/distill/loss_head.h"
#include <math.h>
#include <string.h>
#include "common/mem.h"
#include "engine/distill/norm_rows.h"
#include "engine/distill/row_product.h"
#include "engine/distill/row_share.h"

#define CHUNK_BYTES    (32u << 20) /* logits of both models */
#define CHUNK_ROWS_MIN 32u

struct loss_head {
    struct head_weights w;
    struct loss_options o;
    uint32_t n_thread, n_local, chunk; /* n_local: columns of this rank */
    size_t z_stride, half_stride, slice_stride, scratch_bytes;
    struct region memory;
    uint32_t *rows; /* [chunk] of the micro batch */
    int32_t *labels;
    uint32_t *agree;
    double *kd, *ce;
    float *x, *dh;              /* [chunk, hidden] */
    float *r, *mean;            /* [chunk] of the norm; mean: of LayerNorm */
    void *h, *packed_h;         /* [chunk, hidden] in the compute type; packed as weights */
    float *z;                   /* [chunk, n_vocab] */
    float *part, *gathered;     /* tensor parallelism: [chunk, n_local], of all ranks */
    uint16_t *half;             /* bf16: [chunk, n_local] this rank's columns of the gradient */
    void *slices;               /* [n_thread][ROW_PRODUCT_SLICE, chunk] */
    unsigned char *scratch;     /* [n_thread] */
    struct hidden_loss *hidden; /* NULL: not asked for */
};

/* What the threads of a phase read. */
struct chunk {
    struct loss_head *h;
    const float *x; /* of the micro batch */
    float *dx;      /* or NULL */
    uint32_t n;
    double n_position;
    struct teacher_rows teacher; /* z NULL: there is none */
    uint32_t n_teacher, top_k;   /* tokens of the teacher */
    const float *teacher_hidden; /* [n, width of the teacher]; NULL: not asked for */
};

static struct kern_exec exec_of(const struct loss_head *h, uint32_t ith, uint32_t nth)
{
    return row_exec(h->scratch, h->scratch_bytes, ith, nth);
}

static bool is_split(const struct loss_head *h)
{
    return h->w.tensor_parallel.size > 1;
}

/* This rank's columns of the gradient. */
static float *own_columns(const struct loss_head *h)
{
    return h->z + (is_split(h) ? (size_t)h->w.tensor_parallel.rank * h->n_local : 0);
}

/* ---- forward ---- */

static void norm_chunk(const struct chunk *c, struct row_share s, const struct kern_exec *x)
{
    struct loss_head *h = c->h;
    const size_t hidden = h->w.hidden, width = dtype_bits(h->w.compute) / 8;
    for (uint32_t i = s.begin; i < s.end; i++)
        memcpy(h->x + i * hidden, c->x + h->rows[i] * hidden, hidden * sizeof *h->x);
    head_norm(&h->w, (char *)h->h + s.begin * hidden * width, h->x + s.begin * hidden,
              s.end - s.begin, x);
}

static void forward(void *arg, uint32_t ith, uint32_t nth)
{
    const struct chunk *c = arg;
    struct loss_head *h = c->h;
    const struct kern_exec x = exec_of(h, ith, nth), mine = row_exec_alone(x);
    const struct linear_args a = {
        .y = is_split(h) ? h->part : h->z,
        .y_dtype = DT_F32,
        .x = h->h,
        .x_dtype = h->w.compute,
        .w = h->w.w,
        .bias = h->w.bias,
        .n_row = c->n,
        .x_stride = h->w.hidden,
        .y_stride = is_split(h) ? h->n_local : h->z_stride,
    };
    norm_chunk(c, row_share_of(c->n, &x), &mine);
    team_barrier(h->w.team);
    h->w.kern->linear(&a, &x);
}

/* ---- loss ---- */

/* Of the ranks' parts, one after another, the rows of all columns. */
static void join_parts(struct loss_head *h, uint32_t n, struct row_share s)
{
    const size_t n_local = h->n_local;
    for (uint32_t rank = 0; is_split(h) && rank < h->w.tensor_parallel.size; rank++)
        for (uint32_t i = s.begin; i < s.end; i++)
            memcpy(h->z + i * h->z_stride + rank * n_local,
                   h->gathered + (rank * (size_t)n + i) * n_local, n_local * sizeof(float));
}

static void loss_of_rows(const struct chunk *c, struct row_share s, const struct kern_exec *x)
{
    struct loss_head *h = c->h;
    const struct teacher_rows *t = &c->teacher;
    const struct distill_loss_args a = {
        .zs = h->z + s.begin * h->z_stride,
        .zt = t->z ? t->z + s.begin * t->stride : NULL,
        .ids = t->ids ? t->ids + s.begin * t->stride : NULL,
        .labels = h->labels + s.begin,
        .zs_stride = h->z_stride,
        .zt_stride = t->stride,
        .n_row = s.end - s.begin,
        .n_student = h->w.n_vocab,
        .n_teacher = c->n_teacher,
        .kind = h->o.kind,
        .temperature = h->o.temperature,
        .beta = h->o.beta,
        .t2 = h->o.t2,
        .top_k = c->top_k,
        .renorm = h->o.renorm,
        .soft_cap = h->w.soft_cap,
        .kd_weight = h->o.kd_weight,
        .ce_weight = h->o.ce_weight,
        .n_position = c->n_position,
        .kd = h->kd + s.begin,
        .ce = h->ce + s.begin,
        .agree = h->agree + s.begin,
    };
    h->w.kern->distill_loss(&a, x);
}

static void round_rows(const struct loss_head *h, struct row_share s, const struct kern_exec *x)
{
    const struct convert_args a = {
        .y = h->half + s.begin * h->half_stride,
        .y_dtype = DT_BF16,
        .x = own_columns(h) + s.begin * h->z_stride,
        .x_dtype = DT_F32,
        .n_row = s.end - s.begin,
        .n_col = h->n_local,
        .x_stride = h->z_stride,
        .y_stride = h->half_stride,
    };
    h->w.kern->convert(&a, x);
}

static void loss(void *arg, uint32_t ith, uint32_t nth)
{
    const struct chunk *c = arg;
    struct loss_head *h = c->h;
    const struct kern_exec x = exec_of(h, ith, nth), mine = row_exec_alone(x);
    const struct row_share s = row_share_of(c->n, &x);
    if (s.begin == s.end)
        return;
    float *z = h->z + s.begin * h->z_stride;
    join_parts(h, c->n, s);
    head_scale(&h->w, z, h->z_stride, s.end - s.begin, &mine);
    head_cap(&h->w, z, h->z_stride, s.end - s.begin, &mine);
    loss_of_rows(c, s, &mine);
    if (!c->dx)
        return;
    head_scale(&h->w, z, h->z_stride, s.end - s.begin, &mine);
    if (h->half)
        round_rows(h, s, &mine);
}

/* ---- backward ---- */

static void pack_h(const struct chunk *c, const struct kern_exec *x)
{
    const struct loss_head *h = c->h;
    const struct pack_columns_args a = {
        .dst = h->packed_h,
        .dst_dtype = h->w.compute,
        .src = h->h,
        .src_dtype = h->w.compute,
        .n_out = h->w.hidden,
        .n_in = c->n,
        .src_stride = h->w.hidden,
    };
    h->w.kern->pack_columns(&a, x);
}

static struct row_product product_of(const struct chunk *c)
{
    const struct loss_head *h = c->h;
    return (struct row_product){
        .kern = h->w.kern,
        .compute = h->w.compute,
        .n = c->n,
        .n_in = h->w.hidden,
        .n_out = h->n_local,
        .dy = own_columns(h),
        .dy_rounded = h->half ? (const void *)h->half : own_columns(h),
        .dy_stride = h->z_stride,
        .rounded_stride = h->half ? h->half_stride : h->z_stride,
        .w_columns = h->w.w_columns,
        .packed_h = h->packed_h,
        .slices = h->slices,
        .slice_stride = h->slice_stride,
        .dh = h->dh,
        .w_grad = h->w.w_grad,
    };
}

static void backward(void *arg, uint32_t ith, uint32_t nth)
{
    const struct chunk *c = arg;
    struct loss_head *h = c->h;
    const struct kern_exec x = exec_of(h, ith, nth);
    const struct column_sums_args bias = {
        .y = h->w.bias_grad,
        .x = own_columns(h),
        .n_row = c->n,
        .n_unit = 1,
        .n_col = h->n_local,
        .x_stride = h->z_stride,
    };
    const struct row_product product = product_of(c);
    row_product_grad_input(&product, &x);
    pack_h(c, &x);
    team_barrier(h->w.team);
    row_product_grad_weight(&product, &x);
    if (bias.y)
        h->w.kern->column_sums(&bias, &x);
}

/* ---- norm ---- */

/* dx of a row that counts; its mean (of LayerNorm) and its factor are kept. */
static void gradient_of_row(const struct chunk *c, uint32_t i, const struct kern_exec *x)
{
    const struct loss_head *h = c->h;
    const size_t hidden = h->w.hidden;
    const struct layer_norm_grad_args a = {
        .dx = c->dx + h->rows[i] * hidden,
        .dy = h->dh + i * hidden,
        .x = h->x + i * hidden,
        .w = h->w.norm,
        .mean = h->mean + i,
        .r = h->r + i,
        .n_row = 1,
        .n_unit = 1,
        .n_col = h->w.hidden,
        .dx_stride = hidden,
        .dy_stride = hidden,
        .x_stride = hidden,
        .eps = h->w.norm_eps,
    };
    norm_rows_grad(h->w.kern, h->w.is_layer_norm, &a, x);
}

static void gradient_of_norm(void *arg, uint32_t ith, uint32_t nth)
{
    const struct chunk *c = arg;
    struct loss_head *h = c->h;
    const struct kern_exec x = exec_of(h, ith, nth), mine = row_exec_alone(x);
    const struct row_share s = row_share_of(c->n, &x);
    const struct column_sums_args bias = {
        .y = h->w.norm_bias_grad,
        .x = h->dh,
        .n_row = c->n,
        .n_unit = 1,
        .n_col = h->w.hidden,
        .x_stride = h->w.hidden,
    };
    struct column_sums_args sums = bias;
    sums.y = h->w.norm_grad;
    sums.z = h->x;
    sums.z_stride = h->w.hidden;
    sums.r = h->r;
    sums.shift = h->w.is_layer_norm ? h->mean : NULL;
    for (uint32_t i = s.begin; i < s.end; i++) /* rows that are no neighbours in dx */
        gradient_of_row(c, i, &mine);
    team_barrier(h->w.team);
    if (sums.y)
        h->w.kern->column_sums(&sums, &x);
    if (bias.y)
        h->w.kern->column_sums(&bias, &x);
}

/* ---- a chunk, a micro batch ---- */

static void run(const struct loss_head *h, team_fn *phase, struct chunk *c)
{
    if (h->w.team)
        team_run(h->w.team, phase, c);
    else
        phase(c, 0, 1);
}

static FALLIBLE check_top_k(const struct loss_head *h, const struct teacher_source *t,
                            const struct teacher_rows *r, struct q_err *e)
{
    const uint32_t common = t->n_vocab < h->w.n_vocab ? t->n_vocab : h->w.n_vocab;
    const uint32_t k = r->ids ? r->n_col : h->o.top_k;
    if (r->ids && h->o.kind != DISTILL_FKL && !h->o.renorm)
        return q_fail(e, Q_INVALID,
                      "the teacher gives its top %u: of these only forward KL has a value over the "
                      "whole vocabulary; use the student's side renormalised too",
                      k);
    if (r->ids && (k > KERN_TOP_K_MAX || (h->o.top_k && h->o.top_k != k)))
        return q_fail(e, Q_INVALID, "the teacher gives its top %u, the loss takes %u, at most %u",
                      k, h->o.top_k ? h->o.top_k : k, KERN_TOP_K_MAX);
    if (k > common)
        return q_fail(e, Q_INVALID, "top k of %u: teacher and student have %u tokens in common", k,
                      common);
    return Q_OK;
}

static FALLIBLE ask_teacher(struct chunk *c, const struct micro_batch *b,
                            const struct teacher_source *t, struct q_err *e)
{
    enum q_code rc;
    if (!t)
        return Q_OK;
    if ((rc = t->rows(t->ctx, b, c->h->rows, c->n, &c->teacher, e)))
        return rc;
    if (c->h->hidden && !t->hidden)
        return q_fail(e, Q_INVALID, "the teacher gives no hidden states");
    if (c->h->hidden && (rc = t->hidden(t->ctx, b, c->h->rows, c->n, &c->teacher_hidden, e)))
        return rc;
    c->n_teacher = t->n_vocab;
    c->top_k = c->teacher.ids ? c->teacher.n_col : c->h->o.top_k;
    return check_top_k(c->h, t, &c->teacher, e);
}

static void add_sums(const struct chunk *c, struct loss_sums *out)
{
    const struct hidden_rows rows = {c->n, c->h->h, c->teacher_hidden, c->n_position};
    for (uint32_t i = 0; i < c->n; i++) {
        out->kd += c->h->kd[i];
        out->ce += c->h->ce[i];
        out->n_agree += c->h->agree[i];
    }
    out->n_counted += c->n;
    if (c->teacher_hidden)
        out->hidden += hidden_loss_forward(c->h->hidden, &rows);
}

static FALLIBLE run_chunk(struct chunk *c, const struct micro_batch *b,
                          const struct teacher_source *teacher, struct loss_sums *out,
                          struct q_err *e)
{
    struct loss_head *h = c->h;
    const struct tensor_group *g = &h->w.tensor_parallel;
    const struct hidden_grads grads = {c->n, h->dh, h->packed_h, h->slices, h->slice_stride};
    const size_t n = c->n;
    enum q_code rc = Q_OK;
    run(h, forward, c);
    if (is_split(h))
        rc = g->gather(g->ctx, h->part, n * h->n_local, h->gathered, e);
    if (rc || (rc = ask_teacher(c, b, teacher, e)))
        return rc;
    run(h, loss, c);
    add_sums(c, out);
    if (!c->dx)
        return Q_OK;
    run(h, backward, c);
    if (is_split(h) && (rc = g->sum(g->ctx, h->dh, n * h->w.hidden, e)))
        return rc;
    if (c->teacher_hidden)
        hidden_loss_backward(h->hidden, &grads);
    run(h, gradient_of_norm, c);
    return Q_OK;
}

/* The next rows that count, from *from on, which becomes the row behind the last. */
static FALLIBLE take_rows(struct chunk *c, const struct micro_batch *b, uint32_t *from,
                          struct q_err *e)
{
    struct loss_head *h = c->h;
    uint32_t i = *from;
    c->n = 0;
    for (; i < b->n_row && c->n < h->chunk; i++) {
        if (b->labels[i] < 0)
            continue;
        if ((uint32_t)b->labels[i] >= h->w.n_vocab)
            return q_fail(e, Q_INVALID, "label %d of row %u: the student has %u tokens",
                          b->labels[i], i, h->w.n_vocab);
        h->rows[c->n] = i;
        h->labels[c->n++] = b->labels[i];
    }
    *from = i;
    return Q_OK;
}

FALLIBLE loss_head_run(struct loss_head *h, const struct micro_batch *b, const float *x,
                       const struct teacher_source *teacher, double n_position, float *dx,
                       struct loss_sums *out, struct q_err *e)
{
    struct chunk c = {.h = h, .x = x, .dx = dx, .n_position = n_position};
    enum q_code rc = Q_OK;
    *out = (struct loss_sums){0};
    if (dx)
        memset(dx, 0, (size_t)b->n_row * h->w.hidden * sizeof *dx);
    for (uint32_t at = 0; at < b->n_row && !rc;)
        if (!(rc = take_rows(&c, b, &at, e)) && c.n)
            rc = run_chunk(&c, b, teacher, out, e);
    return rc;
}

/* ---- life ---- */

uint32_t loss_head_rows(uint32_t n_vocab)
{
    const uint32_t n = CHUNK_BYTES / (2 * (uint32_t)sizeof(float)) / n_vocab / 16 * 16;
    return n < CHUNK_ROWS_MIN ? CHUNK_ROWS_MIN : n < LOSS_HEAD_ROWS_MAX ? n : LOSS_HEAD_ROWS_MAX;
}

static FALLIBLE check_options(const struct loss_options *o, struct q_err *e)
{
    if (!(o->temperature > 0) || !isfinite(o->temperature))
        return q_fail(e, Q_INVALID, "temperature %g: it must be above 0", (double)o->temperature);
    if (o->kind == DISTILL_JSD && !(o->beta > 0 && o->beta < 1))
        return q_fail(e, Q_INVALID, "beta %g of Jensen-Shannon: it must be between 0 and 1",
                      (double)o->beta);
    const double sum = o->kd_weight + o->ce_weight + o->hidden.weight;
    if (!(o->kd_weight >= 0) || !(o->ce_weight >= 0) || !(o->hidden.weight >= 0) || !isfinite(sum))
        return q_fail(e, Q_INVALID, "weights %g, %g and %g of the losses: all must be 0 or more",
                      o->kd_weight, o->ce_weight, o->hidden.weight);
    if (o->top_k > KERN_TOP_K_MAX)
        return q_fail(e, Q_INVALID, "top k of %u: at most %u", o->top_k, KERN_TOP_K_MAX);
    if (o->top_k && o->kind != DISTILL_FKL && !o->renorm)
        return q_fail(e, Q_INVALID,
                      "top k of %u: over the student's whole vocabulary only forward KL has a "
                      "value; renormalise the student's side too, or take forward KL",
                      o->top_k);
    return Q_OK;
}

/* Run twice (region_cutter). */
static void cut(struct loss_head *h, struct region_cutter *c)
{
    const struct head_weights *w = &h->w;
    const size_t n = h->chunk, width = dtype_bits(w->compute) / 8;
    h->rows = region_cut(c, n, sizeof *h->rows);
    h->labels = region_cut(c, n, sizeof *h->labels);
    h->agree = region_cut(c, n, sizeof *h->agree);
    h->kd = region_cut(c, n, sizeof *h->kd);
    h->ce = region_cut(c, n, sizeof *h->ce);
    h->x = region_cut(c, n * w->hidden, sizeof *h->x);
    h->dh = region_cut(c, n * w->hidden, sizeof *h->dh);
    h->r = region_cut(c, n, sizeof *h->r);
    h->mean = region_cut(c, n, sizeof *h->mean);
    h->h = region_cut(c, n * w->hidden, width);
    h->packed_h = region_cut(c, 1, packed_bytes(w->compute, w->hidden, h->chunk));
    h->slices = region_cut(c, h->n_thread * ROW_PRODUCT_SLICE * h->slice_stride, width);
    h->scratch = region_cut(c, h->n_thread, h->scratch_bytes);
    if (w->compute == DT_BF16)
        h->half = region_cut(c, n * h->half_stride, sizeof *h->half);
    if (is_split(h)) {
        h->part = region_cut(c, n * h->n_local, sizeof *h->part);
        h->gathered = region_cut(c, n * w->n_vocab, sizeof *h->gathered);
    }
    h->z = region_cut(c, n * h->z_stride, sizeof *h->z);
}

static void set_sizes(struct loss_head *h)
{
    const struct head_weights *w = &h->w;
    h->n_thread = w->team ? team_size(w->team) : 1;
    h->n_local = w->n_vocab / (is_split(h) ? w->tensor_parallel.size : 1);
    h->chunk = loss_head_rows(w->n_vocab);
    h->z_stride = row_stride(w->n_vocab, 16);
    h->half_stride = row_stride(h->n_local, 32);
    h->slice_stride = row_stride(h->chunk, w->compute == DT_BF16 ? 32 : 16);
    h->scratch_bytes = row_scratch_bytes();
}

FALLIBLE loss_head_new(struct loss_head **out, const struct head_weights *w,
                       const struct loss_options *o, struct q_err *e)
{
    enum q_code rc = check_options(o, e);
    struct region_cutter c = {0};
    if (rc)
        return rc;
    struct loss_head *h = q_calloc(1, sizeof *h);
    if (!h)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the loss");
    Q_ASSERT(w->n_vocab % (w->tensor_parallel.size ? w->tensor_parallel.size : 1) == 0);
    h->w = *w;
    h->o = *o;
    set_sizes(h);
    cut(h, &c);
    rc = region_init(&h->memory, c.used, "logits of a chunk of rows", e);
    if (!rc && o->hidden.kind != HIDDEN_NONE)
        rc = hidden_loss_new(&h->hidden, w, &o->hidden, h->chunk, e);
    if (rc) {
        loss_head_free(h);
        return rc;
    }
    c = (struct region_cutter){.base = h->memory.data};
    cut(h, &c);
    *out = h;
    return Q_OK;
}

void loss_head_free(struct loss_head *h)
{
    if (!h)
        return;
    hidden_loss_free(h->hidden);
    region_release(&h->memory);
    q_free(h);
}

uint64_t loss_head_bytes(const struct loss_head *h)
{
    return h->memory.size + hidden_loss_bytes(h->hidden);
}
