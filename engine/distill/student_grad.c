/* SPDX-License-Identifier: Apache-2.0 */
/* The gradients of a backward pass; formulas: kernels/ops/ops_train.h.
 *
 * Of a product y = x Wᵀ + b:  dx = dy W, with W packed by columns once after each update;
 * dW += dyᵀ x in pieces of STUDENT_GRAD_ROWS rows, each transposed and packed; db += sums of dy. */
#include <math.h>
#include <string.h>
#include "engine/distill/norm_rows.h"
#include "engine/distill/student_internal.h"
#include "engine/model/forward/acts.h"

/* ---- products ---- */

struct product { /* the gradient of one */
    struct student_run *r;
    const struct train_step *step;
    struct student_rows x, dy;
    struct student_weight w;
    struct student_rows rounded; /* dy as products read it */
};

static struct product product_of(struct student_run *r, const struct train_step *step)
{
    const struct student *s = r->s;
    struct product p = {
        .r = r,
        .step = step,
        .x = student_rows_of(r, step->in[0]),
        .dy = student_rows_of(r, step->d_out),
        .w = student_weight_of(s, step->op->weight, step->op->layer),
    };
    p.rounded = p.dy;
    if (s->compute == DT_BF16)
        p.rounded = (struct student_rows){(char *)s->rounded, step->d_out.n_col + 32u, DT_BF16};
    return p;
}

static void round_gradient(const struct product *p)
{
    const struct student_part rows = student_part_of(p->r);
    const struct convert_args a = {
        .y = (uint16_t *)(void *)p->rounded.x + rows.at * p->rounded.stride,
        .x = student_floats(&p->dy, rows.at),
        .y_dtype = DT_BF16,
        .x_dtype = DT_F32,
        .n_row = rows.n,
        .n_col = p->step->d_out.n_col,
        .x_stride = p->dy.stride,
        .y_stride = p->rounded.stride,
    };
    if (p->rounded.dtype == DT_BF16 && rows.n)
        p->r->s->kern->convert(&a, &p->r->mine);
}

static struct student_rows rows_of_exchange(const struct student *s, size_t stride)
{
    return (struct student_rows){(char *)s->exchange, stride, DT_F32};
}

static void grad_of_input(const struct product *p)
{
    struct student_run *r = p->r;
    const struct student *s = r->s;
    const struct student_part rows = student_part_of(r);
    const struct student_rows dx = student_rows_of(r, p->step->d_in[0]);
    const bool is_divided = student_is_divided(s, p->w.param);
    const bool is_apart = is_divided && p->step->accumulate; /* a sum of parts, then onto dx */
    const struct student_rows to = is_apart ? rows_of_exchange(s, dx.stride) : dx;
    const struct linear_args a = {
        .y = student_floats(&to, rows.at),
        .y_dtype = DT_F32,
        .x = p->rounded.x + rows.at * p->rounded.stride * (dtype_bits(p->rounded.dtype) / 8),
        .x_dtype = p->rounded.dtype,
        .w = p->w.pack->columns,
        .n_row = rows.n,
        .x_stride = p->rounded.stride,
        .y_stride = to.stride,
        .accumulate = p->step->accumulate && !is_apart,
    };
    if (rows.n)
        s->kern->linear(&a, &r->mine);
    if (!is_divided)
        return;
    student_meet(r);
    student_sum(r, student_floats(&to, 0), r->n * to.stride);
    const struct add_rows_args onto = {
        .y = student_floats(&dx, rows.at),
        .x = student_floats(&to, rows.at),
        .n_row = rows.n,
        .n_col = p->step->d_in[0].n_col,
        .x_stride = to.stride,
        .y_stride = dx.stride,
        .scale = 1,
    };
    if (is_apart)
        s->kern->add_rows(&onto, &r->mine);
}

static size_t across_stride(void)
{
    return STUDENT_GRAD_ROWS + 32;
}

/* The block's rows of dy and x as the product of the gradient reads them. */
static void turn_rows(const struct product *p)
{
    const struct student_run *r = p->r;
    const struct student *s = r->s;
    const struct transpose_args dy = {
        .y = s->across,
        .x = student_floats(&p->dy, 0),
        .y_dtype = s->compute,
        .x_dtype = DT_F32,
        .n_row = r->n,
        .n_col = p->step->d_out.n_col,
        .x_stride = p->dy.stride,
        .y_stride = across_stride(),
    };
    const struct pack_columns_args x = {
        .dst = s->factor,
        .dst_dtype = s->compute,
        .src = p->x.x,
        .src_dtype = p->x.dtype,
        .n_out = p->w.param->n_col,
        .n_in = r->n,
        .src_stride = p->x.stride,
    };
    s->kern->transpose(&dy, &r->x);
    s->kern->pack_columns(&x, &r->x);
}

