/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder walk. Every thread runs all of this file; an op gives each thread its share, and
 * sync() stands between an op and the next one that reads what another thread wrote:
 *
 *   embed, turns | { norm | q,k,v | head norms, rotate, store | attention | (bf16) | out += | norm
 * | gate,up | silu | down += } per layer | final norm of the asked rows | lm_head | ( | is a
 * barrier )
 *
 * With int8 weights, whoever has written rows of h quantizes them (quantize_rows) before the
 * barrier; after attention, whose threads share rows, there is one more.
 *
 * Row work between q,k,v and attention (head norms, rotation, storing K and V) touches one row at a
 * time, so a thread takes a range of rows through all of it with no barrier in between. */
#include <string.h>
#include "engine/model/model_state.h"

struct walk {
    const struct model *m;
    const struct batch *b;
    const struct kv_cache *kv;
    struct model_scratch *s;
    float *logits;
    struct team *team;
    struct kern_exec x;    /* this thread's share of an op all threads run */
    struct kern_exec mine; /* an op this thread runs alone on its own rows */
    uint32_t row, n_row;   /* this thread's own rows */
};

static void sync(const struct walk *w)
{
    if (w->x.nth > 1)
        team_barrier(w->team);
}

static enum dtype input_dtype(const struct walk *w)
{
    return model_input_dtype(w->m);
}

/* Rows row … row + n_row - 1 of h, which this thread has just written, as int8. */
static void quantize_rows(const struct walk *w, uint32_t row, uint32_t n_row, uint32_t n_col)
{
    const struct model_scratch *s = w->s;
    struct quant_rows_args a = {.q = s->q + (size_t)row * s->h_cols,
                                .rows = s->q_rows + row,
                                .x = (const float *)s->h + (size_t)row * s->h_cols,
                                .n_row = n_row,
                                .n_col = n_col,
                                .x_stride = s->h_cols,
                                .q_stride = s->h_cols};
    if (w->m->shape.quantization == QUANTIZE_INT4)
        a.sums = s->q_sums + (size_t)row * s->h_cols / KERN_QUANT_SUM;
    w->m->kern->quant_rows(&a, &w->mine);
}

/* Rows of q,k,v and, behind them in the same memory, of attention's output. */
static size_t qkv_stride(const struct walk *w)
{
    return w->m->weights.layers[0].qkv.n_out;
}

static float *attention_out(const struct walk *w)
{
    size_t n = w->b->n_token * qkv_stride(w);
    return w->s->wide + (n + 15) / 16 * 16;
}

static void embed(const struct walk *w)
{
    const struct weights *g = &w->m->weights;
    struct embed_args a = {.y = w->s->x,
                           .table = g->embed,
                           .dtype = g->embed_dtype,
                           .ids = w->b->token_ids,
                           .n_row = w->b->n_token,
                           .n_col = w->m->config.hidden_size,
                           .scale = 1};
    w->m->kern->embed(&a, &w->x);
}

/* (cos, sin) of this thread's rows. */
static void turn_rows(const struct walk *w)
{
    uint32_t head_dim = w->m->config.head_dim;
    for (uint32_t i = 0; i < w->b->n_seq; i++) {
        const struct attention_seq *q = &w->b->seqs[i];
        uint32_t from = q->row > w->row ? q->row : w->row;
        uint32_t end =
            q->row + q->n_query < w->row + w->n_row ? q->row + q->n_query : w->row + w->n_row;
        for (uint32_t r = from; r < end; r++)
            rotary_row(&w->m->rotary, w->s->turns + (size_t)r * head_dim, w->b->positions[r],
                       w->b->n_prompts ? w->b->n_prompts[i] : 0);
    }
}

/* This thread's rows of x through a norm into h. */
static void norm_rows(const struct walk *w, const float *weight)
{
    const uint32_t hidden = w->m->config.hidden_size;
    const size_t h_bytes = w->s->h_cols * (dtype_bits(input_dtype(w)) / 8);
    struct rms_norm_args a = {.y = (char *)w->s->h + w->row * h_bytes,
                              .y_dtype = input_dtype(w),
                              .x = w->s->x + (size_t)w->row * hidden,
                              .w = weight,
                              .n_row = w->n_row,
                              .n_col = hidden,
                              .x_stride = hidden,
                              .y_stride = w->s->h_cols,
                              .eps = (float)w->m->config.rms_norm_eps};
    w->m->kern->rms_norm(&a, &w->mine);
    if (w->m->shape.quantization)
        quantize_rows(w, w->row, w->n_row, hidden);
}

struct product { /* y = W x + bias, x in h or in f32 rows */
    const struct packed *weight;
    const float *bias;
    float *y;
    size_t y_stride;
    uint32_t n_row;
    bool add; /* onto y */
};

