/* SPDX-License-Identifier: Apache-2.0 */
/* device_walk - the decoder walk on a device: the same operations in the same order as forward.c,
 * each one launch for all rows.
 *
 * forward.c is about threads: who computes which rows, what stays in whose cache, where they meet.
 * Nothing of that is here. With the reference's kernels behind the table both give the same bits,
 * which is tested (tests/unit/test_device.c).
 * Threads: one. Allocates nothing after device_walk_new. */
#ifndef QUIRE_ENGINE_MODEL_DEVICE_WALK_H
#define QUIRE_ENGINE_MODEL_DEVICE_WALK_H
#include "engine/model/model.h"

struct device_walk; /* activations and workspace */

/* The largest step there will be: rows, sequences and rows of logits are filled in by the caller,
 * the rest here. */
void device_walk_limits(struct device_limits *l, const struct model *m);
/* m: loaded with a link. Errors: Q_NO_MEMORY; Q_UNSUPPORTED (operations that the device's library
 * lacks, by name). */
FALLIBLE device_walk_new(struct device_walk **out, const struct model *m,
                         const struct device_limits *l, struct q_err *e);
void device_walk_free(struct device_walk *w);

/* Its stream and workspace, for what is launched between two walks. */
const struct kern_exec *device_walk_exec(const struct device_walk *w);

/* With dynamic rope beyond the trained length a row's (cos, sin) depends on its sequence's prompt:
 * they come with the step, so many bytes a row (0: the model has a table of all positions), and
 * batch->positions are row numbers then. device_walk_turns makes those of a batch in host memory,
 * with its positions and n_prompts; false: nothing to be made. */
size_t device_walk_turns_bytes(const struct model *m);
bool device_walk_turns(const struct model *m, float *rows, const struct batch *b);

/* The type in which a product reads its input on this device: that in which the model computes, or
 * int8 or e4m3 with a scale for each row; and the type in which what comes before the product
 * writes: the same, or f32 of which those bytes are made. */
enum dtype device_walk_input(const struct model *m, const struct packed *weight);
enum dtype device_walk_made(const struct model *m, const struct packed *weight);

/* What inputs of matrices take besides floats: bytes with scales, sums of these, another order of
 * floats; halves: some weights of 4 bits read floats. */
struct device_needs {
    bool bytes, sums, ordered, halves;
};
/* Adds what this one needs; a matrix that is not there needs nothing. */
void device_walk_needs(struct device_needs *to, const struct model *m, const struct packed *weight);

struct device_step {
    const struct batch *batch; /* counts, and arrays in device memory; n_prompts is not read */
    const float *turns;        /* of device_walk_turns, in device memory; else not read */
    const void *plan;          /* of attention, in device memory */
    const struct kv_cache *kv;
    float *logits; /* [n_logit, vocab_size] in device memory */
};
/* Give one step to the stream of the link; batch->context_max may be more than the longest. */
void device_walk_run(const struct device_walk *w, const struct device_step *s);

#endif
