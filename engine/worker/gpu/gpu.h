/* SPDX-License-Identifier: Apache-2.0 */
/* gpu - the worker's device: what it loads there, how a step gets there and back.
 *
 * The worker decides what a step is, as on the CPU (slots, guesses, masks, the result). This sends
 * the step's arrays in one copy, gives the walk and the sampling of its rows to the stream, and
 * brings tokens and logprobs back. Block tables and histories stay on the device, a row for each
 * slot: a step sends what is new of them, reads its tokens there, and writes there what it sampled.
 * So the next step can be given to the stream before the host has seen the tokens of this one, and
 * what the host does between steps costs the device nothing. How much it does cost all the same is
 * measured by events around each walk and each sampling (gpu_times_of).
 *
 * A step's arrays lie one behind the other in device memory, at offsets that its counts decide; so
 * all decode steps of one (padded) number of sequences have theirs at the same addresses, and a
 * graph recorded once serves all of them. Graphs are there for 1, 2, 4, 8, 16, 24 … sequences
 * (--cuda-graph-sizes, --enforce-eager); a step of other shape is given to the stream launch by
 * launch. A library without `sample`, and rows that want more alternatives than it gives, leave the
 * rows of logits to the host.
 * Threads: the worker's loop. Allocates nothing after gpu_make. */
#ifndef QUIRE_ENGINE_WORKER_GPU_GPU_H
#define QUIRE_ENGINE_WORKER_GPU_GPU_H
#include "engine/worker/masks.h"
#include "engine/worker/memory.h"
#include "engine/worker/ring.h"
#include "engine/worker/slots.h"

#define GPU_STEPS  2u  /* on their way at a time */
#define GPU_LOGITS 16u /* rows that the host looks at in one go */

struct gpu;

/* The device that c->device asks for. *out stays NULL when that is the CPU: by name, or because of
 * "auto" where there is no driver, no library or no device (why is logged).
 * Errors: Q_INVALID (no such name); what opening a named device says. */
FALLIBLE gpu_open(struct gpu **out, const struct worker_config *c, struct q_err *e);
/* Would it open a device that c->device names? The device is let go again; "auto" and "cpu" are
 * always fine. *on_device: steps may run on one. Errors: as gpu_open. */
FALLIBLE gpu_check(bool *on_device, const struct worker_config *c, struct q_err *e);
void gpu_stop(struct gpu *g); /* wait for all that it was given; takes NULL */
void gpu_free(struct gpu *g); /* after the models; takes NULL */
const struct device_link *gpu_link(const struct gpu *g);
/* "cuda:0 NVIDIA H100 80GB HBM3 9.0 …": for logs and system_fingerprint. */
void gpu_describe(const struct gpu *g, char *out, size_t n);

struct gpu_models { /* loaded with gpu_link */
    const struct model *model;
    const struct model *draft; /* NULL: none */
};
struct gpu_sizes { /* what gpu_make decides */
    uint32_t n_block, n_swap_block;
};
/* All that steps use: activations, KV pool, swap space, graphs. The pool takes what a step of the
 * largest size, run now, leaves of the card's memory (0.9 of it without --gpu-memory-utilization).
 * l: copies_max is set when there is swap space. Errors: Q_NO_MEMORY, those of the device. */
FALLIBLE gpu_make(struct gpu *g, const struct gpu_models *m, struct step_limits *l,
                  struct gpu_sizes *sizes, struct q_err *e);
const struct kv_cache *gpu_kv(const struct gpu *g);
const struct kv_cache *gpu_swap(const struct gpu *g); /* of 0 blocks when there is none */
void gpu_forget(struct gpu *g);                       /* kv_cache_forget of all pools */

/* Does the device sample this row? */
bool gpu_samples(const struct gpu *g, const struct logit_row *row);
/* Begin the step's copies, all out before one in, behind the steps that are on their way; its walk
 * waits for them there. */
void gpu_copies(struct gpu *g, const struct step_view *v);
/* Send what the device has not of the tables and histories of the step's sequences, guesses
 * included. Errors: those of the device; the worker does not go on after one. */
FALLIBLE gpu_update(struct gpu *g, const struct slots *s, const struct step_view *v,
                    struct q_err *e);
/* Compute the batch of `s`, which was made of `v`, up to its logits. No token is looked at: the
 * device has them. Errors: as gpu_update. */
FALLIBLE gpu_launch(struct gpu *g, const struct slots *s, const struct step_view *v,
                    struct q_err *e);
/* Then sample its rows; waits for masks only. Rows that look at tokens (slots_looks_back) find them
 * in the slots. Returns the step's number, by which it is called from now on. */
uint64_t gpu_launch_sampling(struct gpu *g, const struct slots *s, struct masks *masks);
bool gpu_done(const struct gpu *g, uint64_t n); /* gpu_wait would not wait */
FALLIBLE gpu_wait(struct gpu *g, uint64_t n, struct q_err *e);
struct gpu_times {
    uint32_t copy_us; /* of gpu_copies */
    uint32_t gap_us; /* the device had nothing to do since the step before; STEP_NO_GAP: none was */
};
/* Of a step that was waited for; no step behind the next one may have been launched. */
struct gpu_times gpu_times_of(const struct gpu *g, uint64_t n);
/* What became of row i_row of step n, which the device sampled and gpu_wait has waited for: token
 * (SAMPLE_BAD; then rank says why, masks not considered), rank, logprob, n_top and alternatives.
 * n_top: at most; SAMPLE_NO_LOGPROBS: none of these. */
void gpu_row(const struct gpu *g, uint64_t n, uint32_t i_row, uint32_t n_top,
             const struct sample_result *out);
/* Rows of logits of the last step, at most GPU_LOGITS: *logits, [n][vocab_size] of host memory,
 * until the next call. Waits. Errors: those of the device. */
FALLIBLE gpu_logits(struct gpu *g, const uint32_t *rows, uint32_t n, float **logits,
                    struct q_err *e);

/* The draft model computes a batch of its own over the same slots; slots[i]: of sequence i. The
 * likeliest token of each row of logits, or SAMPLE_BAD. Waits. Errors: those of the device. */
FALLIBLE gpu_draft(struct gpu *g, const struct batch *b, const uint32_t *slots, uint32_t *tokens,
                   struct q_err *e);

#endif
