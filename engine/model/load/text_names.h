/* SPDX-License-Identifier: Apache-2.0 */
/* text_names - the names that tensors of a text model have in the files of a model that takes other
 * inputs too. `lm_head.weight` and `model.norm.weight` are, by who wrote the files,
 *     language_model.lm_head.weight   language_model.model.norm.weight
 *     lm_head.weight                  model.language_model.norm.weight
 *     lm_head.weight                  model.text_model.norm.weight
 *     lm_head.weight                  model.norm.weight
 * Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_TEXT_NAMES_H
#define QUIRE_ENGINE_MODEL_LOAD_TEXT_NAMES_H
#include "common/hub/safetensors.h"
#include "engine/model/arch.h"

enum text_names {
    TEXT_NAMES_OWN,   /* as the family's table has them */
    TEXT_NAMES_OUTER, /* behind "language_model." */
    TEXT_NAMES_INNER, /* "language_model." is behind "model." */
    TEXT_NAMES_TEXT,  /* "text_model." is */
    TEXT_NAMES
};
/* Which of them the files have, by the name of the embedding's table; OWN where there is none. */
enum text_names text_names_of(const struct arch *a, const struct tensor_set *files);
/* name, as the table has it, into the files' form. */
void text_names_to_file(char out[ARCH_NAME_MAX], enum text_names n, const char *name);
/* The table's name of a tensor of the files; false: it is of another part of the model. */
bool text_names_of_file(char out[ARCH_NAME_MAX], enum text_names n, const char *name);

#endif
