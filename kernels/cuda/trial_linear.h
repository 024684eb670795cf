/* SPDX-License-Identifier: Apache-2.0 */
/* trial_linear - runs products by wgmma (linear_sm90a.cu) and by mma.sync on the same problems;
 * wgmma is used for a type only if both give the same result.
 *
 * Each type has a product whose rows, outputs and inputs end within a tile, added onto y; one with
 * gated weights; and groups of which some have no rows, with indexed and consecutive rows. The two
 * kernels sum in different orders: floats differ by rounding, so a deterministic device does not
 * use wgmma for floats; int8 results must have the same bits. Threads: as device.h. */
#ifndef QUIRE_KERNELS_CUDA_TRIAL_LINEAR_H
#define QUIRE_KERNELS_CUDA_TRIAL_LINEAR_H
#include "kernels/cuda/trial.h"
#include "kernels/device.h"

/* Products by wgmma for any number of rows, with waits that time out and without a fallback kernel.
 * Tall tiles for more than 64 rows (of groups: on average), else flat ones. */
void linear_wgmma_trial(const struct linear_args *a, const struct kern_exec *x);
void linear_int8_wgmma_trial(const struct linear_int8_args *a, const struct kern_exec *x);
void linear_fp8_wgmma_trial(const struct linear_fp8_args *a, const struct kern_exec *x);
void linear_grouped_wgmma_trial(const struct linear_grouped_args *a, const struct kern_exec *x);
void linear_int8_grouped_wgmma_trial(const struct linear_int8_grouped_args *a,
                                     const struct kern_exec *x);
void linear_fp8_grouped_wgmma_trial(const struct linear_fp8_grouped_args *a,
                                    const struct kern_exec *x);
void linear_fp8_block_wgmma_trial(const struct linear_fp8_block_args *a, const struct kern_exec *x);
void linear_fp8_block_grouped_wgmma_trial(const struct linear_fp8_block_grouped_args *a,
                                          const struct kern_exec *x);
/* Replace the operations of t by these. */
void linear_trial_table(struct kern_table *t);

/* e4m3 with scales of blocks is tried with e4m3: one kernel, another end of a slice. */
enum linear_type { LINEAR_BF16, LINEAR_F16, LINEAR_I8, LINEAR_FP8, LINEAR_TYPES };

/* One type, one matrix or (grouped) one of each group. known, tried: tables of the device, on which
 * no other work runs. Errors: those of the device: it failed in the trial and may be unusable. */
FALLIBLE linear_trial_run(struct trial_result *out, const struct device_link *on,
                          const struct kern_table *known, const struct kern_table *tried,
                          enum linear_type type, bool grouped, enum trial_size size,
                          struct q_err *e);
/* True if the results agree: floats within the rounding error, int8 exactly, and with same_bits all
 * of them exactly. */
bool linear_trial_holds(const struct trial_result *r, enum linear_type type, bool same_bits);

#endif
