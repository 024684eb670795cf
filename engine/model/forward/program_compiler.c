/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/program_compiler.h"
#include "engine/model/lora/lora.h"

void compile_op(struct compiler *t, const struct program_op *op)
{
    struct program_op with = *op;
    with.layer = t->layer;
    if (!t->rc)
        t->rc = program_add(t->p, &with, t->e);
}

void compile_norm(struct compiler *t, const struct compiled_norm *n)
{
    const bool in_place = n->from.buffer == n->to.buffer;
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_NORM,
                      .in = {n->from},
                      .out = n->to,
                      .weight = n->weight,
                      .bias = if_there(t, n->bias),
                      .in_place = in_place,
                      .norm =
                          {
                              .kind = arch_norm_of(t->l, t->c),
                              .unit = n->unit,
                              .apart = n->apart,
                              .eps = (float)t->c->rms_norm_eps,
                          },
                  });
}

enum program_weight compile_bias_of(enum program_weight norm_weight)
{
    switch (norm_weight) {
    case PROGRAM_W_ATTN_NORM:
        return PROGRAM_W_ATTN_NORM_BIAS;
    case PROGRAM_W_MLP_NORM:
        return PROGRAM_W_MLP_NORM_BIAS;
    case PROGRAM_W_ATTN_POST_NORM:
        return PROGRAM_W_ATTN_POST_NORM_BIAS;
    case PROGRAM_W_MLP_POST_NORM:
        return PROGRAM_W_MLP_POST_NORM_BIAS;
    case PROGRAM_W_EMBED_NORM:
        return PROGRAM_W_EMBED_NORM_BIAS;
    case PROGRAM_W_FINAL_NORM:
        return PROGRAM_W_FINAL_NORM_BIAS;
    default:
        return PROGRAM_W_NONE;
    }
}

void compile_norm_of_stream(struct compiler *t, enum program_weight weight,
                            enum program_weight next)
{
    const struct program_ref h = ref_of(PROGRAM_B_H, made_for(t, next), t->c->hidden_size);
    compile_norm(
        t, &(struct compiled_norm){weight, compile_bias_of(weight), stream(t), h, h.n_col, false});
    t->h_form = (struct program_form){.input = DT_F32};
}

struct program_ref compile_input(struct compiler *t, struct program_ref from, uint16_t bytes,
                                 enum program_weight next)
{
    const struct program_form form = form_of(t, next);
    t->source = from;
    if (form.input == (enum dtype)from.dtype)
        return from;
    const struct program_ref to = ref_of(bytes, form.input, from.n_col);
    if (from.buffer == PROGRAM_B_H) {
        if (is_same_bytes(&form, &t->h_form))
            return to;
        t->h_form = form;
    }
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_QUANTIZE,
                      .in = {from},
                      .out = to,
                      .weight = next,
                      .ordered = form.ordered,
                  });
    return to;
}

/* B (A x) of the adapters that rows have, onto what the product with `weight` has made of x. */
static void adapt(struct compiler *t, struct program_ref to, enum program_weight weight)
{
    const struct program_ref ranks =
        ref_of(PROGRAM_B_ADAPTED, DT_F32, KERN_LORA_PARTS * t->f->lora_rank);
    if (!t->f->lora_rank || !lora_is_adapted(weight))
        return;
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_SHRINK,
                      .in = {t->source},
                      .out = ranks,
                      .weight = weight,
                  });
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_EXPAND,
                      .in = {ranks},
                      .out = to,
                      .weight = weight,
                      .onto = true,
                  });
}

void compile_matmul(struct compiler *t, struct program_ref from, struct program_ref to,
                    enum program_weight weight, enum program_weight bias)
{
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_MATMUL,
                      .in = {from},
                      .out = to,
                      .weight = weight,
                      .bias = if_there(t, bias),
                  });
    adapt(t, to, weight);
}

enum arch_norm_place compile_norm_place(const struct compiler *t)
{
    if (t->l->norms == ARCH_NORMS_MIXER)
        return model_config_has_kv(t->c, t->layer) ? ARCH_NORMS_AFTER : ARCH_NORMS_BEFORE;
    if (t->l->norms != ARCH_NORMS_CONFIG)
        return t->l->norms;
    if (t->c->forward.sum_norms)
        return ARCH_NORMS_SUM;
    return t->c->forward.post_norms ? ARCH_NORMS_BOTH : ARCH_NORMS_BEFORE;
}

void compile_scale(struct compiler *t, struct program_ref x, double scale)
{
    if (scale != 0)
        compile_op(t, &(struct program_op){
                          .kind = PROGRAM_SCALE,
                          .in = {x},
                          .out = x,
                          .in_place = true,
                          .scale = (float)scale,
                      });
}

void compile_add_branch(struct compiler *t, uint16_t buffer, enum program_weight post_norm,
                        double scale)
{
    const double all = t->l->scales ? t->c->forward.residual_multiplier : 0;
    const struct program_ref o = ref_of(buffer, DT_F32, t->c->hidden_size);
    const enum arch_norm_place at = compile_norm_place(t);
    if (at == ARCH_NORMS_AFTER || at == ARCH_NORMS_BOTH)
        compile_norm(t, &(struct compiled_norm){post_norm, compile_bias_of(post_norm), o, o,
                                                o.n_col, false});
    compile_op(t, &(struct program_op){
                      .kind = PROGRAM_ADD,
                      .in = {o},
                      .out = stream(t),
                      .onto = true,
                      .scale = (float)((all != 0 ? all : 1) * (scale != 0 ? scale : 1)),
                  });
    if (at == ARCH_NORMS_SUM)
        compile_norm(t, &(struct compiled_norm){post_norm, compile_bias_of(post_norm), stream(t),
                                                stream(t), o.n_col, false});
}

struct program_ref compile_branch_input(struct compiler *t, enum program_weight weight,
                                        enum program_weight next)
{
    const enum arch_norm_place at = compile_norm_place(t);
    const bool is_bare = t->l->bare_first && t->layer == 0 && weight == PROGRAM_W_ATTN_NORM;
    if (at == ARCH_NORMS_STREAM)
        compile_norm(t, &(struct compiled_norm){weight, compile_bias_of(weight), stream(t),
                                                stream(t), t->c->hidden_size, false});
    if (at == ARCH_NORMS_AFTER || at == ARCH_NORMS_SUM || at == ARCH_NORMS_STREAM || is_bare)
        return compile_input(t, stream(t), PROGRAM_B_H_Q, next);
    compile_norm_of_stream(t, weight, next);
    return compile_input(t, ref_of(PROGRAM_B_H, made_for(t, next), t->c->hidden_size),
                         PROGRAM_B_H_Q, next);
}
