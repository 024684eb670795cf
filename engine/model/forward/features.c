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

static bool is_norm_apart(const struct program_op *op)
{
    return op->kind == PROGRAM_NORM && op->norm.apart;
}

/* In front of the layers: the one behind them is of the rows that are asked for. */
static bool is_norm_of_embed(const struct program_op *op)
{
    return op->kind == PROGRAM_NORM && op->layer == PROGRAM_NO_LAYER && !op->asked;
}

static bool is_norm_of_branch(const struct program_op *op)
{
    return op->kind == PROGRAM_NORM && op->in_place && op->out.buffer != PROGRAM_B_QKV;
}

static bool is_bytes(const struct program_op *op)
{
    return op->kind == PROGRAM_QUANTIZE && (op->out.dtype == DT_I8 || op->out.dtype == DT_F8_E4M3);
}

static bool is_cast(const struct program_op *op)
{
    return op->kind == PROGRAM_QUANTIZE && !is_bytes(op);
}

static bool is_ordered(const struct program_op *op)
{
    return op->kind == PROGRAM_QUANTIZE && op->ordered;
}

static bool is_positions(const struct program_op *op)
{
    return op->kind == PROGRAM_POSITIONS;
}

static bool is_types(const struct program_op *op)
{
    return op->kind == PROGRAM_TYPES;
}

static bool is_pool(const struct program_op *op)
{
    return op->kind == PROGRAM_POOL && op->out.buffer == PROGRAM_B_LOGITS;
}

/* The rows asked for, without a norm. */
static bool is_bare_end(const struct program_op *op)
{
    return op->kind == PROGRAM_POOL && !is_pool(op);
}

