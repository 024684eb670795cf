/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_module - a text of --lora-modules: an adapter's name in the API, and its folder or id.
 * Threads: reentrant. */
#ifndef QUIRE_COMMON_HUB_ADAPTER_MODULE_H
#define QUIRE_COMMON_HUB_ADAPTER_MODULE_H
#include <limits.h>
#include "common/hub/names.h"
#include "common/options.h"

#define ADAPTER_NAME_MAX 128u /* bytes, with the NUL */

struct adapter_module { /* an adapter's name, and its folder as it was given */
    char name[ADAPTER_NAME_MAX];
    char path[PATH_MAX];
};

/* name: [n_name]. Errors: Q_INVALID (empty, or too long). */
FALLIBLE adapter_module_set(struct adapter_module *m, const char *name, size_t n_name,
                            const char *path, struct q_err *e);
/* "name=path", or {"name": …, "path": …} as vLLM has it. Errors: Q_INVALID. */
FALLIBLE adapter_module_parse(struct adapter_module *m, const char *text, struct q_err *e);
/* Has an adapter of --lora-modules a name of the served model (--served-model-name, or without it
 * those of `model`)? Requests with that name are the model's, so none would reach the adapter.
 * Errors: Q_INVALID, also of a text that is no module. */
FALLIBLE adapter_modules_check(const struct options *o, const struct model_names *model,
                               struct q_err *e);

#endif
