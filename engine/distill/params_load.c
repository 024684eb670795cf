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
                       struct q_err *e)
{
    static const char flag[] = "--tensor-parallel-size", owner[] = "student";
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
    return slot == W_K || slot == W_V || slot == W_K_BIAS || slot == W_V_BIAS || slot == W_K_NORM;
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
        t->row_at = param_tensor_row(t, i_part * t->n_row);
        if (t->n_row <= t->block) /* of one block */
            t->block = 0;
    } else if (shard == SHARD_COLS) {
        t->n_col /= s->size;
        t->col_at = s->rank * t->n_col;
    }
}

/* ---- the list ---- */

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
           !last->block && !t->block && last->n_col == t->n_col && last->n_sharing == t->n_sharing;
}

static enum q_code append(struct loader *l, struct param *to, const struct weight_source *from,
                          const struct param_tensor *t)
{
    const enum q_code rc =
        q_grow(&l->found, &l->found_capacity, l->n_found + 1, sizeof *l->found, UINT32_MAX, l->e);
    if (rc)
        return rc;
    if (to->n_tensor == PARAM_TENSORS_MAX)
        return refuse(l, from, "has too many parts");
    l->found[l->n_found++] = *from;
    to->tensors[to->n_tensor++] = *t;
    to->tensors[to->n_tensor - 1].is_copy |= to->is_copy;
    to->n_row += t->n_row;
    to->n_col = t->n_col;
    return Q_OK;
}

/* A tensor a head: this rank's heads. */
static enum q_code add_heads(struct loader *l, struct param *to, const struct weight_source *from)
{
    struct param_tensor all = {.n_row = from->n_head}, t;
    const uint32_t n = from->rows / from->n_head;
    enum q_code rc = Q_OK;
    take_part(l->s, from, from->spec->slot, &all);
    for (uint32_t i = 0; i < all.n_row && !rc; i++) {
        struct weight_source one = *from;
        one.tensor = weight_source_head(from, all.row_at + i);
        t = (struct param_tensor){
            .row = to->n_row,
            .n_row = n,
            .n_col = 1,
            .all_rows = n,
            .all_cols = 1,
            .n_dim = 1,
            .n_sharing = all.n_sharing,
            .is_copy = all.is_copy,
        };
        arch_tensor_name(t.name, from->spec->name,
                         (struct arch_place){from->place.layer, all.row_at + i});
        rc = append(l, to, &one, &t);
    }
    return rc;
}

static enum q_code check_source(const struct loader *l, const struct weight_source *from)
{
    if (from->quant.q)
        return refuse(l, from, "is quantized; expected F32, F16 or BF16");
    if (from->slice.pairs)
        return refuse(l, from,
                      "has rows of heads in pairs; expected a folder of transformers' names");
    return Q_OK;
}

