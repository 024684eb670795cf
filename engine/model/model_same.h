/* SPDX-License-Identifier: Apache-2.0 */
/* model_same - whether a folder's config.json is of the model that is served, so that its weights
 * may take the place of the served ones. Internal to engine/model. Threads: reentrant. */
#ifndef QUIRE_ENGINE_MODEL_MODEL_SAME_H
#define QUIRE_ENGINE_MODEL_MODEL_SAME_H
#include "engine/model/arch.h"

/* Set to nothing what the family does not read, so that it is compared with nothing. */
void model_drop_unread(struct model_config *c, const struct arch_layer *l);
/* dir: a folder with weights, and maybe a config. What decides what is computed has to be the same:
 * not eos and bos, which are the engine's, and not the dtype, which is that of a file. Errors:
 * Q_MISMATCH (the key, and both values), those of model_config_load. */
FALLIBLE model_check_same(const struct model_config *of, const struct arch *arch, const char *dir,
                          struct q_err *e);

#endif
