/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/arch.h"
#include <stdio.h>
#include <string.h>
#include "common/hub/archs.h"

const char arch_zeros[] = "(zeros)", arch_rates[] = "(rates)"; /* as they are shown */

#define ARCH(architecture, family) &arch_##family,
static const struct arch *const archs[] = {
#include "common/hub/archs.def"
};

enum q_code arch_find(const struct arch **out, const char *name, struct q_err *e)
{
    const struct archs_added *plugin = archs_added_find(name);
    if (!plugin)
        return arch_find_own(out, name, e);
    *out = plugin->family;
    return Q_OK;
}

enum q_code arch_find_own(const struct arch **out, const char *name, struct q_err *e)
{
    const char *base = archs_base(name, NULL);
    char types[ARCHS_TYPES_MAX];
    for (size_t i = 0; base && i < sizeof archs / sizeof *archs; i++)
        if (strcmp(archs[i]->name, base) == 0) {
            *out = archs[i];
            return Q_OK;
        }
    return q_fail(e, Q_UNSUPPORTED,
                  "architecture %s is not supported; supported are those of the model types %s",
                  name, archs_types(types));
}

static uint32_t key_columns(const struct model_config *c)
{
    return c->mixer.n_key_head * c->mixer.key_dim;
}

static uint32_t value_columns(const struct model_config *c)
{
    return c->mixer.n_value_head * c->mixer.value_dim;
}

/* Of a convolution: what its input and its output are multiplied by, and x. */
static uint32_t mix_in_columns(const struct model_config *c)
{
    switch (c->mixer.kind) {
    case MIXER_DELTA:
        return 2 * (key_columns(c) + value_columns(c)) + 2 * c->mixer.n_value_head;
    case MIXER_SSD: /* the gate, what the convolution reads, steps */
        return 2 * (value_columns(c) + key_columns(c)) + c->mixer.n_value_head;
    case MIXER_SCAN: /* x and the gate */
        return 2 * value_columns(c);
    case MIXER_LIGHTNING:
        return 2 * (key_columns(c) + value_columns(c));
    default:
        return 3 * c->hidden_size;
    }
}

static uint32_t mixer_dim_size(const struct model_config *c, enum arch_dim dim)
{
    switch (dim) {
    case D_MIX_IN:
        return mix_in_columns(c);
    case D_MIX_QKVZ:
        return 2 * (key_columns(c) + value_columns(c));
    case D_MIX_QKV:
        return 2 * key_columns(c) + value_columns(c);
    case D_MIX_KEYS:
        return key_columns(c);
    case D_MIX_BA:
        return 2 * c->mixer.n_value_head;
    case D_MIX_OUT:
        return c->mixer.kind == MIXER_CONV ? c->hidden_size : value_columns(c);
    case D_CONV:
        return c->mixer.kind == MIXER_CONV   ? c->hidden_size
               : c->mixer.kind == MIXER_SCAN ? value_columns(c)
                                             : 2 * key_columns(c) + value_columns(c);
    case D_STATE:
        return c->mixer.key_dim;
    case D_STEP_RANK:
        return c->mixer.step_rank;
    case D_MIX_X:
        return c->mixer.step_rank + 2 * c->mixer.key_dim;
    case D_VALUE_HEADS:
        return c->mixer.n_value_head;
    case D_VALUE_DIM:
        return c->mixer.value_dim;
    case D_CONV_WIDTH:
        return c->mixer.conv_width;
    default:
        return 0;
    }
}

static uint32_t moe_dim_size(const struct model_config *c, enum arch_dim dim)
{
    switch (dim) {
    case D_EXPERTS:
        return c->moe.n_expert;
    case D_EXPERT_INTER:
        return c->moe.width;
    case D_EXPERT_HIDDEN:
        return c->moe.latent ? c->moe.latent : c->hidden_size;
    case D_2_EXPERT_INTER:
        return 2 * c->moe.width;
    case D_SHARED_INTER:
        return c->moe.shared_width;
    case D_2_SHARED_INTER:
        return 2 * c->moe.shared_width;
    default:
        return mixer_dim_size(c, dim);
    }
}

/* Of MLPs: in layers that read other layers' K and V they may be wider. */
static uint32_t inter(const struct model_config *c, uint32_t layer)
{
    const bool twice = c->layers.reader_mlp && model_config_reads_kv(c, layer);
    return c->intermediate_size * (twice ? 2 : 1);
}

