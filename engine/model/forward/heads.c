/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/heads.h"

struct head_linear_args heads_args(const struct weights *g, const struct program_op *op)
{
    const struct program_table t = program_table(g, op->weight, op->layer);
    return (struct head_linear_args){
        .y_head = op->heads.n_out + op->heads.n_kept,
        .x_head = op->heads.n_in + op->heads.n_kept,
        .w = t.rows,
        .w_dtype = t.dtype,
        .w_rows = op->heads.w_rows,
        .w_first = op->heads.w_first,
        .n_w = op->heads.transposed ? op->heads.n_in : op->heads.n_out,
        .n_col = op->heads.transposed ? op->heads.n_out : op->heads.n_in,
        .transposed = op->heads.transposed,
        .n_head = op->heads.n_head,
        .n_kept = op->heads.n_kept,
    };
}
