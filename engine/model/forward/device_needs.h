/* SPDX-License-Identifier: Apache-2.0 */
/* device_needs - does a device's library have the kernels that a model's program is run with?
 * Threads: pure function. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_DEVICE_NEEDS_H
#define QUIRE_ENGINE_MODEL_FORWARD_DEVICE_NEEDS_H
#include "engine/model/model_state.h"

/* Is it silu_mul's, which every library has, rather than activate's? */
static inline bool device_needs_silu_mul(const struct program_op *op)
{
    return op->act.is == ARCH_SILU && op->act.gated;
}
/* Has each head a launch of its own? Those with one RMS norm for all are qkv_epilogue's. */
static inline bool device_needs_norm_apart(const struct program_op *op)
{
    const bool of_heads = op->norm.unit != op->in[0].n_col;
    return op->norm.apart || (of_heads && op->norm.kind == ARCH_NORM_LAYER);
}
/* m: loaded with a link, its program is fused. Errors: Q_UNSUPPORTED (the operation of the library,
 * or of the program, that is missing). */
FALLIBLE device_needs_check(const struct model *m, struct q_err *e);

#endif