uint32_t arch_dim_at(const struct model_config *c, enum arch_dim dim, uint32_t layer)
{
    const uint32_t head = model_config_head_dim(c, layer), n_kv = model_config_kv_heads(c, layer);
    switch (dim) {
    case D_VOCAB:
        return c->vocab_size;
    case D_HIDDEN:
        return c->hidden_size;
    case D_EMBED:
        return c->embed_size ? c->embed_size : c->hidden_size;
    case D_INTER:
        return inter(c, layer);
    case D_Q:
        return c->n_head * head;
    case D_KV:
        return n_kv * head;
    case D_Q_STORED:
        return c->n_head * (c->layers.value_dim ? c->layers.value_dim : head);
    case D_KV_STORED:
        return n_kv * (c->layers.value_dim ? c->layers.value_dim : head);
    case D_QKV:
        return (c->n_head + 2 * n_kv) * head;
    case D_HEAD:
        return head;
    case D_HEADS:
        return c->n_head;
    case D_KV_HEADS:
        return n_kv;
    case D_2_INTER:
        return 2 * inter(c, layer);
    case D_POSITIONS:
        return c->max_position;
    case D_POSITIONS_2:
        return c->max_position + 2;
    case D_ONE:
        return 1;
    case D_Q_RANK:
        return c->latent.q_rank;
    case D_KV_RANK:
        return c->latent.rank;
    case D_KV_A:
        return c->latent.rank + c->latent.rope;
    case D_KV_B:
        return c->n_head * (c->latent.nope + c->latent.value);
    case D_HEADS_V:
        return c->n_head * c->latent.value;
    case D_TYPES:
        return c->n_type;
    case D_INPUT_VOCAB:
        return c->layers.input_vocab;
    case D_LAYER_INPUT:
        return c->layers.input;
    case D_LAYER_INPUTS:
        return c->n_layer * c->layers.input;
    case D_2_Q:
        return 2 * c->n_head * head;
    case D_STREAMS:
        return c->streams.n;
    case D_STREAMS_2:
        return c->streams.n * c->streams.n;
    case D_LOW_RANK:
        return c->streams.rank;
    default:
        return moe_dim_size(c, dim);
    }
}

const char *arch_dim_text(enum arch_dim dim)
{
    static const char *const texts[D_COUNT] = {
        [D_NONE] = "",
        [D_VOCAB] = "vocab_size",
        [D_HIDDEN] = "hidden_size",
        [D_EMBED] = "word_embed_proj_dim, or hidden_size",
        [D_INTER] = "intermediate_size",
        [D_Q] = "num_attention_heads * head_dim",
        [D_KV] = "num_key_value_heads * head_dim",
        [D_QKV] = "(num_attention_heads + 2 * num_key_value_heads) * head_dim",
        [D_Q_STORED] = "num_attention_heads * v_head_dim",
        [D_KV_STORED] = "num_key_value_heads * v_head_dim",
        [D_HEAD] = "head_dim",
        [D_HEADS] = "num_attention_heads",
        [D_KV_HEADS] = "num_key_value_heads",
        [D_2_INTER] = "2 * intermediate_size",
        [D_POSITIONS] = "max_position_embeddings",
        [D_POSITIONS_2] = "max_position_embeddings + 2",
        [D_EXPERTS] = "num_experts",
        [D_EXPERT_INTER] = "moe_intermediate_size",
        [D_EXPERT_HIDDEN] = "moe_latent_size, or hidden_size",
        [D_2_EXPERT_INTER] = "2 * moe_intermediate_size",
        [D_SHARED_INTER] = "shared_expert_intermediate_size",
        [D_2_SHARED_INTER] = "2 * shared_expert_intermediate_size",
        [D_ONE] = "1",
        [D_Q_RANK] = "q_lora_rank",
        [D_KV_RANK] = "kv_lora_rank",
        [D_KV_A] = "kv_lora_rank + qk_rope_head_dim",
        [D_KV_B] = "num_attention_heads * (qk_nope_head_dim + v_head_dim)",
        [D_HEADS_V] = "num_attention_heads * v_head_dim",
        [D_TYPES] = "type_vocab_size",
        [D_MIX_IN] = "columns of the mixer's first product",
        [D_MIX_OUT] = "hidden_size, or heads * head size of the mixer",
        [D_MIX_QKVZ] = ("2 * (linear_num_key_heads * linear_key_head_dim + "
                        "linear_num_value_heads * linear_value_head_dim)"),
        [D_MIX_QKV] = "3 * num_attention_heads * head_dim",
        [D_MIX_KEYS] = "linear_num_key_heads * linear_key_head_dim",
        [D_MIX_BA] = "2 * linear_num_value_heads",
        [D_VALUE_HEADS] = "heads of the mixer",
        [D_VALUE_DIM] = "head size of the mixer",
        [D_STATE] = "state_size",
        [D_STEP_RANK] = "time_step_rank",
        [D_MIX_X] = "time_step_rank + 2 * state_size",
        [D_2_Q] = "2 * num_attention_heads * head_dim",
        [D_CONV] = "columns of the convolution",
        [D_CONV_WIDTH] = "rows of the convolution",
        [D_INPUT_VOCAB] = "vocab_size_per_layer_input",
        [D_LAYER_INPUT] = "hidden_size_per_layer_input",
        [D_LAYER_INPUTS] = "num_hidden_layers * hidden_size_per_layer_input",
        [D_STREAMS] = "altup_num_inputs",
        [D_STREAMS_2] = "altup_num_inputs * altup_num_inputs",
        [D_LOW_RANK] = "laurel_rank",
    };
    return texts[dim];
}

