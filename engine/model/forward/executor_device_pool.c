/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of models that pool: types of tokens at their begin, the pooled rows at their end.
 * */
#include "engine/model/forward/executor_device_internal.h"
#include "engine/model/forward/pool_kinds.h"

void device_types(const struct device_run *r, const struct program_op *op)
{
    const struct program_table t = program_table(&r->d->m->weights, op->weight, op->layer);
    const bool given = r->s->batch->token_types != NULL;
    const struct embed_args a = {
        .y = device_rows_of(r, op->out).x,
        .table = t.rows,
        .dtype = t.dtype,
        .div = 1,
        .mod = given ? 0 : 1, /* all rows have type 0 */
        .ids = given ? r->s->batch->token_types : r->s->batch->positions,
        .n_row = r->n,
        .n_col = op->out.n_col,
        .scale = 1,
        .accumulate = 1,
    };
    r->k->embed(&a, &r->d->x);
}

void device_pool(const struct device_run *r, const struct program_op *op)
{
    const struct device_buffer *x = &r->d->buffers[op->in[0].buffer];
    const struct matmul_rows y = device_rows_of(r, op->out);
    const struct pool_rows_args a = {
        .y = y.x,
        .x = (const float *)(const void *)x->data,
        .rows = r->s->batch->logit_rows,
        .seqs = r->s->batch->seqs,
        .n_row = r->n,
        .n_seq = r->s->batch->n_seq,
        .n_col = op->out.n_col,
        .x_stride = x->stride,
        .y_stride = y.stride,
        .kind = pool_kind_of(op->pool),
    };
    r->k->pool_rows(&a, &r->d->x);
}
