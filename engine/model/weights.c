/* SPDX-License-Identifier: Apache-2.0 */
/* Two walks over the layers. The first finds and checks every tensor and measures; the second, when
 * the region is there, cuts it, fills in the vectors and lists the matrices, which are then packed
 * all at once. Both run the same place_* functions, so that they cannot disagree about a size. */
#include "engine/model/weights.h"
#include <stdio.h>
#include <string.h>
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "engine/model/weights_cache.h"
#include "engine/model/weights_fp8.h"
#include "engine/model/weights_quant.h"

struct fp8_counts {            /* parts of matrices, which have a tensor each */
    uint32_t n_kept, n_blocks; /* as the checkpoint has them: a scale an output, scales of blocks */
    uint32_t n_made, n_float;  /* made e4m3 of other blocks, of floats */
    uint32_t n_left;           /* floats still */
    uint32_t n_input_scale;
};

struct matrix_form { /* what a matrix is packed in */
    enum dtype dtype;
    uint32_t group;       /* above 0: 4 bits */
    enum int8_reason why; /* of int8 in a 4-bit model */
    bool ordered;         /* its inputs have an order of their own */
    bool blocks;          /* e4m3 with scales of blocks */
};

struct expert_sources {
    struct weight_source gate, up, down;
};

struct loader {
    struct weights *w;
    struct weight_finder finder;
    struct weight_filler filler;
    struct upload upload; /* to a device */
    const struct model_options *options;
    struct region_cutter cutter; /* base NULL in the first walk */
    uint64_t bytes_done, bytes_total, bytes_told;
    struct weight_matrix *matrices; /* [n_matrix] to pack; counted by the first walk */
    uint32_t n_matrix, i_matrix;
    struct tensor tied; /* the embedding, as the source of lm_head */
    struct buf plan;    /* of the region, for the packed cache */
    struct cache_id id;
    uint32_t n_in_max; /* longest matrix row, for dummy rows */
    bool is_packed;    /* the region came from the packed cache: it is cut, not filled */
    bool uncounted;    /* a second copy of numbers already counted is being placed */
    bool is_head;      /* the matrix of the logits is being placed */
    bool is_router;    /* a matrix that is never quantized is being placed */
    bool is_expert;    /* one of a layer's experts is */
    bool is_shared;    /* gate and up of the one that all rows use are */
    struct expert_sources *experts;          /* [n_expert] of the layer being placed */
    const struct matrix_form *forced;        /* of the matrix being placed; NULL: its own */
    uint32_t n_by_group[KERN_PANEL * 2 + 1]; /* matrices by their group; 0: int8 */
    uint32_t n_by_reason[INT8_REASONS];      /* of those that are int8 */
    uint32_t n_ordered;                      /* with act-order, among those in groups */
    uint32_t n_float;                        /* that a quantized checkpoint left so */
    struct fp8_counts fp8;
};

/* The type a matrix made of these parts is packed in. float32 keeps 16-bit checkpoints as they are:
 * every product is then of the same f32 values, from half the bytes. */
static enum dtype weights_dtype(const struct model_options *o,
                                const struct weight_source *const *parts, size_t n)
{
    if (o->dtype != DT_F32 || o->link) /* a device multiplies what is of one type */
        return o->dtype;
    for (size_t i = 1; i < n; i++)
        if (parts[i]->dtype != parts[0]->dtype)
            return DT_F32;
    return parts[0]->dtype;
}

/* A device's layout is its library's own, and the way there takes as long as packing. */
static bool wants_cache(const struct loader *l)
{
    return l->options->packed_cache && l->options->format != LOAD_DUMMY && !l->options->link;
}

static void report(struct loader *l, const struct weight_source *s)
{
    uint64_t bytes = (uint64_t)s->rows * s->cols * (dtype_bits(s->dtype) / 8);
    if (l->uncounted)
        return;
    if (!l->cutter.base) {
        l->bytes_total += bytes;
        l->w->n_param += (uint64_t)s->rows * s->cols;
        if (s->cols > l->n_in_max)
            l->n_in_max = s->cols;
        return;
    }
    l->bytes_done += bytes;
}

/* A tied lm_head's bytes are the embedding's, which were counted. */
static void tell_progress(void *ctx, uint64_t bytes_done)
{
    struct loader *l = ctx;
    uint64_t done = l->bytes_done + bytes_done;
    done = done < l->bytes_total ? done : l->bytes_total;
    if (done > l->bytes_told)
        l->options->progress(l->options->progress_ctx, done, l->bytes_total);
    l->bytes_told = done;
}

