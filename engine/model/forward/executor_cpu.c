/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's executor. Every thread runs the whole program and computes its share of each operation;
 * cpu_plan.h finds the barriers (six a layer when decoding one sequence: after q,k,v, before and
 * after attention, after out, gate·up and down).
 *
 * A pass computes its rows in blocks, so that activations stay in the caches between two products.
 * A pass of attention and the embedding compute all rows at once. Between q,k,v and attention each
 * operation reads and writes one row, so a thread runs all of them on its own rows. The last passes
 * leave out rows that nothing needs (cpu_asked.h). In a product, a thread that is done takes panels
 * of one that is not. */
#include "engine/model/forward/executor_cpu.h"
#include <math.h>
#include <string.h>
#include "engine/model/forward/acts.h"
#include "engine/model/forward/pool_kinds.h"
#include "engine/plugin.h"

typedef void handler(struct cpu_run *w, const struct program_op *op, struct program_ref out);

static void meet(struct cpu_run *w)
{
    if (w->x.nth > 1 && !w->is_clean) {
        team_barrier(w->team);
        w->n_shared = 0;
    }
    w->is_clean = true;
}

void cpu_meet(struct cpu_run *w)
{
    w->is_clean = false;
    meet(w);
}

/* ---- where rows lie ---- */

static struct matmul_rows rows_at(const struct cpu_run *w, struct program_ref r, bool own)
{
    const struct cpu_buffer *b = &w->s->lines[r.buffer].b;
    struct matmul_rows at = b->all;
    size_t row = own ? (size_t)w->x.ith * CPU_OWN_ROWS * (b->of_places ? w->n_used : 1) : 0;
    if (r.buffer == PROGRAM_B_LOGITS)
        at = (struct matmul_rows){.x = w->logits, .stride = r.n_col};
    if (r.buffer == PROGRAM_B_LOGITS)
        row = w->block.at;
    else if (b->of_step)
        row = w->part.row + w->block.at;
    at.dtype = (enum dtype)r.dtype;
    at.x = (char *)at.x + (row * at.stride + r.col) * cpu_width(r);
    at.rows = at.rows ? at.rows + row : NULL;
    at.sums = at.sums ? at.sums + row * at.stride / KERN_INT8_SUM : NULL;
    return at;
}

struct matmul_rows cpu_rows_of(const struct cpu_run *w, struct program_ref r)
{
    return rows_at(w, r, w->is_own[r.buffer]);
}

struct matmul_rows cpu_rows_to(const struct cpu_run *w, struct program_ref r)
{
    return rows_at(w, r, w->own_stage);
}

const float *cpu_vector_of(const struct cpu_run *w, enum program_weight v,
                           const struct program_op *op)
{
    return program_vector(&w->m->weights, v, op->layer);
}

/* ---- embedding, norms, quantizing ---- */

void cpu_embed(struct cpu_run *w, const struct program_op *op, float *y)
{
    const struct program_table t = program_table(&w->m->weights, op->weight, op->layer);
    const struct embed_args a = {
        .y = y,
        .table = t.rows,
        .dtype = t.dtype,
        .packed = t.is_packed,
        .ids = w->b->token_ids + w->block.at,
        .n_row = w->block.n,
        .n_col = op->out.n_col,
        .scale = op->scale,
        .accumulate = op->onto,
        .limit = t.n_row,
    };
    w->k->embed(&a, &w->x);
}

static void embed(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    cpu_embed(w, op, cpu_rows_to(w, out).x);
}

static void positions(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct program_table t = program_table(&w->m->weights, op->weight, op->layer);
    const size_t row = out.n_col * (dtype_bits(t.dtype) / 8);
    const struct matmul_rows y = cpu_rows_to(w, out);
    const struct embed_args a = {
        .y = y.x,
        .table = (const char *)t.rows + op->first * row,
        .dtype = t.dtype,
        .div = op->div,
        .mod = op->mod,
        .ids = w->b->positions + w->block.at,
        .n_row = w->block.n,
        .n_col = out.n_col,
        .scale = 1,
        .accumulate = 1,
    };
    w->k->embed(&a, &w->x);
}

