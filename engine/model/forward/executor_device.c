/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/executor_device_internal.h"
#include "common/mem.h"
#include "engine/model/forward/acts.h"
#include "engine/model/forward/device_needs.h"
#include "engine/model/forward/heads.h"
#include "engine/model/forward/program_memory.h"
#include "engine/plugin.h"

FALLIBLE executor_device_new(struct executor_device **out, const struct model *m,
                             const struct device_limits *l, struct q_err *e)
{
    enum q_code rc = device_needs_check(m, e);
    if (rc)
        return rc;
    struct executor_device *d = q_calloc(1, sizeof *d);
    if (!d)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the executor of a device");
    d->m = m;
    d->limits = *l;
    d->x = (struct kern_exec){
        .nth = 1,
        .scratch_bytes = device_workspace_bytes(m, &d->limits),
        .stream = m->link->s,
    };
    if ((rc = device_buffers_make(d, e))) {
        q_free(d);
        return rc;
    }
    *out = d;
    return Q_OK;
}

void executor_device_free(struct executor_device *d)
{
    if (!d)
        return;
    region_release(&d->memory);
    q_free(d);
}

const struct kern_exec *executor_device_exec(const struct executor_device *d)
{
    return &d->x;
}

size_t executor_device_cos_sin_bytes(const struct model *m)
{
    return model_rope_varies(m) ? 2 * m->rotary.n_pair * sizeof(float) : 0;
}

bool executor_device_cos_sin(const struct model *m, float *rows, const struct batch *b)
{
    const size_t n = 2 * (size_t)m->rotary.n_pair;
    if (!model_rope_varies(m))
        return false;
    for (uint32_t i = 0; i < b->n_seq; i++)
        for (uint32_t j = 0; j < b->seqs[i].n_query; j++)
            rotary_row(&m->rotary, rows + (b->seqs[i].row + j) * n, b->seqs[i].start + j,
                       b->n_prompts ? b->n_prompts[i] : 0);
    return true;
}

/* ---- operands ---- */

static bool is_of_places(const struct device_run *r, struct program_ref ref)
{
    return r->d->m->program.buffers[ref.buffer].rows == PROGRAM_ROWS_PLACES;
}

struct matmul_rows device_rows_of(const struct device_run *r, struct program_ref ref)
{
    const struct device_buffer *b = &r->d->buffers[ref.buffer];
    const bool is_logits = ref.buffer == PROGRAM_B_LOGITS;
    const struct matmul_rows all = {
        .x = is_logits ? (unsigned char *)r->s->logits : b->data,
        .stride = is_logits ? r->d->m->shape.n_output : b->stride,
        .dtype = (enum dtype)ref.dtype,
        .rows = b->rows,
        .sums = b->sums,
        .scales = b->scales,
        .scale_stride = b->scale_stride,
    };
    struct matmul_rows at = matmul_rows_at(&all, is_of_places(r, ref) ? 0 : r->first);
    at.x = (unsigned char *)at.x + ref.col * (dtype_bits(at.dtype) / 8);
    return at;
}

uint32_t device_row_count(const struct device_run *r, struct program_ref ref)
{
    return is_of_places(r, ref) ? r->n * r->d->m->config.moe.n_used : r->n;
}

const struct packed *device_matrix(const struct device_run *r, const struct program_op *op,
                                   uint32_t expert)
{
    return program_matrix(&r->d->m->weights, op->weight, op->layer, expert);
}

static const float *vector_of(const struct device_run *r, const struct program_op *op)
{
    return program_vector(&r->d->m->weights, op->weight, op->layer);
}

/* ---- stages ---- */

static void embed(const struct device_run *r, const struct program_op *op)
{
    const struct program_table t = program_table(&r->d->m->weights, op->weight, op->layer);
    const struct embed_args a = {
        .y = device_rows_of(r, op->out).x,
        .table = t.rows,
        .dtype = t.dtype,
        .ids = r->s->batch->token_ids,
        .n_row = r->n,
        .n_col = op->out.n_col,
        .scale = op->scale,
        .accumulate = op->onto,
    };
    r->k->embed(&a, &r->d->x);
}