size_t weights_matrix_bytes(const struct packed *w, const struct device_link *link)
{
    if (link)
        return link->t->matrix_bytes(w);
    if (w->group)
        return packed_int4_bytes(w->n_out, w->n_in, w->group);
    return w->dtype == DT_I8 || w->dtype == DT_F8_E4M3 ? packed_quant_bytes(w->n_out, w->n_in)
                                                       : packed_bytes(w->dtype, w->n_out, w->n_in);
}

/* Outputs of one of the two parts of gated weights, and where they stand. */
static uint32_t turns(uint32_t rows)
{
    return (rows + KERN_TURN - 1) / KERN_TURN * KERN_TURN;
}

static void list_matrix(struct loader *l, const struct packed *dst,
                        const struct weight_source *const *parts, size_t n)
{
    Q_ASSERT(l->i_matrix < l->n_matrix && n <= WEIGHT_PARTS_MAX);
    struct weight_matrix *m = &l->matrices[l->i_matrix++];
    m->dst = *dst;
    m->n_part = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        m->parts[i] = *parts[i];
}

static bool any_quantized(const struct weight_source *const *parts, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (parts[i]->quant.q)
            return true;
    return false;
}

/* What a matrix made of these parts is packed in. In fp8 that of the logits stays as it is, and so
 * do on a device all those that a quantized checkpoint has left as floats. */
static enum dtype matrix_dtype(const struct loader *l, const struct weight_source *const *parts,
                               size_t n)
{
    const bool by_checkpoint = l->finder.config->quant.method != QUANT_NONE;
    if (l->is_router)
        return weights_dtype(l->options, parts, n);
    switch (l->options->quantization) {
    case QUANTIZE_NOT:
        break;
    case QUANTIZE_FP8:
        if (any_quantized(parts, n) || l->is_expert || (!by_checkpoint && !l->is_head))
            return DT_F8_E4M3;
        break;
    default:
        if (!l->options->link || !by_checkpoint || any_quantized(parts, n))
            return DT_I8;
    }
    return weights_dtype(l->options, parts, n);
}

/* Can a matrix made of these parts keep their scales of blocks? A part that begins within a turn of
 * another's outputs cannot; by turns each has its own. */
static bool keeps_blocks(const struct weight_source *const *parts, size_t n, bool gated)
{
    for (size_t i = 0; i < n; i++)
        if (!weights_fp8_is_blocks(parts[i]) ||
            (i + 1 < n && !gated && parts[i]->rows % KERN_TURN != 0))
            return false;
    return true;
}

static struct matrix_form int8_because(enum int8_reason why)
{
    return (struct matrix_form){.dtype = DT_I8, .why = why};
}

/* Of one made of these parts: the checkpoint's own groups where it has 4 bits already, and one
 * order of inputs; gate and up of a shared expert read what others read too, on the CPU in its
 * order. */
static struct matrix_form
matrix_form(const struct loader *l, const struct weight_source *const *parts, size_t n, bool gated)
{
    if (l->forced)
        return *l->forced;
    struct matrix_form f = {.dtype = matrix_dtype(l, parts, n), .why = INT8_FLOATS};
    f.blocks = f.dtype == DT_F8_E4M3 && keeps_blocks(parts, n, gated);
    if (f.dtype != DT_I8)
        return f;
    if (!l->finder.config->quant.method) {
        f.group = l->options->quantization == QUANTIZE_INT4 ? kern_int4_group(parts[0]->cols) : 0;
        return f.group && !l->is_head ? f : int8_because(f.group ? INT8_LOGITS : INT8_INPUTS);
    }
    f.group = UINT32_MAX;
    for (size_t i = 0; i < n; i++) {
        const uint32_t its = weights_quant_group(parts[i]);
        if (its == 0)
            return int8_because(weights_quant_reason(parts[i]));
        if (!weights_quant_same_order(parts[i], parts[0]))
            return int8_because(INT8_ORDERS);
        f.group = its < f.group ? its : f.group;
    }
    f.ordered = parts[0]->quant.order != NULL;
    return f.ordered && l->is_shared && !l->options->link ? int8_because(INT8_SHARED) : f;
}

/* The order of a matrix's inputs, when it is not their own. */
static void place_order(struct loader *l, struct packed *out, const struct weight_source *part)
{
    if (!l->cutter.base && wants_cache(l))
        buf_printf(&l->plan, "order of %u at %zu\n", out->n_in, l->cutter.used);
    uint32_t *order = region_cut(&l->cutter, out->n_in, sizeof *order);
    if (order && l->filler.upload)
        weights_upload_order(&l->filler, order, part);
    else if (order && !l->is_packed)
        weights_quant_order(order, part);
    out->order = order;
    l->n_ordered += !order;
}