/* Rows of the matrix's gradient: += those of the block's rows of dy and x. A thread has some of the
 * matrix's rows: panels of its columns may be few. */
static void multiply_rows(const struct product *p, const struct param_tensor *t, float *to)
{
    const struct student_run *r = p->r;
    const struct student *s = r->s;
    const size_t width = dtype_bits(s->compute) / 8;
    const uint32_t at = (uint32_t)((uint64_t)t->n_row * r->x.ith / r->x.nth);
    const uint32_t end = (uint32_t)((uint64_t)t->n_row * (r->x.ith + 1) / r->x.nth);
    const struct linear_args a = {
        .y = to + (size_t)at * t->n_col,
        .y_dtype = DT_F32,
        .x = s->across + (t->row + at) * across_stride() * width,
        .x_dtype = s->compute,
        .w = {.data = s->factor, .n_out = t->n_col, .n_in = r->n, .dtype = s->compute},
        .n_row = end - at,
        .x_stride = across_stride(),
        .y_stride = t->n_col,
        .accumulate = 1,
    };
    if (end > at)
        s->kern->linear(&a, &r->mine);
}

/* Ranks that share heads of K and V add up their parts of them. */
static bool is_apart(const struct student *s, const struct param *p, const struct param_tensor *t)
{
    return t->n_sharing > 1 && student_is_divided(s, p);
}

static void clear(struct student_run *r, float *x, size_t n)
{
    if (r->x.ith == 0)
        memset(x, 0, n * sizeof *x);
}

static void grad_of_matrix(const struct product *p)
{
    struct student_run *r = p->r;
    const struct student *s = r->s;
    const struct param *m = p->w.param;
    bool any_apart = false;
    for (uint32_t i = 0; i < m->n_tensor; i++)
        any_apart = any_apart || is_apart(s, m, &m->tensors[i]);
    if (any_apart)
        clear(r, s->exchange, (size_t)m->n_row * m->n_col);
    turn_rows(p);
    student_meet(r);
    for (uint32_t i = 0; i < m->n_tensor; i++) {
        const struct param_tensor *t = &m->tensors[i];
        multiply_rows(p, t, (is_apart(s, m, t) ? s->exchange : p->w.g) + (size_t)t->row * t->n_col);
    }
    student_meet(r);
    for (uint32_t i = 0; i < m->n_tensor && any_apart; i++)
        if (is_apart(s, m, &m->tensors[i]))
            student_add_shared(r, m, p->w.g, &m->tensors[i]);
}

static void grad_of_bias(const struct product *p)
{
    struct student_run *r = p->r;
    const struct student *s = r->s;
    const struct student_weight bias = student_weight_of(s, p->step->op->bias, p->step->op->layer);
    bool any_apart = false;
    if (!bias.param)
        return;
    for (uint32_t i = 0; i < bias.param->n_tensor; i++)
        any_apart = any_apart ||
                    (bias.param->tensors[i].n_sharing > 1 && student_is_divided(s, p->w.param));
    if (any_apart)
        clear(r, s->exchange, bias.param->n_row);
    student_meet(r);
    for (uint32_t i = 0; i < bias.param->n_tensor; i++) {
        const struct param_tensor *t = &bias.param->tensors[i];
        const bool apart = any_apart && t->n_sharing > 1;
        const struct column_sums_args a = {
            .y = (apart ? s->exchange : bias.g) + t->row,
            .x = student_floats(&p->dy, 0) + t->row,
            .n_row = r->n,
            .n_unit = 1,
            .n_col = t->n_row,
            .x_stride = p->dy.stride,
        };
        s->kern->column_sums(&a, &r->x);
    }
    student_meet(r);
    for (uint32_t i = 0; i < bias.param->n_tensor && any_apart; i++)
        if (bias.param->tensors[i].n_sharing > 1)
            student_add_shared(r, bias.param, bias.g, &bias.param->tensors[i]);
}

static void matmul_grad(struct student_run *r, const struct train_step *step)
{
    const struct product p = product_of(r, step);
    round_gradient(&p);
    grad_of_input(&p);
    student_meet(r); /* from here on threads read each other's rows */
    grad_of_matrix(&p);
    grad_of_bias(&p);
    student_meet(r);
}

