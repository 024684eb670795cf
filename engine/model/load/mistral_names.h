/* SPDX-License-Identifier: Apache-2.0 */
/* mistral_names - the tensors of a checkpoint in Mistral's (and Meta's) own layout under the names
 * of the Hugging Face layout, for families that are built in; a plugin has maps (plugin/maps.h).
 * Rows of q and k are stored there as pairs of a head's, which the loader puts apart.
 * Threads: reentrant. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_MISTRAL_NAMES_H
#define QUIRE_ENGINE_MODEL_LOAD_MISTRAL_NAMES_H
#include "common/hub/safetensors.h"
#include "engine/model/arch.h"

/* Is it a set of such a layout? */
bool mistral_names_are_in(const struct tensor_set *s);
/* Give the tensors their other names; those without one keep their own. Errors: Q_CORRUPT (two
 * tensors for one name, a name that is too long), Q_NO_MEMORY. */
FALLIBLE mistral_names_map(struct tensor_set *s, const struct model_config *c, struct q_err *e);

#endif
