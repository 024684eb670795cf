/* SPDX-License-Identifier: Apache-2.0 */
/* adapters - the LoRA adapters that a worker has in memory, by the numbers that the engine gave
 * them, and the rows of a step that have them. Threads: the worker's loop. Loading and dropping are
 * commands between two steps; a step allocates nothing. */
#ifndef QUIRE_ENGINE_WORKER_ADAPTERS_H
#define QUIRE_ENGINE_WORKER_ADAPTERS_H
#include "engine/worker/ring.h"
#include "engine/worker/slots.h"

struct adapters;
struct lora_device;
/* The type of the adapters' numbers. */
enum dtype adapters_dtype(const struct worker_config *c, const struct model *m);
/* n_seq, n_token: of a step at most. Errors: Q_NO_MEMORY. */
FALLIBLE adapters_new(struct adapters **out, const struct step_limits *limits, struct q_err *e);
void adapters_free(struct adapters *a);

struct adapters_load {
    uint32_t adapter; /* its number */
    const char *dir;
    const struct worker_config *config;
    const struct model *model;
    struct lora_device *device; /* NULL: the CPU; borrowed until adapters_free */
};
/* Errors: those of lora_load and lora_device_add; Q_NO_SPACE (RING_ADAPTERS_MAX are loaded). */
FALLIBLE adapters_load(struct adapters *a, const struct adapters_load *o, struct q_err *e);
/* No effect if it is not there. No later step may have it. */
void adapters_drop(struct adapters *a, uint32_t adapter);
/* Set b->lora for the batch of a step, whose sequences are those of `v`.
 * Errors: Q_CORRUPT (an adapter that is not loaded). */
FALLIBLE adapters_batch(struct adapters *a, const struct slots *s, const struct step_view *v,
                        struct batch *b, struct q_err *e);

#endif
