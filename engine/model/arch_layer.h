/* SPDX-License-Identifier: Apache-2.0 */
/* arch_layer - how a family's layers are made of operations, as data. Only program_compile reads
 * it, together with the config. A config's own choices (sizes, windows, soft caps, multipliers)
 * are in struct forward_config; the fields here say which of them the family uses.
 *
 * f is attention or the MLP, x the residual stream. Llama has 0 in every field.
 * Threads: constants and pure functions. */
#ifndef QUIRE_ENGINE_MODEL_ARCH_LAYER_H
#define QUIRE_ENGINE_MODEL_ARCH_LAYER_H
#include <stdbool.h>
#include "common/hub/config.h"

enum arch_norm {
    ARCH_NORM_RMS,   /* arXiv:1910.07467 */
    ARCH_NORM_LAYER, /* arXiv:1607.06450; its bias is a tensor of the table */
    ARCH_NORM_CONFIG /* as config.json says: one of these */
};

enum arch_norm_place {
    ARCH_NORMS_BEFORE, /* x += f(norm(x)) */
    ARCH_NORMS_AFTER,  /* x += norm(f(x)): OLMo 2 */
    ARCH_NORMS_BOTH,   /* x += norm(f(norm(x))): Gemma 2 */
    ARCH_NORMS_SUM,    /* x = norm(x + f(x)): the first transformers */
    ARCH_NORMS_STREAM, /* x = norm(x), x = kept x + f(x), kept by the config: MiniMax-Text-01 */
    ARCH_NORMS_MIXER,  /* AFTER in layers with attention, BEFORE in the others: Olmo Hybrid */
    ARCH_NORMS_CONFIG  /* as config.json says: BEFORE, BOTH or SUM */
};

enum arch_residual {
    ARCH_RESIDUAL_SEQUENTIAL,  /* x += attention(x), then x += mlp(x) */
    ARCH_RESIDUAL_PARALLEL,    /* x += attention(norm(x)) + mlp(norm'(x)): GPT-NeoX */
    ARCH_RESIDUAL_SHARED_NORM, /* the same with one norm for both: Falcon, Phi-2, Command R */
    ARCH_RESIDUAL_CONFIG       /* as config.json says: one of these */
};

enum arch_positions {
    ARCH_ROPE_HALF,        /* pairs (j, j + n_rot / 2) */
    ARCH_ROPE_INTERLEAVED, /* pairs (2j, 2j + 1): GPT-J, Command R */
    ARCH_ALIBI,            /* arXiv:2108.12409: a slope a head, no rotation */
    ARCH_LEARNED,          /* a table of positions that is added to the embedding: W_POSITIONS */
    ARCH_NO_POSITIONS,
    ARCH_ROPE_OR_ALIBI /* as config.json says: ROPE_HALF or ALIBI */
};

enum arch_qk_norm {
    ARCH_QK_NORM_NONE,
    ARCH_QK_NORM_HEADS, /* each head of q and of k through a norm */
    ARCH_QK_NORM_WHOLE, /* q and k, each as one vector of all its heads */
    ARCH_QK_NORM_APART  /* each head, by weights of its own, where the config has them: Command R */
};

/* whether the config's factor of q that grows with the position counts */
enum arch_query_growth {
    ARCH_QUERY_GROWTH_NONE,
    ARCH_QUERY_GROWTH_ALL,    /* in all layers: Ministral 3 */
    ARCH_QUERY_GROWTH_NO_ROPE /* in those without rope: Llama 4 */
};

enum arch_attention {
    ARCH_ATTENTION_HEADS, /* q, k and v of heads; k and v of as many or of fewer */
    ARCH_ATTENTION_LATENT /* multi-head latent attention, arXiv:2405.04434 */
};

enum arch_mlp {
    ARCH_MLP_GATED, /* down(act(gate x) * up x) */
    ARCH_MLP_PLAIN  /* down(act(up x)) */
};

enum arch_embedding {
    ARCH_EMBEDDING_PLAIN,
    ARCH_EMBEDDING_ROOT_HIDDEN, /* times sqrt(hidden_size), rounded to bf16: Gemma */
    ARCH_EMBEDDING_CONFIG       /* times the config's embedding_multiplier */
};

/* Weights of the n_used best experts. SOFTMAX: of all, of which the best; the config says whether
 * these are made to add up to 1. TOP_SOFTMAX: the best, then softmax of these (gpt-oss): the same
 * as SOFTMAX made to add up to 1. Both: W_ROUTER_BIAS is that of the router's product. SIGMOID,
 * SOFTMAX_BIASED: chosen with a bias that does not weigh, W_ROUTER_BIAS (DeepSeek-V3, ERNIE 4.5).
 * MIXER: of the experts whose scores are near (Phi-3.5-MoE), arXiv:2409.12136. */
