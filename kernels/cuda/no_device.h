/* SPDX-License-Identifier: Apache-2.0 */
/* no_device - the reason why a machine has no device: no driver, a driver that is too old, or
 * CUDA's error. It does not use CUDA, so that it is tested on machines without it. Threads:
 * reentrant. */
#ifndef QUIRE_KERNELS_CUDA_NO_DEVICE_H
#define QUIRE_KERNELS_CUDA_NO_DEVICE_H
#include "common/err.h"

#define DRIVER_LEAST 13000 /* CUDA version of the linked runtime, in CUDA's encoding */

/* driver: CUDA version that the driver supports, 0 = no driver. why: CUDA's message, used if the
 * driver is new enough. Errors: Q_UNSUPPORTED (too old), Q_NOT_FOUND; it never returns Q_OK. */
FALLIBLE no_device(int driver, const char *why, struct q_err *e);

#endif