/* ---- norms ---- */

/* A norm of heads that the ranks divide: each has a part of the sum of its weight's gradient. */
static bool is_of_heads(const struct student *s, const struct program_op *op)
{
    return s->group.size > 1 && (op->weight == PROGRAM_W_Q_NORM || op->weight == PROGRAM_W_K_NORM);
}

struct norm { /* the gradient of one */
    struct student_run *r;
    const struct train_step *step;
    struct student_rows x, dy, dx;
    uint32_t n_unit;
    size_t at; /* of its factors in unit_r and unit_mean */
};

/* dx of this thread's rows; the mean (of a LayerNorm) and the factor of each unit are kept. */
static void grad_of_rows(const struct norm *m, const float *w)
{
    const struct student *s = m->r->s;
    const struct program_op *op = m->step->op;
    const struct student_part p = student_part_of(m->r);
    const struct layer_norm_grad_args a = {
        .dx = student_floats(&m->dx, p.at),
        .accumulate = m->step->accumulate,
        .dy = student_floats(&m->dy, p.at),
        .x = student_floats(&m->x, p.at),
        .w = w,
        .mean = s->unit_mean + m->at + (size_t)p.at * m->n_unit,
        .r = s->unit_r + m->at + (size_t)p.at * m->n_unit,
        .n_row = p.n,
        .n_unit = m->n_unit,
        .n_col = op->norm.unit,
        .dx_stride = m->dx.stride,
        .dy_stride = m->dy.stride,
        .x_stride = m->x.stride,
        .eps = op->norm.eps,
    };
    norm_rows_grad(s->kern, op->norm.kind == ARCH_NORM_LAYER, &a, &m->r->mine);
}

/* Sums over the block's rows: of the weight, and of the bias where there is one. */
static void grad_of_weight(const struct norm *m, float *to, float *bias)
{
    const struct student *s = m->r->s;
    const struct program_op *op = m->step->op;
    const struct column_sums_args of_bias = {
        .y = bias,
        .x = student_floats(&m->dy, 0),
        .n_row = m->r->n,
        .n_unit = m->n_unit,
        .n_col = op->norm.unit,
        .x_stride = m->dy.stride,
    };
    struct column_sums_args of_weight = of_bias;
    of_weight.y = to;
    of_weight.z = student_floats(&m->x, 0);
    of_weight.z_stride = m->x.stride;
    of_weight.r = s->unit_r + m->at;
    of_weight.shift = op->norm.kind == ARCH_NORM_LAYER ? s->unit_mean + m->at : NULL;
    if (to)
        s->kern->column_sums(&of_weight, &m->r->x);
    if (bias)
        s->kern->column_sums(&of_bias, &m->r->x);
}

/* One of the units that have weights of their own. */
static struct norm unit_of(struct student_run *r, const struct train_step *step, uint32_t i)
{
    const uint32_t unit = step->op->norm.unit;
    struct norm m = {
        .r = r,
        .step = step,
        .x = student_rows_of(r, step->in[0]),
        .dy = student_rows_of(r, step->d_out),
        .dx = student_rows_of(r, step->d_in[0]),
        .n_unit = 1,
        .at = (size_t)i * r->s->n_row_block,
    };
    struct student_rows *const rows[] = {&m.x, &m.dy, &m.dx};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++)
        rows[k]->x += (size_t)i * unit * sizeof(float);
    return m;
}

/* Ranks that share heads of K add up their parts of these heads' weights. */
static void norm_apart_grad(struct student_run *r, const struct train_step *step)
{
    const struct program_op *op = step->op;
    const struct student *s = r->s;
    const struct student_weight w = student_weight_of(s, op->weight, op->layer);
    const uint32_t unit = op->norm.unit, n_unit = op->in[0].n_col / unit;
    bool shared = false;
    for (uint32_t i = 0; i < w.param->n_tensor; i++)
        shared = shared || (s->group.size > 1 && w.param->tensors[i].n_sharing > 1);
    if (shared)
        clear(r, s->exchange, (size_t)n_unit * unit);
    for (uint32_t i = 0; i < n_unit; i++) {
        const struct norm m = unit_of(r, step, i);
        grad_of_rows(&m, w.w + (size_t)i * unit);
    }
    student_meet(r);
    for (uint32_t i = 0; i < n_unit; i++) {
        const struct norm m = unit_of(r, step, i);
        grad_of_weight(&m, (shared ? s->exchange : w.g) + (size_t)i * unit, NULL);
    }
    student_meet(r);
    for (uint32_t i = 0; i < w.param->n_tensor && shared; i++)
        student_add_shared(r, w.param, w.g, &w.param->tensors[i]);
}

