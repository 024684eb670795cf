/* SPDX-License-Identifier: Apache-2.0 */
/* weights - a checkpoint's tensors, checked, packed for the kernels and laid out in one region.
 *
 *     model.layers.N.self_attn.{q,k,v}_proj.weight  -->  qkv      one matrix, q then k then v
 *     model.layers.N.mlp.{gate,up}_proj.weight      -->  gate_up  one matrix, interleaved (ops.h)
 *     model.layers.N.mlp.gate.weight                -->  router   floats, whatever the experts are;
 *                                                        behind it shared_expert_gate
 *     model.layers.N.mlp.experts.E.{gate,up}_proj   -->  gate_up of expert E, as above; its down
 *     norms, biases and sinks                       -->  f32 vectors
 *     embedding                                     -->  its rows are read out of the packed
 *                                                        lm_head when that is the same numbers,
 *                                                        else where the file is mapped
 *     learned positions                             -->  rows as they are stored
 *
 * What becomes of a checkpoint is a plan (load_plan.h), made first; its rows say where each of
 * these lies, and in which form. Internal to engine/model.
 * Threads: weights_load by one (it runs the team); loaded weights are only read. */
#ifndef QUIRE_ENGINE_MODEL_LOAD_WEIGHTS_H
#define QUIRE_ENGINE_MODEL_LOAD_WEIGHTS_H
#include "engine/model/load/load_plan.h"
#include "engine/model/region.h"

struct expert_weights {
    struct packed gate_up, down;
    const float *gate_up_bias, *down_bias; /* [n_out] or NULL = none */
};

struct layer_weights {
    const float *attn_norm, *mlp_norm;                                            /* [hidden] */
    const float *attn_norm_bias, *mlp_norm_bias, *attn_post_norm, *mlp_post_norm; /* or NULL */
    const float *attn_post_norm_bias, *mlp_post_norm_bias;                        /* or NULL */
    const float *q_norm, *k_norm;        /* [head_dim], of all heads, of latents; or NULL */
    const float *v_norm;                 /* [head_dim] or NULL */
    struct packed layer_gate, layer_out; /* of a layer's input of the token, or not there */
    const float *layer_post_norm;        /* [hidden] or NULL */
    const float *layer_scale;            /* [1] or NULL */
    /* of several residual streams (n): [hidden], [n * n, n], [n, n], [hidden]; or NULL */
    const float *stream_norm, *stream_predict, *stream_correct, *stream_scale;
    struct packed stream_router, low_rank_in, low_rank_out; /* or not there */
    const float *low_rank_norm;                             /* [hidden] or NULL */
    const float *mlp_side_norm, *experts_norm, *experts_post_norm, *router_norm; /* or NULL */
    const float *expert_scales;               /* [n_expert] or NULL */
    const float *sinks;                       /* [n_head] or NULL */
    const float *act_positive, *act_negative; /* [1], of activations with such numbers, or NULL */
    struct packed qkv, out, gate_up, down;    /* gate_up of an MLP without a gate: up alone; qkv of
                                              latent attention: q or its latent, then kv_a */
    struct packed mix_in, mix_out;            /* of a mixer in place of attention, or not there */
    const float *mix_in_bias, *mix_out_bias;
    const float *mix_rate, *mix_rate_bias, *mix_norm; /* of a delta net, of Mamba */
    struct packed mix_x, mix_step;                    /* of Mamba, or not there */
    const float *mix_skip, *step_norm, *b_norm, *c_norm;
    const float *conv, *conv_bias; /* likewise: [D_CONV, D_CONV_WIDTH], [D_CONV] or NULL */
    struct packed q_b;             /* of latent attention, or not there */
    struct packed kv_b;            /* likewise: rows as they are stored, [D_KV_B, D_KV_RANK] */
    struct packed
        router; /* [n_expert, hidden], of layers with experts; [n_expert + 1] with a shared
                             one, how much of which a row takes is the last */
    struct packed experts_in,
        experts_out; /* around experts with columns of their own, or not there */
    const float *experts_in_bias, *experts_out_bias;
    struct expert_weights
        *experts; /* [n_expert], then gate_up and down are those of the shared one,
                                       or not there; or NULL */
    /* [n_out] or NULL = none; 0 for a router's output that has none */
    const float *qkv_bias, *out_bias, *gate_up_bias, *down_bias, *router_bias;
};

struct weights {
    const void *embed; /* [vocab, hidden], in `files` or in `memory` */
    enum dtype embed_dtype;
    bool embed_packed; /* it is lm_head's data */
    struct packed project_in,
        project_out;       /* without data: the embedding has the stream's columns */
    const void *positions; /* learned: [D_POSITIONS, hidden], or NULL */
    enum dtype positions_dtype;
    struct packed types; /* of tokens: rows as they are stored, or not there */
    /* inputs that layers have of the token: rows as they are stored, what is made of the embedding
     * and its norm, [D_LAYER_INPUT]; or not there */
    struct packed embed_layers, layer_inputs;
    const float *layer_inputs_norm;
    /* to several residual streams, [(n - 1) * hidden, hidden], and back from each; or not there */
    struct packed streams_in, stream_out_1, stream_out_2, stream_out_3;
    const float *embed_norm, *embed_norm_bias; /* [hidden] or NULL */
    const float *final_norm, *final_norm_bias; /* [hidden]; the bias or NULL */
    struct packed lm_head;
    const float *lm_head_bias;    /* [vocab] or NULL */
    struct layer_weights *layers; /* [n_layer] */
    uint32_t n_layer, n_expert;
    struct expert_weights *experts; /* [n_layer, n_expert]; unused where a layer has none */
    struct packed *own;             /* of a plugin's tensors; data NULL: it is not there */
    uint32_t *own_at;               /* [arch.n_own] where those of a tensor begin in `own` */
    uint64_t n_param;
    uint32_t generation; /* model_generation */
    struct load_plan *plan;
    struct region host; /* of a model on a device: what only items use */
    struct region memory;
    struct packed_cache_writer *writer; /* while the memory is being written to the packed cache */
    struct tensor_set *files;           /* NULL for dummy weights */
};

/* Errors: as model_load. */
FALLIBLE weights_load(struct weights *w, const struct arch *arch, const struct model_config *c,
                      const struct load_options *o, struct q_err *e);
/* Other numbers of the same shapes, from o->dir: into the memory of the old ones where both plans
 * lie in the same way and the memory is not a file's, else beside them, which go then. On an error
 * `w` is as it was. Nobody may compute with `w` meanwhile. Errors: as model_load. */
FALLIBLE weights_reload(struct weights *w, const struct arch *arch, const struct model_config *c,
                        const struct load_options *o, struct q_err *e);
/* Are all tensors there, with the right shapes? Headers only; the log says what is not used and
 * what would be packed in which form. Errors: as model_load. */
FALLIBLE weights_check(const struct arch *arch, const struct model_config *c,
                       const struct load_options *o, struct q_err *e);
/* The same without a word: w->plan says what would be loaded, and nothing else of `w` may be read.
 * o->kern and o->team are not looked at. Errors: as model_load. */
FALLIBLE weights_plan(struct weights *w, const struct arch *arch, const struct model_config *c,
                      const struct load_options *o, struct q_err *e);
void weights_release(struct weights *w); /* all zeros is fine */

#endif
