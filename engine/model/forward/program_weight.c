/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/program_weight.h"
#include <stdatomic.h>
#include <stddef.h>
#include "engine/model/load/weights.h"

#define SLOTS(...) (sizeof((enum arch_slot[])__VA_ARGS__) / sizeof(enum arch_slot))

static const struct program_weight_info infos[PROGRAM_WEIGHTS] = {
    [PROGRAM_W_NONE] = {.name = "none"},
#define WEIGHT(id, text, of, is, ...) \
    [PROGRAM_W_##id] = {text, PROGRAM_OF_##of, PROGRAM_##is, SLOTS(__VA_ARGS__), __VA_ARGS__, 0},
#include "engine/model/forward/program_weights.def"
};

/* Where those lie that the loader has a place for. A plain MLP's matrix lies where gate and up
 * do, and so does that of an expert. */
static const struct {
    bool is_there;
    size_t offset; /* in struct weights, layer_weights or expert_weights, by the scope */
} places[PROGRAM_WEIGHTS] = {
#define MODEL(id, field)  [PROGRAM_W_##id] = {true, offsetof(struct weights, field)}
#define LAYER(id, field)  [PROGRAM_W_##id] = {true, offsetof(struct layer_weights, field)}
#define EXPERT(id, field) [PROGRAM_W_##id] = {true, offsetof(struct expert_weights, field)}
    MODEL(EMBED_NORM, embed_norm),
    MODEL(EMBED_NORM_BIAS, embed_norm_bias),
    MODEL(FINAL_NORM, final_norm),
    MODEL(FINAL_NORM_BIAS, final_norm_bias),
    MODEL(PROJECT_IN, project_in),
    MODEL(PROJECT_OUT, project_out),
    MODEL(POSITIONS, positions),
    MODEL(TYPES, types),
    MODEL(EMBED_LAYERS, embed_layers),
    MODEL(LAYER_INPUTS, layer_inputs),
    MODEL(LAYER_INPUTS_NORM, layer_inputs_norm),
    MODEL(STREAMS_IN, streams_in),
    MODEL(STREAM_OUT_1, stream_out_1),
    MODEL(STREAM_OUT_2, stream_out_2),
    MODEL(STREAM_OUT_3, stream_out_3),
    MODEL(LM_HEAD, lm_head),
    MODEL(LM_HEAD_BIAS, lm_head_bias),
    LAYER(ATTN_NORM, attn_norm),
    LAYER(ATTN_NORM_BIAS, attn_norm_bias),
    LAYER(QKV, qkv),
    LAYER(QKV_BIAS, qkv_bias),
    LAYER(Q_NORM, q_norm),
    LAYER(K_NORM, k_norm),
    LAYER(V_NORM, v_norm),
    LAYER(Q_B, q_b),
    LAYER(KV_B, kv_b),
    LAYER(SINKS, sinks),
    LAYER(MIX_IN, mix_in),
    LAYER(MIX_IN_BIAS, mix_in_bias),
    LAYER(MIX_RATE, mix_rate),
    LAYER(MIX_RATE_BIAS, mix_rate_bias),
    LAYER(MIX_SKIP, mix_skip),
    LAYER(MIX_X, mix_x),
    LAYER(MIX_STEP, mix_step),
    LAYER(STEP_NORM, step_norm),
    LAYER(B_NORM, b_norm),
    LAYER(C_NORM, c_norm),
    LAYER(MIX_NORM, mix_norm),
    LAYER(MIX_OUT, mix_out),
    LAYER(MIX_OUT_BIAS, mix_out_bias),
    LAYER(CONV, conv),
    LAYER(CONV_BIAS, conv_bias),
    LAYER(OUT, out),
    LAYER(OUT_BIAS, out_bias),
    LAYER(ATTN_POST_NORM, attn_post_norm),
    LAYER(ATTN_POST_NORM_BIAS, attn_post_norm_bias),
    LAYER(MLP_NORM, mlp_norm),
    LAYER(MLP_NORM_BIAS, mlp_norm_bias),
    LAYER(GATE_UP, gate_up),
    LAYER(GATE_UP_BIAS, gate_up_bias),
    LAYER(UP, gate_up),
    LAYER(UP_BIAS, gate_up_bias),
    LAYER(DOWN, down),
    LAYER(DOWN_BIAS, down_bias),
    LAYER(ACT_POSITIVE, act_positive),
    LAYER(ACT_NEGATIVE, act_negative),
    LAYER(MLP_POST_NORM, mlp_post_norm),
    LAYER(MLP_POST_NORM_BIAS, mlp_post_norm_bias),
    LAYER(LAYER_GATE, layer_gate),
    LAYER(LAYER_OUT, layer_out),
    LAYER(LAYER_POST_NORM, layer_post_norm),
    LAYER(LAYER_SCALE, layer_scale),
    LAYER(STREAM_NORM, stream_norm),
    LAYER(STREAM_ROUTER, stream_router),
    LAYER(STREAM_PREDICT, stream_predict),
    LAYER(STREAM_CORRECT, stream_correct),
    LAYER(STREAM_SCALE, stream_scale),
    LAYER(LOW_RANK_IN, low_rank_in),
    LAYER(LOW_RANK_OUT, low_rank_out),
    LAYER(LOW_RANK_NORM, low_rank_norm),
    LAYER(MLP_SIDE_NORM, mlp_side_norm),
    LAYER(EXPERTS_NORM, experts_norm),
    LAYER(EXPERTS_POST_NORM, experts_post_norm),
    LAYER(ROUTER_NORM, router_norm),
    LAYER(EXPERT_SCALES, expert_scales),
    LAYER(ROUTER, router),
    LAYER(ROUTER_BIAS, router_bias),
    LAYER(EXPERTS_IN, experts_in),
    LAYER(EXPERTS_IN_BIAS, experts_in_bias),
    LAYER(EXPERTS_OUT, experts_out),
    LAYER(EXPERTS_OUT_BIAS, experts_out_bias),
    EXPERT(EXPERT_GATE_UP, gate_up),
    EXPERT(EXPERT_GATE_UP_BIAS, gate_up_bias),
    EXPERT(EXPERT_UP, gate_up),
    EXPERT(EXPERT_DOWN, down),
    EXPERT(EXPERT_DOWN_BIAS, down_bias),
#undef MODEL
#undef LAYER
#undef EXPERT
};

#define ADDED_MAX 4096u

static struct program_weight_info added[ADDED_MAX];
static atomic_uint n_added;

enum program_weight program_weight_add(const struct program_weight_info *info)
{
    const uint32_t i = atomic_fetch_add(&n_added, 1);
    if (i >= ADDED_MAX) {
        atomic_store(&n_added, ADDED_MAX);
        return PROGRAM_W_NONE;
    }
    added[i] = *info;
    return (enum program_weight)(PROGRAM_WEIGHTS + i);
}

bool program_weight_is_there(enum program_weight w)
{
    return w < PROGRAM_WEIGHTS || w - PROGRAM_WEIGHTS < atomic_load(&n_added);
}

const struct program_weight_info *program_weight_info(enum program_weight w)
{
    return w < PROGRAM_WEIGHTS ? &infos[w] : &added[w - PROGRAM_WEIGHTS];
}

static const struct packed *own_weight(const struct weights *g, enum program_weight w,
                                       uint32_t layer)
{
    const struct program_weight_info *info = program_weight_info(w);
    const struct packed *p = &g->own[g->own_at[info->i_own]];
    return info->scope == PROGRAM_OF_LAYER ? p + layer : p;
}

bool program_weight_there(enum program_weight w, const struct arch *a, const struct model_config *c,
                          uint32_t layer)
{
    const struct program_weight_info *info = program_weight_info(w);
    for (uint32_t i = 0; i < info->n_slot; i++)
        if (arch_has(a, c, info->slots[i], layer))
            return true;
    return program_weight_is_own(w);
}

static const void *place_of(const struct weights *g, enum program_weight w, uint32_t layer,
                            uint32_t expert)
{
    const char *base = (const char *)g;
    if (!places[w].is_there)
        return NULL;
    if (infos[w].scope != PROGRAM_OF_MODEL) {
        const struct layer_weights *l = &g->layers[layer];
        const bool of_layer = infos[w].scope == PROGRAM_OF_LAYER;
        if (!of_layer && !l->experts)
            return NULL;
        base = of_layer ? (const char *)l : (const char *)&l->experts[expert];
    }
    return base + places[w].offset;
}

const struct packed *program_matrix(const struct weights *g, enum program_weight w, uint32_t layer,
                                    uint32_t expert)
{
    Q_ASSERT(program_weight_info(w)->kind == PROGRAM_MATRIX);
    const struct packed *p =
        program_weight_is_own(w) ? own_weight(g, w, layer) : place_of(g, w, layer, expert);
    return p && p->data ? p : NULL;
}

const float *program_vector(const struct weights *g, enum program_weight w, uint32_t layer)
{
    Q_ASSERT(w == PROGRAM_W_NONE || program_weight_info(w)->kind == PROGRAM_VECTOR);
    if (program_weight_is_own(w))
        return own_weight(g, w, layer)->data;
    const float *const *p = place_of(g, w, layer, 0);
    return p ? *p : NULL;
}

const float *program_expert_vector(const struct weights *g, enum program_weight w, uint32_t layer,
                                   uint32_t expert)
{
    Q_ASSERT(w == PROGRAM_W_NONE || program_weight_info(w)->scope == PROGRAM_OF_EXPERT);
    const float *const *p = place_of(g, w, layer, expert);
    return p ? *p : NULL;
}

struct program_table program_table(const struct weights *g, enum program_weight w, uint32_t layer)
{
    Q_ASSERT(program_weight_info(w)->kind == PROGRAM_TABLE);
    if (w == PROGRAM_W_EMBED)
        return (struct program_table){g->embed, g->embed_dtype, g->embed_packed, 0};
    if (w == PROGRAM_W_POSITIONS)
        return (struct program_table){g->positions, g->positions_dtype, false, 0};
    const struct packed *p =
        program_weight_is_own(w) ? own_weight(g, w, layer) : place_of(g, w, layer, 0);
    return (struct program_table){p->data, p->dtype, false, p->n_out};
}
