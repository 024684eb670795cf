/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of a forward pass. A row is one thread's in all of them but products and
 * attention, which the kernels divide. */
#include <string.h>
#include "engine/distill/norm_rows.h"
#include "engine/distill/student_internal.h"
#include "engine/model/forward/acts.h"

/* ---- norms, copies ---- */

/* a: all but the bias, which is the operation's. */
static void run_norm(const struct student_run *r, const struct program_op *op,
                     struct layer_norm_args a)
{
    a.b = student_weight_of(r->s, op->bias, op->layer).w;
    norm_rows(r->s->kern, op->norm.kind == ARCH_NORM_LAYER, &a, &r->mine);
}

/* Each unit of a row with weights of its own. */
static void norm_apart(struct student_run *r, const struct train_step *step)
{
    const struct program_op *op = step->op;
    const struct student_rows x = student_rows_of(r, step->in[0]);
    const struct student_rows y = student_rows_of(r, step->out);
    const struct student_part p = student_part_of(r);
    const float *w = student_norm_weight(r->s, op).w;
    for (uint32_t c = 0; c < op->in[0].n_col && p.n; c += op->norm.unit)
        run_norm(r, op,
                 (struct layer_norm_args){
                     .y = y.x + (p.at * y.stride + c) * (dtype_bits(y.dtype) / 8),
                     .y_dtype = y.dtype,
                     .x = student_floats(&x, p.at) + c,
                     .w = w + c,
                     .n_row = p.n,
                     .n_col = op->norm.unit,
                     .x_stride = x.stride,
                     .y_stride = y.stride,
                     .eps = op->norm.eps,
                 });
}

/* The units of a row are neighbours, rows are not: a call a row, where there is more than one. */
static void norm(struct student_run *r, const struct train_step *step)
{
    const struct program_op *op = step->op;
    const struct student_rows x = student_rows_of(r, step->in[0]);
    const struct student_rows y = student_rows_of(r, step->out);
    const struct student_part p = student_part_of(r);
    const uint32_t n_unit = op->in[0].n_col / op->norm.unit, n_call = n_unit == 1 ? 1 : p.n;
    const size_t width = dtype_bits(y.dtype) / 8;
    const float *w = student_norm_weight(r->s, op).w;
    if (op->norm.apart) {
        norm_apart(r, step);
        return;
    }
    for (uint32_t i = 0; i < n_call && p.n; i++) {
        const struct layer_norm_args a = {
            .y = y.x + (p.at + i) * y.stride * width,
            .y_dtype = y.dtype,
            .x = student_floats(&x, p.at + i),
            .w = w,
            .n_row = n_unit == 1 ? p.n : n_unit,
            .n_col = op->norm.unit,
            .x_stride = n_unit == 1 ? x.stride : op->norm.unit,
            .y_stride = n_unit == 1 ? y.stride : op->norm.unit,
            .eps = op->norm.eps,
        };
        run_norm(r, op, a);
    }
}

static void copy(struct student_run *r, const struct train_step *step)
{
    const struct student_rows x = student_rows_of(r, step->in[0]);
    const struct student_rows y = student_rows_of(r, step->out);
    const struct student_part p = student_part_of(r);
    const struct convert_args a = {
        .y = y.x + p.at * y.stride * (dtype_bits(y.dtype) / 8),
        .x = x.x + p.at * x.stride * (dtype_bits(x.dtype) / 8),
        .y_dtype = y.dtype,
        .x_dtype = x.dtype,
        .n_row = p.n,
        .n_col = step->in[0].n_col,
        .x_stride = x.stride,
        .y_stride = y.stride,
    };
    if (p.n)
        r->s->kern->convert(&a, &r->mine);
}

/* ---- products ---- */

/* Of the ranks that add up a product's parts, the first adds the bias. */
static void matmul(struct student_run *r, const struct train_step *step)
{
    const struct student *s = r->s;
    const struct program_op *op = step->op;
    const struct student_rows x = student_rows_of(r, step->in[0]);
    const struct student_rows y = student_rows_of(r, step->out);
    const struct student_weight w = student_weight_of(s, op->weight, op->layer);
    const struct student_part p = student_part_of(r);
    const bool is_summed = student_is_summed(s, w.param);
    const bool has_bias = !is_summed || s->group.rank == 0;
    const struct linear_args a = {
        .y = student_floats(&y, p.at),
        .y_dtype = DT_F32,
        .x = x.x + p.at * x.stride * (dtype_bits(x.dtype) / 8),
        .x_dtype = x.dtype,
        .w = w.pack->w,
        .bias = has_bias ? student_weight_of(s, op->bias, op->layer).w : NULL,
        .n_row = p.n,
        .x_stride = x.stride,
        .y_stride = y.stride,
    };
    if (p.n)
        s->kern->linear(&a, &r->mine);
    if (!is_summed)
        return;
    student_meet(r);
    student_sum(r, student_floats(&y, 0), r->n * y.stride);
}

