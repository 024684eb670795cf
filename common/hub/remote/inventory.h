/* SPDX-License-Identifier: Apache-2.0 */
/* inventory - what is in the cache: models, their revisions and sizes; checking and removing them.
 * Threads: one owner. */
#ifndef QUIRE_COMMON_HUB_REMOTE_INVENTORY_H
#define QUIRE_COMMON_HUB_REMOTE_INVENTORY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/hub/cache.h"

#define INVENTORY_ID_MAX 256

struct inventory_revision {
    char commit[CACHE_HASH_MAX + 1];
    struct buf refs; /* "main, v1.0" */
    uint64_t bytes;  /* of its files; other revisions may share them */
    unsigned n_file;
};
struct inventory_model {
    char id[INVENTORY_ID_MAX], repo[PATH_MAX];
    uint64_t bytes, partial_bytes;        /* of blobs; of those that are incomplete */
    struct inventory_revision *revisions; /* [n], by commit */
    size_t n, cap;
};
struct inventory {
    char cache[PATH_MAX];
    struct inventory_model *models; /* [n], by id */
    size_t n, cap;
};
/* clang-format off */
#define INVENTORY_INIT {"", NULL, 0, 0}
/* clang-format on */

/* id: one model, or NULL. A cache that does not exist is empty. Errors: Q_NOT_FOUND (the model),
 * Q_INVALID (no id), Q_IO, Q_NO_MEMORY. */
FALLIBLE inventory_read(struct inventory *out, const char *id, struct q_err *e);
void inventory_release(struct inventory *v);

struct inventory_check { /* counts of files */
    unsigned n_good, n_bad, n_unknown;
    struct buf bad; /* a line for each */
};
/* Compare every file of the model with its checksum. Errors: Q_IO, Q_NO_MEMORY. */
FALLIBLE inventory_verify(struct inventory_check *out, const struct inventory_model *m,
                          struct q_err *e);
/* Remove the model, or one revision (a ref or a commit; NULL: all) with the blobs that no other
 * revision has. Errors: Q_NOT_FOUND (the revision), Q_UNAVAILABLE (it is being downloaded),
 * Q_IO. */
FALLIBLE inventory_remove(const struct inventory *v, const struct inventory_model *m,
                          const char *revision, struct q_err *e);

#endif