/* All rows have type 0 where the batch says none. */
static void types(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct program_table t = program_table(&w->m->weights, op->weight, op->layer);
    const struct embed_args a = {
        .y = cpu_rows_to(w, out).x,
        .table = t.rows,
        .dtype = t.dtype,
        .div = 1,
        .mod = w->b->token_types ? 0 : 1,
        .ids = (w->b->token_types ? w->b->token_types : w->b->positions) + w->block.at,
        .n_row = w->block.n,
        .n_col = out.n_col,
        .scale = 1,
        .accumulate = 1,
    };
    w->k->embed(&a, &w->x);
}

void cpu_items(const struct cpu_run *w, const struct quire_rows *y)
{
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    const float *const *rows = w->b->item_rows;
    for (uint32_t i = r.at; rows && i < r.at + r.n; i++)
        if (rows[w->block.at + i])
            memcpy(y->rows + i * y->stride, rows[w->block.at + i], y->n_col * sizeof(float));
}

/* The stream of another stage, and to another stage: rows that are neighbours. */
static void receive(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows y = cpu_rows_to(w, out);
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    (void)op;
    memcpy((float *)y.x + r.at * y.stride, w->b->stream_in + (size_t)r.at * out.n_col,
           (size_t)r.n * out.n_col * sizeof(float));
}

static void send(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]);
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    memcpy(w->b->stream_out + (size_t)r.at * out.n_col, (const float *)x.x + r.at * x.stride,
           (size_t)r.n * out.n_col * sizeof(float));
}

static void items(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows y = cpu_rows_to(w, out);
    (void)op;
    cpu_items(w, &(struct quire_rows){y.x, w->block.n, out.n_col, y.stride});
}

/* Row i of the block of a norm's input. */
static const float *norm_input(const struct cpu_run *w, const struct program_op *op,
                               const struct matmul_rows *x, uint32_t i)
{
    if (!op->asked)
        return (const float *)x->x + i * x->stride;
    const uint32_t r = w->b->logit_rows[w->first_logit + w->block.at + i];
    return (const float *)w->s->buffers[op->in[0].buffer].x +
           r * w->s->buffers[op->in[0].buffer].stride + op->in[0].col;
}

static void layer_norm(const struct cpu_run *w, const struct program_op *op,
                       const struct rms_norm_args *a)
{
    const struct layer_norm_args of = {
        .y = a->y,
        .y_dtype = a->y_dtype,
        .x = a->x,
        .w = a->w,
        .b = cpu_vector_of(w, op->bias, op),
        .n_row = a->n_row,
        .n_col = a->n_col,
        .x_stride = a->x_stride,
        .y_stride = a->y_stride,
        .eps = a->eps,
    };
    w->k->layer_norm(&of, &w->mine);
}

static void norm_rows(const struct cpu_run *w, const struct program_op *op,
                      const struct rms_norm_args *a)
{
    if (op->norm.kind == ARCH_NORM_LAYER)
        layer_norm(w, op, a);
    else
        w->k->rms_norm(a, &w->mine);
}

/* The units of one row, each with weights of its own, as f32. */
static void norm_apart(const struct cpu_run *w, const struct program_op *op,
                       const struct rms_norm_args *row)
{
    struct rms_norm_args a = *row;
    Q_ASSERT(a.n_row == 1 && a.y_dtype == DT_F32);
    for (uint32_t c = 0; c < op->in[0].n_col; c += a.n_col) {
        a.x = row->x + c;
        a.y = (float *)row->y + c;
        a.w = row->w + c;
        norm_rows(w, op, &a);
    }
}

/* Units of n_row rows of x that lie `x_stride` apart. */
static void norm_units(const struct cpu_run *w, const struct program_op *op,
                       const struct rms_norm_args *rows)
{
    struct rms_norm_args a = *rows;
    a.w = cpu_vector_of(w, op->weight, op);
    a.n_col = op->norm.unit;
    a.eps = op->norm.eps;
    if (op->norm.apart) {
        norm_apart(w, op, &a);
        return;
    }
    if (op->norm.unit != op->in[0].n_col) { /* the units of one row, neighbours */
        Q_ASSERT(a.n_row == 1);
        a.n_row = op->in[0].n_col / op->norm.unit;
        a.x_stride = a.y_stride = op->norm.unit;
    }
    norm_rows(w, op, &a);
}