static void product_quant(const struct walk *w, const struct product *p)
{
    struct linear_int4_args a = {.by = {.y = p->y,
                                        .x = w->s->q,
                                        .rows = w->s->q_rows,
                                        .w = *p->weight,
                                        .bias = p->bias,
                                        .n_row = p->n_row,
                                        .x_stride = w->s->h_cols,
                                        .y_stride = p->y_stride,
                                        .accumulate = p->add},
                                 .sums = w->s->q_sums};
    if (p->weight->group)
        w->m->kern->linear_int4(&a, &w->x);
    else
        w->m->kern->linear_quant(&a.by, &w->x);
}

static void product(const struct walk *w, const struct product *p)
{
    if (w->m->shape.quantization) {
        product_quant(w, p);
        return;
    }
    struct linear_args a = {.y = p->y,
                            .x = w->s->h,
                            .x_dtype = input_dtype(w),
                            .w = *p->weight,
                            .bias = p->bias,
                            .n_row = p->n_row,
                            .x_stride = w->s->h_cols,
                            .y_stride = p->y_stride,
                            .accumulate = p->add};
    w->m->kern->linear(&a, &w->x);
}

/* The heads of row r from `head` on, each through the norm. */
static void norm_heads(const struct walk *w, float *heads, uint32_t n_head, const float *weight)
{
    uint32_t head_dim = w->m->config.head_dim;
    struct rms_norm_args a = {.y = heads,
                              .y_dtype = DT_F32,
                              .x = heads,
                              .w = weight,
                              .n_row = n_head,
                              .n_col = head_dim,
                              .x_stride = head_dim,
                              .y_stride = head_dim,
                              .eps = (float)w->m->config.rms_norm_eps};
    w->m->kern->rms_norm(&a, &w->mine);
}

/* Head norms, rotation, and K and V into the cache, for this thread's rows. */
static void finish_qkv(const struct walk *w, uint32_t layer)
{
    const struct layer_weights *g = &w->m->weights.layers[layer];
    const struct model_config *c = &w->m->config;
    size_t stride = qkv_stride(w);
    float *rows = w->s->wide + w->row * stride;
    uint32_t q = model_q_cols(w->m), kv = model_kv_cols(w->m);
    if (w->n_row == 0)
        return;
    for (uint32_t i = 0; i < w->n_row && w->m->arch->qk_norm; i++) {
        norm_heads(w, rows + i * stride, c->n_head, g->q_norm);
        norm_heads(w, rows + i * stride + q, c->n_kv_head, g->k_norm);
    }
    struct rope_args turn = {.x = rows, /* q heads, and behind them k heads */
                             .x_stride = stride,
                             .table = w->s->turns + (size_t)w->row * c->head_dim,
                             .pos = w->s->rows,
                             .n_row = w->n_row,
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
                                  .slot = w->b->slots + w->row,
                                  .n_row = w->n_row,
                                  .n_kv_head = c->n_kv_head,
                                  .head_dim = c->head_dim};
    w->m->kern->kv_store(&store, &w->mine);
}

static void attend(const struct walk *w, uint32_t layer)
{
    const struct model_config *c = &w->m->config;
    bool direct = input_dtype(w) == DT_F32; /* out's input can be written in place of a cast */
    struct attention_args a = {.out = direct ? w->s->h : attention_out(w),
                               .q = w->s->wide,
                               .out_stride = direct ? w->s->h_cols : model_q_cols(w->m),
                               .q_stride = qkv_stride(w),
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
                               .window = c->window[layer]};
    w->m->kern->attention(&a, &w->x);
    sync(w);
    if (w->m->shape.quantization) {
        quantize_rows(w, w->row, w->n_row, model_q_cols(w->m));
        sync(w);
    }
    if (direct)
        return;
    struct cast_bf16_args cast = {.y = w->s->h,
                                  .x = a.out,
                                  .n_row = w->b->n_token,
                                  .n_col = model_q_cols(w->m),
                                  .x_stride = a.out_stride,
                                  .y_stride = w->s->h_cols};
    w->m->kern->cast_bf16(&cast, &w->x);
    sync(w);
}

static void attention_block(const struct walk *w, uint32_t layer)
{
    const struct layer_weights *g = &w->m->weights.layers[layer];
    uint32_t n = w->b->n_token;
    norm_rows(w, g->attn_norm);
    sync(w);
    product(w, &(struct product){&g->qkv, g->qkv_bias, w->s->wide, qkv_stride(w), n, false});
    sync(w);
    finish_qkv(w, layer);
    sync(w);
    attend(w, layer);
    product(w, &(struct product){&g->out, g->out_bias, w->s->x, w->m->config.hidden_size, n, true});
    sync(w);
}

/* silu(gate) * up into h. One row's columns are shared by all threads, but as int8 a row is one
 * thread's, since its scale depends on all of it. */
