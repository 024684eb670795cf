/* SPDX-License-Identifier: Apache-2.0 */
/* The same steps as experts.c, where each thread multiplies panels of some experts; here
 *
 *     norm, router, route | for some rows at a time:
 *     sort places by expert | gate,up,silu of all places | (bytes: quantize) | down | combine
 *
 * Experts' matrices are floats, int8 or e4m3; those with 4 bits on the CPU are int8 (weights.c). */
#include "engine/model/device_experts.h"

/* That go through a layer's experts together: 128 MiB of `out` for rows of 2048. A launch has room
 * for 65535. */
#define PLACES_MAX 16384u

struct run { /* of one layer */
    const struct device_experts *e;
    const struct model *m;
    const struct layer_weights *g;
    const struct expert_rows *r;
    uint32_t at, n; /* rows that are multiplied now */
    bool bytes;     /* experts take int8 or e4m3 */
};

static bool takes_bytes(const struct model *m)
{
    return m->shape.quantization != QUANTIZE_NOT;
}

/* What norms and gated products write: inputs of products, or what bytes are made of. */
static enum dtype floats_of(const struct model *m)
{
    return takes_bytes(m) ? DT_F32 : m->shape.compute_dtype;
}

enum q_code device_experts_check(const struct model *m, struct q_err *e)
{
    const struct kern_table *k = m->kern;
    const enum quantization q = m->shape.quantization;
    const bool int8 = q == QUANTIZE_INT8 || q == QUANTIZE_INT4;
    const struct {
        const char *name;
        bool is_there;
    } needs[] = {{"linear", k->linear != NULL},
                 {"route", k->route != NULL},
                 {"group_rows", k->group_rows != NULL},
                 {"combine", k->combine != NULL},
                 {"quant_rows", !int8 || k->quant_rows},
                 {"linear_groups", q || k->linear_groups},
                 {"linear_quant_groups", !int8 || k->linear_quant_groups},
                 {"linear_e4m3_groups", q != QUANTIZE_FP8 || k->linear_e4m3_groups},
                 {"linear_blocks_groups", q != QUANTIZE_FP8 || k->linear_blocks_groups}};
    for (size_t i = 0; m->config.moe.n_expert && i < sizeof needs / sizeof *needs; i++)
        if (!needs[i].is_there)
            return q_fail(e, Q_UNSUPPORTED,
                          "device library \"%s\" has no %s, which experts need; use --device cpu",
                          m->link->t->name, needs[i].name);
    return Q_OK;
}

void device_experts_cut(struct device_experts *to, const struct model *m, size_t n,
                        struct region_cutter *c)
{
    const struct moe_config *moe = &m->config.moe;
    if (!moe->n_expert)
        return;
    const uint32_t most = moe->n_used < PLACES_MAX ? PLACES_MAX / moe->n_used : 1;
    to->n_row = n < most ? (uint32_t)n : most;
    to->act_cols = (moe->width + KERN_QUANT_K - 1) / KERN_QUANT_K * KERN_QUANT_K;
    const size_t n_place = (size_t)to->n_row * moe->n_used, n_q = takes_bytes(m) ? n_place : 0;
    const size_t n_scale = m->shape.quantization == QUANTIZE_FP8 ? n_place : 0;
    to->scale_cols = device_scale_cols(to->act_cols);
    to->scores = region_cut(c, n * moe->n_expert, sizeof *to->scores);
    to->experts = region_cut(c, n * moe->n_used, sizeof *to->experts);
    to->weights = region_cut(c, n * moe->n_used, sizeof *to->weights);
    to->starts = region_cut(c, moe->n_expert + 1, sizeof *to->starts);
    to->rows = region_cut(c, n_place, sizeof *to->rows);
    to->places = region_cut(c, n_place, sizeof *to->places);
    to->act = region_cut(c, n_place * to->act_cols, dtype_bits(floats_of(m)) / 8);
    to->act_q = region_cut(c, n_q * to->act_cols, sizeof *to->act_q);
    to->act_rows = region_cut(c, n_q, sizeof *to->act_rows);
    to->act_scales = region_cut(c, n_scale * to->scale_cols, sizeof *to->act_scales);
    to->out = region_cut(c, n_place * m->config.hidden_size, sizeof *to->out);
}

/* --- which experts --- */

struct to_bytes {              /* n rows of floats, their bytes as far apart */
    const struct packed *next; /* what reads them */
    const void *x;
    int8_t *q;
    struct quant_row *rows;
    float *scales; /* of blocks */
    uint32_t n;
    size_t stride, scale_stride;
};

