/* SPDX-License-Identifier: Apache-2.0 */
/* From a family and a config to the list of operations. Each function writes the operations of one
 * part of a layer. Where families or configs differ, a field of struct arch_layer or of the config
 * says so; no function reads the name of a family.
 *
 * Parallel branches: the MLP is computed up to its last product before attention's output is added
 * to x, so that both branches read the same x. A norm that both branches share is in the list
 * twice: computing it again for a block of rows takes less than keeping its output for all rows.
 */
#include "engine/model/forward/program_compiler.h"
#include <math.h>
#include <string.h>
#include "engine/model/forward/rotary.h"

/* ---- attention ---- */

static float attention_scale(const struct compiler *t)
{
    const struct forward_config *f = &t->c->forward;
    if (t->l->scales && f->attention_multiplier != 0)
        return (float)f->attention_multiplier;
    return (float)(1 / sqrt(t->l->scales && f->query_scalar != 0
                                ? f->query_scalar
                                : model_config_head_dim(t->c, t->layer)));
}

/* Does the family have norms of q and k in other layers or models only? */
static bool has_no_qk_norm(const struct compiler *t)
{
    bool in_table = t->l->qk_norm == ARCH_QK_NORM_APART;
    for (size_t i = 0; i < t->arch->n_tensor; i++)
        in_table = in_table || t->arch->tensors[i].slot == W_Q_NORM;
    return in_table && !if_there(t, PROGRAM_W_Q_NORM);
}

/* behind: the rope. */
static void norm_qk(struct compiler *t, struct program_ref q, struct program_ref k, bool behind)
{
    const bool whole = t->l->qk_norm == ARCH_QK_NORM_WHOLE;
    const bool apart = t->l->qk_norm == ARCH_QK_NORM_APART;
    const uint32_t head = model_config_head_dim(t->c, t->layer);
    if (t->l->qk_norm == ARCH_QK_NORM_NONE || behind != t->l->qk_norm_behind_rope ||
        has_no_qk_norm(t))
        return;
    compile_norm(t, &(struct compiled_norm){PROGRAM_W_Q_NORM, PROGRAM_W_NONE, q, q,
                                            whole ? q.n_col : head, apart});
    if (k.n_col)
        compile_norm(t, &(struct compiled_norm){PROGRAM_W_K_NORM, PROGRAM_W_NONE, k, k,
                                                whole ? k.n_col : head, apart});
}

static bool has_alibi(const struct compiler *t)
{
    return t->l->positions == ARCH_ALIBI ||
           (t->l->positions == ARCH_ROPE_OR_ALIBI && t->c->forward.alibi);
}

static void clip(struct compiler *t, struct program_ref qkv)
{
    if (t->l->clips && t->c->forward.clip != 0)
        compile_op(t, &(struct program_op){
                          .kind = PROGRAM_CLIP,
                          .in = {qkv},
                          .out = qkv,
                          .in_place = true,
                          .cap = (float)t->c->forward.clip,
                      });
}

static bool is_rotated(const struct compiler *t)
{
    return arch_rotates(t->l) && !has_alibi(t) && !(t->l->no_rope && t->c->no_rope[t->layer]);
}

/* Scores of far tokens are kept apart by a factor of q. */
static void scale_q(struct compiler *t, struct program_ref q)
{
    const struct forward_config *f = &t->c->forward;
    const bool grows = t->l->query_growth == ARCH_QUERY_GROWTH_ALL ||
                       (t->l->query_growth == ARCH_QUERY_GROWTH_NO_ROPE && !is_rotated(t));
    if (grows && f->query_growth != 0)
        compile_op(
            t, &(struct program_op){
                   .kind = PROGRAM_SCALE_Q,
                   .in = {q},
                   .out = q,
                   .in_place = true,
                   .by_position = {(float)f->query_growth, (float)f->query_length, f->query_first},
               });
}

