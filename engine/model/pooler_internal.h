/* SPDX-License-Identifier: Apache-2.0 */
/* pooler_internal - the layers of a pooler, shared by its two files. Threads: as pooler.h. */
#ifndef QUIRE_ENGINE_MODEL_POOLER_INTERNAL_H
#define QUIRE_ENGINE_MODEL_POOLER_INTERNAL_H
#include "engine/model/pooler.h"

#define POOLER_LAYERS_MAX \
    (POOLING_DENSE_MAX > ARCH_HEAD_LAYERS ? POOLING_DENSE_MAX : ARCH_HEAD_LAYERS)

struct pooler_layer {
    uint32_t n_in, n_out;
    float *weight; /* [n_out, n_in] owned */
    float *bias;   /* [n_out] owned; NULL: none */
    float *norm;   /* [n_out] owned: LayerNorm without a bias behind the activation; NULL: none */
    enum pooling_act act;
};
struct pooler {
    struct pooler_layer layers[POOLER_LAYERS_MAX];
    uint32_t n_layer, n_in, n_out, width; /* width: of the widest vector */
    float eps;
    enum pooling_act act; /* of the vector */
};

#endif
