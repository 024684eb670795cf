/* SPDX-License-Identifier: Apache-2.0 */
/* archs - the supported architectures by their names in config.json (archs.def). engine/model
 * implements them; here an unsupported folder is rejected before more of it is read. Threads:
 * constants and pure functions. */
#ifndef QUIRE_COMMON_HUB_ARCHS_H
#define QUIRE_COMMON_HUB_ARCHS_H
#include "common/err.h"

/* Check that it is supported. path: of its file, for the message. Errors: Q_UNSUPPORTED (with the
 * supported names and the most similar one). */
FALLIBLE archs_check(const char *architecture, const char *path, struct q_err *e);
/* The architecture of a model_type ("llama"); NULL = of none that is served. */
const char *archs_of_type(const char *model_type);
/* All of them: "LlamaForCausalLM, MistralForCausalLM, …". */
const char *archs_names(void);

#endif
