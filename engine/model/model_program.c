/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/model_program.h"
#include "engine/model/forward/acts.h"
#include "engine/model/forward/cpu_asked.h"
#include "engine/model/forward/features.h"
#include "engine/model/forward/program_cut.h"
#include "engine/model/forward/program_text.h"
#include "engine/model/plugin/host_program.h"

#define FUSIONS_CPU \
    (PROGRAM_FUSE(QKV_EPILOGUE) | PROGRAM_FUSE(NORM_QUANTIZE) | PROGRAM_FUSE(MATMUL_ADD))
/* As the device's operations are: norm_rows makes bytes, qkv_epilogue, linear adds. */
#define FUSIONS_DEVICE (FUSIONS_CPU | PROGRAM_FUSE(QKV_STORE))

/* The family's program, what the plugin makes of it, and of that the stage. */
static enum q_code compile(struct layer_program *p, const struct model *m,
                           const struct program_forms *f, struct q_err *e)
{
    const struct program_change change = {p, m->plugin, f, m->link != NULL};
    enum q_code rc;
    if ((rc = program_compile(p, m->arch, &m->config, f, e)) ||
        (m->plugin && (rc = plugin_change_program(&change, e))))
        return rc;
    rc = program_cut(p, &m->stage, e);
    program_place_states(p);
    return !rc && p->n_state && p->owns
               ? q_fail(e, Q_UNSUPPORTED,
                        "%s: a plugin's operation in a model with states is not supported",
                        m->arch->name)
               : rc;
}

static void note_read(struct model *m, enum program_weight w)
{
    const uint32_t i = program_weight_info(w)->i_own;
    if (program_weight_is_own(w))
        m->own_read[i / 64] |= UINT64_C(1) << i % 64;
}

FALLIBLE model_program_try(struct model *m, bool on_device, struct q_err *e)
{
    const struct forms_plan plan = {
        .config = &m->config,
        .arch = m->arch,
        .dtype = DT_F32,
        .lora_rank = m->lora_rank,
        .is_apart = on_device && model_program_gate_act(&m->config) != KERN_SILU,
    };
    const struct program_forms forms = forms_planned(&plan);
    struct layer_program p = LAYER_PROGRAM_INIT;
    enum q_code rc = compile(&p, m, &forms, e);
    for (uint32_t i = 0; i < p.n_op && !rc; i++) {
        note_read(m, p.ops[i].weight);
        note_read(m, p.ops[i].bias);
    }
    if (!rc)
        rc = features_check(&p, on_device ? ON_DEVICE : ON_CPU, m->arch->name, e);
    program_release(&p);
    return rc;
}

enum kern_act model_program_gate_act(const struct model_config *c)
{
    enum arch_activation act;
    return arch_activation_parse(&act, c->hidden_act) ? act_of(act) : KERN_SILU;
}

static enum q_code fail_weight(const struct model *m, const struct program_op *op,
                               enum program_weight w, struct q_err *e)
{
    return q_fail(e, Q_UNSUPPORTED, "%s: %s of layer %u is not loaded yet (operation %s)",
                  m->arch->name, program_weight_info(w)->name,
                  op->layer == PROGRAM_NO_LAYER ? 0 : op->layer, program_kind_name(op->kind));
}

/* Outputs of a product as its matrix has them: interleaved ones are rounded up. */
static bool fits(const struct packed *w, const struct program_op *op)
{
    const uint32_t n = op->out.n_col;
    return w->n_in == op->in[0].n_col && (w->gated ? w->n_out >= n : w->n_out == n);
}

/* Does it multiply with its weight? Others have it to say which product they are for. */
static bool reads_all(const struct program_op *op)
{
    return op->kind != PROGRAM_QUANTIZE && op->kind != PROGRAM_SHRINK && op->kind != PROGRAM_EXPAND;
}

/* Are the operation's weights there, and of its shapes? */
static enum q_code check_weights(const struct model *m, const struct program_op *op,
                                 struct q_err *e)
{
    const struct program_weight_info *info = program_weight_info(op->weight);
    const bool is_matrix = info->kind == PROGRAM_MATRIX && op->weight != PROGRAM_W_NONE;
    const bool is_vector = info->kind == PROGRAM_VECTOR && op->weight != PROGRAM_W_NONE;
    const bool is_table = info->kind == PROGRAM_TABLE && op->weight != PROGRAM_W_NONE;
    const struct packed *w =
        is_matrix ? program_matrix(&m->weights, op->weight, op->layer, 0) : NULL;
    if ((is_matrix && !w) || (is_vector && !program_vector(&m->weights, op->weight, op->layer)) ||
        (is_table && !program_table(&m->weights, op->weight, op->layer).rows))
        return fail_weight(m, op, op->weight, e);
    if (op->bias && !program_vector(&m->weights, op->bias, op->layer))
        return fail_weight(m, op, op->bias, e);
    if (w && reads_all(op) && !fits(w, op))
        return q_fail(e, Q_MISMATCH, "%s of layer %u is [%u, %u], its operation takes [%u, %u]",
                      info->name, op->layer, w->n_out, w->n_in, op->out.n_col, op->in[0].n_col);
    return Q_OK;
}

