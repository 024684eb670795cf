/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's operations of several residual streams, and of sparse gates (ops_streams.h). Each
 * thread has its share of the rows. */
#include "engine/model/forward/executor_cpu.h"

static float *row_at(const struct matmul_rows *r, uint32_t i)
{
    return (float *)r->x + (size_t)i * r->stride;
}

void cpu_match(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows s = cpu_rows_to(w, out), x = cpu_rows_of(w, op->in[1]);
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    const struct stream_match_args a = {
        .s = row_at(&s, r.at),
        .x = row_at(&x, r.at),
        .n_row = r.n,
        .n_part = out.n_col / op->in[1].n_col,
        .n_col = op->in[1].n_col,
        .s_stride = s.stride,
        .x_stride = x.stride,
    };
    w->k->stream_match(&a, &w->mine);
}

/* What predicting and correcting have in common. */
static struct stream_args streams_of(const struct cpu_run *w, const struct program_op *op,
                                     struct program_ref out)
{
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), scores = cpu_rows_of(w, op->in[1]);
    const struct matmul_rows s = cpu_rows_to(w, out);
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    return (struct stream_args){
        .x = row_at(&x, r.at),
        .s = row_at(&s, r.at),
        .scores = row_at(&scores, r.at),
        .w = cpu_vector_of(w, op->weight, op),
        .n_row = r.n,
        .n = op->in[1].n_col,
        .n_col = op->in[0].n_col,
        .x_stride = x.stride,
        .s_stride = s.stride,
        .scores_stride = scores.stride,
    };
}

void cpu_predict(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct stream_predict_args a = {streams_of(w, op, out)};
    w->k->stream_predict(&a, &w->mine);
}

void cpu_correct(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct stream_correct_args a = {streams_of(w, op, out), cpu_vector_of(w, op->bias, op)};
    w->k->stream_correct(&a, &w->mine);
}

void cpu_sparse(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows x = cpu_rows_to(w, out);
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    const struct sparse_gate_args a = {
        .x = row_at(&x, r.at),
        .n_row = r.n,
        .n_col = out.n_col,
        .x_stride = x.stride,
        .cutoff = op->cap,
    };
    w->k->sparse_gate(&a, &w->mine);
}
