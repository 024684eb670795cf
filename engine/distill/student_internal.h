/* SPDX-License-Identifier: Apache-2.0 */
/* student_internal - struct student, and what its files share.
 *
 *     student.c        load, pack, memory
 *     student_run.c    a pass: embedding, layers, steps in their order, barriers
 *     student_ops.c    the operations of a forward list
 *     student_grad.c   those of a backward list
 *     student_sums.c   what tensor parallelism adds up
 *     student_attention.c   the last layer's attention, which a loss compares
 * Threads: a pass is one team_run. Every thread goes through all blocks of rows and all steps. A
 * step computes the thread's own rows of the block, always the same ones, so no barrier stands
 * between steps; those that read rows of others (attention, sums over rows, sums over ranks) have
 * barriers in front and behind, and there is one where a value takes the memory of another. */
#ifndef QUIRE_ENGINE_DISTILL_STUDENT_INTERNAL_H
#define QUIRE_ENGINE_DISTILL_STUDENT_INTERNAL_H
#include "engine/distill/params_load.h"
#include "engine/distill/student.h"
#include "engine/distill/train_program.h"
#include "engine/model/forward/rotary.h"

/* Rows of a block in a backward pass. A sum over more rows (the gradients of weights) is added up
 * block by block, so that work memory does not grow with the micro batch; the bits depend on it. */
#define STUDENT_GRAD_ROWS  512u
/* Those of a forward pass, a thread; no bit depends on it. */
#define STUDENT_BLOCK_ROWS 96u /* whole tiles of a product */

struct student_pack {         /* of each parameter */
    struct packed w, columns; /* of a matrix that products read; data NULL: none */
    float *vector; /* of a norm that is stored less 1: the norm; NULL: the master is it */
};

struct student_stage {
    struct stage_layers of;
    uint32_t i_layer; /* its first among those of this rank */
};

struct student_memory { /* one allocation; `at` is aligned to a cache line */
    void *all;
    char *at;
    size_t n;
};

/* Tables of cos and sin: the model's, and that of layers with a window, where the family has one
 * (rope.local of an operation). */
enum { STUDENT_ROPE_ALL, STUDENT_ROPE_LOCAL, STUDENT_ROPES };
struct student_rope {
    struct rotary rotary; /* n_pair 0: the model has no such table */
    float *table;         /* [n_row_max][n_rot] by position; by row, where it depends on lengths */
    float *back;          /* the same with the sines negated, for backward passes */
};

struct student {
    struct model_config config, local; /* of the whole model; of this tensor-parallel rank */
    const struct arch *arch;
    const struct kern_table *kern;
    struct team *team;
    uint32_t n_thread;
    enum dtype compute;
    struct tensor_group group;
    struct layer_program program; /* of `local` */
    struct params params;
    struct student_pack *packs; /* [params.n] */
    struct student_stage *stages;
    uint32_t n_stage;
    struct train_layer *layers; /* [n_layer] of all stages, in their order */
    size_t *kept_at;            /* [n_layer] bytes a row in front of a layer's kept values */
    uint32_t n_layer, n_slot, n_row_max, n_row_block;
    bool recompute;
    size_t kept_row; /* bytes a row of the kept values of a slot; recompute: of any layer */
    const struct program_op *embed, *final_norm;
    const struct program_op *positions, *embed_norm; /* behind the embedding; NULL: none */
    float multiplier, soft_cap;                      /* of the logits */
    struct student_rope ropes[STUDENT_ROPES];

    struct student_memory pack_memory, kept, work, block, scratch;
    bool shares_attention;
    struct student_memory attention_grads; /* [n_slot][n_row_max, q, k and v] of the last layer */
    char *inputs;                          /* recompute: [n_slot][n_layer][n_row_max][hidden] f32 */
    float *stream;                         /* [n_row_max][hidden] */
    uint32_t *rows;                        /* [n_row_max] 0, 1, 2 … */
    uint32_t *ids;      /* [n_row_max] rows of this rank's part of the embedding */
    uint16_t *rounded;  /* bf16: [block][columns] of a gradient */
    char *across;       /* [columns][STUDENT_GRAD_ROWS] of a gradient, transposed */
    char *factor;       /* packed rows of an input */
    float *ones;        /* [hidden] of norms without a weight; NULL: there are none */
    float *slopes;      /* [n_head] of ALiBi, of this rank's heads; NULL: none */
    float *embed_dx;    /* [block][hidden] with embed_norm: a gradient in front of it */
    float *unit_r;      /* [block * units] of norms */
    float *unit_mean;   /* the same; of LayerNorm */
    float *exchange;    /* what ranks add up apart from the gradients */
    char *kern_scratch; /* [n_thread][kern_bytes] */
    size_t kern_bytes;
};

