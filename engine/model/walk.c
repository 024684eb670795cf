/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/walk.h"

/* Elements of a product's input that a thread rather makes alone than meets the others for: about a
 * microsecond of norm or quantizing. */
#define ALONE_ELEMENTS 8192u

void walk_sync(const struct walk *w)
{
    if (w->x.nth > 1)
        team_barrier(w->team);
}

struct rows walk_share(const struct walk *w, struct rows of)
{
    const uint64_t n = of.n;
    const uint32_t from = (uint32_t)(n * w->x.ith / w->x.nth);
    return (struct rows){of.at + from, (uint32_t)(n * (w->x.ith + 1) / w->x.nth) - from};
}

bool walk_alone(const struct walk *w, uint32_t n_col)
{
    return w->block.n <= ALONE_ROWS && (uint64_t)w->block.n * n_col <= ALONE_ELEMENTS;
}

struct rows walk_to_make(const struct walk *w, uint32_t n_col)
{
    return walk_alone(w, n_col) ? w->block : walk_share(w, w->block);
}

void walk_made(const struct walk *w, uint32_t n_col)
{
    if (!walk_alone(w, n_col))
        walk_sync(w);
}

static size_t input_bytes(const struct walk *w)
{
    return w->m->shape.quantization ? 1 : dtype_bits(model_input_dtype(w->m)) / 8;
}

struct operand walk_operand_at(const struct walk *w, const struct operand *o, size_t i)
{
    return (struct operand){.x = (char *)o->x + i * o->stride * input_bytes(w),
                            .stride = o->stride,
                            .rows = o->rows ? o->rows + i : NULL,
                            .sums = o->sums ? o->sums + i * o->stride / KERN_QUANT_SUM : NULL};
}

struct operand walk_operand_of(const struct walk *w, const struct operand *o, uint32_t n_col)
{
    return walk_operand_at(w, o, walk_alone(w, n_col) ? (size_t)w->x.ith * ALONE_ROWS : 0);
}

void walk_quantize(const struct walk *w, const struct operand *to, const struct floats *from)
{
    struct quant_rows_args a = {.q = to->x,
                                .rows = to->rows,
                                .sums = to->sums,
                                .x = from->x,
                                .order = from->weight->order,
                                .n_row = from->n,
                                .n_col = from->weight->n_in,
                                .x_stride = from->stride,
                                .q_stride = to->stride};
    w->m->kern->quant_rows(&a, &w->mine);
}

void walk_norm_row(const struct walk *w, uint32_t r, const float *weight, void *y, enum dtype dtype)
{
    const uint32_t hidden = w->m->config.hidden_size;
    struct rms_norm_args a = {.y = y,
                              .y_dtype = dtype,
                              .x = w->s->x + (size_t)r * hidden,
                              .w = weight,
                              .n_row = 1,
                              .n_col = hidden,
                              .x_stride = hidden,
                              .y_stride = hidden,
                              .eps = (float)w->m->config.rms_norm_eps};
    w->m->kern->rms_norm(&a, &w->mine);
}

static void product_quant(const struct walk *w, const struct product *p, const struct kern_exec *x)
{
    struct linear_int4_args a = {.by = {.y = p->y,
                                        .y_dtype = p->y_dtype,
                                        .x = p->x->x,
                                        .rows = p->x->rows,
                                        .w = *p->weight,
                                        .bias = p->bias,
                                        .n_row = p->n_row,
                                        .x_stride = p->x->stride,
                                        .y_stride = p->y_stride,
                                        .accumulate = p->add},
                                 .sums = p->x->sums};
    if (p->weight->group)
        w->m->kern->linear_int4(&a, x);
    else
        w->m->kern->linear_quant(&a.by, x);
}

void walk_product(const struct walk *w, const struct product *p)
{
    const struct kern_exec *x = p->mine ? &w->mine : &w->x;
    if (w->m->shape.quantization) {
        product_quant(w, p, x);
        return;
    }
    struct linear_args a = {.y = p->y,
                            .y_dtype = p->y_dtype,
                            .x = p->x->x,
                            .x_dtype = model_input_dtype(w->m),
                            .w = *p->weight,
                            .bias = p->bias,
                            .n_row = p->n_row,
                            .x_stride = p->x->stride,
                            .y_stride = p->y_stride,
                            .accumulate = p->add};
    w->m->kern->linear(&a, x);
}

struct operand walk_activated(const struct walk *w, const struct layer_weights *g,
                              const struct operand *x)
{
    const bool own = w->m->shape.quantization;
    const uint32_t inter = g->down.n_in;
    const size_t stride = w->s->act.stride;
    walk_product(w, &(struct product){.weight = &g->gate_up,
                                      .bias = g->gate_up_bias,
                                      .x = x,
                                      .y = own ? w->s->gated : w->s->act.x,
                                      .y_dtype = model_input_dtype(w->m),
                                      .y_stride = stride,
                                      .n_row = w->block.n});
    walk_sync(w);
    if (!own)
        return w->s->act;
    const struct operand to = walk_operand_of(w, &w->s->act, inter);
    const struct rows r = walk_to_make(w, inter);
    const struct operand mine = walk_operand_at(w, &to, r.at - w->block.at);
    const float *from = w->s->gated + (r.at - w->block.at) * stride;
    walk_quantize(w, &mine, &(struct floats){from, stride, r.n, &g->down});
    walk_made(w, inter);
    return to;
}
