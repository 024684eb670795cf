/* SPDX-License-Identifier: Apache-2.0 */
/* worker - loads a model and computes the steps of a ring.
 *
 * It runs as a process of its own (main_worker.c) or as a thread of the engine; its only interface
 * is the ring: configuration in, readiness out, then steps in and results out, strictly in order.
 * It plans nothing and does not trust steps. Threads: worker_run uses the calling thread and a team
 * of compute threads until ring_stop. Allocates nothing between two steps (alloc_freeze). */
#ifndef QUIRE_ENGINE_WORKER_WORKER_H
#define QUIRE_ENGINE_WORKER_WORKER_H
#include "engine/worker/masks.h"
#include "engine/worker/ring.h"

/* Load, report READY, compute until ring_stop. masks: a provider for tests; NULL: grammars.h. A
 * failure to load is reported through the ring and returned. */
FALLIBLE worker_run(struct ring *r, const struct mask_provider *masks, struct q_err *e);
/* Check before loading: the model's config, the options and (if named) the device. Errors: as
 * worker_run. */
FALLIBLE worker_check(const struct worker_config *c, struct q_err *e);

#endif