/* Between the embedding and the stream, or back. */
static bool is_projection(const struct program_op *op)
{
    return op->weight == PROGRAM_W_PROJECT_IN || op->weight == PROGRAM_W_PROJECT_OUT;
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

static bool is_rope_of_end(const struct program_op *op)
{
    return op->kind == PROGRAM_ROPE && op->rope.first > 0;
}

static bool is_adapted(const struct program_op *op)
{
    return op->kind == PROGRAM_SHRINK || op->kind == PROGRAM_EXPAND;
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

static bool is_xielu(const struct program_op *op)
{
    return op->kind == PROGRAM_ACTIVATE && op->act.is == ARCH_XIELU;
}

static bool is_scaled_q(const struct program_op *op)
{
    return op->kind == PROGRAM_SCALE_Q;
}

static bool is_limited_act(const struct program_op *op)
{
    return op->kind == PROGRAM_ACTIVATE && op->act.limit > 0;
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
    return op->kind == PROGRAM_STORE_LATENT || op->kind == PROGRAM_ATTENTION_LATENT;
}

static bool has_state(const struct program_op *op)
{
    return program_state_floats(op) > 0;
}

static bool is_gate(const struct program_op *op)
{
    return op->kind == PROGRAM_GATE;
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

static bool is_soft_choice(const struct program_op *op)
{
    return op->kind == PROGRAM_ROUTE && op->route.rule == ARCH_ROUTE_SOFTMAX_BIASED;
}

static bool is_mixer(const struct program_op *op)
{
    return op->kind == PROGRAM_ROUTE && op->route.mixer > 0;
}

static bool weighs_input(const struct program_op *op)
{
    return op->kind == PROGRAM_EXPERTS && op->route.of_input;
}

static bool is_combined_apart(const struct program_op *op)
{
    return op->kind == PROGRAM_COMBINE && !op->onto;
}

static bool is_plain_expert(const struct program_op *op)
{
    return op->kind == PROGRAM_EXPERTS && op->weight == PROGRAM_W_EXPERT_UP;
}

static bool is_chunked(const struct program_op *op)
{
    return op->kind == PROGRAM_ATTENTION && op->attention.chunked && op->attention.window;
}

static bool is_wide(const struct program_op *op)
{
    return (op->kind == PROGRAM_STORE || op->kind == PROGRAM_ATTENTION) && op->attention.wide;
}

static bool is_shared(const struct program_op *op)
{
    return op->kind == PROGRAM_ATTENTION && op->attention.shared;
}

static bool is_norm_of_v(const struct program_op *op)
{
    return op->kind == PROGRAM_NORM && op->weight == PROGRAM_W_V_NORM;
}

static bool is_layer_input(const struct program_op *op)
{
    return op->kind == PROGRAM_EMBED && op->onto;
}

static bool has_streams(const struct program_op *op)
{
    return op->kind == PROGRAM_MATCH || op->kind == PROGRAM_PREDICT || op->kind == PROGRAM_CORRECT;
}

static bool is_sparse(const struct program_op *op)
{
    return op->kind == PROGRAM_SPARSE;
}

static bool is_scaled_expert(const struct program_op *op)
{
    return op->kind == PROGRAM_ROUTE && op->weight != PROGRAM_W_NONE;
}

static bool is_layer_scale(const struct program_op *op)
{
    return op->kind == PROGRAM_SCALE && op->weight != PROGRAM_W_NONE;
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

/* An operation with these attributes. Fields go by their places and without their names, here and
 * in listed(), so that one that is added does not compile (-Wmissing-field-initializers of clang)
 * until it has its place. */
#define LISTED(op, ...)                                                                           \
    (struct program_op)                                                                           \
    {                                                                                             \
        (op)->kind, (op)->layer, {(op)->in[0], (op)->in[1]}, (op)->out, (op)->weight, (op)->bias, \
            (op)->in_place, (op)->onto, (op)->asked,                                              \
        {                                                                                         \
            __VA_ARGS__                                                                           \
        }                                                                                         \
    }

static struct program_op listed_state(const struct program_op *o)
{
    if (o->kind == PROGRAM_CONV)
        return LISTED(o, .conv = {o->conv.width, o->conv.state, o->conv.gated});
    if (o->kind == PROGRAM_DELTA)
        return LISTED(o, .delta = {o->delta.state, o->delta.n_key_head, o->delta.n_value_head,
                                   o->delta.key_dim, o->delta.value_dim, o->delta.beta_max});
    return LISTED(o, .scan = {o->scan.state, o->scan.n_head, o->scan.head_dim, o->scan.n_group,
                              o->scan.n_state, o->scan.first, o->scan.step_min, o->scan.step_max,
                              o->scan.by_state});
}

/* The operation as predicates read it: attributes that are listed here, of which an executor
 * supports all values or a row of features.def says what it lacks. */
static struct program_op listed(const struct program_op *o)
{
    switch (o->kind) {
    case PROGRAM_EMBED:
    case PROGRAM_ADD:
    case PROGRAM_SCALE:
        return LISTED(o, .scale = o->scale);
    case PROGRAM_SOFT_CAP:
    case PROGRAM_CLIP:
    case PROGRAM_SPARSE:
        return LISTED(o, .cap = o->cap);
    case PROGRAM_SCALE_Q:
        return LISTED(
            o, .by_position = {o->by_position.growth, o->by_position.length, o->by_position.first});
    case PROGRAM_POOL:
        return LISTED(o, .pool = o->pool);
    case PROGRAM_QUANTIZE:
        return LISTED(o, .ordered = o->ordered);
    case PROGRAM_POSITIONS:
        return LISTED(o, .first = o->first, .div = o->div, .mod = o->mod);
    case PROGRAM_NORM:
        return LISTED(o, .norm = {o->norm.kind, o->norm.unit, o->norm.apart, o->norm.eps});
    case PROGRAM_ACTIVATE:
        return LISTED(o, .act = {o->act.is, o->act.gated, o->act.limit});
    case PROGRAM_ROPE:
        return LISTED(o, .rope = {o->rope.n_head, o->rope.head_dim, o->rope.first, o->rope.n_rot,
                                  o->rope.interleaved, o->rope.local, o->rope.theta});
    case PROGRAM_STORE:
    case PROGRAM_ATTENTION:
        return LISTED(
            o, .attention = {o->attention.n_head, o->attention.n_kv_head, o->attention.head_dim,
                             o->attention.window, o->attention.scale, o->attention.soft_cap,
                             o->attention.causal, o->attention.alibi, o->attention.chunked,
                             o->attention.wide, o->attention.shared, o->attention.of});
    case PROGRAM_STORE_LATENT:
    case PROGRAM_ATTENTION_LATENT:
        return LISTED(
            o, .latent = {o->latent.n_head, o->latent.n_key, o->latent.n_value, o->latent.scale});
    case PROGRAM_HEADS:
        return LISTED(o, .heads = {o->heads.n_head, o->heads.n_in, o->heads.n_out, o->heads.n_kept,
                                   o->heads.w_rows, o->heads.w_first, o->heads.transposed});
    case PROGRAM_ROUTE:
    case PROGRAM_EXPERTS:
    case PROGRAM_COMBINE:
        return LISTED(o, .route = {o->route.rule, o->route.n_expert, o->route.n_used,
                                   o->route.renormalize, o->route.n_group, o->route.n_group_used,
                                   o->route.scale, o->route.mixer, o->route.of_input});
    case PROGRAM_CONV:
    case PROGRAM_DELTA:
    case PROGRAM_SCAN:
        return listed_state(o);
    case PROGRAM_GATE:
        return LISTED(o, .gate = o->gate);
    case PROGRAM_OWN:
        return LISTED(o, .own = o->own);
    case PROGRAM_MATCH:
    case PROGRAM_PREDICT:
    case PROGRAM_CORRECT:
    case PROGRAM_ITEMS:
    case PROGRAM_TYPES:
    case PROGRAM_MATMUL:
    case PROGRAM_SHRINK:
    case PROGRAM_EXPAND:
    case PROGRAM_SHARE:
    case PROGRAM_RECEIVE:
    case PROGRAM_SEND:
    case PROGRAM_KINDS:
        break;
    }
    return LISTED(o, .scale = 0);
}

const char *features_missing(const struct program_op *op, enum executor on)
{
    const struct program_op o = listed(op);
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        if (!(features[i].executors & on) && features[i].asks(&o))
            return features[i].text;
    return NULL;
}

FALLIBLE features_check(const struct layer_program *p, enum executor on, const char *family,
                        struct q_err *e)
{
    const char *device = on == ON_CPU ? "the CPU" : "devices";
    for (uint32_t i = 0; i < p->n_op; i++) {
        const char *text = features_missing(&p->ops[i], on);
        if (text && p->ops[i].layer == PROGRAM_NO_LAYER)
            return q_fail(e, Q_UNSUPPORTED, "%s: %s is not supported on %s yet", family, text,
                          device);
        if (text)
            return q_fail(e, Q_UNSUPPORTED, "%s: layer %u: %s is not supported on %s yet", family,
                          p->ops[i].layer, text, device);
    }
    return Q_OK;
}