static void count_fp8(struct loader *l, const struct packed *w,
                      const struct weight_source *const *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct quant_tensors *q = &parts[i]->quant;
        uint32_t *which = w->dtype != DT_F8_E4M3           ? &l->fp8.n_left
                          : !q->q                          ? &l->fp8.n_float
                          : w->blocks                      ? &l->fp8.n_blocks
                          : weights_fp8_is_plain(parts[i]) ? &l->fp8.n_kept
                                                           : &l->fp8.n_made;
        ++*which;
        l->fp8.n_input_scale += q->q && q->input_scale;
    }
}

static void count_form(struct loader *l, const struct packed *w, const struct matrix_form *f,
                       const struct weight_source *const *parts, size_t n)
{
    count_fp8(l, w, parts, n);
    if (f->dtype == DT_I8)
        l->n_by_group[f->group]++;
    if (f->dtype == DT_I8 && !f->group)
        l->n_by_reason[f->why]++;
    l->n_float += f->dtype != DT_I8 && !l->is_router;
}

/* Outputs of all parts in one packed matrix: one part after the other, or by turns. */
static void place_matrix(struct loader *l, struct packed *out,
                         const struct weight_source *const *parts, size_t n, bool gated)
{
    uint32_t n_out = 0;
    for (size_t i = 0; i < n; i++)
        n_out += gated ? turns(parts[i]->rows) : parts[i]->rows;
    const struct matrix_form form = matrix_form(l, parts, n, gated);
    *out = (struct packed){.n_out = n_out,
                           .n_in = parts[0]->cols,
                           .dtype = form.dtype,
                           .group = form.group,
                           .gated = gated,
                           .blocks = form.blocks};
    if (!l->cutter.base)
        count_form(l, out, &form, parts, n);
    if (form.ordered)
        place_order(l, out, parts[0]);
    if (!l->cutter.base && wants_cache(l))
        weights_plan_matrix(&l->plan, out, l->cutter.used);
    out->data = region_cut(&l->cutter, 1, weights_matrix_bytes(out, l->options->link));
    if (out->data) {
        list_matrix(l, out, parts, n);
        return;
    }
    l->n_matrix++;
    for (size_t i = 0; i < n; i++)
        report(l, parts[i]);
}

/* Vectors one after the other; NULL when no part is there. Absent parts are zero: the region is
 * zeroed. */
static const float *place_vector(struct loader *l, const struct weight_source *const *parts,
                                 size_t n, bool one)
{
    size_t length = 0;
    bool any = false;
    for (size_t i = 0; i < n; i++)
        any = any || parts[i]->present;
    if (!any)
        return NULL;
    for (size_t i = 0; i < n; i++)
        length += parts[i]->rows;
    if (!l->cutter.base && wants_cache(l))
        buf_printf(&l->plan, "vector %zu at %zu\n", length, l->cutter.used);
    float *v = region_cut(&l->cutter, length, sizeof *v);
    for (size_t i = 0, at = 0; i < n; at += parts[i++]->rows) {
        if (!parts[i]->present)
            continue;
        if (v && l->filler.upload)
            weights_upload_vector(&l->filler, v + at, parts[i], one);
        else if (v && !l->is_packed)
            weights_fill_vector(v + at, parts[i], one);
        report(l, parts[i]);
    }
    return v;
}

/* Bias of gated weights, as its outputs lie; NULL when both are absent. */
static const float *place_gated_bias(struct loader *l, const struct weight_source *const parts[2])
{
    if (!parts[0]->present && !parts[1]->present)
        return NULL;
    const uint32_t n = turns(parts[0]->rows);
    if (!l->cutter.base && wants_cache(l))
        buf_printf(&l->plan, "vector %u by turns at %zu\n", 2 * n, l->cutter.used);
    float *v = region_cut(&l->cutter, 2 * (size_t)n, sizeof *v);
    if (v && l->filler.upload)
        weights_upload_turns(&l->filler, v, parts, 2 * n);
    for (uint32_t i = 0; i < 2; i++) {
        if (!parts[i]->present)
            continue;
        if (v && !l->filler.upload && !l->is_packed)
            weights_fill_turns(v + i * KERN_TURN, parts[i]);
        report(l, parts[i]);
    }
    return v;
}

/* Are they by turns? What differs goes to a device one after the other, which multiplies them after
 * the product. */
static bool place_gate_up(struct loader *l, struct packed *out,
                          const struct weight_source *const parts[2])
{
    const struct matrix_form form = matrix_form(l, parts, 2, true);
    const struct packed like = {.dtype = form.dtype, .group = form.group, .blocks = form.blocks};
    const bool apart = l->options->no_fusion && !l->is_expert;
    const bool gated =
        !apart && (!l->options->link || weights_upload_alike(&like, parts[0], parts[1]));
    place_matrix(l, out, parts, 2, gated);
    return gated;
}