/* ---- rows ---- */

static void add(struct student_run *r, const struct train_step *step)
{
    const struct student_rows x = student_rows_of(r, step->in[0]);
    const struct student_rows y = student_rows_of(r, step->out);
    const struct student_part p = student_part_of(r);
    const struct add_rows_args a = {
        .y = student_floats(&y, p.at),
        .x = student_floats(&x, p.at),
        .n_row = p.n,
        .n_col = step->out.n_col,
        .x_stride = x.stride,
        .y_stride = y.stride,
        .scale = step->op->scale,
        .set = step->op->kind == PROGRAM_SCALE,
    };
    r->s->kern->add_rows(&a, &r->mine);
}

static void activate(struct student_run *r, const struct train_step *step)
{
    const struct student_rows x = student_rows_of(r, step->in[0]);
    const struct student_rows y = student_rows_of(r, step->out);
    const struct student_part p = student_part_of(r);
    const struct activate_args a = {
        .act = act_of(step->op->act.is),
        .gated = step->op->act.gated,
        .y = y.x + p.at * y.stride * (dtype_bits(y.dtype) / 8),
        .y_dtype = y.dtype,
        .x = student_floats(&x, p.at),
        .n_row = p.n,
        .n_col = step->out.n_col,
        .x_stride = x.stride,
        .y_stride = y.stride,
    };
    r->s->kern->activate(&a, &r->mine);
}

void student_rotate(struct student_run *r, const struct program_op *op, struct train_ref at,
                    bool back)
{
    const struct student *s = r->s;
    const uint32_t i_rope = op->rope.local ? STUDENT_ROPE_LOCAL : STUDENT_ROPE_ALL;
    const struct student_rope *t = &s->ropes[i_rope];
    const uint32_t *rows = student_rope_varies(s, i_rope) ? s->rows : r->b->positions;
    const struct student_rows x = student_rows_of(r, at);
    const struct student_part p = student_part_of(r);
    const struct rope_args a = {
        .x = student_floats(&x, p.at),
        .x_stride = x.stride,
        .table = back ? t->back : t->table,
        .pos = rows + r->at + p.at,
        .n_row = p.n,
        .n_head = op->rope.n_head,
        .head_dim = op->rope.head_dim,
        .n_rot = op->rope.n_rot,
        .interleaved = op->rope.interleaved,
    };
    if (p.n)
        s->kern->rope(&a, &r->mine);
}

static void rope(struct student_run *r, const struct train_step *step)
{
    student_rotate(r, step->op, step->out, false);
}

struct attention_train_args student_attention_of(const struct student_run *r,
                                                 const struct train_step *step)
{
    const struct student_rows q = student_rows_of(r, step->in[0]);
    const struct student_rows k = student_rows_of(r, step->in[1]);
    const struct student_rows v = student_rows_of(r, step->in[2]);
    const struct student_rows out = student_rows_of(r, step->out);
    const struct student_rows lse = student_rows_of(r, step->lse);
    return (struct attention_train_args){
        .out = student_floats(&out, 0),
        .lse = student_floats(&lse, 0),
        .q = student_floats(&q, 0),
        .k = student_floats(&k, 0),
        .v = student_floats(&v, 0),
        .out_stride = out.stride,
        .q_stride = q.stride,
        .kv_stride = k.stride,
        .segments = r->b->segments,
        .n_segment = r->b->n_segment,
        .n_head = step->op->attention.n_head,
        .n_kv_head = step->op->attention.n_kv_head,
        .head_dim = step->op->attention.head_dim,
        .scale = step->op->attention.scale,
        .soft_cap = step->op->attention.soft_cap,
        .window = step->op->attention.window,
        .compute = r->s->compute,
        .slopes = step->op->attention.alibi ? r->s->slopes : NULL,
    };
}

