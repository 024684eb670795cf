/* SPDX-License-Identifier: Apache-2.0 */
/* item_options - --limit-mm-per-prompt and --mm-processor-cache-gb. Threads: start-up. */
#ifndef QUIRE_ENGINE_CORE_ITEM_OPTIONS_H
#define QUIRE_ENGINE_CORE_ITEM_OPTIONS_H
#include "engine/core/core_items.h"

/* text: {"actions": 64} or {"image": {"count": 2}} as vLLM has them, or its earlier actions=64,…; ""
 * for none. gib: 0 = the default. Names that the model does not have are kept and mean nothing.
 * Errors: Q_INVALID. */
FALLIBLE item_options(struct core_item_config *c, const char *text, double gib, struct q_err *e);

/* The limit that was given for a modality; UINT32_MAX: none. */
uint32_t item_options_limit(const struct core_item_config *c, const char *name);

#endif
