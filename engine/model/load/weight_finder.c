/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/weight_finder.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "common/log.h"
#include "engine/model/load/weight_gguf.h"
#include "engine/model/load/weight_quant.h"
#include "engine/plugin.h"

#define OWN_SEED   0x40000000u /* of a plugin's tensors: beyond those of families */
#define PATH_SHOWN 70          /* bytes of a path's end that a message has room for */

static const char *tail(const char *path)
{
    size_t n = strlen(path);
    return n > PATH_SHOWN ? path + n - PATH_SHOWN : path;
}

static bool is_loadable(enum dtype t)
{
    return t == DT_F32 || t == DT_F16 || t == DT_BF16;
}

/* "[64, 32]" */
static void shape_text(char *out, size_t size, const struct tensor *t)
{
    size_t n = (size_t)snprintf(out, size, "[");
    for (uint32_t i = 0; i < t->n_dim && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%llu", i ? ", " : "",
                              (unsigned long long)t->shape[i]);
    if (n < size)
        snprintf(out + n, size - n, "]");
}

struct wanted { /* of a tensor */
    const struct arch_tensor *spec;
    uint32_t n[2];       /* rows, columns; of a vector 1 column */
    const char *text[2]; /* where these come from */
    bool is_vector, may_be_absent;
    bool of_heads;      /* a vector, stored as a row a head or as a tensor a head, as one row, or as
                           a row for each column of a convolution */
    bool of_conv;       /* the last of these: it may have a dimension of 1 between its two */
    uint32_t n_stacked; /* above 0: the tensor holds so many experts, of which this is one … */
    bool in_rows;       /* … their rows one after the other, in two dimensions */
    uint32_t seed;      /* of dummy numbers */
};

static enum q_code check_shape(const struct tensor *t, const struct wanted *w, struct q_err *e)
{
    char found[64];
    const uint32_t n_dim = w->is_vector ? 1 : 2;
    const uint32_t turn = arch_is_transposed(w->spec) && !t->has_outputs_first && n_dim == 2;
    const uint32_t first = w->n_stacked && !w->in_rows ? 1 : 0; /* dimension */
    const uint64_t n_row = (uint64_t)w->n[turn] * (w->in_rows ? w->n_stacked : 1);
    char experts[48] = "", text[40] = "";
    bool same = t->n_dim == first + n_dim && (!first || t->shape[0] == w->n_stacked);
    for (uint32_t i = 0; same && i < n_dim; i++)
        same = t->shape[first + i] == (i ? w->n[!turn] : n_row);
    if (w->of_conv && t->n_dim == 3 && t->shape[1] == 1) /* of each group one input */
        same = t->shape[0] == w->n[0] && t->shape[2] == w->n[1];
    if (same)
        return Q_OK;
    shape_text(found, sizeof found, t);
    if (first) {
        snprintf(experts, sizeof experts, "%u, ", w->n_stacked);
        snprintf(text, sizeof text, "%s, ", arch_dim_text(D_EXPERTS));
    }
    if (n_dim == 1)
        return q_fail(e, Q_MISMATCH, "%s: tensor %s has shape %s, expected [%s%u] (%s%s)",
                      tail(t->file), t->name, found, experts, w->n[0], text, w->text[0]);
    return q_fail(e, Q_MISMATCH,
                  "%s: tensor %s has shape %s, expected [%s%" PRIu64 ", %u] (%s%s, %s)",
                  tail(t->file), t->name, found, experts, n_row, w->n[!turn], text, w->text[turn],
                  w->text[!turn]);
}

/* A tied model may be stored with its one table under the name of the other. */
static const struct tensor *find_tied(const struct weight_finder *f, const struct arch_tensor *row)
{
    if (row->slot != W_EMBED || !f->config->tie_word_embeddings)
        return NULL;
    for (size_t i = 0; i < f->arch->n_tensor; i++)
        if (f->arch->tensors[i].slot == W_LM_HEAD) {
            char name[ARCH_NAME_MAX];
            weight_finder_name(name, f, &f->arch->tensors[i], (struct arch_place){0});
            return tensor_find(f->files, name);
        }
    return NULL;
}

