/* SPDX-License-Identifier: Apache-2.0 */
/* trials - what a card's kernels of compute capability 9.0 and its overlapping streams do, before
 * they are used.
 *
 * Each trial runs in a process of its own, so that a kernel that faults, hangs or writes anywhere
 * ends that process and no other. A child of a process that has used CUDA cannot use it; so a
 * helper process is forked before the first call of CUDA, and the trials are children of the
 * helper. The results are saved by card, driver and build of this library (trial_verdict.h), and
 * the trials run again only without such a file.
 *
 * Environment:
 *   QUIRE_CUDA_OFF            words, comma-separated, of what is neither tried nor used: attention,
 *                             bf16 (and f16), int8, fp8, grouped (products of experts), wgmma (all
 *                             of these), overlap, cublaslt
 *   QUIRE_CUDA_TRIAL_SECONDS  limit of one trial; 60
 * Threads: as device.h. */
#ifndef QUIRE_KERNELS_CUDA_TRIALS_H
#define QUIRE_KERNELS_CUDA_TRIALS_H
#include <sys/types.h>
#include "kernels/cuda/trial_verdict.h"

struct device;

/* Bits of QUIRE_CUDA_OFF. */
enum trials_off {
    OFF_ATTENTION = 1 << 0,
    OFF_BF16 = 1 << 1,
    OFF_INT8 = 1 << 2,
    OFF_FP8 = 1 << 3,
    OFF_GROUPED = 1 << 4,
    OFF_WGMMA = OFF_ATTENTION | OFF_BF16 | OFF_INT8 | OFF_FP8 | OFF_GROUPED,
    OFF_OVERLAP = 1 << 5,
    OFF_CUBLASLT = 1 << 6
};
/* text: the variable's value, or NULL. Errors: Q_INVALID (the word, and those that are known). */
FALLIBLE trials_off_parse(uint32_t *off, const char *text, struct q_err *e);

struct trial_board; /* memory that the helper and its children share with this process */
struct trial_helper {
    pid_t pid;           /* 0 or less: there is no helper */
    int orders, replies; /* pipes: a byte begins the trials, a byte says that they are done */
    struct trial_board *board;
};
/* Before the first call of CUDA. Without a process or memory for it there is no helper, and trials
 * are not run. */
void trials_prepare(struct trial_helper *h, uint32_t index);
/* d is open but has no context yet: determine its kernels, whether its streams overlap, and
 * device_props.note. same_bits: opened deterministic. */
void trials_decide(struct device *d, struct trial_helper *h, uint32_t off, bool same_bits);
/* Ends the helper. */
void trials_end(struct trial_helper *h);

#endif
