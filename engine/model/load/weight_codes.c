/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_codes.h"
#include "common/gguf/rows.h"
#include "engine/model/load/weight_bnb.h"
#include "engine/model/load/weight_fp4.h"
#include "engine/model/load/weight_gguf.h"
#include "engine/model/load/weight_hqq.h"
#include "engine/model/load/weight_mxfp4.h"
#include "engine/model/load/weight_torchao.h"

#define GROUP_MIN 16u
#define GROUP_MAX 128u

/* The kernels' largest group that divides the checkpoint's; 0: none does. */
static uint8_t group_of(uint32_t group)
{
    uint32_t g = GROUP_MAX;
    while (g >= GROUP_MIN && group % g != 0)
        g /= 2;
    return g >= GROUP_MIN ? (uint8_t)g : 0;
}

static struct packed_codes form_of_blocks(const struct gguf_type *t)
{
    static const uint8_t kinds[] = {
        [GGUF_VALUES_BYTES] = KERN_CODES_BYTES,     [GGUF_VALUES_HALVES] = KERN_CODES_HALVES,
        [GGUF_VALUES_SIGNED] = KERN_CODES_SIGNED,   [GGUF_VALUES_NL] = KERN_CODES_NL,
        [GGUF_VALUES_E2M1] = KERN_CODES_E2M1,       [GGUF_VALUES_SIX] = KERN_CODES_SIX,
        [GGUF_VALUES_IQ1] = KERN_CODES_IQ1,         [GGUF_VALUES_IQ2] = KERN_CODES_IQ2,
        [GGUF_VALUES_IQ3_XXS] = KERN_CODES_IQ3_XXS, [GGUF_VALUES_IQ3_S] = KERN_CODES_IQ3_S,
    };
    static const uint8_t scales[] = {
        [GGUF_SCALES_F32] = KERN_SCALES_F32,
        [GGUF_SCALES_F16] = KERN_SCALES_F16,
        [GGUF_SCALES_BY_256] = KERN_SCALES_BY_256,
    };
    const struct gguf_form f = gguf_form_of(t);
    return (struct packed_codes){
        .kind = kinds[f.values],
        .scales = scales[f.scales],
        .has_min = f.has_min,
        .group = (uint8_t)f.group,
        .by_ints =
            f.values != GGUF_VALUES_E2M1, /* MXFP4 and NVFP4 have one product in every file */
    };
}

/* bitsandbytes' blocks know nothing of rows: they must begin where rows do. */
static uint8_t kind_of_bnb(const struct weight_source *s)
{
    const struct quant_tensors *q = &s->quant;
    if (s->cols % q->group != 0)
        return KERN_CODES_NOT;
    for (uint32_t kind = KERN_CODES_NF4; kind < KERN_CODES_END; kind++)
        if (weight_bnb4_has_codes(s, (enum kern_codes)kind))
            return (uint8_t)kind;
    return KERN_CODES_NOT;
}

bool weight_codes_form(struct packed_codes *out, const struct weight_source *s)
{
    const struct quant_tensors *q = &s->quant;
    *out = (struct packed_codes){0};
    if (!q->q)
        return false;
    if (q->method == QUANT_GGUF)
        *out = form_of_blocks(q->q->blocks);
    else if (q->method == QUANT_MXFP4 || (q->method == QUANT_FP4 && q->bits == 4))
        out->kind = KERN_CODES_E2M1;
    else if (q->method == QUANT_TORCHAO)
        *out = (struct packed_codes){.kind = KERN_CODES_SIGNED, .has_min = 1};
    else if (q->method == QUANT_INT8 && q->is_made)
        out->kind = KERN_CODES_BYTES;
    else if (q->method == QUANT_BNB4)
        out->kind = kind_of_bnb(s);
    else if (q->method == QUANT_HQQ)
        *out = (struct packed_codes){
            .kind = q->bits > 4 ? KERN_CODES_BYTES : KERN_CODES_SIGNED,
            .has_min = 1,
        };
    if (!out->group)
        out->group = group_of(q->group);
    return out->kind && out->group && s->cols % out->group == 0;
}

/* Values of -32 … 31. */
static bool is_six_bits(const struct packed_codes *c)
{
    return c->kind == KERN_CODES_HALVES || c->kind == KERN_CODES_SIGNED ||
           c->kind == KERN_CODES_E2M1 || c->kind == KERN_CODES_SIX || c->kind == KERN_CODES_IQ1 ||
           c->kind == KERN_CODES_IQ3_S;
}