/* Of dummy numbers: another for every tensor. */
static uint32_t seed_of(const struct arch_tensor *row, struct arch_place at)
{
    const uint32_t expert = row->slot < W_EXPERT_FIRST ? 0 : at.expert + 1;
    return (expert * (CONFIG_LAYERS_MAX + 1) + at.layer + 1) * W_COUNT + row->slot;
}

/* Its rows are stored as pairs of a head's (tensor.head_rows). */
static enum q_code put_apart(struct weight_source *s, struct q_err *e)
{
    const struct tensor *t = s->quant.q ? s->quant.q : s->tensor;
    if (!t->head_rows)
        return Q_OK;
    if (s->spec->slot == W_GATE_UP)
        return q_fail(
            e, Q_UNSUPPORTED,
            "%s: tensor %s holds gate and up, which have no heads; rows of heads in pairs "
            "are those of q and k",
            tail(t->file), t->name);
    if (s->rows % t->head_rows || t->head_rows % 2)
        return q_fail(e, Q_MISMATCH, "%s: tensor %s has %u rows, which are no heads of %u",
                      tail(t->file), t->name, s->rows, t->head_rows);
    s->slice.pairs = t->head_rows;
    return Q_OK;
}

static enum q_code fail_missing(const struct weight_finder *f, const struct weight_source *s,
                                const char *name, struct q_err *e)
{
    const char *file = tensor_count(f->files) ? tensor_at(f->files, 0)->file : "?";
    const bool turned = s->spec && arch_is_transposed(s->spec);
    char experts[16] = "";
    if (s->stacked)
        snprintf(experts, sizeof experts, "%u, ", f->config->moe.n_expert);
    return q_fail(e, Q_NOT_FOUND, "%s: tensor %s is missing, expected shape [%s%u, %u]%s",
                  tail(file), name, experts, turned ? s->cols : s->rows, turned ? s->rows : s->cols,
                  f->is_mapped ? "; the plugin's maps give this name to no tensor" : "");
}

static enum q_code check_tensor(const struct tensor *t, const struct wanted *w, struct q_err *e)
{
    if (is_loadable(t->dtype) || t->blocks)
        return check_shape(t, w, e);
    return q_fail(e, Q_MISMATCH, "%s: tensor %s has dtype %s, expected F32, F16 or BF16",
                  tail(t->file), t->name, dtype_name(t->dtype));
}

/* A tensor for each head, of which s->tensor is the first. */
static enum q_code find_heads(struct weight_source *s, const struct weight_finder *f,
                              const struct wanted *w, struct q_err *e)
{
    char name[ARCH_NAME_MAX];
    enum q_code rc = Q_OK;
    s->files = f->files;
    s->n_head = w->n[0];
    for (uint32_t i = 0; i < s->n_head && !rc; i++) {
        struct wanted one = *w;
        one.is_vector = true;
        one.n[0] = w->n[1];
        one.text[0] = w->text[1];
        weight_finder_name(name, f, s->spec, (struct arch_place){s->place.layer, i});
        const struct tensor *t = tensor_find(f->files, name);
        rc = !t ? fail_missing(f, &(struct weight_source){.rows = w->n[1], .cols = 1}, name, e)
                : check_tensor(t, &one, e);
        if (t && !rc && t->dtype != s->dtype)
            rc = q_fail(e, Q_MISMATCH, "%s: tensor %s has dtype %s, those of other heads %s",
                        tail(t->file), name, dtype_name(t->dtype), dtype_name(s->dtype));
    }
    return rc;
}

static enum q_code use_tensor(struct weight_source *s, const struct weight_finder *f,
                              const struct wanted *w, const struct tensor *t, struct q_err *e)
{
    enum q_code rc;
    s->tensor = t;
    s->dtype = t->dtype;
    s->transposed = arch_is_transposed(w->spec) && !t->has_outputs_first;
    if (w->of_heads && t->blocks)
        return weight_gguf_use(&(struct weight_source){.cols = 1}, f, t, e);
    if (w->of_heads) {
        const char *hole = strstr(w->spec->name, "%u");
        rc = hole && strstr(hole + 1, "%u") ? find_heads(s, f, w, e) : check_tensor(t, w, e);
        s->rows *= s->cols;
        s->stored_rows = s->rows;
        s->cols = 1;
        return rc;
    }
    if ((rc = check_tensor(t, w, e)))
        return rc;
    if (t->blocks) {
        s->tensor = NULL;
        rc = weight_gguf_use(s, f, t, e);
    }
    return rc ? rc : put_apart(s, e);
}

