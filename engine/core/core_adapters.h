/* SPDX-License-Identifier: Apache-2.0 */
/* core_adapters - the LoRA adapters of an engine: names, folders and numbers, and which of them the
 * worker has in memory.
 *
 *     named --unloaded, or replaced in place--> without a name --last request ends--> gone
 *     away  --command to the worker--> ordered --done--> there --least recently used--> away
 *
 * A number stands for one content of one folder and is never used again: it is what a sequence has,
 * and a part of the keys of its cached blocks. A request waits while its adapter is away; the
 * command that loads it needs that no step is in flight, so no other step is planned until then.
 * A restarted worker loads again what requests need; a folder that changed meanwhile ends the
 * requests of the adapter. Threads: the core's owner. */
#ifndef QUIRE_ENGINE_CORE_CORE_ADAPTERS_H
#define QUIRE_ENGINE_CORE_CORE_ADAPTERS_H
#include "common/buf.h"
#include "common/hub/config.h"
#include "engine/core/adapter_settings.h"
#include "engine/record/recorder.h"
#include "engine/sched/scheduler.h"
#include "engine/worker/ring.h"

#define CORE_ADAPTERS_MAX 1024u
#define CORE_ADAPTER_FP   17u /* bytes of a fingerprint's text, with the NUL */

struct core_adapters;
struct core_adapters_args {
    const struct adapter_settings *settings;
    const struct worker_config *worker; /* borrowed */
    const struct model_config *model;   /* borrowed */
    struct recorder *recorder;          /* borrowed; NULL: none */
};
/* With the adapters of the settings; none are enabled: *out is NULL. Errors: those of
 * core_load_adapter. */
FALLIBLE core_adapters_new(struct core_adapters **out, const struct core_adapters_args *args,
                           struct q_err *e);
void core_adapters_free(struct core_adapters *a);

/* As core_load_adapter, core_unload_adapter, core_adapter_list of core.h; a may be NULL. */
FALLIBLE core_adapters_load(struct core_adapters *a, const struct adapter_module *m, bool in_place,
                            struct q_err *e);
FALLIBLE core_adapters_unload(struct core_adapters *a, const char *name, struct q_err *e);
const struct buf *core_adapters_list(const struct core_adapters *a, uint64_t *n_change);

/* The number of an adapter for a request; "": 0. Errors: Q_NOT_FOUND (the names there are);
 * that for which it could not be loaded. Never Q_UNAVAILABLE, after which a frontend waits and
 * submits the request again. */
FALLIBLE core_adapters_find(struct core_adapters *a, uint32_t *adapter, const char *name, size_t n,
                            struct q_err *e);
/* A digest of the files that an adapter in this folder has. Errors: Q_NO_MEMORY. */
FALLIBLE core_adapters_digest(char out[CORE_ADAPTER_FP], const char *dir, struct q_err *e);
/* Does the number stand for an adapter? */
bool core_adapters_has(const struct core_adapters *a, uint32_t adapter);
/* scheduler_config.adapter_ready: does the worker have it? Else it is loaded next. */
bool core_adapters_ready(void *a, uint32_t adapter);
/* Is an adapter to be loaded before the next step, or being loaded? */
bool core_adapters_waiting(const struct core_adapters *a);

/* No step and no command is in flight: take the result of the last command and send the next one.
 * *failed: an adapter could not be loaded, for the reason in *why: its requests have to end. */
void core_adapters_step(struct core_adapters *a, struct ring *r, const struct scheduler *s,
                        uint32_t *failed, struct q_err *why);
/* The worker is gone, with all that it had in memory. */
void core_adapters_lost(struct core_adapters *a);

#endif
