/* SPDX-License-Identifier: Apache-2.0 */
/* config - config.json and generation_config.json of a model folder, in their older and newer
 * spellings (torch_dtype/dtype, rope_theta + rope_scaling / rope_parameters, "type"/"rope_type",
 * sliding_window + layer_types). Every number is checked against a range that allocation sizes can
 * be derived from without overflow. Threads: reentrant; a loaded config is read-only. */
#ifndef QUIRE_COMMON_HUB_CONFIG_H
#define QUIRE_COMMON_HUB_CONFIG_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/dtype.h"
#include "common/err.h"
#include "common/hub/config_kinds.h"
#include "common/hub/config_mixer.h"
#include "common/hub/config_moe.h"
#include "common/hub/config_quant.h"
#include "common/hub/config_streams.h"
#include "common/hub/pooling_kind.h"

#define CONFIG_EOS_MAX  16u
#define CONFIG_NAME_MAX 64u
#define CONFIG_HEAD_MAX 4096u /* head_dim */

#define CONFIG_OWN_MAX 1024u /* tensors of a plugin */

#define CONFIG_ROPE_FACTORS_MAX 512u /* pairs of a head that longrope has factors for */

enum rope_kind {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_LONG,        /* "longrope" */
    ROPE_PROPORTIONAL /* the first pairs of a head, by frequencies of all of them */
};

struct rope_config {
    enum rope_kind kind;
    double theta;
    bool in_max_position; /* max_position counts the factor already */
    double factor;
    double original_max_position; /* tokens; 0 = not given (max_position_embeddings counts) */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double beta_fast, beta_slow;              /* yarn */
    double attention_factor;                  /* yarn, longrope; 0 = not given */
    double mscale, mscale_all_dim;            /* yarn; 0 = not given */
    bool truncate;                            /* yarn: round the correction range (default true) */
    bool backward;                            /* pairs are rotated by the negative angle */
    double proportion;                        /* proportional: of the pairs that are rotated */
    /* longrope, of each pair: up to the original length, and beyond it */
    float short_factor[CONFIG_ROPE_FACTORS_MAX], long_factor[CONFIG_ROPE_FACTORS_MAX];
};

/* Multi-head latent attention, arXiv:2405.04434. head_dim is nope + rope, elements of a head of q
 * without and with rotation. */
struct latent_config {
    uint32_t rank;   /* columns of the latent of K and V; 0: attention has heads of K and V */
    uint32_t q_rank; /* columns of q's; 0: q is one product */
    uint32_t nope, rope;
    uint32_t value; /* elements of a head of V */
};

/* Parameters of computations that only some families have. 0: not in the config. */
struct forward_config {
    double attention_soft_cap, logit_soft_cap;
    double query_scalar;         /* scores are divided by its square root instead of head_dim's */
    double attention_multiplier; /* scores are multiplied by it instead */
    double embedding_multiplier, residual_multiplier, logit_multiplier;
    /* of the outputs of attention, of the layer's mixer and of its MLP, and of the MLP's gate */
    double attention_out, mixer_out, mlp_out, mlp_gate;
    /* of the stream that these outputs are added to; of V */
    double attention_kept, mixer_kept, mlp_kept, value;
    /* q of a position is multiplied by 1 + query_growth ln(1 + floor((position + query_first) /
     * query_length)); source: arXiv:2501.19399 */
    double query_growth, query_length;
    uint32_t query_first;
    double clip;      /* q, k and v are limited to -clip … clip */
    double glu_limit; /* gate and up are limited to it */
    double
        rotary_fraction; /* part of a head's elements that is rotated, from the first on: 0 … 1 */
    bool parallel_residual;
    bool shared_norm; /* and one norm of both branches */
    bool rms_norm;    /* where the family leaves the kind of norms to the config */
    bool qk_norm;     /* q and k of each head have a norm */
    bool alibi;       /* positions are slopes of the scores, arXiv:2108.12409 */
    bool chunks;      /* windows are chunks of positions: a token sees those of its own */
    bool half_rope;   /* latent attention: pairs are those of the halves, not neighbours */
    bool post_norms;  /* branches have a norm of their output */
    bool sum_norms;   /* norms are behind the branches, of the sums */
    bool bare_end;    /* the stream has no norm behind the last layer */
    bool unit_head;   /* rows of the logits' matrix are divided by their length */
};