static void positions(const struct device_run *r, const struct program_op *op)
{
    const struct program_table t = program_table(&r->d->m->weights, op->weight, op->layer);
    const size_t row = op->out.n_col * (dtype_bits(t.dtype) / 8);
    const struct embed_args a = {
        .y = device_rows_of(r, op->out).x,
        .table = (const char *)t.rows + op->first * row,
        .dtype = t.dtype,
        .div = op->div,
        .mod = op->mod,
        .ids = r->s->batch->positions,
        .n_row = r->n,
        .n_col = op->out.n_col,
        .scale = 1,
        .accumulate = 1,
    };
    r->k->embed(&a, &r->d->x);
}

static void items(const struct device_run *r, const struct program_op *op)
{
    const struct embed_args a = {
        .y = device_rows_of(r, op->out).x,
        .table = r->s->items,
        .dtype = DT_F32,
        .ids = r->s->item_ids,
        .n_row = r->n,
        .n_col = op->out.n_col,
        .scale = 1,
    };
    r->k->embed(&a, &r->d->x);
}

/* A plugin's launch. */
static enum q_code own(const struct device_run *r, const struct program_op *op, struct q_err *e)
{
    const bool asked = r->asked;
    struct quire_plugin_error error = {{0}};
    const struct matmul_rows x = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const bool has_second = op->in[1].buffer != PROGRAM_B_NONE;
    const struct matmul_rows x2 =
        has_second ? device_rows_of(r, op->in[1]) : (struct matmul_rows){0};
    const bool is_table = op->weight && program_weight_info(op->weight)->kind == PROGRAM_TABLE;
    const struct quire_op_call call = {
        .in = x.x,
        .in2 = x2.x,
        .out = y.x,
        .in_stride = x.stride,
        .in2_stride = x2.stride,
        .out_stride = y.stride,
        .n_row = r->n,
        .in_cols = op->in[0].n_col,
        .in2_cols = op->in[1].n_col,
        .out_cols = op->out.n_col,
        .token_ids = asked ? NULL : r->s->batch->token_ids,
        .positions = asked ? NULL : r->s->batch->positions,
        .weight = is_table ? program_table(&r->d->m->weights, op->weight, op->layer).rows
                           : vector_of(r, op),
        .bias = program_vector(&r->d->m->weights, op->bias, op->layer),
        .params = op->own->params,
        .stream = r->d->m->link->s,
    };
    if (op->own->of->launch(&call, &error) == 0)
        return Q_OK;
    error.message[sizeof error.message - 1] = '\0';
    q_fail_text(e, Q_INTERNAL, "plugin %s: operation %s: %s", model_plugin(r->d->m),
                op->own->of->name,
                *error.message ? error.message : "its launch failed and gave no reason");
    return Q_INTERNAL;
}

/* LayerNorm of rows, in place too. */
static void layer_norm(const struct device_run *r, const struct program_op *op, const float *w)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const struct layer_norm_args a = {
        .y = y.x,
        .y_dtype = y.dtype,
        .x = x.x,
        .rows = op->asked ? r->s->batch->logit_rows : NULL,
        .w = w,
        .b = program_vector(&r->d->m->weights, op->bias, op->layer),
        .n_row = r->n,
        .n_col = op->in[0].n_col,
        .x_stride = x.stride,
        .y_stride = y.stride,
        .eps = op->norm.eps,
    };
    r->k->layer_norm(&a, &r->d->x);
}

/* Rows through a norm; `bytes`: the operation behind it, which makes them bytes at once; or
 * NULL. */