static void quantize(const struct run *t, const struct to_bytes *b)
{
    const struct quant_rows_args a = {.q = b->q,
                                      .rows = b->rows,
                                      .x = b->x,
                                      .n_row = b->n,
                                      .n_col = b->next->n_in,
                                      .x_stride = b->stride,
                                      .q_stride = b->stride};
    const struct quant_rows_e4m3_args f = {.q = (uint8_t *)b->q,
                                           .rows = b->rows,
                                           .x = b->x,
                                           .n_row = b->n,
                                           .n_col = b->next->n_in,
                                           .x_stride = b->stride,
                                           .q_stride = b->stride};
    const struct quant_rows_blocks_args blocks = {.q = (uint8_t *)b->q,
                                                  .scales = b->scales,
                                                  .x = b->x,
                                                  .n_row = b->n,
                                                  .n_col = b->next->n_in,
                                                  .x_stride = b->stride,
                                                  .q_stride = b->stride,
                                                  .scale_stride = b->scale_stride};
    if (b->next->blocks)
        t->m->kern->quant_rows_blocks(&blocks, t->r->exec);
    else if (t->m->shape.quantization == QUANTIZE_FP8)
        t->m->kern->quant_rows_e4m3(&f, t->r->exec);
    else
        t->m->kern->quant_rows(&a, t->r->exec);
}

/* All rows of the step through the norm and the router, whose weights and inputs are floats,
 * whatever the experts' are. */
static void score(const struct run *t)
{
    const struct model_config *c = &t->m->config;
    const struct expert_rows *r = t->r;
    const struct norm_rows_args norm = {.y = r->h,
                                        .y_dtype = floats_of(t->m),
                                        .x = r->x,
                                        .w = t->g->mlp_norm,
                                        .n_row = r->n,
                                        .n_col = c->hidden_size,
                                        .x_stride = c->hidden_size,
                                        .y_stride = r->h_cols,
                                        .eps = (float)c->rms_norm_eps};
    const struct linear_args router = {.y = t->e->scores,
                                       .y_dtype = DT_F32,
                                       .x = r->h,
                                       .x_dtype = floats_of(t->m),
                                       .w = t->g->router,
                                       .n_row = r->n,
                                       .x_stride = r->h_cols,
                                       .y_stride = c->moe.n_expert};
    t->m->kern->norm_rows(&norm, r->exec);
    t->m->kern->linear(&router, r->exec);
    if (t->bytes)
        quantize(t, &(struct to_bytes){&t->g->experts[0].gate_up, r->h, r->q, r->q_rows,
                                       r->q_scales, r->n, r->h_cols, r->scale_cols});
}

static void choose(const struct run *t)
{
    const struct moe_config *moe = &t->m->config.moe;
    const struct route_args a = {.x = t->e->scores,
                                 .x_stride = moe->n_expert,
                                 .n_row = t->r->n,
                                 .n_expert = moe->n_expert,
                                 .n_used = moe->n_used,
                                 .renormalize = moe->renormalize,
                                 .experts = t->e->experts,
                                 .weights = t->e->weights};
    t->m->kern->route(&a, t->r->exec);
}

static void sort_places(const struct run *t)
{
    const struct moe_config *moe = &t->m->config.moe;
    const struct group_rows_args a = {.experts = t->e->experts + (size_t)t->at * moe->n_used,
                                      .n_row = t->n,
                                      .n_used = moe->n_used,
                                      .n_expert = moe->n_expert,
                                      .starts = t->e->starts,
                                      .rows = t->e->rows,
                                      .places = t->e->places};
    t->m->kern->group_rows(&a, t->r->exec);
}

/* --- the products --- */

struct product {                 /* y = W_e x for the places of each expert e */
    const struct packed *weight; /* of expert 0 */
    const void *x;               /* of bytes: those */
    const struct quant_row *x_rows;
    const float *x_scales; /* of blocks */
    size_t x_stride, scale_stride;
    const uint32_t *rows; /* of x, for each place; NULL: places */
    void *y;
    enum dtype y_dtype;
    size_t y_stride;
};

/* Bytes between the matrices of an expert and those of the next. They are alike, and were cut one
 * after the other. */
static size_t stride_of(const struct run *t)
{
    const struct expert_weights *x = t->g->experts;
    const uint32_t last = t->m->config.moe.n_expert - 1;
    const char *first = x[0].down.data;
    const size_t stride = last ? (size_t)((const char *)x[1].down.data - first) : 0;
    Q_ASSERT((const char *)x[last].down.data == first + last * stride);
    return stride;
}

