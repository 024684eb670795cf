/* SPDX-License-Identifier: Apache-2.0 */
/* What a layer has behind attention: an MLP, experts, or both. */
#include <math.h>
#include "engine/model/forward/program_compiler.h"

static void activate(struct compiler *t, struct program_ref from, struct program_ref to)
{
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_ACTIVATE,
                      .in = {from},
                      .out = to,
                      .weight = t->act == ARCH_XIELU ? PROGRAM_W_ACT_POSITIVE : PROGRAM_W_NONE,
                      .bias = t->act == ARCH_XIELU ? PROGRAM_W_ACT_NEGATIVE : PROGRAM_W_NONE,
                      .act = {t->act, from.n_col != to.n_col,
                              t->l->limited_glu ? (float)t->c->forward.glu_limit : 0},
                  });
}

/* The first product of an MLP, and of experts. */
static enum program_weight first_of_mlp(const struct compiler *t)
{
    return t->l->mlp == ARCH_MLP_GATED ? PROGRAM_W_GATE_UP : PROGRAM_W_UP;
}

/* From the norm's output to the input of down, n_inter columns of act. */
static void mlp_act(struct compiler *t, struct program_ref in, uint32_t n_inter)
{
    const bool gated = t->l->mlp == ARCH_MLP_GATED;
    const struct program_ref g = ref_of(PROGRAM_B_G, DT_F32, gated ? 2 * n_inter : n_inter);
    compile_matmul(t, in, g, first_of_mlp(t), gated ? PROGRAM_W_GATE_UP_BIAS : PROGRAM_W_UP_BIAS);
    if (gated)
        compile_scale(t, part_of(g, 0, n_inter), t->c->forward.mlp_gate);
    if (gated && t->c->streams.sparsity[t->layer] > 0)
        compile_op(t, &(struct program_op){
                          .kind = PROGRAM_SPARSE,
                          .in = {part_of(g, 0, n_inter)},
                          .out = part_of(g, 0, n_inter),
                          .in_place = true,
                          .cap = (float)config_normal_quantile(t->c->streams.sparsity[t->layer]),
                      });
    activate(t, g, ref_of(PROGRAM_B_ACT, made_for(t, PROGRAM_W_DOWN), n_inter));
}

static void mlp_down(struct compiler *t, uint32_t n_inter, uint16_t to)
{
    const struct program_ref act = ref_of(PROGRAM_B_ACT, made_for(t, PROGRAM_W_DOWN), n_inter);
    const struct program_ref in = compile_input(t, act, PROGRAM_B_ACT_Q, PROGRAM_W_DOWN);
    compile_matmul(t, in, ref_of(to, DT_F32, t->c->hidden_size), PROGRAM_W_DOWN,
                   PROGRAM_W_DOWN_BIAS);
}

/* Branches that are side by side may have one norm. */
static enum program_weight mlp_norm(const struct compiler *t)
{
    const bool by_config = t->l->residual == ARCH_RESIDUAL_CONFIG && t->c->forward.shared_norm;
    const bool shared =
        t->is_parallel && (by_config || t->l->residual == ARCH_RESIDUAL_SHARED_NORM);
    return shared ? PROGRAM_W_ATTN_NORM : PROGRAM_W_MLP_NORM;
}

void compile_mlp_begin(struct compiler *t)
{
    mlp_act(t, compile_branch_input(t, mlp_norm(t), first_of_mlp(t)),
            arch_dim_at(t->c, D_INTER, t->layer));
}

void compile_mlp_end(struct compiler *t)
{
    mlp_down(t, arch_dim_at(t->c, D_INTER, t->layer), PROGRAM_B_O);
    compile_scale(t, stream(t), t->c->forward.mlp_kept);
    compile_add_branch(t, PROGRAM_B_O, PROGRAM_W_MLP_POST_NORM, t->c->forward.mlp_out);
}

/* ---- experts ---- */

static enum program_weight first_of_experts(const struct compiler *t)
{
    return t->l->mlp == ARCH_MLP_GATED ? PROGRAM_W_EXPERT_GATE_UP : PROGRAM_W_EXPERT_UP;
}