static void norm(const struct device_run *r, const struct program_op *op,
                 const struct program_op *bytes)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]);
    const struct matmul_rows y = device_rows_of(r, bytes ? bytes->out : op->out);
    const struct packed *next = bytes ? device_matrix(r, bytes, 0) : NULL;
    const bool by_blocks = next && next->blocks;
    const struct norm_rows_args a = {
        .y = y.x,
        .y_dtype = y.dtype,
        .quant = bytes && !by_blocks ? y.rows : NULL,
        .scales = by_blocks ? y.scales : NULL,
        .scale_stride = y.scale_stride,
        .scale = next ? next->x_scale : 0,
        .x = x.x,
        .rows = op->asked ? r->s->batch->logit_rows : NULL,
        .w = vector_of(r, op),
        .n_row = r->n,
        .n_col = op->in[0].n_col,
        .x_stride = x.stride,
        .y_stride = y.stride,
        .eps = op->norm.eps,
    };
    r->k->norm_rows(&a, &r->d->x);
}

/* All columns as one vector. */
static void norm_in_place(const struct device_run *r, const struct program_op *op, const float *w)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]);
    const struct rms_norm_args a = {
        .y = x.x,
        .y_dtype = x.dtype,
        .x = x.x,
        .w = w,
        .n_row = r->n,
        .n_col = op->in[0].n_col,
        .x_stride = x.stride,
        .y_stride = x.stride,
        .eps = op->norm.eps,
    };
    r->k->rms_norm(&a, &r->d->x);
}

/* Rows in another type of floats. */
static void cast(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const struct activate_args a = {
        .act = KERN_IDENTITY,
        .y = y.x,
        .y_dtype = y.dtype,
        .x = x.x,
        .n_row = r->n,
        .n_col = op->out.n_col,
        .x_stride = x.stride,
        .y_stride = y.stride,
    };
    r->k->activate(&a, &r->d->x);
}

static void quantize(const struct device_run *r, const struct program_op *op)
{
    if (!matmul_reads_bytes((enum dtype)op->out.dtype)) {
        cast(r, op);
        return;
    }
    const struct packed *next = device_matrix(r, op, 0);
    const bool of_expert = program_weight_info(op->weight)->scope == PROGRAM_OF_EXPERT;
    const struct matmul_rows from = device_rows_of(r, op->in[0]);
    struct matmul_rows to = device_rows_of(r, op->out);
    const struct matmul_source source = {
        .x = from.x,
        .stride = from.stride,
        .n_row = device_row_count(r, op->in[0]),
        .n_col = op->in[0].n_col,
        .order = of_expert ? NULL : next->order,
        .scale = next->x_scale,
    };
    to.sums = next->group && !of_expert ? to.sums : NULL;
    to.scales = next->blocks ? to.scales : NULL;
    matmul_quantize(r->k, &to, &source, &r->d->x);
}

/* Floats as a matrix takes them whose inputs have an order; what quantizes orders bytes. */
static void put_in_order(const struct device_run *r, const struct packed *w, struct matmul_rows *x)
{
    const struct permute_cols_args a = {
        .y = r->d->ordered,
        .x = x->x,
        .element = sizeof(uint16_t),
        .order = w->order,
        .n_row = r->n,
        .n_col = w->n_in,
        .x_stride = x->stride,
        .y_stride = x->stride,
    };
    if (!w->order || matmul_reads_bytes(x->dtype))
        return;
    r->k->permute_cols(&a, &r->d->x);
    x->x = r->d->ordered;
}

/* out: the last operation of the stage. */
static void matmul(const struct device_run *r, const struct program_op *op,
                   const struct program_op *out)
{
    const struct packed *w = device_matrix(r, op, 0);
    const struct matmul_rows y = device_rows_of(r, out->out);
    struct matmul_rows x = device_rows_of(r, op->in[0]);
    put_in_order(r, w, &x);
    matmul_run(r->k,
               &(struct matmul){
                   .w = w,
                   .bias = program_vector(&r->d->m->weights, op->bias, op->layer),
                   .x = &x,
                   .y = y.x,
                   .y_dtype = y.dtype,
                   .y_stride = y.stride,
                   .n_row = r->n,
                   .add = out->onto,
               },
               &r->d->x);
}

static void add(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const struct add_rows_args a = {
        .y = y.x,
        .x = x.x,
        .n_row = r->n,
        .n_col = op->out.n_col,
        .x_stride = x.stride,
        .y_stride = y.stride,
        .scale = op->scale,
    };
    r->k->add_rows(&a, &r->d->x);
}

