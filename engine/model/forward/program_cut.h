/* SPDX-License-Identifier: Apache-2.0 */
/* program_cut - the part of a layer program that a pipeline stage runs: its layers' operations,
 * and what stands before the first layer and behind the last one where the stage has the embedding
 * and the head. Else the residual stream is received, and sent. Threads: pure. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_CUT_H
#define QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_CUT_H
#include "engine/model/forward/program.h"
#include "engine/model/pipeline_stage.h"

/* Leave the operations of the stage in p. Before program_fuse. Errors: Q_INVALID (the operation
 * that reads a buffer which another stage writes), Q_NO_MEMORY. */
FALLIBLE program_cut(struct layer_program *p, const struct pipeline_stage *s, struct q_err *e);

#endif
