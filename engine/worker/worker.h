/* SPDX-License-Identifier: Apache-2.0 */
/* worker - loads a model and computes the steps that come through a ring.
 *
 * It runs as a process of its own (main_worker.c) or as a thread of the engine; either way its only
 * contact is the ring: configuration down, readiness up, then steps down and results up, strictly
 * in order. It plans nothing and trusts nothing in a step. Threads: worker_run keeps the calling
 * thread and a team of compute threads until the ring says stop. Allocates nothing between two
 * steps (alloc_freeze). */
#ifndef QUIRE_ENGINE_WORKER_WORKER_H
#define QUIRE_ENGINE_WORKER_WORKER_H
#include "engine/worker/masks.h"
#include "engine/worker/ring.h"

/* Load, report READY, compute until ring_stop. masks: another provider than the worker's own, for
 * tests; NULL: grammars.h. A failure to load is reported through the ring and returned. */
FALLIBLE worker_run(struct ring *r, const struct mask_provider *masks, struct q_err *e);
/* Would it load the model, as far as its config, the options and (where one is named) the device
 * show? Errors: as worker_run. */
FALLIBLE worker_check(const struct worker_config *c, struct q_err *e);

#endif
