/* SPDX-License-Identifier: Apache-2.0 */
/* executor_device - runs a model's layer program on a device: each stage is one launch for all
 * rows of the step, in the order of the program, on one stream (experts: for some rows at a time).
 *
 * Unlike the CPU's executor it has no shares of threads, no caches and no barriers. With the
 * reference's kernels both executors give the same bits (tests/unit/test_device.c). A step
 * allocates nothing and waits for nothing, so it can be captured as a graph. Threads: one. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_EXECUTOR_DEVICE_H
#define QUIRE_ENGINE_MODEL_FORWARD_EXECUTOR_DEVICE_H
#include "engine/model/model.h"

struct executor_device; /* activations and workspace */

/* The largest step there will be: rows, sequences and rows of logits are filled in by the caller,
 * the rest here. */
void executor_device_limits(struct device_limits *l, const struct model *m);
/* Some layers have another number of KV heads than the others, so that attention needs a plan of
 * its own there: by these limits. False: none has. */
bool executor_device_wide_limits(struct device_limits *wide, const struct device_limits *l,
                                 const struct model *m);
/* m: loaded with a link. Errors: Q_NO_MEMORY; Q_UNSUPPORTED (operations that the device's library
 * lacks, by name). */
FALLIBLE executor_device_new(struct executor_device **out, const struct model *m,
                             const struct device_limits *l, struct q_err *e);
void executor_device_free(struct executor_device *d);

/* Its stream and workspace, for what is launched between two steps. */
const struct kern_exec *executor_device_exec(const struct executor_device *d);

/* With dynamic rope beyond the trained length a row's (cos, sin) depends on its sequence's prompt:
 * they come with the step, so many bytes a row (0: the model has a table of all positions), and
 * batch->positions are row numbers then. The second makes those of a batch in host memory, with its
 * positions and n_prompts; false: nothing to be made. */
size_t executor_device_cos_sin_bytes(const struct model *m);
bool executor_device_cos_sin(const struct model *m, float *rows, const struct batch *b);

struct device_step {
    /* Counts, and arrays in device memory; n_prompts and lora are not read. */
    const struct batch *batch;
    const float *cos_sin;       /* of executor_device_cos_sin, in device memory; else not read */
    const void *plan;           /* of attention, in device memory */
    const void *plan_host;      /* the same in host memory; NULL: the step is recorded */
    const void *wide_plan;      /* of executor_device_wide_limits; else not read */
    const void *wide_plan_host; /* as plan_host */
    /* Of a model that takes items, in device memory: the row of `items` that a row of the batch is
     * in place of its token's, or KERN_NO_ROW. */
    const uint32_t *item_ids;
    const float *items; /* [n, hidden_size] */
    const struct kv_cache *kv;
    const struct lora_slots *lora; /* lora_device_slots; NULL: no row has an adapter */
    float *logits;                 /* [n_logit, model_shape.n_output] in device memory */
};
/* Give one step to the stream of the link; batch->context_max may be more than the longest.
 * Errors: Q_INTERNAL (an operation of a plugin was not launched, by its name and its reason; the
 * rest of the step is not in the stream, and its logits are no result). */
FALLIBLE executor_device_run(const struct executor_device *d, const struct device_step *s,
                             struct q_err *e);

#endif
