/* SPDX-License-Identifier: Apache-2.0 */
/* packed_cache_file - names and sizes that reading and writing the packed cache share. Internal to
 * packed_cache*.c. Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_PACKED_CACHE_FILE_H
#define QUIRE_ENGINE_MODEL_LOAD_PACKED_CACHE_FILE_H
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "engine/model/load/packed_cache.h"

#define CACHE_MAGIC   "quirepk\n"
#define CACHE_SUMS_AT 4096              /* bytes into the file */
#define CACHE_ALIGN   ((size_t)2 << 20) /* of the data: a huge page */
#define CACHE_SUFFIX  ".packed"
#define CACHE_BESIDE  ".tmp" /* after the suffix and a number: being written */

extern const char *const cache_other_files; /* compared by address: no damage, only out of date */
#define CACHE_OTHER_FILES cache_other_files

/* All of a header but its checksums. */
static inline void cache_head_fill(struct cache_head *h, const struct cache_id *id)
{
    const uint64_t n_chunk = (id->n_bytes + CACHE_CHUNK - 1) / CACHE_CHUNK;
    const uint64_t sums_end = CACHE_SUMS_AT + n_chunk * sizeof(uint64_t);
    const uint64_t data_at = (sums_end + CACHE_ALIGN - 1) / CACHE_ALIGN * CACHE_ALIGN;
    memset(h, 0, sizeof *h); /* padding is hashed and compared too */
    memcpy(h->magic, CACHE_MAGIC, sizeof h->magic);
    h->version = CACHE_VERSION;
    h->head_bytes = sizeof *h;
    h->file_bytes = data_at + id->n_bytes;
    h->sums_at = CACHE_SUMS_AT;
    h->data_at = data_at;
    h->data_bytes = id->n_bytes;
    h->chunk_bytes = CACHE_CHUNK;
    h->n_chunk = n_chunk;
    memcpy(h->key, id->key, CACHE_HASH);
    memcpy(h->stamp, id->stamp, CACHE_HASH);
}

/* dir/<32 digits>.packed; true when it is too long. */
static inline bool cache_path(char out[PATH_MAX], const char *dir, const struct cache_id *id)
{
    int n = snprintf(out, PATH_MAX, "%s/", dir);
    for (int i = 0; i < 16 && n < PATH_MAX; i++)
        n += snprintf(out + n, PATH_MAX - (size_t)n, "%02x", id->key[i]);
    if (n < PATH_MAX)
        n += snprintf(out + n, PATH_MAX - (size_t)n, CACHE_SUFFIX);
    return n >= PATH_MAX;
}

#endif
