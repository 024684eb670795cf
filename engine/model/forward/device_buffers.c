/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/executor_device_internal.h"
#include "engine/model/forward/program_memory.h"

/* Places of experts that go through a layer together: 128 MiB of outputs for rows of 2048. A launch
 * has room for 65535. */
#define PLACES_MAX 16384u

struct demand { /* of one buffer */
    size_t element;
    bool bytes, sums, scales;
};

struct demands {
    struct demand of[PROGRAM_BUFFERS_MAX];
    size_t ordered, ordered_rows; /* bytes; rows */
    size_t ordered_scales;        /* floats of a place */
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* From a row's scales of blocks to the next row's. */
static size_t scale_stride(size_t n_col)
{
    return round_up((n_col + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK, KERN_FP8_FOUR);
}

static void demand(struct demands *to, struct program_ref r)
{
    struct demand *b = &to->of[r.buffer];
    b->element = larger(b->element, dtype_bits((enum dtype)r.dtype) / 8);
    b->bytes |= matmul_reads_bytes((enum dtype)r.dtype);
}

/* Rows of a buffer, as many as the largest step has. */
static size_t most_rows(const struct executor_device *d, enum program_rows rows)
{
    return rows == PROGRAM_ROWS_PLACES ? (size_t)d->places.n_row * d->m->config.moe.n_used
                                       : d->limits.n_row_max;
}

/* Inputs that somebody puts into the order of a matrix: of products that read floats, and of
 * experts, each of which has an order of its own. */
static void demand_order(struct demands *to, const struct executor_device *d,
                         const struct program_op *op, const struct packed *w)
{
    const bool of_experts = op->kind == PROGRAM_EXPERTS;
    const bool bytes = matmul_reads_bytes((enum dtype)op->in[0].dtype);
    if (!w->order || (bytes && !of_experts))
        return;
    const size_t n = most_rows(d, of_experts ? PROGRAM_ROWS_PLACES : PROGRAM_ROWS_STEP);
    const size_t stride = of_experts ? w->n_in : round_up(w->n_in, KERN_INT8_K);
    to->ordered = larger(to->ordered, n * stride * (bytes ? 1 : sizeof(uint16_t)));
    to->ordered_rows = bytes ? larger(to->ordered_rows, n) : to->ordered_rows;
}

/* Inputs of experts times their weights, of each place. */
static void demand_weighed(struct demands *to, const struct executor_device *d,
                           const struct program_op *op, const struct packed *w)
{
    const enum dtype dtype = (enum dtype)op->in[0].dtype;
    const size_t n = most_rows(d, PROGRAM_ROWS_PLACES);
    if (op->kind != PROGRAM_EXPERTS || !op->route.of_input)
        return;
    to->ordered = larger(to->ordered, n * round_up(w->n_in, KERN_INT8_K) * (dtype_bits(dtype) / 8));
    to->ordered_rows = matmul_reads_bytes(dtype) ? larger(to->ordered_rows, n) : to->ordered_rows;
    if (w->blocks)
        to->ordered_scales = larger(to->ordered_scales, scale_stride(w->n_in));
}

static void demand_op(struct demands *to, const struct executor_device *d,
                      const struct program_op *op)
{
    const struct program_weight_info *info = program_weight_info(op->weight);
    const bool is_matrix = op->weight && info->kind == PROGRAM_MATRIX;
    const struct packed *w =
        is_matrix ? program_matrix(&d->m->weights, op->weight, op->layer, 0) : NULL;
    demand(to, op->in[0]);
    demand(to, op->in[1]);
    demand(to, op->out);
    if (w && op->kind == PROGRAM_QUANTIZE) {
        to->of[op->out.buffer].sums |= w->group && info->scope != PROGRAM_OF_EXPERT;
        to->of[op->out.buffer].scales |= w->blocks;
    } else if (w && (op->kind == PROGRAM_MATMUL || op->kind == PROGRAM_EXPERTS)) {
        demand_order(to, d, op, w);
        demand_weighed(to, d, op, w);
    }
}

/* The parts of a buffer: measured with base NULL, given out with a base. */
static void cut_buffer(struct device_buffer *b, const struct demand *of, size_t n_row,
                       struct region_cutter *c)
{
    b->scale_stride = scale_stride(b->stride);
    b->data = region_cut(c, n_row * b->stride, of->element);
    if (of->bytes)
        b->rows = region_cut(c, n_row, sizeof *b->rows);
    if (of->sums)
        b->sums = region_cut(c, n_row * b->stride / KERN_INT8_SUM, sizeof *b->sums);
    if (of->scales)
        b->scales = region_cut(c, n_row * b->scale_stride, sizeof *b->scales);
}

/* Everything but the buffers. */
static void cut_rest(struct executor_device *d, const struct demands *of, struct region_cutter *c)
{
    const struct moe_config *moe = &d->m->config.moe;
    const size_t n_place = (size_t)d->places.n_row * moe->n_used;
    d->ordered = region_cut(c, of->ordered, 1);
    d->ordered_rows = region_cut(c, of->ordered_rows, sizeof *d->ordered_rows);
    d->ordered_scale_stride = of->ordered_scales;
    d->ordered_scales = region_cut(c, n_place * of->ordered_scales, sizeof *d->ordered_scales);
    d->places.starts = region_cut(c, n_place ? moe->n_expert + 1 : 0, sizeof *d->places.starts);
    d->places.rows = region_cut(c, n_place, sizeof *d->places.rows);
    d->places.places = region_cut(c, n_place, sizeof *d->places.places);
    d->x.scratch = region_cut(c, 1, d->x.scratch_bytes);
}

static bool has_memory(const struct program_buffer *b, uint32_t id)
{
    return b->is_stored && b->rows != PROGRAM_ROWS_CACHE && id != PROGRAM_B_LOGITS;
}

static void shape_buffers(struct executor_device *d, struct demands *of)
{
    const struct layer_program *p = &d->m->program;
    for (uint32_t i = 0; i < p->n_op; i++)
        demand_op(of, d, &p->ops[i]);
    for (uint32_t i = 0; i < p->n_buffer; i++)
        d->buffers[i].stride = i >= PROGRAM_BUFFERS && !of->of[i].bytes
                                   ? p->buffers[i].n_col /* a plugin's, as embed writes it */
                                   : round_up(p->buffers[i].n_col, KERN_INT8_K);
    d->buffers[PROGRAM_B_X].stride = p->buffers[PROGRAM_B_X].n_col; /* as embed writes it */
    d->buffers[PROGRAM_B_LAYER_IN].stride = p->buffers[PROGRAM_B_LAYER_IN].n_col;
    d->buffers[PROGRAM_B_EMBED].stride = p->buffers[PROGRAM_B_EMBED].n_col;
    of->of[PROGRAM_B_ROUTES].element = sizeof(uint32_t) + sizeof(float);
    d->buffers[PROGRAM_B_ROUTES].stride = p->buffers[PROGRAM_B_ROUTES].n_col;
    d->buffers[PROGRAM_B_LOGITS].stride = p->buffers[PROGRAM_B_LOGITS].n_col;
}

static void place_buffers(struct program_memory *to, struct executor_device *d,
                          const struct demands *of)
{
    const struct layer_program *p = &d->m->program;
    for (uint32_t i = 0; i < p->n_buffer; i++) {
        struct region_cutter c = {0};
        if (has_memory(&p->buffers[i], i))
            cut_buffer(&d->buffers[i], &of->of[i], most_rows(d, p->buffers[i].rows), &c);
        to->sizes[i] = c.used;
    }
    program_memory_place(to, p, NULL);
}

FALLIBLE device_buffers_make(struct executor_device *d, struct q_err *e)
{
    const struct layer_program *p = &d->m->program;
    const struct moe_config *moe = &d->m->config.moe;
    struct demands of = {0};
    struct program_memory at = {0};
    if (moe->n_expert) {
        const uint32_t most = moe->n_used < PLACES_MAX ? PLACES_MAX / moe->n_used : 1;
        d->places.n_row = d->limits.n_row_max < most ? d->limits.n_row_max : most;
    }
    shape_buffers(d, &of);
    place_buffers(&at, d, &of);
    struct region_cutter c = {.used = at.n_bytes};
    cut_rest(d, &of, &c);
    enum q_code rc = region_init_on(&d->memory, c.used, "activations", d->m->link, e);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < p->n_buffer; i++) {
        c = (struct region_cutter){.base = d->memory.data, .used = at.offsets[i]};
        if (at.sizes[i])
            cut_buffer(&d->buffers[i], &of.of[i], most_rows(d, p->buffers[i].rows), &c);
    }
    c = (struct region_cutter){.base = d->memory.data, .used = at.n_bytes};
    cut_rest(d, &of, &c);
    return Q_OK;
}