/* Which experts a row takes turns on small differences: the router's numbers stay floats. */
static void place_router(struct loader *l, struct layer_weights *out, const struct weight_source *s)
{
    const struct weight_source *const parts[] = {&s[W_ROUTER], &s[W_SHARED_GATE]};
    l->is_router = true;
    place_matrix(l, &out->router, parts, s[W_SHARED_GATE].present ? 2 : 1, false);
    l->is_router = false;
}

/* One launch for all of them knows one form of each matrix: what one expert cannot be, none is. */
struct expert_forms {
    struct matrix_form gate_up, down;
};

static void join(struct matrix_form *all, const struct matrix_form *one, bool first)
{
    const bool ordered = one->ordered || (!first && all->ordered);
    const bool blocks = one->blocks && (first || all->blocks);
    if (first)
        *all = *one;
    else if (all->dtype != one->dtype || all->group != one->group)
        *all = int8_because(all->group && one->group ? INT8_EXPERTS
                            : one->group             ? all->why
                                                     : one->why);
    all->ordered = ordered && all->group;
    all->blocks = blocks;
}

/* Of all experts of the layer, on a device; elsewhere each has its own. */
static void join_experts(struct expert_forms *all, struct loader *l)
{
    l->is_expert = true;
    for (uint32_t i = 0; i < l->finder.config->moe.n_expert; i++) {
        const struct expert_sources *s = &l->experts[i];
        const struct matrix_form gate_up =
            matrix_form(l, (const struct weight_source *const[]){&s->gate, &s->up}, 2, true);
        const struct matrix_form down =
            matrix_form(l, (const struct weight_source *const[]){&s->down}, 1, false);
        join(&all->gate_up, &gate_up, i == 0);
        join(&all->down, &down, i == 0);
    }
    l->is_expert = false;
}

/* forms: NULL, its own. */
static void place_expert(struct loader *l, struct expert_weights *out,
                         const struct expert_sources *s, const struct expert_forms *forms)
{
    const struct weight_source *const gate_up[] = {&s->gate, &s->up};
    l->is_expert = true;
    l->forced = forms ? &forms->gate_up : NULL;
    (void)place_gate_up(l, &out->gate_up, gate_up); /* are they by turns? walk_experts looks */
    l->forced = forms ? &forms->down : NULL;
    place_matrix(l, &out->down, (const struct weight_source *const[]){&s->down}, 1, false);
    l->forced = NULL;
    l->is_expert = false;
}

static void place_layer(struct loader *l, struct layer_weights *out, struct weight_source *s)
{
    /* A bias that is absent beside one that is present still has its length. */
    s[W_Q_BIAS].rows = s[W_Q].rows;
    s[W_K_BIAS].rows = s[W_K].rows;
    s[W_V_BIAS].rows = s[W_V].rows;
    s[W_GATE_BIAS].rows = s[W_GATE].rows;
    s[W_UP_BIAS].rows = s[W_UP].rows;
    const struct weight_source *const qkv[] = {&s[W_Q], &s[W_K], &s[W_V]};
    const struct weight_source *const gate_up[] = {&s[W_GATE], &s[W_UP]};
    const struct weight_source *const qkv_bias[] = {&s[W_Q_BIAS], &s[W_K_BIAS], &s[W_V_BIAS]};
    const struct weight_source *const gate_up_bias[] = {&s[W_GATE_BIAS], &s[W_UP_BIAS]};
#define ONE(slot) (const struct weight_source *const[]){&s[slot]}, 1
    out->attn_norm = place_vector(l, ONE(W_ATTN_NORM), true);
    place_matrix(l, &out->qkv, qkv, 3, false);
    out->qkv_bias = place_vector(l, qkv_bias, 3, false);
    out->q_norm = place_vector(l, ONE(W_Q_NORM), true);
    out->k_norm = place_vector(l, ONE(W_K_NORM), true);
    place_matrix(l, &out->out, ONE(W_O), false);
    out->out_bias = place_vector(l, ONE(W_O_BIAS), false);
    out->mlp_norm = place_vector(l, ONE(W_MLP_NORM), true);
    if (s[W_ROUTER].present) {
        place_router(l, out, s);
        if (!s[W_GATE].present)
            return;
    }
    l->is_shared = s[W_ROUTER].present;
    const bool gated = place_gate_up(l, &out->gate_up, gate_up);
    l->is_shared = false;
    out->gate_up_bias =
        gated ? place_gated_bias(l, gate_up_bias) : place_vector(l, gate_up_bias, 2, false);
    place_matrix(l, &out->down, ONE(W_DOWN), false);
    out->down_bias = place_vector(l, ONE(W_DOWN_BIAS), false);
}

