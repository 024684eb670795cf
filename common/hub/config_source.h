/* SPDX-License-Identifier: Apache-2.0 */
/* config_source - what replaces or changes config.json of a model folder in this process:
 * --hf-config-path and --hf-overrides.
 *
 * All that reads config.json (config.h, hub_digest) asks here, so every process that opens the
 * folder sets the same source first: the frontend, the engine and its worker. The newest one of a
 * folder counts. Threads: config_source_set and readers may be of any. */
#ifndef QUIRE_COMMON_HUB_CONFIG_SOURCE_H
#define QUIRE_COMMON_HUB_CONFIG_SOURCE_H
#include <jansson.h>
#include <limits.h>
#include "common/err.h"

#define CONFIG_OVERRIDES_MAX 8192u /* bytes of --hf-overrides with the final 0 */

struct config_source {
    char dir[PATH_MAX];                   /* the model's folder, as it is passed to readers */
    char config_dir[PATH_MAX];            /* folder of the config.json to read; "": dir */
    char overrides[CONFIG_OVERRIDES_MAX]; /* a JSON object; "": none */
};
/* Fills *s. config_path: a folder, a config.json or a model id (at `revision`; NULL: main), or "".
 * overrides: a JSON object or "". Errors: Q_INVALID (no object, too long), those of
 * hub_resolve_files. */
FALLIBLE config_source_read(struct config_source *s, const char *dir, const char *config_path,
                            const char *revision, const char *overrides, struct q_err *e);
/* From here on it counts for s->dir. s is copied, and stays for the life of the process. Errors:
 * Q_NO_MEMORY. */
FALLIBLE config_source_set(const struct config_source *s, struct q_err *e);
/* Both, of --hf-config-path and --hf-overrides. */
struct options;
FALLIBLE config_source_options(struct config_source *s, const char *dir, const struct options *o,
                               struct q_err *e);
/* NULL: the folder has its own config.json, unchanged. */
const struct config_source *config_source_find(const char *dir);
/* Put the overrides into config.json's object: values replace values, members of objects are
 * merged, null removes what the file says; rope_scaling and rope_theta go to rope_parameters where
 * the file has that object. Errors: Q_INVALID (a value of another kind than the file's: key, both
 * kinds; those two beside rope_parameters of layer types). */
FALLIBLE config_source_merge(json_t *config, const char *overrides, const char *path,
                             struct q_err *e);

#endif
