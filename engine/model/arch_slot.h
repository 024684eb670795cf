/* SPDX-License-Identifier: Apache-2.0 */
/* arch_slot - what each tensor of a family's table is for (arch.h). Threads: constants. */
#ifndef QUIRE_ENGINE_MODEL_ARCH_SLOT_H
#define QUIRE_ENGINE_MODEL_ARCH_SLOT_H

enum arch_slot {
    W_EMBED,
    W_EMBED_NORM, /* of the embedding's rows: BLOOM */
    W_EMBED_NORM_BIAS,
    W_LM_HEAD,
    W_FINAL_NORM,
    W_FINAL_NORM_BIAS,
    W_LM_HEAD_BIAS,
    W_PROJECT_IN, /* the embedding's columns to the stream's; and back, before the logits */
    W_PROJECT_OUT,
    W_POSITIONS,    /* learned: rows from arch_layer.first_position on, one for each position */
    W_EMBED_LAYERS, /* rows of the inputs that layers have of a token: of all layers, one behind the
                          other; what is made of the embedding for them, and its norm */
    W_LAYER_INPUTS,
    W_LAYER_INPUTS_NORM,
    W_STREAM_IN_1, /* of the embedding to each further residual stream; at the end back from it */
    W_STREAM_IN_2,
    W_STREAM_IN_3,
    W_STREAM_OUT_1,
    W_STREAM_OUT_2,
    W_STREAM_OUT_3,
    W_TYPES,     /* rows for types of tokens: BERT has one for each text of a pair */
    W_ATTN_NORM, /* from here on once a layer */
    W_ATTN_NORM_BIAS,
    W_QKV,     /* W_Q, W_K and W_V as one tensor: q, then k, then v */
    W_Q_GATED, /* for each head its q, then the gate of its output */
    W_Q_GATE,
    W_QKV_HEADS,   /* the same by KV heads: the q heads of one, its k, its v; the next */
    W_QVK_FOURTHS, /* of each fourth of the heads q, then v, then k: CodeGen */
    W_Q,           /* latent attention: q, or q's latent */
    W_K,
    W_V,
    W_O,
    W_QKV_BIAS,
    W_QKV_HEADS_BIAS,
    W_Q_BIAS,
    W_K_BIAS,
    W_V_BIAS,
    W_O_BIAS,
    W_Q_NORM, /* latent attention: of q's latent */
    W_K_NORM, /* latent attention: of the latent of K and V */
    W_V_NORM,
    W_KV_A,     /* latent attention: x to the latent of K and V, then the rotated part of the key */
    W_Q_B,      /* latent attention: q's latent to q */
    W_KV_B,     /* latent attention: for each head K's up-projection, then V's */
    W_SINKS,    /* one of each head */
    W_MIX_IN,   /* of a layer's mixer in place of attention (config.h): its first product */
    W_MIX_OUT,  /* its last one */
    W_MIX_QKVZ, /* a delta net's as one tensor: for each head of keys its q, k, v and z */
    W_MIX_BA,   /* likewise: b, a */
    W_MIX_QKV,  /* all of q, then all of k, then all of v */
    W_MIX_QKV_HEADS, /* for each head its q, k and v */
    W_MIX_Q,
    W_MIX_K,
    W_MIX_V,
    W_MIX_Z, /* the gate of its output */
    W_MIX_B, /* how much of a value is written; how fast a state fades */
    W_MIX_A,
    W_MIX_RATE, /* one of each head of values (of Mamba, of each element of its state): A_log */
    W_MIX_RATE_BIAS,
    W_MIX_SKIP,  /* one of each head: how much of its input is in its output */
    W_MIX_X,     /* of Mamba: the convolution's output to what steps are made of, B and C */
    W_MIX_STEP,  /* of what steps are made of to steps */
    W_STEP_NORM, /* norms of what steps are made of, of B and of C */
    W_B_NORM,
    W_C_NORM,
    W_MIX_NORM, /* of each head of its output, or of each group of heads by weights of its own */
    W_CONV,     /* its convolution; of q, k and v as tensors of their own */
    W_CONV_Q,
    W_CONV_K,
    W_CONV_V,
    W_MIX_IN_BIAS,
    W_MIX_OUT_BIAS,
    W_CONV_BIAS,
    W_O_SCALE, /* by these numbers the loader multiplies outputs of W_O and W_DOWN: LayerScale, */
    W_DOWN_SCALE,     /* arXiv:2103.17239 */
    W_ATTN_POST_NORM, /* of attention's output */
    W_ATTN_POST_NORM_BIAS,
    W_MLP_NORM,
    W_MLP_NORM_BIAS,
    W_MLP_POST_NORM,
    W_MLP_POST_NORM_BIAS,
    W_LAYER_GATE, /* of a layer's input of the token, out of x; behind it, back to x */
    W_LAYER_OUT,
    W_LAYER_POST_NORM, /* of what is added to x */
    W_LAYER_SCALE,     /* one number: x is multiplied by it behind the layer */
    W_STREAM_NORM,     /* of several residual streams: of the first one, for the scores that */
    W_STREAM_ROUTER,   /* this makes; by these streams are predicted in front of the layer's */
    W_STREAM_PREDICT,  /* branches, [n * n, n], and corrected behind them, [n, n] */
    W_STREAM_CORRECT,
    W_STREAM_SCALE, /* the first one's columns for the layer's input of the token */
    W_LOW_RANK_IN,  /* of the branch beside attention: its products, and its output's norm */
    W_LOW_RANK_OUT,
    W_LOW_RANK_NORM,
    W_GATE_UP, /* W_GATE and W_UP as one tensor: gate, then up */
    W_GATE,
    W_UP,
    W_DOWN,
    W_GATE_BIAS,
    W_UP_BIAS,
    W_DOWN_BIAS,
    W_ACT_POSITIVE,  /* xIELU: of numbers above 0, as the softplus of which it counts */
    W_ACT_NEGATIVE,  /* of the others: what its softplus is more than KERN_XIELU_BETA */
    W_MLP_SIDE_NORM, /* where experts are beside an MLP: of the MLP's output, */
    W_EXPERTS_NORM,  /* of the experts' input and output, */
    W_EXPERTS_POST_NORM,
    W_ROUTER_NORM,   /* and of the router's input */
    W_EXPERT_SCALES, /* one of each expert: its weights are multiplied by it */
    W_ROUTER_BIAS,
    W_ROUTER,      /* a layer's experts are chosen by it */
    W_SHARED_GATE, /* how much a row takes of the expert that all rows use, which is
                      W_GATE … W_DOWN of a layer with a router */
    W_EXPERTS_IN,  /* where experts read and write columns of their own: x to these, and back */
    W_EXPERTS_OUT,
    W_EXPERTS_IN_BIAS,
    W_EXPERTS_OUT_BIAS,
    W_EXPERT_GATE_UP, /* from here on once an expert of a layer; W_EXPERT_GATE and W_EXPERT_UP as
                         one tensor: gate, then up */
    W_EXPERT_GATE_UP_PAIRS, /* the same: a row of gate, one of up, the next of gate … */
    W_EXPERT_GATE,
    W_EXPERT_UP,
    W_EXPERT_DOWN,
    W_EXPERT_GATE_UP_PAIRS_BIAS,
    W_EXPERT_GATE_BIAS,
    W_EXPERT_UP_BIAS,
    W_EXPERT_DOWN_BIAS,
    W_IGNORE, /* left over in old checkpoints: known, not needed */
    W_COUNT
};
#define W_LAYER_FIRST  W_ATTN_NORM
#define W_EXPERT_FIRST W_EXPERT_GATE_UP

#endif
