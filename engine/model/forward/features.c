/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/features.h"

typedef bool predicate(const struct program_op *op);

static bool is_layer_norm(const struct program_op *op)
{
    return op->kind == PROGRAM_NORM && op->norm.kind != ARCH_NORM_RMS;
}

static bool has_norm_bias(const struct program_op *op)
{
    return op->kind == PROGRAM_NORM && op->norm.kind == ARCH_NORM_RMS && op->bias != PROGRAM_W_NONE;
}

static bool is_layer_norm_of_heads(const struct program_op *op)
{
    return is_layer_norm(op) && op->out.buffer == PROGRAM_B_QKV;
}

static bool is_norm_of_branch(const struct program_op *op)
{
    return op->kind == PROGRAM_NORM && op->in_place && op->out.buffer != PROGRAM_B_QKV;
}

static bool is_cast(const struct program_op *op)
{
    return op->kind == PROGRAM_QUANTIZE && op->out.dtype != DT_I8 && op->out.dtype != DT_F8_E4M3;
}

static bool is_positions(const struct program_op *op)
{
    return op->kind == PROGRAM_POSITIONS;
}

static bool is_scaled_embed(const struct program_op *op)
{
    return op->kind == PROGRAM_EMBED && op->scale != 1;
}

static bool is_scaled_add(const struct program_op *op)
{
    return op->kind == PROGRAM_ADD && op->scale != 1;
}

static bool is_interleaved(const struct program_op *op)
{
    return op->kind == PROGRAM_ROPE && op->rope.interleaved;
}

static bool is_partial_rope(const struct program_op *op)
{
    return op->kind == PROGRAM_ROPE && op->rope.n_rot != op->rope.head_dim;
}

static bool is_clip(const struct program_op *op)
{
    return op->kind == PROGRAM_CLIP;
}

static bool is_local_rope(const struct program_op *op)
{
    return op->kind == PROGRAM_ROPE && op->rope.local;
}

static bool is_soft_capped(const struct program_op *op)
{
    return op->kind == PROGRAM_ATTENTION && op->attention.soft_cap > 0;
}

static bool has_sinks(const struct program_op *op)
{
    return op->kind == PROGRAM_ATTENTION && op->weight != PROGRAM_W_NONE;
}

static bool has_alibi(const struct program_op *op)
{
    return op->kind == PROGRAM_ATTENTION && op->attention.alibi;
}

static bool is_bidirectional(const struct program_op *op)
{
    return op->kind == PROGRAM_ATTENTION && !op->attention.causal;
}

static bool is_other_act(const struct program_op *op)
{
    return op->kind == PROGRAM_ACTIVATE && op->act.is != ARCH_SILU;
}

static bool is_expert_act(const struct program_op *op)
{
    return is_other_act(op) && op->out.buffer == PROGRAM_B_EXPERT_ACT;
}

static bool has_expert_bias(const struct program_op *op)
{
    return op->kind == PROGRAM_EXPERTS && op->bias != PROGRAM_W_NONE;
}

static bool is_plain_act(const struct program_op *op)
{
    return op->kind == PROGRAM_ACTIVATE && !op->act.gated;
}

static bool is_sigmoid_route(const struct program_op *op)
{
    return op->kind == PROGRAM_ROUTE && op->route.rule == ARCH_ROUTE_SIGMOID;
}

static bool is_group_route(const struct program_op *op)
{
    return op->kind == PROGRAM_ROUTE && op->route.n_group > 1;
}

static bool is_scaled_route(const struct program_op *op)
{
    return op->kind == PROGRAM_ROUTE && op->route.scale != 1;
}

static bool is_latent(const struct program_op *op)
{
    return op->kind == PROGRAM_ATTENTION_LATENT;
}

static bool has_head_bias(const struct program_op *op)
{
    return op->kind == PROGRAM_MATMUL && op->bias == PROGRAM_W_LM_HEAD_BIAS;
}

static bool is_scale(const struct program_op *op)
{
    return op->kind == PROGRAM_SCALE;
}

static bool is_logit_cap(const struct program_op *op)
{
    return op->kind == PROGRAM_SOFT_CAP;
}

static bool is_of_stage(const struct program_op *op)
{
    return op->kind == PROGRAM_RECEIVE || op->kind == PROGRAM_SEND;
}

static const struct {
    predicate *asks;
    int executors;
    const char *text;
} features[] = {
#define FEATURE(asks, executors, text) {asks, executors, text},
#include "engine/model/forward/features.def"
};

FALLIBLE features_check(const struct layer_program *p, enum executor on, const char *family,
                        struct q_err *e)
{
    const char *device = on == ON_CPU ? "the CPU" : "devices";
    for (uint32_t i = 0; i < p->n_op; i++)
        for (size_t j = 0; j < sizeof features / sizeof *features; j++) {
            if (!features[j].asks(&p->ops[i]) || (features[j].executors & on))
                continue;
            if (p->ops[i].layer == PROGRAM_NO_LAYER)
                return q_fail(e, Q_UNSUPPORTED, "%s: %s is not supported on %s yet", family,
                              features[j].text, device);
            return q_fail(e, Q_UNSUPPORTED, "%s: layer %u: %s is not supported on %s yet", family,
                          p->ops[i].layer, features[j].text, device);
        }
    return Q_OK;
}
