/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as text: each row, the tensors that it is made of below it, and the totals by form and
 * reason. The JSON has every column. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "engine/model/load/load_plan.h"
#include "engine/plugin.h"

#define LOAD_MAPPED_MAX (ARCH_NAME_MAX + 64u)
#define GROUPS_MAX      64u /* of rows that are summed up together; rows of more are not */
#define MIB             1048576.0

static const struct {
    const char *name;
    enum load_owner of;
} dests[DEST_COUNT] = {
#define DEST(name, of, member, kind, join, role, when, ...) {#member, OF_##of},
#include "engine/model/load/load_dests.def"
};

static const char *const kinds[] = {
    [KIND_MATRIX] = "matrix", [KIND_TABLE] = "table", [KIND_NORM] = "norm",
    [KIND_VECTOR] = "vector", [KIND_BIAS] = "bias",
};

static const char *const places[] = {
    [PLACE_REGION] = "region",
    [PLACE_HOST] = "host",
    [PLACE_FILE] = "file",
    [PLACE_SHARED] = "shared",
};

void load_row_name(char out[LOAD_NAME_MAX], const struct load_row *r)
{
    if (r->own) {
        if (r->own->of_layer)
            snprintf(out, LOAD_NAME_MAX, "layers.%u.%s", r->of.layer, r->own->tensor->id);
        else
            snprintf(out, LOAD_NAME_MAX, "%s", r->own->tensor->id);
        return;
    }
    const char *name = dests[r->dest].name;
    switch (dests[r->dest].of) {
    case OF_MODEL:
        snprintf(out, LOAD_NAME_MAX, "%s", name);
        break;
    case OF_LAYER:
        snprintf(out, LOAD_NAME_MAX, "layers.%u.%s", r->of.layer, name);
        break;
    case OF_EXPERT:
        snprintf(out, LOAD_NAME_MAX, "layers.%u.experts.%u.%s", r->of.layer, r->of.expert, name);
        break;
    }
}

/* Inputs that share a scale; 0: all. */
static uint32_t group_of(const struct packed *w)
{
    return w->codes.kind ? w->codes.group : w->group;
}

static const char *form_name(const struct packed *w)
{
    if (w->codes.kind)
        return w->codes.kind == KERN_CODES_BYTES || w->codes.kind == KERN_CODES_SIX ? "8-bit codes"
                                                                                    : "4-bit codes";
    if (w->group)
        return "int4";
    return w->dtype == DT_I8 ? "int8" : w->dtype == DT_F8_E4M3 ? "e4m3" : dtype_name(w->dtype);
}

void load_row_form(char out[LOAD_FORM_MAX], const struct load_row *r)
{
    char group[32] = "";
    if (group_of(&r->form))
        snprintf(group, sizeof group, " in groups of %u", group_of(&r->form));
    snprintf(out, LOAD_FORM_MAX, "%s%s%s%s%s%s", form_name(&r->form), group,
             r->form.blocks ? " with scales of blocks" : "",
             r->form.x_scale > 0 ? ", inputs in one scale" : "",
             r->form.gated ? ", interleaved" : "", r->ordered ? ", act-order" : "");
}

static const char *why_of(const struct load_row *r)
{
    if (r->place == PLACE_FILE)
        return "read where the file is mapped";
    if (r->place == PLACE_SHARED)
        return r->dest == DEST_EMBED ? "read out of the packed lm_head" : "the embedding's table";
    return load_why_text(r->why);
}

/* "[96, 64]", of a vector "[64]". */
static void add_shape(struct buf *out, uint32_t rows, uint32_t cols, bool is_vector)
{
    if (is_vector)
        buf_printf(out, "[%u]", rows);
    else
        buf_printf(out, "[%u, %u]", rows, cols);
}

