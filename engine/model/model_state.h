/* SPDX-License-Identifier: Apache-2.0 */
/* model_state - struct model. Internal to engine/model. The activations of a step are in
 * forward/cpu_scratch.h and forward/executor_device_internal.h. Threads: as model.h. */
#ifndef QUIRE_ENGINE_MODEL_MODEL_STATE_H
#define QUIRE_ENGINE_MODEL_MODEL_STATE_H
#include "engine/model/forward/program.h"
#include "engine/model/forward/rotary.h"
#include "engine/model/load/weights.h"
#include "engine/model/model.h"

struct pooler;
struct quire_model;
struct model {
    const struct arch *arch;
    struct quire_model *plugin; /* NULL: the architecture is built in */
    /* A bit for each tensor of the plugin that the program reads. */
    uint64_t own_read[CONFIG_OWN_MAX / 64];
    struct model_config config;
    struct pipeline_stage stage;
    struct model_shard shard;
    struct model_shape shape;
    struct weights weights;
    uint16_t kv_layers[CONFIG_LAYERS_MAX]; /* of each layer of the stage with K and V: its number
                                              among these */
    struct layer_program program;          /* of these weights */
    bool no_fusion;                        /* model_options */
    uint32_t lora_rank;                    /* likewise */
    struct rotary rotary, local_rotary;    /* the second where the family has a rope of windows */
    struct pooler *pooler; /* what is behind the pooling; NULL: the model gives logits */
    const struct kern_table *kern;
    const struct kern_table *host_kern; /* the CPU's, also with a device: items are made by it */
    const struct device_link *link;     /* NULL: on the CPU */
    /* On a device: [max_model_len][rotary.n_pair][2], unless they depend on the prompt. */
    struct region rope_cos_sin, local_cos_sin;
    struct region slopes; /* ALiBi: [n_head] f32, on the device where there is one */
};

struct model_family { /* borrowed; arch: while the model lives */
    const struct arch *arch;
    const struct model_config *config;
};
/* As model_load, of a family that is in no table and a config that is in no file. */
FALLIBLE model_load_family(struct model **out, const struct model_family *f,
                           const struct model_options *o, struct q_err *e);

/* Does the plugin compute the forward pass in place of the program? */
bool model_has_own_forward(const struct model *m);

/* (cos, sin) of a position depend on how long the sequence's prompt is. */
static inline bool model_rope_varies(const struct model *m)
{
    const struct model_config *c = &m->config;
    return rotary_varies(c) && m->shape.max_model_len > rotary_free_length(c);
}

/* Where the KV cache has the layer, or the one whose K and V it reads. */
static inline uint32_t model_kv_layer(const struct model *m, uint32_t layer)
{
    return m->kv_layers[layer];
}

/* Has the model, or its stage, K and V of the layer's own? */
static inline bool model_has_kv(const struct model *m, uint32_t layer)
{
    return pipeline_stage_has_layer(&m->stage, layer) && model_config_has_kv(&m->config, layer) &&
           !model_config_reads_kv(&m->config, layer);
}
/* Of the layer, K (or V), or the latents of both. */
size_t model_kv_block_bytes(const struct model *m, uint32_t layer);
/* Arrays of a layer's KV cache: K and V, or the latents of both. */
static inline uint32_t model_kv_arrays(const struct model *m)
{
    return m->config.latent.rank ? 1 : 2;
}

/* What norms, attention and gated products write: the next product's input, or what is quantized
 * for it. */
static inline enum dtype model_input_dtype(const struct model *m)
{
    return m->shape.compute_dtype == DT_BF16 && !m->shape.quantization ? DT_BF16 : DT_F32;
}

/* Of the layer that has the most. */
static inline uint32_t model_q_cols(const struct model *m)
{
    return m->config.n_head * model_config_head_dim_max(&m->config);
}

static inline uint32_t model_kv_cols(const struct model *m)
{
    return m->config.n_kv_head * m->config.head_dim;
}

#endif
