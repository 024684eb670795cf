/* SPDX-License-Identifier: Apache-2.0 */
/* forms - the properties of packed weights that a layer program depends on (struct program_form):
 * those of a loaded model, or those that a model would have if it were loaded (planned). Internal
 * to engine/model. Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_FORMS_H
#define QUIRE_ENGINE_MODEL_FORWARD_FORMS_H
#include "engine/model/forward/program.h"
#include "engine/model/model_state.h"

/* m: its weights are loaded; borrowed. */
struct program_forms forms_of_model(const struct model *m);

struct forms_plan { /* what decides before anything is loaded: on the CPU */
    const struct model_config *config;
    const struct arch *arch;
    enum dtype dtype;               /* computed in */
    enum quantization quantization; /* of the products */
    uint32_t lora_rank;             /* model_options */
    bool is_apart;                  /* gate and up are not interleaved */
};
/* p: borrowed. Of a checkpoint that is quantized, the forms are those that all of its matrices
 * have that can have them. */
struct program_forms forms_planned(const struct forms_plan *p);

#endif
