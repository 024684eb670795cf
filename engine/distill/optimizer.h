/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer - AdamW with warm-up and cosine, clipping by the norm over all ranks.
 *     lr(s) = max * s / warmup                                               s <= warmup
 *           = min + (max - min) / 2 * (1 + cos(pi (s - warmup) / (n - warmup)))   otherwise
 *     g *= min(1, clip / (norm + 1e-6))          clip 0: not at all
 * and kernels/ops/ops_train.h (adamw). Threads: one owner. */
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
/* The sum of squares of this rank's gradients, copies not counted; the ranks' are added in the
 * order of ranks. Parts that tensor parallelism repeats on all ranks of a group (norms) are counted
 * by its rank 0 only: `counts_repeated`. */
double optimizer_square_sum(const struct params *p, const struct kern_table *k, struct team *t,
                            bool counts_repeated);
/* One update of all masters. norm: over all ranks. */
void optimizer_step(struct params *p, const struct optimizer_options *o, uint64_t step, double norm,
                    const struct kern_table *k, struct team *t);

#endif
