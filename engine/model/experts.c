/* SPDX-License-Identifier: Apache-2.0 */
/* A mixture of experts on the CPU, for one block of rows. Meetings of the threads ( | ) as in
 * forward.c:
 *
 *     norm (|) router | route (|) each thread sorts the places by expert for itself
 *     for experts that are taken { pick its rows, gate,up,silu } | (int8: quantize (|))
 *     for experts that are taken { down } | combine
 *     of one that all rows use: gate,up,silu | (int8: quantize (|)) down | combine
 *
 * An expert's matrices are packed like any other and go through the same products, a part of their
 * panels at a time (kern_panels). All panels of all experts that are taken are one line, cut into
 * pieces of about equal work; a thread has one of them, so that it needs nobody while it reads its
 * weights from first to last, whether eight experts have a row each or all of them have many:
 *
 *     expert   2            5            7      …      work of a panel: its rows, and at least what
 *     panels   ###########  ###########  ###########   reading it costs
 *     threads  |     0     |     1     |     2     |
 *
 * Who computes a panel changes no bit, nor do the rows beside a row: what they have in common is
 * only that they are picked together. */
#include <math.h>
#include <string.h>
#include "engine/model/walk.h"

/* Rows whose arithmetic takes as long as reading the weights for it: some 10 multiply-adds of bf16
 * a thread while 2 bytes come from memory. */
#define READ_ROWS 8u

struct chosen { /* by the rows of the block */
    const struct layer_weights *g;
    uint32_t n_used, n_expert;
    struct operand x;    /* input of the experts, a row of it for each of the block */
    const float *normed; /* what x is made of, when that is int8 */
    uint32_t *experts;   /* [block.n, n_used] */
    float *weights;
    float *shared;                  /* [block.n] of the expert that all rows use */
    uint32_t *ends, *rows, *places; /* model_state.h */
};

struct group {      /* the rows of one expert */
    uint32_t at, n; /* places */
};

static struct group group_of(const struct chosen *c, uint32_t expert)
{
    const uint32_t at = expert ? c->ends[expert - 1] : 0;
    return (struct group){at, c->ends[expert] - at};
}

/* --- which experts --- */

/* The block's rows through the norm: for the experts, and in floats for the router. */
static void norm_rows(const struct walk *w, struct chosen *c)
{
    const uint32_t hidden = w->m->config.hidden_size;
    const bool quantized = w->m->shape.quantization != QUANTIZE_NOT;
    const struct rows r = walk_to_make(w, hidden);
    const struct packed plain = {.n_in = hidden};
    const size_t copy = walk_alone(w, hidden) ? (size_t)w->x.ith * ALONE_ROWS : 0;
    float *normed = quantized ? w->s->e.normed + copy * hidden : NULL;
    c->x = walk_operand_of(w, &w->s->in, hidden);
    c->normed = normed;
    for (uint32_t i = r.at; i < r.at + r.n; i++) {
        const struct operand row = walk_operand_at(w, &c->x, i - w->block.at);
        if (!quantized) {
            walk_norm_row(w, i, c->g->mlp_norm, row.x, model_input_dtype(w->m));
            continue;
        }
        float *made_of = normed + (size_t)(i - w->block.at) * hidden;
        walk_norm_row(w, i, c->g->mlp_norm, made_of, DT_F32);
        walk_quantize(w, &row, &(struct floats){made_of, hidden, 1, &plain});
    }
    walk_made(w, hidden);
}

/* The router's weights are floats whatever the experts' are. */
static void score(const struct walk *w, const struct chosen *c)
{
    const bool quantized = w->m->shape.quantization != QUANTIZE_NOT;
    const struct linear_args a = {.y = w->s->e.scores,
                                  .y_dtype = DT_F32,
                                  .x = quantized ? c->normed : c->x.x,
                                  .x_dtype = model_input_dtype(w->m),
                                  .w = c->g->router,
                                  .n_row = w->block.n,
                                  .x_stride = quantized ? w->m->config.hidden_size : c->x.stride,
                                  .y_stride = c->g->router.n_out};
    w->m->kern->linear(&a, &w->x);
    walk_sync(w);
}

