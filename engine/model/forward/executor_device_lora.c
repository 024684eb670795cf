/* SPDX-License-Identifier: Apache-2.0 */
/* The two operations of adapters: all rows of the step that have one, of all adapters, in one
 * launch (ops_lora.h). A step without such rows launches nothing here. */
#include "engine/model/forward/executor_device_internal.h"
#include "engine/model/lora/lora.h"

/* What the adapters have for the operation's product. */
static struct lora_slots slots_of(const struct device_run *r, const struct program_op *op)
{
    struct lora_slots s = *r->s->lora;
    s.product = op->layer * LORA_PRODUCTS + lora_product(op->weight);
    return s;
}

void device_shrink(const struct device_run *r, const struct program_op *op)
{
    if (!r->s->lora)
        return;
    const struct matmul_rows x = device_rows_of(r, op->in[0]), t = device_rows_of(r, op->out);
    const struct lora_shrink_grouped_args a = {
        .t = t.x,
        .x = x.x,
        .x_dtype = x.dtype,
        .of = slots_of(r, op),
        .n_rank = op->out.n_col,
        .x_stride = x.stride,
        .t_stride = t.stride,
    };
    r->k->lora_shrink_grouped(&a, &r->d->x);
}

void device_expand(const struct device_run *r, const struct program_op *op)
{
    if (!r->s->lora)
        return;
    const struct matmul_rows t = device_rows_of(r, op->in[0]), y = device_rows_of(r, op->out);
    const struct lora_expand_grouped_args a = {
        .y = y.x,
        .t = t.x,
        .of = slots_of(r, op),
        .n_col = op->out.n_col,
        .y_stride = y.stride,
        .t_stride = t.stride,
    };
    r->k->lora_expand_grouped(&a, &r->d->x);
}