static enum q_code add_tensor(struct loader *l, struct param *to, enum arch_slot slot)
{
    const struct weight_source *from = &l->sources[slot];
    const struct weight_slice *cut = &from->slice;
    const enum q_code rc = check_source(l, from);
    if (rc || from->n_head)
        return rc ? rc : add_heads(l, to, from);
    const bool of_heads = from->spec->dims[1] != D_NONE && from->cols == 1; /* a row a head */
    const uint32_t cols = of_heads ? (uint32_t)from->tensor->shape[1] : from->cols;
    struct param_tensor t = {
        .row = to->n_row,
        .n_row = from->rows / (of_heads ? cols : 1),
        .n_col = cols,
        .all_rows = from->stored_rows / (of_heads ? cols : 1),
        .all_cols = cols,
        .row_at = cut->block ? cut->first : 0,
        .block = cut->block < from->rows ? cut->block : 0,
        .stride = cut->stride,
        .transposed = from->transposed,
        .n_dim = from->spec->dims[1] == D_NONE ? 1 : 2,
    };
    arch_tensor_name(t.name, from->spec->name, from->place);
    take_part(l->s, from, slot, &t);
    to->decays = t.n_dim == 2 && program_weight_info(to->weight)->kind != PROGRAM_VECTOR;
    if (!to->n_tensor || !joins(&to->tensors[to->n_tensor - 1], &t))
        return append(l, to, from, &t);
    to->tensors[to->n_tensor - 1].n_row += t.n_row;
    to->n_row += t.n_row;
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
    if (info->n_slot && l->sources[info->slots[0]].present &&
        l->sources[info->slots[0]].spec->name == ARCH_ONES)
        return Q_OK; /* a norm without a weight */
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
    p->n_element += ((size_t)to->n_row * to->n_col + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
    return Q_OK;
}

/* The whole of it on all ranks of the group. */
static enum q_code add_projection(struct loader *l)
{
    struct params *p = l->p;
    const enum q_code rc =
        q_grow(&p->all, &l->all_capacity, p->n + 1, sizeof *p->all, UINT32_MAX, l->e);
    if (rc)
        return rc;
    struct param *to = &p->all[p->n++];
    *to = (struct param){
        .layer = PROGRAM_NO_LAYER,
        .n_row = l->s->n_projection_row,
        .n_col = l->s->config->hidden_size,
        .at = p->n_element,
        .decays = true,
        .training_only = true,
        .n_tensor = 1,
    };
    to->tensors[0] = (struct param_tensor){
        .name = PARAM_PROJECTION,
        .n_row = to->n_row,
        .n_col = to->n_col,
        .all_rows = to->n_row,
        .all_cols = to->n_col,
        .n_dim = 2,
        .n_sharing = l->s->size,
        .is_copy = l->s->rank > 0,
    };
    p->n_param += own_numbers(to);
    p->n_element += ((size_t)to->n_row * to->n_col + PARAM_ALIGN - 1) / PARAM_ALIGN * PARAM_ALIGN;
    return Q_OK;
}

/* ---- the numbers ---- */

static void fill_row(float *to, const void *from, enum dtype d, size_t n)
{
    const uint16_t *half = from;
    if (d == DT_F32) {
        memcpy(to, from, n * sizeof *to);
        return;
    }
    for (size_t i = 0; i < n; i++)
        to[i] = d == DT_BF16 ? bf16_to_f32(half[i]) : f16_to_f32(half[i]);
}

/* Elements of a file may lie at an odd address. */
static void fill_piece(float *to, const struct param_piece *p, const char *data, enum dtype d)
{
    enum { STEP = 4096 };
    const size_t width = dtype_bits(d) / 8;
    uint32_t stored[STEP];
    float row[STEP];
    for (size_t i = 0; i < p->n; i += STEP) {
        const size_t n = p->n - i < STEP ? p->n - i : STEP;
        memcpy(stored, data + (p->at + i) * width, n * width);
        fill_row(row, stored, d, n);
        if (p->step == 1)
            memcpy(to + p->of + i, row, n * sizeof *row);
        for (size_t k = 0; k < n && p->step > 1; k++)
            to[p->of + (i + k) * p->step] = row[k];
    }
}

static void fill_tensor(float *to, const struct param_tensor *t, const struct weight_source *from)
{
    struct param_walk walk = {.t = t};
    struct param_piece piece;
    while (param_next_piece(&piece, &walk))
        fill_piece(to, &piece, from->tensor->data, from->dtype);
    tensor_drop(from->tensor->data, from->tensor->n_bytes); /* else the file counts as resident */
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
    const size_t n = s->no_optimizer ? 2 : 4;
    for (size_t i = 0; i < n; i++) {
        const enum q_code rc = make_array(arrays[i], p->n_element, e);
        if (rc)
            return rc;
        memset(*arrays[i], 0, p->n_element * sizeof **arrays[i]);
    }
    return Q_OK;
}

/* hidden_loss.h: what it begins as. */
static void fill_projection(const struct param *p, float *w)
{
    for (uint32_t i = 0; i < p->n_row; i++)
        w[(size_t)i * p->n_col + i % p->n_col] = 1;
}

static enum q_code read_numbers(struct loader *l)
{
    const struct weight_source *from = l->found;
    const enum q_code rc = make_arrays(l->p, l->s, l->e);
    for (uint32_t i = 0; i < l->p->n && !rc; i++) {
        const struct param *p = &l->p->all[i];
        float *w = l->p->w + p->at;
        if (p->training_only)
            fill_projection(p, w);
        for (uint32_t k = 0; k < p->n_tensor && !p->training_only; k++, from++)
            fill_tensor(w + (size_t)p->tensors[k].row * p->n_col, &p->tensors[k], from);
    }
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
        .names = weight_names_of(s->arch, s->config, s->files),
    };
    for (uint32_t i = 0; i < s->program->n_op && !rc; i++) {
        const struct program_op *op = &s->program->ops[i];
        if (!params_has_op(s, op) || op->kind == PROGRAM_QUANTIZE)
            continue;
        if (!(rc = add_param(l, op->weight, op->layer)))
            rc = add_param(l, op->bias, op->layer);
    }
    if (!rc && s->n_projection_row)
        rc = add_projection(l);
    if (!rc && !s->list_only)
        rc = read_numbers(l);
    q_free(l->found);
    q_free(l);
    if (rc)
        params_release(p);
    return rc;
}
