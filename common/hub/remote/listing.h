/* SPDX-License-Identifier: Apache-2.0 */
/* listing - the files of one commit, from the hub's answer to
 * GET /api/models/ORG/NAME/revision/REV.
 *
 * The answer is untrusted: names are checked before they become paths, and one name that leaves the
 * folder refuses the whole list. Threads: one owner. */
#ifndef QUIRE_COMMON_HUB_REMOTE_LISTING_H
#define QUIRE_COMMON_HUB_REMOTE_LISTING_H
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include "common/hub/cache.h"

#define LISTING_FILES_MAX 100000u
#define LISTING_BYTES_MAX ((size_t)64 << 20) /* of the answer */

struct listing {
    json_t *root; /* holds the names */
    char commit[CACHE_HASH_MAX + 1];
    const char **names; /* [n], sorted by bytes, each once */
    size_t n;
};
/* clang-format off */
#define LISTING_INIT {NULL, "", NULL, 0}
/* clang-format on */

/* what: for messages. Errors: Q_CORRUPT, Q_TOO_LARGE, Q_NO_MEMORY. */
FALLIBLE listing_parse(struct listing *out, const char *text, size_t n, const char *what,
                       struct q_err *e);
bool listing_has(const struct listing *l, const char *name);
void listing_release(struct listing *l);

#endif
