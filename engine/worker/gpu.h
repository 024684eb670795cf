/* SPDX-License-Identifier: Apache-2.0 */
/* gpu - the worker's device: what it loads there, how a step gets there and back.
 *
 * The worker decides what a step is, as on the CPU (slots, guesses, masks, the result); this sends
 * the step's arrays in one copy, gives the walk to the stream, and brings rows back.
 *
 * A step's arrays lie one behind the other in device memory, at offsets that its counts decide; so
 * all decode steps of one (padded) number of sequences have theirs at the same addresses, and a
 * graph recorded once serves all of them. Graphs are there for 1, 2, 4, 8, 16, 24 … sequences
 * (--cuda-graph-sizes, --enforce-eager); a step of other shape is given to the stream launch by
 * launch. Block tables stay on the device, a row for each slot: a step sends what is new of them.
 * Threads: the worker's loop. Allocates nothing after gpu_make. */
#ifndef QUIRE_ENGINE_WORKER_GPU_H
#define QUIRE_ENGINE_WORKER_GPU_H
#include "engine/worker/memory.h"
#include "engine/worker/ring.h"
#include "engine/worker/slots.h"

struct gpu;

/* The device that c->device asks for. *out stays NULL when that is the CPU: by name, or because of
 * "auto" where there is no driver, no library or no device (why is logged).
 * Errors: Q_INVALID (no such name); what opening a named device says. */
FALLIBLE gpu_open(struct gpu **out, const struct worker_config *c, struct q_err *e);
void gpu_free(struct gpu *g); /* after the model; takes NULL */
const struct device_link *gpu_link(const struct gpu *g);
/* "cuda:0 NVIDIA H100 80GB HBM3 9.0 …": for logs and system_fingerprint. */
void gpu_describe(const struct gpu *g, char *out, size_t n);

struct gpu_sizes { /* what gpu_make decides */
    uint32_t n_block, n_swap_block;
};
/* All that steps use: activations, KV pool, swap space, graphs. The pool takes what a step of the
 * largest size, run now, leaves of the card's memory (0.9 of it without --gpu-memory-utilization).
 * l: copies_max is set when there is swap space. Errors: Q_NO_MEMORY, those of the device. */
FALLIBLE gpu_make(struct gpu *g, const struct model *m, struct step_limits *l,
                  struct gpu_sizes *sizes, struct q_err *e);
const struct kv_cache *gpu_kv(const struct gpu *g);
const struct kv_cache *gpu_swap(const struct gpu *g); /* of 0 blocks when there is none */

/* Begin the step's copies, all out before one in; the next gpu_forward waits for them there. */
void gpu_copies(struct gpu *g, const struct step_view *v);
/* Compute the batch of `s`, which was made of `v`. *logits: [n_logit][vocab_size] of host memory,
 * until the next call. Errors: those of the device; the worker does not go on after one. */
FALLIBLE gpu_forward(struct gpu *g, const struct slots *s, const struct step_view *v,
                     float **logits, struct q_err *e);
void gpu_forget(struct gpu *g); /* kv_cache_forget of both pools */

#endif
