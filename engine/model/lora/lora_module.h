/* SPDX-License-Identifier: Apache-2.0 */
/* lora_module - the matrices of a family that an adapter may have factors for, by the names that
 * adapters call them. Internal to engine/model/lora. Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_LORA_LORA_MODULE_H
#define QUIRE_ENGINE_MODEL_LORA_LORA_MODULE_H
#include "engine/model/arch.h"
#include "engine/model/forward/program_weight.h"

#define LORA_NO_LAYER UINT32_MAX
struct lora_module {
    const struct arch_tensor *tensor; /* of the family's table */
    uint32_t layer;
};
/* "model.layers.3.self_attn.q_proj". Errors: Q_MISMATCH (the model has no such matrix),
 * Q_UNSUPPORTED (it has, but the matrix takes no adapter). */
FALLIBLE lora_module_find(struct lora_module *out, const struct arch *a,
                          const struct model_config *c, const char *name, struct q_err *e);
/* May the tensor's matrix have factors? */
bool lora_module_is_adapted(const struct arch_tensor *t);
void lora_module_name(char out[ARCH_NAME_MAX], const struct lora_module *m);

struct lora_place {             /* of a module in the products of the layer program */
    enum program_weight weight; /* the product's */
    uint32_t col, n_out, n_in;  /* its columns of the product's output; its inputs */
    uint32_t n_kv_head;         /* above 0: rows are in the order of KV heads (W_QKV_HEADS) */
};
struct lora_place lora_module_place(const struct lora_module *m, const struct arch *a,
                                    const struct model_config *c);
/* The column of row i of the module's matrix, from the place's first one on. */
uint32_t lora_module_column(const struct lora_place *p, const struct model_config *c, uint32_t i);

#endif
