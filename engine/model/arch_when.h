/* SPDX-License-Identifier: Apache-2.0 */
/* arch_when - in which models and layers a family's tensor must be there. Threads: constants and
 * pure functions. */
#ifndef QUIRE_ENGINE_MODEL_ARCH_WHEN_H
#define QUIRE_ENGINE_MODEL_ARCH_WHEN_H
#include "common/hub/config.h"

enum arch_when {
    WHEN_ALWAYS,
    WHEN_UNTIED,
    WHEN_ATTENTION_BIAS,
    WHEN_OUT_BIAS,
    WHEN_MLP_BIAS,
    WHEN_QK_NORM,
    WHEN_QK_NORM_ROPE, /* the same, in layers with rope */
    WHEN_HEAD_BIAS,
    WHEN_SEQUENTIAL, /* branches one after the other */
    WHEN_TWO_NORMS,  /* branches side by side, each with a norm of its own */
    WHEN_NOT_TWO_NORMS,
    WHEN_ATTENTION, /* in layers with attention */
    WHEN_MIXER,     /* in those with something in its place, or beside it */
    WHEN_WINDOW,    /* in layers with a window */
    WHEN_LIGHTNING, /* in those with lightning attention in its place */
    WHEN_CONV_BIAS, /* the same as WHEN_MIXER, with a bias of the convolution */
    WHEN_MIX_BIAS,  /* with biases of the products around it */
    WHEN_MIX_NORM,  /* with a norm of its output */
    WHEN_BRANCH,    /* in layers with attention or something in its place */
    WHEN_MLP,       /* in layers with an MLP or experts */
    WHEN_MLP_ALONE, /* in those with an MLP */
    WHEN_DENSE,     /* in layers without experts */
    WHEN_EXPERTS,   /* in those with */
    WHEN_STORED,    /* of an expert, if the files have it: it is read then in place of those of
                       WHEN_EXPERTS, which are as many numbers. arch_wants: never */
    WHEN_MLP_ALONE_BIAS,
    WHEN_DENSE_BIAS,
    WHEN_SHARED, /* in layers with experts, where all rows use one of them */
    WHEN_SHARED_BIAS,
    WHEN_LATENT, /* in layers with experts, where these read and write columns of their own */
    WHEN_LATENT_BIAS,
    WHEN_Q_RANK,      /* q has a latent */
    WHEN_Q_WHOLE,     /* q has none */
    WHEN_OWN_KV,      /* in layers that do not read the K and V of another one */
    WHEN_OWN_V,       /* the same, where V is a product of its own */
    WHEN_V_IS_K,      /* the same, where it is K's */
    WHEN_OWN_KV_BIAS, /* these three, with biases */
    WHEN_OWN_V_BIAS,
    WHEN_V_IS_K_BIAS,
    WHEN_LAYER_INPUT, /* where layers have inputs of the token */
    WHEN_STREAMS_2,   /* with at least two residual streams, */
    WHEN_STREAMS_3,   /* with three, */
    WHEN_STREAMS_4,   /* with four */
    WHEN_SCALED,      /* where the first of several streams is scaled by columns */
    WHEN_BEHIND,      /* in all layers but the first */
    WHEN_POST_NORMS,  /* norms behind the branches */
    WHEN_NORMS_BEFORE,
    WHEN_NORMS_SUM,  /* of the sums: in their place */
    WHEN_FINAL_NORM, /* behind the last layer */
    WHEN_PROJECTED,  /* the embedding has other columns than the stream */
    WHEN_NEVER       /* may be there, is not read */
};

/* layer: not looked at for what is the model's and no layer's. */
bool arch_wants(const struct model_config *c, enum arch_when when, uint32_t layer);

#endif