static void rotate(struct compiler *t, struct program_ref qk)
{
    const struct model_config *c = t->c;
    const bool local = t->l->local_rope && c->window[t->layer];
    const uint32_t head_dim = model_config_head_dim(c, t->layer);
    if (!is_rotated(t))
        return;
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_ROPE,
                      .in = {qk},
                      .out = qk,
                      .in_place = true,
                      .rope =
                          {
                              .n_head = qk.n_col / head_dim,
                              .head_dim = head_dim,
                              .n_rot = c->layers.wide[t->layer] ? model_config_n_rot_wide(c)
                                                                : model_config_n_rot(c),
                              .interleaved = t->l->positions == ARCH_ROPE_INTERLEAVED,
                              .local = local,
                              .theta = local ? c->local_rope.theta : c->rope.theta,
                          },
                  });
}

/* Are its heads others than those of most layers? */
static bool is_wide(const struct compiler *t)
{
    return model_config_head_dim(t->c, t->layer) != t->c->head_dim ||
           model_config_kv_heads(t->c, t->layer) != t->c->n_kv_head;
}

static bool has_sinks(const struct compiler *t)
{
    return t->l->sinks && (!t->l->window_sinks || t->c->window[t->layer]);
}

/* Of q over the cache of the layer, or of the one whose K and V it reads. */
static void attend(struct compiler *t, struct program_ref q, struct program_ref cache,
                   struct program_ref out)
{
    const struct model_config *c = t->c;
    const uint32_t window = t->l->windows ? c->window[t->layer] : 0;
    compile_op(t,
               &(struct program_op){
                   .kind = PROGRAM_ATTENTION,
                   .in = {q, cache},
                   .out = out,
                   .weight = has_sinks(t) ? PROGRAM_W_SINKS : PROGRAM_W_NONE,
                   .attention =
                       {
                           .n_head = c->n_head,
                           .n_kv_head = model_config_kv_heads(c, t->layer),
                           .head_dim = model_config_head_dim(c, t->layer),
                           .window = window,
                           .scale = attention_scale(t),
                           .soft_cap = t->l->soft_caps ? (float)c->forward.attention_soft_cap : 0,
                           .causal = !t->l->bidirectional,
                           .alibi = has_alibi(t),
                           .chunked = window && c->forward.chunks,
                           .wide = is_wide(t),
                           .shared = model_config_reads_kv(c, t->layer),
                           .of = model_config_kv_of(c, t->layer),
                       },
               });
}

/* Norm, q, k and v, and attention: its output is in a. */
static void attention(struct compiler *t)
{
    const struct model_config *c = t->c;
    const uint32_t q_cols = arch_dim_at(c, D_Q, t->layer);
    const uint32_t cache_cols = arch_dim_at(c, D_KV, t->layer);
    const uint32_t kv_cols = model_config_reads_kv(c, t->layer) ? 0 : cache_cols;
    const bool is_gated = t->l->gated;
    const uint32_t n_qkv = q_cols + 2 * kv_cols + (is_gated ? q_cols : 0);
    const struct program_ref qkv = ref_of(PROGRAM_B_QKV, DT_F32, n_qkv);
    const struct program_ref made = ref_of(PROGRAM_B_A_GATED, DT_F32, q_cols);
    const struct program_ref out =
        is_gated ? made : ref_of(PROGRAM_B_A, made_for(t, PROGRAM_W_OUT), q_cols);
    const struct program_ref q = part_of(qkv, 0, q_cols), k = part_of(qkv, q_cols, kv_cols);
    const struct program_ref v = part_of(qkv, q_cols + kv_cols, kv_cols);
    const struct program_ref cache = ref_of(PROGRAM_B_CACHE, DT_F32, 2 * cache_cols);
    const struct program_ref in = compile_branch_input(t, PROGRAM_W_ATTN_NORM, PROGRAM_W_QKV);
    compile_matmul(t, in, qkv, PROGRAM_W_QKV, PROGRAM_W_QKV_BIAS);
    norm_qk(t, q, k, false);
    clip(t, qkv);
    if (if_there(t, PROGRAM_W_V_NORM))
        compile_norm(t, &(struct compiled_norm){PROGRAM_W_V_NORM, PROGRAM_W_NONE, v, v,
                                                model_config_head_dim(c, t->layer), false});
    if (kv_cols)
        compile_scale(t, v, c->forward.value);
    rotate(t, part_of(qkv, 0, q_cols + kv_cols));
    norm_qk(t, q, k, true);
    scale_q(t, q);
    if (kv_cols)
        compile_op(t, &(struct program_op){
                          .kind = PROGRAM_STORE,
                          .in = {k, v},
                          .out = cache,
                          .attention =
                              {
                                  .n_kv_head = model_config_kv_heads(c, t->layer),
                                  .head_dim = model_config_head_dim(c, t->layer),
                                  .wide = is_wide(t),
                              },
                      });
    attend(t, q, cache, out);
    if (is_gated)
        compile_op(t, &(struct program_op){
                          .kind = PROGRAM_GATE,
                          .in = {made, part_of(qkv, q_cols + 2 * kv_cols, q_cols)},
                          .out = ref_of(PROGRAM_B_A, DT_F32, q_cols),
                      });
}

