/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "engine/model/forward/executor_cpu.h"

/* to: rows of the step, neighbours. from: the block's. */
static void copy_rows(const struct cpu_run *w, float *to, const struct matmul_rows *from,
                      size_t n_col)
{
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    for (uint32_t i = r.at; i < r.at + r.n; i++)
        memcpy(to + (w->part.row + w->block.at + i) * n_col,
               (const float *)from->x + i * from->stride, n_col * sizeof *to);
}

static const struct model_attention_tap *tap_of(const struct cpu_run *w,
                                                const struct program_op *op)
{
    const struct model_attention_tap *t = w->s->attention_tap;
    return t && t->layer == op->layer ? t : NULL;
}

void cpu_tap_query(const struct cpu_run *w, const struct program_op *op,
                   const struct matmul_rows *q)
{
    const struct model_attention_tap *t = tap_of(w, op);
    if (t)
        copy_rows(w, t->q, q, op->in[0].n_col);
}

void cpu_tap_keys(const struct cpu_run *w, const struct program_op *op, const struct matmul_rows *k,
                  const struct matmul_rows *v)
{
    const struct model_attention_tap *t = tap_of(w, op);
    if (!t)
        return;
    copy_rows(w, t->k, k, op->in[0].n_col);
    copy_rows(w, t->v, v, op->in[1].n_col);
}

void model_scratch_tap_attention(struct model_scratch *s, const struct model_attention_tap *t)
{
    s->attention_tap = t;
}
