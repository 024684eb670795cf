/* SPDX-License-Identifier: Apache-2.0 */
/* program_weight - the weights that operations of a layer program name: the tensors of which each
 * is made, and its place in loaded weights. Threads: constants and pure functions. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_WEIGHT_H
#define QUIRE_ENGINE_MODEL_FORWARD_PROGRAM_WEIGHT_H
#include "engine/model/arch.h"
#include "kernels/ops/ops.h"

enum program_weight {
    PROGRAM_W_NONE,
#define WEIGHT(id, name, scope, kind, ...) PROGRAM_W_##id,
#include "engine/model/forward/program_weights.def"
    PROGRAM_WEIGHTS
};
enum program_weight_scope { PROGRAM_OF_MODEL, PROGRAM_OF_LAYER, PROGRAM_OF_EXPERT };
enum program_weight_kind { PROGRAM_MATRIX, PROGRAM_VECTOR, PROGRAM_TABLE };
#define PROGRAM_SLOTS_MAX 11u

struct program_weight_info {
    const char *name;
    enum program_weight_scope scope;
    enum program_weight_kind kind;
    uint32_t n_slot;
    enum arch_slot slots[PROGRAM_SLOTS_MAX];
    uint32_t i_own; /* of a plugin's: number of the tensor in arch.own */
};
/* A plugin's, numbered behind those of the table; name: for the life of the process. Returns
 * PROGRAM_W_NONE: there are too many. */
enum program_weight program_weight_add(const struct program_weight_info *info);
static inline bool program_weight_is_own(enum program_weight w)
{
    return w >= PROGRAM_WEIGHTS;
}
bool program_weight_is_there(enum program_weight w); /* is it one at all? */
const struct program_weight_info *program_weight_info(enum program_weight w);
/* Is it a matrix of a router, which no option quantizes? */
static inline bool program_weight_is_router(enum program_weight w)
{
    return w == PROGRAM_W_ROUTER || w == PROGRAM_W_STREAM_ROUTER;
}
/* Does the family's table have a tensor of it, for this config and layer? */
bool program_weight_there(enum program_weight w, const struct arch *a, const struct model_config *c,
                          uint32_t layer);

struct weights;
/* Of loaded weights (layer and expert: where the scope has them); NULL: it is not there. */
const struct packed *program_matrix(const struct weights *g, enum program_weight w, uint32_t layer,
                                    uint32_t expert);
/* Of experts: of the first. */
const float *program_vector(const struct weights *g, enum program_weight w, uint32_t layer);
const float *program_expert_vector(const struct weights *g, enum program_weight w, uint32_t layer,
                                   uint32_t expert);
struct program_table { /* rows that are looked up */
    const void *rows;  /* NULL: it is not there */
    enum dtype dtype;
    bool is_packed;
    uint32_t n_row; /* 0: as many as the vocabulary, or as there are positions */
};
struct program_table program_table(const struct weights *g, enum program_weight w, uint32_t layer);

#endif
