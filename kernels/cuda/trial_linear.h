/* SPDX-License-Identifier: Apache-2.0 */
/* trial_linear - products by wgmma (linear_sm90a.cu) beside those by mma.sync on the same small problems,
 * as trial.h does with attention: each type is taken only where both give the same. */
#ifndef QUIRE_KERNELS_CUDA_TRIAL_LINEAR_H
#define QUIRE_KERNELS_CUDA_TRIAL_LINEAR_H
#include "kernels/device.h"

/* By wgmma whatever the rows, with waits that give up and no other kernel in its place. */
void linear_wgmma_trial(const struct linear_args *a, const struct kern_exec *x);
void linear_quant_wgmma_trial(const struct linear_quant_args *a, const struct kern_exec *x);
void linear_e4m3_wgmma_trial(const struct linear_e4m3_args *a, const struct kern_exec *x);
void linear_groups_wgmma_trial(const struct linear_groups_args *a, const struct kern_exec *x);
void linear_quant_groups_wgmma_trial(const struct linear_quant_groups_args *a,
                                     const struct kern_exec *x);
void linear_e4m3_groups_wgmma_trial(const struct linear_e4m3_groups_args *a,
                                    const struct kern_exec *x);

#endif