/* Is the packed lm_head made of the embedding, and not of other numbers? Then its rows are read out
 * of the panels: a second copy of the largest matrix is worth more than the lines that this takes
 * more of (a line a pair of elements). */
static bool holds_embed(const struct loader *l, const struct weight_source *s)
{
    const struct weight_source *const part = &s[W_EMBED];
    return !s[W_LM_HEAD].present && l->options->quantization == QUANTIZE_NOT && !l->options->link &&
           weights_dtype(l->options, &part, 1) == part->dtype;
}

/* The embedding stays where the file is mapped unless its address does not suit its type. */
static void place_embed(struct loader *l, struct weight_source *s)
{
    size_t width = dtype_bits(s->dtype) / 8;
    size_t n = (size_t)s->rows * s->cols;
    l->w->embed_dtype = s->dtype;
    report(l, s);
    if (s->tensor && (uintptr_t)s->tensor->data % width == 0 && !l->options->link) {
        l->w->embed = s->tensor->data;
        return;
    }
    void *table = region_cut(&l->cutter, n, width);
    if (table && l->filler.upload) {
        l->w->embed = table;
        weights_upload_table(&l->filler, table, s);
        return;
    }
    if (l->is_packed || !table) {
        l->w->embed = table;
        return;
    }
    if (s->tensor)
        memcpy(table, s->tensor->data, n * width);
    else
        weights_fill_table(&l->filler, table, s->dtype, s, 0);
    l->w->embed = table;
}

static void place_global(struct loader *l, struct weight_source *s)
{
    l->w->embed_packed = holds_embed(l, s);
    if (l->w->embed_packed) {
        l->w->embed_dtype = s[W_EMBED].dtype;
        report(l, &s[W_EMBED]);
    } else {
        place_embed(l, &s[W_EMBED]);
    }
    l->w->final_norm = place_vector(l, ONE(W_FINAL_NORM), true);
    l->is_head = true;
    if (s[W_LM_HEAD].present) {
        place_matrix(l, &l->w->lm_head, ONE(W_LM_HEAD), false);
        l->is_head = false;
        return;
    }
    struct weight_source tied = s[W_EMBED];
    const enum dtype head =
        weights_dtype(l->options, (const struct weight_source *const[]){&tied}, 1);
    const struct device_link *link = l->options->link;
    if (link && link->t->row_major && head == l->w->embed_dtype &&
        (!l->options->quantization || l->options->quantization == QUANTIZE_FP8 ||
         l->finder.config->quant.method)) {
        l->w->lm_head = (struct packed){/* one table serves both ends */
                                        .data = l->w->embed,
                                        .n_out = tied.rows,
                                        .n_in = tied.cols,
                                        .dtype = head};
        l->is_head = false;
        return;
    }
    l->tied.data = l->w->embed;
    if (l->w->embed && !tied.tensor &&
        !link) /* dummy: the table just made, so both are the same numbers */
        tied.tensor = &l->tied;
    l->uncounted = true;
    place_matrix(l, &l->w->lm_head, (const struct weight_source *const[]){&tied}, 1, false);
    l->uncounted = l->is_head = false;
    if (l->w->embed_packed)
        l->w->embed = l->w->lm_head.data;
#undef ONE
}

static enum q_code find_experts(struct loader *l, uint32_t layer, struct q_err *e)
{
    struct weight_source s[W_COUNT];
    struct arch_place at = {.layer = layer};
    for (; at.expert < l->finder.config->moe.n_expert; at.expert++) {
        enum q_code rc = weights_find_expert(s, &l->finder, at, e);
        if (rc)
            return rc;
        l->experts[at.expert] =
            (struct expert_sources){s[W_EXPERT_GATE], s[W_EXPERT_UP], s[W_EXPERT_DOWN]};
    }
    return Q_OK;
}

static enum q_code walk_experts(struct loader *l, uint32_t layer, struct q_err *e)
{
    struct expert_forms all;
    enum q_code rc = find_experts(l, layer, e);
    if (rc)
        return rc;
    if (l->options->link)
        join_experts(&all, l);
    for (uint32_t i = 0; i < l->finder.config->moe.n_expert; i++) {
        struct expert_weights *x = &l->w->layers[layer].experts[i];
        place_expert(l, x, &l->experts[i], l->options->link ? &all : NULL);
        if (!x->gate_up.gated) /* one launch for all of them knows one form */
            return q_fail(e, Q_UNSUPPORTED,
                          "layer %u: gate and up of expert %u are stored in two ways, which a "
                          "device does not multiply together; use --device cpu",
                          layer, i);
    }
    return Q_OK;
}

