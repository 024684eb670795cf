/* SPDX-License-Identifier: Apache-2.0 */
/* stream - the part of a stream that launchers use: the first member of struct device_stream
 * (device_internal.h). Threads: as device.h. */
#ifndef QUIRE_KERNELS_CUDA_STREAM_H
#define QUIRE_KERNELS_CUDA_STREAM_H
#include <cuda_runtime_api.h>
#include <stdbool.h>

struct cuda_stream {
    cudaStream_t cuda;
    bool overlaps; /* kernels may begin before the previous one has ended (launch.cuh) */
    bool packed;   /* the last kernel wrote weights: the next kernel begins after its end */
};

/* True if the code that the current device runs contains the waits that overlapping streams
 * require; code compiled for an older card and translated from PTX does not. */
bool cuda_code_waits(void);

#endif
