/* SPDX-License-Identifier: Apache-2.0 */
/* train_program - the forward and the backward list of a layer, derived from the layer program.
 *
 *     ops of the layer     norm | matmul | rope | store | attention | matmul | add | norm | …
 *     forward steps        keep x | norm | matmul | rope | attention | matmul | add | keep x | …
 *     backward steps       … | norm again | grad of matmul | grad of norm | …
 *
 * A value is what a buffer holds from one operation that writes all of it to the next. The rule of
 * each kind says what its gradient reads; such a value is kept until the backward
 * pass: in memory of its own in each layer, or, where a later operation changes it in place, as a
 * copy that a KEEP step makes before. A value that a norm or an activation has made of kept ones is
 * not kept but made again. Everything else is work memory, which all layers share.
 *
 * Attention divides the steps into passes, which blocks of rows go through from the first step to
 * the last, so that values stay in the caches, and those of one pass take the memory of a block.
 *
 * The residual stream is value 0 of every layer, its gradient value 1. An ADD hands the stream's
 * gradient on without a copy. Threads: made by one; then only read. */
#ifndef QUIRE_ENGINE_DISTILL_TRAIN_PROGRAM_H
#define QUIRE_ENGINE_DISTILL_TRAIN_PROGRAM_H
#include "engine/model/forward/program.h"

enum train_step_kind {
    TRAIN_RUN,   /* the operation: in -> out */
    TRAIN_KEEP,  /* in -> out, a copy; behind attention in bf16: rounded */
    TRAIN_SCALE, /* d_out -> d_in, times the scale of an ADD */
    TRAIN_GRAD   /* the operation's gradient: d_out, and in and out as kept -> d_in, d weight */
};

#define TRAIN_NONE        UINT32_MAX
#define TRAIN_STREAM      0u /* the residual stream */
#define TRAIN_STREAM_GRAD 1u
#define TRAIN_VALUES      64u
#define TRAIN_STEPS       96u
#define TRAIN_INPUTS      3u /* of attention: q, k, v */

struct train_ref { /* columns of a value; value TRAIN_NONE: no reference */
    uint32_t value, col, n_col;
};

enum train_place {
    TRAIN_WORK,  /* memory that all layers share, for all rows */
    TRAIN_BLOCK, /* the same for the rows of a block: it is used within one pass */
    TRAIN_KEPT,  /* of each layer and each micro batch under way */
    TRAIN_FIXED  /* the stream and its gradient: the executor's */
};
struct train_value {
    uint32_t n_col;
    enum dtype dtype;
    enum train_place place;
    bool is_grad;        /* it lives in the backward pass */
    uint32_t first, end; /* steps that use it, of its list */
    size_t at;           /* bytes a row in work or kept memory in front of it */
};

struct train_step {
    enum train_step_kind kind;
    const struct program_op *op; /* of the layer program */
    struct train_ref in[TRAIN_INPUTS], out;
    struct train_ref lse; /* ATTENTION */
    struct train_ref d_in[TRAIN_INPUTS], d_out;
    bool accumulate; /* d_in[0] is added to */
    bool all_rows;   /* attention: it reads rows of others; a pass of its own */
    bool reuses;     /* it writes to memory of a value that other threads may still read */
};

struct train_list {
    struct train_step steps[TRAIN_STEPS];
    uint32_t n;
};

struct train_layer {
    uint32_t layer;
    struct train_value values[TRAIN_VALUES];
    uint32_t n_value;
    struct train_list forward, backward;
    uint32_t n_again;         /* forward steps up to the last that writes a kept value */
    size_t work, block, kept; /* bytes a row */
};

/* Bytes from one row of a value to the next. */
size_t train_stride(const struct train_value *v);

/* The operations of one layer of p. Errors: Q_UNSUPPORTED (the operation that is not supported, and
 * of what kind). */
FALLIBLE train_layer_make(struct train_layer *out, const struct layer_program *p, uint32_t layer,
                          struct q_err *e);
/* Are embedding and head what the executor supports? Errors: Q_UNSUPPORTED. */
FALLIBLE train_check_model(const struct layer_program *p, struct q_err *e);

#endif
