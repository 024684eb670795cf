/* SPDX-License-Identifier: Apache-2.0 */
/* tune - choice of an implementation for a model's products: for each shape and bucket of rows
 * (lt.h) our own kernel and the library's algorithms run on the card, and the fastest is chosen.
 *
 * Two rules. An algorithm is chosen only if its results equal those of our own kernel within the
 * rounding error, in a sample of rows: a faulty library or driver costs speed, not correctness. And
 * it must be faster by TUNE_GAIN, because our own kernel gives a row the same bits in any batch.
 *
 * It uses device.h and lt.h only, so that a test can run it with a fake device and library.
 * Threads: the device's, at start. */
#ifndef QUIRE_KERNELS_CUDA_TUNE_H
#define QUIRE_KERNELS_CUDA_TUNE_H
#include "kernels/cuda/tune_file.h"
#include "kernels/device.h"

#define TUNE_GAIN   0.97f /* an algorithm may take this fraction of our kernel's time */
#define TUNE_RUNS   5u
#define TUNE_MS_MAX 30000 /* of a start; products without a choice by then use our own kernels */

struct tuner {
    struct lt *lt;
    const struct device_link *link;
    struct tune_card card;
    const char *dir; /* NULL: choices are not saved */
    uint32_t n_run;  /* runs timed together; 0: TUNE_RUNS */
};

/* Errors: Q_IO (the device failed). Too little memory, or a file that cannot be read or written, is
 * no error: the report's note has it. */
FALLIBLE tune_products(const struct tuner *t, const struct device_tuning *what,
                       struct device_tuned *out, struct q_err *e);

#endif