/* The expert that all rows use: while h is what both read. It is added last. */
static void shared_expert(struct compiler *t)
{
    const uint32_t width = t->c->moe.shared_width;
    mlp_act(t, compile_branch_input(t, mlp_norm(t), first_of_mlp(t)), width);
    mlp_down(t, width, PROGRAM_B_SHARED_O);
}

bool compile_experts_apart(const struct compiler *t)
{
    return compile_norm_place(t) != ARCH_NORMS_BEFORE || t->c->moe.latent || t->is_parallel;
}

/* Of experts apart: beside attention, whose output is in o before they are added. */
static uint16_t apart_buffer(const struct compiler *t)
{
    return t->is_parallel ? PROGRAM_B_MIX_O : PROGRAM_B_O;
}

/* Where the experts' outputs are added up. */
static struct program_ref expert_sum(const struct compiler *t)
{
    return compile_experts_apart(t) ? ref_of(apart_buffer(t), DT_F32, t->c->hidden_size)
                                    : stream(t);
}

/* What is made of h first for the experts. */
static enum program_weight first_of_h(const struct compiler *t)
{
    return t->c->moe.latent ? PROGRAM_W_EXPERTS_IN : first_of_experts(t);
}

static void add_shared(struct compiler *t)
{
    const struct moe_config *m = &t->c->moe;
    const struct program_ref from = ref_of(PROGRAM_B_SHARED_O, DT_F32, t->c->hidden_size);
    const struct program_ref scores = ref_of(PROGRAM_B_SCORES, DT_F32, m->n_expert + 1);
    const bool gated = t->l->share == ARCH_SHARE_GATED;
    if (!gated && !compile_experts_apart(t)) {
        compile_add_branch(t, PROGRAM_B_SHARED_O, PROGRAM_W_MLP_POST_NORM, 0);
        return;
    }
    struct program_op op = {
        .kind = gated ? PROGRAM_SHARE : PROGRAM_ADD,
        .in = {from},
        .out = expert_sum(t),
        .onto = true,
    };
    if (gated)
        op.in[1] = part_of(scores, m->n_expert, 1);
    else
        op.scale = t->c->moe.averages ? 0.5f : 1;
    compile_op(t, &op);
}

static enum arch_route rule_of(const struct compiler *t)
{
    if (t->l->route != ARCH_ROUTE_CONFIG)
        return t->l->route;
    return t->c->moe.sigmoid ? ARCH_ROUTE_SIGMOID : ARCH_ROUTE_TOP_SOFTMAX;
}

static bool renormalizes(const struct compiler *t)
{
    return t->c->moe.renormalize || rule_of(t) == ARCH_ROUTE_TOP_SOFTMAX;
}

/* A multiplier of the branch is one of each expert's weight, where their sum is no branch. */
static double route_scale(const struct compiler *t)
{
    const double branch =
        t->l->scales && !compile_experts_apart(t) ? t->c->forward.residual_multiplier : 0;
    return (t->c->moe.scale != 0 ? t->c->moe.scale : 1) * (branch != 0 ? branch : 1) *
           (t->c->moe.averages ? 0.5 : 1);
}

/* Which experts each row takes, of h as floats. */
static void route(struct compiler *t, struct program_ref h, struct program_ref routes)
{
    const struct moe_config *m = &t->c->moe;
    const bool has_share = m->shared_width && t->l->share == ARCH_SHARE_GATED;
    const struct program_ref scores =
        ref_of(PROGRAM_B_SCORES, DT_F32, m->n_expert + (has_share ? 1u : 0u));
    const bool of_choice =
        rule_of(t) == ARCH_ROUTE_SIGMOID || rule_of(t) == ARCH_ROUTE_SOFTMAX_BIASED;
    compile_matmul(t, h, scores, PROGRAM_W_ROUTER,
                   of_choice ? PROGRAM_W_NONE : PROGRAM_W_ROUTER_BIAS);
    if (t->l->mlp_beside)
        compile_scale(t, scores, 1 / sqrt(t->c->hidden_size));
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_ROUTE,
                      .in = {part_of(scores, 0, m->n_expert)},
                      .out = routes,
                      .weight = if_there(t, PROGRAM_W_EXPERT_SCALES),
                      .bias = of_choice ? if_there(t, PROGRAM_W_ROUTER_BIAS) : PROGRAM_W_NONE,
                      .route =
                          {
                              .rule = rule_of(t),
                              .n_expert = m->n_expert,
                              .n_used = m->n_used,
                              .renormalize = renormalizes(t),
                              .n_group = m->n_group,
                              .n_group_used = m->n_group_used,
                              .scale = (float)route_scale(t),
                              .mixer = t->l->route == ARCH_ROUTE_MIXER ? (float)m->mixer : 0,
                              .of_input = t->l->weighs_input,
                          },
                  });
}

