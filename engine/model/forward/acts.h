/* SPDX-License-Identifier: Apache-2.0 */
/* acts - the activations of a layer program by the names of the kernels. Threads: pure
 * functions. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_ACTS_H
#define QUIRE_ENGINE_MODEL_FORWARD_ACTS_H
#include "engine/model/arch_layer.h"
#include "kernels/ops/ops_elementwise.h"

static inline enum kern_act act_of(enum arch_activation a)
{
    static const enum kern_act acts[ARCH_ACTIVATIONS] = {
        [ARCH_SILU] = KERN_SILU,           [ARCH_GELU] = KERN_GELU,
        [ARCH_GELU_TANH] = KERN_GELU_TANH, [ARCH_GELU_QUICK] = KERN_GELU_QUICK,
        [ARCH_RELU] = KERN_RELU,           [ARCH_RELU2] = KERN_RELU2,
        [ARCH_XIELU] = KERN_XIELU,
    };
    return acts[a];
}

#endif
