/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer - AdamW with warm-up and cosine, clipping by the norm over all ranks.
 *     lr(s) = max * s / warmup                                               s <= warmup
 *           = min + (max - min) / 2 * (1 + cos(pi (s - warmup) / (n - warmup)))   otherwise
 *     g *= min(1, clip / (norm + 1e-6))          clip 0: not at all
 * and kernels/ops/ops_train.h (adamw).
 *
 * The square of the norm is a sum of sums, one for each layer, in the order of the layers: the same
 * bits however layers are divided into stages. Threads: one owner. */
#ifndef QUIRE_ENGINE_DISTILL_OPTIMIZER_H
#define QUIRE_ENGINE_DISTILL_OPTIMIZER_H
#include "common/team.h"
#include "engine/distill/params.h"
#include "kernels/kern.h"

struct optimizer_options {
    double lr, min_lr, beta1, beta2, eps, weight_decay, max_grad_norm;
    uint64_t warmup_steps, n_step;
};

/* step: 1, 2, … */
double optimizer_lr(const struct optimizer_options *o, uint64_t step);
/* What gradients are multiplied by: 1, or less where the norm is above max_grad_norm. */
double optimizer_clip(const struct optimizer_options *o, double norm);

struct optimizer;
/* params, k, t: borrowed. Errors: Q_NO_MEMORY. */
FALLIBLE optimizer_new(struct optimizer **out, const struct optimizer_options *o,
                       struct params *params, const struct kern_table *k, struct team *t,
                       struct q_err *e);
/* Releases the optimizer, not its parameters. NULL: nothing. */
void optimizer_free(struct optimizer *o);

#define OPTIMIZER_SUMS(n_layer) ((n_layer) + 2)
/* Squares of this rank's gradients, copies not counted. sums: [n_layer + 2] of the embedding, of
 * each layer, of what is behind the last one; 0 where this rank has none. */
void optimizer_square_sums(struct optimizer *o, uint32_t n_layer, double *sums);
/* One update of all masters. norm: over all ranks. n_update: of this one, 1, 2, … (less than step
 * where steps were skipped): the moments' bias is of so many updates. */
void optimizer_step(struct optimizer *o, uint64_t step, uint64_t n_update, double norm);

#endif