/* ---- latent attention ---- */

#define LATENT_EPS 1e-6f /* of the norms of latents, whatever config.json says of the others */

/* K's up-projection is multiplied into q and V's into the output, so that attention is over the
 * latents, which all heads share. W_KV_B has for each head nope rows of K and value rows of V. */
static void multiply_heads(struct compiler *t, struct program_ref from, struct program_ref to,
                           bool of_value)
{
    const struct latent_config *l = &t->c->latent;
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_HEADS,
                      .in = {from},
                      .out = to,
                      .weight = PROGRAM_W_KV_B,
                      .heads =
                          {
                              .n_head = t->c->n_head,
                              .n_in = of_value ? l->rank : l->nope,
                              .n_out = of_value ? l->value : l->rank,
                              .n_kept = of_value ? 0 : l->rope,
                              .w_rows = l->nope + l->value,
                              .w_first = of_value ? l->nope : 0,
                              .transposed = !of_value,
                          },
                  });
}

static void rotate_end(struct compiler *t, struct program_ref x, uint32_t n_head)
{
    const struct latent_config *l = &t->c->latent;
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_ROPE,
                      .in = {x},
                      .out = x,
                      .in_place = true,
                      .rope =
                          {
                              .n_head = n_head,
                              .head_dim = x.n_col / n_head,
                              .first = x.n_col / n_head - l->rope,
                              .n_rot = l->rope,
                              .interleaved = t->l->positions == ARCH_ROPE_INTERLEAVED &&
                                             !t->c->forward.half_rope,
                              .theta = t->c->rope.theta,
                          },
                  });
}

static void norm_latent(struct compiler *t, enum program_weight weight, struct program_ref from,
                        struct program_ref to)
{
    const uint32_t at = t->p->n_op;
    compile_norm(t, &(struct compiled_norm){weight, PROGRAM_W_NONE, from, to, to.n_col, false});
    if (!t->rc)
        t->p->ops[at].norm.eps = LATENT_EPS;
}

/* q of all heads: columns of qkv, or made of q's latent. */
static struct program_ref latent_q(struct compiler *t, struct program_ref from)
{
    const struct program_ref latent =
        ref_of(PROGRAM_B_Q_LATENT, made_for(t, PROGRAM_W_Q_B), t->c->latent.q_rank);
    const struct program_ref q = ref_of(PROGRAM_B_Q, DT_F32, arch_dim_size(t->c, D_Q));
    if (!t->c->latent.q_rank)
        return from;
    norm_latent(t, PROGRAM_W_Q_NORM, from, latent);
    compile_matmul(t, compile_input(t, latent, PROGRAM_B_Q_LATENT_Q, PROGRAM_W_Q_B), q,
                   PROGRAM_W_Q_B, PROGRAM_W_NONE);
    return q;
}

static float latent_scale(const struct compiler *t)
{
    const struct rope_config *r = &t->c->rope;
    const double root = sqrt(t->c->head_dim);
    const double mscale = r->kind == ROPE_YARN && r->mscale_all_dim > 0
                              ? rope_yarn_mscale(r->factor, r->mscale_all_dim)
                              : 1;
    return (float)(mscale * mscale / root);
}

