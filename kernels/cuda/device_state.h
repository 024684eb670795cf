/* SPDX-License-Identifier: Apache-2.0 */
/* device_state - what is behind the handles of kernels/device.h. For this folder; kernels know only
 * that a stream begins with CUDA's. Threads: as device.h. */
#ifndef QUIRE_KERNELS_CUDA_DEVICE_STATE_H
#define QUIRE_KERNELS_CUDA_DEVICE_STATE_H
#include <cuda_runtime_api.h>
#include "kernels/cuda/lt_api.h"
#include "kernels/cuda/table.h"
#include "kernels/device.h"

struct lt;

struct device {
    int index;
    bool deterministic;
    struct lt *lt;        /* products by cuBLASLt; NULL: none */
    const char *tune_dir; /* borrowed; NULL: nowhere */
    char why[LT_WHY_MAX]; /* there is no lt; "" when it was not to be */
    struct device_props props;
    struct kern_table kern;
};
struct device_stream {
    cudaStream_t cuda; /* first: launch.cuh reads it */
    struct device *d;
};
struct device_event {
    cudaEvent_t cuda;
};
struct device_graph {
    cudaGraphExec_t cuda;
};

#endif
