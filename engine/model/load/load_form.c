/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/load_form.h"
#include "engine/model/load/weight_codes.h"
#include "engine/model/load/weight_fp8.h"
#include "engine/model/load/weight_quant.h"

const char *load_why_text(enum load_why why)
{
    static const char *const texts[WHY_COUNT] = {
#define WHY(name, text) [WHY_##name] = (text),
#include "engine/model/load/load_whys.def"
    };
    return texts[why];
}

size_t load_form_bytes(const struct packed *w, const struct device_link *device)
{
    if (device)
        return device->t->matrix_bytes(w);
    if (w->codes.kind)
        return packed_codes_bytes(&w->codes, w->n_out, w->n_in);
    if (w->group)
        return packed_int4_bytes(w->n_out, w->n_in, w->group);
    return w->dtype == DT_I8 || w->dtype == DT_F8_E4M3 ? packed_int8_bytes(w->n_out, w->n_in)
                                                       : packed_bytes(w->dtype, w->n_out, w->n_in);
}

/* float32 keeps 16-bit checkpoints as they are: every product is then of the same f32 values, from
 * half the bytes. Rows that are divided or multiplied are other values. A device multiplies what
 * is of one type. */
enum dtype load_form_floats(const struct load_options *o, const struct weight_source *parts,
                            uint32_t n)
{
    if (o->dtype != DT_F32 || o->device)
        return o->dtype;
    for (uint32_t i = 0; i < n; i++)
        if (parts[i].dtype != parts[0].dtype || parts[i].unit || parts[i].by)
            return DT_F32;
    return parts[0].dtype;
}

/* Those that are made floats are none. */
static uint32_t count_quantized(const struct load_case *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n; i++)
        n += c->parts[i].quant.q && !weight_quant_is_made(&c->parts[i]);
    return n;
}

static bool is_by_checkpoint(const struct load_case *c)
{
    const struct quant_config *q = &c->config->quant;
    return q->method != QUANT_NONE && !quant_config_becomes_floats(q);
}

static struct load_form floats_because(const struct load_case *c, enum load_why why)
{
    return (struct load_form){.dtype = load_form_floats(c->options, c->parts, c->n), .why = why};
}

/* Do all parts have a form of codes, which one matrix can hold? */
static bool has_codes(struct packed_codes *out, const struct load_case *c)
{
    struct packed_codes one;
    bool all = !c->options->device && !c->is_table && weight_codes_form(out, &c->parts[0]);
    for (uint32_t i = 1; i < c->n && all; i++)
        all = weight_codes_form(&one, &c->parts[i]) && weight_codes_join(out, &one);
    return all;
}

static struct load_form floats_of(const struct load_case *c)
{
    struct load_form f = floats_because(c, WHY_DTYPE);
    if (has_codes(&f.codes, c))
        return (struct load_form){.dtype = DT_F32, .codes = f.codes, .why = WHY_CODES};
    f.codes = (struct packed_codes){0};
    if (count_quantized(c))
        f.why = WHY_CPU_FP8;
    else if (c->parts[0].quant.q && c->parts[0].quant.method == QUANT_GGUF)
        f.why = WHY_GGUF;
    else if (weight_quant_is_made(&c->parts[0]) && f.dtype == DT_BF16)
        f.why = WHY_MXFP4;
    else if (weight_quant_is_made(&c->parts[0]) && c->parts[0].quant.method != QUANT_MXFP4)
        f.why = WHY_SMALL_FLOATS;
    else if (f.dtype != c->options->dtype)
        f.why = WHY_EXACT;
    return f;
}

/* Can these parts keep their scales of blocks in one matrix? One that begins within a group of 16
 * of another's outputs cannot; interleaved each has groups of its own. */
static bool keeps_blocks(const struct load_case *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (!weight_fp8_is_blocks(&c->parts[i]) || c->parts[i].pad.head ||
            (i + 1 < c->n && !c->interleaved && c->parts[i].rows % KERN_GATE_INTERLEAVE != 0))
            return false;
    return true;
}

/* Of one matrix's inputs: the largest of its parts', so that it cuts none of them more than their
 * own would. 0: a part has none. */
static float x_scale_of(const struct load_case *c)
{
    float most = c->parts[0].quant.x_scale;
    for (uint32_t i = 0; i < c->n; i++) {
        const float one = c->parts[i].quant.x_scale;
        most = one == 0 || most == 0 ? 0 : one > most ? one : most;
    }
    return most;
}

static struct load_form fp8_of(const struct load_case *c)
{
    const bool by_checkpoint = is_by_checkpoint(c);
    const uint32_t n = count_quantized(c);
    struct load_form f = {.dtype = DT_F8_E4M3, .blocks = keeps_blocks(c), .why = WHY_BLOCKS};
    if (!n && c->role != ROLE_EXPERT && (by_checkpoint || c->role == ROLE_LOGITS))
        return floats_because(c, by_checkpoint ? WHY_LEFT : WHY_LOGITS_FLOATS);
    if (f.blocks)
        return f;
    f.x_scale = x_scale_of(c);
    f.why = WHY_STORED;
    for (uint32_t i = 0; i < c->n; i++)
        if (!weight_fp8_is_plain(&c->parts[i]))
            f.why = WHY_MADE_BLOCKS;
    if (n < c->n)
        f.why = by_checkpoint ? WHY_MADE_FLOATS : WHY_ASKED;
    return f;
}

