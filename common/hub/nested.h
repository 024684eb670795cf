/* SPDX-License-Identifier: Apache-2.0 */
/* nested - the text models of models that take images or sound besides text (nested.def): which
 * part of config.json is the text model's. Its tensors: engine/model/load/weight_names.h.
 * Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_NESTED_H
#define QUIRE_COMMON_HUB_NESTED_H
#include <jansson.h>
#include <stdbool.h>
#include "common/err.h"

/* What the architecture takes besides text: "images"; NULL: it has no row. */
const char *nested_inputs(const char *architecture);
/* config.json of the text model alone, which the caller releases: text_config or llm_config, with
 * the keys that only the outer object has, and the architecture of its model_type. NULL in *out:
 * the architecture has no row. path: for messages. Errors: Q_UNSUPPORTED (the text model's type),
 * Q_CORRUPT, Q_NO_MEMORY. */
FALLIBLE nested_text(json_t **out, const json_t *root, const char *path, struct q_err *e);

#endif
