/* SPDX-License-Identifier: Apache-2.0 */
/* Operations of a mixture of experts on the CPU, for one block of rows.
 *
 * An expert's matrices are packed like any other matrix and use the same products, a range of
 * panels at a time (kern_panels). The panels of all experts that the block uses form one line,
 * which is cut into pieces of about equal work, one for each thread. So a thread reads its weights
 * from first to last and waits for no other thread, whether eight experts have one row each or all
 * experts have many:
 *
 *     expert   2            5            7      …      work of a panel: its rows, and at least the
 *     panels   ###########  ###########  ###########   cost of reading it
 *     threads  |     0     |     1     |     2     |
 *
 * Neither the thread that computes a panel nor the other rows of a block change a bit: rows of one
 * expert are only gathered together. Each thread sorts the places by expert for itself. */
#include <math.h>
#include <string.h>
#include "common/dtype.h"
#include "engine/model/forward/executor_cpu.h"

/* Rows whose arithmetic takes as long as reading the weights for it: some 10 multiply-adds of bf16
 * a thread while 2 bytes come from memory. */
#define READ_ROWS 8u

struct group {      /* the rows of one expert */
    uint32_t at, n; /* places */
};

static struct group group_of(const struct cpu_run *w, uint32_t expert)
{
    const uint32_t at = expert ? w->ends[expert - 1] : 0;
    return (struct group){at, w->ends[expert] - at};
}

/* ---- which experts ---- */

static size_t routes_at(const struct cpu_run *w, bool own)
{
    return own ? (size_t)w->x.ith * CPU_OWN_ROWS * w->n_used : 0;
}

void cpu_route(struct cpu_run *w, const struct program_op *op)
{
    const struct matmul_rows scores = cpu_rows_of(w, op->in[0]);
    const struct cpu_rows r = cpu_to_make(w, w->block.n);
    const size_t at = routes_at(w, w->own_stage) + (size_t)r.at * w->n_used;
    const struct moe_route_args a = {
        .x = (const float *)scores.x + r.at * scores.stride,
        .x_stride = scores.stride,
        .n_row = r.n,
        .n_expert = op->route.n_expert,
        .n_used = op->route.n_used,
        .renormalize = op->route.renormalize,
        .sigmoid = op->route.rule == ARCH_ROUTE_SIGMOID,
        .bias = program_vector(&w->m->weights, op->bias, op->layer),
        .n_group = op->route.n_group,
        .n_group_used = op->route.n_group_used,
        .scale = op->route.scale,
        .mixer = op->route.mixer,
        .scales = cpu_vector_of(w, op->weight, op),
        .experts = w->s->e.experts + at,
        .weights = w->s->e.weights + at,
    };
    w->k->moe_route(&a, &w->mine);
}

/* Counting sort of the block's (row, expert): by expert, and the rows of each ascending. */
static void sort_places(struct cpu_run *w, struct program_ref routes)
{
    const size_t n = (size_t)w->block.n * w->n_used, ith = w->x.ith;
    const size_t most = (size_t)w->s->block_rows * w->n_used;
    const uint32_t *experts = w->s->e.experts + routes_at(w, w->is_own[routes.buffer]);
    const float *weights = w->s->e.weights + routes_at(w, w->is_own[routes.buffer]);
    float *of_places = w->s->e.of_places + ith * most;
    uint32_t before = 0;
    w->ends = w->s->e.ends + ith * w->n_expert;
    w->rows = w->s->e.rows + ith * most;
    w->places = w->s->e.places + ith * most;
    memset(w->ends, 0, w->n_expert * sizeof *w->ends);
    for (size_t i = 0; i < n; i++)
        w->ends[experts[i]]++;
    for (uint32_t j = 0; j < w->n_expert; j++) { /* to where each begins */
        const uint32_t its = w->ends[j];
        w->ends[j] = before;
        before += its;
    }
    for (size_t i = 0; i < n; i++) { /* and on to where it ends */
        const uint32_t place = w->ends[experts[i]]++;
        w->rows[place] = (uint32_t)(i / w->n_used);
        w->places[i] = place;
        of_places[place] = weights[i];
    }
}

