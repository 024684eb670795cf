/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/distill/model_costs.h"
#include "common/mem.h"
#include "engine/model/forward/program_text.h"

static struct program_form plain_form(const void *ctx, enum program_weight w, uint32_t layer)
{
    (void)ctx;
    (void)w;
    (void)layer;
    return (struct program_form){.input = DT_F32};
}

const struct program_forms model_costs_forms = {.form = plain_form, .compute = DT_F32};

static double weights_of(const struct program_op *op)
{
    const double size = (double)op->in[0].n_col * op->out.n_col;
    switch (op->kind) {
    case PROGRAM_MATMUL:
        return size;
    case PROGRAM_EXPERTS:
        return size * op->route.n_expert;
    default:
        return 0;
    }
}

static void add_op(struct model_costs *out, const struct program_op *op, uint32_t n_context)
{
    const struct program_costs costs = {.forms = &model_costs_forms};
    const struct program_cost c = program_cost(op, &costs);
    const uint32_t window = op->kind == PROGRAM_ATTENTION ? op->attention.window : 0;
    const uint32_t seen = window && window < n_context ? window : n_context;
    if (op->layer < out->n_layer) {
        out->layers[op->layer] += (double)c.row_ops + (double)c.context_ops * seen;
        out->params_layer += weights_of(op) / out->n_layer;
    } else {
        out->head += (double)c.row_ops;
        out->params_head += weights_of(op);
    }
}

static FALLIBLE costs_of(struct model_costs *out, const struct model_config *c, uint32_t n_context,
                         struct q_err *e)
{
    struct layer_program p = LAYER_PROGRAM_INIT;
    const struct arch *arch = NULL;
    enum q_code rc;
    if (!(out->layers = q_calloc(c->n_layer, sizeof *out->layers)))
        return q_fail(e, Q_NO_MEMORY, "no memory for the costs of %u layers", c->n_layer);
    out->n_layer = c->n_layer;
    out->params_embedding = (double)c->vocab_size * c->hidden_size;
    if (!(rc = arch_find(&arch, c->architecture, e)) &&
        !(rc = program_compile(&p, arch, c, &model_costs_forms, e)))
        for (uint32_t i = 0; i < p.n_op; i++)
            add_op(out, &p.ops[i], n_context);
    program_release(&p);
    return rc;
}

FALLIBLE model_costs_of(struct model_costs *out, const char *dir, uint32_t n_context,
                        struct q_err *e)
{
    struct model_config *c = q_calloc(1, sizeof *c);
    enum q_code rc;
    *out = (struct model_costs)MODEL_COSTS_INIT;
    if (!c)
        return q_fail(e, Q_NO_MEMORY, "no memory for a model's config");
    if (!(rc = model_config_load(c, NULL, dir, e)))
        rc = costs_of(out, c, n_context, e);
    q_free(c);
    if (rc)
        model_costs_release(out);
    return rc;
}

void model_costs_release(struct model_costs *c)
{
    q_free(c->layers);
    *c = (struct model_costs)MODEL_COSTS_INIT;
}

double model_costs_row(const struct model_costs *c)
{
    double sum = c->head;
    for (uint32_t i = 0; i < c->n_layer; i++)
        sum += c->layers[i];
    return sum;
}
