/* SPDX-License-Identifier: Apache-2.0 */
/* overlap - trial of overlapping kernels: the same chain of kernels on two streams, one of which
 * lets kernels begin early (launch.cuh). Streams overlap only if both give the same bits.
 *
 * A kernel that does not wait for its inputs fails depending on timing, on a real card only; so the
 * trial runs on every card when it is opened. The chain is that of a decoder: a norm reads the rows
 * to which the previous product has added, many times, launched one by one and as a graph. Threads:
 * as device.h. */
#ifndef QUIRE_KERNELS_CUDA_OVERLAP_H
#define QUIRE_KERNELS_CUDA_OVERLAP_H
#include "kernels/device.h"

struct overlap_size {
    uint32_t n_layer; /* two kernels each */
    uint32_t n_run;   /* runs launched one by one, and the same number as a graph */
};
struct overlap_trial {
    uint32_t n_run, n_kernel; /* runs on the overlapping stream; number of all their kernels */
    uint32_t n_wrong;         /* runs whose results differ in bits from those of the other stream */
};

/* Both links are of one device, on which nothing else runs. Errors: those of the device, which may
 * be unusable afterwards. */
FALLIBLE overlap_trial_run(struct overlap_trial *out, const struct device_link *apart,
                           const struct device_link *early, struct overlap_size size,
                           struct q_err *e);

#endif
