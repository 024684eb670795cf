/* SPDX-License-Identifier: Apache-2.0 */
/* overlap - trial of overlapping kernels: the same chain of kernels on two streams, one of which
 * lets kernels begin early (launch.cuh). Streams overlap only if both give the same bits.
 *
 * A kernel that does not wait for its inputs fails depending on timing, on a real card only; so the
 * trial runs on every card. The chain is the attention half of a decoder layer, many times: norm,
 * product, attention over the KV cache, product added onto the rows that the next norm reads. It is
 * launched kernel by kernel and as a graph. Products of cuBLASLt are not in it: they are launched
 * without the attribute that lets them begin early. Threads: as device.h. */
#ifndef QUIRE_KERNELS_CUDA_OVERLAP_H
#define QUIRE_KERNELS_CUDA_OVERLAP_H
#include "kernels/cuda/trial.h"
#include "kernels/device.h"

#define OVERLAP_KERNELS 4u /* of a layer */

struct overlap_size {
    uint32_t n_layer;
    uint32_t n_run; /* runs launched kernel by kernel, and the same number as a graph */
};

/* out: runs on the overlapping stream, and those whose bits differ from the other stream's; worst
 * is 0. Both links are of one device, on which nothing else runs. Errors: those of the device,
 * which may be unusable afterwards. */
FALLIBLE overlap_trial_run(struct trial_result *out, const struct device_link *apart,
                           const struct device_link *early, struct overlap_size size,
                           struct q_err *e);

#endif