static void norm(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), to = cpu_rows_to(w, out);
    const struct cpu_rows r = cpu_to_make(w, w->block.n);
    const bool by_rows = op->asked || op->norm.unit != op->in[0].n_col;
    for (uint32_t i = r.at; i < r.at + r.n; i += by_rows ? 1 : r.n)
        norm_units(w, op,
                   &(struct rms_norm_args){
                       .y = (char *)to.x + i * to.stride * cpu_width(out),
                       .y_dtype = (enum dtype)out.dtype,
                       .x = norm_input(w, op, &x, i),
                       .n_row = by_rows ? 1 : r.n,
                       .x_stride = x.stride,
                       .y_stride = to.stride,
                   });
}

static const uint32_t *order_of(const struct cpu_run *w, const struct program_op *op)
{
    return op->ordered ? program_matrix(&w->m->weights, op->weight, op->layer, 0)->order : NULL;
}

/* By way of one row of floats that stays in the first cache. */
static void norm_quantize(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct program_op *bytes = op + 1;
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), to = cpu_rows_to(w, out);
    const struct cpu_rows r = cpu_to_make(w, w->block.n);
    float *row = w->s->made_of + w->x.ith * w->s->made_of_stride;
    const struct matmul_source from = {row, out.n_col, 1, out.n_col, order_of(w, bytes), 0};
    for (uint32_t i = r.at; i < r.at + r.n; i++) {
        const struct matmul_rows at = matmul_rows_at(&to, i);
        norm_units(w, op,
                   &(struct rms_norm_args){
                       .y = row,
                       .y_dtype = DT_F32,
                       .x = norm_input(w, op, &x, i),
                       .n_row = 1,
                       .x_stride = x.stride,
                       .y_stride = out.n_col,
                   });
        matmul_quantize(w->k, &at, &from, &w->mine);
    }
}

/* Rows r of x in another type. */
static void cast(const struct cpu_run *w, const struct matmul_rows *to, const struct matmul_rows *x,
                 struct cpu_rows r, uint32_t n_col)
{
    const struct activate_args a = {
        .act = KERN_IDENTITY,
        .y = to->x,
        .y_dtype = to->dtype,
        .x = (const float *)x->x + r.at * x->stride,
        .n_row = r.n,
        .n_col = n_col,
        .x_stride = x->stride,
        .y_stride = to->stride,
    };
    w->k->activate(&a, &w->mine);
}

static void quantize(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    if (w->s->lines[out.buffer].b.of_places) {
        cpu_quantize_places(w, op);
        return;
    }
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), to = cpu_rows_to(w, out);
    const struct cpu_rows r = cpu_to_make(w, w->block.n);
    const struct matmul_rows at = matmul_rows_at(&to, r.at);
    if (!matmul_reads_bytes((enum dtype)out.dtype)) {
        cast(w, &at, &x, r, out.n_col);
        return;
    }
    matmul_quantize(w->k, &at,
                    &(struct matmul_source){(const float *)x.x + r.at * x.stride, x.stride, r.n,
                                            out.n_col, order_of(w, op), 0},
                    &w->mine);
}

/* ---- products ---- */

/* The arguments of a product whose panels threads take from one another. Its number is that of the
 * barrier before it and of the product since: no two products between two barriers have one. */
static struct kern_exec sharing(struct cpu_run *w)
{
    struct kern_exec x = w->x;
    if (!w->team || x.nth < 2 || w->n_shared == CPU_SHARED_MAX)
        return x;
    x.shares = w->s->shares;
    x.product = (uint64_t)team_phase(w->team) * CPU_SHARED_MAX + w->n_shared++;
    return x;
}

