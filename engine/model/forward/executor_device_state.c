/* SPDX-License-Identifier: Apache-2.0 */
/* A device's operations of mixers with a state of each sequence. Kernels begin states and copy
 * snapshots of them as the step's parts say. */
#include "engine/model/forward/executor_device_internal.h"

static const float *vector_at(const struct device_run *r, const struct program_op *op,
                              enum program_weight weight)
{
    return program_vector(&r->d->m->weights, weight, op->layer);
}

static struct state_rows states_of(const struct device_run *r, uint32_t at)
{
    return (struct state_rows){
        .parts = r->s->batch->state_parts,
        .n_part = r->s->batch->n_state_part,
        .pool = r->s->kv->states + at,
        .stride = r->s->kv->state_stride,
        .n_row = r->n,
    };
}

static void conv(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const float *rows = x.x;
    const uint32_t n = op->out.n_col;
    const struct state_conv_args a = {
        .y = y.x,
        .x = op->conv.gated ? rows + 2 * (size_t)n : rows,
        .pre = op->conv.gated ? rows : NULL,
        .post = op->conv.gated ? rows + n : NULL,
        .y_stride = y.stride,
        .x_stride = x.stride,
        .w = vector_at(r, op, op->weight),
        .bias = vector_at(r, op, op->bias),
        .n_col = n,
        .width = op->conv.width,
        .states = states_of(r, op->conv.state),
    };
    r->k->state_conv(&a, &r->d->x);
}

static void delta(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const struct matmul_rows gates = device_rows_of(r, op->in[1]);
    const struct state_delta_args a = {
        .y = y.x,
        .x = x.x,
        .gates = gates.x,
        .y_stride = y.stride,
        .x_stride = x.stride,
        .gate_stride = gates.stride,
        .log_rate = vector_at(r, op, op->weight),
        .rate_bias = vector_at(r, op, op->bias),
        .n_key_head = op->delta.n_key_head,
        .n_value_head = op->delta.n_value_head,
        .key_dim = op->delta.key_dim,
        .value_dim = op->delta.value_dim,
        .beta_max = op->delta.beta_max,
        .states = states_of(r, op->delta.state),
    };
    r->k->state_delta(&a, &r->d->x);
}

static void scan(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows in = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const struct matmul_rows steps = device_rows_of(r, op->in[1]);
    const float *x = in.x;
    const struct state_scan_args a = {
        .y = y.x,
        .x = x,
        .b = x + op->scan.first,
        .c = x + op->scan.first + (size_t)op->scan.n_group * op->scan.n_state,
        .step = steps.x,
        .y_stride = y.stride,
        .x_stride = in.stride,
        .b_stride = in.stride,
        .step_stride = steps.stride,
        .log_rate = vector_at(r, op, op->weight),
        .step_bias = vector_at(r, op, op->bias),
        .skip = vector_at(r, op, PROGRAM_W_MIX_SKIP),
        .step_min = op->scan.step_min,
        .step_max = op->scan.step_max,
        .n_head = op->scan.n_head,
        .head_dim = op->scan.head_dim,
        .n_group = op->scan.n_group,
        .n_state = op->scan.n_state,
        .by_state = op->scan.by_state,
        .states = states_of(r, op->scan.state),
    };
    r->k->state_scan(&a, &r->d->x);
}

void device_state(const struct device_run *r, const struct program_op *op)
{
    if (op->kind == PROGRAM_CONV)
        conv(r, op);
    else if (op->kind == PROGRAM_DELTA)
        delta(r, op);
    else
        scan(r, op);
}

void device_norm_units(const struct device_run *r, const struct program_op *op)
{
    const struct matmul_rows x = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const struct norm_units_args a = {
        .y = y.x,
        .y_dtype = y.dtype,
        .x = x.x,
        .w = vector_at(r, op, op->weight),
        .n_row = r->n,
        .n_unit = op->in[0].n_col / op->norm.unit,
        .unit = op->norm.unit,
        .x_stride = x.stride,
        .y_stride = y.stride,
        .eps = op->norm.eps,
        .apart = op->norm.apart,
    };
    r->k->norm_units(&a, &r->d->x);
}