/* How a source is stored, when it is no tensor of floats: "gptq, 4 bits, groups of 128". */
static void stored_text(char out[LOAD_FORM_MAX], const struct weight_source *s)
{
    const struct quant_tensors *q = &s->quant;
    char group[32] = "";
    *out = '\0';
    if (!q->q)
        return;
    if (q->q->blocks) {
        snprintf(out, LOAD_FORM_MAX, "%s", q->q->blocks->name);
        return;
    }
    if (q->n_group > 1)
        snprintf(group, sizeof group, ", groups of %u", q->group);
    snprintf(out, LOAD_FORM_MAX, "%s, %u bits%s%s",
             q->is_torchao ? "torchao" : quant_method_name(q->method), q->bits, group,
             q->order ? ", act-order" : "");
}

/* Which rows of its tensor a slice is: "rows 64 to 95", "rows 16 to 31 of each 48", "rows 0 to 31 of
 * expert 3". */
static void slice_text(char out[LOAD_FORM_MAX], const struct weight_source *s)
{
    const struct weight_slice *v = &s->slice;
    char each[24] = "";
    char expert[24] = "";
    *out = '\0';
    if (s->stacked)
        snprintf(expert, sizeof expert, "%sexpert %u", v->block ? " of " : "", s->place.expert);
    if (v->stride < s->stored_rows)
        snprintf(each, sizeof each, " of each %u", v->stride);
    if (v->block)
        snprintf(out, LOAD_FORM_MAX, "rows %u to %u%s%s", v->first, v->first + v->block - 1, each,
                 expert);
    else
        snprintf(out, LOAD_FORM_MAX, "%s", expert);
}

/* What a plugin's maps make of the tensor: "" for none. */
static void mapped_text(char out[LOAD_MAPPED_MAX], const struct weight_source *s)
{
    const struct tensor *t = weight_source_tensor(s);
    *out = '\0';
    if (t && (t->stored || t->head_rows))
        snprintf(out, LOAD_MAPPED_MAX, "%s%s", t->stored ? t->name : "as it is named",
                 s->slice.pairs ? ", rows of heads from pairs to halves" : "");
}

/* Its name in the file, and which rows of that tensor it is. */
static const char *stored_name(char buffer[ARCH_NAME_MAX], char rows[LOAD_FORM_MAX],
                               const struct weight_source *s)
{
    const struct tensor *t = weight_source_tensor(s);
    slice_text(rows, s);
    if (!t || !t->stored)
        return weight_source_name(buffer, s);
    if (!*rows && t->is_part)
        snprintf(rows, LOAD_FORM_MAX, "rows %llu to %llu", (unsigned long long)t->first_row,
                 (unsigned long long)(t->first_row + t->shape[0] - 1));
    return t->stored;
}

/* ---- what the rows come to ---- */

struct sum {
    const struct load_row *like;
    uint32_t n_row;
    uint64_t bytes;
};

static bool sums_with(const struct load_row *a, const struct load_row *b)
{
    const bool vectors = a->kind >= KIND_NORM && b->kind >= KIND_NORM;
    return (vectors || a->kind == b->kind) && a->place == b->place && a->why == b->why &&
           a->form.dtype == b->form.dtype && a->form.group == b->form.group &&
           a->form.blocks == b->form.blocks &&
           memcmp(&a->form.codes, &b->form.codes, sizeof a->form.codes) == 0;
}

static uint32_t sum_rows(struct sum sums[GROUPS_MAX], const struct load_plan *p)
{
    uint32_t n = 0;
    for (size_t i = 0; i < p->n_row; i++) {
        const struct load_row *r = &p->rows[i];
        uint32_t k = 0;
        while (k < n && !sums_with(sums[k].like, r))
            k++;
        if (k == GROUPS_MAX)
            continue;
        if (k == n)
            sums[n++] = (struct sum){.like = r};
        sums[k].n_row++;
        sums[k].bytes += r->bytes;
    }
    return n;
}

/* The form that rows of one sum have in common. */
static void sum_form(char out[LOAD_FORM_MAX], const struct sum *s)
{
    struct load_row r = *s->like;
    r.form.gated = 0;
    r.ordered = false;
    load_row_form(out, &r);
}

/* ---- text ---- */