enum arch_route {
    ARCH_ROUTE_SOFTMAX,
    ARCH_ROUTE_TOP_SOFTMAX,
    ARCH_ROUTE_SIGMOID,
    ARCH_ROUTE_SOFTMAX_BIASED,
    ARCH_ROUTE_MIXER,
    ARCH_ROUTE_CONFIG /* as config.json says: TOP_SOFTMAX, or SIGMOID without a bias */
};

/* how much a row takes of the expert that all rows use */
enum arch_share {
    ARCH_SHARE_GATED, /* sigmoid of an output of the router's own: W_SHARED_GATE */
    ARCH_SHARE_WHOLE
};

/* Sources: silu and gelu arXiv:1606.08415, relu2 arXiv:2109.08668, xIELU arXiv:2411.13010. */
enum arch_activation {
    ARCH_SILU,
    ARCH_GELU,       /* by erf */
    ARCH_GELU_TANH,  /* its approximation by tanh */
    ARCH_GELU_QUICK, /* x * sigmoid(1.702 x) */
    ARCH_RELU,
    ARCH_RELU2, /* relu(x)^2 */
    ARCH_XIELU, /* with two numbers of the layer's: W_ACT_POSITIVE, W_ACT_NEGATIVE */
    ARCH_ACTIVATIONS
};
#define ARCH_ACTS_GELU (1u << ARCH_GELU | 1u << ARCH_GELU_TANH | 1u << ARCH_GELU_QUICK)

struct arch_layer {
    enum arch_norm norm;
    bool norm_plus_one; /* norms are stored as their weight less 1: Gemma. The loader adds it */
    enum arch_norm_place norms;
    enum arch_residual residual;
    enum arch_attention attention;
    enum arch_positions positions;
    uint32_t first_position;   /* learned: the table's row of position 0; OPT has 2 */
    bool alibi_scaled;         /* slopes are multiplied by the scale of scores: Falcon */
    enum arch_qk_norm qk_norm; /* where the table has its tensors */
    bool qk_norm_behind_rope;  /* q and k are rotated, then normed: Hunyuan */
    enum arch_mlp mlp;
    uint32_t activations; /* set of 1 << ARCH_…: which hidden_act it may have; 0: silu */
    bool limited_glu; /* down(act(min(gate x, limit)) * (up x limited to ±limit, + 1)), with the
                             config's glu_limit: gpt-oss */
    enum arch_embedding embedding;
    enum arch_route route;
    enum arch_share share;
    bool mlp_beside; /* layers with experts have an MLP too, and their sum, each through a norm, is
                           the branch: Gemma 4 */
    bool weighs_input;  /* experts' weights are those of their input: Llama 4 */
    bool windows;       /* config's sliding windows count */
    bool no_rope;       /* config's layers without rope count */
    bool local_rope;    /* layers with a window have the config's local rope */
    bool clips;         /* config's limit of q, k and v counts, behind norms of q and k */
    bool sinks;         /* each head has a sink: W_SINKS */
    bool window_sinks;  /* in layers with a window only */
    bool gated;         /* attention's output is multiplied by sigmoid of a gate: W_Q_GATE */
    bool bidirectional; /* a row attends to all rows of its sequence */
    bool bare_first;    /* attention of the first layer has no norm: it reads what the embedding's
                           norm has made */
    enum arch_query_growth query_growth;
    bool soft_caps; /* config's soft caps of scores and of logits count */
    bool scales;    /* config's query scalar and its multipliers of attention, residual and
                           logits count */
};

static inline enum arch_norm arch_norm_of(const struct arch_layer *l, const struct model_config *c)
{
    return l->norm != ARCH_NORM_CONFIG ? l->norm
           : c->forward.rms_norm       ? ARCH_NORM_RMS
                                       : ARCH_NORM_LAYER;
}

/* Are gate and up of MLPs apart up to their activation, because a limit, a multiplier or sparsity
 * is between them and the product? */
static inline bool arch_gate_is_apart(const struct arch_layer *l, const struct model_config *c)
{
    return l->limited_glu || c->forward.mlp_gate != 0 || model_config_is_sparse(c);
}

static inline bool arch_rotates(const struct arch_layer *l)
{
    return l->positions == ARCH_ROPE_HALF || l->positions == ARCH_ROPE_INTERLEAVED ||
           l->positions == ARCH_ROPE_OR_ALIBI;
}

/* "gelu_pytorch_tanh" -> ARCH_GELU_TANH; false: none of ours. */
bool arch_activation_parse(enum arch_activation *out, const char *hidden_act);
const char *arch_activation_name(enum arch_activation a); /* "gelu tanh" */
/* The hidden_act that a family's layers may have: "gelu, gelu_new, …". */
void arch_activation_names(const struct arch_layer *l, char *out, size_t n);

#endif
