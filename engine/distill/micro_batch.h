/* SPDX-License-Identifier: Apache-2.0 */
/* micro_batch - the tokens of one micro batch: sequences one after another, without padding.
 * Threads: read-only. */
#ifndef QUIRE_ENGINE_DISTILL_MICRO_BATCH_H
#define QUIRE_ENGINE_DISTILL_MICRO_BATCH_H
#include <stdint.h>
#include "kernels/ops/ops_train.h"

/* A row is a token. A segment is a sequence: positions start at 0 in each, and no row attends to a
 * row of another segment. Padding of a data set is no row. */
struct micro_batch {
    uint32_t n_row, n_segment;
    const uint32_t *ids;                  /* [n_row] */
    const uint32_t *positions;            /* [n_row] in its segment */
    const struct train_segment *segments; /* [n_segment], in order, covering all rows */
    /* [n_row] the token that the row predicts: the label of the next row; -1: the row does not
     * count (the last of a segment never does) */
    const int32_t *labels;
    uint32_t n_counted; /* rows with a label */
};

#endif