/* Lightning attention forgets more slowly from layer to layer; the last one hardly forgets. */
static double fade_of(const struct model_config *c, uint32_t layer)
{
    return 1 - layer / (c->n_layer - 1 + 1e-5) + 1e-5;
}

static enum q_code find_tensor(struct weight_source *s, const struct weight_finder *f,
                               const struct wanted *w, struct arch_place at, struct q_err *e)
{
    char name[ARCH_NAME_MAX];
    const struct arch_tensor *row = w->spec;
    *s = (struct weight_source){
        .present = true,
        .spec = row,
        .place = at,
        .dtype = f->dummy_dtype,
        .rows = w->n[0],
        .cols = w->n[1],
        .stacked = w->n_stacked > 0,
        .seed = w->seed,
    };
    s->stored_rows = s->rows;
    if (row->name == ARCH_RATES)
        s->fade = fade_of(f->config, at.layer);
    if (w->of_heads && (!f->files || arch_is_made(row))) {
        s->rows = s->stored_rows = w->n[0] * w->n[1];
        s->cols = 1;
    }
    if (!f->files || arch_is_made(row))
        return Q_OK;
    weight_finder_name(name, f, row, at);
    enum q_code rc = weight_quant_find(s, f, name, e);
    if (!rc && s->quant.q && arch_is_transposed(row) && !weight_quant_is_made(s))
        rc = q_fail(e, Q_UNSUPPORTED,
                    "%s: tensor %s: transposed matrices are not supported of quantized weights",
                    tail(s->quant.q->file), name);
    if (rc || s->quant.q)
        return rc ? rc : put_apart(s, e);
    const struct tensor *t = tensor_find(f->files, name);
    if (!t)
        t = find_tied(f, row);
    if (!t && w->may_be_absent) {
        s->present = false;
        return Q_OK;
    }
    return t ? use_tensor(s, f, w, t, e) : fail_missing(f, s, name, e);
}

static bool is_conv(enum arch_slot slot)
{
    return slot == W_CONV || slot == W_CONV_Q || slot == W_CONV_K || slot == W_CONV_V;
}

/* V, and what reads it, where its heads are narrower than K's: they are filled up with zeros. */
static enum q_code pad_heads(struct weight_source *s, const struct weight_finder *f, uint32_t layer,
                             struct q_err *e)
{
    const uint32_t stored = f->config->layers.value_dim;
    const uint32_t head = model_config_head_dim(f->config, layer);
    const enum arch_slot slot = s->spec->slot;
    if (!stored || stored == head || !s->present || (slot != W_V && slot != W_O))
        return Q_OK;
    if ((s->quant.q && s->quant.method != QUANT_FP8) || (s->tensor && s->tensor->blocks))
        return q_fail(
            e, Q_UNSUPPORTED,
            "%s: tensor %s: heads of V that are narrower than those of K are supported of "
            "floats and of fp8 only",
            tail(weight_source_tensor(s)->file), weight_source_tensor(s)->name);
    s->pad = (struct weight_pad){head, stored, slot == W_O};
    if (s->pad.of_cols)
        s->cols = s->cols / stored * head;
    else
        s->rows = s->rows / stored * head;
    return Q_OK;
}

static enum q_code find_one(struct weight_source *s, const struct weight_finder *f,
                            const struct arch_tensor *row, struct arch_place at, struct q_err *e)
{
    const bool is_vector = row->dims[1] == D_NONE;
    const struct wanted w = {
        .spec = row,
        .n = {arch_dim_at(f->config, row->dims[0], at.layer),
              is_vector ? 1 : arch_dim_at(f->config, row->dims[1], at.layer)},
        .text = {arch_dim_text(row->dims[0]), arch_dim_text(row->dims[1])},
        .is_vector = is_vector,
        .of_heads = !is_vector &&
                    (row->slot == W_Q_NORM || row->slot == W_K_NORM || row->slot == W_ROUTER_BIAS ||
                     is_conv(row->slot) || row->slot == W_MIX_RATE ||
                     row->slot == W_STREAM_PREDICT || row->slot == W_STREAM_CORRECT),
        .of_conv = is_conv(row->slot),
        .n_stacked = arch_is_stacked(row) ? f->config->moe.n_expert : 0,
        .in_rows = f->arch->experts_in_rows && arch_is_stacked(row),
        .seed = seed_of(row, at),
    };
    const enum q_code rc = find_tensor(s, f, &w, at, e);
    return rc ? rc : pad_heads(s, f, at.layer, e);
}