static void latent_attention(struct compiler *t)
{
    const struct latent_config *l = &t->c->latent;
    const uint32_t n_head = t->c->n_head, n_key = l->rank + l->rope;
    const uint32_t q_cols = l->q_rank ? l->q_rank : arch_dim_size(t->c, D_Q);
    const struct program_ref qkv = ref_of(PROGRAM_B_QKV, DT_F32, q_cols + n_key);
    const struct program_ref key = part_of(qkv, q_cols, n_key), c = part_of(key, 0, l->rank);
    const struct program_ref q_heads = ref_of(PROGRAM_B_Q_HEADS, DT_F32, n_head * n_key);
    const struct program_ref a_heads = ref_of(PROGRAM_B_A_HEADS, DT_F32, n_head * l->rank);
    const struct program_ref cache = ref_of(PROGRAM_B_CACHE, DT_F32, n_key);
    const struct program_op attend = {
        .kind = PROGRAM_ATTENTION_LATENT,
        .in = {q_heads, cache},
        .out = a_heads,
        .latent = {n_head, n_key, l->rank, latent_scale(t)},
    };
    compile_matmul(t, compile_branch_input(t, PROGRAM_W_ATTN_NORM, PROGRAM_W_QKV), qkv,
                   PROGRAM_W_QKV, PROGRAM_W_NONE);
    norm_latent(t, PROGRAM_W_K_NORM, c, c);
    rotate_end(t, part_of(key, l->rank, l->rope), 1);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_STORE_LATENT,
                      .in = {key},
                      .out = cache,
                      .latent = attend.latent,
                  });
    const struct program_ref q = latent_q(t, part_of(qkv, 0, q_cols));
    rotate_end(t, q, n_head);
    scale_q(t, q);
    multiply_heads(t, q, q_heads, false);
    compile_op(t, &attend);
    multiply_heads(t, a_heads,
                   ref_of(PROGRAM_B_A, made_for(t, PROGRAM_W_OUT), arch_dim_size(t->c, D_HEADS_V)),
                   true);
}

static void attention_out(struct compiler *t)
{
    const bool latent = t->l->attention == ARCH_ATTENTION_LATENT;
    const enum dtype made = t->l->gated ? DT_F32 : made_for(t, PROGRAM_W_OUT);
    const struct program_ref a =
        ref_of(PROGRAM_B_A, made, arch_dim_at(t->c, latent ? D_HEADS_V : D_Q, t->layer));
    const struct program_ref in = compile_input(t, a, PROGRAM_B_A_Q, PROGRAM_W_OUT);
    const struct program_ref o = ref_of(PROGRAM_B_O, DT_F32, t->c->hidden_size);
    compile_matmul(t, in, o, PROGRAM_W_OUT, PROGRAM_W_OUT_BIAS);
    compile_scale(t, stream(t), t->c->forward.attention_kept);
    compile_add_branch(t, PROGRAM_B_O, PROGRAM_W_ATTN_POST_NORM, t->c->forward.attention_out);
}

/* ---- inputs of layers ---- */

static float rounded(const struct compiler *t, double x)
{
    const float f = (float)x;
    return t->f->compute == DT_BF16  ? bf16_to_f32(f32_to_bf16(f))
           : t->f->compute == DT_F16 ? f16_to_f32(f32_to_f16(f))
                                     : f;
}

/* What all layers have of the token beside the stream: what a product makes of its embedding,
 * normed for each layer, and a row of a table. In front of the first layer, and of it. */
static void layer_inputs(struct compiler *t)
{
    const uint32_t n = t->c->layers.input;
    const struct program_ref in =
        ref_of(PROGRAM_B_LAYER_IN, DT_F32, arch_dim_size(t->c, D_LAYER_INPUTS));
    const enum program_weight by = PROGRAM_W_LAYER_INPUTS;
    compile_matmul(t, compile_input(t, stream(t), PROGRAM_B_H_Q, by), in, by, PROGRAM_W_NONE);
    compile_scale(t, in, 1 / sqrt(t->c->hidden_size));
    compile_norm(
        t, &(struct compiled_norm){PROGRAM_W_LAYER_INPUTS_NORM, PROGRAM_W_NONE, in, in, n, false});
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_EMBED,
                      .in = {ref_of(PROGRAM_B_IDS, DT_F32, 1)},
                      .out = in,
                      .weight = PROGRAM_W_EMBED_LAYERS,
                      .onto = true,
                      .scale = rounded(t, sqrt(n)),
                  });
    compile_scale(t, in, sqrt(0.5));
}

