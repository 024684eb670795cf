/* SPDX-License-Identifier: Apache-2.0 */
/* The same steps as experts.c, where each thread multiplies panels of some experts; here
 *
 *     norm, router, route | for some rows at a time:
 *     sort places by expert | gate,up,silu of all places | (bytes: quantize) | down | combine
 *
 * Experts' matrices are floats, int8, e4m3 or of 4 bits, all experts of a layer alike (weights.c).
 * Where their inputs have an order (act-order), each expert has its own, so that a row is copied
 * for each expert that it takes, in that order; what is bytes is made before, since an order
 * changes no scale. */
#include "engine/model/device_experts.h"
#include "engine/model/device_walk.h"

/* That go through a layer's experts together: 128 MiB of `out` for rows of 2048. A launch has room
 * for 65535. */
#define PLACES_MAX 16384u

struct run { /* of one layer */
    const struct device_experts *e;
    const struct model *m;
    const struct layer_weights *g;
    const struct expert_rows *r;
    uint32_t at, n; /* rows that are multiplied now */
};

static bool reads_bytes(const struct model *m, const struct packed *w)
{
    const enum dtype input = device_walk_input(m, w);
    return input == DT_I8 || input == DT_F8_E4M3;
}

/* Of the experts of all layers. */
static struct device_needs needs_of(const struct model *m)
{
    struct device_needs n = {0};
    for (uint32_t i = 0; i < m->weights.n_layer; i++) {
        const struct expert_weights *x = m->weights.layers[i].experts;
        if (!x)
            continue;
        device_walk_needs(&n, m, &x->gate_up);
        device_walk_needs(&n, m, &x->down);
        n.ordered |= x->gate_up.order || x->down.order;
    }
    return n;
}

