/* SPDX-License-Identifier: Apache-2.0 */
/* names - the accepted names of a model without --served-model-name.
 *
 *     given                                          shown        also accepted
 *     org/name (of the cache)                        org/name     the snapshot's folder
 *     /models/llama/, ./llama, llama                 llama        as given, and the absolute path
 *     …/hub/models--org--name/snapshots/HASH         org/name     as given, and the absolute path
 *
 * Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_NAMES_H
#define QUIRE_COMMON_HUB_NAMES_H
#include <limits.h>
#include <stdbool.h>

struct model_names {
    char shown[PATH_MAX];      /* the model's id, or the last part of its folder's path */
    char given[PATH_MAX];      /* as the user gave it */
    char unresolved[PATH_MAX]; /* absolute path as given, with its links; "": not a folder */
    char path[PATH_MAX];       /* absolute path of the folder; "" if unknown */
};

/* model: as given. dir: its folder (hub_resolve). */
void model_names_init(struct model_names *n, const char *model, const char *dir);
/* Trailing slashes of a name are ignored. */
bool model_names_have(const struct model_names *n, const char *name);

#endif
