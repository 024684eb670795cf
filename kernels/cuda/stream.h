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

#ifdef __CUDACC__ /* launch.cuh */
#define LAUNCH_ATTRIBUTES 2
/* All kernels ask for one division of a multiprocessor's memory, that with the most shared memory:
 * a kernel that asks for another one cannot begin there before the last block of the previous one
 * has left, and card_blocks counts with it. The first-level cache keeps 28 KB, which suffices:
 * weights and caches pass it by, and rows of x are a few KB. Returns how many attributes. */
static inline unsigned launch_attributes(cudaLaunchAttribute a[LAUNCH_ATTRIBUTES],
                                         const struct cuda_stream *s)
{
    a[0].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    a[0].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    a[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a[1].val.programmaticStreamSerializationAllowed = 1;
    return s->overlaps && !s->packed ? 2 : 1;
}
#endif

#endif