static void scale(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows y = device_rows_of(r, op->out);
    const struct add_rows_args a = {
        .y = y.x,
        .x = y.x,
        .n_row = r->n,
        .n_col = op->out.n_col,
        .x_stride = y.stride,
        .y_stride = y.stride,
        .scale = op->scale,
        .by = vector_of(r, op),
        .set = 1,
    };
    r->k->add_rows(&a, &r->d->x);
}

static void gate(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const struct matmul_rows by = device_rows_of(r, op->in[1]);
    const struct gate_rows_args a = {
        .y = y.x,
        .x = x.x,
        .gate = by.x,
        .n_row = r->n,
        .n_col = op->out.n_col,
        .x_stride = x.stride,
        .gate_stride = by.stride,
        .y_stride = y.stride,
        .by = op->gate,
    };
    r->k->gate_rows(&a, &r->d->x);
}

static void scale_q(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows y = device_rows_of(r, op->out);
    const struct add_rows_args a = {
        .y = y.x,
        .x = y.x,
        .n_row = r->n,
        .n_col = op->out.n_col,
        .x_stride = y.stride,
        .y_stride = y.stride,
        .scale = 1,
        .positions = r->s->batch->positions,
        .growth = op->by_position.growth,
        .length = op->by_position.length,
        .first = op->by_position.first,
        .set = 1,
    };
    r->k->add_rows(&a, &r->d->x);
}

static void soft_cap(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows y = device_rows_of(r, op->out);
    const struct soft_cap_args a = {
        .x = y.x,
        .n_row = r->n,
        .n_col = op->out.n_col,
        .x_stride = y.stride,
        .cap = op->cap,
        .hard = op->kind == PROGRAM_CLIP,
    };
    r->k->soft_cap(&a, &r->d->x);
}

static void activate_other(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const struct activate_args a = {
        .act = act_of(op->act.is),
        .gated = op->act.gated,
        .limit = op->act.limit,
        .positive = program_vector(&r->d->m->weights, op->weight, op->layer),
        .negative = program_vector(&r->d->m->weights, op->bias, op->layer),
        .y = y.x,
        .y_dtype = y.dtype,
        .x = x.x,
        .n_row = device_row_count(r, op->in[0]),
        .n_col = op->out.n_col,
        .x_stride = x.stride,
        .y_stride = y.stride,
    };
    r->k->activate(&a, &r->d->x);
}

static void activate(const struct device_run *r, const struct program_op *op)
{
    if (!device_needs_silu_mul(op)) {
        activate_other(r, op);
        return;
    }
    const struct matmul_rows x = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const struct silu_mul_args a = {
        .y = y.x,
        .y_dtype = y.dtype,
        .x = x.x,
        .n_row = device_row_count(r, op->in[0]),
        .n_col = op->out.n_col,
        .x_stride = x.stride,
        .y_stride = y.stride,
    };
    r->k->silu_mul(&a, &r->d->x);
}

/* Heads by LayerNorm, or by weights of their own: a launch each. */
static void norm_heads(const struct device_run *r, const struct program_op *op)
{
    const uint32_t unit = op->norm.unit, n_col = op->in[0].n_col;
    struct program_op one = *op;
    one.in[0].n_col = one.out.n_col = unit;
    for (uint32_t c = 0; c < n_col; c += unit) {
        const float *w = vector_of(r, op) + (op->norm.apart ? c : 0);
        if (op->norm.kind == ARCH_NORM_LAYER)
            layer_norm(r, &one, w);
        else
            norm_in_place(r, &one, w);
        one.in[0].col += unit;
        one.out.col += unit;
    }
}

static void norm_stage(const struct device_run *r, const struct program_stage *s)
{
    const struct program_op *op = &r->d->m->program.ops[s->first];
    const bool of_units = op->norm.unit != op->in[0].n_col,
               is_layer = op->norm.kind == ARCH_NORM_LAYER;
    if (of_units && is_layer)
        norm_heads(r, op);
    else if (of_units)
        device_norm_units(r, op);
    else if (is_layer)
        layer_norm(r, op, vector_of(r, op));
    else if (op->in_place)
        norm_in_place(r, op, vector_of(r, op));
    else
        norm(r, op, s->fusion == PROGRAM_FUSE_NORM_QUANTIZE ? op + 1 : NULL);
}

