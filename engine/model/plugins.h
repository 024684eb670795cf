/* SPDX-License-Identifier: Apache-2.0 */
/* plugins - shared objects that describe architectures (engine/plugin.h): which are loaded, and
 * what they serve.
 *
 * A loaded plugin stays for the life of the process, and counts in it for every model: common/hub
 * takes its architectures, and arch_find gives them as families. Without --plugin and
 * QUIRE_PLUGIN_PATH no file of a plugin is opened. Two of --plugin for one architecture are an
 * error; on the search path the first one found serves it.
 * Threads: any; what is loaded is constant. */
#ifndef QUIRE_ENGINE_MODEL_PLUGINS_H
#define QUIRE_ENGINE_MODEL_PLUGINS_H
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"

#define PLUGINS_MAX     8u /* of --plugin */
#define PLUGIN_TEXT_MAX 160u

struct plugins_config {
    uint32_t n;
    char paths[PLUGINS_MAX][PATH_MAX]; /* of --plugin, absolute */
    char search[PATH_MAX];             /* folders, separated by colons; "": none */
};
/* paths: [n], relative to the working folder; an empty one is left out. search: folders, or "" for
 * those of the environment's QUIRE_PLUGIN_PATH. Errors: Q_INVALID (more than PLUGINS_MAX, too
 * long), Q_NOT_FOUND (no such file). */
FALLIBLE plugins_config_set(struct plugins_config *c, const char *const *paths, uint32_t n,
                            const char *search, struct q_err *e);
/* Load them, and what the model folder's architecture needs of the search path: of each folder the
 * file <architecture>.so, else all of its *.so in the order of their names, until one serves it.
 * dir NULL: the paths alone. A plugin that is loaded already stays as it is. Each file is tried in
 * a process of its own first, so that one that crashes does so there.
 * Errors: Q_NOT_FOUND, Q_CORRUPT (no shared object, no entry), Q_MISMATCH (ABI: both versions),
 * Q_INVALID (what of it makes no sense, with the field and what is accepted), Q_UNAVAILABLE (it
 * crashed or hung while it was loaded). */
FALLIBLE plugins_open(const struct plugins_config *c, const char *dir, struct q_err *e);
/* Behind plugins_open: the file that serves the folder's architecture becomes one of the paths, so
 * that another process opens the same one, and tries no others of the search path again. */
void plugins_pin(struct plugins_config *c, const char *dir);
/* "terra 1.0" of the architecture's plugin; "": it is built in, or unknown. */
const char *plugins_text(const char *architecture);

#endif