static void multiply(struct cpu_run *w, const struct program_op *op, struct program_ref out,
                     bool onto)
{
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), y = cpu_rows_to(w, out);
    const struct packed *whole = program_matrix(&w->m->weights, op->weight, op->layer, 0);
    const struct cpu_part_matrix part = cpu_part_matrix(w, whole);
    const float *bias = cpu_vector_of(w, op->bias, op);
    const struct matmul a = {
        .w = &part.w,
        .bias = bias ? bias + part.first : NULL,
        .x = &x,
        .y = (char *)y.x + part.column * cpu_width(out),
        .y_dtype = (enum dtype)out.dtype,
        .y_stride = y.stride,
        .n_row = w->block.n,
        .add = onto,
    };
    const struct kern_exec x_of_all = sharing(w);
    if (part.w.n_out)
        matmul_run(w->k, &a, &x_of_all);
    const struct cpu_product p = {whole, &y, (enum dtype)out.dtype, w->block.n, out.n_col};
    if (model_shard_is_part(&w->m->shard))
        cpu_exchange_columns(w, &p);
}

static void matmul(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    multiply(w, op, out, false);
}

static void matmul_add(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    multiply(w, op, out, true);
}

static void add(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), y = cpu_rows_to(w, out);
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    const struct add_rows_args a = {
        .y = (float *)y.x + r.at * y.stride,
        .x = (const float *)x.x + r.at * x.stride,
        .n_row = r.n,
        .n_col = out.n_col,
        .x_stride = x.stride,
        .y_stride = y.stride,
        .scale = op->scale,
    };
    w->k->add_rows(&a, &w->mine);
}

static void scale(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows y = cpu_rows_to(w, out);
    const bool by_columns = cpu_scales_columns(op);
    struct cpu_rows rows = {0, w->block.n}, columns = {0, out.n_col};
    if (by_columns)
        columns = cpu_share(w, columns);
    else
        rows = cpu_share(w, rows);
    float *x = (float *)y.x + rows.at * y.stride + columns.at;
    const float *by = cpu_vector_of(w, op->weight, op);
    const struct add_rows_args a = {
        .y = x,
        .x = x,
        .n_row = rows.n,
        .n_col = columns.n,
        .x_stride = y.stride,
        .y_stride = y.stride,
        .scale = by ? *by : op->scale,
        .set = 1,
    };
    w->k->add_rows(&a, &w->mine);
}

static void scale_q(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows y = cpu_rows_to(w, out);
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    const struct add_rows_args a = {
        .y = (float *)y.x + r.at * y.stride,
        .x = (const float *)y.x + r.at * y.stride,
        .n_row = r.n,
        .n_col = out.n_col,
        .x_stride = y.stride,
        .y_stride = y.stride,
        .scale = 1,
        .positions = w->b->positions + w->block.at + r.at,
        .growth = op->by_position.growth,
        .length = op->by_position.length,
        .first = op->by_position.first,
        .set = 1,
    };
    w->k->add_rows(&a, &w->mine);
}

static void soft_cap(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows y = cpu_rows_to(w, out);
    const struct soft_cap_args a = {
        .x = y.x,
        .n_row = w->block.n,
        .n_col = out.n_col,
        .x_stride = y.stride,
        .cap = op->cap,
    };
    w->k->soft_cap(&a, &w->x);
}

static void clip(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows y = cpu_rows_to(w, out);
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    const struct soft_cap_args a = {
        .x = (float *)y.x + r.at * y.stride,
        .n_row = r.n,
        .n_col = out.n_col,
        .x_stride = y.stride,
        .cap = op->cap,
        .hard = 1,
    };
    w->k->soft_cap(&a, &w->mine);
}

/* What no product has made. */
static void activate(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const bool is_places = w->s->lines[out.buffer].b.of_places;
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), to = cpu_rows_to(w, out);
    const struct cpu_rows r = cpu_to_make(w, w->block.n * (is_places ? w->n_used : 1));
    const struct activate_args a = {
        .act = act_of(op->act.is),
        .gated = op->act.gated,
        .limit = op->act.limit,
        .positive = cpu_vector_of(w, op->weight, op),
        .negative = cpu_vector_of(w, op->bias, op),
        .y = (char *)to.x + r.at * to.stride * cpu_width(out),
        .y_dtype = (enum dtype)out.dtype,
        .x = (const float *)x.x + r.at * x.stride,
        .n_row = r.n,
        .n_col = out.n_col,
        .x_stride = x.stride,
        .y_stride = to.stride,
    };
    w->k->activate(&a, &w->mine);
}