/* The layer's input of the token through a gate of x, as a branch of the stream; of several ones,
 * of all but the first. */
static void layer_input(struct compiler *t, struct program_ref x)
{
    const uint32_t n = t->c->layers.input;
    const struct program_ref all =
        ref_of(PROGRAM_B_LAYER_IN, DT_F32, arch_dim_size(t->c, D_LAYER_INPUTS));
    const struct program_ref g = ref_of(PROGRAM_B_G, DT_F32, n);
    const struct program_ref act = ref_of(PROGRAM_B_ACT, DT_F32, n);
    const enum program_weight gate = PROGRAM_W_LAYER_GATE, out = PROGRAM_W_LAYER_OUT;
    compile_matmul(t, compile_input(t, x, PROGRAM_B_H_Q, gate), g, gate, PROGRAM_W_NONE);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_ACTIVATE,
                      .in = {g},
                      .out = act,
                      .act = {t->act, false, 0},
                  });
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_GATE,
                      .in = {part_of(all, t->layer * n, n), act},
                      .out = g,
                      .gate = KERN_GATE_PRODUCT,
                  });
    compile_matmul(t, compile_input(t, g, PROGRAM_B_ACT_Q, out),
                   ref_of(PROGRAM_B_O, DT_F32, t->c->hidden_size), out, PROGRAM_W_NONE);
    if (t->c->streams.n)
        compile_add_streams(t, PROGRAM_B_O, PROGRAM_W_LAYER_POST_NORM);
    else
        compile_add_branch(t, PROGRAM_B_O, PROGRAM_W_LAYER_POST_NORM, 0);
}

/* ---- the whole ---- */

static void branches(struct compiler *t)
{
    const bool has_experts = t->c->moe.layers[t->layer];
    const bool has_kv = model_config_has_kv(t->c, t->layer);
    const bool has_mixer = model_config_has_mixer(t->c, t->layer);
    const uint16_t mixed = has_kv ? PROGRAM_B_MIX_O : PROGRAM_B_O;
    if (t->c->streams.rank)
        compile_low_rank(t);
    if (has_mixer)
        compile_mixer(t, mixed);
    if (has_kv && t->l->attention == ARCH_ATTENTION_LATENT)
        latent_attention(t);
    else if (has_kv)
        attention(t);
    if (t->is_parallel && has_experts)
        compile_experts(t);
    else if (t->is_parallel)
        compile_mlp_begin(t);
    if (has_kv)
        attention_out(t);
    if (t->c->streams.rank)
        compile_add_low_rank(t);
    if (has_mixer) {
        compile_scale(t, stream(t), t->c->forward.mixer_kept);
        compile_add_branch(t, mixed, PROGRAM_W_ATTN_POST_NORM, t->c->forward.mixer_out);
    }
    if (t->c->mixer.no_mlp[t->layer])
        return;
    if (!t->is_parallel && has_experts)
        compile_experts(t);
    else if (!t->is_parallel)
        compile_mlp_begin(t);
    if (!has_experts)
        compile_mlp_end(t);
    else if (t->is_parallel)
        compile_add_experts(t);
}

static void layer(struct compiler *t)
{
    const struct program_ref x = stream(t);
    struct program_ref gate = x;
    if (t->layer == 0 && t->c->layers.input)
        layer_inputs(t);
    if (t->layer == 0 && t->c->streams.n)
        compile_streams_begin(t);
    if (t->c->streams.n)
        compile_streams_predict(t);
    branches(t);
    if (t->c->streams.n)
        gate = compile_streams_correct(t);
    if (t->c->layers.input)
        layer_input(t, gate);
    if (t->layer + 1 == t->c->n_layer && t->c->streams.n)
        compile_streams_end(t);
    if (if_there(t, PROGRAM_W_LAYER_SCALE))
        compile_op(t, &(struct program_op){
                          .kind = PROGRAM_SCALE,
                          .in = {x},
                          .out = x,
                          .weight = PROGRAM_W_LAYER_SCALE,
                          .in_place = true,
                          .scale = 1,
                      });
}

