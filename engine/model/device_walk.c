/* SPDX-License-Identifier: Apache-2.0 */
/* Activations, n = rows of the step:
 *     x     [n, hidden] f32                the residual stream
 *     h     [n, h_cols]                    input of the next product, or f32 of which q is made
 *     q     [n, h_cols] int8 or e4m3       that input, where device_walk_input says so; with scales
 *                                          of blocks in q_scales [n, scale_cols]
 *     ordered  [n, h_cols] of 16 bits      that input in the order of act-order weights
 *     wide  [n, q + 2 kv] or [n, 2 inter] f32   q,k,v; gate, up. Of gated weights: [n, h_cols], the
 *                                               input of down, as h is that of their product
 *     shared   [n, hidden] f32             what an expert that all rows use makes of them
 * and of a mixture of experts what device_experts.h has. */
#include "engine/model/device_walk.h"
#include "common/mem.h"
#include "engine/model/device_experts.h"
#include "engine/model/model_state.h"

struct device_walk {
    const struct model *m;
    struct region memory;
    struct device_limits limits;
    struct kern_exec x;
    float *x_rows, *wide, *shared;
    void *h, *ordered;
    int8_t *q;
    struct quant_row *q_rows;
    float *q_scales;
    int16_t *q_sums;
    size_t h_cols, scale_cols;
    struct device_experts experts;
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Of the widest MLP that all rows go through. */
static uint32_t widest(const struct model_config *c)
{
    return (uint32_t)larger(c->intermediate_size, c->moe.shared_width);
}

void device_walk_limits(struct device_limits *l, const struct model *m)
{
    const struct model_config *c = &m->config;
    l->context_max = m->shape.max_model_len;
    l->n_head = c->n_head;
    l->n_kv_head = c->n_kv_head;
    l->head_dim = c->head_dim;
    l->hidden_size = c->hidden_size;
    l->intermediate_size = widest(c);
    l->vocab_size = c->vocab_size;
    l->kv_dtype = m->shape.kv_dtype;
}

static bool reads_bytes(enum dtype input)
{
    return input == DT_I8 || input == DT_F8_E4M3;
}

/* 4-bit weights have one type of inputs whatever the number of rows is: a row's bits must not
 * depend on it. */
enum dtype device_walk_input(const struct model *m, const struct packed *weight)
{
    const enum dtype floats = m->shape.compute_dtype;
    const bool halves = weight->group && floats != DT_F32;
    return reads_bytes(weight->dtype) && !halves ? weight->dtype : floats;
}

enum dtype device_walk_made(const struct model *m, const struct packed *weight)
{
    const enum dtype input = device_walk_input(m, weight);
    return reads_bytes(input) ? DT_F32 : input;
}

void device_walk_needs(struct device_needs *to, const struct model *m, const struct packed *weight)
{
    const bool bytes = weight->data && reads_bytes(device_walk_input(m, weight));
    to->bytes |= bytes;
    to->sums |= bytes && weight->group;
    to->ordered |= !bytes && weight->order;
    to->halves |= !bytes && weight->group;
}

/* Of all matrices but those of experts. */
static struct device_needs needs_of(const struct model *m)
{
    struct device_needs n = {0};
    for (uint32_t i = 0; i < m->weights.n_layer; i++) {
        const struct layer_weights *g = &m->weights.layers[i];
        device_walk_needs(&n, m, &g->qkv);
        device_walk_needs(&n, m, &g->out);
        device_walk_needs(&n, m, &g->gate_up);
        device_walk_needs(&n, m, &g->down);
        if (g->experts) /* they read h and q too; act-order of them is their own affair */
            n.bytes |= reads_bytes(device_walk_input(m, &g->experts[0].gate_up));
    }
    device_walk_needs(&n, m, &m->weights.lm_head);
    return n;
}

static size_t qkv_cols(const struct model *m)
{
    return model_q_cols(m) + 2 * (size_t)model_kv_cols(m);
}

static void cut(struct device_walk *w, struct region_cutter *c)
{
    const struct model *m = w->m;
    const struct device_table *t = m->link->t;
    const struct device_needs needs = needs_of(m);
    const size_t n = w->limits.n_row_max, inter = widest(&m->config);
    const size_t cols = larger(larger(m->config.hidden_size, model_q_cols(m)), inter);
    const size_t n_q = needs.bytes ? n : 0, n_sum = needs.sums ? n : 0;
    const size_t n_shared = m->config.moe.shared_width ? n : 0;
    const size_t floats = dtype_bits(m->shape.compute_dtype) / 8;
    const size_t n_scale = m->shape.quantization == QUANTIZE_FP8 ? n : 0;
    w->h_cols = (cols + KERN_QUANT_K - 1) / KERN_QUANT_K * KERN_QUANT_K;
    w->scale_cols = device_scale_cols(w->h_cols);
    w->x_rows = region_cut(c, n * m->config.hidden_size, sizeof *w->x_rows);
    w->h = region_cut(c, n * w->h_cols, needs.bytes ? sizeof(float) : floats);
    w->ordered = region_cut(c, needs.ordered ? n * w->h_cols : 0, sizeof(uint16_t));
    w->q = region_cut(c, n_q * w->h_cols, sizeof *w->q);
    w->q_rows = region_cut(c, n_q, sizeof *w->q_rows);
    w->q_scales = region_cut(c, n_scale * w->scale_cols, sizeof *w->q_scales);
    w->q_sums = region_cut(c, n_sum * w->h_cols / KERN_QUANT_SUM, sizeof *w->q_sums);
    w->wide = region_cut(c, n * larger(larger(qkv_cols(m), 2 * inter), w->h_cols), sizeof *w->wide);
    w->shared = region_cut(c, n_shared * m->config.hidden_size, sizeof *w->shared);
    device_experts_cut(&w->experts, m, n, c);
    w->x.scratch_bytes = t->workspace_bytes(m->link->d, &w->limits);
    w->x.scratch = region_cut(c, 1, w->x.scratch_bytes);
}

static enum q_code check_operations(const struct model *m, struct q_err *e)
{
    const struct kern_table *k = m->kern;
    const enum quantization q = m->shape.quantization;
    const struct device_needs all = needs_of(m);
    const struct {
        const char *name;
        bool is_there;
    } needs[] = {{"embed", k->embed != NULL},
                 {"rms_norm", k->rms_norm != NULL},
                 {"norm_rows", k->norm_rows != NULL},
                 {"qkv_finish", k->qkv_finish != NULL},
                 {"attention", k->attention != NULL},
                 {"silu_mul", k->silu_mul != NULL},
                 {"scatter", k->scatter != NULL},
                 {"linear", k->linear != NULL},
                 {"quant_rows", !q || k->quant_rows},
                 {"linear_quant", !q || k->linear_quant},
                 {"linear_int4", q != QUANTIZE_INT4 || k->linear_int4},
                 {"linear_int4_half", !all.halves || k->linear_int4_half},
                 {"order_rows", !all.ordered || k->order_rows},
                 {"add_share", !m->config.moe.shared_width || k->add_share},
                 {"quant_rows_e4m3", q != QUANTIZE_FP8 || k->quant_rows_e4m3},
                 {"linear_e4m3", q != QUANTIZE_FP8 || k->linear_e4m3},
                 {"quant_rows_blocks", q != QUANTIZE_FP8 || k->quant_rows_blocks},
                 {"linear_blocks", q != QUANTIZE_FP8 || k->linear_blocks}};
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (!needs[i].is_there)
            return q_fail(e, Q_UNSUPPORTED, "device library \"%s\" has no %s; use --device cpu",
                          m->link->t->name, needs[i].name);
    return device_experts_check(m, e);
}

enum q_code device_walk_new(struct device_walk **out, const struct model *m,
                            const struct device_limits *l, struct q_err *e)
{
    enum q_code rc = check_operations(m, e);
    if (rc)
        return rc;
    struct device_walk *w = q_calloc(1, sizeof *w);
    if (!w)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a walk");
    w->m = m;
    w->limits = *l;
    w->x = (struct kern_exec){.nth = 1, .stream = m->link->s};
    struct region_cutter c = {0};
    cut(w, &c);
    if ((rc = region_init_on(&w->memory, c.used, "activations", m->link, e))) {
        q_free(w);
        return rc;
    }
    c = (struct region_cutter){.base = w->memory.data};
    cut(w, &c);
    *out = w;
    return Q_OK;
}

void device_walk_free(struct device_walk *w)
{
    if (!w)
        return;
    region_release(&w->memory);
    q_free(w);
}

const struct kern_exec *device_walk_exec(const struct device_walk *w)
{
    return &w->x;
}

size_t device_walk_turns_bytes(const struct model *m)
{
    return model_turns_vary(m) ? m->config.head_dim * sizeof(float) : 0;
}

bool device_walk_turns(const struct model *m, float *rows, const struct batch *b)
{
    const size_t n = m->config.head_dim;
    if (!model_turns_vary(m))
        return false;
    for (uint32_t i = 0; i < b->n_seq; i++)
        for (uint32_t j = 0; j < b->seqs[i].n_query; j++)
            rotary_row(&m->rotary, rows + (b->seqs[i].row + j) * n, b->seqs[i].start + j,
                       b->n_prompts ? b->n_prompts[i] : 0);
    return true;
}

struct run { /* one call */
    const struct device_walk *w;
    const struct device_step *s;
    const struct kern_table *k;
    uint32_t n; /* rows */
};

/* n rows of x, as many columns as `next` has inputs, into q, when next reads that. */
static void quantize(const struct run *r, const void *x, uint32_t n, const struct packed *next)
{
    const struct device_walk *w = r->w;
    const enum dtype input = device_walk_input(w->m, next);
    const struct quant_rows_args a = {.q = w->q,
                                      .rows = w->q_rows,
                                      .sums = next->group ? w->q_sums : NULL,
                                      .x = x,
                                      .order = next->order,
                                      .n_row = n,
                                      .n_col = next->n_in,
                                      .x_stride = w->h_cols,
                                      .q_stride = w->h_cols};
    const struct quant_rows_e4m3_args e4m3 = {.q = (uint8_t *)w->q,
                                              .rows = w->q_rows,
                                              .x = x,
                                              .n_row = n,
                                              .n_col = next->n_in,
                                              .x_stride = w->h_cols,
                                              .q_stride = w->h_cols};
    const struct quant_rows_blocks_args blocks = {.q = (uint8_t *)w->q,
                                                  .scales = w->q_scales,
                                                  .x = x,
                                                  .n_row = n,
                                                  .n_col = next->n_in,
                                                  .x_stride = w->h_cols,
                                                  .q_stride = w->h_cols,
                                                  .scale_stride = w->scale_cols};
    if (input == DT_I8)
        r->k->quant_rows(&a, &w->x);
    else if (next->blocks)
        r->k->quant_rows_blocks(&blocks, &w->x);
    else if (input == DT_F8_E4M3)
        r->k->quant_rows_e4m3(&e4m3, &w->x);
}

struct rows { /* of x: all of them, or those that `at` names */
    const uint32_t *at;
    uint32_t n;
};

/* Rows through a norm into the input of the product with `next`. */
static void norm(const struct run *r, const float *weight, struct rows rows,
                 const struct packed *next)
{
    const struct device_walk *w = r->w;
    const uint32_t hidden = w->m->config.hidden_size;
    const bool as_int8 = /* at once: no sums, no order */
        device_walk_input(w->m, next) == DT_I8 && !next->group;
    const struct norm_rows_args a = {.y = as_int8 ? (void *)w->q : w->h,
                                     .y_dtype = as_int8 ? DT_I8 : device_walk_made(w->m, next),
                                     .quant = w->q_rows,
                                     .x = w->x_rows,
                                     .rows = rows.at,
                                     .w = weight,
                                     .n_row = rows.n,
                                     .n_col = hidden,
                                     .x_stride = hidden,
                                     .y_stride = w->h_cols,
                                     .eps = (float)w->m->config.rms_norm_eps};
    r->k->norm_rows(&a, &w->x);
    if (!as_int8)
        quantize(r, w->h, rows.n, next);
}

struct product { /* y = W h + bias */
    const struct packed *weight;
    const float *bias;
    void *y;
    size_t y_stride;
    uint32_t n_row;
    bool add;           /* onto y */
    enum dtype y_dtype; /* F32 but of gated weights */
    const void *x;      /* instead of h; not of what reads q */
};

static void product_quant(const struct run *r, const struct product *p)
{
    const struct device_walk *w = r->w;
    const struct linear_quant_args a = {.y = p->y,
                                        .y_dtype = p->y_dtype,
                                        .x = w->q,
                                        .rows = w->q_rows,
                                        .w = *p->weight,
                                        .bias = p->bias,
                                        .n_row = p->n_row,
                                        .x_stride = w->h_cols,
                                        .y_stride = p->y_stride,
                                        .accumulate = p->add};
    const struct linear_blocks_args blocks = {.y = p->y,
                                              .y_dtype = p->y_dtype,
                                              .x = (const uint8_t *)w->q,
                                              .x_scales = w->q_scales,
                                              .w = *p->weight,
                                              .bias = p->bias,
                                              .n_row = p->n_row,
                                              .x_stride = w->h_cols,
                                              .y_stride = p->y_stride,
                                              .scale_stride = w->scale_cols,
                                              .accumulate = p->add};
    if (p->weight->blocks) {
        r->k->linear_blocks(&blocks, &w->x);
    } else if (p->weight->dtype == DT_F8_E4M3) {
        const struct linear_e4m3_args b = {a};
        r->k->linear_e4m3(&b, &w->x);
    } else if (p->weight->group) {
        const struct linear_int4_args b = {.by = a, .sums = w->q_sums};
        r->k->linear_int4(&b, &w->x);
    } else {
        r->k->linear_quant(&a, &w->x);
    }
}

/* n rows of x as weights whose inputs have an order take them, where x is not quantized for them:
 * then that puts them in order. */
static const void *in_order(const struct run *r, const struct packed *weight, const void *x,
                            uint32_t n)
{
    const struct device_walk *w = r->w;
    const struct order_rows_args a = {.y = w->ordered,
                                      .x = x,
                                      .element = sizeof(uint16_t),
                                      .order = weight->order,
                                      .n_row = n,
                                      .n_col = weight->n_in,
                                      .x_stride = w->h_cols,
                                      .y_stride = w->h_cols};
    if (!weight->order || reads_bytes(device_walk_input(w->m, weight)))
        return x;
    r->k->order_rows(&a, &w->x);
    return w->ordered;
}

static void product(const struct run *r, const struct product *p)
{
    const struct device_walk *w = r->w;
    const enum dtype input = device_walk_input(w->m, p->weight);
    const void *x = in_order(r, p->weight, p->x ? p->x : w->h, p->n_row);
    const struct linear_int4_half_args a = {{.y = p->y,
                                             .y_dtype = p->y_dtype,
                                             .x = x,
                                             .x_dtype = input,
                                             .w = *p->weight,
                                             .bias = p->bias,
                                             .n_row = p->n_row,
                                             .x_stride = w->h_cols,
                                             .y_stride = p->y_stride,
                                             .accumulate = p->add}};
    if (reads_bytes(input))
        product_quant(r, p);
    else if (p->weight->group)
        r->k->linear_int4_half(&a, &w->x);
    else
        r->k->linear(&a.by, &w->x);
}

/* All columns of q, or of k, through one norm. */
static void norm_whole(const struct run *r, float *x, uint32_t n_col, const float *weight)
{
    const struct device_walk *w = r->w;
    const struct rms_norm_args a = {.y = x,
                                    .y_dtype = DT_F32,
                                    .x = x,
                                    .w = weight,
                                    .n_row = r->n,
                                    .n_col = n_col,
                                    .x_stride = qkv_cols(w->m),
                                    .y_stride = qkv_cols(w->m),
                                    .eps = (float)w->m->config.rms_norm_eps};
    r->k->rms_norm(&a, &w->x);
}

/* Head norms, rotation, K and V into the cache. */
static void finish_qkv(const struct run *r, uint32_t layer)
{
    const struct device_walk *w = r->w;
    const struct model_config *c = &w->m->config;
    const struct layer_weights *g = &w->m->weights.layers[layer];
    const bool norms = w->m->arch->layer.qk_norm == ARCH_QK_NORM_HEADS;
    const struct qkv_finish_args a = {.x = w->wide,
                                      .x_stride = qkv_cols(w->m),
                                      .q_norm = norms ? g->q_norm : NULL,
                                      .k_norm = norms ? g->k_norm : NULL,
                                      .eps = (float)c->rms_norm_eps,
                                      .table = model_turns_vary(w->m)
                                                   ? r->s->turns
                                                   : (const float *)(const void *)w->m->turns.data,
                                      .pos = r->s->batch->positions,
                                      .k_cache = r->s->kv->k[layer],
                                      .v_cache = r->s->kv->v[layer],
                                      .kv_dtype = r->s->kv->dtype,
                                      .slot = r->s->batch->slots,
                                      .n_row = r->n,
                                      .n_head = c->n_head,
                                      .n_kv_head = c->n_kv_head,
                                      .head_dim = c->head_dim,
                                      .n_rot = c->head_dim};
    if (w->m->arch->layer.qk_norm == ARCH_QK_NORM_WHOLE) {
        norm_whole(r, w->wide, model_q_cols(w->m), g->q_norm);
        norm_whole(r, w->wide + model_q_cols(w->m), model_kv_cols(w->m), g->k_norm);
    }
    r->k->qkv_finish(&a, &w->x);
}

/* Attention, its output as the input of the product that follows. */
static void attend(const struct run *r, uint32_t layer)
{
    const struct device_walk *w = r->w;
    const struct model_config *c = &w->m->config;
    const struct packed *next = &w->m->weights.layers[layer].out;
    const struct attention_args a = {.out = w->h,
                                     .out_dtype = device_walk_made(w->m, next),
                                     .q = w->wide,
                                     .out_stride = w->h_cols,
                                     .q_stride = qkv_cols(w->m),
                                     .k_cache = r->s->kv->k[layer],
                                     .v_cache = r->s->kv->v[layer],
                                     .kv_dtype = r->s->kv->dtype,
                                     .seqs = r->s->batch->seqs,
                                     .n_seq = r->s->batch->n_seq,
                                     .n_head = c->n_head,
                                     .n_kv_head = c->n_kv_head,
                                     .head_dim = c->head_dim,
                                     .context_max = r->s->batch->context_max,
                                     .scale = w->m->attention_scale,
                                     .window = c->window[layer],
                                     .plan = r->s->plan,
                                     .n_row = r->n};
    r->k->attention(&a, &w->x);
    quantize(r, w->h, r->n, next);
}

/* silu(gate) * up of h, as the input of down: in one product, gate and up by turns. It goes to h
 * where the product reads q; else the product reads h, so it goes elsewhere. */
static const void *gate(const struct run *r, const struct layer_weights *g)
{
    const struct device_walk *w = r->w;
    void *y = reads_bytes(device_walk_input(w->m, &g->gate_up)) ? w->h : (void *)w->wide;
    product(r, &(struct product){.weight = &g->gate_up,
                                 .bias = g->gate_up_bias,
                                 .y = y,
                                 .y_stride = w->h_cols,
                                 .n_row = r->n,
                                 .y_dtype = device_walk_made(w->m, &g->down)});
    quantize(r, y, r->n, &g->down);
    return y;
}

/* The same of gate, then up. */
static const void *activate(const struct run *r, const struct layer_weights *g)
{
    const struct device_walk *w = r->w;
    const uint32_t inter = g->down.n_in;
    const struct silu_mul_args a = {.y = w->h,
                                    .y_dtype = device_walk_made(w->m, &g->down),
                                    .x = w->wide,
                                    .n_row = r->n,
                                    .n_col = inter,
                                    .x_stride = 2 * (size_t)inter,
                                    .y_stride = w->h_cols};
    product(r, &(struct product){.weight = &g->gate_up,
                                 .bias = g->gate_up_bias,
                                 .y = w->wide,
                                 .y_stride = 2 * (size_t)inter,
                                 .n_row = r->n});
    r->k->silu_mul(&a, &w->x);
    quantize(r, w->h, r->n, &g->down);
    return w->h;
}

/* The MLP of a layer: onto the residual stream, or to y. */
static void mlp(const struct run *r, const struct layer_weights *g, float *y, bool add)
{
    norm(r, g->mlp_norm, (struct rows){NULL, r->n}, &g->gate_up);
    product(r, &(struct product){.x = g->gate_up.gated ? gate(r, g) : activate(r, g),
                                 .weight = &g->down,
                                 .bias = g->down_bias,
                                 .y = y,
                                 .y_stride = r->w->m->config.hidden_size,
                                 .n_row = r->n,
                                 .add = add});
}

/* Does h still have, after mlp(), what the experts' norm would write there? */
static bool is_normed(const struct model *m, const struct layer_weights *g)
{
    return g->gate_up.gated && !reads_bytes(device_walk_input(m, &g->gate_up)) &&
           device_walk_made(m, &g->gate_up) == device_walk_made(m, &g->experts[0].gate_up);
}

/* Experts, and one that all rows use: that is computed first, while x is what both read, and added
 * last, as on the CPU. */
static void mixture(const struct run *r, const struct layer_weights *g)
{
    const struct device_walk *w = r->w;
    const size_t hidden = w->m->config.hidden_size;
    const uint32_t n_expert = w->m->config.moe.n_expert;
    const bool is_shared = g->gate_up.data != NULL;
    const struct add_share_args a = {.y = w->x_rows,
                                     .y_stride = hidden,
                                     .x = w->shared,
                                     .x_stride = hidden,
                                     .scores = w->experts.scores + n_expert,
                                     .score_stride = g->router.n_out,
                                     .n_row = r->n,
                                     .n_col = (uint32_t)hidden};
    if (is_shared)
        mlp(r, g, w->shared, false);
    device_experts_run(&w->experts, w->m, g,
                       &(struct expert_rows){.exec = &w->x,
                                             .x = w->x_rows,
                                             .h = w->h,
                                             .q = w->q,
                                             .q_rows = w->q_rows,
                                             .q_scales = w->q_scales,
                                             .h_cols = w->h_cols,
                                             .scale_cols = w->scale_cols,
                                             .n = r->n,
                                             .is_normed = is_shared && is_normed(w->m, g)});
    if (is_shared)
        r->k->add_share(&a, &w->x);
}

static void layer(const struct run *r, uint32_t i)
{
    const struct device_walk *w = r->w;
    const struct layer_weights *g = &w->m->weights.layers[i];
    const size_t hidden = w->m->config.hidden_size;
    norm(r, g->attn_norm, (struct rows){NULL, r->n}, &g->qkv);
    product(r, &(struct product){.weight = &g->qkv,
                                 .bias = g->qkv_bias,
                                 .y = w->wide,
                                 .y_stride = qkv_cols(w->m),
                                 .n_row = r->n});
    finish_qkv(r, i);
    attend(r, i);
    product(r, &(struct product){.weight = &g->out,
                                 .bias = g->out_bias,
                                 .y = w->x_rows,
                                 .y_stride = hidden,
                                 .n_row = r->n,
                                 .add = true});
    if (g->experts)
        mixture(r, g);
    else
        mlp(r, g, w->x_rows, true);
}

void device_walk_run(const struct device_walk *w, const struct device_step *s)
{
    const struct weights *g = &w->m->weights;
    const struct batch *b = s->batch;
    const struct run r = {.w = w, .s = s, .k = w->m->kern, .n = b->n_token};
    const struct embed_args a = {.y = w->x_rows,
                                 .table = g->embed,
                                 .dtype = g->embed_dtype,
                                 .ids = b->token_ids,
                                 .n_row = r.n,
                                 .n_col = w->m->config.hidden_size,
                                 .scale = 1};
    Q_ASSERT(r.n <= w->limits.n_row_max && b->n_seq <= w->limits.n_seq_max &&
             b->n_logit <= w->limits.n_logit_max);
    r.k->embed(&a, &w->x);
    for (uint32_t i = 0; i < w->m->config.n_layer; i++)
        layer(&r, i);
    if (b->n_logit == 0)
        return;
    norm(&r, g->final_norm, (struct rows){b->logit_rows, b->n_logit}, &g->lm_head);
    product(&r, &(struct product){.weight = &g->lm_head,
                                  .y = s->logits,
                                  .y_stride = w->m->config.vocab_size,
                                  .n_row = b->n_logit});
}
