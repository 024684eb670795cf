/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder walk. Every thread runs all of this file; an op gives each thread its share, and
 * walk_sync() stands between an op and the next one that reads what another thread wrote ( | ):
 *
 *   embed, turns |
 *   for layers
 *     for blocks of rows { norm (|) q,k,v | head norms, rotate, store }
 *     | attention | (parts of long contexts that were split are joined |)
 *     for blocks of rows { (int8: quantize (|)) out += | norm (|) gate,up,silu |
 *                          (int8: quantize (|)) down += }
 *     |
 *   final norm of the asked rows (|) lm_head |
 *
 * A block's activations stay in the caches from one product to the next. The next block needs no
 * barrier: it writes `in` behind one that all pass after they last read it, then `act` likewise.
 *
 * (|): where rows are few, each thread makes the whole input of a product for itself, in a copy of
 * its own: that costs less than meeting the others (walk_alone()). So decoding one sequence meets
 * six times a layer: after q,k,v; before attention and after it; after out, gated and down. A layer
 * with experts has them in place of gate,up,silu and down (experts.c).
 *
 * Row work between q,k,v and attention (head norms, rotation, storing K and V) touches one row at a
 * time, so a thread takes a range of rows through all of it with no barrier in between. */
#include <string.h>
#include "engine/model/walk.h"

static void embed(const struct walk *w)
{
    const struct weights *g = &w->m->weights;
    struct embed_args a = {.y = w->s->x,
                           .table = g->embed,
                           .dtype = g->embed_dtype,
                           .packed = g->embed_packed,
                           .ids = w->b->token_ids,
                           .n_row = w->b->n_token,
                           .n_col = w->m->config.hidden_size,
                           .scale = 1};
    w->m->kern->embed(&a, &w->x);
}

/* (cos, sin) of this thread's rows. */
static void turn_rows(const struct walk *w)
{
    const uint32_t head_dim = w->m->config.head_dim, own_end = w->own.at + w->own.n;
    for (uint32_t i = 0; i < w->b->n_seq; i++) {
        const struct attention_seq *q = &w->b->seqs[i];
        uint32_t from = q->row > w->own.at ? q->row : w->own.at;
        uint32_t end = q->row + q->n_query < own_end ? q->row + q->n_query : own_end;
        for (uint32_t r = from; r < end; r++)
            rotary_row(&w->m->rotary, w->s->turns + (size_t)r * head_dim, w->b->positions[r],
                       w->b->n_prompts ? w->b->n_prompts[i] : 0);
    }
}

struct normed { /* what a norm makes is the input of */
    const float *norm;
    const struct packed *weight;
};

/* Row r of x through a norm into `row`; int8: by way of one f32 row that stays in L1. */
static void norm_into(const struct walk *w, uint32_t r, const struct normed *n,
                      const struct operand *row)
{
    const uint32_t hidden = w->m->config.hidden_size;
    if (!w->m->shape.quantization) {
        walk_norm_row(w, r, n->norm, row->x, model_input_dtype(w->m));
        return;
    }
    float *made_of = w->s->norm + (size_t)w->x.ith * hidden;
    walk_norm_row(w, r, n->norm, made_of, DT_F32);
    walk_quantize(w, row, &(struct floats){made_of, hidden, 1, n->weight});
}

/* The block's rows of x through a norm into `in`. */
static struct operand norm_block(const struct walk *w, const struct normed *n)
{
    const uint32_t hidden = w->m->config.hidden_size;
    const struct operand to = walk_operand_of(w, &w->s->in, hidden);
    const struct rows r = walk_to_make(w, hidden);
    for (uint32_t i = r.at; i < r.at + r.n; i++) {
        const struct operand row = walk_operand_at(w, &to, i - w->block.at);
        norm_into(w, i, n, &row);
    }
    walk_made(w, hidden);
    return to;
}

/* Neighbouring vectors, n of them, each through the norm. */
static void norm_vectors(const struct walk *w, float *x, uint32_t n, uint32_t n_col,
                         const float *weight)
{
    struct rms_norm_args a = {.y = x,
                              .y_dtype = DT_F32,
                              .x = x,
                              .w = weight,
                              .n_row = n,
                              .n_col = n_col,
                              .x_stride = n_col,
                              .y_stride = n_col,
                              .eps = (float)w->m->config.rms_norm_eps};
    w->m->kern->rms_norm(&a, &w->mine);
}

/* q and k of a row. */
static void norm_qk(const struct walk *w, float *row, const struct layer_weights *g)
{
    const struct model_config *c = &w->m->config;
    const uint32_t q = model_q_cols(w->m), kv = model_kv_cols(w->m);
    if (w->m->arch->layer.qk_norm == ARCH_QK_NORM_HEADS) {
        norm_vectors(w, row, c->n_head, c->head_dim, g->q_norm);
        norm_vectors(w, row + q, c->n_kv_head, c->head_dim, g->k_norm);
    } else if (w->m->arch->layer.qk_norm == ARCH_QK_NORM_WHOLE) {
        norm_vectors(w, row, 1, q, g->q_norm);
        norm_vectors(w, row + q, 1, kv, g->k_norm);
    }
}

