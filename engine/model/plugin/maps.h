/* SPDX-License-Identifier: Apache-2.0 */
/* maps - a checkpoint's names of tensors as a family's table has them, by a plugin's rules.
 * Threads: reentrant. */
#ifndef QUIRE_ENGINE_MODEL_PLUGIN_MAPS_H
#define QUIRE_ENGINE_MODEL_PLUGIN_MAPS_H
#include "common/hub/safetensors.h"
#include "engine/model/arch.h"

/* Does the architecture's plugin have rules for names? false for built-in families. */
bool plugin_has_maps(const struct arch *a);
/* The set's tensors by the names that the rules give them: one that no rule matches keeps its own,
 * several that lie in one tensor become parts of it. Nothing without rules. Errors: Q_MISMATCH
 * (rows that do not add up), Q_CORRUPT (two tensors for one name, a name that is too long),
 * Q_NO_MEMORY. */
FALLIBLE plugin_map_names(struct tensor_set *s, const struct arch *a, const struct model_config *c,
                          struct q_err *e);

#endif
