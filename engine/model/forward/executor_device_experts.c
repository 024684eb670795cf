/* SPDX-License-Identifier: Apache-2.0 */
/* A layer's experts on a device. Each product is one launch for all experts, because the number of
 * rows of an expert is not known when the launch is ordered. Places: kernels/ops/ops_moe.h.
 * Products compute some rows of the step at a time, so that memory does not grow with the step.
 *
 * All experts of a layer have the same form. Where a matrix has its own order of inputs
 * (act-order), the order differs from expert to expert, so a row is copied once for each expert
 * that it uses, in that expert's order. Rows become bytes before, since an order changes no
 * scale. Where the experts' input is weighed, a row is copied once for each of its places too. */
#include "engine/model/forward/executor_device_internal.h"

static void sort_places(const struct device_run *r, const struct moe_config *moe)
{
    const uint32_t *experts = (const uint32_t *)(const void *)r->d->buffers[PROGRAM_B_ROUTES].data;
    const struct moe_group_rows_args a = {
        .experts = experts + (size_t)r->first * moe->n_used,
        .n_row = r->n,
        .n_used = moe->n_used,
        .n_expert = moe->n_expert,
        .starts = r->d->places.starts,
        .rows = r->d->places.rows,
        .places = r->d->places.places,
    };
    r->k->moe_group_rows(&a, &r->d->x);
}

/* Bytes between the matrix of an expert and that of the next: they were cut one after the other. */
static size_t stride_of(const struct device_run *r, const struct program_op *op)
{
    const uint32_t last = op->route.n_expert - 1;
    const char *first = device_matrix(r, op, 0)->data;
    const size_t stride = last ? (size_t)((const char *)device_matrix(r, op, 1)->data - first) : 0;
    Q_ASSERT((const char *)device_matrix(r, op, last)->data == first + last * stride);
    return stride;
}

/* x as matrices whose inputs have an order take it: a copy for each place. */
static void put_in_order(const struct device_run *r, const struct packed *w, struct matmul_rows *x,
                         struct groups *of)
{
    const bool bytes = matmul_reads_bytes(x->dtype);
    const struct permute_cols_args a = {
        .y = r->d->ordered,
        .x = x->x,
        .element = bytes ? 1 : sizeof(uint16_t),
        .y_rows = bytes ? r->d->ordered_rows : NULL,
        .x_rows = bytes ? x->rows : NULL,
        .order = w->order,
        .n_row = r->n * r->d->m->config.moe.n_used,
        .n_col = w->n_in,
        .x_stride = x->stride,
        .y_stride = w->n_in,
        .of = *of,
    };
    r->k->permute_cols(&a, &r->d->x);
    x->x = r->d->ordered;
    x->rows = bytes ? r->d->ordered_rows : NULL;
    x->stride = w->n_in;
    of->rows = NULL;
}

static const float *route_weights(const struct device_run *r, uint32_t n_used)
{
    const size_t all = (size_t)r->d->limits.n_row_max * n_used;
    return (const float *)(const void *)r->d->buffers[PROGRAM_B_ROUTES].data + all +
           (size_t)r->first * n_used;
}