/* cos and sin of an operation's rope, a row a position. */
static const float *rope_table(const struct device_run *r, const struct program_op *op)
{
    const struct model *m = r->d->m;
    const struct region *table = op->rope.local ? &m->local_cos_sin : &m->rope_cos_sin;
    return model_rope_varies(m) && !op->rope.local ? r->s->cos_sin
                                                   : (const float *)(const void *)table->data;
}

static void rope_args(struct qkv_epilogue_args *a, const struct device_run *r,
                      const struct program_op *op)
{
    a->table = rope_table(r, op);
    a->n_rot = op->rope.n_rot;
    a->interleaved = op->rope.interleaved;
}

/* A rope apart from the store of K and V. */
static void rope(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows x = device_rows_of(r, op->out);
    const struct rope_args a = {
        .x = (float *)x.x + op->rope.first,
        .x_stride = x.stride,
        .table = rope_table(r, op),
        .pos = r->s->batch->positions,
        .n_row = r->n,
        .n_head = op->rope.n_head,
        .head_dim = op->rope.head_dim,
        .n_rot = op->rope.n_rot,
        .interleaved = op->rope.interleaved,
    };
    r->k->rope(&a, &r->d->x);
}

/* Norms of heads, rotation, K and V into the cache: one launch, and one for each norm that is not
 * of heads. Norms and rotation are left out where the stage has none. */
static void epilogue_qkv(const struct device_run *r, const struct program_stage *s)
{
    const struct program_op *ops = &r->d->m->program.ops[s->first], *store = &ops[s->n - 1];
    const struct program_ref first = ops->in[0], k = store->in[0];
    const struct matmul_rows qk = device_rows_of(r, first);
    const struct kv_cache *kv = r->s->kv;
    const uint32_t head_dim = store->attention.head_dim;
    struct qkv_epilogue_args a = {
        .x = qk.x,
        .x_stride = qk.stride,
        .pos = r->s->batch->positions,
        .k_cache = kv->k[model_kv_layer(r->d->m, store->layer)],
        .v_cache = kv->v[model_kv_layer(r->d->m, store->layer)],
        .kv_dtype = kv->dtype,
        .slot = r->s->batch->slot_mapping,
        .n_row = r->n,
        .n_head = (k.col - first.col) / head_dim,
        .n_kv_head = store->attention.n_kv_head,
        .head_dim = head_dim,
    };
    for (uint32_t i = 0; i + 1 < s->n; i++) {
        const struct program_op *op = &ops[i];
        if (op->kind == PROGRAM_ROPE) {
            rope_args(&a, r, op);
        } else if (device_needs_norm_apart(op)) {
            norm_heads(r, op);
        } else if (op->norm.unit != head_dim) {
            norm_in_place(r, op, vector_of(r, op));
        } else {
            a.eps = op->norm.eps;
            *(op->weight == PROGRAM_W_Q_NORM   ? &a.q_norm
              : op->weight == PROGRAM_W_V_NORM ? &a.v_norm
                                               : &a.k_norm) = vector_of(r, op);
        }
    }
    r->k->qkv_epilogue(&a, &r->d->x);
}