/* ---- attention ---- */

/* (cos, sin) of this thread's rows of the step. */
static void make_rope(const struct cpu_run *w)
{
    const struct cpu_rows own = cpu_share(w, (struct cpu_rows){0, w->b->n_token});
    const size_t stride = 2 * (size_t)w->m->rotary.n_pair;
    const size_t local_stride = 2 * (size_t)w->m->local_rotary.n_pair;
    const uint32_t own_end = own.at + own.n;
    for (uint32_t i = 0; i < w->b->n_seq; i++) {
        const struct attention_seq *q = &w->b->seqs[i];
        const uint32_t from = q->row > own.at ? q->row : own.at;
        const uint32_t end = q->row + q->n_query < own_end ? q->row + q->n_query : own_end;
        for (uint32_t r = from; r < end; r++) {
            rotary_row(&w->m->rotary, w->s->rope + r * stride, w->b->positions[r],
                       w->b->n_prompts ? w->b->n_prompts[i] : 0);
            if (w->s->local_rope)
                rotary_row(&w->m->local_rotary, w->s->local_rope + r * local_stride,
                           w->b->positions[r], 0);
        }
    }
}

static void rope(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows x = cpu_rows_to(w, out);
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    const struct rope_args a = {
        .x = (float *)x.x + r.at * x.stride + op->rope.first,
        .x_stride = x.stride,
        .table = (op->rope.local ? w->s->local_rope : w->s->rope) +
                 (size_t)(w->block.at + r.at) * op->rope.n_rot,
        .pos = w->s->rows,
        .n_row = r.n,
        .n_head = op->rope.n_head,
        .head_dim = op->rope.head_dim,
        .n_rot = op->rope.n_rot,
        .interleaved = op->rope.interleaved,
    };
    if (r.n)
        w->k->rope(&a, &w->mine);
}

void cpu_store(struct cpu_run *w, const struct program_op *op, const struct matmul_rows *k,
               const struct matmul_rows *v)
{
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    const struct kv_store_args a = {
        .k_cache = w->kv->k[model_kv_layer(w->m, op->layer)],
        .v_cache = w->kv->v[model_kv_layer(w->m, op->layer)],
        .kv_dtype = w->kv->dtype,
        .k = (const float *)k->x + r.at * k->stride,
        .v = (const float *)v->x + r.at * v->stride,
        .k_stride = k->stride,
        .v_stride = v->stride,
        .slot = w->b->slot_mapping + w->block.at + r.at,
        .n_row = r.n,
        .n_kv_head = op->attention.n_kv_head,
        .head_dim = op->attention.head_dim,
    };
    if (r.n)
        w->k->kv_store(&a, &w->mine);
}

static void store(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows k = cpu_rows_of(w, op->in[0]), v = cpu_rows_of(w, op->in[1]);
    (void)out;
    cpu_tap_keys(w, op, &k, &v);
    cpu_store(w, op, &k, &v);
}

void cpu_attend(struct cpu_run *w, const struct program_op *op, const struct matmul_rows *q,
                const struct matmul_rows *to)
{
    uint32_t n_seq;
    const struct attention_seq *seqs = cpu_seqs(w, &n_seq);
    const struct attention_args a = {
        .out = to->x,
        .out_dtype = to->dtype,
        .q = q->x,
        .out_stride = to->stride,
        .q_stride = q->stride,
        .k_cache = w->kv->k[model_kv_layer(w->m, op->layer)],
        .v_cache = w->kv->v[model_kv_layer(w->m, op->layer)],
        .kv_dtype = w->kv->dtype,
        .seqs = seqs,
        .n_seq = n_seq,
        .n_head = op->attention.n_head,
        .n_kv_head = op->attention.n_kv_head,
        .head_dim = op->attention.head_dim,
        .context_max = w->b->context_max,
        .scale = op->attention.scale,
        .soft_cap = op->attention.soft_cap,
        .window = op->attention.window,
        .both_ways = !op->attention.causal,
        .chunked = op->attention.chunked,
        .sinks = cpu_vector_of(w, op->weight, op),
        .slopes = op->attention.alibi ? (const float *)(const void *)w->m->slopes.data : NULL,
        .parts = w->s->parts,
        .n_part = w->s->n_part,
    };
    w->k->attention(&a, &w->x);
    if (!kern_attention_splits(&a, w->x.nth))
        return;
    w->is_clean = false;
    meet(w);
    w->k->attention_join(&(struct attention_join_args){&a}, &w->x);
}

