/* SPDX-License-Identifier: Apache-2.0 */
/* host_program - a plugin's changes of a layer program: quire_architecture.program, called before
 * the list is fused. What it inserts is held to the same rules as a family's operations
 * (program_check), and refused by name. Threads: as program.h. */
#ifndef QUIRE_ENGINE_MODEL_PLUGIN_HOST_PROGRAM_H
#define QUIRE_ENGINE_MODEL_PLUGIN_HOST_PROGRAM_H
#include "engine/model/forward/program.h"
#include "engine/model/plugin/plugin_model.h"

struct program_change { /* borrowed */
    struct layer_program *p;
    const struct quire_model *model;
    const struct program_forms *forms;
    bool on_device;
};
/* Errors: Q_INVALID (what is wrong with which operation), with the plugin's message where it has
 * one; Q_NO_MEMORY. */
FALLIBLE plugin_change_program(const struct program_change *c, struct q_err *e);
/* Buffers of a plugin that are written before the first layer have a row for each of the step, as
 * that pass takes all rows at once. p: fused. */
void plugin_place_buffers(struct layer_program *p);

/* quire_host.insert_after, .remove and .program_model. */
int host_insert_after(struct quire_program *p, uint32_t layer, const char *name,
                      const struct quire_op *op, struct quire_plugin_error *error);
int host_remove(struct quire_program *p, uint32_t layer, const char *name,
                struct quire_plugin_error *error);
const struct quire_model *host_program_model(const struct quire_program *p);

#endif
