/* SPDX-License-Identifier: Apache-2.0 */
/* A parameter is found as the loader of a served model finds it (engine/model/load): by the slots
 * of its weight, with the names, shapes and types of the family's table. What differs is the form:
 * row-major f32, as the optimiser and the checkpoint want it.
 *
 * Tensor parallelism: of each slot a rank has an equal part of the rows or columns. Heads of K and
 * V that are fewer than the ranks are shared: size / n_kv_head ranks one after another have the
 * same rows, and the first of them has the original. */
#include "engine/distill/params_load.h"
#include <string.h>
#include "common/mem.h"
#include "engine/model/load/weight_finder.h"

#define PARAM_ALIGN 16u /* elements: a cache line of f32 */

struct loader {
    struct params *p;
    const struct params_source *s;
    struct weight_finder finder;
    struct weight_source sources[W_COUNT]; /* of `layer` */
    struct weight_source *found;           /* [n_found] of all parts, in their order */
    size_t n_found, found_capacity, all_capacity;
    uint32_t layer;
    struct q_err *e;
};

/* ---- which parameters ---- */

static bool is_behind_layers(const struct params_source *s, const struct program_op *op)
{
    for (const struct program_op *q = op; q > s->program->ops; q--)
        if (q[-1].layer != PROGRAM_NO_LAYER)
            return true;
    return false;
}

bool params_has_op(const struct params_source *s, const struct program_op *op)
{
    const bool is_model = op->layer == PROGRAM_NO_LAYER;
    const bool is_head = is_model && is_behind_layers(s, op);
    for (uint32_t i = 0; i < s->n_stage; i++) {
        const struct stage_layers *l = &s->stages[i];
        if (is_model ? (is_head ? l->has_head : l->has_embedding)
                     : op->layer >= l->first && op->layer - l->first < l->n)
            return true;
    }
    return false;
}

bool params_head_is_embedding(const struct params *p)
{
    return params_find(p, PROGRAM_W_EMBED, PROGRAM_NO_LAYER) &&
           !params_find(p, PROGRAM_W_LM_HEAD, PROGRAM_NO_LAYER);
}

static bool is_tied(const struct params_source *s, enum program_weight w)
{
    return w == PROGRAM_W_LM_HEAD && !arch_has(s->arch, s->config, W_LM_HEAD, 0);
}

/* ---- division among tensor-parallel ranks ---- */

FALLIBLE params_divide(struct model_config *local, const struct model_config *c, uint32_t size,
                       bool of_teacher, struct q_err *e)
{
    const char *flag = of_teacher ? "--teacher-tensor-parallel-size" : "--tensor-parallel-size";
    const char *owner = of_teacher ? "teacher" : "student";
    const struct {
        const char *name;
        uint32_t n;
    } divided[] = {
        {"num_attention_heads", c->n_head},
        {"intermediate_size", c->intermediate_size},
        {"vocab_size", c->vocab_size},
    };
    for (size_t i = 0; i < sizeof divided / sizeof *divided; i++)
        if (divided[i].n % size)
            return q_fail(e, Q_INVALID, "%s %u does not divide the %s's %s of %u", flag, size,
                          owner, divided[i].name, divided[i].n);
    if (c->n_kv_head % size && size % c->n_kv_head)
        return q_fail(e, Q_INVALID,
                      "%s %u is neither a divisor nor a multiple of the %s's num_key_value_heads "
                      "of %u",
                      flag, size, owner, c->n_kv_head);
    *local = *c;
    local->n_head /= size;
    local->n_kv_head = c->n_kv_head > size ? c->n_kv_head / size : 1;
    local->intermediate_size /= size;
    local->vocab_size /= size;
    return Q_OK;
}

static bool is_kv(enum arch_slot slot)
{
    return slot == W_K || slot == W_V || slot == W_K_BIAS || slot == W_V_BIAS;
}

/* This rank's part of a slot's rows and columns. */
static void take_part(const struct params_source *s, const struct weight_source *from,
                      enum arch_slot slot, struct param_tensor *t)
{
    const enum arch_shard shard = from->spec->shard;
    const uint32_t heads = s->config->n_kv_head;
    const uint32_t n_sharing = is_kv(slot) && s->size > heads ? s->size / heads : 1;
    const uint32_t n_part = s->size / n_sharing, i_part = s->rank / n_sharing;
    t->n_sharing = shard == SHARD_NONE ? s->size : n_sharing;
    t->is_copy = s->rank % t->n_sharing > 0;
    if (shard == SHARD_ROWS) {
        t->n_row /= n_part;
        t->row_at += i_part * t->n_row;
    } else if (shard == SHARD_COLS) {
        t->n_col /= s->size;
        t->col_at = s->rank * t->n_col;
    }
}

/* ---- the list ---- */

/* Products read it, and nothing else: a packer's copy is enough for forward passes. */
static bool is_packed_only(const struct param *p)
{
    return program_weight_info(p->weight)->kind == PROGRAM_MATRIX;
}

