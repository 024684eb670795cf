/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/arch_dim.h"
#include "engine/model/forward/executor_device_internal.h"

void executor_device_limits(struct device_limits *l, const struct model *m)
{
    const struct model_config *c = &m->config;
    const uint32_t shared = c->moe.shared_width;
    const uint32_t inter = arch_dim_at(c, D_INTER, c->n_layer - 1); /* no layer has a wider MLP */
    l->context_max = m->shape.max_model_len;
    l->n_head = c->n_head;
    l->n_kv_head = c->latent.rank ? 1 : c->n_kv_head; /* of latents: one for all heads */
    l->head_dim = c->latent.rank ? c->latent.rank : model_config_head_dim_max(c);
    l->hidden_size = c->hidden_size;
    l->intermediate_size = inter > shared ? inter : shared;
    l->vocab_size = c->vocab_size;
    l->kv_dtype = m->shape.kv_dtype;
}

bool executor_device_wide_limits(struct device_limits *wide, const struct device_limits *l,
                                 const struct model *m)
{
    const struct layers_config *layers = &m->config.layers;
    *wide = *l;
    if (!layers->wide_head_dim || layers->wide_n_kv_head == m->config.n_kv_head)
        return false;
    wide->n_kv_head = layers->wide_n_kv_head;
    return true;
}

size_t device_workspace_bytes(const struct model *m, const struct device_limits *l)
{
    struct device_limits wide;
    const size_t usual = m->link->t->workspace_bytes(m->link->d, l);
    if (!executor_device_wide_limits(&wide, l, m))
        return usual;
    const size_t other = m->link->t->workspace_bytes(m->link->d, &wide);
    return other > usual ? other : usual;
}
