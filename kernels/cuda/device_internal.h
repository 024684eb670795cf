/* SPDX-License-Identifier: Apache-2.0 */
/* device_internal - the structs behind the handles of kernels/device.h. Private to this folder;
 * kernels use only the first member of a stream (stream.h). Threads: as device.h. */
#ifndef QUIRE_KERNELS_CUDA_DEVICE_INTERNAL_H
#define QUIRE_KERNELS_CUDA_DEVICE_INTERNAL_H
#include <cuda_runtime_api.h>
#include "kernels/cuda/lt_api.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/table.h"
#include "kernels/device.h"

struct lt;

struct device {
    int index;
    bool deterministic;
    bool overlaps;        /* its streams overlap (stream.h) */
    struct lt *lt;        /* products by cuBLASLt; NULL: none */
    const char *tune_dir; /* borrowed; NULL: nowhere */
    char why[LT_WHY_MAX]; /* why there is no lt; "" if it was not requested */
    struct device_props props;
    struct kern_table kern;
};
struct device_stream {
    struct cuda_stream by; /* first: launchers read it */
    struct device *d;
};
struct device_event {
    cudaEvent_t cuda;
};
struct device_graph {
    cudaGraphExec_t cuda;
};

/* The table; exported by its name. */
__attribute__((visibility("default"))) const struct device_table *quire_device_7(void);

/* Fill d for the card of this number, with all kernels that its compute capability allows, without
 * a context on the card. Errors: as device_table.open. */
FALLIBLE device_find(struct device *d, uint32_t index, struct q_err *e);
/* Make its context the current one of this thread. Errors: Q_IO, Q_NO_MEMORY. */
FALLIBLE device_enter(struct device *d, struct q_err *e);

#endif