/* Operations, and bytes of matrices, of all stages (model_shape). Devices compute all rows to the
 * end of the layers. */
static void count_work(struct model *m, const struct program_forms *f)
{
    const struct layer_program *p = &m->program;
    struct model_shape *s = &m->shape;
    const struct program_costs costs = {
        .forms = f,
        .table_bytes = dtype_bits(m->config.dtype) / 8,
    };
    const uint32_t first_asked = m->link ? p->n_pass : cpu_asked_pass(p);
    s->row_ops = s->logit_ops = s->context_ops = s->step_bytes = 0;
    s->asked_row_ops = s->asked_context_ops = 0;
    for (uint32_t i = 0; i < p->n_pass; i++) {
        const struct program_pass *pass = &p->passes[i];
        const struct program_stage *last = &p->stages[pass->first + pass->n - 1];
        for (uint32_t j = p->stages[pass->first].first; j < last->first + last->n; j++) {
            const struct program_cost c = program_cost(&p->ops[j], &costs);
            *(pass->asked ? &s->logit_ops : &s->row_ops) += c.row_ops;
            s->context_ops += c.context_ops;
            s->step_bytes += c.row_bytes;
            if (pass->asked || i < first_asked)
                continue;
            s->asked_row_ops += c.row_ops;
            s->asked_context_ops += c.context_ops;
        }
    }
}

FALLIBLE model_program_make(struct model *m, struct q_err *e)
{
    const struct program_forms forms = forms_of_model(m);
    struct layer_program *p = &m->program;
    enum q_code rc;
    program_release(p);
    if ((rc = compile(p, m, &forms, e)) ||
        (rc = features_check(p, m->link ? ON_DEVICE : ON_CPU, m->arch->name, e)))
        return rc;
    for (uint32_t i = 0; i < p->n_op; i++)
        if ((rc = check_weights(m, &p->ops[i], e)))
            return rc;
    const uint32_t fusions = m->link ? FUSIONS_DEVICE : FUSIONS_CPU;
    rc = program_fuse(p, &forms, m->no_fusion ? 0 : fusions, e);
    if (!rc)
        plugin_place_buffers(p);
    if (!rc)
        count_work(m, &forms);
    return rc;
}

/* As m would be loaded. */
static struct forms_plan plan_of_options(const struct model *m)
{
    return (struct forms_plan){
        .config = &m->config,
        .arch = m->arch,
        .dtype = m->shape.compute_dtype,
        .quantization = m->shape.quantization,
    };
}

FALLIBLE model_program_state_bytes(uint64_t *out, const struct model *m, struct q_err *e)
{
    const struct forms_plan plan = plan_of_options(m);
    const struct program_forms forms = forms_planned(&plan);
    struct layer_program p = LAYER_PROGRAM_INIT;
    const enum q_code rc = compile(&p, m, &forms, e);
    *out = p.n_state * sizeof(float);
    program_release(&p);
    return rc;
}

FALLIBLE model_program_show(struct buf *out, const struct model *m, const struct model_show *how,
                            struct q_err *e)
{
    const struct forms_plan plan = plan_of_options(m);
    const struct program_forms forms = forms_planned(&plan);
    uint64_t kv_bytes[CONFIG_LAYERS_MAX];
    for (uint32_t i = 0; i < m->config.n_layer; i++)
        kv_bytes[i] = model_kv_arrays(m) * (uint64_t)model_kv_block_bytes(m, i) / KERN_BLOCK;
    const struct program_show show = {
        .title = m->arch->name,
        .costs =
            {
                .forms = &forms,
                .kv_bytes = kv_bytes,
                .table_bytes = dtype_bits(m->config.dtype) / 8,
            },
        .n_token = how->n_token,
        .n_context = m->shape.max_model_len,
    };
    struct layer_program p = LAYER_PROGRAM_INIT;
    enum q_code rc;
    if ((rc = compile(&p, m, &forms, e)) || (rc = program_fuse(&p, &forms, FUSIONS_CPU, e)))
        goto out;
    if (how->json)
        program_json(out, &p, &show);
    else
        program_print(out, &p, &show);
out:
    program_release(&p);
    return rc;
}
