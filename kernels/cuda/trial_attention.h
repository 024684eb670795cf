/* SPDX-License-Identifier: Apache-2.0 */
/* trial_attention - runs two attention kernels on the same problems; the faster one is used only if
 * both give the same result.
 *
 * attention_sm90a differs from attention_cuda in the instructions but not in the order of sums, and
 * can be tested only on a card that runs it. The problems have contexts of several splits, which
 * end within a block, GQA, a window, a soft cap, sinks; unused positions of the cache are NaN.
 * Threads: as device.h. */
#ifndef QUIRE_KERNELS_CUDA_TRIAL_ATTENTION_H
#define QUIRE_KERNELS_CUDA_TRIAL_ATTENTION_H
#include "kernels/cuda/trial.h"
#include "kernels/device.h"

typedef void attention_fn(const struct attention_args *a, const struct kern_exec *x);

/* on: a device whose plan and layouts both kernels use; no other work may run on it. Errors: those
 * of its table: the device failed in the trial and may be unusable. */
FALLIBLE attention_trial_run(struct trial_result *out, const struct device_link *on,
                             attention_fn *known, attention_fn *tried, enum trial_size size,
                             struct q_err *e);
/* True if the kernels agree. same_bits: either kernel may compute a row (in decode or in a prompt),
 * so determinism (DESIGN section 6) requires equal bits; else the tolerance is 2^-9, twice the
 * error of rounding a weight to bf16. */
bool attention_trial_holds(const struct trial_result *r, bool same_bits);

/* attention_sm90a with waits that time out, and without a fallback kernel. */
attention_fn attention_sm90a_trial;

#endif