/* Of K and V, where some layers have none of their own. */
static bool wants_kv(const struct model_config *c, enum arch_when when, uint32_t layer)
{
    const bool own = !model_config_reads_kv(c, layer);
    const bool v_is_k = c->layers.wide_v_is_k && c->layers.wide[layer];
    switch (when) {
    case WHEN_OWN_KV:
        return own;
    case WHEN_OWN_V:
        return own && !v_is_k;
    case WHEN_V_IS_K:
        return own && v_is_k;
    case WHEN_OWN_KV_BIAS:
        return c->attention_bias && own;
    case WHEN_OWN_V_BIAS:
        return c->attention_bias && own && !v_is_k;
    case WHEN_V_IS_K_BIAS:
        return c->attention_bias && own && v_is_k;
    default:
        return false;
    }
}

/* Of layers with experts. */
static bool wants_experts(const struct model_config *c, enum arch_when when, uint32_t layer)
{
    const struct moe_config *m = &c->moe;
    switch (when) {
    case WHEN_EXPERTS:
        return m->layers[layer];
    case WHEN_SHARED:
        return m->layers[layer] && m->shared_width;
    case WHEN_SHARED_BIAS:
        return m->layers[layer] && m->shared_width && c->mlp_bias;
    case WHEN_LATENT:
        return m->layers[layer] && m->latent;
    case WHEN_LATENT_BIAS:
        return m->layers[layer] && m->latent && c->mlp_bias;
    default:
        return false;
    }
}

/* Of several residual streams. */
static bool wants_streams(const struct model_config *c, enum arch_when when)
{
    switch (when) {
    case WHEN_STREAMS_2:
    case WHEN_STREAMS_3:
    case WHEN_STREAMS_4:
        return c->streams.n >= 2u + (uint32_t)(when - WHEN_STREAMS_2);
    case WHEN_SCALED:
        return c->streams.scaled;
    default:
        return false;
    }
}

bool arch_wants(const struct model_config *c, enum arch_when when, uint32_t layer)
{
    switch (when) {
    case WHEN_ALWAYS:
        return true;
    case WHEN_UNTIED:
        return !c->tie_word_embeddings;
    case WHEN_BEHIND:
        return layer > 0;
    case WHEN_POST_NORMS:
        return c->forward.post_norms;
    case WHEN_NORMS_BEFORE:
        return !c->forward.sum_norms;
    case WHEN_NORMS_SUM:
        return c->forward.sum_norms;
    case WHEN_FINAL_NORM:
        return !c->forward.bare_end;
    case WHEN_PROJECTED:
        return c->embed_size > 0;
    case WHEN_ATTENTION_BIAS:
        return c->attention_bias;
    case WHEN_OUT_BIAS:
        return c->attention_out_bias;
    case WHEN_MLP_BIAS:
        return c->mlp_bias;
    case WHEN_QK_NORM:
        return c->forward.qk_norm;
    case WHEN_QK_NORM_ROPE:
        return c->forward.qk_norm && !c->no_rope[layer];
    case WHEN_HEAD_BIAS:
        return c->head_bias;
    case WHEN_SEQUENTIAL:
        return !c->forward.parallel_residual;
    case WHEN_TWO_NORMS:
        return c->forward.parallel_residual && !c->forward.shared_norm;
    case WHEN_NOT_TWO_NORMS:
        return !c->forward.parallel_residual || c->forward.shared_norm;
    case WHEN_ATTENTION:
        return model_config_has_kv(c, layer);
    case WHEN_MIXER:
        return model_config_has_mixer(c, layer);
    case WHEN_WINDOW:
        return c->window[layer] > 0;
    case WHEN_LIGHTNING:
        return c->mixer.layers[layer] == MIXER_LIGHTNING;
    case WHEN_CONV_BIAS:
        return model_config_has_mixer(c, layer) && c->mixer.conv_bias;
    case WHEN_MIX_BIAS:
        return model_config_has_mixer(c, layer) && c->mixer.bias;
    case WHEN_MIX_NORM:
        return model_config_has_mixer(c, layer) && !c->mixer.no_norm;
    case WHEN_BRANCH:
        return c->mixer.layers[layer] != MIXER_NONE;
    case WHEN_MLP:
        return !c->mixer.no_mlp[layer];
    case WHEN_MLP_ALONE:
        return !c->mixer.no_mlp[layer] && !c->moe.layers[layer];
    case WHEN_MLP_ALONE_BIAS:
        return !c->mixer.no_mlp[layer] && !c->moe.layers[layer] && c->mlp_bias;
    case WHEN_DENSE:
        return !c->moe.layers[layer];
    case WHEN_DENSE_BIAS:
        return !c->moe.layers[layer] && c->mlp_bias;
    case WHEN_Q_RANK:
        return c->latent.q_rank > 0;
    case WHEN_Q_WHOLE:
        return c->latent.q_rank == 0;
    case WHEN_LAYER_INPUT:
        return c->layers.input > 0;
    default:
        return wants_experts(c, when, layer) || wants_kv(c, when, layer) || wants_streams(c, when);
    }
}