/* Head norms, rotation, and K and V into the cache, for this thread's rows of the block. */
static void finish_qkv(const struct walk *w, uint32_t layer)
{
    const struct layer_weights *g = &w->m->weights.layers[layer];
    const struct model_config *c = &w->m->config;
    const struct rows r = walk_share(w, w->block);
    const size_t stride = w->s->qkv_stride;
    float *rows = w->s->qkv + r.at * stride;
    uint32_t q = model_q_cols(w->m), kv = model_kv_cols(w->m);
    if (r.n == 0)
        return;
    for (uint32_t i = 0; i < r.n; i++)
        norm_qk(w, rows + i * stride, g);
    struct rope_args turn = {.x = rows, /* q heads, and behind them k heads */
                             .x_stride = stride,
                             .table = w->s->turns + (size_t)r.at * c->head_dim,
                             .pos = w->s->rows,
                             .n_row = r.n,
                             .n_head = c->n_head + c->n_kv_head,
                             .head_dim = c->head_dim,
                             .n_rot = c->head_dim};
    w->m->kern->rope(&turn, &w->mine);
    struct kv_store_args store = {.k_cache = w->kv->k[layer],
                                  .v_cache = w->kv->v[layer],
                                  .kv_dtype = w->kv->dtype,
                                  .k = rows + q,
                                  .v = rows + q + kv,
                                  .k_stride = stride,
                                  .v_stride = stride,
                                  .slot = w->b->slots + r.at,
                                  .n_row = r.n,
                                  .n_kv_head = c->n_kv_head,
                                  .head_dim = c->head_dim};
    w->m->kern->kv_store(&store, &w->mine);
}

static void attend(const struct walk *w, uint32_t layer)
{
    const struct model_config *c = &w->m->config;
    struct attention_args a = {.out = w->s->att.x,
                               .out_dtype = model_input_dtype(w->m),
                               .q = w->s->qkv,
                               .out_stride = w->s->att.stride,
                               .q_stride = w->s->qkv_stride,
                               .k_cache = w->kv->k[layer],
                               .v_cache = w->kv->v[layer],
                               .kv_dtype = w->kv->dtype,
                               .seqs = w->b->seqs,
                               .n_seq = w->b->n_seq,
                               .n_head = c->n_head,
                               .n_kv_head = c->n_kv_head,
                               .head_dim = c->head_dim,
                               .context_max = w->b->context_max,
                               .scale = w->m->attention_scale,
                               .window = c->window[layer],
                               .parts = w->s->parts,
                               .n_part = w->s->n_part};
    w->m->kern->attention(&a, &w->x);
    walk_sync(w);
    if (!kern_attention_splits(&a, w->x.nth))
        return;
    w->m->kern->attention_join(&(struct attention_join_args){&a}, &w->x);
    walk_sync(w);
}

static void qkv_block(const struct walk *w, uint32_t layer)
{
    const struct layer_weights *g = &w->m->weights.layers[layer];
    const struct operand x = norm_block(w, &(struct normed){g->attn_norm, &g->qkv});
    walk_product(w, &(struct product){.weight = &g->qkv,
                                      .bias = g->qkv_bias,
                                      .x = &x,
                                      .y = w->s->qkv + w->block.at * w->s->qkv_stride,
                                      .y_stride = w->s->qkv_stride,
                                      .n_row = w->block.n});
    walk_sync(w);
    finish_qkv(w, layer);
}

/* The block's rows of attention's output as the product with `weight` takes them. */
static struct operand attended(const struct walk *w, const struct packed *weight)
{
    const uint32_t n_col = model_q_cols(w->m);
    if (!w->m->shape.quantization)
        return walk_operand_at(w, &w->s->att, w->block.at);
    const struct operand to = walk_operand_of(w, &w->s->in, n_col);
    const struct rows r = walk_to_make(w, n_col);
    const struct operand mine = walk_operand_at(w, &to, r.at - w->block.at);
    const size_t stride = w->s->att.stride;
    const float *from = (const float *)w->s->att.x + r.at * stride;
    walk_quantize(w, &mine, &(struct floats){from, stride, r.n, weight});
    walk_made(w, n_col);
    return to;
}

/* A product onto the block's rows of x. */
static void add_product(const struct walk *w, const struct packed *weight, const float *bias,
                        const struct operand *x)
{
    const size_t hidden = w->m->config.hidden_size;
    walk_product(w, &(struct product){.weight = weight,
                                      .bias = bias,
                                      .x = x,
                                      .y = w->s->x + w->block.at * hidden,
                                      .y_stride = hidden,
                                      .n_row = w->block.n,
                                      .add = true});
}

