/* SPDX-License-Identifier: Apache-2.0 */
/* arch_head - the layers of a family's classifier, which are behind the pooling and no part of the
 * layer program: pooler.h computes them. Threads: constants. */
#ifndef QUIRE_ENGINE_MODEL_ARCH_HEAD_H
#define QUIRE_ENGINE_MODEL_ARCH_HEAD_H
#include "common/hub/pooling.h"

enum arch_head_bias { ARCH_HEAD_NO_BIAS, ARCH_HEAD_BIAS, ARCH_HEAD_MAY_BIAS };
struct arch_head {    /* a layer of a classifier behind the pooling: norm(act(W x + b)) */
    const char *name; /* of the tensors, without ".weight" and ".bias"; NULL: there is none */
    enum pooling_act act;
    enum arch_head_bias bias;
    const char *norm; /* LayerNorm without a bias; NULL: none */
};
#define ARCH_HEAD_LAYERS 2u

struct arch;
/* The layers of its classifier, [ARCH_HEAD_LAYERS] up to one without a name. */
const struct arch_head *arch_heads(const struct arch *a);

#endif