static void multiply(const struct run *t, const struct product *p)
{
    const struct groups of = {stride_of(t), t->m->config.moe.n_expert, t->e->starts, p->rows};
    const uint32_t n_place = t->n * t->m->config.moe.n_used;
    const struct linear_groups_args a = {.by = {.y = p->y,
                                                .y_dtype = p->y_dtype,
                                                .x = p->x,
                                                .x_dtype = floats_of(t->m),
                                                .w = *p->weight,
                                                .n_row = n_place,
                                                .x_stride = p->x_stride,
                                                .y_stride = p->y_stride},
                                         .of = of};
    const struct linear_quant_groups_args q = {.by = {.y = p->y,
                                                      .y_dtype = p->y_dtype,
                                                      .x = p->x,
                                                      .rows = p->x_rows,
                                                      .w = *p->weight,
                                                      .n_row = n_place,
                                                      .x_stride = p->x_stride,
                                                      .y_stride = p->y_stride},
                                               .of = of};
    const struct linear_blocks_groups_args b = {.by = {.y = p->y,
                                                       .y_dtype = p->y_dtype,
                                                       .x = p->x,
                                                       .x_scales = p->x_scales,
                                                       .w = *p->weight,
                                                       .n_row = n_place,
                                                       .x_stride = p->x_stride,
                                                       .y_stride = p->y_stride,
                                                       .scale_stride = p->scale_stride},
                                                .of = of};
    if (p->weight->blocks)
        t->m->kern->linear_blocks_groups(&b, t->r->exec);
    else if (p->weight->dtype == DT_F8_E4M3)
        t->m->kern->linear_e4m3_groups(&(struct linear_e4m3_groups_args){q}, t->r->exec);
    else if (t->bytes)
        t->m->kern->linear_quant_groups(&q, t->r->exec);
    else
        t->m->kern->linear_groups(&a, t->r->exec);
}

static void gate(const struct run *t)
{
    const struct expert_rows *r = t->r;
    const size_t first = (size_t)t->at * r->h_cols;
    const size_t element = dtype_bits(floats_of(t->m)) / 8;
    const void *x = t->bytes ? (const void *)(r->q + first) : (const char *)r->h + first * element;
    multiply(t,
             &(struct product){.weight = &t->g->experts[0].gate_up,
                               .x = x,
                               .x_rows = t->bytes ? r->q_rows + t->at : NULL,
                               .x_scales = r->q_scales ? r->q_scales + t->at * r->scale_cols : NULL,
                               .x_stride = r->h_cols,
                               .scale_stride = r->scale_cols,
                               .rows = t->e->rows,
                               .y = t->e->act,
                               .y_dtype = floats_of(t->m),
                               .y_stride = t->e->act_cols});
}

static void down(const struct run *t)
{
    const struct device_experts *e = t->e;
    const struct moe_config *moe = &t->m->config.moe;
    if (t->bytes)
        quantize(t,
                 &(struct to_bytes){&t->g->experts[0].down, e->act, e->act_q, e->act_rows,
                                    e->act_scales, t->n * moe->n_used, e->act_cols, e->scale_cols});
    multiply(t, &(struct product){.weight = &t->g->experts[0].down,
                                  .x = t->bytes ? (const void *)e->act_q : e->act,
                                  .x_rows = e->act_rows,
                                  .x_scales = e->act_scales,
                                  .x_stride = e->act_cols,
                                  .scale_stride = e->scale_cols,
                                  .y = e->out,
                                  .y_dtype = DT_F32,
                                  .y_stride = t->m->config.hidden_size});
}

static void combine(const struct run *t)
{
    const size_t hidden = t->m->config.hidden_size, n_used = t->m->config.moe.n_used;
    const struct combine_args a = {.y = t->r->x + t->at * hidden,
                                   .y_stride = hidden,
                                   .x = t->e->out,
                                   .x_stride = hidden,
                                   .places = t->e->places,
                                   .weights = t->e->weights + t->at * n_used,
                                   .n_row = t->n,
                                   .n_col = (uint32_t)hidden,
                                   .n_used = (uint32_t)n_used};
    t->m->kern->combine(&a, t->r->exec);
}

void device_experts_run(const struct device_experts *e, const struct model *m,
                        const struct layer_weights *g, const struct expert_rows *r)
{
    struct run t = {.e = e, .m = m, .g = g, .r = r, .bytes = takes_bytes(m)};
    score(&t);
    choose(&t);
    for (; t.at < r->n; t.at += t.n) {
        t.n = r->n - t.at < e->n_row ? r->n - t.at : e->n_row;
        sort_places(&t);
        gate(&t);
        down(&t);
        combine(&t);
    }
}