static void attention(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows q = cpu_rows_of(w, op->in[0]), to = cpu_rows_to(w, out);
    cpu_tap_query(w, op, &q);
    cpu_attend(w, op, &q, &to);
}

/* ---- pooling ---- */

/* By columns. The row that is asked for is the one that is pooled, or any of the sequence. */
static void pool(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows y = cpu_rows_to(w, out), *x = &w->s->buffers[op->in[0].buffer];
    const struct cpu_rows columns = cpu_share(w, (struct cpu_rows){0, out.n_col});
    const struct pool_rows_args a = {
        .y = (float *)y.x + columns.at,
        .x = (const float *)x->x + columns.at,
        .rows = w->b->logit_rows + w->first_logit + w->block.at,
        .seqs = w->b->seqs,
        .n_row = w->block.n,
        .n_seq = w->b->n_seq,
        .n_col = columns.n,
        .x_stride = x->stride,
        .y_stride = y.stride,
        .kind = pool_kind_of(op->pool),
    };
    w->k->pool_rows(&a, &(struct kern_exec){.nth = 1});
}

/* ---- stages and passes ---- */

static void route(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    (void)out;
    cpu_route(w, op);
}

static void combine(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    (void)out;
    cpu_combine(w, op);
}

static void share(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    (void)out;
    cpu_share_expert(w, op);
}

static handler *const of_kind[PROGRAM_KINDS] = {
    [PROGRAM_EMBED] = embed,
    [PROGRAM_POSITIONS] = positions,
    [PROGRAM_NORM] = norm,
    [PROGRAM_QUANTIZE] = quantize,
    [PROGRAM_MATMUL] = matmul,
    [PROGRAM_ADD] = add,
    [PROGRAM_ACTIVATE] = activate,
    [PROGRAM_ROPE] = rope,
    [PROGRAM_STORE] = store,
    [PROGRAM_ATTENTION] = attention,
    [PROGRAM_ROUTE] = route,
    [PROGRAM_EXPERTS] = cpu_experts,
    [PROGRAM_COMBINE] = combine,
    [PROGRAM_SHARE] = share,
    [PROGRAM_SCALE] = scale,
    [PROGRAM_SCALE_Q] = scale_q,
    [PROGRAM_SOFT_CAP] = soft_cap,
    [PROGRAM_ITEMS] = items,
    [PROGRAM_OWN] = cpu_operation,
    [PROGRAM_STORE_LATENT] = cpu_store_latent,
    [PROGRAM_ATTENTION_LATENT] = cpu_attend_latent,
    [PROGRAM_HEADS] = cpu_heads,
    [PROGRAM_RECEIVE] = receive,
    [PROGRAM_SEND] = send,
    [PROGRAM_CLIP] = clip,
    [PROGRAM_TYPES] = types,
    [PROGRAM_POOL] = pool,
    [PROGRAM_CONV] = cpu_conv,
    [PROGRAM_DELTA] = cpu_delta,
    [PROGRAM_SCAN] = cpu_scan,
    [PROGRAM_GATE] = cpu_gate,
    [PROGRAM_MATCH] = cpu_match,
    [PROGRAM_PREDICT] = cpu_predict,
    [PROGRAM_CORRECT] = cpu_correct,
    [PROGRAM_SPARSE] = cpu_sparse,
    [PROGRAM_SHRINK] = cpu_shrink,
    [PROGRAM_EXPAND] = cpu_expand,
};

/* Of fused stages; NULL: its operations one after the other, since a thread has the same rows in
 * all of them. */
