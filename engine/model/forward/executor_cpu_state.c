/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's operations of layers whose past is not K and V of heads: attention over latents, and
 * mixers with a state of each sequence, whose kernels copy snapshots of it. */
#include "engine/model/forward/executor_cpu.h"
#include "engine/model/forward/heads.h"

/* ---- latent attention ---- */

void cpu_store_latent(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]);
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    const struct mla_store_args a = {
        .cache = w->kv->k[model_kv_layer(w->m, op->layer)],
        .kv_dtype = w->kv->dtype,
        .x = (const float *)x.x + r.at * x.stride,
        .x_stride = x.stride,
        .slot = w->b->slot_mapping + w->block.at + r.at,
        .n_row = r.n,
        .n_key = op->latent.n_key,
    };
    (void)out;
    w->k->mla_store(&a, &w->mine);
}

void cpu_attend_latent(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows q = cpu_rows_of(w, op->in[0]), to = cpu_rows_to(w, out);
    uint32_t n_seq;
    const struct attention_seq *seqs = cpu_seqs(w, &n_seq);
    const struct mla_args a = {
        .out = to.x,
        .out_dtype = to.dtype,
        .q = q.x,
        .out_stride = to.stride,
        .q_stride = q.stride,
        .cache = w->kv->k[model_kv_layer(w->m, op->layer)],
        .kv_dtype = w->kv->dtype,
        .seqs = seqs,
        .n_seq = n_seq,
        .n_head = op->latent.n_head,
        .n_key = op->latent.n_key,
        .n_value = op->latent.n_value,
        .context_max = w->b->context_max,
        .scale = op->latent.scale,
        .n_row = w->b->n_token,
    };
    w->k->mla(&a, &w->x);
}

void cpu_heads(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), to = cpu_rows_to(w, out);
    struct head_linear_args a = heads_args(&w->m->weights, op);
    a.y = to.x;
    a.y_dtype = to.dtype;
    a.x = x.x;
    a.y_stride = to.stride;
    a.x_stride = x.stride;
    a.n_row = w->block.n;
    w->k->head_linear(&a, &w->x);
}

/* ---- operations with a state of each sequence ---- */

static struct state_rows states_of(const struct cpu_run *w, uint32_t at)
{
    return (struct state_rows){
        .parts = w->b->state_parts,
        .n_part = w->b->n_state_part,
        .pool = w->kv->states + at,
        .stride = w->kv->state_stride,
        .n_row = w->b->n_token,
    };
}

void cpu_conv(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), to = cpu_rows_to(w, out);
    const float *rows = x.x;
    const uint32_t n = out.n_col;
    const struct state_conv_args a = {
        .y = to.x,
        .x = op->conv.gated ? rows + 2 * (size_t)n : rows,
        .pre = op->conv.gated ? rows : NULL,
        .post = op->conv.gated ? rows + n : NULL,
        .y_stride = to.stride,
        .x_stride = x.stride,
        .w = cpu_vector_of(w, op->weight, op),
        .bias = cpu_vector_of(w, op->bias, op),
        .n_col = n,
        .width = op->conv.width,
        .states = states_of(w, op->conv.state),
    };
    w->k->state_conv(&a, &w->x);
}

void cpu_delta(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), gates = cpu_rows_of(w, op->in[1]);
    const struct matmul_rows to = cpu_rows_to(w, out);
    const struct state_delta_args a = {
        .y = to.x,
        .x = x.x,
        .gates = gates.x,
        .y_stride = to.stride,
        .x_stride = x.stride,
        .gate_stride = gates.stride,
        .log_rate = cpu_vector_of(w, op->weight, op),
        .rate_bias = cpu_vector_of(w, op->bias, op),
        .n_key_head = op->delta.n_key_head,
        .n_value_head = op->delta.n_value_head,
        .key_dim = op->delta.key_dim,
        .value_dim = op->delta.value_dim,
        .beta_max = op->delta.beta_max,
        .states = states_of(w, op->delta.state),
    };
    w->k->state_delta(&a, &w->x);
}

void cpu_scan(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows in = cpu_rows_of(w, op->in[0]), steps = cpu_rows_of(w, op->in[1]);
    const struct matmul_rows to = cpu_rows_to(w, out);
    const float *x = in.x;
    const struct state_scan_args a = {
        .y = to.x,
        .x = x,
        .b = x + op->scan.first,
        .c = x + op->scan.first + (size_t)op->scan.n_group * op->scan.n_state,
        .step = steps.x,
        .y_stride = to.stride,
        .x_stride = in.stride,
        .b_stride = in.stride,
        .step_stride = steps.stride,
        .log_rate = cpu_vector_of(w, op->weight, op),
        .step_bias = cpu_vector_of(w, op->bias, op),
        .skip = cpu_vector_of(w, PROGRAM_W_MIX_SKIP, op),
        .step_min = op->scan.step_min,
        .step_max = op->scan.step_max,
        .n_head = op->scan.n_head,
        .head_dim = op->scan.head_dim,
        .n_group = op->scan.n_group,
        .n_state = op->scan.n_state,
        .by_state = op->scan.by_state,
        .states = states_of(w, op->scan.state),
    };
    w->k->state_scan(&a, &w->x);
}

void cpu_gate(struct cpu_run *w, const struct program_op *op, struct program_ref out)
{
    const struct matmul_rows x = cpu_rows_of(w, op->in[0]), by = cpu_rows_of(w, op->in[1]);
    const struct matmul_rows y = cpu_rows_to(w, out);
    const struct cpu_rows r = cpu_share(w, (struct cpu_rows){0, w->block.n});
    const struct gate_rows_args a = {
        .y = (float *)y.x + r.at * y.stride,
        .x = (const float *)x.x + r.at * x.stride,
        .gate = (const float *)by.x + r.at * by.stride,
        .n_row = r.n,
        .n_col = out.n_col,
        .x_stride = x.stride,
        .gate_stride = by.stride,
        .y_stride = y.stride,
        .by = op->gate,
    };
    w->k->gate_rows(&a, &w->mine);
}