static struct load_form int8_because(enum load_why why)
{
    return (struct load_form){.dtype = DT_I8, .why = why};
}

/* Integers of numbers that the checkpoint has as floats. */
static struct load_form integers_asked_for(const struct load_case *c)
{
    struct load_form f = int8_because(WHY_ASKED);
    if (c->options->quantization != QUANTIZE_INT4)
        return f;
    f.group = kern_int4_group(c->parts[0].cols);
    if (!f.group)
        return int8_because(WHY_INT8_INPUTS);
    return c->role == ROLE_LOGITS ? int8_because(WHY_INT8_LOGITS) : f;
}

/* Why a matrix with this part is int8. */
static enum load_why int8_why(const struct weight_source *part)
{
    const struct quant_tensors *q = &part->quant;
    if (!q->q)
        return WHY_INT8_FLOATS;
    if (q->method == QUANT_GGUF && q->bits != 4)
        return WHY_INT8_BLOCKS;
    if (q->bits > 4)
        return weight_quant_is_int8(part) ? WHY_STORED : WHY_MADE_INT8;
    return q->order && !q->is_even ? WHY_INT8_UNEVEN : WHY_INT8_GROUP;
}

/* The checkpoint's own groups, which must share one order of inputs. Gate and up of a shared expert
 * read what others read too: on the CPU in the model's order. */
static struct load_form integers_stored(const struct load_case *c)
{
    struct load_form f = {.dtype = DT_I8, .group = UINT32_MAX, .why = WHY_STORED};
    for (uint32_t i = 0; i < c->n; i++) {
        const uint32_t group = weight_quant_group(&c->parts[i]);
        if (group == 0)
            return int8_because(int8_why(&c->parts[i]));
        if (!weight_quant_same_order(&c->parts[i], &c->parts[0]))
            return int8_because(WHY_INT8_ORDERS);
        f.group = group < f.group ? group : f.group;
    }
    f.ordered = c->parts[0].quant.order != NULL;
    return f.ordered && c->role == ROLE_SHARED && !c->options->device
               ? int8_because(WHY_INT8_SHARED)
               : f;
}

struct load_form load_form_of(const struct load_case *c)
{
    const bool by_checkpoint = is_by_checkpoint(c);
    if (c->role == ROLE_ROUTER) /* which experts a row takes turns on small differences */
        return floats_because(c, WHY_ROUTER);
    if (c->role == ROLE_FLOATS)
        return floats_because(c, WHY_PLUGIN);
    switch (c->options->quantization) {
    case QUANTIZE_NOT:
        return floats_of(c);
    case QUANTIZE_FP8:
        return fp8_of(c);
    case QUANTIZE_INT8:
    case QUANTIZE_INT4:
        break;
    }
    if (!by_checkpoint)
        return integers_asked_for(c);
    if (c->options->device && !count_quantized(c))
        return floats_because(c, WHY_LEFT);
    return integers_stored(c);
}

/* Why a matrix that could be this cannot be integers in groups. */
static enum load_why int8_instead_of(const struct load_form *f)
{
    return f->dtype == DT_I8 ? f->why : WHY_INT8_FLOATS;
}

void load_form_join(struct load_form *all, const struct load_form *one, bool first)
{
    const bool ordered = one->ordered || (!first && all->ordered);
    const bool blocks = one->blocks && (first || all->blocks);
    const bool has_scale = one->x_scale > 0 && (first || all->x_scale > 0);
    const float most = first || one->x_scale > all->x_scale ? one->x_scale : all->x_scale;
    if (first)
        *all = *one;
    else if (all->dtype != one->dtype || all->group != one->group)
        *all = int8_because(all->group && one->group ? WHY_INT8_EXPERTS
                            : one->group             ? int8_instead_of(all)
                                                     : int8_instead_of(one));
    all->ordered = ordered && all->group;
    all->blocks = blocks;
    all->x_scale = has_scale && all->dtype == DT_F8_E4M3 ? most : 0;
    if (all->why == WHY_BLOCKS && !blocks)
        all->why = WHY_MADE_BLOCKS;
}

enum load_travel load_form_travel(const struct packed *w, const struct weight_source *s)
{
    if (weight_source_has_rows(s))
        return TRAVEL_FLOATS;
    if (weight_quant_is_made(s) || s->pad.head)
        return TRAVEL_MADE;
    if (s->quant.q && w->group)
        return TRAVEL_INT4;
    if (w->blocks)
        return TRAVEL_BLOCKS;
    if (w->dtype == DT_F8_E4M3)
        return weight_fp8_is_plain(s) ? TRAVEL_BYTES : TRAVEL_MADE;
    return s->quant.q && weight_quant_is_int8(s) ? TRAVEL_BYTES : TRAVEL_MADE;
}

bool load_form_alike(const struct packed *w, const struct weight_source *parts, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        if (parts[i].cols != parts[0].cols ||
            load_form_travel(w, &parts[i]) != load_form_travel(w, &parts[0]) ||
            (load_form_travel(w, &parts[0]) == TRAVEL_FLOATS && parts[i].dtype != parts[0].dtype))
            return false;
    return true;
}