static handler *const of_fusion[PROGRAM_FUSIONS] = {
    [PROGRAM_FUSE_GATED] = matmul,
    [PROGRAM_FUSE_EXPERTS_GATED] = cpu_experts,
    [PROGRAM_FUSE_NORM_QUANTIZE] = norm_quantize,
    [PROGRAM_FUSE_MATMUL_ADD] = matmul_add,
};

static void run_stage(struct cpu_run *w, const struct program_stage *g,
                      const struct cpu_stage *plan)
{
    const struct program_op *op = &w->m->program.ops[g->first];
    const struct program_ref out = op[g->n - 1].out;
    if (plan->barrier >> cpu_mode(w->block.n) & 1)
        meet(w);
    w->own_stage = cpu_is_own(plan->own_cols, w->block.n);
    if (of_fusion[g->fusion])
        of_fusion[g->fusion](w, op, out);
    else
        for (uint32_t i = 0; i < g->n; i++)
            of_kind[op[i].kind](w, &op[i], op[i].out);
    w->is_own[out.buffer] = w->own_stage;
    w->is_clean = false;
}

/* of: rows of the step, or of those that are asked for. */
static void run_pass(struct cpu_run *w, const struct program_pass *pass, struct cpu_rows of)
{
    const struct layer_program *p = &w->m->program;
    const uint32_t most = cpu_is_whole(pass) ? of.n : w->s->block_rows, end = of.at + of.n;
    w->asked = pass->asked;
    for (uint32_t at = of.at; at < end; at += most) {
        w->block = (struct cpu_rows){at, end - at < most ? end - at : most};
        for (uint32_t i = pass->first; i < pass->first + pass->n; i++)
            run_stage(w, &p->stages[i], &w->s->stages[i]);
    }
}

/* The plan of barriers knows blocks that divide all rows of the step; between these passes the
 * threads meet whatever it says. */
static void run_spans(struct cpu_run *w, const struct program_pass *pass)
{
    const struct cpu_spans *s = &w->s->spans;
    cpu_meet(w);
    w->spans = s;
    if (pass->all_rows && s->n_row) /* finds its rows by the sequences */
        run_pass(w, pass, (struct cpu_rows){0, w->b->n_token});
    for (uint32_t i = 0; i < s->n_row && !pass->all_rows; i++)
        run_pass(w, pass, s->rows[i]);
    w->spans = NULL;
}

static void tap(struct cpu_run *w, uint32_t index)
{
    const struct model_config *c = &w->m->config;
    const struct cpu_rows own = cpu_share(w, (struct cpu_rows){0, w->b->n_token});
    const size_t hidden = c->hidden_size, at = (w->part.row + own.at) * hidden;
    const float *x = w->s->buffers[PROGRAM_B_X].x;
    if (!w->s->tap || index == PROGRAM_NO_LAYER || !w->s->tap[index] ||
        (index == c->n_layer && !pipeline_stage_has_head(&w->m->stage)))
        return;
    meet(w);
    if (index < c->n_layer) {
        memcpy(w->s->tap[index] + at, x + at, own.n * hidden * sizeof *x);
        return;
    }
    const struct layer_program *p = &w->m->program;
    const struct program_op *final = &p->ops[p->stages[p->passes[p->n_pass - 1].first].first];
    if (final->kind != PROGRAM_NORM) { /* a pool: x is what it reads */
        memcpy(w->s->tap[index] + at, x + at, own.n * hidden * sizeof *x);
        return;
    }
    norm_units(w, final,
               &(struct rms_norm_args){
                   .y = w->s->tap[index] + at,
                   .y_dtype = DT_F32,
                   .x = x + at,
                   .n_row = own.n,
                   .x_stride = hidden,
                   .y_stride = hidden,
               });
}