/* x times the weights of its rows' places: a copy for each place, where there is none yet. */
static void weigh(const struct device_run *r, const struct program_op *op, struct matmul_rows *x,
                  struct groups *of)
{
    const struct executor_device *d = r->d;
    const bool of_places = !of->rows, bytes = matmul_reads_bytes(x->dtype);
    struct matmul_rows y = *x;
    if (!of_places)
        y.stride = (op->in[0].n_col + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
    y.x = d->ordered;
    y.rows = bytes ? d->ordered_rows : NULL;
    y.scales = bytes && x->scales ? d->ordered_scales : NULL;
    y.scale_stride = d->ordered_scale_stride;
    const struct moe_weigh_args a = {
        .y = y.x,
        .x = x->x,
        .dtype = x->dtype,
        .y_rows = y.rows,
        .x_rows = x->rows,
        .y_scales = y.scales,
        .x_scales = x->scales,
        .places = d->places.places,
        .weights = route_weights(r, op->route.n_used),
        .n_row = r->n,
        .n_col = op->in[0].n_col,
        .n_used = op->route.n_used,
        .of_places = of_places,
        .x_stride = x->stride,
        .y_stride = y.stride,
        .x_scale_stride = x->scale_stride,
        .y_scale_stride = y.scale_stride,
    };
    r->k->moe_weigh(&a, &d->x);
    *x = y;
    of->rows = NULL;
}

/* Onto the products of all places, each by its expert's: those of the experts lie as far apart as
 * their matrices. */
static void add_bias(const struct device_run *r, const struct program_op *op,
                     const struct matmul_rows *y, const struct groups *of)
{
    const struct weights *w = &r->d->m->weights;
    const float *bias = program_expert_vector(w, op->bias, op->layer, 0);
    const struct moe_add_bias_args a = {
        .y = y->x,
        .y_stride = y->stride,
        .bias = bias,
        .n_row = device_row_count(r, op->out),
        .n_col = op->out.n_col,
        .of = *of,
    };
    Q_ASSERT(op->out.dtype == DT_F32 &&
             (const char *)program_expert_vector(w, op->bias, op->layer, op->route.n_expert - 1) ==
                 (const char *)bias + (op->route.n_expert - 1) * of->w_stride);
    r->k->moe_add_bias(&a, &r->d->x);
}

/* out: the last operation of the stage. */
static void multiply(const struct device_run *r, const struct program_op *op,
                     const struct program_op *out)
{
    const struct packed *w = device_matrix(r, op, 0);
    const bool reads_places =
        r->d->m->program.buffers[op->in[0].buffer].rows == PROGRAM_ROWS_PLACES;
    const struct matmul_rows y = device_rows_of(r, out->out);
    struct matmul_rows x = device_rows_of(r, op->in[0]);
    struct groups of = {
        .w_stride = stride_of(r, op),
        .n_group = op->route.n_expert,
        .starts = r->d->places.starts,
        .rows = reads_places ? NULL : r->d->places.rows,
    };
    if (w->order)
        put_in_order(r, w, &x, &of);
    if (op->route.of_input)
        weigh(r, op, &x, &of);
    matmul_run(r->k,
               &(struct matmul){
                   .w = w,
                   .x = &x,
                   .y = y.x,
                   .y_dtype = y.dtype,
                   .y_stride = y.stride,
                   .n_row = device_row_count(r, out->out),
                   .groups = &of,
               },
               &r->d->x);
    if (op->bias)
        add_bias(r, op, &y, &of);
}

static void combine(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const struct moe_combine_args a = {
        .y = y.x,
        .y_stride = y.stride,
        .x = x.x,
        .x_stride = x.stride,
        .places = r->d->places.places,
        .weights = op->route.of_input ? NULL : route_weights(r, op->route.n_used),
        .n_row = r->n,
        .n_col = op->out.n_col,
        .n_used = op->route.n_used,
        .set = !op->onto,
    };
    r->k->moe_combine(&a, &r->d->x);
}

static void stage(const struct device_run *r, const struct program_stage *s)
{
    const struct program_op *op = &r->d->m->program.ops[s->first];
    if (op->kind == PROGRAM_EXPERTS)
        multiply(r, op, op + s->n - 1);
    else if (op->kind == PROGRAM_COMBINE)
        combine(r, op);
    else
        device_stage(r, s);
}

void device_experts(const struct device_run *all, const struct program_stage *s, uint32_t n)
{
    const uint32_t most = all->d->places.n_row;
    struct device_run r = *all;
    for (r.first = 0; r.first < all->n; r.first += r.n) {
        r.n = all->n - r.first < most ? all->n - r.first : most;
        sort_places(&r, &r.d->m->config.moe);
        for (uint32_t i = 0; i < n; i++)
            stage(&r, &s[i]);
    }
}
