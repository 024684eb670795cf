/* SPDX-License-Identifier: Apache-2.0 */
/* no_device - why a machine has no device: no driver, one that is too old, or what CUDA says. It
 * knows no CUDA, so that it is tested where there is none. Threads: reentrant. */
#ifndef QUIRE_KERNELS_CUDA_NO_DEVICE_H
#define QUIRE_KERNELS_CUDA_NO_DEVICE_H
#include "common/err.h"

#define DRIVER_LEAST 13000 /* CUDA version of the runtime that is linked in, as CUDA counts them */

/* driver: the version that the driver is for, 0 without one. why: CUDA's words, where the driver is
 * new enough. Errors: Q_UNSUPPORTED (too old), Q_NOT_FOUND; it never returns Q_OK. */
FALLIBLE no_device(int driver, const char *why, struct q_err *e);

#endif
