/* SPDX-License-Identifier: Apache-2.0 */
/* tune - who computes a model's products: for each shape and bucket of rows (lt.h) our own kernel
 * and the library's algorithms are run on the card, and the fastest is kept.
 *
 * Two rules. An algorithm is taken only when its numbers are those of our own kernel, within what
 * rounding explains, in a sample of rows: a library or a driver that computes nonsense costs speed,
 * not answers. And it must be faster by TUNE_GAIN, since our own kernel gives a row the same bits
 * whatever is beside it.
 *
 * Written against device.h and lt.h alone, so a test drives it with a device and a library of its
 * own. Threads: the device's, at start. */
#ifndef QUIRE_KERNELS_CUDA_TUNE_H
#define QUIRE_KERNELS_CUDA_TUNE_H
#include "kernels/cuda/tune_file.h"
#include "kernels/device.h"

#define TUNE_GAIN   0.97f /* of our kernel's time is what an algorithm may take */
#define TUNE_RUNS   5u
#define TUNE_MS_MAX 30000 /* of a start; what is not chosen by then is our own kernels' */

struct tuner {
    struct lt *lt;
    const struct device_link *link;
    struct tune_card card;
    const char *dir; /* NULL: nothing is kept */
    uint32_t n_run;  /* timed together; 0: TUNE_RUNS */
};

/* Errors: Q_IO (the device failed). Too little memory or a file that cannot be read or written is
 * no error but a note. */
FALLIBLE tune_products(const struct tuner *t, const struct device_tuning *what,
                       struct device_tuned *out, struct q_err *e);

#endif