FALLIBLE weight_finder_find_own(struct weight_source *s, const struct weight_finder *f,
                                const struct arch_own *own, uint32_t layer, struct q_err *e)
{
    const uint32_t i = (uint32_t)(own - f->arch->own);
    const struct config_own *size = &f->config->own[i];
    const struct quire_tensor *t = own->tensor;
    const struct wanted w = {
        .spec = &own->spec,
        .n = {size->rows, size->cols ? size->cols : 1},
        .text = {t->rows, t->cols},
        .is_vector = !size->cols,
        .may_be_absent = t->flags & QUIRE_TENSOR_OPTIONAL,
        .seed = OWN_SEED + (i * (CONFIG_LAYERS_MAX + 1)) + layer,
    };
    return find_tensor(s, f, &w, (struct arch_place){.layer = layer}, e);
}

/* Where the slots begin of which there are as many: once, once a layer, once an expert. */
static enum arch_slot first_slot(enum arch_slot slot)
{
    return slot >= W_EXPERT_FIRST  ? W_EXPERT_FIRST
           : slot >= W_LAYER_FIRST ? W_LAYER_FIRST
                                   : W_EMBED;
}

/* Does the stage read the model's tensor? A tied head is the embedding's table. */
static bool is_of_stage(const struct weight_finder *f, enum arch_slot slot)
{
    switch (slot) {
    case W_EMBED:
        return pipeline_stage_has_embedding(&f->stage) ||
               (pipeline_stage_has_head(&f->stage) && !f->config->pools &&
                !arch_has(f->arch, f->config, W_LM_HEAD, 0));
    case W_PROJECT_IN:
    case W_POSITIONS:
    case W_TYPES:
        return pipeline_stage_has_embedding(&f->stage);
    case W_FINAL_NORM:
    case W_FINAL_NORM_BIAS:
    case W_PROJECT_OUT:
    case W_LM_HEAD:
    case W_LM_HEAD_BIAS:
        return pipeline_stage_has_head(&f->stage);
    default:
        return true;
    }
}

/* Does the layer have experts stored in the other way that the family's table knows? */
static bool is_stored_otherwise(const struct weight_finder *f, struct arch_place at)
{
    char name[ARCH_NAME_MAX];
    at.expert = 0;
    for (size_t i = 0; f->files && i < f->arch->n_tensor; i++) {
        const struct arch_tensor *row = &f->arch->tensors[i];
        if (row->when != WHEN_STORED)
            continue;
        struct weight_source s = {
            .spec = row,
            .rows = arch_dim_at(f->config, row->dims[0], at.layer),
            .cols = arch_dim_at(f->config, row->dims[1], at.layer),
        };
        weight_finder_name(name, f, row, at);
        if (tensor_find(f->files, name) || weight_quant_find(&s, f, name, NULL) || s.quant.q)
            return true;
    }
    return false;
}

/* Is the row asked for? otherwise: experts are stored in the other of two ways. */
static bool is_wanted(const struct weight_finder *f, const struct arch_tensor *row, uint32_t layer,
                      bool otherwise)
{
    if (row->when == WHEN_STORED)
        return otherwise;
    return arch_wants(f->config, row->when, layer) &&
           !(otherwise && row->slot >= W_EXPERT_FIRST && row->when == WHEN_EXPERTS);
}

static bool is_there(const struct weight_finder *f, const struct arch_tensor *row,
                     struct arch_place at)
{
    char name[ARCH_NAME_MAX];
    weight_finder_name(name, f, row, at);
    return tensor_find(f->files, name) != NULL;
}

/* Two rows of a slot that a layer has are two names of one tensor: is this the one that is not
 * read? That is the second, or the first where the files have the second alone. */
