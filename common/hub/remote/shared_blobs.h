/* SPDX-License-Identifier: Apache-2.0 */
/* shared_blobs - the store of files that huggingface_hub, from release 2.4 on, has for all models
 * of a cache.
 *
 *     CACHE/blobs/.huggingface-shared-blobs      "1\n": the store is one of this layout
 *                /HH/HASH                        content; HH: the first two digits of HASH
 *                /HH/HASH.refs                   blobs that link to it, a path a line
 *                /HH/HASH.lock                   flock(2) of the process that changes these
 *     CACHE/models--ORG--NAME/blobs/ETAG         link to ../../blobs/HH/HASH
 *
 * quire reads through these links and stores nothing there. Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_REMOTE_SHARED_BLOBS_H
#define QUIRE_COMMON_HUB_REMOTE_SHARED_BLOBS_H
#include <stdbool.h>

#define SHARED_HASH_DIGITS 64

/* hash: [SHARED_HASH_DIGITS + 1]. Of the file in the store that a blob links to; false: it is no
 * such link. */
bool shared_blobs_target(char *hash, const char *blob);
/* Remove a file of the store that no blob of its list links to. Where the list is missing or cannot
 * be read, or in a store of another layout, it stays. */
void shared_blobs_sweep(const char *cache, const char *hash);

#endif
