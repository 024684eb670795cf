/* SPDX-License-Identifier: Apache-2.0 */
/* heads - the arguments of a product for each head (latent attention), for both executors.
 * Threads: a pure function. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_HEADS_H
#define QUIRE_ENGINE_MODEL_FORWARD_HEADS_H
#include "engine/model/forward/program.h"
#include "kernels/ops/ops_mla.h"

struct weights;
/* Sizes and weights of an operation HEADS. The caller sets y, x, their strides and types, and
 * n_row. */
struct head_linear_args heads_args(const struct weights *g, const struct program_op *op);

#endif
