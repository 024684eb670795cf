/* SPDX-License-Identifier: Apache-2.0 */
/* arch_dim - the sizes of a family's tensors by name (arch.h). Threads: constants and pure
 * functions. */
#ifndef QUIRE_ENGINE_MODEL_ARCH_DIM_H
#define QUIRE_ENGINE_MODEL_ARCH_DIM_H
#include "common/hub/config.h"

/* a size that depends on the config */
enum arch_dim {
    D_NONE, /* this dimension is not there (vectors have rows only) */
    D_VOCAB,
    D_HIDDEN,
    D_EMBED, /* columns of the embedding */
    D_INTER,
    D_Q,        /* heads * head_dim */
    D_KV,       /* KV heads * head_dim */
    D_QKV,      /* D_Q + 2 D_KV */
    D_Q_STORED, /* heads and KV heads times elements of a head of V, as the files have them */
    D_KV_STORED,
    D_HEADS, /* heads */
    D_KV_HEADS,
    D_2_INTER, /* gate and up */
    D_POSITIONS,
    D_POSITIONS_2, /* with two rows in front, as OPT and BART */
    D_HEAD,
    D_EXPERTS,
    D_EXPERT_INTER,
    D_EXPERT_HIDDEN,  /* columns that an expert reads and writes */
    D_2_EXPERT_INTER, /* gate and up of an expert */
    D_SHARED_INTER,
    D_2_SHARED_INTER, /* its gate and up */
    D_ONE,
    D_Q_RANK,
    D_KV_RANK,
    D_KV_A,    /* kv_lora_rank + qk_rope_head_dim */
    D_KV_B,    /* heads * (qk_nope_head_dim + v_head_dim) */
    D_HEADS_V, /* heads * v_head_dim */
    D_TYPES,
    D_MIX_IN,  /* columns of a mixer's first product */
    D_MIX_OUT, /* inputs of its last one */
    D_MIX_QKVZ,
    D_MIX_QKV,  /* of lightning attention: three times D_MIX_OUT */
    D_MIX_KEYS, /* columns of the keys of a mixer, and of its queries */
    D_MIX_BA,
    D_VALUE_HEADS,
    D_VALUE_DIM,
    D_STATE,      /* elements of a state of Mamba */
    D_STEP_RANK,  /* columns that its steps are made of */
    D_MIX_X,      /* these, B and C */
    D_2_Q,        /* q and its gate */
    D_CONV,       /* columns of its convolution */
    D_CONV_WIDTH, /* rows that it sums */
    D_INPUT_VOCAB,
    D_LAYER_INPUT,  /* columns of a layer's input of the token */
    D_LAYER_INPUTS, /* those of all layers */
    D_STREAMS,      /* residual streams */
    D_STREAMS_2,    /* their square */
    D_LOW_RANK,     /* columns between the products of the low-rank branch */
    D_TRANSPOSED,   /* no size: the tensor is stored as [cols, rows], as Conv1D of GPT-2 is */
    D_COUNT
};

/* The size in this config and layer; 0: the config has none. */
uint32_t arch_dim_at(const struct model_config *c, enum arch_dim dim, uint32_t layer);
/* Of what is the same in all layers, or the most usual one. */
static inline uint32_t arch_dim_size(const struct model_config *c, enum arch_dim dim)
{
    return arch_dim_at(c, dim, UINT32_MAX);
}
/* "hidden_size": where the number comes from, for messages. */
const char *arch_dim_text(enum arch_dim dim);

#endif
