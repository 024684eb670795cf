/* SPDX-License-Identifier: Apache-2.0 */
/* model_costs - what a forward pass of a model costs, from its layer program: for the cut into
 * stages and for reports. No weights are read. Threads: reentrant. */
#ifndef QUIRE_ENGINE_DISTILL_MODEL_COSTS_H
#define QUIRE_ENGINE_DISTILL_MODEL_COSTS_H
#include "common/hub/config.h"
#include "engine/model/forward/program.h"

/* Weights as they are in f32, none quantized: for programs of which the shapes alone are read. */
extern const struct program_forms model_costs_forms;

struct model_costs { /* FLOP of one row, products and attention */
    uint32_t n_layer;
    double *layers; /* [n_layer] */
    double head;
    double params_layer, params_embedding, params_head; /* numbers, of the mean layer; for memory */
};
/* clang-format off */
#define MODEL_COSTS_INIT {0}
/* clang-format on */

/* n_context: rows that a row of attention sees on average. dir: a model folder. Errors: those of
 * model_config_load, arch_find and program_compile, Q_NO_MEMORY. */
FALLIBLE model_costs_of(struct model_costs *out, const char *dir, uint32_t n_context,
                        struct q_err *e);
void model_costs_release(struct model_costs *c);
/* Of all layers and the head. */
double model_costs_row(const struct model_costs *c);

#endif