static void activate(const struct walk *w)
{
    const uint32_t inter = w->m->config.intermediate_size;
    const size_t h_bytes = w->s->h_cols * (dtype_bits(input_dtype(w)) / 8);
    const bool own = w->m->shape.quantization;
    const uint32_t row = own ? w->row : 0, n_row = own ? w->n_row : w->b->n_token;
    struct silu_mul_args a = {.y = (char *)w->s->h + row * h_bytes,
                              .y_dtype = input_dtype(w),
                              .x = w->s->wide + (size_t)row * 2 * inter,
                              .n_row = n_row,
                              .n_col = inter,
                              .x_stride = 2 * (size_t)inter,
                              .y_stride = w->s->h_cols};
    w->m->kern->silu_mul(&a, own ? &w->mine : &w->x);
    if (own)
        quantize_rows(w, row, n_row, inter);
}

static void mlp_block(const struct walk *w, uint32_t layer)
{
    const struct layer_weights *g = &w->m->weights.layers[layer];
    uint32_t n = w->b->n_token, inter = w->m->config.intermediate_size;
    norm_rows(w, g->mlp_norm);
    sync(w);
    product(w, &(struct product){&g->gate_up, g->gate_up_bias, w->s->wide, 2 * (size_t)inter, n,
                                 false});
    sync(w);
    activate(w);
    sync(w);
    product(w,
            &(struct product){&g->down, g->down_bias, w->s->x, w->m->config.hidden_size, n, true});
    sync(w);
}

/* Final norm of row r of x into `y`. */
static void norm_final(const struct walk *w, uint32_t r, void *y, enum dtype dtype)
{
    uint32_t hidden = w->m->config.hidden_size;
    struct rms_norm_args a = {.y = y,
                              .y_dtype = dtype,
                              .x = w->s->x + (size_t)r * hidden,
                              .w = w->m->weights.final_norm,
                              .n_row = 1,
                              .n_col = hidden,
                              .x_stride = hidden,
                              .y_stride = hidden,
                              .eps = (float)w->m->config.rms_norm_eps};
    w->m->kern->rms_norm(&a, &w->mine);
}

static void tap(const struct walk *w, uint32_t index)
{
    size_t hidden = w->m->config.hidden_size;
    if (!w->s->tap)
        return;
    float *out = w->s->tap[index] + w->row * hidden;
    if (index < w->m->config.n_layer)
        memcpy(out, w->s->x + w->row * hidden, w->n_row * hidden * sizeof *out);
    else
        for (uint32_t i = 0; i < w->n_row; i++)
            norm_final(w, w->row + i, out + i * hidden, DT_F32);
}

static void head(const struct walk *w)
{
    enum dtype dtype = input_dtype(w);
    size_t row_bytes = w->s->h_cols * (dtype_bits(dtype) / 8);
    uint32_t n = w->b->n_logit;
    uint32_t from = (uint32_t)((uint64_t)n * w->x.ith / w->x.nth);
    uint32_t end = (uint32_t)((uint64_t)n * (w->x.ith + 1) / w->x.nth);
    if (n == 0)
        return;
    for (uint32_t i = from; i < end; i++)
        norm_final(w, w->b->logit_rows[i], (char *)w->s->h + i * row_bytes, dtype);
    if (w->m->shape.quantization)
        quantize_rows(w, from, end - from, w->m->config.hidden_size);
    sync(w);
    product(w, &(struct product){&w->m->weights.lm_head, NULL, w->logits, w->m->config.vocab_size,
                                 n, false});
    sync(w);
}

void model_forward(const struct model *m, const struct batch *b, const struct kv_cache *kv,
                   struct model_scratch *s, float *logits, struct team *team, uint32_t ith,
                   uint32_t nth)
{
    void *kern = s->kern + ith * s->kern_bytes;
    uint64_t n = b->n_token;
    uint32_t row = (uint32_t)(n * ith / nth);
    struct walk w = {.m = m,
                     .b = b,
                     .kv = kv,
                     .s = s,
                     .logits = logits,
                     .team = team,
                     .x = {.ith = ith, .nth = nth, .scratch = kern, .scratch_bytes = s->kern_bytes},
                     .mine = {.nth = 1, .scratch = kern, .scratch_bytes = s->kern_bytes},
                     .row = row,
                     .n_row = (uint32_t)(n * (ith + 1) / nth) - row};
    Q_ASSERT(b->n_token <= s->n_token_max && b->n_logit <= b->n_token && nth <= s->n_thread);
    embed(&w);
    turn_rows(&w);
    sync(&w);
    tap(&w, 0);
    uint32_t end = b->n_layer ? b->layer + b->n_layer : m->config.n_layer;
    Q_ASSERT(end <= m->config.n_layer);
    for (uint32_t i = b->layer; i < end; i++) {
        attention_block(&w, i);
        mlp_block(&w, i);
        if (i + 1 < m->config.n_layer)
            tap(&w, i + 1);
    }
    tap(&w, m->config.n_layer);
    head(&w);
}