bool arch_has(const struct arch *a, const struct model_config *c, enum arch_slot slot,
              uint32_t layer)
{
    if (!arch_is_read(c, slot))
        return false;
    for (size_t i = 0; i < a->n_tensor; i++)
        if (a->tensors[i].slot == slot && arch_wants(c, a->tensors[i].when, layer))
            return true;
    return false;
}

bool arch_is_read(const struct model_config *c, enum arch_slot slot)
{
    return !c->pools || (slot != W_LM_HEAD && slot != W_LM_HEAD_BIAS);
}

const struct arch_head *arch_heads(const struct arch *a)
{
    static const struct arch_head score[ARCH_HEAD_LAYERS] = {
        {"score", POOLING_ACT_NONE, ARCH_HEAD_NO_BIAS, NULL},
    };
    return a->head[0].name ? a->head : score;
}

bool arch_is_stacked(const struct arch_tensor *t)
{
    const char *hole = t->name && t->slot >= W_EXPERT_FIRST ? strstr(t->name, "%u") : NULL;
    return t->slot != W_IGNORE && hole && !strstr(hole + 1, "%u");
}

uint32_t arch_positions_max(const struct arch *a, const struct model_config *c)
{
    for (size_t i = 0; i < a->n_tensor && a->layer.positions == ARCH_LEARNED; i++)
        if (a->tensors[i].slot == W_POSITIONS) {
            const uint32_t n = arch_dim_size(c, a->tensors[i].dims[0]);
            return n > a->layer.first_position ? n - a->layer.first_position : 0;
        }
    return UINT32_MAX;
}

void arch_tensor_name(char out[ARCH_NAME_MAX], const char *pattern, struct arch_place at)
{
    const uint32_t numbers[] = {at.layer, at.expert};
    size_t n = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const char *hole = strstr(pattern, "%u");
        if (!hole)
            break;
        n += (size_t)snprintf(out + n, ARCH_NAME_MAX - n, "%.*s%u", (int)(hole - pattern), pattern,
                              numbers[i]);
        pattern = hole + 2;
    }
    snprintf(out + n, ARCH_NAME_MAX - n, "%s", pattern);
}

static const struct {
    const char *hidden_act;
    enum arch_activation is;
} activations[] = {
    {"silu", ARCH_SILU},
    {"swish", ARCH_SILU},
    {"gelu", ARCH_GELU},
    {"gelu_new", ARCH_GELU_TANH},
    {"gelu_fast", ARCH_GELU_TANH},
    {"gelu_pytorch_tanh", ARCH_GELU_TANH},
    {"quick_gelu", ARCH_GELU_QUICK},
    {"relu", ARCH_RELU},
    {"relu2", ARCH_RELU2},
    {"xielu", ARCH_XIELU},
};
#define N_ACTIVATION (sizeof activations / sizeof *activations)

bool arch_activation_parse(enum arch_activation *out, const char *hidden_act)
{
    for (size_t i = 0; i < N_ACTIVATION; i++)
        if (strcmp(activations[i].hidden_act, hidden_act) == 0) {
            *out = activations[i].is;
            return true;
        }
    return false;
}

const char *arch_activation_name(enum arch_activation a)
{
    static const char *const names[ARCH_ACTIVATIONS] = {
        [ARCH_SILU] = "silu",           [ARCH_GELU] = "gelu",
        [ARCH_GELU_TANH] = "gelu tanh", [ARCH_GELU_QUICK] = "quick gelu",
        [ARCH_RELU] = "relu",           [ARCH_RELU2] = "relu2",
        [ARCH_XIELU] = "xielu",
    };
    return names[a];
}

void arch_activation_names(const struct arch_layer *l, char *out, size_t n)
{
    const uint32_t set = l->activations ? l->activations : 1u << ARCH_SILU;
    size_t at = 0;
    *out = 0;
    for (size_t i = 0; i < N_ACTIVATION && at < n; i++)
        if (set >> activations[i].is & 1)
            at += (size_t)snprintf(out + at, n - at, "%s\"%s\"", at ? ", " : "",
                                   activations[i].hidden_act);
}