static void norm_grad(struct student_run *r, const struct train_step *step)
{
    const struct program_op *op = step->op;
    const struct student *s = r->s;
    const struct student_weight w = student_norm_weight(s, op);
    const bool is_apart = w.g && is_of_heads(s, op); /* a norm without weight has no gradient */
    if (op->norm.apart) {
        norm_apart_grad(r, step);
        return;
    }
    const uint32_t unit = op->norm.unit;
    const struct norm m = {
        .r = r,
        .step = step,
        .x = student_rows_of(r, step->in[0]),
        .dy = student_rows_of(r, step->d_out),
        .dx = student_rows_of(r, step->d_in[0]),
        .n_unit = op->in[0].n_col / unit,
    };
    if (is_apart)
        clear(r, s->exchange, unit);
    grad_of_rows(&m, w.w);
    student_meet(r);
    grad_of_weight(&m, is_apart ? s->exchange : w.g, student_weight_of(s, op->bias, op->layer).g);
    student_meet(r);
    if (!is_apart)
        return;
    student_sum(r, s->exchange, unit);
    for (uint32_t i = 0; i < unit && r->x.ith == 0; i++)
        w.g[i] += s->exchange[i];
    student_meet(r);
}

/* ---- the others ---- */

static void activate_grad(struct student_run *r, const struct train_step *step)
{
    const struct student_rows x = student_rows_of(r, step->in[0]);
    const struct student_rows dy = student_rows_of(r, step->d_out);
    const struct student_rows dx = student_rows_of(r, step->d_in[0]);
    const struct student_part p = student_part_of(r);
    const struct activate_grad_args a = {
        .act = act_of(step->op->act.is),
        .gated = step->op->act.gated,
        .dx = student_floats(&dx, p.at),
        .dy = student_floats(&dy, p.at),
        .x = student_floats(&x, p.at),
        .n_row = p.n,
        .n_col = step->d_out.n_col,
        .dx_stride = dx.stride,
        .dy_stride = dy.stride,
        .x_stride = x.stride,
    };
    r->s->kern->activate_grad(&a, &r->mine);
}

/* Nothing goes back through a number that was beyond the limit. in: as it was before. */
static void clip_grad(struct student_run *r, const struct train_step *step)
{
    const struct student_rows x = student_rows_of(r, step->in[0]);
    const struct student_rows dx = student_rows_of(r, step->d_in[0]);
    const struct student_part p = student_part_of(r);
    for (uint32_t i = p.at; i < p.at + p.n; i++) {
        const float *of = student_floats(&x, i);
        float *d = student_floats(&dx, i);
        for (uint32_t c = 0; c < step->d_in[0].n_col; c++)
            d[c] = fabsf(of[c]) <= step->op->cap ? d[c] : 0;
    }
}

static void rope_grad(struct student_run *r, const struct train_step *step)
{
    student_rotate(r, step->op, step->d_in[0], true);
}

static void attention_grad(struct student_run *r, const struct train_step *step)
{
    const struct student_rows dout = student_rows_of(r, step->d_out);
    const struct student_rows dq = student_rows_of(r, step->d_in[0]);
    const struct student_rows dk = student_rows_of(r, step->d_in[1]);
    const struct student_rows dv = student_rows_of(r, step->d_in[2]);
    const struct attention_grad_args a = {
        .of = student_attention_of(r, step),
        .dout = student_floats(&dout, 0),
        .dq = student_floats(&dq, 0),
        .dk = student_floats(&dk, 0),
        .dv = student_floats(&dv, 0),
        .dout_stride = dout.stride,
        .dq_stride = dq.stride,
        .dkv_stride = dk.stride,
    };
    r->s->kern->attention_grad(&a, &r->x);
    student_add_attention(r, step);
}

/* Of an ADD with a scale, and of SCALE. */
static void scale_grad(struct student_run *r, const struct train_step *step)
{
    const struct student_rows dy = student_rows_of(r, step->d_out);
    const struct student_rows dx = student_rows_of(r, step->d_in[0]);
    const struct student_part p = student_part_of(r);
    const struct add_rows_args a = {
        .y = student_floats(&dx, p.at),
        .x = student_floats(&dy, p.at),
        .n_row = p.n,
        .n_col = step->d_in[0].n_col,
        .x_stride = dy.stride,
        .y_stride = dx.stride,
        .scale = step->op->scale,
        .set = 1,
    };
    r->s->kern->add_rows(&a, &r->mine);
}

