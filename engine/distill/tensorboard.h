/* SPDX-License-Identifier: Apache-2.0 */
/* tensorboard - event files of scalars.
 *
 * A file is records: u64 length, masked CRC-32C of it, data, masked CRC-32C of them, all
 * little-endian. The data are protobuf messages `Event`: wall_time 1 (double), step 2 (varint),
 * file_version 3 (text, in the first record), summary 5 { value 1 { tag 1, simple_value 2 (float)
 * } }, session_log 7 { status 1 }. Source: event.proto and summary.proto of TensorBoard; TFRecord.
 * Threads: one owner. */
#ifndef QUIRE_ENGINE_DISTILL_TENSORBOARD_H
#define QUIRE_ENGINE_DISTILL_TENSORBOARD_H
#include <stdint.h>
#include "common/err.h"

struct tensorboard;
struct tensorboard_value {
    const char *tag; /* "train/loss"; NULL: left out */
    double value;
};
/* A new file in dir, which is made when missing. first_step: the first one that is written; events
 * of earlier files from there on are hidden by viewers. Errors: Q_IO, Q_NO_MEMORY. */
FALLIBLE tensorboard_open(struct tensorboard **out, const char *dir, uint64_t first_step,
                          struct q_err *e);
void tensorboard_close(struct tensorboard *t);
/* One event. Errors: Q_IO, Q_NO_MEMORY. */
FALLIBLE tensorboard_add(struct tensorboard *t, uint64_t step, const struct tensorboard_value *v,
                         uint32_t n, struct q_err *e);

#endif