/* How much each row takes of the expert that all use: sigmoid of the router's last output. */
static void weigh_shared(const struct walk *w, const struct chosen *c, uint32_t at, uint32_t n)
{
    const size_t n_out = c->g->router.n_out;
    for (uint32_t i = at; i < at + n; i++)
        c->shared[i] = 1 / (1 + expf(-w->s->e.scores[i * n_out + c->n_expert]));
}

static void route(const struct walk *w, struct chosen *c)
{
    const uint32_t hidden = w->m->config.hidden_size; /* where rows are few for the norm, so here */
    const size_t copy = walk_alone(w, hidden) ? (size_t)w->x.ith * ALONE_ROWS : 0;
    const struct rows r = walk_to_make(w, hidden);
    const uint32_t at = r.at - w->block.at;
    c->experts = w->s->e.experts + copy * c->n_used;
    c->weights = w->s->e.weights + copy * c->n_used;
    c->shared = w->s->e.shared + copy;
    const uint32_t n_out = c->g->router.n_out;
    const struct route_args a = {.x = w->s->e.scores + (size_t)at * n_out,
                                 .x_stride = n_out,
                                 .n_row = r.n,
                                 .n_expert = c->n_expert,
                                 .n_used = c->n_used,
                                 .renormalize = w->m->config.moe.renormalize,
                                 .experts = c->experts + (size_t)at * c->n_used,
                                 .weights = c->weights + (size_t)at * c->n_used};
    w->m->kern->route(&a, &w->mine);
    if (c->g->gate_up.data)
        weigh_shared(w, c, at, r.n);
    walk_made(w, hidden);
}

/* Counting sort of the block's (row, expert): by expert, and the rows of each ascending. */
static void sort_places(const struct walk *w, struct chosen *c)
{
    const size_t n = (size_t)w->block.n * c->n_used, ith = w->x.ith;
    const size_t most = (size_t)w->s->block_rows * c->n_used;
    uint32_t before = 0;
    c->ends = w->s->e.ends + ith * c->n_expert;
    c->rows = w->s->e.rows + ith * most;
    c->places = w->s->e.places + ith * most;
    memset(c->ends, 0, c->n_expert * sizeof *c->ends);
    for (size_t i = 0; i < n; i++)
        c->ends[c->experts[i]]++;
    for (uint32_t j = 0; j < c->n_expert; j++) { /* to where each begins */
        const uint32_t its = c->ends[j];
        c->ends[j] = before;
        before += its;
    }
    for (size_t i = 0; i < n; i++) { /* and on to where it ends */
        const uint32_t place = c->ends[c->experts[i]]++;
        c->rows[place] = (uint32_t)(i / c->n_used);
        c->places[i] = place;
    }
}

/* --- who multiplies what --- */

struct panels { /* of one expert's matrix */
    uint32_t begin, end;
};

struct piece {   /* of the line of panels, in units of work */
    uint64_t at; /* the next expert's first panel */
    uint64_t begin, end;
};

static uint32_t panel_count(const struct packed *w)
{
    return (w->n_out + KERN_PANEL - 1) / KERN_PANEL;
}

static uint64_t panel_work(struct group g)
{
    return g.n > READ_ROWS ? g.n : READ_ROWS;
}

/* This thread's piece of a line of n_panel panels for each expert that is taken. */
static struct piece piece_of(const struct walk *w, const struct chosen *c, uint32_t n_panel)
{
    uint64_t total = 0;
    for (uint32_t j = 0; j < c->n_expert; j++)
        if (group_of(c, j).n)
            total += n_panel * panel_work(group_of(c, j));
    return (struct piece){.begin = total * w->x.ith / w->x.nth,
                          .end = total * (w->x.ith + 1) / w->x.nth};
}

/* Of n panels of this work, the first of which begins at `at`, those that begin before `mark`. */
static uint32_t panels_before(uint64_t mark, uint64_t at, uint64_t work, uint32_t n)
{
    const uint64_t before = mark > at ? (mark - at + work - 1) / work : 0;
    return before < n ? (uint32_t)before : n;
}

