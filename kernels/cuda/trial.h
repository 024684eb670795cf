/* SPDX-License-Identifier: Apache-2.0 */
/* trial - two kernels for attention on the same small problems, so that one of them is taken only
 * where both give the same.
 *
 * attention_sm90a differs from attention_cuda in the instructions and not in the order of sums, and
 * cannot be tested without the card that runs it; so every card is asked when it is opened. The
 * problems have contexts of several splits, which end in the middle of a block, GQA, a window, a
 * soft cap, sinks; the cache is NaN where no token is. Threads: as device.h. */
#ifndef QUIRE_KERNELS_CUDA_TRIAL_H
#define QUIRE_KERNELS_CUDA_TRIAL_H
#include "kernels/device.h"

typedef void attention_fn(const struct attention_args *a, const struct kern_exec *x);

struct attention_trial {
    uint32_t n, n_differ; /* outputs; of other bits */
    double worst;         /* largest difference over the largest value; a NaN makes it infinite */
};

/* d: of table t, whose plan and layouts both kernels use; nothing else runs on it.
 * Errors: those of t: the device failed in the trial, and may not be usable any more. */
FALLIBLE attention_trial_run(struct attention_trial *out, const struct device_link *on,
                             attention_fn *known, attention_fn *tried, struct q_err *e);
/* same_bits: a row may come from either kernel (decoded, or in a prompt), so with the promise of
 * equal bits (DESIGN section 6) nothing may differ; else 2^-9, half of which a weight's rounding to
 * bf16 is off by. */
bool attention_trial_holds(const struct attention_trial *r, bool same_bits);

/* attention_sm90a, with waits that give up and no other kernel in its place. */
attention_fn attention_sm90a_trial;

#endif