/* ---- who multiplies what ---- */

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
static struct piece piece_of(const struct cpu_run *w, uint32_t n_panel)
{
    uint64_t total = 0;
    for (uint32_t j = 0; j < w->n_expert; j++)
        if (group_of(w, j).n)
            total += n_panel * panel_work(group_of(w, j));
    return (struct piece){
        .begin = total * w->x.ith / w->x.nth,
        .end = total * (w->x.ith + 1) / w->x.nth,
    };
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

/* ---- the products ---- */

struct experts { /* of one stage */
    const struct program_op *op;
    struct matmul_rows x, y;
    enum dtype y_dtype;
    bool picks;                  /* x has the block's rows; else places */
    const float *bias;           /* of the expert at hand; NULL: none */
    const float *weights;        /* of x, by place; NULL: none */
    struct cpu_part_matrix part; /* of each matrix, what this rank has */
    struct matmul_rows
        made; /* what x's bytes are made of, for matrices with an order of their own */
};

/* Times the weight of its place. The weight of bytes is one of their scale. */
static void weigh_row(const struct matmul_rows *x, uint32_t n, float weight)
{
    if (x->rows) {
        x->rows->scale *= weight;
        return;
    }
    for (uint32_t c = 0; c < n; c++)
        switch (x->dtype) {
        case DT_BF16:
            ((uint16_t *)x->x)[c] = f32_to_bf16(bf16_to_f32(((uint16_t *)x->x)[c]) * weight);
            break;
        case DT_F16:
            ((uint16_t *)x->x)[c] = f32_to_f16(f16_to_f32(((uint16_t *)x->x)[c]) * weight);
            break;
        default:
            ((float *)x->x)[c] *= weight;
            break;
        }
}

static void copy_row(const struct matmul_rows *to, const struct matmul_rows *from, uint32_t n)
{
    if (!from->rows) {
        memcpy(to->x, from->x, n * (dtype_bits(from->dtype) / 8));
        return;
    }
    const size_t n_k = (n + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
    memcpy(to->x, from->x, n_k);
    *to->rows = *from->rows;
    if (to->sums)
        memcpy(to->sums, from->sums, n_k / KERN_INT8_SUM * sizeof *to->sums);
}

/* For a matrix whose inputs have an order of their own: made again of the floats. */
static void order_row(const struct cpu_run *w, const struct matmul_rows *to, const float *from,
                      const struct packed *weight)
{
    const struct matmul_source floats = {from, weight->n_in, 1, weight->n_in, weight->order, 0};
    matmul_quantize(w->k, to, &floats, &w->mine);
}

/* The rows of these places, one after the other, as the product with `weight` takes them. */
static struct matmul_rows pick(const struct cpu_run *w, const struct experts *t,
                               const struct packed *weight, struct group g)
{
    const uint32_t n_col = weight->n_in;
    if (g.n == 1 && !weight->order && !t->weights)
        return matmul_rows_at(&t->x, w->rows[g.at]);
    struct matmul_rows to = w->s->e.picked;
    to.dtype = t->x.dtype;
    to = matmul_rows_at(&to, (size_t)w->x.ith * CPU_PICK_ROWS);
    for (uint32_t i = 0; i < g.n; i++) {
        const uint32_t r = w->rows[g.at + i];
        const struct matmul_rows row = matmul_rows_at(&to, i), from = matmul_rows_at(&t->x, r);
        if (weight->order)
            order_row(w, &row, (const float *)t->made.x + r * t->made.stride, weight);
        else
            copy_row(&row, &from, n_col);
        if (t->weights)
            weigh_row(&row, n_col, t->weights[g.at + i]);
    }
    return to;
}

/* The outputs of these panels of an expert, of all its places. */
static void multiply_panels(const struct cpu_run *w, const struct experts *t,
                            const struct packed *weight, struct group g, struct panels p)
{
    struct packed here = *weight;
    here.n_out = t->part.w.n_out;
    const struct packed part = kern_panels(&here, p.begin, p.end);
    const size_t column = t->part.column + (size_t)p.begin * KERN_PANEL / (weight->gated ? 2 : 1);
    const uint32_t most = t->picks ? CPU_PICK_ROWS : g.n;
    for (uint32_t i = 0; i < g.n; i += most) {
        const uint32_t n = g.n - i < most ? g.n - i : most, at = g.at + i;
        const struct matmul_rows x =
            t->picks ? pick(w, t, weight, (struct group){at, n}) : matmul_rows_at(&t->x, at);
        const struct matmul a = {
            .w = &part,
            .bias = t->bias ? t->bias + t->part.first + (size_t)p.begin * KERN_PANEL : NULL,
            .x = &x,
            .y = (char *)t->y.x + (at * t->y.stride + column) * (dtype_bits(t->y_dtype) / 8),
            .y_dtype = t->y_dtype,
            .y_stride = t->y.stride,
            .n_row = n,
        };
        matmul_run(w->k, &a, &w->mine);
    }
}

/* The operation that made its bytes out of floats. */
static const struct program_op *maker_of(const struct program_op *op)
{
    const uint16_t bytes = op->in[0].buffer;
    do
        op--;
    while (op->out.buffer != bytes);
    return op;
}

void cpu_experts(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    struct experts t = {.op = op, .x = cpu_rows_of(w, op->in[0]), .y_dtype = (enum dtype)out.dtype};
    const struct packed *first = program_matrix(&w->m->weights, op->weight, op->layer, 0);
    t.part = cpu_part_matrix(w, first);
    const uint32_t n_panel = panel_count(&t.part.w);
    t.y = cpu_rows_to(w, out);
    t.picks = !w->s->lines[op->in[0].buffer].b.of_places;
    if (t.picks)
        sort_places(w, op->in[1]);
    if (t.picks && t.x.rows)
        t.made = cpu_rows_of(w, maker_of(op)->in[0]);
    if (op->route.of_input)
        t.weights = w->s->e.of_places + (size_t)w->x.ith * w->s->block_rows * w->n_used;
    struct piece mine = piece_of(w, n_panel);
    for (uint32_t j = 0; j < w->n_expert; j++) {
        const struct group g = group_of(w, j);
        if (!g.n)
            continue;
        const struct panels p = next_panels(&mine, g, n_panel);
        t.bias = program_expert_vector(&w->m->weights, op->bias, op->layer, j);
        if (p.begin < p.end)
            multiply_panels(w, &t, program_matrix(&w->m->weights, op->weight, op->layer, j), g, p);
    }
    const struct cpu_product all = {first, &t.y, t.y_dtype, w->block.n * w->n_used, out.n_col};
    if (model_shard_is_part(&w->m->shard))
        cpu_exchange_columns(w, &all);
}

/* Places as int8, each as the matrix of its expert takes it. */
void cpu_quantize_places(struct cpu_run *w, const struct program_op *op)
{
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), to = cpu_rows_to(w, op->out);
    const struct cpu_rows r = cpu_to_make(w, w->block.n * w->n_used);
    for (uint32_t j = 0; j < w->n_expert; j++) {
        const struct group g = group_of(w, j);
        const uint32_t at = g.at > r.at ? g.at : r.at;
        const uint32_t end = g.at + g.n < r.at + r.n ? g.at + g.n : r.at + r.n;
        if (at >= end)
            continue;
        const struct matmul_rows mine = matmul_rows_at(&to, at);
        const struct packed *weight = program_matrix(&w->m->weights, op->weight, op->layer, j);
        const struct matmul_source from = {(const float *)x.x + at * x.stride,
                                           x.stride,
                                           end - at,
                                           op->out.n_col,
                                           weight->order,
                                           0};
        matmul_quantize(w->k, &mine, &from, &w->mine);
    }
}

void cpu_combine(struct cpu_run *w, const struct program_op *op)
{
    const struct matmul_rows y = cpu_rows_to(w, op->out), x = cpu_rows_of(w, op->in[0]);
    const size_t at = routes_at(w, w->is_own[op->in[1].buffer]);
    const struct moe_combine_args a = {
        .y = y.x,
        .y_stride = y.stride,
        .x = x.x,
        .x_stride = x.stride,
        .places = w->places,
        .weights = op->route.of_input ? NULL : w->s->e.weights + at,
        .n_row = w->block.n,
        .n_col = op->out.n_col,
        .n_used = w->n_used,
        .set = !op->onto,
    };
    w->k->moe_combine(&a, &w->x);
}

/* Each thread makes the shares of all rows for itself: sigmoid of the router's last output. */
void cpu_share_expert(struct cpu_run *w, const struct program_op *op)
{
    const struct matmul_rows y = cpu_rows_to(w, op->out), x = cpu_rows_of(w, op->in[0]);
    const struct matmul_rows scores = cpu_rows_of(w, op->in[1]);
    float *shares = w->s->e.shares + (size_t)w->x.ith * w->s->block_rows;
    for (uint32_t i = 0; i < w->block.n; i++)
        shares[i] = 1 / (1 + expf(-((const float *)scores.x)[i * scores.stride]));
    const struct moe_combine_args a = {
        .y = y.x,
        .y_stride = y.stride,
        .x = x.x,
        .x_stride = x.stride,
        .places = w->s->rows,
        .weights = shares,
        .n_row = w->block.n,
        .n_col = op->out.n_col,
        .n_used = 1,
    };
    w->k->moe_combine(&a, &w->x);
}
