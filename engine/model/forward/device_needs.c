/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/device_needs.h"
#include <string.h>
#include "engine/model/forward/matmul.h"
#include "engine/model/forward/program_text.h"
#include "engine/model/plugin/plugin_arch.h"

/* The kernel of a stage that begins with an operation of this kind; products and what quantizes
 * have one for each format. */
static const struct {
    const char *name;
    size_t offset; /* in struct kern_table */
} kernels[PROGRAM_KINDS] = {
#define KERNEL(kind, op) [PROGRAM_##kind] = {#op, offsetof(struct kern_table, op)}
    KERNEL(EMBED, embed),
    KERNEL(POSITIONS, embed),
    KERNEL(NORM, norm_rows),
    KERNEL(ITEMS, embed),
    KERNEL(ADD, add_rows),
    KERNEL(ACTIVATE, activate),
    KERNEL(ATTENTION, attention),
    KERNEL(STORE, qkv_epilogue),
    KERNEL(ROUTE, moe_route),
    KERNEL(COMBINE, moe_combine),
    KERNEL(SCALE, add_rows),
    KERNEL(SHARE, moe_add_shared),
    KERNEL(SOFT_CAP, soft_cap),
    KERNEL(CLIP, soft_cap),
    KERNEL(ROPE, rope),
    KERNEL(HEADS, head_linear),
    KERNEL(STORE_LATENT, mla_store),
    KERNEL(ATTENTION_LATENT, mla),
    KERNEL(SCALE_Q, add_rows),
    KERNEL(GATE, gate_rows),
    KERNEL(CONV, state_conv),
    KERNEL(DELTA, state_delta),
    KERNEL(SCAN, state_scan),
    KERNEL(TYPES, embed),
    KERNEL(POOL, pool_rows),
    KERNEL(SHRINK, lora_shrink_grouped),
    KERNEL(EXPAND, lora_expand_grouped),
#undef KERNEL
};

struct checker {
    const struct model *m;
    const struct kern_table *k;
    struct q_err *e;
};

static enum q_code need(const struct checker *t, const char *name, bool is_there)
{
    return is_there ? Q_OK
                    : q_fail(t->e, Q_UNSUPPORTED,
                             "device library \"%s\" does not support %s; use --device cpu",
                             t->m->link->t->name, name);
}

static bool has_kernel(const struct kern_table *k, size_t offset)
{
    void (*f)(void);
    memcpy(&f, (const char *)k + offset, sizeof f);
    return f != NULL;
}

static enum q_code check_quantize(const struct checker *t, const struct program_op *op)
{
    const struct packed *w = program_matrix(&t->m->weights, op->weight, op->layer, 0);
    if (!matmul_reads_bytes((enum dtype)op->out.dtype))
        return need(t, "activate", t->k->activate != NULL);
    if (op->out.dtype == DT_I8)
        return need(t, "quant_rows", t->k->quant_rows != NULL);
    if (w->blocks)
        return need(t, "quant_rows_fp8_block", t->k->quant_rows_fp8_block != NULL);
    return need(t, "quant_rows_fp8", t->k->quant_rows_fp8 != NULL);
}

static enum q_code check_product(const struct checker *t, const struct program_op *op)
{
    const struct packed *w = program_matrix(&t->m->weights, op->weight, op->layer, 0);
    const enum dtype input = (enum dtype)op->in[0].dtype;
    const bool grouped = op->kind == PROGRAM_EXPERTS;
    enum q_code rc =
        need(t, matmul_needs(w, input, grouped), matmul_is_there(t->k, w, input, grouped));
    if (!rc && w->order && (grouped || !matmul_reads_bytes(input)))
        rc = need(t, "permute_cols", t->k->permute_cols != NULL);
    if (!rc && grouped)
        rc = need(t, "moe_group_rows", t->k->moe_group_rows != NULL);
    if (!rc && grouped && op->route.of_input)
        rc = need(t, "moe_weigh", t->k->moe_weigh != NULL);
    if (!rc && grouped && op->bias)
        rc = need(t, "moe_add_bias", t->k->moe_add_bias != NULL);
    if (!rc && grouped && op->bias && w->gated)
        rc = q_fail(t->e, Q_UNSUPPORTED,
                    "%s: biases of experts whose gate and up are interleaved are not supported on "
                    "a device; use --device cpu",
                    t->m->arch->name);
    return rc;
}

