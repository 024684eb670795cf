/* SPDX-License-Identifier: Apache-2.0 */
/* model_program - the layer program of a model, before loading (from config.json) and of loaded
 * weights. Internal to engine/model. Threads: as model_load. */
#ifndef QUIRE_ENGINE_MODEL_MODEL_PROGRAM_H
#define QUIRE_ENGINE_MODEL_MODEL_PROGRAM_H
#include "engine/model/forward/forms.h"
#include "engine/model/model_show.h"

/* Would the family and the config have a program that the executor runs? m: arch, plugin and config
 * are set; sets own_read. Errors: Q_UNSUPPORTED (by name), Q_INVALID (a plugin's change). */
FALLIBLE model_program_try(struct model *m, bool on_device, struct q_err *e);
/* Of gated products: hidden_act. */
enum kern_act model_program_gate_act(const struct model_config *c);
/* m->program of m's weights. Errors: Q_UNSUPPORTED (by name: what the executor or the loader has
 * not), Q_MISMATCH (a weight of another shape than its operation), Q_NO_MEMORY. */
FALLIBLE model_program_make(struct model *m, struct q_err *e);
/* Adds the program that m would have; m's config, dtypes and quantization are decided. */
FALLIBLE model_program_show(struct buf *out, const struct model *m, const struct model_show *how,
                            struct q_err *e);
/* Bytes of a sequence's state that it would have, all layers; 0: none. */
FALLIBLE model_program_state_bytes(uint64_t *out, const struct model *m, struct q_err *e);

#endif