static bool is_other_name(const struct weight_finder *f, const struct arch_tensor *row,
                          struct arch_place at, const struct weight_source *found)
{
    if (found->present)
        return true;
    if (!f->files || arch_is_made(row) || is_there(f, row, at))
        return false;
    for (size_t i = (size_t)(row - f->arch->tensors) + 1; i < f->arch->n_tensor; i++) {
        const struct arch_tensor *other = &f->arch->tensors[i];
        if (other->slot == row->slot && other->when == row->when && is_there(f, other, at))
            return true;
    }
    return false;
}

static enum q_code find_all(struct weight_source *sources, const struct weight_finder *f,
                            enum arch_slot first, struct arch_place at, struct q_err *e)
{
    const bool otherwise = first == W_EXPERT_FIRST && is_stored_otherwise(f, at);
    memset(sources, 0, W_COUNT * sizeof *sources);
    for (size_t i = 0; i < f->arch->n_tensor; i++) {
        const struct arch_tensor *row = &f->arch->tensors[i];
        if (first_slot(row->slot) != first || !is_wanted(f, row, at.layer, otherwise) ||
            !is_of_stage(f, row->slot) || !arch_is_read(f->config, row->slot) ||
            is_other_name(f, row, at, &sources[row->slot]))
            continue;
        enum q_code rc = find_one(&sources[row->slot], f, row, at, e);
        if (rc)
            return rc;
    }
    return Q_OK;
}

/* Tensors that hold several slots: one after the other (BY_PART); for each KV head its part of the
 * first, then of the second … (BY_HEAD; BY_Q_HEAD, BY_KEY_HEAD: for each head of q, of a delta
 * net's keys; BY_FOURTH: for each fourth of the heads); a row of each, then the next row of each
 * (BY_ROW). */
enum fused_order { BY_PART, BY_HEAD, BY_ROW, BY_Q_HEAD, BY_KEY_HEAD, BY_FOURTH };
static const struct {
    enum arch_slot whole;
    enum fused_order order;
    uint32_t n;
    enum arch_slot parts[4];
} fused[] = {
    {W_QKV, BY_PART, 3, {W_Q, W_K, W_V}},
    {W_QKV_HEADS, BY_HEAD, 3, {W_Q, W_K, W_V}},
    {W_QVK_FOURTHS, BY_FOURTH, 3, {W_Q, W_V, W_K}},
    {W_Q_GATED, BY_Q_HEAD, 2, {W_Q, W_Q_GATE}},
    {W_MIX_QKVZ, BY_KEY_HEAD, 4, {W_MIX_Q, W_MIX_K, W_MIX_V, W_MIX_Z}},
    {W_MIX_QKV, BY_PART, 3, {W_MIX_Q, W_MIX_K, W_MIX_V}},
    {W_MIX_QKV_HEADS, BY_KEY_HEAD, 3, {W_MIX_Q, W_MIX_K, W_MIX_V}},
    {W_MIX_BA, BY_KEY_HEAD, 2, {W_MIX_B, W_MIX_A}},
    {W_QKV_BIAS, BY_PART, 3, {W_Q_BIAS, W_K_BIAS, W_V_BIAS}},
    {W_QKV_HEADS_BIAS, BY_HEAD, 3, {W_Q_BIAS, W_K_BIAS, W_V_BIAS}},
    {W_GATE_UP, BY_PART, 2, {W_GATE, W_UP}},
    {W_EXPERT_GATE_UP, BY_PART, 2, {W_EXPERT_GATE, W_EXPERT_UP}},
    {W_EXPERT_GATE_UP_PAIRS, BY_ROW, 2, {W_EXPERT_GATE, W_EXPERT_UP}},
    {W_EXPERT_GATE_UP_PAIRS_BIAS, BY_ROW, 2, {W_EXPERT_GATE_BIAS, W_EXPERT_UP_BIAS}},
};

