/* SPDX-License-Identifier: Apache-2.0 */
/* archs - the architectures that this build serves, by the names config.json gives them
 * (archs.def). What each is made of is engine/model's; here a folder is refused before more of it
 * is read. Threads: constants and pure functions. */
#ifndef QUIRE_COMMON_HUB_ARCHS_H
#define QUIRE_COMMON_HUB_ARCHS_H
#include "common/err.h"

/* Is it served? path: of the file that names it, for the message. Errors: Q_UNSUPPORTED (names
 * those that are, and the nearest of them). */
FALLIBLE archs_check(const char *architecture, const char *path, struct q_err *e);
/* The architecture of a model_type ("llama"); NULL = of none that is served. */
const char *archs_of_type(const char *model_type);
/* All of them: "LlamaForCausalLM, MistralForCausalLM, …". */
const char *archs_names(void);

#endif
