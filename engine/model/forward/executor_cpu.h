/* SPDX-License-Identifier: Apache-2.0 */
/* executor_cpu - the CPU executor's parts that its handlers share: the rows that a thread computes,
 * the address of a buffer's rows, products. Internal to engine/model: executor_cpu.c runs programs,
 * executor_cpu_experts.c has the operations of mixtures of experts, executor_cpu_state.c those of
 * latents and states.
 *
 * Threads: each thread has its own struct cpu_run and passes it to every function. A kernel that
 * all threads call together gets `x`; a kernel that a thread calls for its own rows gets `mine`. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_EXECUTOR_CPU_H
#define QUIRE_ENGINE_MODEL_FORWARD_EXECUTOR_CPU_H
#include "engine/model/forward/cpu_scratch.h"
#include "engine/plugin.h"

#define CPU_NO_SEQ     UINT32_MAX
#define CPU_SHARED_MAX 256u /* between two barriers; further products are not shared */
struct cpu_part {           /* of a step: w->b is a batch of these sequences alone */
    uint32_t i_seq;         /* the only one; CPU_NO_SEQ: there are several */
    uint32_t row;           /* its first row, */
    uint32_t logit;         /* its first row of logits */
};

struct cpu_run {
    const struct model *m;
    const struct batch *b;
    const struct kv_cache *kv;
    struct model_scratch *s;
    const struct kern_table *k;
    float *logits;
    struct team *team;
    struct kern_exec x;    /* this thread's share of an operation that all threads run */
    struct kern_exec mine; /* an operation that this thread runs alone on its own rows */
    struct cpu_rows
        block; /* of the pass; of asked rows: their numbers in logit_rows from first on */
    struct cpu_part part;
    const struct cpu_spans *spans;    /* the pass goes through these rows; NULL: through all */
    uint32_t first_logit, n_logit;    /* rows that are asked for */
    uint32_t n_shared;                /* products since the last barrier that threads share */
    bool asked;                       /* the pass is of the rows asked for */
    bool is_clean;                    /* nothing was read or written since the last barrier */
    bool own_stage;                   /* this stage makes a copy of its output in each thread */
    bool is_own[PROGRAM_BUFFERS_MAX]; /* each thread has a copy of it */
    uint32_t n_expert, n_used;        /* of the layer's experts, which are sorted by: */
    uint32_t *ends, *rows, *places;   /* this thread's own (cpu_scratch.h) */
};

/* This thread's share of some rows. */
static inline struct cpu_rows cpu_share(const struct cpu_run *w, struct cpu_rows of)
{
    const uint64_t n = of.n;
    const uint32_t from = (uint32_t)(n * w->x.ith / w->x.nth);
    return (struct cpu_rows){of.at + from, (uint32_t)(n * (w->x.ith + 1) / w->x.nth) - from};
}

/* The sequences whose rows the pass has. */
static inline const struct attention_seq *cpu_seqs(const struct cpu_run *w, uint32_t *n)
{
    *n = w->spans ? w->spans->n_seq : w->b->n_seq;
    return w->spans ? w->spans->seqs : w->b->seqs;
}

/* Rows 0 … n - 1 of the block that this thread makes in this stage: all of them where each has a
 * copy. */
static inline struct cpu_rows cpu_to_make(const struct cpu_run *w, uint32_t n)
{
    return w->own_stage ? (struct cpu_rows){0, n} : cpu_share(w, (struct cpu_rows){0, n});
}

static inline size_t cpu_width(struct program_ref r)
{
    return dtype_bits((enum dtype)r.dtype) / 8;
}

/* The block's rows of a reference, this thread's copy where it has one. */
struct matmul_rows cpu_rows_of(const struct cpu_run *w, struct program_ref r);
/* The same as rows that are written: the copy of this thread, when the stage makes copies. */
struct matmul_rows cpu_rows_to(const struct cpu_run *w, struct program_ref r);

/* Wait for all threads. */
void cpu_meet(struct cpu_run *w);
/* Operations of given rows, of all rows of the step: q, k, v and the output of attention lie as
 * they are told to, not in buffers of the program. */
void cpu_embed(struct cpu_run *w, const struct program_op *op, float *y);
void cpu_items(const struct cpu_run *w, const struct quire_rows *y);
void cpu_store(struct cpu_run *w, const struct program_op *op, const struct matmul_rows *k,
               const struct matmul_rows *v);
