/* SPDX-License-Identifier: Apache-2.0 */
/* pooling_kind - the vector of a sequence: the row of its last token, of its first one, or, of the
 * rows x[1] … x[n] of all its tokens, what sentence-transformers' Pooling defines. Threads: values.
 */
#ifndef QUIRE_COMMON_HUB_POOLING_KIND_H
#define QUIRE_COMMON_HUB_POOLING_KIND_H
#include <stdbool.h>

enum pooling_kind {
    POOLING_LAST,
    POOLING_CLS,
    POOLING_MEAN,          /* sum x[k] / n */
    POOLING_MAX,           /* the largest of each column */
    POOLING_WEIGHTED_MEAN, /* sum k x[k] / sum k */
    POOLING_MEAN_SQRT_LEN, /* sum x[k] / sqrt(n) */
    POOLING_KINDS
};
static inline bool pooling_takes_all(enum pooling_kind kind)
{
    return kind != POOLING_LAST && kind != POOLING_CLS;
}

#endif
