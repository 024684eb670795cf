/* SPDX-License-Identifier: Apache-2.0 */
/* stream - what launchers know of a stream: struct device_stream begins with it
 * (device_internal.h). Threads: as device.h. */
#ifndef QUIRE_KERNELS_CUDA_STREAM_H
#define QUIRE_KERNELS_CUDA_STREAM_H
#include <cuda_runtime_api.h>
#include <stdbool.h>

struct cuda_stream {
    cudaStream_t cuda;
    bool overlaps; /* kernels begin before the one ahead has ended (launch.cuh) */
    bool packed;   /* the last one wrote weights: whoever is next reads them when it has ended */
};

/* Whether the code that this card runs waits by itself, so that a stream may overlap: that of an
 * older card, made for this one from PTX, does not. Asks the current device. */
bool cuda_code_waits(void);

#endif
