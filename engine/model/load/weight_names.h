/* SPDX-License-Identifier: Apache-2.0 */
/* weight_names - how the names of tensors in the files differ from those of a family's table.
 * `lm_head.weight` and `model.norm.weight` of a text model that is part of another model, or was
 * saved as if it were, are, by who wrote the files,
 *     language_model.lm_head.weight   language_model.model.norm.weight
 *     lm_head.weight                  model.language_model.norm.weight
 *     lm_head.weight                  model.text_model.norm.weight
 *     lm_head.weight                  model.norm.weight
 * Norms of the first BERTs have LayerNorm.gamma and LayerNorm.beta, which transformers loads and
 * saves as such up to now.
 * Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHT_NAMES_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHT_NAMES_H
#include "common/hub/safetensors.h"
#include "engine/model/arch.h"

enum weight_names {
    NAMES_PLAIN, /* as the table has them */
    NAMES_BARE,  /* without the family's prefix: of a model without a head */
    NAMES_OUTER, /* behind "language_model." */
    NAMES_INNER, /* "language_model." is behind "model." */
    NAMES_TEXT,  /* "text_model." is */
    WEIGHT_NAMES
};
/* Give tensors with older names of norms the newer ones. Errors: Q_CORRUPT (two tensors for one
 * name), Q_NO_MEMORY. */
FALLIBLE weight_names_map(struct tensor_set *files, struct q_err *e);
/* Which of them the files have. files: may be NULL. */
enum weight_names weight_names_of(const struct arch *a, const struct model_config *c,
                                  const struct tensor_set *files);
/* The table's pattern of a name as the files have it. */
void weight_names_pattern(char out[ARCH_NAME_MAX], enum weight_names n, const struct arch *a,
                          const char *pattern);
/* Is a tensor of the files one of the text model's, or of another part of the model? */
bool weight_names_is_text(enum weight_names n, const char *name);

#endif