static void multiply_experts(struct compiler *t, struct program_ref from, struct program_ref routes,
                             struct program_ref to, enum program_weight weight)
{
    const struct moe_config *m = &t->c->moe;
    const enum program_weight bias = weight == PROGRAM_W_EXPERT_DOWN
                                         ? PROGRAM_W_EXPERT_DOWN_BIAS
                                         : PROGRAM_W_EXPERT_GATE_UP_BIAS;
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_EXPERTS,
                      .in = {from, routes},
                      .out = to,
                      .weight = weight,
                      .bias = if_there(t, bias),
                      .route =
                          {
                              .rule = rule_of(t),
                              .n_expert = m->n_expert,
                              .n_used = m->n_used,
                              .of_input = t->l->weighs_input && weight != PROGRAM_W_EXPERT_DOWN,
                          },
                  });
}

/* What the router and the experts read: x through the norm, or x. */
struct expert_inputs {
    struct program_ref of_router, h;
};

static struct expert_inputs expert_inputs(struct compiler *t)
{
    const struct moe_config *m = &t->c->moe;
    const enum arch_norm_place at = compile_norm_place(t);
    const enum program_weight first = first_of_h(t);
    const enum dtype made = made_for(t, first);
    const bool is_normed = m->shared_width && made_for(t, first_of_mlp(t)) == made;
    const struct program_ref h = ref_of(PROGRAM_B_H, made, t->c->hidden_size);
    const enum program_weight norm = mlp_norm(t);
    if (m->shared_width)
        shared_expert(t);
    if (at == ARCH_NORMS_AFTER || at == ARCH_NORMS_STREAM) {
        const struct program_form of_router = form_of(t, PROGRAM_W_ROUTER);
        const struct program_form of_experts = form_of(t, first);
        const struct program_ref x =
            m->shared_width ? compile_input(t, stream(t), PROGRAM_B_H_Q, PROGRAM_W_ROUTER)
                            : compile_branch_input(t, norm, PROGRAM_W_ROUTER);
        return (struct expert_inputs){x, is_same_bytes(&of_router, &of_experts) ? x : stream(t)};
    }
    if (!is_normed)
        compile_norm_of_stream(t, norm, first);
    return (struct expert_inputs){h, h};
}

/* The experts' input: h, or what their first product makes of it. */
static struct program_ref enter_experts(struct compiler *t, struct program_ref h)
{
    const struct program_ref latent = ref_of(PROGRAM_B_EXPERT_H, DT_F32, t->c->moe.latent);
    const struct program_ref in = compile_input(t, h, PROGRAM_B_H_Q, first_of_h(t));
    if (!t->c->moe.latent)
        return in;
    compile_matmul(t, in, latent, PROGRAM_W_EXPERTS_IN, PROGRAM_W_EXPERTS_IN_BIAS);
    return compile_input(t, latent, PROGRAM_B_EXPERT_H_Q, first_of_experts(t));
}

static void leave_experts(struct compiler *t, struct program_ref sum, struct program_ref to)
{
    compile_matmul(t, compile_input(t, sum, PROGRAM_B_EXPERT_SUM_Q, PROGRAM_W_EXPERTS_OUT), to,
                   PROGRAM_W_EXPERTS_OUT, PROGRAM_W_EXPERTS_OUT_BIAS);
}

