/* SPDX-License-Identifier: Apache-2.0 */
/* batch_ids - the custom_ids of a batch: with a result, and already read.
 *
 * A set of digests (16 bytes of SHA-256), so that a million lines take 64 MB, independent of the
 * length of their ids. Threads: one owner. */
#ifndef QUIRE_FRONTEND_CLI_BATCH_IDS_H
#define QUIRE_FRONTEND_CLI_BATCH_IDS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

struct batch_entry {
    uint64_t key[2]; /* 0, 0 = free */
    bool answered;   /* its result is in the output */
    uint32_t n_told; /* number of duplicate errors in the output */
    uint32_t n_seen; /* occurrences in the input so far */
};
struct batch_ids {
    struct batch_entry *entries; /* [cap] linear probing, at most two thirds full */
    size_t n, cap;               /* cap is 0 or a power of two */
};
/* clang-format off */
#define BATCH_IDS_INIT {NULL, 0, 0}
/* clang-format on */
void batch_ids_release(struct batch_ids *s);
/* The entry of a custom_id, or of a line without one (custom_id NULL); new ones are added. Valid
 * until the next call. Errors: Q_NO_MEMORY. */
FALLIBLE batch_ids_find(struct batch_ids *s, const char *custom_id, uint64_t line,
                        struct batch_entry **out, struct q_err *e);

#endif