static struct cpu_run run_of(const struct model *m, const struct batch *b, struct model_scratch *s,
                             struct team *team, struct kern_exec x)
{
    x.scratch = s->kern + x.ith * s->kern_bytes;
    x.scratch_bytes = s->kern_bytes;
    Q_ASSERT(b->n_token <= s->n_token_max && b->n_logit <= b->n_token && x.nth <= s->n_thread);
    Q_ASSERT(s->n_stage == m->program.n_stage); /* a reload makes the same stages */
    struct cpu_run w = {.m = m, .b = b, .s = s, .k = m->kern, .team = team, .x = x, .mine = x};
    w.mine.ith = 0;
    w.mine.nth = 1;
    w.is_clean = true;
    w.n_expert = m->config.moe.n_expert;
    w.n_used = m->config.moe.n_used;
    return w;
}

/* Layers that the batch asks for, and what comes before them. */
static bool is_wanted(const struct cpu_run *w, const struct program_pass *pass)
{
    const struct batch *b = w->b;
    if (pass->layer == PROGRAM_NO_LAYER || b->n_layer == 0)
        return true;
    return pass->layer >= b->layer && pass->layer - b->layer < b->n_layer;
}

/* Are there rows that the last passes may leave out? Not where a plugin may fail: each sequence is
 * computed by itself then. */
static bool has_spans(const struct cpu_run *w)
{
    const struct model_scratch *s = w->s;
    return w->b->n_logit < w->b->n_token && !w->b->any_row && !s->tap && !s->attention_tap &&
           !s->own.errors;
}

/* Up to the rows whose logits may be asked for. */
static void run_program(struct cpu_run *w)
{
    const struct layer_program *p = &w->m->program;
    const bool by_spans = has_spans(w);
    uint32_t layer = PROGRAM_NO_LAYER;
    make_rope(w);
    if (by_spans && w->x.ith == 0)
        cpu_spans_make(&w->s->spans, w->b);
    for (uint32_t i = 0; i < p->n_pass && !p->passes[i].asked; i++) {
        if (!is_wanted(w, &p->passes[i]))
            continue;
        if (p->passes[i].layer != layer)
            tap(w, p->passes[i].layer);
        layer = p->passes[i].layer;
        if (by_spans && i >= w->s->asked_pass)
            run_spans(w, &p->passes[i]);
        else
            run_pass(w, &p->passes[i], (struct cpu_rows){0, w->b->n_token});
    }
    tap(w, w->m->config.n_layer);
    meet(w);
}

static void run_own_forward(struct cpu_run *w)
{
    make_rope(w);
    cpu_forward_own(w);
}

/* Of rows first_logit … first_logit + n_logit - 1. */
static void run_logits(struct cpu_run *w)
{
    const struct layer_program *p = &w->m->program;
    uint32_t i = p->n_pass;
    while (i && p->passes[i - 1].layer == PROGRAM_NO_LAYER && !p->passes[i - 1].asked)
        i--;
    run_pass(w, &p->passes[i - 1], (struct cpu_rows){0, w->n_logit});
    meet(w);
}

void model_forward(const struct model *m, const struct batch *b, const struct kv_cache *kv,
                   struct model_scratch *s, float *logits, struct team *team, uint32_t ith,
                   uint32_t nth)
{
    struct cpu_run w = run_of(m, b, s, team, (struct kern_exec){.ith = ith, .nth = nth});
    Q_ASSERT((uint64_t)b->layer + b->n_layer <= m->config.n_layer);
    Q_ASSERT(m->program.n_state == 0 || (b->n_state_part >= b->n_seq && kv->states));
    w.kv = kv;
    w.is_clean = false;
    cpu_each_forward(&w, s->own.logits ? run_own_forward : run_program);
    if (logits)
        model_logits(m, b, s, &(struct model_logits){logits, 0, b->n_logit}, team, ith, nth);
}

void model_logits(const struct model *m, const struct batch *b, struct model_scratch *s,
                  const struct model_logits *out, struct team *team, uint32_t ith, uint32_t nth)
{
    struct cpu_run w = run_of(m, b, s, team, (struct kern_exec){.ith = ith, .nth = nth});
    Q_ASSERT(out->first + out->n <= b->n_logit && pipeline_stage_has_head(&m->stage));
    if (s->own.logits) {
        cpu_logits_own(&w, out);
        return;
    }
    w.logits = out->rows;
    w.first_logit = out->first;
    w.n_logit = out->n;
    cpu_each_logits(&w, run_logits);
}
