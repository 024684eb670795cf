/* SPDX-License-Identifier: Apache-2.0 */
/* The two operations of adapters: the rows of the block that have one, by groups, in one call of a
 * kernel for all adapters (ops_lora.h). Rows without an adapter are not touched. */
#include "engine/model/forward/executor_cpu.h"
#include "engine/model/lora/lora.h"

/* The first of n ascending rows that is not below `least`. */
static uint32_t first_from(const uint32_t *rows, uint32_t n, uint32_t least)
{
    uint32_t low = 0;
    while (low < n) {
        const uint32_t mid = low + (n - low) / 2;
        if (rows[mid] < least)
            low = mid + 1;
        else
            n = mid;
    }
    return low;
}

static uint32_t groups_of(const struct cpu_run *w, const struct program_op *op,
                          struct lora_group out[LORA_GROUPS_MAX])
{
    const struct lora_batch *b = w->b->lora;
    const uint32_t first = w->part.row + w->block.at, end = first + w->block.n;
    uint32_t n = 0;
    for (uint32_t i = 0; b && i < b->n_group; i++) {
        const struct lora_rows *of = &b->groups[i];
        const struct lora_factors *f = lora_factors_of(of->adapter, op->weight, op->layer);
        const uint32_t from = f ? first_from(of->rows, of->n_row, first) : 0;
        const uint32_t to = f ? first_from(of->rows, of->n_row, end) : 0;
        if (from < to)
            out[n++] = (struct lora_group){f, of->rows + from, to - from};
    }
    return n;
}

void cpu_shrink(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    struct lora_group groups[LORA_GROUPS_MAX];
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), t = cpu_rows_to(w, out);
    const struct lora_shrink_args a = {
        .t = t.x,
        .x = x.x,
        .x_dtype = x.dtype,
        .groups = groups,
        .n_group = groups_of(w, op, groups),
        .first = w->part.row + w->block.at,
        .x_stride = x.stride,
        .t_stride = t.stride,
    };
    if (a.n_group)
        w->k->lora_shrink(&a, &w->x);
}

void cpu_expand(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    struct lora_group groups[LORA_GROUPS_MAX];
    const struct matmul_rows t = cpu_rows_of(w, op->in[0]), y = cpu_rows_to(w, out);
    const struct lora_expand_args a = {
        .y = y.x,
        .t = t.x,
        .groups = groups,
        .n_group = groups_of(w, op, groups),
        .first = w->part.row + w->block.at,
        .y_stride = y.stride,
        .t_stride = t.stride,
    };
    if (a.n_group)
        w->k->lora_expand(&a, &w->x);
}