/* qkv_epilogue and attention hold a head within a block. */
static enum q_code check_heads(const struct checker *t, const struct program_op *op)
{
    const bool of_heads = op->kind == PROGRAM_ATTENTION || op->kind == PROGRAM_STORE;
    return of_heads && op->attention.head_dim > KERN_DEVICE_HEAD_MAX
               ? q_fail(t->e, Q_UNSUPPORTED,
                        "%s: layer %u: heads of %u elements are not supported on a device, at "
                        "most %u are; use --device cpu",
                        t->m->arch->name, op->layer, op->attention.head_dim, KERN_DEVICE_HEAD_MAX)
               : Q_OK;
}

static enum q_code check_stage(const struct checker *t, const struct program_stage *s)
{
    const struct program_op *op = &t->m->program.ops[s->first];
    if (op[s->n - 1].kind == PROGRAM_STORE && s->n > 1) {
        const enum q_code rc = need(t, "qkv_epilogue", t->k->qkv_epilogue != NULL);
        return rc ? rc
               : op->kind == PROGRAM_NORM && op->norm.kind == ARCH_NORM_LAYER
                   ? need(t, "layer_norm", t->k->layer_norm != NULL)
                   : need(t, "rms_norm", t->k->rms_norm != NULL);
    }
    if (op->kind == PROGRAM_OWN)
        return op->own->of->launch ? Q_OK
                                   : q_fail(t->e, Q_UNSUPPORTED,
                                            "%s: operation %s of plugin %s has no code for a "
                                            "device; use --device cpu",
                                            t->m->arch->name, op->own->of->name,
                                            plugin_arch_text(t->m->arch->plugin));
    if (op->kind == PROGRAM_QUANTIZE)
        return check_quantize(t, op);
    if (op->kind == PROGRAM_MATMUL || op->kind == PROGRAM_EXPERTS)
        return check_product(t, op);
    if (op->kind == PROGRAM_ACTIVATE && device_needs_silu_mul(op))
        return need(t, "silu_mul", t->k->silu_mul != NULL);
    if (op->kind == PROGRAM_NORM && op->norm.kind == ARCH_NORM_LAYER)
        return need(t, "layer_norm", t->k->layer_norm != NULL);
    if (op->kind == PROGRAM_NORM && op->norm.unit != op->in[0].n_col)
        return need(t, "norm_units", t->k->norm_units != NULL);
    if (op->kind == PROGRAM_NORM && op->in_place)
        return need(t, "rms_norm", t->k->rms_norm != NULL);
    if (!kernels[op->kind].name)
        return q_fail(
            t->e, Q_UNSUPPORTED,
            "%s: operation %s without fusion is not supported on a device; use --device cpu",
            t->m->arch->name, program_kind_name(op->kind));
    return need(t, kernels[op->kind].name, has_kernel(t->k, kernels[op->kind].offset));
}

FALLIBLE device_needs_check(const struct model *m, struct q_err *e)
{
    const struct checker t = {m, m->kern, e};
    enum q_code rc = need(&t, "scatter", m->kern->scatter != NULL);
    for (uint32_t i = 0; !rc && i < m->program.n_stage; i++)
        rc = check_stage(&t, &m->program.stages[i]);
    for (uint32_t i = 0; !rc && i < m->program.n_op; i++)
        rc = check_heads(&t, &m->program.ops[i]);
    return rc;
}