void student_grad_step(struct student_run *r, const struct train_step *step)
{
    static void (*const of_kind[PROGRAM_KINDS])(struct student_run *, const struct train_step *) = {
        [PROGRAM_NORM] = norm_grad,           [PROGRAM_MATMUL] = matmul_grad,
        [PROGRAM_ACTIVATE] = activate_grad,   [PROGRAM_ROPE] = rope_grad,
        [PROGRAM_ATTENTION] = attention_grad, [PROGRAM_SCALE] = scale_grad,
        [PROGRAM_CLIP] = clip_grad,
    };
    if (step->kind == TRAIN_SCALE)
        scale_grad(r, step);
    else if (step->kind == TRAIN_GRAD)
        of_kind[step->op->kind](r, step);
    else
        student_step(r, step);
}

/* ---- the embedding ---- */

/* Of a block of rows of the norm behind the embedding: to the gradient of its input, in place. */
static void embed_norm_block(struct student_run *r)
{
    const struct student *s = r->s;
    const struct program_op *op = s->embed_norm;
    const struct student_weight w = student_norm_weight(s, op);
    const struct student_part p = student_part_of(r);
    const size_t hidden = s->config.hidden_size, at = r->at * hidden;
    const struct train_step step = {.op = op};
    const struct norm m = {
        .r = r,
        .step = &step,
        .x = {(char *)(s->stream + at), hidden, DT_F32},
        .dy = {(char *)(r->d_stream + at), hidden, DT_F32},
        .dx = {(char *)s->embed_dx, hidden, DT_F32},
        .n_unit = 1,
    };
    grad_of_rows(&m, w.w);
    student_meet(r);
    grad_of_weight(&m, w.g, student_weight_of(s, op->bias, op->layer).g);
    student_meet(r);
    memcpy(r->d_stream + at + p.at * hidden, s->embed_dx + p.at * hidden,
           p.n * hidden * sizeof(float));
    student_meet(r);
}

static void embed_norm_grad(struct student_run *r)
{
    const uint32_t n_row = r->b->n_row;
    student_embed_rows(r); /* what it has read, made again */
    for (r->at = 0; r->at < n_row; r->at += STUDENT_GRAD_ROWS) {
        r->n = n_row - r->at < STUDENT_GRAD_ROWS ? n_row - r->at : STUDENT_GRAD_ROWS;
        embed_norm_block(r);
    }
    r->at = 0;
    r->n = n_row;
}

static void positions_grad(struct student_run *r)
{
    const struct student *s = r->s;
    const uint32_t hidden = s->config.hidden_size;
    const struct student_weight w = student_weight_of(s, PROGRAM_W_POSITIONS, PROGRAM_NO_LAYER);
    const struct embed_grad_args a = {
        .dtable = w.g + (size_t)s->positions->first * hidden,
        .dy = r->d_stream,
        .ids = r->b->positions,
        .n_row = r->b->n_row,
        .n_col = hidden,
        .dy_stride = hidden,
        .scale = 1,
    };
    s->kern->embed_grad(&a, &r->x);
}

/* In runs of rows whose ids are this rank's. */
void student_embed_grad(struct student_run *r)
{
    const struct student *s = r->s;
    const uint32_t hidden = s->config.hidden_size, n = r->b->n_row;
    if (s->embed_norm)
        embed_norm_grad(r);
    const uint32_t *ids = student_local_ids(r);
    student_meet(r);
    if (s->positions)
        positions_grad(r);
    for (uint32_t at = 0, end; at < n; at = end) {
        for (end = at; end < n && (ids[end] == KERN_NO_ROW) == (ids[at] == KERN_NO_ROW);)
            end++;
        const struct embed_grad_args a = {
            .dtable = student_weight_of(s, PROGRAM_W_EMBED, PROGRAM_NO_LAYER).g,
            .dy = r->d_stream + (size_t)at * hidden,
            .ids = ids + at,
            .n_row = end - at,
            .n_col = hidden,
            .dy_stride = hidden,
            .scale = s->embed->scale,
        };
        if (ids[at] != KERN_NO_ROW)
            s->kern->embed_grad(&a, &r->x);
    }
}