static float embedding_scale(const struct compiler *t)
{
    switch (t->l->embedding) {
    case ARCH_EMBEDDING_ROOT_HIDDEN:
        return rounded(t, sqrt(t->c->hidden_size));
    case ARCH_EMBEDDING_CONFIG:
        return t->c->forward.embedding_multiplier != 0 ? (float)t->c->forward.embedding_multiplier
                                                       : 1;
    default:
        return 1;
    }
}

static void embed(struct compiler *t)
{
    const struct program_ref table = ref_of(PROGRAM_B_EMBED, DT_F32, arch_dim_size(t->c, D_EMBED));
    const enum program_weight by = PROGRAM_W_PROJECT_IN;
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_EMBED,
                      .in = {ref_of(PROGRAM_B_IDS, DT_F32, 1)},
                      .out = if_there(t, by) ? table : stream(t),
                      .weight = PROGRAM_W_EMBED,
                      .scale = embedding_scale(t),
                  });
    if (if_there(t, by))
        compile_matmul(t, compile_input(t, table, PROGRAM_B_ACT_Q, by), stream(t), by,
                       PROGRAM_W_NONE);
    if (t->arch->takes_items || t->c->takes_items)
        compile_op(t, &(struct program_op){
                          .kind = PROGRAM_ITEMS,
                          .in = {stream(t)},
                          .out = stream(t),
                          .in_place = true,
                      });
    if (t->l->positions == ARCH_LEARNED)
        compile_op(t, &(struct program_op){
                          .kind = PROGRAM_POSITIONS,
                          .in = {ref_of(PROGRAM_B_POSITIONS, DT_F32, 1)},
                          .out = stream(t),
                          .weight = PROGRAM_W_POSITIONS,
                          .onto = true,
                          .first = t->l->first_position,
                      });
    if (if_there(t, PROGRAM_W_TYPES))
        compile_op(t, &(struct program_op){
                          .kind = PROGRAM_TYPES,
                          .in = {ref_of(PROGRAM_B_TYPES, DT_F32, 1)},
                          .out = stream(t),
                          .weight = PROGRAM_W_TYPES,
                          .onto = true,
                      });
    if (if_there(t, PROGRAM_W_EMBED_NORM)) {
        const struct program_ref x = stream(t);
        compile_norm(t, &(struct compiled_norm){PROGRAM_W_EMBED_NORM,
                                                compile_bias_of(PROGRAM_W_EMBED_NORM), x, x,
                                                x.n_col, false});
    }
}

/* One vector of each sequence in place of logits. The last norm is of the rows that are pooled, so
 * that it is of all rows only where all are taken. */
static void pool(struct compiler *t)
{
    const struct program_ref x = stream(t), out = ref_of(PROGRAM_B_LOGITS, DT_F32, x.n_col);
    const bool has_norm = if_there(t, PROGRAM_W_FINAL_NORM) != PROGRAM_W_NONE;
    const bool takes_all = pooling_takes_all(t->c->pooling);
    const struct program_ref at = takes_all ? x : out;
    const struct compiled_norm last = {
        .weight = PROGRAM_W_FINAL_NORM,
        .bias = PROGRAM_W_FINAL_NORM_BIAS,
        .from = at,
        .to = at,
        .unit = x.n_col,
    };
    if (has_norm && takes_all)
        compile_norm(t, &last);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_POOL,
                      .in = {x},
                      .out = out,
                      .asked = true,
                      .pool = t->c->pooling,
                  });
    if (has_norm && !takes_all)
        compile_norm(t, &last);
}

/* The rows of the stream that are asked for, through the last norm where there is one: what a
 * product with `next` reads. */