static enum q_code refuse(const struct loader *l, const struct weight_source *from, const char *why)
{
    char name[ARCH_NAME_MAX];
    return q_fail(l->e, Q_UNSUPPORTED, "%s: tensor %s %s", l->s->arch->name,
                  weight_source_name(name, from), why);
}

/* Does the part go on where the tensor before it ends? Then both are one entry. */
static bool joins(const struct param_tensor *last, const struct param_tensor *t)
{
    return strcmp(last->name, t->name) == 0 && last->row_at + last->n_row == t->row_at &&
           last->n_col == t->n_col && last->n_sharing == t->n_sharing;
}

static enum q_code add_tensor(struct loader *l, struct param *to, enum arch_slot slot)
{
    const struct weight_source *from = &l->sources[slot];
    const struct weight_slice *cut = &from->slice;
    if (from->spec->name == ARCH_ONES)
        return q_fail(l->e, Q_UNSUPPORTED, "%s: norms without a weight are not supported",
                      l->s->arch->name);
    if (from->quant.q)
        return refuse(l, from, "is quantized; expected F32, F16 or BF16");
    if (cut->pairs)
        return refuse(l, from,
                      "has rows of heads in pairs; expected a folder of transformers' names");
    if (from->transposed)
        return refuse(l, from, "is stored transposed, a layout that is not supported");
    if (from->spec->dims[1] != D_NONE && program_weight_info(to->weight)->kind == PROGRAM_VECTOR)
        return refuse(l, from, "has a row for each head, a layout of norms that is not supported");
    if (cut->block && cut->block != from->rows)
        return refuse(l, from, "has its rows by heads of K and V, a layout that is not supported");
    struct param_tensor t = {
        .row = to->n_row,
        .n_row = from->rows,
        .n_col = from->cols,
        .all_rows = from->stored_rows,
        .all_cols = from->cols,
        .row_at = cut->block ? cut->first : 0,
        .n_dim = from->spec->dims[1] == D_NONE ? 1 : 2,
    };
    arch_tensor_name(t.name, from->spec->name, from->place);
    take_part(l->s, from, slot, &t);
    t.is_copy = t.is_copy || to->is_copy;
    to->n_row += t.n_row;
    to->n_col = t.n_col;
    to->decays = t.n_dim == 2;
    if (to->n_tensor && joins(&to->tensors[to->n_tensor - 1], &t)) {
        to->tensors[to->n_tensor - 1].n_row += t.n_row;
        return Q_OK;
    }
    const enum q_code rc =
        q_grow(&l->found, &l->found_capacity, l->n_found + 1, sizeof *l->found, UINT32_MAX, l->e);
    if (rc)
        return rc;
    Q_ASSERT(to->n_tensor < PARAM_TENSORS_MAX);
    l->found[l->n_found++] = *from;
    to->tensors[to->n_tensor++] = t;
    return Q_OK;
}

static uint64_t own_numbers(const struct param *p)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < p->n_tensor; i++)
        if (!p->tensors[i].is_copy)
            n += (uint64_t)p->tensors[i].n_row * p->tensors[i].n_col;
    return n;
}

static enum q_code find_sources(struct loader *l, uint32_t layer)
{
    const uint32_t at = layer == PROGRAM_NO_LAYER ? WEIGHT_FINDER_MODEL : layer;
    if (l->layer == layer && l->n_found)
        return Q_OK;
    l->layer = layer;
    return weight_finder_find(l->sources, &l->finder, at, l->e);
}

