/* SPDX-License-Identifier: Apache-2.0 */
/* gpu - the worker's device: loading, transfer of steps and results.
 *
 * The worker prepares steps as on the CPU (slots, drafts, masks, the result). This module sends the
 * step's arrays in one copy, launches the forward pass and the sampling on the stream, and copies
 * tokens and logprobs back. Block tables and histories stay on the device, one row per slot: a step
 * sends their changes, reads its tokens there and writes the sampled tokens there. So the next step
 * can be launched before the host has read the tokens of this one, and host work between steps
 * causes no idle time on the device. Remaining idle time is measured by events around each forward
 * pass and each sampling (gpu_times_of).
 *
 * A step's arrays are contiguous in device memory, at offsets determined by its counts; so all
 * decode steps of one (padded) number of sequences have the same addresses, and one captured graph
 * serves all of them. Graphs exist for 1, 2, 4, 8, 16, 24 … sequences (--cuda-graph-sizes,
 * --enforce-eager), with adapters one more each, for steps that have some; a step of another shape
 * is launched kernel by kernel. If the library has no
 * `sample`, or a row needs more alternatives than it supports, the host samples from the logits.
 * Threads: the worker's loop. Allocates nothing after gpu_make. */
#ifndef QUIRE_ENGINE_WORKER_GPU_GPU_H
#define QUIRE_ENGINE_WORKER_GPU_GPU_H
#include "engine/worker/masks.h"
#include "engine/worker/memory.h"
#include "engine/worker/ring.h"
#include "engine/worker/slots.h"

#define GPU_STEPS  2u  /* maximum steps in flight */
#define GPU_LOGITS 16u /* rows that the host samples in one pass */

struct gpu;

/* Open the device c->device. *out remains NULL for the CPU: by name, or with "auto" without driver,
 * library or device (the reason is logged).
 * Errors: Q_INVALID (unknown name); errors of opening a named device. */
FALLIBLE gpu_open(struct gpu **out, const struct worker_config *c, struct q_err *e);
/* Check that a named device can be opened; it is closed again; "auto" and "cpu" always pass.
 * *on_device: steps may run on a device.
 * Errors: as gpu_open. */
FALLIBLE gpu_check(bool *on_device, const struct worker_config *c, struct q_err *e);
void gpu_stop(struct gpu *g); /* wait for all launched work; accepts NULL */
void gpu_free(struct gpu *g); /* after the models; takes NULL */
const struct device_link *gpu_link(const struct gpu *g);
/* "cuda:0 NVIDIA H100 80GB HBM3 9.0 …": for logs and system_fingerprint. */
void gpu_describe(const struct gpu *g, char *out, size_t n);

struct gpu_models { /* loaded with gpu_link */
    const struct model *model;
    const struct model *draft; /* NULL: none */
};
struct gpu_sizes { /* results of gpu_make */
    uint32_t n_block, n_swap_block;
};
/* Allocate everything for steps: activations, KV pool, swap space, graphs. The pool takes the
 * memory of the card that a step of the largest size, run now, leaves free (0.9 of it without
 * --gpu-memory-utilization). l: copies_max is set when there is swap space.
 * Errors: Q_NO_MEMORY, those of the device. */
FALLIBLE gpu_make(struct gpu *g, const struct gpu_models *m, struct step_limits *l,
                  struct gpu_sizes *sizes, struct q_err *e);
const struct kv_cache *gpu_kv(const struct gpu *g);
const struct kv_cache *gpu_swap(const struct gpu *g); /* of 0 blocks when there is none */
struct lora_device *gpu_lora(const struct gpu *g);    /* NULL: adapters are not enabled */
void gpu_forget(struct gpu *g);                       /* kv_cache_forget of all pools */
/* The model has other weights (model_reload), and no step is in flight: graphs that are wrong now
 * (model_generation) are recorded again. If that fails, the log says so, and steps are launched
 * kernel by kernel. */
void gpu_reloaded(struct gpu *g);

/* True if the device samples this row. */
bool gpu_samples(const struct gpu *g, const struct logit_row *row);
/* Launch the step's copies, all out before the first in, after the steps in flight; the step's
 * forward pass waits for them on the device. */
void gpu_copies(struct gpu *g, const struct step_view *v);
/* Send the changes of tables and histories of the step's sequences, including drafts.
 * Errors: those of the device; they are fatal for the worker. */
FALLIBLE gpu_update(struct gpu *g, const struct slots *s, const struct step_view *v,
                    struct q_err *e);
/* Compute the batch of `s`, made from `v`, up to its logits. The host does not need the tokens: the
 * device has them.
 * Errors: as gpu_update. */
FALLIBLE gpu_launch(struct gpu *g, const struct slots *s, const struct step_view *v,
                    struct q_err *e);
/* Why a plugin did not launch an operation of the batch, so that its logits are no result; NULL: it
 * launched all of them. */
const char *gpu_refusal(const struct gpu *g);
/* Sample its rows; waits for masks only. Rows that depend on tokens (slots_looks_back) read them
 * from the slots. Returns the step's number. */
uint64_t gpu_launch_sampling(struct gpu *g, const struct slots *s, struct masks *masks);
bool gpu_done(const struct gpu *g, uint64_t n); /* gpu_wait would not wait */
FALLIBLE gpu_wait(struct gpu *g, uint64_t n, struct q_err *e);
struct gpu_times {
    uint32_t copy_us; /* of gpu_copies */
    uint32_t gap_us;  /* idle time of the device since the previous step; STEP_NO_GAP: no previous
                       * step */
};
/* Of a step that was waited for; no step behind the next one may have been launched. */
struct gpu_times gpu_times_of(const struct gpu *g, uint64_t n);
/* Result of row i_row of step n, sampled on the device after gpu_wait: token (SAMPLE_BAD; then rank
 * has the reason, masks not considered), rank, logprob, n_top and alternatives. n_top: at most;
 * SAMPLE_NO_LOGPROBS: none of these. */
void gpu_row(const struct gpu *g, uint64_t n, uint32_t i_row, uint32_t n_top,
             const struct sample_result *out);
/* Pooled row i_row of step n after gpu_wait, [n_output] of host memory, until the step after the
 * next one; of a model that pools. */
const float *gpu_pooled(const struct gpu *g, uint64_t n, uint32_t i_row);
/* Rows of logits of the last step, at most GPU_LOGITS: *logits, [n][vocab_size] of host memory,
 * until the next call. Waits. Errors: those of the device. */
FALLIBLE gpu_logits(struct gpu *g, const uint32_t *rows, uint32_t n, float **logits,
                    struct q_err *e);

/* The draft model computes a batch of its own over the same slots; slots[i]: of sequence i. The
 * likeliest token of each row of logits, or SAMPLE_BAD. Waits. Errors: those of the device. */
FALLIBLE gpu_draft(struct gpu *g, const struct batch *b, const uint32_t *slots, uint32_t *tokens,
                   struct q_err *e);

#endif
