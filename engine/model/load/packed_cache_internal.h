/* SPDX-License-Identifier: Apache-2.0 */
/* packed_cache_internal - names and sizes that reading and writing the packed cache share.
 * Internal to packed_cache*.c. Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_PACKED_CACHE_INTERNAL_H
#define QUIRE_ENGINE_MODEL_LOAD_PACKED_CACHE_INTERNAL_H
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "engine/model/load/packed_cache.h"

#define PACKED_CACHE_MAGIC   "quirepk\n"
#define PACKED_CACHE_SUMS_AT 4096              /* bytes into the file */
#define PACKED_CACHE_ALIGN   ((size_t)2 << 20) /* of the data: a huge page */
#define PACKED_CACHE_SUFFIX  ".packed"
#define PACKED_CACHE_BESIDE  ".tmp" /* after the suffix and a number: being written */

extern const char
    *const packed_cache_other_files; /* compared by address: no damage, only out of date */
#define PACKED_CACHE_OTHER_FILES packed_cache_other_files

/* All of a header but its checksums. */
static inline void packed_cache_head_fill(struct packed_cache_head *h,
                                          const struct packed_cache_id *id)
{
    const uint64_t n_chunk = (id->n_bytes + PACKED_CACHE_CHUNK - 1) / PACKED_CACHE_CHUNK;
    const uint64_t sums_end = PACKED_CACHE_SUMS_AT + n_chunk * sizeof(uint64_t);
    const uint64_t data_at =
        (sums_end + PACKED_CACHE_ALIGN - 1) / PACKED_CACHE_ALIGN * PACKED_CACHE_ALIGN;
    memset(h, 0, sizeof *h); /* padding is hashed and compared too */
    memcpy(h->magic, PACKED_CACHE_MAGIC, sizeof h->magic);
    h->version = PACKED_CACHE_VERSION;
    h->head_bytes = sizeof *h;
    h->file_bytes = data_at + id->n_bytes;
    h->sums_at = PACKED_CACHE_SUMS_AT;
    h->data_at = data_at;
    h->data_bytes = id->n_bytes;
    h->chunk_bytes = PACKED_CACHE_CHUNK;
    h->n_chunk = n_chunk;
    memcpy(h->key, id->key, PACKED_CACHE_HASH);
    memcpy(h->stamp, id->stamp, PACKED_CACHE_HASH);
}

/* dir/<32 digits>.packed; true when it is too long. */
static inline bool packed_cache_path(char out[PATH_MAX], const char *dir,
                                     const struct packed_cache_id *id)
{
    int n = snprintf(out, PATH_MAX, "%s/", dir);
    for (int i = 0; i < 16 && n < PATH_MAX; i++)
        n += snprintf(out + n, PATH_MAX - (size_t)n, "%02x", id->key[i]);
    if (n < PATH_MAX)
        n += snprintf(out + n, PATH_MAX - (size_t)n, PACKED_CACHE_SUFFIX);
    return n >= PATH_MAX;
}

#endif