void cpu_attend(struct cpu_run *w, const struct program_op *op, const struct matmul_rows *q,
                const struct matmul_rows *to);

/* Floats that the operation names; NULL: it names none, or they are not there. */
const float *cpu_vector_of(const struct cpu_run *w, enum program_weight v,
                           const struct program_op *op);

/* ---- executor_cpu_state.c: latents, states of sequences ---- */
void cpu_store_latent(struct cpu_run *w, const struct program_op *op, struct program_ref out);
void cpu_attend_latent(struct cpu_run *w, const struct program_op *op, struct program_ref out);
void cpu_heads(struct cpu_run *w, const struct program_op *op, struct program_ref out);
void cpu_conv(struct cpu_run *w, const struct program_op *op, struct program_ref out);
void cpu_delta(struct cpu_run *w, const struct program_op *op, struct program_ref out);
void cpu_scan(struct cpu_run *w, const struct program_op *op, struct program_ref out);
void cpu_gate(struct cpu_run *w, const struct program_op *op, struct program_ref out);

/* ---- executor_cpu_streams.c: several residual streams, sparse gates ---- */
void cpu_match(struct cpu_run *w, const struct program_op *op, struct program_ref out);
void cpu_predict(struct cpu_run *w, const struct program_op *op, struct program_ref out);
void cpu_correct(struct cpu_run *w, const struct program_op *op, struct program_ref out);
void cpu_sparse(struct cpu_run *w, const struct program_op *op, struct program_ref out);

/* ---- executor_cpu_shard.c: matrices that are divided among ranks ---- */
/* What of the matrix is here, and where its columns begin in the product's rows. */
struct cpu_part_matrix {
    struct packed w; /* n_out 0: nothing */
    uint32_t first;  /* output, of a bias */
    uint32_t column;
};
struct cpu_part_matrix cpu_part_matrix(const struct cpu_run *w, const struct packed *whole);
struct cpu_product { /* rows of one */
    const struct packed *whole;
    const struct matmul_rows *y; /* their type is `dtype` */
    enum dtype dtype;
    uint32_t n_row, n_col;
};
/* The columns of the other ranks, when all threads have computed this rank's. */
void cpu_exchange_columns(struct cpu_run *w, const struct cpu_product *p);

/* ---- executor_cpu_tap.c: what attention reads, copied for others ---- */
/* Of the block: the rows of this thread's share. */
void cpu_tap_query(const struct cpu_run *w, const struct program_op *op,
                   const struct matmul_rows *q);
void cpu_tap_keys(const struct cpu_run *w, const struct program_op *op, const struct matmul_rows *k,
                  const struct matmul_rows *v);

/* ---- executor_cpu_own.c: a plugin's forward pass ---- */
/* After a failure (cpu_fail) the logits are no numbers. */
void cpu_forward_own(struct cpu_run *w);
/* Rows of its logits. */
void cpu_logits_own(struct cpu_run *w, const struct model_logits *out);

/* ---- executor_cpu_failure.c: plugins that fail ---- */
typedef void cpu_pass(struct cpu_run *w);
/* A plugin's `what` could not compute rows of w->part. */
void cpu_fail(const struct cpu_run *w, const char *what, struct quire_plugin_error *error);
/* An operation of a plugin's own. */
void cpu_operation(struct cpu_run *w, const struct program_op *op, struct program_ref out);
/* The pass over the batch; after a failure once more for each sequence by itself. */
void cpu_each_forward(struct cpu_run *all, cpu_pass *pass);
/* The same of n_logit rows that are asked for: for each row by itself. */
void cpu_each_logits(struct cpu_run *w, cpu_pass *pass);

/* ---- executor_cpu_experts.c ---- */
void cpu_route(struct cpu_run *w, const struct program_op *op);
/* out: where the last operation of the stage writes. */
void cpu_experts(struct cpu_run *w, const struct program_op *op, struct program_ref out);
void cpu_quantize_places(struct cpu_run *w, const struct program_op *op);
void cpu_combine(struct cpu_run *w, const struct program_op *op);
void cpu_share_expert(struct cpu_run *w, const struct program_op *op);

/* ---- executor_cpu_lora.c: adapters ---- */
void cpu_shrink(struct cpu_run *w, const struct program_op *op, struct program_ref out);
void cpu_expand(struct cpu_run *w, const struct program_op *op, struct program_ref out);

#endif
