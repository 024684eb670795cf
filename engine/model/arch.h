/* SPDX-License-Identifier: Apache-2.0 */
/* arch - a model family as data: which tensors a checkpoint has, what each is for, its shape and
 * when it must be there, and how a layer is made of operations. Adding a family is a file in
 * families/ and a line in common/hub/archs.def. Threads: constants and pure functions. */
#ifndef QUIRE_ENGINE_MODEL_ARCH_H
#define QUIRE_ENGINE_MODEL_ARCH_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/model/arch_dim.h"
#include "engine/model/arch_head.h"
#include "engine/model/arch_layer.h"
#include "engine/model/arch_when.h"

/* what a tensor is for */
enum arch_slot {
    W_EMBED,
    W_EMBED_NORM, /* of the embedding's rows: BLOOM */
    W_EMBED_NORM_BIAS,
    W_LM_HEAD,
    W_FINAL_NORM,
    W_FINAL_NORM_BIAS,
    W_LM_HEAD_BIAS,
    W_POSITIONS,    /* learned: rows from arch_layer.first_position on, one for each position */
    W_EMBED_LAYERS, /* rows of the inputs that layers have of a token: of all layers, one behind the
                          other; what is made of the embedding for them, and its norm */
    W_LAYER_INPUTS,
    W_LAYER_INPUTS_NORM,
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
    W_CONV,     /* its convolution */
    W_MIX_IN_BIAS,
    W_MIX_OUT_BIAS,
    W_CONV_BIAS,
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
    W_GATE_UP,         /* W_GATE and W_UP as one tensor: gate, then up */
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

/* how tensor parallel ranks share it */
enum arch_shard {
    SHARD_NONE, /* every rank has all of it */
    SHARD_ROWS,
    SHARD_COLS
};

/* The name of a norm's weight that no checkpoint has: it is 1. */
#define ARCH_ONES NULL

struct arch_tensor {
    /* The first "%u" stands for the layer's number, a second for the expert's or the head's; or
     * ARCH_ONES. Without a second one an expert's tensor holds all experts of the layer: its first
     * dimension is D_EXPERTS, and dims are those of one. */
    const char *name;
    enum arch_slot slot;
    enum arch_dim dims[3]; /* rows, cols, or rows alone; D_TRANSPOSED behind them */
    enum arch_shard shard;
    enum arch_when when;
};

static inline bool arch_is_transposed(const struct arch_tensor *t)
{
    return t->dims[2] == D_TRANSPOSED;
}

bool arch_is_stacked(const struct arch_tensor *t); /* does it hold all experts of a layer? */

struct quire_tensor;
struct plugin_arch;
struct arch_own { /* a tensor of a plugin; its sizes: model_config.own of the same number */
    const struct quire_tensor *tensor;
    struct arch_tensor spec; /* its name; no slot and no dims */
    bool of_layer;           /* once a layer */
    uint32_t weight;         /* enum program_weight */
};

struct arch {
    const char *name;
    const char *prefix; /* of names, which a checkpoint of the model without a head has not; NULL */
    const struct arch_tensor *tensors; /* [n_tensor] */
    size_t n_tensor;
    struct arch_layer layer;
    struct arch_head head[ARCH_HEAD_LAYERS]; /* without a name: one product, "score" */
    bool experts_in_rows; /* those of a tensor, one after the other, in two dimensions */
    const struct plugin_arch *plugin; /* NULL: built in, and then there is nothing below */
    const struct arch_own *own;       /* [n_own] */
    uint32_t n_own;
    bool takes_items; /* rows of its input may be others than the embedding's (modality.h) */
};

/* A plugin's before one that is built in; the second: of these alone. Errors: Q_UNSUPPORTED (names
 * the families there are). */
FALLIBLE arch_find(const struct arch **out, const char *name, struct q_err *e);
FALLIBLE arch_find_own(const struct arch **out, const char *name, struct q_err *e);
/* Does the model need the slot? One that gives vectors has no head. */
bool arch_is_read(const struct model_config *c, enum arch_slot slot);

struct arch_place {         /* where a tensor belongs; what does not apply is not looked at */
    uint32_t layer, expert; /* expert: or the head */
};
#define ARCH_NAME_MAX 128u /* bytes of a tensor's name with the numbers put in */
/* Does the family's table have it, for this config and layer? */
bool arch_has(const struct arch *a, const struct model_config *c, enum arch_slot slot,
              uint32_t layer);
/* How many positions its learned table has; UINT32_MAX: there is no table. */
uint32_t arch_positions_max(const struct arch *a, const struct model_config *c);
/* Errors: none; a pattern without "%u" is copied. */
void arch_tensor_name(char out[ARCH_NAME_MAX], const char *pattern, struct arch_place at);

#define ARCH(architecture, family) extern const struct arch arch_##family;
#include "common/hub/archs.def"

#endif