static enum q_code walk(struct loader *l, struct q_err *e)
{
    const uint32_t n_expert = l->finder.config->moe.n_expert;
    struct weight_source sources[W_COUNT];
    enum q_code rc = weights_find(sources, &l->finder, WEIGHTS_GLOBAL, e);
    if (rc)
        return rc;
    place_global(l, sources);
    for (uint32_t i = 0; i < l->w->n_layer; i++) {
        struct layer_weights *layer = &l->w->layers[i];
        if ((rc = weights_find(sources, &l->finder, i, e)))
            return rc;
        place_layer(l, layer, sources);
        if (!sources[W_ROUTER].present)
            continue;
        layer->experts = l->w->experts + (size_t)i * n_expert;
        if ((rc = walk_experts(l, i, e)))
            return rc;
    }
    return Q_OK;
}

static enum q_code open_files(struct loader *l, struct q_err *e)
{
    if (l->options->format == LOAD_DUMMY)
        return Q_OK;
    const struct model_options *o = l->options;
    enum q_code rc = tensor_set_open(&l->w->files, o->weights_dir ? o->weights_dir : o->dir, e);
    l->finder.files = l->w->files;
    return rc;
}

static enum q_code prepare_filler(struct loader *l, struct q_err *e)
{
    struct weight_filler *f = &l->filler;
    f->kern = l->options->kern;
    f->team = l->options->team;
    f->n_thread = f->team ? team_size(f->team) : 1;
    f->progress = l->options->progress ? tell_progress : NULL;
    f->progress_ctx = l;
    l->matrices = q_calloc(l->n_matrix, sizeof *l->matrices);
    if (!l->matrices)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a list of %u matrices", l->n_matrix);
    if (l->options->link) {
        f->upload = &l->upload;
        enum q_code rc = upload_init(&l->upload, l->options->link, e);
        if (rc || !l->n_ordered)
            return rc;
        f->part_bytes = (size_t)WEIGHTS_ORDERED * l->n_in_max;
        return region_init(&f->buffer, (f->n_thread + 1) * f->part_bytes, "weights on their way",
                           e);
    }
    if (l->w->files && !l->finder.config->quant.method)
        return Q_OK;
    f->part_bytes = (size_t)KERN_PANEL * l->n_in_max * sizeof(float);
    return region_init(&f->buffer, f->n_thread * f->part_bytes, "weights on their way", e);
}

static void say_fp8(const struct loader *l)
{
    const struct fp8_counts *n = &l->fp8;
    const bool there = l->options->link != NULL;
    if (l->finder.config->quant.method == QUANT_FP8 && !there)
        log_info("fp8: the checkpoint's matrices become floats (%s) while they are packed, with as "
                 "much memory; only devices multiply fp8",
                 dtype_name(l->options->dtype));
    if (l->options->quantization == QUANTIZE_FP8)
        log_info(
            "fp8: %u matrices as the checkpoint has them, %u with their scales of blocks; made "
            "e4m3 with a scale for each output: %u of other blocks, %u of floats; %u stay "
            "floats (%s)",
            n->n_kept + n->n_blocks, n->n_blocks, n->n_made, n->n_float, n->n_left,
            dtype_name(l->options->dtype));
    if (n->n_input_scale)
        log_info("fp8: the checkpoint's input_scale of %u matrices is not used: %s",
                 n->n_input_scale,
                 there ? "each row of activations has scales of its own"
                       : "activations are not quantized");
}

/* What 4 bits came to: which groups, and what stayed int8 or floats. What fp8 came to. */
static void say_forms(const struct loader *l)
{
    char left[64] = "";
    say_fp8(l);
    if (l->options->quantization != QUANTIZE_INT4)
        return;
    if (l->n_float)
        snprintf(left, sizeof left, "; %u stay floats (%s)", l->n_float,
                 dtype_name(l->options->dtype));
    log_info("int4: %u matrices in groups of 128 inputs, %u of 64, %u of 32 (%u in act-order); "
             "%u as int8%s",
             l->n_by_group[128], l->n_by_group[64], l->n_by_group[32], l->n_ordered,
             l->n_by_group[0], left);
    for (int i = 0; i < INT8_REASONS; i++)
        if (l->n_by_reason[i])
            log_info("int4: %u as int8: %s", l->n_by_reason[i],
                     weights_quant_reason_text((enum int8_reason)i));
}