static enum q_code add_param(struct loader *l, enum program_weight w, uint32_t layer)
{
    struct params *p = l->p;
    const struct program_weight_info *info = program_weight_info(w);
    const bool tied = is_tied(l->s, w);
    enum q_code rc;
    if (w == PROGRAM_W_NONE || params_find(p, w, layer))
        return Q_OK;
    if (tied && params_find(p, PROGRAM_W_EMBED, PROGRAM_NO_LAYER))
        return Q_OK; /* the embedding's is the head's */
    if (program_weight_is_own(w) || info->scope == PROGRAM_OF_EXPERT)
        return q_fail(l->e, Q_UNSUPPORTED, "%s: %s is not supported; expected a dense family",
                      l->s->arch->name, info->name);
    if ((rc = find_sources(l, layer)) ||
        (rc = q_grow(&p->all, &l->all_capacity, p->n + 1, sizeof *p->all, UINT32_MAX, l->e)))
        return rc;
    struct param *to = &p->all[p->n];
    *to = (struct param){.weight = w, .layer = layer, .at = p->n_element, .is_copy = tied};
    p->n++;
    for (uint32_t i = 0; i < info->n_slot && !rc; i++) {
        const enum arch_slot slot = info->slots[i];
        const bool is_other = w == PROGRAM_W_LM_HEAD && slot == W_EMBED && !tied;
        if (l->sources[slot].present && !is_other)
            rc = add_tensor(l, to, slot);
    }
    if (rc)
        return rc;
    p->n_param += own_numbers(to);
    if (l->s->packer && is_packed_only(to))
        to->at = 0;
    else
        p->n_element +=
            ((size_t)to->n_row * to->n_col + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
    return Q_OK;
}

/* ---- the numbers ---- */

static void fill_row(float *to, const void *from, enum dtype d, size_t n)
{
    const uint16_t *half = from;
    if (d == DT_F32)
        memcpy(to, from, n * sizeof *to);
    for (size_t i = 0; i < n && d == DT_BF16; i++)
        to[i] = bf16_to_f32(half[i]);
    for (size_t i = 0; i < n && d == DT_F16; i++)
        to[i] = f16_to_f32(half[i]);
}

static void fill_tensor(float *to, const struct param_tensor *t, const struct weight_source *from)
{
    const size_t width = dtype_bits(from->dtype) / 8;
    const char *data = from->tensor->data;
    uint16_t row[4096]; /* 16-bit elements of a file may lie at an odd address */
    for (uint32_t r = 0; r < t->n_row; r++)
        for (uint32_t c = 0; c < t->n_col; c += 4096) {
            const size_t n = t->n_col - c < 4096 ? t->n_col - c : 4096;
            const char *at = data + ((size_t)(t->row_at + r) * t->all_cols + t->col_at + c) * width;
            if (width == 2)
                memcpy(row, at, n * width);
            fill_row(to + (size_t)r * t->n_col + c, width == 2 ? (const void *)row : at,
                     from->dtype, n);
        }
    tensor_drop(data, from->tensor->n_bytes); /* else the file counts as resident */
}

/* Huge pages are zeroed by the first touch; memory of the allocator is not. */
static enum q_code make_array(float **out, size_t n, struct q_err *e)
{
    *out = q_alloc_huge((n ? n : 1) * sizeof **out);
    if (!*out)
        return q_fail(e, Q_NO_MEMORY, "no memory for %zu numbers of the student", n);
    return Q_OK;
}

static enum q_code make_arrays(struct params *p, const struct params_source *s, struct q_err *e)
{
    float **const arrays[] = {&p->w, &p->g, &p->m, &p->v};
    const size_t n = s->packer ? 1 : s->no_optimizer ? 2 : 4;
    for (size_t i = 0; i < n; i++) {
        const enum q_code rc = make_array(arrays[i], p->n_element, e);
        if (rc)
            return rc;
        memset(*arrays[i], 0, p->n_element * sizeof **arrays[i]);
    }
    return Q_OK;
}

/* matrix: where matrices that a packer takes are read; else NULL. */
static void fill(struct loader *l, float *matrix)
{
    const struct params_packer *packer = l->s->packer;
    const struct weight_source *from = l->found;
    for (uint32_t i = 0; i < l->p->n; i++) {
        const struct param *p = &l->p->all[i];
        float *w = packer && is_packed_only(p) ? matrix : l->p->w + p->at;
        for (uint32_t k = 0; k < p->n_tensor; k++, from++)
            fill_tensor(w + (size_t)p->tensors[k].row * p->n_col, &p->tensors[k], from);
        if (packer)
            packer->pack(packer->ctx, i, w);
    }
}

static enum q_code read_numbers(struct loader *l)
{
    const struct params_packer *packer = l->s->packer;
    float *matrix = NULL;
    size_t n = 0;
    enum q_code rc;
    for (uint32_t i = 0; packer && i < l->p->n; i++) {
        const struct param *p = &l->p->all[i];
        const size_t size = (size_t)p->n_row * p->n_col;
        n = is_packed_only(p) && size > n ? size : n;
    }
    if (!(rc = make_arrays(l->p, l->s, l->e)) && packer && !(rc = packer->begin(packer->ctx, l->e)))
        rc = make_array(&matrix, n, l->e);
    if (!rc)
        fill(l, matrix);
    q_free(matrix);
    return rc;
}

FALLIBLE params_load(struct params *p, const struct params_source *s, struct q_err *e)
{
    enum q_code rc = Q_OK;
    struct loader *l = q_calloc(1, sizeof *l);
    if (!l)
        return q_fail(e, Q_NO_MEMORY, "no memory to read the student's tensors");
    l->p = p;
    l->s = s;
    l->e = e;
    l->finder = (struct weight_finder){
        .arch = s->arch,
        .config = s->config,
        .files = s->files,
        .is_bare = weight_finder_is_bare(s->arch, s->files),
    };
    for (uint32_t i = 0; i < s->program->n_op && !rc; i++) {
        const struct program_op *op = &s->program->ops[i];
        if (!params_has_op(s, op) || op->kind == PROGRAM_QUANTIZE)
            continue;
        if (!(rc = add_param(l, op->weight, op->layer)))
            rc = add_param(l, op->bias, op->layer);
    }
    if (!rc && !s->list_only)
        rc = read_numbers(l);
    q_free(l->found);
    q_free(l);
    if (rc)
        params_release(p);
    return rc;
}
