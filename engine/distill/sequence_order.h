/* SPDX-License-Identifier: Apache-2.0 */
/* sequence_order - the order of an epoch: a permutation of 0 … n - 1 that is computed for one place
 * at a time, without a table. Threads: pure functions. */
#ifndef QUIRE_ENGINE_DISTILL_SEQUENCE_ORDER_H
#define QUIRE_ENGINE_DISTILL_SEQUENCE_ORDER_H
#include <stdint.h>

struct sequence_order {
    uint64_t seed, epoch, n;
};
/* place: 0 … n - 1. Cost: O(1) on the mean. */
uint64_t sequence_order_at(const struct sequence_order *o, uint64_t place);

#endif
