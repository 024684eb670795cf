/* SPDX-License-Identifier: Apache-2.0 */
/* A packed cache file of arbitrary bytes: refused with a reason, or what the id names, whole.
 * The input is tried as the whole file, and as the beginning of one of the right size whose header
 * has the right checksum, so that the fuzzer gets past both at once. */
#include <xxhash.h>
#include "common/err.h"
#include "engine/model/load/packed_cache_internal.h"

#define DATA_BYTES 100u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static unsigned char file[PACKED_CACHE_ALIGN + DATA_BYTES];

static void check(const void *bytes, uint64_t n, const struct packed_cache_id *id)
{
    struct packed_cache_head head, want;
    const char *why = packed_cache_head_check(&head, bytes, n, id);
    packed_cache_head_fill(&want, id);
    Q_ASSERT(why == NULL || *why);
    if (!why)
        Q_ASSERT(n == want.file_bytes && head.data_at + head.data_bytes == n &&
                 head.sums_at + head.n_chunk * sizeof(uint64_t) <= head.data_at);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const struct packed_cache_id id = {.key = "key", .stamp = "stamp", .n_bytes = DATA_BYTES};
    struct packed_cache_head head;
    check(data, n, &id);
    if (n < sizeof head || n > sizeof file)
        return 0;
    memcpy(file, data, n);
    memcpy(&head, file, sizeof head);
    if (data[n - 1] & 1)
        head.sums_sum = XXH3_64bits(file + PACKED_CACHE_SUMS_AT, sizeof(uint64_t));
    head.head_sum = XXH3_64bits(&head, offsetof(struct packed_cache_head, head_sum));
    memcpy(file, &head, sizeof head);
    check(file, sizeof file, &id);
    memset(file, 0, n);
    return 0;
}
