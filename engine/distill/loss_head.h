/* SPDX-License-Identifier: Apache-2.0 */
/* loss_head - final norm, head, loss and their gradients, fused over chunks of rows: the logits of
 * a micro batch never exist, neither the teacher's nor the student's.
 *
 * Only rows that count take part, in ascending order, loss_head_rows at a time: norm of the
 * student's rows, product with its head, the teacher's rows, distill_loss (kernels/ops/
 * ops_distill.h has the definitions), product of the gradient with the head, gradients of head and
 * norm. A sum over rows has the order of the rows; chunks have a fixed size, so that the bits do
 * not depend on threads.
 *
 * Tensor parallelism: the head's rows are divided; logits of a chunk are gathered, each rank
 * computes the same loss and the gradient of its own columns. Threads: one owner calls; it runs on
 * the team of its weights. */
#ifndef QUIRE_ENGINE_DISTILL_LOSS_HEAD_H
#define QUIRE_ENGINE_DISTILL_LOSS_HEAD_H
#include "engine/distill/attention_loss.h"
#include "engine/distill/hidden_loss.h"
#include "engine/distill/micro_batch.h"

#define LOSS_HEAD_ROWS_MAX 512u

/* Logits (or log-probabilities) of a teacher for rows of a micro batch. */
struct teacher_rows {
    const float *z;      /* [n, n_col], row stride in elements; valid until the next call */
    const uint32_t *ids; /* NULL, or [n, n_col] with the same stride: the columns that z has */
    size_t stride;
    uint32_t n_col;
};
struct teacher_source {
    /* rows: [n] numbers of rows of the micro batch, ascending; n <= LOSS_HEAD_ROWS_MAX */
    enum q_code (*rows)(void *ctx, const struct micro_batch *b, const uint32_t *rows, uint32_t n,
                        struct teacher_rows *out, struct q_err *e);
    /* Of the same rows, behind `rows`: the hidden states behind the teacher's final norm, [n, its
     * hidden_size], valid until the next call. NULL: it has none. */
    enum q_code (*hidden)(void *ctx, const struct micro_batch *b, const uint32_t *rows, uint32_t n,
                          const float **out, struct q_err *e);
    /* Likewise of all rows of the micro batch: what the attention of its last layer has read, valid
     * until the teacher's next micro batch. NULL: it has none. */
    enum q_code (*attention)(void *ctx, const struct micro_batch *b, struct attention_rows *out,
                             struct q_err *e);
    void *ctx;
    uint32_t n_vocab; /* of the teacher */
};

struct loss_options {
    enum distill_kind kind;
    float temperature, beta;
    bool t2;
    double kd_weight, ce_weight;
    uint32_t top_k;
    bool renorm;
    struct hidden_options hidden;       /* with a teacher that has hidden states */
    struct attention_options attention; /* not of loss_head: the trainer computes it */
};

struct loss_sums { /* over the rows that count; without weights and N */
    double kd, ce, hidden;
    uint64_t n_agree, n_counted;
};

struct loss_head;
/* w: student_head's; its arrays are used until loss_head_free. Errors: Q_INVALID (options that have
 * no value together, by name), Q_NO_MEMORY. */
FALLIBLE loss_head_new(struct loss_head **out, const struct head_weights *w,
                       const struct loss_options *o, struct q_err *e);
void loss_head_free(struct loss_head *h);
uint64_t loss_head_bytes(const struct loss_head *h);
/* Rows of a chunk: a function of the vocabulary. */
uint32_t loss_head_rows(uint32_t n_vocab);
/* x: [n_row, hidden_size] the residual stream behind the last layer. dx: [n_row, hidden_size]; the
 * gradient of x of sum(kd_weight * kd + ce_weight * ce + hidden.weight * hidden) / n_position is
 * written, 0 in rows that do not count; NULL: evaluation, nothing but the sums. teacher NULL: kd,
 * hidden and agree are 0.
 * n_position: N of the global batch. A micro batch without a counted row: dx = 0, sums 0. Errors:
 * Q_INVALID (a label beyond the vocabulary, what the teacher's rows do not allow), those of teacher
 * and tensor group. */
FALLIBLE loss_head_run(struct loss_head *h, const struct micro_batch *b, const float *x,
                       const struct teacher_source *teacher, double n_position, float *dx,
                       struct loss_sums *out, struct q_err *e);

#endif