static uint32_t part_rows(const struct model_config *c, enum arch_slot part, uint32_t whole)
{
    switch (part) {
    case W_Q:
    case W_Q_GATE:
    case W_Q_BIAS:
        return arch_dim_size(c, D_Q);
    case W_MIX_Q:
    case W_MIX_K:
        return c->mixer.n_key_head * c->mixer.key_dim;
    case W_MIX_V:
    case W_MIX_Z:
        return c->mixer.n_value_head * c->mixer.value_dim;
    case W_MIX_B:
    case W_MIX_A:
        return c->mixer.n_value_head;
    case W_GATE:
    case W_UP:
    case W_EXPERT_GATE:
    case W_EXPERT_UP:
    case W_EXPERT_GATE_BIAS:
    case W_EXPERT_UP_BIAS:
        return whole / 2;
    default:
        return arch_dim_size(c, D_KV);
    }
}

/* Part 0 of a fused tensor is q, part 1 k. */
static bool is_in_pairs(const struct weight_source *whole, uint32_t i_part)
{
    const struct tensor *t = whole->quant.q ? whole->quant.q : whole->tensor;
    return whole->slice.pairs && i_part < 2 && t->in_pairs & (i_part ? TENSOR_K : TENSOR_Q);
}

static void slice_fused(struct weight_source *sources, const struct model_config *c)
{
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++) {
        const struct weight_source found = sources[fused[i].whole], *whole = &found;
        uint32_t first = 0;
        for (uint32_t k = 0; whole->present && k < fused[i].n; k++) {
            struct weight_source *part = &sources[fused[i].parts[k]];
            *part = *whole;
            part->rows = part_rows(c, fused[i].parts[k], whole->rows);
            const uint32_t n_block = fused[i].order == BY_HEAD       ? c->n_kv_head
                                     : fused[i].order == BY_ROW      ? part->rows
                                     : fused[i].order == BY_Q_HEAD   ? c->n_head
                                     : fused[i].order == BY_FOURTH   ? 4
                                     : fused[i].order == BY_KEY_HEAD ? c->mixer.n_key_head
                                                                     : 1;
            part->slice = (struct weight_slice){
                .first = first,
                .block = part->rows / n_block,
                .stride = whole->rows / n_block,
                .pairs = is_in_pairs(whole, k) ? whole->slice.pairs : 0,
            };
            first += part->slice.block;
        }
        sources[fused[i].whole].present = false; /* it is its parts now */
    }
}

enum q_code weight_finder_find(struct weight_source *sources, const struct weight_finder *f,
                               uint32_t layer, struct q_err *e)
{
    const enum arch_slot first = layer == WEIGHT_FINDER_MODEL ? W_EMBED : W_LAYER_FIRST;
    const enum q_code rc = find_all(sources, f, first, (struct arch_place){layer, 0}, e);
    if (!rc)
        slice_fused(sources, f->config);
    return rc;
}

enum q_code weight_finder_find_expert(struct weight_source *sources, const struct weight_finder *f,
                                      struct arch_place at, struct q_err *e)
{
    const enum q_code rc = find_all(sources, f, W_EXPERT_FIRST, at, e);
    if (!rc)
        slice_fused(sources, f->config);
    return rc;
}

/* `name` is `wanted`, or a part of it when that is stored as integers. */
static bool is_part(const char *wanted, const char *name)
{
    return strcmp(wanted, name) == 0 || weight_quant_is_part(wanted, name);
}

/* Does `pattern` give `name` for some numbers below those in `end`? */
static bool pattern_gives(const char *pattern, const char *name, struct arch_place end)
{
    const uint32_t ends[] = {end.layer, end.expert};
    if (pattern == ARCH_ONES)
        return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const char *hole = strstr(pattern, "%u"), *p;
        uint32_t number = 0;
        if (!hole)
            break;
        if (strncmp(pattern, name, (size_t)(hole - pattern)) != 0)
            return false;
        p = name += hole - pattern;
        while (*p >= '0' && *p <= '9' && number < ends[i])
            number = number * 10 + (uint32_t)(*p++ - '0');
        if (p == name || number >= ends[i])
            return false;
        name = p;
        pattern = hole + 2;
    }
    return is_part(pattern, name);
}

/* Numbers that names may have: experts, or heads. */
static struct arch_place ends_of(const struct model_config *c)
{
    return (struct arch_place){c->n_layer,
                               c->moe.n_expert > c->n_head ? c->moe.n_expert : c->n_head};
}