static void attention(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows q = device_rows_of(r, op->in[0]), out = device_rows_of(r, op->out);
    const struct batch *b = r->s->batch;
    const bool is_wide = op->attention.n_kv_head != r->d->limits.n_kv_head;
    const struct attention_args a = {
        .out = out.x,
        .out_dtype = out.dtype,
        .q = q.x,
        .out_stride = out.stride,
        .q_stride = q.stride,
        .k_cache = r->s->kv->k[model_kv_layer(r->d->m, op->layer)],
        .v_cache = r->s->kv->v[model_kv_layer(r->d->m, op->layer)],
        .kv_dtype = r->s->kv->dtype,
        .seqs = b->seqs,
        .n_seq = b->n_seq,
        .n_head = op->attention.n_head,
        .n_kv_head = op->attention.n_kv_head,
        .head_dim = op->attention.head_dim,
        .context_max = b->context_max,
        .scale = op->attention.scale,
        .soft_cap = op->attention.soft_cap,
        .window = op->attention.window,
        .both_ways = !op->attention.causal,
        .chunked = op->attention.chunked,
        .sinks = vector_of(r, op),
        .slopes = op->attention.alibi ? (const float *)(const void *)r->d->m->slopes.data : NULL,
        .plan = is_wide ? r->s->wide_plan : r->s->plan,
        .plan_host = is_wide ? r->s->wide_plan_host : r->s->plan_host,
        .n_row = r->n,
    };
    r->k->attention(&a, &r->d->x);
}

/* ---- latent attention ---- */

static void store_latent(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]);
    const struct mla_store_args a = {
        .cache = r->s->kv->k[model_kv_layer(r->d->m, op->layer)],
        .kv_dtype = r->s->kv->dtype,
        .x = x.x,
        .x_stride = x.stride,
        .slot = r->s->batch->slot_mapping,
        .n_row = r->n,
        .n_key = op->latent.n_key,
    };
    r->k->mla_store(&a, &r->d->x);
}

static void attention_latent(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows q = device_rows_of(r, op->in[0]), out = device_rows_of(r, op->out);
    const struct batch *b = r->s->batch;
    const struct mla_args a = {
        .out = out.x,
        .out_dtype = out.dtype,
        .q = q.x,
        .out_stride = out.stride,
        .q_stride = q.stride,
        .cache = r->s->kv->k[model_kv_layer(r->d->m, op->layer)],
        .kv_dtype = r->s->kv->dtype,
        .seqs = b->seqs,
        .n_seq = b->n_seq,
        .n_head = op->latent.n_head,
        .n_key = op->latent.n_key,
        .n_value = op->latent.n_value,
        .context_max = b->context_max,
        .scale = op->latent.scale,
        .plan = r->s->plan,
        .plan_host = r->s->plan_host,
        .n_row = r->n,
    };
    r->k->mla(&a, &r->d->x);
}

static void heads(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    struct head_linear_args a = heads_args(&r->d->m->weights, op);
    a.y = y.x;
    a.y_dtype = y.dtype;
    a.x = x.x;
    a.y_stride = y.stride;
    a.x_stride = x.stride;
    a.n_row = r->n;
    r->k->head_linear(&a, &r->d->x);
}

static void route(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]);
    unsigned char *routes = r->d->buffers[PROGRAM_B_ROUTES].data;
    const size_t n = (size_t)r->d->limits.n_row_max * op->route.n_used;
    const struct moe_route_args a = {
        .x = x.x,
        .x_stride = x.stride,
        .n_row = r->n,
        .n_expert = op->route.n_expert,
        .n_used = op->route.n_used,
        .renormalize = op->route.renormalize,
        .sigmoid = op->route.rule == ARCH_ROUTE_SIGMOID,
        .bias = program_vector(&r->d->m->weights, op->bias, op->layer),
        .n_group = op->route.n_group,
        .n_group_used = op->route.n_group_used,
        .scale = op->route.scale,
        .mixer = op->route.mixer,
        .scales = vector_of(r, op),
        .experts = (uint32_t *)(void *)routes,
        .weights = (float *)(void *)routes + n,
    };
    r->k->moe_route(&a, &r->d->x);
}

static void add_shared(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const struct matmul_rows scores = device_rows_of(r, op->in[1]);
    const struct moe_add_shared_args a = {
        .y = y.x,
        .y_stride = y.stride,
        .x = x.x,
        .x_stride = x.stride,
        .scores = scores.x,
        .score_stride = scores.stride,
        .n_row = r->n,
        .n_col = op->out.n_col,
    };
    r->k->moe_add_shared(&a, &r->d->x);
}