static struct program_ref last_rows(struct compiler *t, enum program_weight next)
{
    const struct program_ref rows = ref_of(PROGRAM_B_H, DT_F32, t->c->hidden_size);
    const uint32_t at = t->p->n_op;
    if (!t->c->forward.bare_end) {
        compile_norm_of_stream(t, PROGRAM_W_FINAL_NORM, next);
        if (!t->rc)
            t->p->ops[at].asked = true;
        return compile_input(t, ref_of(PROGRAM_B_H, made_for(t, next), rows.n_col), PROGRAM_B_H_Q,
                             next);
    }
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_POOL,
                      .in = {stream(t)},
                      .out = rows,
                      .asked = true,
                      .pool = POOLING_LAST,
                  });
    t->h_form = (struct program_form){.input = DT_F32};
    return compile_input(t, rows, PROGRAM_B_H_Q, next);
}

/* What the logits' product reads. */
static struct program_ref head_input(struct compiler *t)
{
    const struct program_ref o = ref_of(PROGRAM_B_EMBED, DT_F32, arch_dim_size(t->c, D_EMBED));
    const enum program_weight out = PROGRAM_W_PROJECT_OUT;
    if (!if_there(t, out))
        return last_rows(t, PROGRAM_W_LM_HEAD);
    compile_matmul(t, last_rows(t, out), o, out, PROGRAM_W_NONE);
    return compile_input(t, o, PROGRAM_B_ACT_Q, PROGRAM_W_LM_HEAD);
}

static void logits(struct compiler *t)
{
    const struct program_ref out = ref_of(PROGRAM_B_LOGITS, DT_F32, t->c->vocab_size);
    const struct forward_config *f = &t->c->forward;
    compile_matmul(t, head_input(t), out, PROGRAM_W_LM_HEAD, PROGRAM_W_LM_HEAD_BIAS);
    if (t->l->scales)
        compile_scale(t, out, f->logit_multiplier);
    if (t->l->soft_caps && f->logit_soft_cap != 0)
        compile_op(t, &(struct program_op){
                          .kind = PROGRAM_SOFT_CAP,
                          .in = {out},
                          .out = out,
                          .in_place = true,
                          .cap = (float)f->logit_soft_cap,
                      });
}

static enum q_code check_family(struct compiler *t)
{
    const uint32_t set = t->l->activations ? t->l->activations : 1u << ARCH_SILU;
    char names[200];
    if (!arch_activation_parse(&t->act, t->c->hidden_act) || !(set >> t->act & 1)) {
        arch_activation_names(t->l, names, sizeof names);
        return q_fail(t->e, Q_UNSUPPORTED, "hidden_act \"%s\" is not supported for %s, expected %s",
                      t->c->hidden_act, t->arch->name, names);
    }
    t->is_parallel = t->l->residual == ARCH_RESIDUAL_PARALLEL ||
                     t->l->residual == ARCH_RESIDUAL_SHARED_NORM ||
                     (t->l->residual == ARCH_RESIDUAL_CONFIG && t->c->forward.parallel_residual);
    if (t->c->mixer.kind && (t->is_parallel || t->l->bidirectional || t->c->pools))
        return q_fail(t->e, Q_UNSUPPORTED,
                      "%s: layers with a state are not supported with parallel branches, attention "
                      "both ways or vectors yet",
                      t->arch->name);
    if (t->c->embed_size && (t->c->pools || t->arch->takes_items || t->c->takes_items))
        return q_fail(t->e, Q_UNSUPPORTED,
                      "%s: vectors, and inputs that are no tokens, are not supported of a model "
                      "whose embedding has %u columns and its stream %u",
                      t->arch->name, t->c->embed_size, t->c->hidden_size);
    if (t->c->moe.n_expert && t->is_parallel && t->l->mlp_beside)
        return q_fail(t->e, Q_UNSUPPORTED,
                      "%s: experts beside an MLP are not supported with parallel branches",
                      t->arch->name);
    if (t->c->forward.query_growth != 0 && !t->l->query_growth)
        return q_fail(t->e, Q_UNSUPPORTED,
                      "%s: q that grows with its position (llama_4_scaling_beta) is not supported",
                      t->arch->name);
    if (t->c->moe.shared_width && t->l->share == ARCH_SHARE_GATED && t->l->scales &&
        !compile_experts_apart(t) && t->c->forward.residual_multiplier != 0)
        return q_fail(t->e, Q_UNSUPPORTED,
                      "%s: an expert that all rows use by a score of the router's is not supported "
                      "with a residual_multiplier yet",
                      t->arch->name);
    return Q_OK;
}

