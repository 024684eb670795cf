/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/forward/forms.h"
#include "engine/model/forward/matmul.h"
#include "engine/plugin.h"

/* ---- of a loaded model ---- */

/* A plugin may keep a matrix of its own from being quantized. */
static enum dtype cpu_input(const struct model *m, enum program_weight w, const struct packed *p)
{
    if (program_weight_is_own(w))
        return p->group || matmul_reads_bytes(p->dtype) ? DT_I8 : model_input_dtype(m);
    return m->shape.quantization && !program_weight_is_router(w) ? DT_I8 : model_input_dtype(m);
}

/* 4-bit weights have one type of inputs whatever the number of rows is: a row's bits must not
 * depend on it. A router of a quantized model reads f32, as on the CPU. */
static enum dtype device_input(const struct model *m, enum program_weight w, const struct packed *p)
{
    const bool is_router = program_weight_is_router(w) && m->shape.quantization;
    const enum dtype floats = is_router ? DT_F32 : m->shape.compute_dtype;
    const bool is_w4a16 = p->group && floats != DT_F32;
    return matmul_reads_bytes(p->dtype) && !is_w4a16 ? p->dtype : floats;
}

static struct program_form model_form(const void *ctx, enum program_weight w, uint32_t layer)
{
    const struct model *m = ctx;
    const struct packed *p = program_matrix(&m->weights, w, layer, 0);
    if (!p)
        return (struct program_form){.input = model_input_dtype(m)};
    const bool of_expert = program_weight_info(w)->scope == PROGRAM_OF_EXPERT;
    const bool rms = arch_norm_of(&m->arch->layer, &m->config) == ARCH_NORM_RMS; /* norm_rows is */
    const enum dtype input = m->link ? device_input(m, w, p) : cpu_input(m, w, p);
    /* On the CPU experts are picked with their order, and a layer's other products with x follow
     * theirs (load_form.c: WHY_INT8_SHARED). */
    return (struct program_form){
        .input = input,
        .variant = m->link ? p->blocks + 2 * (p->group != 0) : 0,
        .x_scale = p->x_scale,
        .ordered = p->order && !of_expert,
        .interleaved = p->gated,
        .of_norm = matmul_reads_bytes(input) && (!m->link || (rms && !p->group && !p->order)),
        .bytes = load_form_bytes(p, m->link),
    };
}

struct program_forms forms_of_model(const struct model *m)
{
    return (struct program_forms){model_form, m, m->shape.compute_dtype, m->lora_rank};
}

/* ---- planned ---- */

/* Outputs of gate, or of up, in a matrix where they are interleaved. */
static uint32_t interleaved(uint32_t n)
{
    return (n + KERN_GATE_INTERLEAVE - 1) / KERN_GATE_INTERLEAVE * KERN_GATE_INTERLEAVE;
}

/* [n_out, n_in] of a matrix that is made of the tensors which the family's table has. */
static void planned_shape(struct packed *out, const struct forms_plan *p, enum program_weight w,
                          uint32_t layer)
{
    if (program_weight_is_own(w)) {
        const struct config_own *own = &p->config->own[program_weight_info(w)->i_own];
        out->n_out = own->rows;
        out->n_in = own->cols;
        return;
    }
    const struct program_weight_info *info = program_weight_info(w);
    for (uint32_t i = 0; i < info->n_slot; i++)
        for (size_t j = 0; j < p->arch->n_tensor; j++) {
            const struct arch_tensor *t = &p->arch->tensors[j];
            if (t->slot != info->slots[i] || !arch_wants(p->config, t->when, layer) ||
                (w == PROGRAM_W_LM_HEAD && out->n_out))
                continue;
            const uint32_t n_out = arch_dim_at(p->config, t->dims[0], layer);
            out->n_out += !out->gated ? n_out
                          : t->slot == W_GATE_UP || t->slot == W_EXPERT_GATE_UP
                              ? 2 * interleaved(n_out / 2)
                              : interleaved(n_out);
            out->n_in = arch_dim_at(p->config, t->dims[1], layer);
        }
}

/* Does the plugin say that it is not to be quantized? */
static bool is_kept(const struct forms_plan *p, enum program_weight w)
{
    return program_weight_is_own(w) &&
           (p->arch->own[program_weight_info(w)->i_own].tensor->flags & QUIRE_TENSOR_NOT_QUANTIZED);
}

static struct program_form planned_form(const void *ctx, enum program_weight w, uint32_t layer)
{
    const struct forms_plan *p = ctx;
    const bool of_expert = w == PROGRAM_W_EXPERT_GATE_UP;
    const bool gated = (of_expert || w == PROGRAM_W_GATE_UP) && !p->is_apart &&
                       !arch_gate_is_apart(&p->arch->layer, p->config);
    const bool quantized = p->quantization && !program_weight_is_router(w) && !is_kept(p, w);
    const enum dtype floats = p->dtype == DT_F32 ? p->config->dtype : p->dtype;
    const bool halves = p->dtype == DT_BF16 && !p->quantization;
    struct packed m = {.dtype = quantized ? DT_I8 : floats, .gated = gated};
    planned_shape(&m, p, w, layer);
    if (quantized && p->quantization == QUANTIZE_INT4 && w != PROGRAM_W_LM_HEAD)
        m.group = kern_int4_group(m.n_in);
    return (struct program_form){
        .input = quantized ? DT_I8
                 : halves  ? DT_BF16
                           : DT_F32,
        .interleaved = m.gated,
        .of_norm = quantized,
        .bytes = m.n_in ? load_form_bytes(&m, NULL) : 0,
    };
}

struct program_forms forms_planned(const struct forms_plan *p)
{
    return (struct program_forms){planned_form, p, p->dtype, p->lora_rank};
}