bool weight_codes_join(struct packed_codes *all, const struct packed_codes *one)
{
    if (all->kind != one->kind) {
        if (all->kind >= KERN_CODES_INT_END || one->kind >= KERN_CODES_INT_END)
            return false;
        all->kind = is_six_bits(all) && is_six_bits(one) ? KERN_CODES_SIX : KERN_CODES_BYTES;
    }
    if (all->scales != one->scales)
        all->scales = KERN_SCALES_F32;
    all->has_min |= one->has_min;
    all->by_ints &= one->by_ints;
    all->group = one->group < all->group ? one->group : all->group;
    return true;
}

/* ---- packing ---- */

struct arrays { /* of one output: as it is stored, then as dst has it */
    struct gguf_codes stored, packed;
};

/* buffer: n_in * 4 bytes, of which these take 2.5. Groups are GROUP_MIN inputs, or more. */
static struct arrays arrays_in(void *buffer, uint32_t n_in)
{
    const size_t n = (n_in + GROUP_MIN - 1) / GROUP_MIN;
    const size_t n_super = (n_in + KERN_CODES_SUPER - 1) / KERN_CODES_SUPER;
    float *f = buffer;
    struct arrays a;
    a.stored.scales = f;
    a.stored.mins = f + n;
    a.packed.scales = f + 2 * n;
    a.packed.mins = f + 3 * n;
    a.stored.supers = a.packed.supers = f + 4 * n;
    a.stored.super_mins = a.packed.super_mins = f + 4 * n + n_super;
    int8_t *bytes = (int8_t *)(f + 4 * n + 2 * n_super);
    a.stored.parts = bytes;
    a.stored.part_mins = bytes + n;
    a.packed.parts = bytes + 2 * n;
    a.packed.part_mins = bytes + 3 * n;
    a.stored.q = a.packed.q = (uint8_t *)(bytes + 4 * n);
    return a;
}

static void read_output(const struct gguf_codes *to, const struct weight_source *s, uint32_t o)
{
    switch (s->quant.method) {
    case QUANT_MXFP4:
        weight_mxfp4_codes(to->q, to->scales, s, o);
        break;
    case QUANT_FP4:
        weight_fp4_codes(to->q, to->scales, s, o);
        break;
    case QUANT_TORCHAO:
    case QUANT_INT8:
        weight_torchao_codes(&(struct weight_torchao_codes){to->q, to->scales, to->mins}, s, o);
        break;
    case QUANT_BNB4:
        weight_bnb4_codes(to->q, to->scales, s, o);
        break;
    case QUANT_HQQ:
        weight_hqq_codes(to->q, to->scales, to->mins, s, o);
        break;
    default:
        weight_gguf_codes(to, s, o);
    }
}

/* Scales and mins of dst's groups, of those that are stored. stored: inputs of one of these. */
static void set_scales(struct arrays *a, const struct packed *dst, const struct packed_codes *from,
                       uint32_t stored)
{
    const struct packed_codes *to = &dst->codes;
    const bool by_256 = from->scales == KERN_SCALES_BY_256;
    for (uint32_t g = 0; g < dst->n_in / to->group; g++) {
        const uint32_t of = g * to->group / stored, super = g * to->group / KERN_CODES_SUPER;
        if (to->scales == KERN_SCALES_BY_256) {
            a->packed.parts[g] = a->stored.parts[of];
            a->packed.part_mins[g] = from->has_min ? a->stored.part_mins[of] : 0;
            continue;
        }
        a->packed.scales[g] =
            by_256 ? a->stored.supers[super] * (float)a->stored.parts[of] : a->stored.scales[of];
        a->packed.mins[g] = !from->has_min ? 0
                            : by_256 ? a->stored.super_mins[super] * (float)a->stored.part_mins[of]
                                     : a->stored.mins[of];
    }
    for (uint32_t i = 0; by_256 && !from->has_min && i < dst->n_in / KERN_CODES_SUPER; i++)
        a->packed.super_mins[i] = 0;
}

void weight_codes_set(const struct packed *dst, uint32_t row, const struct weight_source *s,
                      uint32_t o, uint32_t n, void *buffer)
{
    struct arrays a = arrays_in(buffer, s->cols);
    struct packed_codes from;
    const struct codes_output packed = {
        a.packed.q,         a.packed.scales, a.packed.mins,       a.packed.parts,
        a.packed.part_mins, a.packed.supers, a.packed.super_mins,
    };
    const bool has_form = weight_codes_form(&from, s);
    const uint32_t stored = s->quant.method == QUANT_GGUF ? from.group : s->quant.group;
    Q_ASSERT(has_form);
    for (uint32_t i = 0; i < n; i++) {
        read_output(&a.stored, s, o + i);
        for (uint32_t k = 0; from.kind != dst->codes.kind && k < s->cols; k++)
            a.packed.q[k] =
                (uint8_t)(int8_t)kern_codes_value((enum kern_codes)from.kind, a.stored.q[k]);
        set_scales(&a, dst, &from, stored);
        kern_codes_set(dst, row + i, &packed);
    }
}