/* The first walk. l->w is safe to release afterwards, whatever comes. */
static enum q_code measure(struct loader *l, struct q_err *e)
{
    struct weights *w = l->w;
    const struct model_config *c = l->finder.config;
    enum q_code rc;
    *w = (struct weights){.n_layer = c->n_layer, .n_expert = c->moe.n_expert};
    w->layers = q_calloc(c->n_layer, sizeof *w->layers);
    w->experts = q_calloc((size_t)c->n_layer * c->moe.n_expert + 1, sizeof *w->experts);
    l->experts = q_calloc((size_t)c->moe.n_expert + 1, sizeof *l->experts);
    if (!w->layers || !w->experts || !l->experts)
        return q_fail(e, Q_NO_MEMORY, "out of memory for %u layers", c->n_layer);
    if ((rc = open_files(l, e)) || (rc = walk(l, e)))
        return rc;
    if (w->files)
        weights_warn_extra(&l->finder);
    say_forms(l);
    return Q_OK;
}

/* They are all written and all read: beyond the memory the system would kill the process. */
static enum q_code fail_too_big(const struct loader *l, const char *what, struct q_err *e)
{
    static const struct {
        enum quantization is;
        const char *flag;
        double bits; /* of a weight, with its part of scales */
    } smaller[] = {{QUANTIZE_INT8, "int8", 8.1}, {QUANTIZE_INT4, "int4", 4.5}};
    const double gib = 1 << 30, need = (double)l->cutter.used / gib;
    const double most = (double)l->options->memory_bytes / gib;
    const enum quantization now = l->options->quantization;
    struct buf ways = BUF_INIT;
    for (size_t i = 0; i < sizeof smaller / sizeof *smaller; i++) {
        const double then = need * smaller[i].bits / (double)dtype_bits(l->options->dtype);
        if (now == QUANTIZE_NOT && !l->finder.config->quant.method && then < most)
            buf_printf(&ways, "--quantization %s (about %.1f GiB), ", smaller[i].flag, then);
    }
    enum q_code rc =
        q_fail(e, Q_NO_MEMORY,
               "%s: %.1f GiB in %s do not fit the %.1f GiB that this process can "
               "have; ways out: %sa smaller model, or a machine with more memory",
               what, need, now ? quantization_name(now) : dtype_name(l->options->dtype), most,
               buf_str(&ways));
    buf_release(&ways);
    return rc;
}

/* Memory for the packed weights, near who will read them. */
static FALLIBLE make_region(struct loader *l, struct region *r, const char *what, struct q_err *e)
{
    struct team *team = l->options->team;
    if (l->options->link)
        return region_init_on(r, l->cutter.used, what, l->options->link, e);
    if (l->options->memory_bytes && l->cutter.used > l->options->memory_bytes)
        return fail_too_big(l, what, e);
    enum q_code rc = region_init_streamed(r, l->cutter.used, what, team, e);
    if (!rc)
        l->filler.by_owner = team_place_memory(team, r->data, r->size, CPUS_FIRST_TOUCH) > 1;
    return rc;
}

/* The region: found packed, or empty. */
static enum q_code get_region(struct loader *l, struct q_err *e)
{
    struct weights *w = l->w;
    const struct model_options *o = l->options;
    enum q_code rc;
    if (wants_cache(l)) {
        /* how stored integers are read: an unset byte between fields only costs a miss */
        buf_add(&l->plan, &l->finder.config->quant, sizeof l->finder.config->quant);
        buf_printf(&l->plan, "%s, dtype %s, quantization %s, %zu bytes\n", l->finder.arch->name,
                   dtype_name(o->dtype), quantization_name(o->quantization), l->cutter.used);
        l->id.n_bytes = l->cutter.used;
        if ((rc = weights_plan_probe(&l->plan, w, o->kern, e)) ||
            (rc = cache_identify(&l->id, w->files, l->plan.data, l->plan.len, e)))
            return rc;
        l->is_packed = cache_open(&w->memory, o->packed_cache, &l->id, o->team);
    }
    return l->is_packed ? Q_OK : make_region(l, &w->memory, "weights", e);
}

/* The second, into l->w->memory. */
static enum q_code fill(struct loader *l, struct q_err *e)
{
    l->cutter = (struct region_cutter){.base = l->w->memory.data};
    enum q_code rc = walk(l, e);
    if (!rc && l->filler.upload)
        weights_upload(&l->filler, l->matrices, l->i_matrix);
    else if (!rc && !l->is_packed)
        weights_fill(&l->filler, l->matrices, l->i_matrix);
    if (l->w->files)
        tensor_set_drop_pages(l->w->files);
    if (!rc && l->filler.upload)
        rc = upload_end(l->filler.upload, e);
    return rc;
}