static void pad_to(struct buf *out, size_t start, size_t column)
{
    do
        buf_add_char(out, ' ');
    while (out->len - start < column && !out->failed);
}

/* Are its numbers those of --load-format dummy? */
static bool is_dummy(const struct weight_source *s)
{
    return !s->tensor && !s->quant.q && !arch_is_made(s->spec);
}

static void text_source(struct buf *out, const struct weight_source *s, bool is_vector)
{
    char buffer[ARCH_NAME_MAX], stored[LOAD_FORM_MAX], rows[LOAD_FORM_MAX], mapped[LOAD_MAPPED_MAX];
    if (!s->present)
        return;
    stored_text(stored, s);
    mapped_text(mapped, s);
    const char *name = stored_name(buffer, rows, s);
    buf_printf(out, "    %s %s%s", name, rows, *rows ? " " : "");
    add_shape(out, s->rows, s->cols, is_vector);
    buf_printf(out, " %s%s%s%s\n", is_dummy(s) ? "dummy " : "",
               *stored ? stored : dtype_name(s->dtype), *mapped ? " -> " : "", mapped);
}

static void text_row(struct buf *out, const struct load_plan *p, const struct load_row *r)
{
    char name[LOAD_NAME_MAX], form[LOAD_FORM_MAX];
    const size_t start = out->len;
    const bool is_vector = r->kind >= KIND_NORM;
    load_row_name(name, r);
    load_row_form(form, r);
    buf_add_str(out, name);
    pad_to(out, start, 32);
    add_shape(out, r->form.n_out, r->form.n_in, is_vector);
    pad_to(out, start, 48);
    buf_add_str(out, form);
    pad_to(out, start, 80);
    buf_printf(out, "%12zu bytes  %s\n", r->bytes, why_of(r));
    for (uint32_t i = 0; i < r->n_source; i++)
        text_source(out, load_plan_sources(p, r) + i, is_vector);
}

const char *load_plan_format(const struct load_plan *p)
{
    return p->files ? weight_format_name(tensor_set_format(p->files)) : "dummy";
}

void load_plan_sums_text(struct buf *out, const struct load_plan *p)
{
    struct sum sums[GROUPS_MAX];
    const uint32_t n = sum_rows(sums, p);
    char form[LOAD_FORM_MAX];
    for (uint32_t i = 0; i < n; i++) {
        const size_t start = out->len;
        const struct load_row *r = sums[i].like;
        sum_form(form, &sums[i]);
        buf_printf(out, "%6u x %s", sums[i].n_row,
                   r->kind >= KIND_NORM ? "vector" : kinds[r->kind]);
        pad_to(out, start, 32);
        buf_add_str(out, form);
        pad_to(out, start, 72);
        buf_printf(out, "%16" PRIu64 " bytes  %s\n", sums[i].bytes, why_of(r));
    }
}

void load_plan_text(struct buf *out, const struct load_plan *p)
{
    if (p->files)
        buf_printf(out, "weights of %s (--load-format %s)\n", tensor_set_found(p->files),
                   load_plan_format(p));
    else
        buf_add_str(out, "dummy weights (--load-format dummy)\n");
    for (size_t i = 0; i < p->n_row; i++)
        text_row(out, p, &p->rows[i]);
    buf_add_char(out, '\n');
    load_plan_sums_text(out, p);
    buf_printf(out, "%s: %" PRIu64 " parameters, %zu bytes of packed weights (%.1f MiB)\n",
               p->arch->name, p->n_param, p->n_bytes, (double)p->n_bytes / MIB);
}

/* ---- JSON ---- */

static void add_text(struct buf *out, const char *key, const char *text)
{
    buf_printf(out, "\"%s\": ", key);
    buf_add_json_str(out, text, strlen(text));
}

