/* SPDX-License-Identifier: Apache-2.0 */
/* hidden_loss - the difference of the student's and the teacher's last hidden states: of rows
 * behind the final norm, which the heads read.
 *     p = h Pᵀ where the widths differ, P: [teacher's, student's] learned; else p = h
 *     cosine   1 - p t / (|p| |t|)             arXiv:1910.01108 (DistilBERT); a row of zeros: 1
 *     mse      sum of (p - t)² / the width     arXiv:1909.10351 (TinyBERT)
 * P begins as P[i][i modulo the student's width] = 1, all else 0, and is trained beside the student
 * (params.h: training_only). It is the same on all ranks of a tensor group.
 * Threads: one owner calls; it runs on the team of its weights. */
#ifndef QUIRE_ENGINE_DISTILL_HIDDEN_LOSS_H
#define QUIRE_ENGINE_DISTILL_HIDDEN_LOSS_H
#include "engine/distill/head_weights.h"

enum hidden_kind { HIDDEN_NONE, HIDDEN_COSINE, HIDDEN_MSE };

struct hidden_options {
    enum hidden_kind kind;
    double weight;      /* in the loss */
    uint32_t n_teacher; /* width of the teacher's hidden states */
};
/* Rows of the projection that these options need for a student of this width; 0: none. */
uint32_t hidden_projection_rows(const struct hidden_options *o, uint32_t n_student);

struct hidden_loss;
/* w: as of loss_head_new; with a projection where the options need one. Errors: Q_NO_MEMORY. */
FALLIBLE hidden_loss_new(struct hidden_loss **out, const struct head_weights *w,
                         const struct hidden_options *o, uint32_t n_row_max, struct q_err *e);
void hidden_loss_free(struct hidden_loss *l);
uint64_t hidden_loss_bytes(const struct hidden_loss *l);

struct hidden_rows {      /* of a chunk */
    uint32_t n;           /* n_row_max at most */
    const void *h;        /* [n, hidden] the student's, in the compute type */
    const float *teacher; /* [n, n_teacher] */
    double n_position;    /* N of the global batch */
};
/* The sum of the rows' losses, without weight and N; the gradients of p are kept. */
double hidden_loss_forward(struct hidden_loss *l, const struct hidden_rows *rows);

struct hidden_grads {
    uint32_t n;           /* of the rows that hidden_loss_forward had last */
    float *dh;            /* [n, hidden] added to */
    const void *packed_h; /* as in struct row_product; likewise: */
    void *slices;
    size_t slice_stride;
};
/* Adds to dh and to the projection's gradient. */
void hidden_loss_backward(struct hidden_loss *l, const struct hidden_grads *g);

#endif