static double ms(int64_t us)
{
    return (double)us * 1e-3;
}

static void loader_release(struct loader *l)
{
    upload_release(&l->upload);
    region_release(&l->filler.buffer);
    buf_release(&l->plan);
    q_free(l->matrices);
    q_free(l->experts);
}

enum q_code weights_load(struct weights *w, const struct arch *arch, const struct model_config *c,
                         const struct model_options *o, struct q_err *e)
{
    struct loader l = {
        .w = w, .options = o, .finder = {.arch = arch, .config = c, .dummy_dtype = o->dtype}};
    enum q_code rc;
    int64_t start_us = clock_us(), found_us = start_us, region_us = start_us;
    if (!(rc = measure(&l, e)) && !(rc = prepare_filler(&l, e))) {
        found_us = clock_us();
        rc = get_region(&l, e);
        region_us = clock_us();
    }
    if (rc || (rc = fill(&l, e)))
        weights_release(w);
    else if (wants_cache(&l) && !l.is_packed)
        w->writer = cache_write(o->packed_cache, &l.id, &w->memory, w->files);
    if (!rc)
        log_debug("start: tensors found and checked %.1f ms, memory for them or the packed cache "
                  "%.1f ms, packing %.1f ms",
                  ms(found_us - start_us), ms(region_us - found_us), ms(clock_us() - region_us));
    loader_release(&l);
    return rc;
}

static bool same_form(const struct packed *a, const struct packed *b)
{
    return a->dtype == b->dtype && a->group == b->group && a->blocks == b->blocks;
}

/* Would both lie in memory in the same way? Shapes are equal already, and the embedding of a
 * checkpoint takes no part of the region or shows in its size. */
static bool same_layout(const struct weights *a, const struct weights *b, size_t size)
{
    bool same = a->lm_head.dtype == b->lm_head.dtype && b->memory.size == size &&
                a->n_expert == b->n_expert;
    for (uint32_t i = 0; i < a->n_layer && same; i++) {
        const struct layer_weights *x = &a->layers[i], *y = &b->layers[i];
        same = same_form(&x->qkv, &y->qkv) && same_form(&x->out, &y->out) &&
               same_form(&x->gate_up, &y->gate_up) && same_form(&x->down, &y->down) &&
               same_form(&x->router, &y->router);
    }
    for (uint32_t i = 0; i < a->n_layer * a->n_expert && same; i++)
        same = same_form(&a->experts[i].gate_up, &b->experts[i].gate_up) &&
               same_form(&a->experts[i].down, &b->experts[i].down);
    return same;
}

enum q_code weights_reload(struct weights *w, const struct arch *arch, const struct model_config *c,
                           const struct model_options *o, struct q_err *e)
{
    struct weights fresh;
    struct model_options plain = *o;
    struct loader l = {.w = &fresh,
                       .options = &plain,
                       .finder = {.arch = arch, .config = c, .dummy_dtype = o->dtype}};
    plain.packed_cache = NULL; /* a training's steps are read once */
    enum q_code rc;
    if ((rc = measure(&l, e)) || (rc = prepare_filler(&l, e)))
        goto out;
    cache_writer_end(w->writer, true);
    w->writer = NULL;
    if (!w->memory.is_file && same_layout(&fresh, w, l.cutter.used)) {
        fresh.memory = w->memory; /* from here on the old weights are lost, and nothing can fail */
        w->memory = (struct region)REGION_INIT;
        if (o->quantization) /* scales and sums beside the numbers begin at zero, as when loading */
            region_zero(&fresh.memory);
    } else if ((rc = make_region(&l, &fresh.memory, "the new weights", e))) {
        goto out;
    }
    rc = fill(&l, e);
    Q_ASSERT(rc == Q_OK || o->link); /* measure found and checked the same tensors */
    weights_release(w);
    *w = fresh;
    fresh = (struct weights){0};
out:
    loader_release(&l);
    weights_release(&fresh);
    return rc;
}

enum q_code weights_check(const struct arch *arch, const struct model_config *c,
                          const struct model_options *o, struct q_err *e)
{
    struct weights found;
    struct model_options plain = *o;
    struct loader l = {.w = &found,
                       .options = &plain,
                       .finder = {.arch = arch, .config = c, .dummy_dtype = o->dtype}};
    plain.packed_cache = NULL;
    enum q_code rc = measure(&l, e);
    loader_release(&l);
    weights_release(&found);
    return rc;
}

void weights_release(struct weights *w)
{
    cache_writer_end(w->writer, false);
    q_free(w->layers);
    q_free(w->experts);
    region_release(&w->memory);
    tensor_set_free(w->files);
    *w = (struct weights){0};
}
