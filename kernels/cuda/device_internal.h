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
__attribute__((visibility("default"))) const struct device_table *quire_device_6(void);

/* ---- trials.c ---- */
/* Determine the kernels of d, and whether its streams overlap. same_bits: opened deterministic.
 * Errors: Q_IO (a trial left the card unusable; the message has the setting that skips the
 * trial). */
FALLIBLE device_trials(struct device *d, bool same_bits, struct q_err *e);

#endif
