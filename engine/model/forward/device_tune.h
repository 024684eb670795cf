/* SPDX-License-Identifier: Apache-2.0 */
/* device_tune - asks a device to choose the kernels of a model's products (device_table.tune).
 * Threads: one, at start. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_DEVICE_TUNE_H
#define QUIRE_ENGINE_MODEL_FORWARD_DEVICE_TUNE_H
#include "engine/model/forward/executor_device.h"

/* The products of m's layers and of its logits, each shape once, as steps of these limits make
 * them; logs what came of it. A device that has nothing to choose is left alone. Errors: Q_IO (the
 * device failed), Q_NO_MEMORY. */
FALLIBLE device_tune(const struct model *m, const struct executor_device *d,
                     const struct device_limits *l, struct q_err *e);

#endif