static void json_source(struct buf *out, const struct weight_source *s, bool is_vector)
{
    char buffer[ARCH_NAME_MAX], stored[LOAD_FORM_MAX], rows[LOAD_FORM_MAX], mapped[LOAD_MAPPED_MAX];
    stored_text(stored, s);
    mapped_text(mapped, s);
    buf_add_char(out, '{');
    add_text(out, "tensor", stored_name(buffer, rows, s));
    if (*rows) {
        buf_add_str(out, ", ");
        add_text(out, "slice", rows);
    }
    if (*mapped) {
        buf_add_str(out, ", ");
        add_text(out, "mapped_to", mapped);
    }
    buf_add_str(out, ", \"shape\": ");
    add_shape(out, s->rows, s->cols, is_vector);
    buf_add_str(out, ", ");
    add_text(out, "dtype", dtype_name(s->quant.q ? s->quant.q->dtype : s->dtype));
    if (*stored) {
        buf_add_str(out, ", ");
        add_text(out, "stored", stored);
    }
    buf_printf(out, ", \"dummy\": %s}", is_dummy(s) ? "true" : "false");
}

static void json_row(struct buf *out, const struct load_plan *p, const struct load_row *r)
{
    char name[LOAD_NAME_MAX];
    const char *separator = "";
    const bool is_vector = r->kind >= KIND_NORM;
    load_row_name(name, r);
    buf_add_char(out, '{');
    add_text(out, "name", name);
    buf_add_str(out, ", ");
    add_text(out, "kind", kinds[r->kind]);
    buf_add_str(out, ", \"shape\": ");
    add_shape(out, r->form.n_out, r->form.n_in, is_vector);
    buf_add_str(out, ", ");
    add_text(out, "form", form_name(&r->form));
    buf_printf(out,
               ", \"group\": %u, \"interleaved\": %s, \"scale_blocks\": %s, \"act_order\": %s, "
               "\"tied\": %s, ",
               group_of(&r->form), r->form.gated ? "true" : "false",
               r->form.blocks ? "true" : "false", r->ordered ? "true" : "false",
               r->tied ? "true" : "false");
    add_text(out, "place", places[r->place]);
    if (r->place == PLACE_REGION)
        buf_printf(out, ", \"at\": %zu", r->at);
    buf_printf(out, ", \"bytes\": %zu, ", r->bytes);
    add_text(out, "why", why_of(r));
    buf_add_str(out, ", \"sources\": [");
    for (uint32_t i = 0; i < r->n_source; i++) {
        const struct weight_source *s = load_plan_sources(p, r) + i;
        if (!s->present)
            continue;
        buf_add_str(out, separator);
        json_source(out, s, is_vector);
        separator = ", ";
    }
    buf_add_str(out, "]}");
}

void load_plan_sums_json(struct buf *out, const struct load_plan *p)
{
    struct sum sums[GROUPS_MAX];
    const uint32_t n = sum_rows(sums, p);
    char form[LOAD_FORM_MAX];
    buf_add_char(out, '[');
    for (uint32_t i = 0; i < n; i++) {
        sum_form(form, &sums[i]);
        buf_printf(out, "%s{\"rows\": %u, \"bytes\": %" PRIu64 ", ", i ? ", " : "", sums[i].n_row,
                   sums[i].bytes);
        add_text(out, "form", form);
        buf_add_str(out, ", ");
        add_text(out, "why", why_of(sums[i].like));
        buf_add_char(out, '}');
    }
    buf_add_char(out, ']');
}

void load_plan_json(struct buf *out, const struct load_plan *p)
{
    buf_add_char(out, '{');
    add_text(out, "architecture", p->arch->name);
    buf_add_str(out, ", ");
    add_text(out, "load_format", load_plan_format(p));
    buf_add_str(out, ", ");
    add_text(out, "files", p->files ? tensor_set_found(p->files) : "");
    buf_printf(out, ", \"parameters\": %" PRIu64 ", \"bytes\": %zu, \"rows\": [", p->n_param,
               p->n_bytes);
    for (size_t i = 0; i < p->n_row; i++) {
        buf_add_str(out, i ? ", " : "");
        json_row(out, p, &p->rows[i]);
    }
    buf_add_str(out, "], \"summary\": ");
    load_plan_sums_json(out, p);
    buf_add_str(out, "}\n");
}
