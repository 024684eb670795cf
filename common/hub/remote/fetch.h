/* SPDX-License-Identifier: Apache-2.0 */
/* fetch - brings files of one commit into the cache, several requests at once.
 *
 *     HEAD (etag, size) ─▶ is the blob there? ─▶ lock ─▶ GET, from where an earlier one ended
 *                                │                            │
 *                                └────────▶ link ◀── checksum ┘
 *
 * First the HEADs of all files, then the check of the disk's space, then the contents. A large file
 * is asked for in ranges (blob_ranges.h): the first one alone, until the server has sent a range;
 * then connections that no other file needs load further ones. A file whose lock another process
 * holds is waited for, and found in the cache then. The first error ends all of them; what has
 * arrived stays for the next download. Threads: one owner. */
#ifndef QUIRE_COMMON_HUB_REMOTE_FETCH_H
#define QUIRE_COMMON_HUB_REMOTE_FETCH_H
#include "common/hub/remote/http.h"
#include "common/hub/remote/progress.h"
#include "common/hub/remote/store.h"

#define FETCH_PARALLEL 8u /* requests at once, as huggingface_hub */

struct fetch {
    const struct endpoint *endpoint;
    const char *id, *revision; /* revision: for messages */
    struct store store;
    struct http http;
    struct progress *progress;
    uint64_t n_bytes;    /* loaded */
    unsigned n_request;  /* of files, that are not done */
    struct q_err failed; /* the first error of a file */
};

/* id, revision: valid, borrowed. Errors: those of store_init and http_init. */
FALLIBLE fetch_init(struct fetch *f, const struct endpoint *p, const char *id, const char *revision,
                    struct progress *progress, struct q_err *e);
void fetch_release(struct fetch *f);
/* Append the answer of the API to `out`. Errors: those of fetch_files. */
FALLIBLE fetch_listing(struct fetch *f, struct buf *out, struct q_err *e);
/* names: [n], borrowed. Files of the snapshot that are there are skipped. Errors: Q_NOT_FOUND,
 * Q_UNAUTHORIZED, Q_FORBIDDEN (with a remedy), Q_UNAVAILABLE (network, hub), Q_NO_SPACE, Q_CORRUPT,
 * Q_IO. */
FALLIBLE fetch_files(struct fetch *f, const char *commit, const char *const *names, size_t n,
                     struct q_err *e);

#endif