static void mlp_block(const struct walk *w, uint32_t layer)
{
    const struct layer_weights *g = &w->m->weights.layers[layer];
    const struct operand att = attended(w, &g->out);
    add_product(w, &g->out, g->out_bias, &att);
    walk_sync(w);
    if (g->experts) {
        walk_experts(w, g);
        return;
    }
    const struct operand x = norm_block(w, &(struct normed){g->mlp_norm, &g->gate_up});
    const struct operand act = walk_activated(w, g, &x);
    add_product(w, &g->down, g->down_bias, &act);
}

/* The block that begins at row `at` of n. */
static struct rows block_at(const struct walk *w, uint32_t at, uint32_t n)
{
    return (struct rows){at, n - at < w->s->block_rows ? n - at : w->s->block_rows};
}

static void layer(struct walk *w, uint32_t i)
{
    const uint32_t n = w->b->n_token;
    for (uint32_t at = 0; at < n; at += w->s->block_rows) {
        w->block = block_at(w, at, n);
        qkv_block(w, i);
    }
    walk_sync(w);
    attend(w, i);
    for (uint32_t at = 0; at < n; at += w->s->block_rows) {
        w->block = block_at(w, at, n);
        mlp_block(w, i);
    }
    walk_sync(w);
}

static void tap(const struct walk *w, uint32_t index)
{
    size_t hidden = w->m->config.hidden_size;
    if (!w->s->tap)
        return;
    float *out = w->s->tap[index] + w->own.at * hidden;
    if (index < w->m->config.n_layer)
        memcpy(out, w->s->x + w->own.at * hidden, w->own.n * hidden * sizeof *out);
    else
        for (uint32_t i = 0; i < w->own.n; i++)
            walk_norm_row(w, w->own.at + i, w->m->weights.final_norm, out + i * hidden, DT_F32);
}

/* The block's asked rows: here a row's number is its place in logit_rows behind `first`. */
static void head_block(const struct walk *w, uint32_t first)
{
    const struct model_config *c = &w->m->config;
    const struct weights *g = &w->m->weights;
    const struct operand x = walk_operand_of(w, &w->s->in, c->hidden_size);
    const struct rows r = walk_to_make(w, c->hidden_size);
    const struct normed n = {g->final_norm, &g->lm_head};
    for (uint32_t i = r.at; i < r.at + r.n; i++) {
        const struct operand row = walk_operand_at(w, &x, i - w->block.at);
        norm_into(w, w->b->logit_rows[first + i], &n, &row);
    }
    walk_made(w, c->hidden_size);
    walk_product(w, &(struct product){.weight = &g->lm_head,
                                      .x = &x,
                                      .y = w->logits + (size_t)w->block.at * c->vocab_size,
                                      .y_stride = c->vocab_size,
                                      .n_row = w->block.n});
    walk_sync(w);
}

static struct walk walk_of(const struct model *m, const struct batch *b, struct model_scratch *s,
                           struct team *team, struct kern_exec x)
{
    x.scratch = s->kern + x.ith * s->kern_bytes;
    x.scratch_bytes = s->kern_bytes;
    Q_ASSERT(b->n_token <= s->n_token_max && b->n_logit <= b->n_token && x.nth <= s->n_thread);
    struct walk w = {.m = m, .b = b, .s = s, .team = team, .x = x, .mine = x};
    w.mine.ith = 0;
    w.mine.nth = 1;
    w.own = walk_share(&w, (struct rows){0, b->n_token});
    return w;
}

void model_forward(const struct model *m, const struct batch *b, const struct kv_cache *kv,
                   struct model_scratch *s, float *logits, struct team *team, uint32_t ith,
                   uint32_t nth)
{
    struct walk w = walk_of(m, b, s, team, (struct kern_exec){.ith = ith, .nth = nth});
    w.kv = kv;
    embed(&w);
    turn_rows(&w);
    walk_sync(&w);
    tap(&w, 0);
    uint32_t end = b->n_layer ? b->layer + b->n_layer : m->config.n_layer;
    Q_ASSERT(end <= m->config.n_layer);
    for (uint32_t i = b->layer; i < end; i++) {
        layer(&w, i);
        if (i + 1 < m->config.n_layer)
            tap(&w, i + 1);
    }
    tap(&w, m->config.n_layer);
    if (logits)
        model_logits(m, b, s, &(struct model_logits){logits, 0, b->n_logit}, team, ith, nth);
}

void model_logits(const struct model *m, const struct batch *b, struct model_scratch *s,
                  const struct model_logits *out, struct team *team, uint32_t ith, uint32_t nth)
{
    struct walk w = walk_of(m, b, s, team, (struct kern_exec){.ith = ith, .nth = nth});
    Q_ASSERT(out->first + out->n <= b->n_logit);
    w.logits = out->rows;
    for (uint32_t at = 0; at < out->n; at += s->block_rows) {
        w.block = block_at(&w, at, out->n);
        head_block(&w, out->first);
    }
}
