/* SPDX-License-Identifier: Apache-2.0 */
/* params_load - the parameters that the operations of some stages name, from a model folder.
 * Threads: one owner. */
#ifndef QUIRE_ENGINE_DISTILL_PARAMS_LOAD_H
#define QUIRE_ENGINE_DISTILL_PARAMS_LOAD_H
#include "common/hub/config.h"
#include "engine/distill/params.h"
#include "engine/distill/stage.h"
#include "engine/model/forward/program.h"

struct params_source {
    const struct arch *arch;
    const struct model_config *config; /* of the whole model */
    const struct layer_program *program;
    const struct tensor_set *files;
    const struct stage_layers *stages; /* [n_stage] of this rank */
    uint32_t n_stage;
    uint32_t rank, size;       /* of the tensor-parallel group */
    uint32_t n_projection_row; /* of a rank with the head: rows of a projection; 0: none */
    bool no_optimizer;         /* no moments */
    bool list_only;            /* the list, without numbers: what is wrong with the folder */
};

/* Is the operation one of the stages'? The head's are those behind the last layer. */
bool params_has_op(const struct params_source *s, const struct program_op *op);
/* The whole head is computed with the embedding's table, and both are on this rank. */
bool params_head_is_embedding(const struct params *p);
/* Can the student be divided among `size` tensor-parallel ranks? *local: the config of one of them.
 * Errors: Q_INVALID (which number does not divide). */
FALLIBLE params_divide(struct model_config *local, const struct model_config *c, uint32_t size,
                       struct q_err *e);
/* p: PARAMS_INIT. Masters are filled, gradients and moments 0. Errors: Q_NOT_FOUND, Q_CORRUPT,
 * Q_MISMATCH, Q_UNSUPPORTED (a quantized tensor; a layout of rows), Q_NO_MEMORY. */
FALLIBLE params_load(struct params *p, const struct params_source *s, struct q_err *e);

#endif