enum arch_slot weight_finder_slot(const struct arch *a, const struct model_config *c,
                                  const char *name)
{
    const struct arch_place end = ends_of(c);
    for (size_t i = 0; i < a->n_tensor; i++)
        if (pattern_gives(a->tensors[i].name, name, end))
            return a->tensors[i].slot;
    return W_COUNT;
}

uint32_t weight_finder_rows(const struct arch *a, const struct model_config *c, const char *name)
{
    const struct arch_place end = ends_of(c);
    for (uint32_t i = 0; i < a->n_own; i++)
        if (pattern_gives(a->own[i].spec.name, name, end))
            return c->own[i].rows;
    for (size_t i = 0; i < a->n_tensor; i++)
        if (pattern_gives(a->tensors[i].name, name, end))
            return arch_dim_size(c, a->tensors[i].dims[0]);
    return 0;
}

/* Of a classifier's layers behind the pooling, which pooler_load.c reads. */
static bool is_of_head(const struct weight_finder *f, const char *name)
{
    const struct arch_head *head = arch_heads(f->arch);
    for (uint32_t i = 0; i < ARCH_HEAD_LAYERS && head[i].name; i++) {
        const size_t n = strlen(head[i].name), n_norm = head[i].norm ? strlen(head[i].norm) : 0;
        if ((!strncmp(name, head[i].name, n) &&
             (!strcmp(name + n, ".weight") || !strcmp(name + n, ".bias"))) ||
            (n_norm && !strncmp(name, head[i].norm, n_norm) && !strcmp(name + n_norm, ".weight")))
            return true;
    }
    return false;
}

/* Tensors of other parts of a model are for inputs that are not served. */
static bool is_known(const struct weight_finder *f, const char *name)
{
    const struct arch_place end = ends_of(f->config);
    char pattern[ARCH_NAME_MAX];
    bool known = f->arch->is_part || (f->config->pools && is_of_head(f, name));
    if (*f->config->outer && !weight_names_is_text(f->names, name))
        return true;
    for (size_t k = 0; k < f->arch->n_tensor && !known; k++) {
        if (arch_is_made(&f->arch->tensors[k]))
            continue;
        weight_names_pattern(pattern, f->names, f->arch, f->arch->tensors[k].name);
        known = pattern_gives(pattern, name, end);
    }
    for (uint32_t k = 0; k < f->arch->n_own && !known; k++)
        known = pattern_gives(f->arch->own[k].spec.name, name, end);
    return known;
}

enum q_code weight_finder_check_inputs(const struct weight_finder *f, struct q_err *e)
{
    static const char end[] = ".scales";
    const enum quant_method m = f->config->quant.method;
    if (!f->files || (m != QUANT_AWQ && m != QUANT_AWQ_ROWS))
        return Q_OK;
    for (uint32_t i = 0; i < tensor_count(f->files); i++) {
        const struct tensor *t = tensor_at(f->files, i);
        const size_t n = strlen(t->name), n_end = sizeof end - 1;
        char matrix[ARCH_NAME_MAX + 64];
        if (n < n_end || strcmp(t->name + n - n_end, end) != 0)
            continue;
        snprintf(matrix, sizeof matrix, "%.*s.qweight", (int)(n - n_end), t->name);
        if (!tensor_find(f->files, matrix))
            return q_fail(
                e, Q_UNSUPPORTED,
                "%s: tensor %s divides activations (AutoAWQ's scaled activation), which is "
                "not supported; use a gptq or compressed-tensors checkpoint of the model, "
                "or the original one",
                tail(t->file), t->name);
    }
    return Q_OK;
}

uint32_t weight_finder_unused(const struct tensor **first, const struct weight_finder *f)
{
    uint32_t n = 0;
    *first = NULL;
    for (uint32_t i = 0; f->files && i < tensor_count(f->files); i++) {
        const struct tensor *t = tensor_at(f->files, i);
        if (!is_known(f, t->name) && n++ == 0)
            *first = t;
    }
    return n;
}

void weight_finder_warn_unused(const struct arch *a, uint32_t n, const struct tensor *first)
{
    if (n)
        log_warning("%s: %u tensors are not part of %s and are not used, the first is %s%s%s",
                    first->file, n, a->name, first->stored ? first->stored : first->name,
                    first->stored ? ", which the plugin's maps name " : "",
                    first->stored ? first->name : "");
}