enum q_code device_experts_check(const struct model *m, struct q_err *e)
{
    const struct kern_table *k = m->kern;
    const enum quantization q = m->shape.quantization;
    const bool int8 = q == QUANTIZE_INT8 || q == QUANTIZE_INT4;
    const struct device_needs all = needs_of(m);
    const struct {
        const char *name;
        bool is_there;
    } needs[] = {{"linear", k->linear != NULL},
                 {"route", k->route != NULL},
                 {"group_rows", k->group_rows != NULL},
                 {"combine", k->combine != NULL},
                 {"quant_rows", !int8 || k->quant_rows},
                 {"linear_groups", q == QUANTIZE_FP8 || k->linear_groups},
                 {"linear_quant_groups", !int8 || k->linear_quant_groups},
                 {"linear_int4_groups", !all.sums || k->linear_int4_groups},
                 {"linear_int4_half_groups", !all.halves || k->linear_int4_half_groups},
                 {"order_rows", !all.ordered || k->order_rows},
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
    const struct device_needs needs = needs_of(m);
    const uint32_t most = moe->n_used < PLACES_MAX ? PLACES_MAX / moe->n_used : 1;
    const size_t hidden = m->config.hidden_size, cols = hidden > moe->width ? hidden : moe->width;
    to->n_row = n < most ? (uint32_t)n : most;
    to->act_cols = (moe->width + KERN_QUANT_K - 1) / KERN_QUANT_K * KERN_QUANT_K;
    const size_t n_place = (size_t)to->n_row * moe->n_used, n_q = needs.bytes ? n_place : 0;
    const size_t n_ordered = needs.ordered ? n_place : 0;
    const size_t n_scale = m->shape.quantization == QUANTIZE_FP8 ? n_place : 0;
    const size_t element = dtype_bits(needs.bytes ? DT_F32 : m->shape.compute_dtype) / 8;
    to->scale_cols = device_scale_cols(to->act_cols);
    to->scores =
        region_cut(c, n * (moe->n_expert + (moe->shared_width ? 1u : 0u)), sizeof *to->scores);
    to->experts = region_cut(c, n * moe->n_used, sizeof *to->experts);
    to->weights = region_cut(c, n * moe->n_used, sizeof *to->weights);
    to->starts = region_cut(c, moe->n_expert + 1, sizeof *to->starts);
    to->rows = region_cut(c, n_place, sizeof *to->rows);
    to->places = region_cut(c, n_place, sizeof *to->places);
    to->act = region_cut(c, n_place * to->act_cols, element);
    to->act_q = region_cut(c, n_q * to->act_cols, sizeof *to->act_q);
    to->act_rows = region_cut(c, n_q, sizeof *to->act_rows);
    to->act_scales = region_cut(c, n_scale * to->scale_cols, sizeof *to->act_scales);
    to->out = region_cut(c, n_place * hidden, sizeof *to->out);
    to->ordered =
        region_cut(c, n_ordered * cols, m->shape.compute_dtype == DT_F32 ? 1 : sizeof(uint16_t));
    to->ordered_rows = region_cut(c, n_ordered, sizeof *to->ordered_rows);
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
    else if (b->next->dtype == DT_F8_E4M3)
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
    const struct packed *next = &t->g->experts[0].gate_up;
    const enum dtype floats = device_walk_made(t->m, next);
    const struct norm_rows_args norm = {.y = r->h,
                                        .y_dtype = floats,
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
                                       .x_dtype = floats,
                                       .w = t->g->router,
                                       .n_row = r->n,
                                       .x_stride = r->h_cols,
                                       .y_stride = t->g->router.n_out};
    if (!r->is_normed)
        t->m->kern->norm_rows(&norm, r->exec);
    t->m->kern->linear(&router, r->exec);
    if (reads_bytes(t->m, next))
        quantize(t, &(struct to_bytes){next, r->h, r->q, r->q_rows, r->q_scales, r->n, r->h_cols,
                                       r->scale_cols});
}

static void choose(const struct run *t)
{
    const struct moe_config *moe = &t->m->config.moe;
    const struct route_args a = {.x = t->e->scores,
                                 .x_stride = t->g->router.n_out,
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

/* x of p as matrices whose inputs have an order take it: a copy for each place. */
static void put_in_order(const struct run *t, struct product *p)
{
    const struct device_experts *e = t->e;
    const bool bytes = reads_bytes(t->m, p->weight);
    const struct order_rows_args a = {
        .y = e->ordered,
        .x = p->x,
        .element = bytes ? 1 : sizeof(uint16_t),
        .y_rows = bytes ? e->ordered_rows : NULL,
        .x_rows = p->x_rows,
        .order = p->weight->order,
        .n_row = t->n * t->m->config.moe.n_used,
        .n_col = p->weight->n_in,
        .x_stride = p->x_stride,
        .y_stride = p->weight->n_in,
        .of = {stride_of(t), t->m->config.moe.n_expert, e->starts, p->rows}};
    t->m->kern->order_rows(&a, t->r->exec);
    p->x = e->ordered;
    p->x_rows = bytes ? e->ordered_rows : NULL;
    p->x_stride = p->weight->n_in;
    p->rows = NULL;
}

static void multiply_bytes(const struct run *t, const struct product *p, const struct groups *of)
{
    const struct kern_table *k = t->m->kern;
    const struct linear_quant_groups_args a = {.by = {.y = p->y,
                                                      .y_dtype = p->y_dtype,
                                                      .x = p->x,
                                                      .rows = p->x_rows,
                                                      .w = *p->weight,
                                                      .n_row = t->n * t->m->config.moe.n_used,
                                                      .x_stride = p->x_stride,
                                                      .y_stride = p->y_stride},
                                               .of = *of};
    const struct linear_blocks_groups_args blocks = {.by = {.y = p->y,
                                                            .y_dtype = p->y_dtype,
                                                            .x = p->x,
                                                            .x_scales = p->x_scales,
                                                            .w = *p->weight,
                                                            .n_row = a.by.n_row,
                                                            .x_stride = p->x_stride,
                                                            .y_stride = p->y_stride,
                                                            .scale_stride = p->scale_stride},
                                                     .of = *of};
    if (p->weight->blocks)
        k->linear_blocks_groups(&blocks, t->r->exec);
    else if (p->weight->dtype == DT_F8_E4M3)
        k->linear_e4m3_groups(&(struct linear_e4m3_groups_args){a}, t->r->exec);
    else if (p->weight->group)
        k->linear_int4_groups(&(struct linear_int4_groups_args){a}, t->r->exec);
    else
        k->linear_quant_groups(&a, t->r->exec);
}

static void multiply(const struct run *t, struct product *p)
{
    const struct kern_table *k = t->m->kern;
    if (p->weight->order)
        put_in_order(t, p);
    const struct groups of = {stride_of(t), t->m->config.moe.n_expert, t->e->starts, p->rows};
    const struct linear_int4_half_groups_args a = {
        .as = {.by = {.y = p->y,
                      .y_dtype = p->y_dtype,
                      .x = p->x,
                      .x_dtype = device_walk_input(t->m, p->weight),
                      .w = *p->weight,
                      .n_row = t->n * t->m->config.moe.n_used,
                      .x_stride = p->x_stride,
                      .y_stride = p->y_stride},
               .of = of}};
    if (reads_bytes(t->m, p->weight))
        multiply_bytes(t, p, &of);
    else if (p->weight->group)
        k->linear_int4_half_groups(&a, t->r->exec);
    else
        k->linear_groups(&a.as, t->r->exec);
}

static void gate(const struct run *t)
{
    const struct expert_rows *r = t->r;
    const struct expert_weights *first = t->g->experts;
    const bool bytes = reads_bytes(t->m, &first->gate_up);
    const size_t at = (size_t)t->at * r->h_cols;
    const size_t element = dtype_bits(device_walk_made(t->m, &first->gate_up)) / 8;
    multiply(t, &(struct product){
                    .weight = &first->gate_up,
                    .x = bytes ? (const void *)(r->q + at) : (const char *)r->h + at * element,
                    .x_rows = bytes ? r->q_rows + t->at : NULL,
                    .x_scales = r->q_scales ? r->q_scales + t->at * r->scale_cols : NULL,
                    .x_stride = r->h_cols,
                    .scale_stride = r->scale_cols,
                    .rows = t->e->rows,
                    .y = t->e->act,
                    .y_dtype = device_walk_made(t->m, &first->down),
                    .y_stride = t->e->act_cols});
}

static void down(const struct run *t)
{
    const struct device_experts *e = t->e;
    const struct moe_config *moe = &t->m->config.moe;
    const struct packed *weight = &t->g->experts[0].down;
    const bool bytes = reads_bytes(t->m, weight);
    if (bytes)
        quantize(t, &(struct to_bytes){weight, e->act, e->act_q, e->act_rows, e->act_scales,
                                       t->n * moe->n_used, e->act_cols, e->scale_cols});
    multiply(t, &(struct product){.weight = weight,
                                  .x = bytes ? (const void *)e->act_q : e->act,
                                  .x_rows = bytes ? e->act_rows : NULL,
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
    struct run t = {.e = e, .m = m, .g = g, .r = r};
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
