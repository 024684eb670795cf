/* SPDX-License-Identifier: Apache-2.0 */
/* packed_cache - packed weights kept on disk, so that the next start maps a file instead of
 * packing. Internal to engine/model/load.
 *
 * One file for each (tensors, types, layout): DIR/<32 digits of the key>.packed
 *
 *     0        struct packed_cache_head    what it holds, sizes, key, stamp, checksum of itself
 *     4096     u64 sums[n_chunk]    XXH3-64 of each chunk of the data
 *     data_at  the region's bytes   as the plan's rows lie; data_at is a multiple of 2 MiB
 *
 * The key (SHA-256) is what decides the bytes: names, types, shapes and samples of all tensors, the
 * rows of the plan, and a small matrix packed by the kernels of this process, so that a build
 * whose layout or rounding differs never takes the file, whoever forgets what. It does not hold the
 * instruction set: where that changes nothing, one file serves all.
 * The stamp (SHA-256) is what tells whether the tensors are still those that were packed: size,
 * inode, times of content and of inode of each source file. Reading all of the sources to be sure
 * would take as long as packing them; a file changed with all of these put back is taken for the
 * old one, as make and git take it. Other stamp: packed again, the file replaced.
 * Every chunk's checksum is compared at every start, before the weights are used: it costs one
 * reading at the memory's speed, which also brings the pages in. Whatever does not agree (damage,
 * truncation, another format) is said in the log, and the weights are packed as without a cache.
 *
 * Writing: by a thread of its own after the start, to a name of its own, flushed, then renamed. Two
 * writers never meet; the last one's file stays, and both are right. What a killed writer left is
 * removed by the next. No room, a folder that cannot be written: a warning, and the server runs on.
 * Threads: one caller; opening runs the team. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_PACKED_CACHE_H
#define QUIRE_ENGINE_MODEL_LOAD_PACKED_CACHE_H
#include <stdbool.h>
#include "common/hub/safetensors.h"
#include "common/team.h"
#include "engine/model/region.h"

#define PACKED_CACHE_HASH    32 /* bytes of a SHA-256 */
#define PACKED_CACHE_VERSION 1u
#define PACKED_CACHE_CHUNK   ((uint64_t)4 << 20)

struct packed_cache_id {
    unsigned char key[PACKED_CACHE_HASH], stamp[PACKED_CACHE_HASH];
    uint64_t n_bytes; /* of the region */
};

struct packed_cache_head {
    char magic[8];
    uint32_t version, head_bytes;
    uint64_t file_bytes, sums_at, data_at, data_bytes, chunk_bytes, n_chunk;
    unsigned char key[PACKED_CACHE_HASH], stamp[PACKED_CACHE_HASH];
    uint64_t sums_sum; /* XXH3-64 of sums */
    uint64_t head_sum; /* XXH3-64 of what is above */
};

/* Hash tensors and the caller's own description of the region into an id.
 * Errors: Q_NO_MEMORY. */
FALLIBLE packed_cache_identify(struct packed_cache_id *out, const struct tensor_set *s,
                               const void *plan, size_t n_plan, struct q_err *e);
/* Does a file that begins with these bytes hold what `id` names? NULL: yes, and *head is set; else
 * what is the matter with it. */
const char *packed_cache_head_check(struct packed_cache_head *head, const void *file,
                                    uint64_t n_file, const struct packed_cache_id *id);
/* True: `out` is the mapped data, all of it checked, read-only. False: pack; the log says why. */
bool packed_cache_open(struct region *out, const char *dir, const struct packed_cache_id *id,
                       struct team *team);

struct packed_cache_writer;
/* Write `r` (borrowed until packed_cache_writer_end, must not change) in the background. NULL when
 * that cannot be begun; the log says why. */
struct packed_cache_writer *packed_cache_write(const char *dir, const struct packed_cache_id *id,
                                               const struct region *r, const struct tensor_set *s);
/* Wait for it, or with `stop` only until it has noticed. NULL is fine. */
void packed_cache_writer_end(struct packed_cache_writer *w, bool stop);

#endif