/* Of the next expert that is taken. */
static struct panels next_panels(struct piece *p, struct group g, uint32_t n_panel)
{
    const uint64_t work = panel_work(g), at = p->at;
    p->at += n_panel * work;
    return (struct panels){panels_before(p->begin, at, work, n_panel),
                           panels_before(p->end, at, work, n_panel)};
}

/* --- the products --- */

static void copy_row(const struct walk *w, const struct operand *to, const struct operand *from)
{
    const uint32_t n = w->m->config.hidden_size;
    if (w->m->shape.quantization == QUANTIZE_NOT) {
        memcpy(to->x, from->x, n * (dtype_bits(model_input_dtype(w->m)) / 8));
        return;
    }
    const size_t n_k = (n + KERN_QUANT_K - 1) / KERN_QUANT_K * KERN_QUANT_K;
    memcpy(to->x, from->x, n_k);
    *to->rows = *from->rows;
    if (to->sums)
        memcpy(to->sums, from->sums, n_k / KERN_QUANT_SUM * sizeof *to->sums);
}

/* The rows of these places, one after the other, as the product with `weight` takes them. */
static struct operand pick(const struct walk *w, const struct chosen *c,
                           const struct packed *weight, struct group g)
{
    const size_t hidden = w->m->config.hidden_size;
    const struct operand to = walk_operand_at(w, &w->s->e.picked, (size_t)w->x.ith * PICK_ROWS);
    if (g.n == 1 && !weight->order)
        return walk_operand_at(w, &c->x, c->rows[g.at]);
    for (uint32_t i = 0; i < g.n; i++) {
        const uint32_t r = c->rows[g.at + i];
        const struct operand row = walk_operand_at(w, &to, i);
        const struct operand from = walk_operand_at(w, &c->x, r);
        if (weight->order) /* inputs of its own order: made again of the floats */
            walk_quantize(w, &row, &(struct floats){c->normed + r * hidden, hidden, 1, weight});
        else
            copy_row(w, &row, &from);
    }
    return to;
}

/* silu(gate) * up of all places in these panels of an expert. */
static void gate_panels(const struct walk *w, const struct chosen *c, uint32_t expert,
                        struct panels p)
{
    const struct packed *weight = &c->g->experts[expert].gate_up;
    const struct packed part = kern_panels(weight, p.begin, p.end);
    const bool quantized = w->m->shape.quantization != QUANTIZE_NOT;
    const enum dtype dtype = model_input_dtype(w->m);
    const size_t stride = w->s->e.act.stride, column = p.begin * KERN_PANEL / 2;
    char *y = quantized ? (char *)w->s->e.gated : w->s->e.act.x;
    const struct group g = group_of(c, expert);
    for (uint32_t i = 0; i < g.n; i += PICK_ROWS) {
        const uint32_t n = g.n - i < PICK_ROWS ? g.n - i : PICK_ROWS;
        const struct operand x = pick(w, c, weight, (struct group){g.at + i, n});
        walk_product(
            w, &(struct product){.weight = &part,
                                 .x = &x,
                                 .y = y + ((g.at + i) * stride + column) * (dtype_bits(dtype) / 8),
                                 .y_dtype = dtype,
                                 .y_stride = stride,
                                 .n_row = n,
                                 .mine = true});
    }
}

static void gate_all(const struct walk *w, const struct chosen *c)
{
    const uint32_t n_panel = panel_count(&c->g->experts[0].gate_up);
    struct piece mine = piece_of(w, c, n_panel);
    for (uint32_t j = 0; j < c->n_expert; j++) {
        if (!group_of(c, j).n)
            continue;
        const struct panels p = next_panels(&mine, group_of(c, j), n_panel);
        if (p.begin < p.end)
            gate_panels(w, c, j, p);
    }
    walk_sync(w);
}

