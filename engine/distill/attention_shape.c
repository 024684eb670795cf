/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/attention_shape.h"
#include "engine/distill/model_costs.h"
#include "engine/model/arch.h"

static const char *why_not(const struct program_op *op)
{
    if (!op)
        return "no attention";
    if (op->kind == PROGRAM_ATTENTION_LATENT)
        return "latent attention";
    if (!op->attention.causal)
        return "attention both ways";
    if (op->attention.chunked)
        return "attention in chunks";
    if (op->attention.shared)
        return "K and V of another layer";
    return op->weight != PROGRAM_W_NONE ? "attention sinks" : NULL;
}

static const struct program_op *last_attention(const struct layer_program *p, uint32_t n_layer)
{
    for (uint32_t i = 0; i < p->n_op; i++) {
        const enum program_kind kind = p->ops[i].kind;
        if (p->ops[i].layer == n_layer - 1 &&
            (kind == PROGRAM_ATTENTION || kind == PROGRAM_ATTENTION_LATENT))
            return &p->ops[i];
    }
    return NULL;
}

static FALLIBLE read_shape(struct attention_shape *out, const struct arch *arch,
                           const struct program_op *op, struct q_err *e)
{
    const char *lacks = why_not(op);
    if (lacks)
        return q_fail(e, Q_UNSUPPORTED,
                      "%s: the last layer has %s; expected causal softmax attention over keys of "
                      "each head",
                      arch->name, lacks);
    *out = (struct attention_shape){
        .n_head = op->attention.n_head,
        .n_kv_head = op->attention.n_kv_head,
        .head_dim = op->attention.head_dim,
        .window = op->attention.window,
        .scale = op->attention.scale,
        .soft_cap = op->attention.soft_cap,
    };
    if (op->attention.alibi)
        out->slope_scale = arch->layer.alibi_scaled ? op->attention.scale : 1;
    return Q_OK;
}

FALLIBLE attention_shape_of(struct attention_shape *out, const struct model_config *c,
                            struct q_err *e)
{
    struct layer_program p = LAYER_PROGRAM_INIT;
    const struct arch *arch = NULL;
    enum q_code rc;
    if (!(rc = arch_find(&arch, c->architecture, e)) &&
        !(rc = program_compile(&p, arch, c, &model_costs_forms, e)))
        rc = read_shape(out, arch, last_attention(&p, c->n_layer), e);
    program_release(&p);
    return rc;
}
