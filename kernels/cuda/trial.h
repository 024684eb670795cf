/* SPDX-License-Identifier: Apache-2.0 */
/* trial - kernels that were written without a card are tried on each card. A trial runs a kernel
 * that is trusted and the faster one on the same problems and compares their results; the faster
 * one is used only if they agree. This header has what the trials share: results, comparison,
 * random numbers. trials.h runs them. Threads: pure functions. */
#ifndef QUIRE_KERNELS_CUDA_TRIAL_H
#define QUIRE_KERNELS_CUDA_TRIAL_H
#include <stddef.h>
#include <stdint.h>

#define TRIAL_SEED 88172645463325252u

/* Problems of a trial. Small ones end within tiles, blocks and splits. Large ones add layers of
 * real models: more tiles than a card has multiprocessors, inputs that fill the ring of stages in
 * shared memory many times. */
enum trial_size { TRIAL_SMALL, TRIAL_LARGE };

struct trial_result {
    uint32_t n, n_differ; /* outputs; outputs with different bits */
    double worst;         /* largest difference over the largest value of its problem; a value that
                           * is not finite makes it infinite */
};

/* Add the outputs of one problem to r. want, got: [n]. */
void trial_compare(struct trial_result *r, const float *want, const float *got, size_t n);

/* The next n bytes of base, aligned to 256 as matrices and caches are; *used: bytes taken so far.
 * base NULL: only to count. */
void *trial_take(void *base, size_t *used, size_t n);

/* xorshift64 (Marsaglia 2003, "Xorshift RNGs"): 32 bits; a number in [-1, 1). */
uint32_t trial_draw(uint64_t *rng);
float trial_draw_f32(uint64_t *rng);

#endif
