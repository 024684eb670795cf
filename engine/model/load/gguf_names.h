/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_names - the tensors of a GGUF file under the names of the Hugging Face layout, for families
 * that are built in.
 *
 * Some are stored in another way there: rows of q and k of some families as pairs of a head's,
 * experts of a layer in one tensor, norms with the 1 that the family adds, matrices with outputs
 * first that GPT-2 has with inputs first. Threads: reentrant. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_GGUF_NAMES_H
#define QUIRE_ENGINE_MODEL_LOAD_GGUF_NAMES_H
#include "common/hub/safetensors.h"
#include "engine/model/arch.h"

/* Is it a set of GGUF files? */
bool gguf_names_are_in(const struct tensor_set *s);
/* Give the tensors their other names; those without one keep their own. Errors: Q_CORRUPT (two
 * tensors for one name, a shape that is no stack of experts), Q_NO_MEMORY. */
FALLIBLE gguf_names_map(struct tensor_set *s, const struct model_config *c, struct q_err *e);

#endif