/* Stages of one operation whose code is in another file. */
typedef void stage_fn(const struct device_run *r, const struct program_op *op);
static stage_fn *const elsewhere[PROGRAM_KINDS] = {
    [PROGRAM_TYPES] = device_types,
    [PROGRAM_POOL] = device_pool,
    [PROGRAM_SHRINK] = device_shrink,
    [PROGRAM_EXPAND] = device_expand,
};

void device_stage(const struct device_run *r, const struct program_stage *s)
{
    const struct program_op *op = &r->d->m->program.ops[s->first], *last = op + s->n - 1;
    if (last->kind == PROGRAM_STORE) {
        epilogue_qkv(r, s);
        return;
    }
    switch (op->kind) {
    case PROGRAM_EMBED:
        embed(r, op);
        break;
    case PROGRAM_POSITIONS:
        positions(r, op);
        break;
    case PROGRAM_ITEMS:
        items(r, op);
        break;
    case PROGRAM_NORM:
        norm_stage(r, s);
        break;
    case PROGRAM_QUANTIZE:
        quantize(r, op);
        break;
    case PROGRAM_MATMUL:
        matmul(r, op, last);
        break;
    case PROGRAM_ACTIVATE:
        activate(r, op);
        break;
    case PROGRAM_ADD:
        add(r, op);
        break;
    case PROGRAM_SCALE:
        scale(r, op);
        break;
    case PROGRAM_GATE:
        gate(r, op);
        break;
    case PROGRAM_SCALE_Q:
        scale_q(r, op);
        break;
    case PROGRAM_SOFT_CAP:
    case PROGRAM_CLIP:
        soft_cap(r, op);
        break;
    case PROGRAM_ROPE:
        rope(r, op);
        break;
    case PROGRAM_ATTENTION:
        attention(r, op);
        break;
    case PROGRAM_STORE_LATENT:
        store_latent(r, op);
        break;
    case PROGRAM_ATTENTION_LATENT:
        attention_latent(r, op);
        break;
    case PROGRAM_HEADS:
        heads(r, op);
        break;
    case PROGRAM_ROUTE:
        route(r, op);
        break;
    case PROGRAM_SHARE:
        add_shared(r, op);
        break;
    default:
        Q_ASSERT(elsewhere[op->kind]); /* device_needs_check refuses others */
        elsewhere[op->kind](r, op);
    }
}

/* A pass over rows: the CPU's boundaries of blocks mean nothing here. */
static enum q_code run_pass(struct device_run *r, const struct program_pass *pass, struct q_err *e)
{
    const struct layer_program *p = &r->d->m->program;
    const uint32_t end = pass->first + pass->n;
    r->asked = pass->asked;
    r->n = pass->asked ? r->s->batch->n_logit : r->s->batch->n_token;
    enum q_code rc = Q_OK;
    for (uint32_t i = pass->first; i < end && !rc;) {
        const uint32_t n = program_repeated(p, i);
        const struct program_op *op = &p->ops[p->stages[i].first];
        if (op->kind == PROGRAM_EXPERTS)
            device_experts(r, &p->stages[i], n);
        else if (op->kind == PROGRAM_OWN)
            rc = own(r, op, e);
        else if (program_state_floats(op))
            device_state(r, op);
        else
            device_stage(r, &p->stages[i]);
        i += n;
    }
    return rc;
}

FALLIBLE executor_device_run(const struct executor_device *d, const struct device_step *s,
                             struct q_err *e)
{
    enum q_code rc = Q_OK;
    const struct layer_program *p = &d->m->program;
    const struct batch *b = s->batch;
    struct device_run r = {.d = d, .s = s, .k = d->m->kern};
    Q_ASSERT(b->n_token <= d->limits.n_row_max && b->n_seq <= d->limits.n_seq_max &&
             b->n_logit <= d->limits.n_logit_max);
    for (uint32_t i = 0; i < p->n_pass && !rc; i++)
        if (!p->passes[i].asked || b->n_logit)
            rc = run_pass(&r, &p->passes[i], e);
    return rc;
}
