/* SPDX-License-Identifier: Apache-2.0 */
/* head_weights - what loss_head reads of a student and adds gradients to: the final norm, the head
 * and the projection of a rank, packed for the kernels. The student fills it (student.h:
 * student_head).
 * Threads: values; arrays are the student's. */
#ifndef QUIRE_ENGINE_DISTILL_HEAD_WEIGHTS_H
#define QUIRE_ENGINE_DISTILL_HEAD_WEIGHTS_H
#include "common/team.h"
#include "kernels/kern.h"

/* Sums over the ranks of a tensor-parallel group, in the order of ranks, so that all of them have
 * the same bits. size 1: neither is called. */
struct tensor_group {
    uint32_t rank, size;
    enum q_code (*sum)(void *ctx, float *x, size_t n, struct q_err *e);
    /* out: [size][n], parts in the order of ranks */
    enum q_code (*gather)(void *ctx, const float *x, size_t n, float *out, struct q_err *e);
    void *ctx;
};

struct head_weights {
    const struct kern_table *kern;
    struct team *team;  /* NULL: one thread */
    enum dtype compute; /* F32 or BF16: of packed weights and of the rows that they multiply */
    uint32_t n_vocab;   /* of all ranks of the tensor group; each has n_vocab / size of them, rank r
                           those from r * n_vocab / size on */
    uint32_t hidden;
    float norm_eps;
    const float *norm;       /* [hidden] as it is multiplied (Gemma: 1 added) */
    bool is_layer_norm;      /* else RMS norm */
    const float *norm_bias;  /* [hidden] or NULL; with is_layer_norm */
    struct packed w;         /* n_vocab / size outputs, hidden inputs */
    struct packed w_columns; /* the transpose: hidden outputs, n_vocab / size inputs */
    const float *bias;       /* [n_vocab / size] or NULL */
    float multiplier;        /* of the logits; 1: none */
    float soft_cap;          /* of the logits; 0: none */
    float *norm_grad;        /* [hidden] or NULL: it has no weight */
    float *norm_bias_grad;   /* [hidden] or NULL */
    float *w_grad;           /* [n_vocab / size][hidden] */
    float *bias_grad;        /* [n_vocab / size] or NULL */
    /* Of hidden_loss.h, the same on all ranks; data NULL: none. w: the teacher's hidden_size
     * outputs, hidden inputs; columns: the transpose */
    struct packed projection, projection_columns;
    float *projection_grad;
    struct tensor_group tensor_parallel;
};

/* Rows of the stream, one after another, through the final norm. y: [n, hidden] in the compute
 * type; x: [n, hidden] f32. */
void head_norm(const struct head_weights *w, void *y, const float *x, uint32_t n,
               const struct kern_exec *exec);
/* z: [n, n_vocab] with this stride: multiplied and capped as the model's logits are. */
void head_scale(const struct head_weights *w, float *z, size_t stride, uint32_t n,
                const struct kern_exec *exec);
void head_cap(const struct head_weights *w, float *z, size_t stride, uint32_t n,
              const struct kern_exec *exec);

#endif
