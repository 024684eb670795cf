/* SPDX-License-Identifier: Apache-2.0 */
/* trial_linear - products by wgmma (linear_sm90a.cu) beside those by mma.sync on the same small
 * problems, so that a type is taken only where both give the same, as trial.h has it for attention.
 *
 * Each type has a product whose rows, outputs and inputs end within a tile, added onto y; one with
 * gated weights; and groups of which some have no rows, with rows picked and not. The two sum in
 * other orders: floats differ by rounding, so a device that promises a row the same bits among few
 * and many others does not take them; int8 has the same bits or is wrong. Threads: as device.h. */
#ifndef QUIRE_KERNELS_CUDA_TRIAL_LINEAR_H
#define QUIRE_KERNELS_CUDA_TRIAL_LINEAR_H
#include "kernels/device.h"

/* By wgmma whatever the rows, with waits that give up and no other kernel in its place. Tall tiles
 * for more than 64 rows (of groups on average), else flat ones. */
void linear_wgmma_trial(const struct linear_args *a, const struct kern_exec *x);
void linear_int8_wgmma_trial(const struct linear_int8_args *a, const struct kern_exec *x);
void linear_fp8_wgmma_trial(const struct linear_fp8_args *a, const struct kern_exec *x);
void linear_grouped_wgmma_trial(const struct linear_grouped_args *a, const struct kern_exec *x);
void linear_int8_grouped_wgmma_trial(const struct linear_int8_grouped_args *a,
                                     const struct kern_exec *x);
void linear_fp8_grouped_wgmma_trial(const struct linear_fp8_grouped_args *a,
                                    const struct kern_exec *x);
/* Put these in t's place of the operations they are of. */
void linear_trial_table(struct kern_table *t);

enum linear_type { LINEAR_BF16, LINEAR_F16, LINEAR_I8, LINEAR_FP8, LINEAR_TYPES };
struct linear_trial {
    uint32_t n, n_differ; /* outputs; of other bits */
    double worst;         /* largest difference over its product's largest value; NaN: infinite */
};
extern const char *const linear_type_names[LINEAR_TYPES];

/* known, tried: tables of one device, on which nothing else runs.
 * Errors: those of the device: it failed in the trial, and may not be usable any more. */
FALLIBLE linear_trial_run(struct linear_trial out[LINEAR_TYPES], const struct device_link *on,
                          const struct kern_table *known, const struct kern_table *tried,
                          struct q_err *e);
/* Of floats at most what rounding explains may differ, of int8 nothing, with same_bits nothing at
 * all. */
bool linear_trial_holds(const struct linear_trial *r, enum linear_type type, bool same_bits);

#endif