struct model_config {
    char architecture[CONFIG_NAME_MAX]; /* "LlamaForCausalLM" */
    char model_type[CONFIG_NAME_MAX];
    char outer[CONFIG_NAME_MAX]; /* architecture that it is the text model of (nested.h); "" */
    uint32_t vocab_size, hidden_size, intermediate_size, n_layer, n_head, n_kv_head, head_dim;
    uint32_t embed_size;   /* columns of the embedding and of what the logits' matrix reads, where a
                              product is between these and the stream; 0: hidden_size */
    uint32_t max_position; /* max_position_embeddings, tokens */
    uint32_t n_type;       /* rows of the table of token types; 0: there is none */
    bool takes_items; /* set by the owner: rows of its input may be others than the embedding's */
    bool pools;       /* set by the owner: the model gives vectors and no logits (pooling.h) */
    enum pooling_kind pooling; /* likewise: of which rows */
    double rms_norm_eps;       /* layer_norm_eps too */
    char hidden_act[CONFIG_NAME_MAX];
    bool tie_word_embeddings, attention_bias, attention_out_bias, mlp_bias;
    bool head_bias; /* of the logits, where the config says so */
    uint32_t
        window[CONFIG_LAYERS_MAX];   /* sliding window of each layer, tokens; 0 = full attention */
    bool no_rope[CONFIG_LAYERS_MAX]; /* q and k of the layer are not rotated */
    struct rope_config rope;
    struct rope_config local_rope; /* of layers with a window; factor lists are not in it */
    struct moe_config moe;
    struct latent_config latent;
    struct mixer_config mixer;
    struct layers_config layers;
    struct streams_config streams;
    struct quant_config quant;
    struct forward_config forward;
    enum dtype dtype;                 /* of the checkpoint; F32, F16 or BF16; F32 when not said */
    uint32_t eos_ids[CONFIG_EOS_MAX]; /* of generation_config.json, else of config.json */
    uint32_t n_eos;
    uint32_t bos_id; /* UINT32_MAX = none */
    struct config_own {
        uint32_t rows, cols; /* cols 0: a vector */
    } own[CONFIG_OWN_MAX];   /* of a plugin's tensors, in the plugin's order */
};

struct generation_defaults { /* generation_config.json; has_x false = not given */
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_repetition_penalty,
        has_max_new_tokens;
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k, max_new_tokens;
};

/* Number of rotated elements of a head, from the first on. */
static inline uint32_t model_config_n_rot(const struct model_config *c)
{
    const double fraction = c->forward.rotary_fraction;
    if (c->latent.rank)
        return c->latent.rope;
    return fraction != 0 ? (uint32_t)(c->head_dim * fraction) : c->head_dim;
}

/* Has the layer attention? */
static inline bool model_config_has_kv(const struct model_config *c, uint32_t layer)
{
    return c->mixer.layers[layer] == MIXER_ATTENTION || c->mixer.beside;
}

/* Has it a mixer in place of attention, or beside it? */
static inline bool model_config_has_mixer(const struct model_config *c, uint32_t layer)
{
    return c->mixer.layers[layer] != MIXER_ATTENTION && c->mixer.layers[layer] != MIXER_NONE;
}

/* Load dir/config.json, or a params.json alone (params.h), and, where there is one,
 * dir/generation_config.json (its eos_token_id list replaces config's, as in transformers). Errors:
 * Q_NOT_FOUND, Q_CORRUPT (file, key, found, expected), Q_UNSUPPORTED (names the feature; the
 * architecture is checked first, because the keys of the sizes differ among families). */
FALLIBLE model_config_load(struct model_config *c, struct generation_defaults *g, const char *dir,
                           struct q_err *e);

/* For a process that never opens the model: of an architecture that is not served here (a plugin
 * of the engine's may serve it) names, vocab_size, max_position and the ids alone, the largest
 * there may be where the file does not say them. Errors: as above, without the architecture. */
FALLIBLE model_config_load_any(struct model_config *c, struct generation_defaults *g,
                               const char *dir, struct q_err *e);

/* The same from memory; `path` is for messages. The second fills *g and replaces c's eos ids
 * where the text has some. Errors: as model_config_load, without Q_NOT_FOUND. */
FALLIBLE model_config_parse(struct model_config *c, const char *text, size_t n, const char *path,
                            struct q_err *e);
FALLIBLE generation_defaults_parse(struct model_config *c, struct generation_defaults *g,
                                   const char *text, size_t n, const char *path, struct q_err *e);
/* Parse --override-generation-config; empty for "". Errors: Q_INVALID. */
FALLIBLE generation_defaults_option(struct generation_defaults *g, const char *text,
                                    struct q_err *e);
/* Override fields of g by those of `over`. */
void generation_defaults_merge(struct generation_defaults *g,
                               const struct generation_defaults *over);

#endif
