/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/no_device.h"

enum q_code no_device(int driver, const char *why, struct q_err *e)
{
    if (driver > 0 && driver < DRIVER_LEAST)
        return q_fail(e, Q_UNSUPPORTED,
                      "CUDA: the NVIDIA driver supports CUDA %d.%d, this build requires %d.%d or "
                      "newer; update "
                      "the driver",
                      driver / 1000, driver % 1000 / 10, DRIVER_LEAST / 1000,
                      DRIVER_LEAST % 1000 / 10);
    return q_fail(e, Q_NOT_FOUND, "CUDA: no device: %s",
                  driver > 0 ? why : "this machine has no NVIDIA driver (libcuda.so.1)");
}
