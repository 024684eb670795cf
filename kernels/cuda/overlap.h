/* SPDX-License-Identifier: Apache-2.0 */
/* overlap - the same chain of kernels on two streams, of which one lets kernels begin early
 * (launch.cuh), so that streams overlap only where both give the same bits.
 *
 * Whether a kernel waits for what it reads is a matter of timing that only the card shows; so every
 * card is asked when it is opened. The chain is that of a decoder's products: a norm reads what the
 * product before it has added to, again and again, launched one by one and as a graph. Threads: as
 * device.h. */
#ifndef QUIRE_KERNELS_CUDA_OVERLAP_H
#define QUIRE_KERNELS_CUDA_OVERLAP_H
#include "kernels/device.h"

struct overlap_size {
    uint32_t n_layer; /* two kernels each */
    uint32_t n_run;   /* launched one by one, and as many as a graph */
};
struct overlap_trial {
    uint32_t n_run, n_kernel; /* of the stream that overlaps; kernels of all of them */
    uint32_t n_wrong; /* runs whose results have other bits than those of the other stream */
};

/* Both links are of one device, on which nothing else runs.
 * Errors: those of the device, which may not be usable any more. */
FALLIBLE overlap_trial_run(struct overlap_trial *out, const struct device_link *apart,
                           const struct device_link *early, struct overlap_size size,
                           struct q_err *e);

#endif