/* The experts that each row takes, of `in`, added up in `to`. */
static void sum_experts(struct compiler *t, struct program_ref in, struct program_ref to, bool onto)
{
    const struct moe_config *m = &t->c->moe;
    const uint32_t n_col = arch_dim_size(t->c, D_EXPERT_HIDDEN);
    const struct program_ref routes = ref_of(PROGRAM_B_ROUTES, DT_F32, m->n_used);
    const struct program_ref sum = m->latent ? ref_of(PROGRAM_B_EXPERT_SUM, DT_F32, n_col) : to;
    const enum program_weight first = first_of_experts(t);
    const bool gated = t->l->mlp == ARCH_MLP_GATED;
    const struct program_ref g = ref_of(PROGRAM_B_EXPERT_G, DT_F32, (gated ? 2 : 1) * m->width);
    const struct program_ref act =
        ref_of(PROGRAM_B_EXPERT_ACT, made_for(t, PROGRAM_W_EXPERT_DOWN), m->width);
    const struct program_ref o = ref_of(PROGRAM_B_EXPERT_O, DT_F32, n_col);
    multiply_experts(t, enter_experts(t, in), routes, g, first);
    activate(t, g, act);
    multiply_experts(t, compile_input(t, act, PROGRAM_B_EXPERT_ACT_Q, PROGRAM_W_EXPERT_DOWN),
                     routes, o, PROGRAM_W_EXPERT_DOWN);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_COMBINE,
                      .in = {o, routes},
                      .out = sum,
                      .onto = onto,
                      .route =
                          {
                              .rule = rule_of(t),
                              .n_expert = m->n_expert,
                              .n_used = m->n_used,
                              .of_input = t->l->weighs_input,
                          },
                  });
    if (m->latent)
        leave_experts(t, sum, to);
}

/* Experts in place of an MLP. */
static void experts(struct compiler *t)
{
    const struct program_ref routes = ref_of(PROGRAM_B_ROUTES, DT_F32, t->c->moe.n_used);
    const struct expert_inputs in = expert_inputs(t);
    route(t, in.of_router, routes);
    sum_experts(t, in.h, expert_sum(t), !compile_experts_apart(t));
    if (t->c->moe.shared_width)
        add_shared(t);
    if (compile_experts_apart(t) && !t->is_parallel)
        compile_add_experts(t);
}

void compile_add_experts(struct compiler *t)
{
    compile_scale(t, stream(t), t->c->forward.mlp_kept);
    compile_add_branch(t, apart_buffer(t), PROGRAM_W_MLP_POST_NORM, t->c->forward.mlp_out);
}

static void norm_in_place(struct compiler *t, struct program_ref x, enum program_weight weight)
{
    compile_norm(t, &(struct compiled_norm){weight, PROGRAM_W_NONE, x, x, x.n_col, false});
}

/* Experts and an MLP: inputs and outputs of both have norms of their own. */
static void experts_beside(struct compiler *t)
{
    const uint32_t hidden = t->c->hidden_size, width = arch_dim_at(t->c, D_INTER, t->layer);
    const struct program_ref of_mlp = ref_of(PROGRAM_B_SHARED_O, DT_F32, hidden);
    const struct program_ref sum = ref_of(PROGRAM_B_O, DT_F32, hidden);
    const struct program_ref routes = ref_of(PROGRAM_B_ROUTES, DT_F32, t->c->moe.n_used);
    const enum program_weight router = PROGRAM_W_ROUTER, first = PROGRAM_W_EXPERT_GATE_UP;
    mlp_act(t, compile_branch_input(t, PROGRAM_W_MLP_NORM, PROGRAM_W_GATE_UP), width);
    mlp_down(t, width, PROGRAM_B_SHARED_O);
    norm_in_place(t, of_mlp, PROGRAM_W_MLP_SIDE_NORM);
    compile_norm_of_stream(t, PROGRAM_W_ROUTER_NORM, router);
    route(t, ref_of(PROGRAM_B_H, made_for(t, router), hidden), routes);
    compile_norm_of_stream(t, PROGRAM_W_EXPERTS_NORM, first);
    sum_experts(t, ref_of(PROGRAM_B_H, made_for(t, first), hidden), sum, false);
    norm_in_place(t, sum, PROGRAM_W_EXPERTS_POST_NORM);
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_ADD,
                      .in = {of_mlp},
                      .out = sum,
                      .onto = true,
                      .scale = 1,
                  });
    compile_add_branch(t, PROGRAM_B_O, PROGRAM_W_MLP_POST_NORM, 0);
}

void compile_experts(struct compiler *t)
{
    if (t->l->mlp_beside)
        experts_beside(t);
    else
        experts(t);
}