static const char *const buffer_names[PROGRAM_BUFFERS] = {
    [PROGRAM_B_NONE] = "-",
    [PROGRAM_B_IDS] = "ids",
    [PROGRAM_B_POSITIONS] = "positions",
    [PROGRAM_B_TYPES] = "types",
    [PROGRAM_B_STREAM_IN] = "stream.in",
    [PROGRAM_B_X] = "x",
    [PROGRAM_B_LAYER_IN] = "layer.in",
    [PROGRAM_B_EMBED] = "embed",
    [PROGRAM_B_STREAMS] = "streams",
    [PROGRAM_B_STREAMS_OUT] = "streams.out",
    [PROGRAM_B_LOW_RANK] = "low.rank",
    [PROGRAM_B_RANKS] = "ranks",
    [PROGRAM_B_H] = "h",
    [PROGRAM_B_H_Q] = "h.q",
    [PROGRAM_B_QKV] = "qkv",
    [PROGRAM_B_Q_LATENT] = "q.latent",
    [PROGRAM_B_Q_LATENT_Q] = "q.latent.q",
    [PROGRAM_B_Q] = "q",
    [PROGRAM_B_Q_HEADS] = "q.heads",
    [PROGRAM_B_A_HEADS] = "a.heads",
    [PROGRAM_B_CACHE] = "kv",
    [PROGRAM_B_MIX] = "mix",
    [PROGRAM_B_MIX_CONV] = "mix.conv",
    [PROGRAM_B_MIX_ACT] = "mix.act",
    [PROGRAM_B_MIX_Q] = "mix.q",
    [PROGRAM_B_MIX_O] = "mix.o",
    [PROGRAM_B_A_GATED] = "a.whole",
    [PROGRAM_B_A] = "a",
    [PROGRAM_B_A_Q] = "a.q",
    [PROGRAM_B_O] = "o",
    [PROGRAM_B_G] = "g",
    [PROGRAM_B_ACT] = "act",
    [PROGRAM_B_ACT_Q] = "act.q",
    [PROGRAM_B_SCORES] = "scores",
    [PROGRAM_B_ROUTES] = "routes",
    [PROGRAM_B_EXPERT_H] = "expert.h",
    [PROGRAM_B_EXPERT_H_Q] = "expert.h.q",
    [PROGRAM_B_EXPERT_G] = "expert.g",
    [PROGRAM_B_EXPERT_ACT] = "expert.act",
    [PROGRAM_B_EXPERT_ACT_Q] = "expert.act.q",
    [PROGRAM_B_EXPERT_O] = "expert.o",
    [PROGRAM_B_EXPERT_SUM] = "expert.sum",
    [PROGRAM_B_EXPERT_SUM_Q] = "expert.sum.q",
    [PROGRAM_B_SHARED_O] = "shared.o",
    [PROGRAM_B_ADAPTED] = "adapted",
    [PROGRAM_B_LOGITS] = "logits",
    [PROGRAM_B_STREAM_OUT] = "stream.out",
};

FALLIBLE program_compile(struct layer_program *p, const struct arch *arch,
                         const struct model_config *c, const struct program_forms *f,
                         struct q_err *e)
{
    struct compiler t = {
        .p = p,
        .arch = arch,
        .l = &arch->layer,
        .c = c,
        .f = f,
        .layer = PROGRAM_NO_LAYER,
        .e = e,
    };
    enum q_code rc = check_family(&t);
    if (rc)
        return rc;
    p->n_layer = c->n_layer;
    p->n_buffer = PROGRAM_BUFFERS;
    for (uint32_t i = 0; i < PROGRAM_BUFFERS; i++)
        p->buffers[i].name = buffer_names[i];
    embed(&t);
    for (t.layer = 0; t.layer < c->n_layer; t.layer++)
        layer(&t);
    t.layer = PROGRAM_NO_LAYER;
    if (c->pools)
        pool(&t);
    else
        logits(&t);
    program_place_states(p);
    return t.rc ? t.rc : program_check(p, e);
}
