/* SPDX-License-Identifier: Apache-2.0 */
/* download - a model, or the files of it that are asked for, from the hub into the cache.
 *
 * The commit of the revision and its files are asked for; config, tokenizer and the like are
 * fetched, then the weights; refs/REVISION is written last, so that it never names a commit that is
 * half there in place of one that is whole. Threads: one owner. */
#ifndef QUIRE_COMMON_HUB_REMOTE_DOWNLOAD_H
#define QUIRE_COMMON_HUB_REMOTE_DOWNLOAD_H
#include <limits.h>
#include "common/hub/remote/choose.h"

struct download {
    const char *id, *revision;
    struct choose_rules rules;
    bool json; /* show progress as JSON lines */
};
struct download_result {
    char dir[PATH_MAX], commit[CACHE_HASH_MAX + 1];
    uint64_t n_bytes; /* loaded */
    unsigned n_file;
};

/* Errors: Q_INVALID (id, revision, a pattern that matches nothing), those of fetch_files,
 * listing_parse, choose_weights. */
FALLIBLE download_model(struct download_result *out, const struct download *d, struct q_err *e);

#endif