struct student_call { /* one pass through a stage */
    struct student *s;
    const struct student_pass *pass;
    const float *x; /* forward: its input */
    float *dy;      /* backward: the gradient of the stream */
    enum q_code rc; /* of a sum over ranks; written by thread 0 in front of a barrier */
    struct q_err *e;
};

struct student_run { /* a thread of a pass, in a layer */
    struct student_call *call;
    struct student *s;
    const struct micro_batch *b;
    const struct train_layer *l;
    char *kept;
    float *d_stream;
    uint32_t at, n;           /* rows of the block */
    struct kern_exec x, mine; /* this thread of the team; a team of this thread alone */
};

struct student_rows { /* where a value lies */
    char *x;          /* the block's first row */
    size_t stride;    /* elements */
    enum dtype dtype;
};
struct student_rows student_rows_of(const struct student_run *r, struct train_ref ref);
static inline float *student_floats(const struct student_rows *at, size_t row)
{
    return (float *)(void *)at->x + row * at->stride;
}
struct student_part { /* this thread's rows, counted from the block's first */
    uint32_t at, n;
};
struct student_part student_part_of(const struct student_run *r);
void student_meet(const struct student_run *r); /* a barrier */

struct student_weight { /* a parameter as operations use it */
    const struct param *param;
    const struct student_pack *pack;
    const float *w; /* vectors as they are multiplied or added; NULL: there is none */
    float *g;
};
struct student_weight student_weight_of(const struct student *s, enum program_weight w,
                                        uint32_t layer);
/* Of a norm: one without a weight has ones, and no gradient. */
struct student_weight student_norm_weight(const struct student *s, const struct program_op *op);
/* How the tensor-parallel group shares the matrix: each rank's product is a part of the sum (out,
 * down); the product has some of the columns (q, k, v, gate, up). */
bool student_is_summed(const struct student *s, const struct param *p);
bool student_is_divided(const struct student *s, const struct param *p);

/* A thread that computes alone, in the memory of a slot and one of this rank's layers. */
struct student_run student_run_of(struct student_call *c, uint32_t ith, uint32_t nth);
void student_enter_layer(struct student_run *r, uint32_t i);
/* Bytes of attention_grads. */
size_t student_attention_bytes(const struct student *s);
/* In the backward pass, behind attention's gradients: += those of student_attention. */
void student_add_attention(struct student_run *r, const struct train_step *step);

struct attention_train_args student_attention_of(const struct student_run *r,
                                                 const struct train_step *step);
/* The columns of x rotated by the operation's table; back: by the opposite angles, the gradient. */
void student_rotate(struct student_run *r, const struct program_op *op, struct train_ref at,
                    bool back);
/* Row i of both tables of cos and sin: those of a position in a sequence of n_row. */
void student_rope_row(const struct student_rope *t, uint32_t i, uint32_t position, uint32_t n_row);
/* Do the table's rows depend on the lengths of sequences? */
bool student_rope_varies(const struct student *s, uint32_t i_rope);

void student_step(struct student_run *r, const struct train_step *step);      /* TRAIN_RUN, KEEP */
void student_grad_step(struct student_run *r, const struct train_step *step); /* the others too */
void student_embed(struct student_run *r);
/* Its rows in front of embed_norm. */
void student_embed_rows(struct student_run *r);
const uint32_t *student_local_ids(struct student_run *r);
void student_embed_grad(struct student_run *r);

/* x += the other ranks' x, on all ranks: called by all threads, with a barrier behind it. */
void student_sum(struct student_run *r, float *x, size_t n);
/* Adds this rank's part of the gradient of p, [n_row][n_col] in `exchange`, and those of the ranks
 * that have a copy of its rows. first: row of the parameter. */
void student_add_shared(struct student_run *r, const struct param *p, float *g,
                        const struct param_tensor *t);

#endif
