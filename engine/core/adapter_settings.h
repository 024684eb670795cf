/* SPDX-License-Identifier: Apache-2.0 */
/* adapter_settings - the options of LoRA adapters, as values. Threads: start-up. */
#ifndef QUIRE_ENGINE_CORE_ADAPTER_SETTINGS_H
#define QUIRE_ENGINE_CORE_ADAPTER_SETTINGS_H
#include "common/hub/adapter_module.h"

struct adapter_settings {
    uint32_t max_loras;             /* different ones in a step; 0 = adapters are not enabled */
    uint32_t max_in_memory;         /* --max-cpu-loras */
    struct adapter_module *modules; /* [n] of --lora-modules; core_new takes them */
    uint32_t n;
    bool is_remembered; /* modules are those of an engine before: one that is gone is no error */
};

/* Also checks that names differ. w: gets max_lora_rank and the dtype.
 * Errors: Q_INVALID (option, value, what is accepted), Q_NO_MEMORY. */
struct worker_config;
FALLIBLE adapter_options(struct adapter_settings *s, struct worker_config *w,
                         const struct options *o, struct q_err *e);
/* The modules of a file that has core_adapter_list of an engine before, in place of those of the
 * options. Errors: Q_IO, Q_CORRUPT, Q_NO_MEMORY. */
FALLIBLE adapter_settings_take(struct adapter_settings *s, const char *path, struct q_err *e);

#endif