/* What down reads: places of this thread, or of all threads together, as int8. */
static struct operand activated(const struct walk *w, const struct chosen *c)
{
    const uint32_t n_col = w->m->config.moe.width * c->n_used; /* of a row of the block */
    const bool alone = walk_alone(w, n_col);
    const struct rows all = {0, w->block.n * c->n_used}, r = alone ? all : walk_share(w, all);
    const size_t stride = w->s->e.act.stride;
    if (w->m->shape.quantization == QUANTIZE_NOT)
        return w->s->e.act;
    const struct operand to =
        walk_operand_at(w, &w->s->e.act, alone ? (size_t)w->x.ith * ALONE_ROWS * c->n_used : 0);
    for (uint32_t j = 0; j < c->n_expert; j++) {
        const struct group g = group_of(c, j);
        const uint32_t at = g.at > r.at ? g.at : r.at;
        const uint32_t end = g.at + g.n < r.at + r.n ? g.at + g.n : r.at + r.n;
        if (at >= end)
            continue;
        const struct operand mine = walk_operand_at(w, &to, at);
        walk_quantize(w, &mine,
                      &(struct floats){w->s->e.gated + at * stride, stride, end - at,
                                       &c->g->experts[j].down});
    }
    walk_made(w, n_col);
    return to;
}

static void down_all(const struct walk *w, const struct chosen *c)
{
    const size_t hidden = w->m->config.hidden_size;
    const uint32_t n_panel = panel_count(&c->g->experts[0].down);
    const struct operand act = activated(w, c);
    struct piece mine = piece_of(w, c, n_panel);
    for (uint32_t j = 0; j < c->n_expert; j++) {
        const struct group g = group_of(c, j);
        if (!g.n)
            continue;
        const struct panels p = next_panels(&mine, g, n_panel);
        if (p.begin >= p.end)
            continue;
        const struct packed part = kern_panels(&c->g->experts[j].down, p.begin, p.end);
        const struct operand x = walk_operand_at(w, &act, g.at);
        walk_product(w, &(struct product){.weight = &part,
                                          .x = &x,
                                          .y = w->s->e.out + g.at * hidden + p.begin * KERN_PANEL,
                                          .y_stride = hidden,
                                          .n_row = g.n,
                                          .mine = true});
    }
    walk_sync(w);
}

/* The expert that all rows use, like one more place of each row. */
static void shared_expert(const struct walk *w, const struct chosen *c)
{
    const size_t hidden = w->m->config.hidden_size;
    const struct operand act = walk_activated(w, c->g, &c->x);
    float *out = w->s->e.out + (size_t)w->s->block_rows * c->n_used * hidden;
    walk_product(
        w,
        &(struct product){
            .weight = &c->g->down, .x = &act, .y = out, .y_stride = hidden, .n_row = w->block.n});
    walk_sync(w);
    const struct combine_args a = {.y = w->s->x + w->block.at * hidden,
                                   .y_stride = hidden,
                                   .x = out,
                                   .x_stride = hidden,
                                   .places = w->s->rows,
                                   .weights = c->shared,
                                   .n_row = w->block.n,
                                   .n_col = (uint32_t)hidden,
                                   .n_used = 1};
    w->m->kern->combine(&a, &w->x);
}

void walk_experts(const struct walk *w, const struct layer_weights *g)
{
    const uint32_t hidden = w->m->config.hidden_size;
    const struct moe_config *moe = &w->m->config.moe;
    struct chosen c = {.g = g, .n_used = moe->n_used, .n_expert = moe->n_expert};
    norm_rows(w, &c);
    score(w, &c);
    route(w, &c);
    sort_places(w, &c);
    gate_all(w, &c);
    down_all(w, &c);
    const struct combine_args a = {.y = w->s->x + (size_t)w->block.at * hidden,
                                   .y_stride = hidden,
                                   .x = w->s->e.out,
                                   .x_stride = hidden,
                                   .places = c.places,
                                   .weights = c.weights,
                                   .n_row = w->block.n,
                                   .n_col = hidden,
                                   .n_used = c.n_used};
    w->m->kern->combine(&a, &w->x);
    if (g->gate_up.data)
        shared_expert(w, &c);
}