static void clip(struct student_run *r, const struct train_step *step)
{
    const struct student_rows x = student_rows_of(r, step->out);
    const struct student_part p = student_part_of(r);
    const struct soft_cap_args a = {
        .x = student_floats(&x, p.at),
        .n_row = p.n,
        .n_col = step->out.n_col,
        .x_stride = x.stride,
        .cap = step->op->cap,
        .hard = 1,
    };
    r->s->kern->soft_cap(&a, &r->mine);
}

static void attention(struct student_run *r, const struct train_step *step)
{
    const struct attention_train_args a = student_attention_of(r, step);
    r->s->kern->attention_train(&a, &r->x);
}

void student_step(struct student_run *r, const struct train_step *step)
{
    static void (*const of_kind[PROGRAM_KINDS])(struct student_run *, const struct train_step *) = {
        [PROGRAM_NORM] = norm, [PROGRAM_QUANTIZE] = copy,       [PROGRAM_MATMUL] = matmul,
        [PROGRAM_ADD] = add,   [PROGRAM_SCALE] = add,           [PROGRAM_ACTIVATE] = activate,
        [PROGRAM_ROPE] = rope, [PROGRAM_ATTENTION] = attention, [PROGRAM_CLIP] = clip,
    };
    if (step->kind == TRAIN_KEEP)
        copy(r, step);
    else
        of_kind[step->op->kind](r, step);
}

/* ---- the embedding ---- */

/* Ids of this rank's part of the table; the others' rows are 0 and come from them. */
const uint32_t *student_local_ids(struct student_run *r)
{
    const struct student *s = r->s;
    const struct student_part p = student_part_of(r);
    const uint32_t n = s->local.vocab_size, first = n * s->group.rank;
    if (s->group.size == 1)
        return r->b->ids;
    for (uint32_t i = p.at; i < p.at + p.n; i++)
        s->ids[i] = r->b->ids[i] - first < n ? r->b->ids[i] - first : KERN_NO_ROW;
    return s->ids;
}

/* Learned positions: a row of the table, as all ranks have it. */
static void add_positions(struct student_run *r)
{
    const struct student *s = r->s;
    const uint32_t hidden = s->config.hidden_size;
    const float *table = student_weight_of(s, PROGRAM_W_POSITIONS, PROGRAM_NO_LAYER).w;
    const struct embed_args a = {
        .y = s->stream,
        .table = table + (size_t)s->positions->first * hidden,
        .dtype = DT_F32,
        .ids = r->b->positions,
        .n_row = r->b->n_row,
        .n_col = hidden,
        .scale = 1,
        .accumulate = 1,
    };
    s->kern->embed(&a, &r->x);
    student_meet(r);
}

void student_embed_rows(struct student_run *r)
{
    struct student *s = r->s;
    const size_t hidden = s->config.hidden_size;
    const struct student_part p = student_part_of(r);
    const uint32_t *ids = student_local_ids(r);
    if (s->group.size > 1)
        memset(s->stream + p.at * hidden, 0, p.n * hidden * sizeof(float));
    student_meet(r);
    const struct embed_args a = {
        .y = s->stream,
        .table = student_weight_of(s, PROGRAM_W_EMBED, PROGRAM_NO_LAYER).w,
        .dtype = DT_F32,
        .ids = ids,
        .n_row = r->b->n_row,
        .n_col = (uint32_t)hidden,
        .scale = s->embed->scale,
    };
    s->kern->embed(&a, &r->x);
    student_meet(r);
    if (s->group.size > 1)
        student_sum(r, s->stream, r->b->n_row * hidden);
    if (s->positions)
        add_positions(r);
}

void student_embed(struct student_run *r)
{
    const struct student *s = r->s;
    const struct student_part p = student_part_of(r);
    const size_t hidden = s->config.hidden_size;
    student_embed_rows(r);
    if (!s->embed_norm)
        return;
    const struct layer_norm_args a = {
        .y = s->stream + p.at * hidden,
        .y_dtype = DT_F32,
        .x = s->stream + p.at * hidden,
        .w = student_norm_weight(s, s->embed_norm).w,
        .n_row = p.n,
        .n_col = (uint32_t)hidden,
        .x_stride = hidden,
        .y_stride = hidden,
        .eps = s->embed_norm->norm.eps,
    };
    if (p.n)
        run_norm(r, s->embed_norm, a);
    student_meet(r);
}
