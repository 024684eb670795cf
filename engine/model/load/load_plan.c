/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/model/load/load_plan.h"
#include <string.h>
#include "common/mem.h"
#include "engine/model/load/weight_finder.h"
#include "engine/model/region.h"
#include "engine/plugin.h"

#define ROWS_MAX  ((size_t)1 << 24)
#define PARTS_MAX 6 /* q, k, v; q, kv_a; of a delta net q, k, v, b, a, z */

struct dest {
    const char *member;
    enum load_owner of;
    enum load_kind kind;
    bool interleaved;
    enum load_role role;
    enum arch_when when;
    uint32_t n;
    enum arch_slot slots[PARTS_MAX];
};

enum { STACKED, INTERLEAVED };
#define N_SLOT(...) (sizeof((const enum arch_slot[]){__VA_ARGS__}) / sizeof(enum arch_slot))
static const struct dest dests[DEST_COUNT] = {
#define DEST(name, of, member, kind, join, role, when, ...)            \
    {#member,     OF_##of, KIND_##kind,         (join) == INTERLEAVED, \
     ROLE_##role, when,    N_SLOT(__VA_ARGS__), {__VA_ARGS__}},
#include "engine/model/load/load_dests.def"
};

struct lister {
    struct load_plan *plan;
    const struct weight_finder *finder;
    const struct load_options *options;
    struct region_cutter cutter, host_cutter; /* measure */
    struct q_err *e;
};

const struct weight_source *load_plan_sources(const struct load_plan *p, const struct load_row *r)
{
    return p->sources + r->i_source;
}

/* ---- sources ---- */

static FALLIBLE add_sources(struct lister *l, struct load_row *r, const struct weight_source *s)
{
    struct load_plan *p = l->plan;
    const struct dest *d = &dests[r->dest];
    enum q_code rc = q_grow(&p->sources, &p->source_cap, p->n_source + d->n, sizeof *p->sources,
                            PARTS_MAX * ROWS_MAX, l->e);
    if (rc)
        return rc;
    r->i_source = (uint32_t)p->n_source;
    for (uint32_t i = 0; i < d->n; i++)
        if (s[d->slots[i]].present || r->kind == KIND_BIAS)
            p->sources[r->i_source + r->n_source++] = s[d->slots[i]];
    p->n_source += r->n_source;
    return Q_OK;
}

/* ---- forms ---- */

static bool is_alike(const struct packed *a, const struct packed *b)
{
    return a->n_out == b->n_out && a->n_in == b->n_in && a->dtype == b->dtype &&
           a->group == b->group && a->gated == b->gated && a->blocks == b->blocks &&
           memcmp(&a->codes, &b->codes, sizeof a->codes) == 0;
}

/* Outputs of one of several interleaved parts. */
static uint32_t interleaved_rows(uint32_t rows)
{
    return (rows + KERN_GATE_INTERLEAVE - 1) / KERN_GATE_INTERLEAVE * KERN_GATE_INTERLEAVE;
}

static void set_form(struct load_row *r, const struct load_form *f)
{
    r->form.dtype = f->dtype;
    r->form.group = f->group;
    r->form.blocks = f->blocks;
    r->form.x_scale = f->x_scale;
    r->form.codes = f->codes;
    r->ordered = f->ordered;
    r->why = f->why;
}

/* Do gate and up go into one product with their activation? */
static bool is_interleaved(const struct lister *l, const struct dest *d)
{
    const struct load_options *o = l->options;
    return d->interleaved && !(o->device && o->gate_act != KERN_SILU) &&
           !arch_gate_is_apart(&l->plan->arch->layer, l->finder->config) &&
           (!o->gate_up_apart || d->role == ROLE_EXPERT);
}

/* What differs goes to a device one after the other, which multiplies them after the product. */
static void form_matrix(const struct lister *l, struct load_row *r)
{
    const struct dest *d = &dests[r->dest];
    if (d->role == ROLE_LOGITS && l->finder->config->forward.unit_head)
        l->plan->sources[r->i_source].unit = true;
    struct load_case c = {
        .options = l->options,
        .config = l->finder->config,
        .role = d->role,
        .parts = load_plan_sources(l->plan, r),
        .n = r->n_source,
        .interleaved = is_interleaved(l, d),
        .is_table = r->tied && l->plan->rows[0].place == PLACE_SHARED,
    };
    struct load_form f = load_form_of(&c);
    set_form(r, &f);
    if (c.interleaved && l->options->device && !load_form_alike(&r->form, c.parts, c.n)) {
        c.interleaved = false;
        f = load_form_of(&c);
        set_form(r, &f);
    }
    r->form.gated = c.interleaved;
    r->form.act = c.interleaved ? (uint32_t)l->options->gate_act : KERN_SILU;
    r->form.n_in = c.parts[0].cols;
    for (uint32_t i = 0; i < c.n; i++)
        r->form.n_out += c.interleaved ? interleaved_rows(c.parts[i].rows) : c.parts[i].rows;
}

/* As it is stored; floats that hold the values exactly of what is quantized. */
static void form_table(const struct lister *l, struct load_row *r)
{
    const struct weight_source *s = load_plan_sources(l->plan, r);
    r->form.dtype = weight_source_is_scaled(s) ? DT_F32 : s->dtype;
    r->form.n_out = s->rows;
    r->form.n_in = s->cols;
    r->why = WHY_TABLE;
}

static void form_vector(const struct lister *l, struct load_row *r)
{
    struct weight_source *s = &l->plan->sources[r->i_source];
    const bool has_one = s->tensor && s->tensor->has_one;
    s->plus = r->kind == KIND_NORM && l->plan->arch->layer.norm_plus_one && !has_one ? 1 : 0;
    r->form.dtype = DT_F32;
    r->form.n_out = 0;
    for (uint32_t i = 0; i < r->n_source; i++)
        r->form.n_out += s[i].rows;
    r->form.n_in = 1;
    r->why = WHY_VECTOR;
}

static void form_bias(const struct lister *l, struct load_row *r)
{
    const struct load_row *matrix = &l->plan->rows[l->plan->n_row - 1];
    for (uint32_t i = 0; i < r->n_source; i++)
        l->plan->sources[r->i_source + i].rows = load_plan_sources(l->plan, matrix)[i].rows;
    r->form = (struct packed){
        .dtype = DT_F32,
        .n_out = matrix->form.n_out,
        .n_in = 1,
        .gated = matrix->form.gated,
    };
    r->why = WHY_VECTOR;
}

/* ---- a plugin's tensors ---- */

/* What the program does not read, only items do, and these are made by the host. */
static bool is_for_host(const struct lister *l, const struct arch_own *own)
{
    const size_t i = (size_t)(own - l->plan->arch->own);
    return l->options->device && l->options->own_read &&
           !(l->options->own_read[i / 64] >> i % 64 & 1);
}

static void form_own(const struct lister *l, struct load_row *r)
{
    const struct weight_source *s = load_plan_sources(l->plan, r);
    const struct quire_tensor *t = r->own->tensor;
    struct load_options here = *l->options;
    if (r->place == PLACE_HOST)
        here.device = NULL;
    const struct load_case c = {
        .options = &here,
        .config = l->finder->config,
        .role = t->flags & QUIRE_TENSOR_NOT_QUANTIZED ? ROLE_FLOATS : ROLE_LAYER,
        .parts = s,
        .n = 1,
    };
    r->form = (struct packed){.dtype = DT_F32, .n_out = s->rows, .n_in = s->cols};
    r->why = r->kind == KIND_TABLE ? WHY_FLOATS : WHY_VECTOR;
    if (r->kind != KIND_MATRIX)
        return;
    const struct load_form f = load_form_of(&c);
    set_form(r, &f);
}

static FALLIBLE add_own(struct lister *l, const struct arch_own *own, uint32_t layer)
{
    static const enum load_kind kinds[] = {
        [QUIRE_VECTOR] = KIND_VECTOR,
        [QUIRE_TABLE] = KIND_TABLE,
        [QUIRE_MATRIX] = KIND_MATRIX,
    };
    struct load_plan *p = l->plan;
    struct load_row r = {.dest = DEST_OWN, .own = own, .of = {.layer = layer}, .n_source = 1};
    struct weight_source s;
    enum q_code rc = weight_finder_find_own(&s, l->finder, own, layer, l->e);
    if (rc || !s.present)
        return rc;
    if ((rc = q_grow(&p->sources, &p->source_cap, p->n_source + 1, sizeof *p->sources,
                     PARTS_MAX * ROWS_MAX, l->e)) ||
        (rc = q_grow(&p->rows, &p->row_cap, p->n_row + 1, sizeof *p->rows, ROWS_MAX, l->e)))
        return rc;
    r.i_source = (uint32_t)p->n_source;
    p->sources[p->n_source++] = s;
    r.kind = kinds[own->tensor->kind];
    r.place = is_for_host(l, own) ? PLACE_HOST : PLACE_REGION;
    form_own(l, &r);
    p->n_param += (uint64_t)s.rows * s.cols;
    p->n_in_max = s.cols > p->n_in_max ? s.cols : p->n_in_max;
    p->rows[p->n_row++] = r;
    return Q_OK;
}

/* One of the model: what no operation of the stage reads is for items, which are made where the
 * embedding is. */
static bool own_is_of_stage(const struct lister *l, uint32_t i)
{
    const uint64_t *read = l->options->own_read;
    return pipeline_stage_has_embedding(&l->options->stage) || !read ||
           (read[i / 64] >> i % 64 & 1);
}

/* Of the model, or of a layer. */
static FALLIBLE list_own(struct lister *l, bool of_layer, uint32_t layer)
{
    const struct arch *a = l->plan->arch;
    enum q_code rc = Q_OK;
    for (uint32_t i = 0; i < a->n_own && !rc; i++)
        if (a->own[i].of_layer == of_layer && (of_layer || own_is_of_stage(l, i)))
            rc = add_own(l, &a->own[i], layer);
    return rc;
}

/* ---- places ---- */

/* Rows of the embedding and of the logits are those of the stages that have them, also where a
 * tied head has brought the table. A model that gives vectors has no logits. */
static bool is_of_stage(const struct lister *l, enum load_role role)
{
    const struct pipeline_stage *stage = &l->options->stage;
    return role == ROLE_EMBEDDING ? pipeline_stage_has_embedding(stage)
           : role == ROLE_LOGITS  ? pipeline_stage_has_head(stage) && !l->finder->config->pools
                                  : true;
}

/* Is the packed lm_head made of the embedding's numbers, and of no others? Then its rows are read
 * out of the panels: a second copy of the largest matrix is worth more than the lines that this
 * takes more of (a line a pair of elements). */
static bool head_holds_embedding(const struct lister *l, const struct weight_source *s)
{
    const struct weight_source *part = &s[W_EMBED];
    return !s[W_LM_HEAD].present && is_of_stage(l, ROLE_LOGITS) &&
           !l->finder->config->forward.unit_head && !model_shard_is_part(&l->options->shard) &&
           l->options->quantization == QUANTIZE_NOT && !l->options->device &&
           load_form_floats(l->options, part, 1) == part->dtype;
}

/* One table of a device serves both ends, where its kernels read matrices as they read tables. */
static bool embedding_is_head(const struct lister *l, const struct load_row *r)
{
    const struct load_options *o = l->options;
    const struct weight_source *s = load_plan_sources(l->plan, r);
    return r->tied && o->device && o->device->t->row_major &&
           !l->finder->config->forward.unit_head && load_form_floats(o, s, 1) == s->dtype &&
           !weight_source_is_scaled(s) &&
           (!o->quantization || o->quantization == QUANTIZE_FP8 || l->finder->config->quant.method);
}

/* Tables of rows of tokens stay where the file is mapped unless the address does not suit the
 * type. */
static enum load_place place_of_table(const struct lister *l, const struct weight_source *s)
{
    return s->tensor && !l->options->device &&
                   (uintptr_t)s->tensor->data % (dtype_bits(s->dtype) / 8) == 0
               ? PLACE_FILE
               : PLACE_REGION;
}

static enum load_place place_of(const struct lister *l, const struct load_row *r,
                                const struct weight_source *s)
{
    const struct weight_source *mine = load_plan_sources(l->plan, r);
    switch (dests[r->dest].role) {
    case ROLE_EMBEDDING:
        if (head_holds_embedding(l, s))
            return PLACE_SHARED;
        return place_of_table(l, mine);
    case ROLE_ROWS:
        return place_of_table(l, mine);
    case ROLE_LOGITS:
        return embedding_is_head(l, r) ? PLACE_SHARED : PLACE_REGION;
    default:
        return PLACE_REGION;
    }
}

/* A dummy lm_head that is tied has the numbers of the table that is made: rounded to its type. */
static void tie_dummy(const struct lister *l, const struct load_row *r)
{
    struct weight_source *s = &l->plan->sources[r->i_source];
    const struct load_row *embedding = &l->plan->rows[0];
    l->plan->table = (struct tensor){.dtype = s->dtype};
    if (!s->tensor && !s->quant.q && !l->options->device && embedding->place == PLACE_REGION)
        s->tensor = &l->plan->table;
}

static void cut(struct lister *l, struct load_row *r)
{
    const bool on_host = r->place == PLACE_HOST;
    struct region_cutter *cutter = on_host ? &l->host_cutter : &l->cutter;
    struct packed packed = r->form;
    r->part = model_shard_outputs(&l->options->shard, l->options->shard.rank, r->form.n_out);
    packed.n_out = r->part.n;
    if (r->place != PLACE_REGION && !on_host)
        return;
    r->order_at = cutter->used;
    if (r->ordered)
        (void)region_cut(cutter, r->form.n_in, sizeof(uint32_t));
    r->at = cutter->used;
    r->bytes = r->kind == KIND_MATRIX
                   ? load_form_bytes(&packed, on_host ? NULL : l->options->device)
                   : (size_t)r->form.n_out * r->form.n_in * (dtype_bits(r->form.dtype) / 8);
    (void)region_cut(cutter, 1, r->bytes);
}

/* ---- the list ---- */

/* Is the last row the matrix whose bias `d` is? Members say so: qkv and qkv_bias. */
static bool follows_matrix(const struct load_plan *p, size_t first, const struct dest *d)
{
    if (p->n_row == first || p->rows[p->n_row - 1].kind != KIND_MATRIX)
        return false;
    const char *matrix = dests[p->rows[p->n_row - 1].dest].member;
    const size_t n = strlen(matrix);
    return strncmp(d->member, matrix, n) == 0 && strcmp(d->member + n, "_bias") == 0;
}

/* Of an owner whose rows begin at `first`. */
static bool is_wanted(const struct load_plan *p, size_t first, const struct dest *d,
                      const struct weight_source *s)
{
    bool any = s[d->slots[0]].present;
    if (d->kind == KIND_BIAS) {
        if (!follows_matrix(p, first, d))
            return false;
        for (uint32_t i = 1; i < d->n; i++)
            any = any || s[d->slots[i]].present;
    }
    for (size_t i = first; i < p->n_row && any; i++)
        any = strcmp(dests[p->rows[i].dest].member, d->member) != 0;
    return any;
}

/* A tensor that the family asks for and no row from `first` on reads. */
static FALLIBLE check_read(const struct lister *l, size_t first,
                           const struct weight_source s[W_COUNT])
{
    char name[ARCH_NAME_MAX];
    bool is_read[W_COUNT] = {false};
    for (size_t i = first; i < l->plan->n_row; i++) {
        const struct dest *d = &dests[l->plan->rows[i].dest];
        for (uint32_t k = 0; k < d->n; k++)
            is_read[d->slots[k]] = true;
        is_read[W_EMBED] |= d->role == ROLE_LOGITS && !s[W_LM_HEAD].present;
    }
    for (uint32_t slot = 0; slot < W_COUNT; slot++)
        if (s[slot].present && !is_read[slot])
            return q_fail(l->e, Q_UNSUPPORTED, "%s: tensor %s is of a kind that is not loaded",
                          l->plan->arch->name, weight_source_name(name, &s[slot]));
    return Q_OK;
}

static void count_numbers(struct load_plan *p, const struct load_row *r)
{
    for (uint32_t i = 0; i < r->n_source; i++) {
        const struct weight_source *s = load_plan_sources(p, r) + i;
        if (s->present && !r->tied)
            p->n_param += (uint64_t)s->rows * s->cols;
        if (s->cols > p->n_in_max)
            p->n_in_max = s->cols;
    }
}

static FALLIBLE add_row(struct lister *l, struct load_row *r, const struct weight_source *s)
{
    static void (*const forms[])(const struct lister *, struct load_row *) = {
        [KIND_MATRIX] = form_matrix, [KIND_TABLE] = form_table, [KIND_NORM] = form_vector,
        [KIND_VECTOR] = form_vector, [KIND_BIAS] = form_bias,
    };
    struct load_plan *p = l->plan;
    enum q_code rc;
    r->kind = dests[r->dest].kind;
    if ((rc = add_sources(l, r, s)) ||
        (rc = q_grow(&p->rows, &p->row_cap, p->n_row + 1, sizeof *p->rows, ROWS_MAX, l->e)))
        return rc;
    forms[r->kind](l, r);
    r->place = place_of(l, r, s);
    if (r->tied)
        tie_dummy(l, r);
    count_numbers(p, r);
    p->rows[p->n_row++] = *r;
    return Q_OK;
}

/* Rows and biases that are multiplied by the numbers of another tensor. */
static void scale_outputs(struct weight_source s[W_COUNT])
{
    static const enum arch_slot scaled[][2] = {
        {W_O, W_O_SCALE},
        {W_O_BIAS, W_O_SCALE},
        {W_DOWN, W_DOWN_SCALE},
        {W_DOWN_BIAS, W_DOWN_SCALE},
    };
    for (size_t i = 0; i < sizeof scaled / sizeof *scaled; i++)
        s[scaled[i][0]].by = s[scaled[i][1]].tensor;
    s[W_O_SCALE].present = s[W_DOWN_SCALE].present = false; /* they have no rows of their own */
}

/* All rows of the model, of a layer, or of an expert. s: [W_COUNT], what was found. */
static FALLIBLE add_rows(struct lister *l, enum load_owner of, struct arch_place at,
                         struct weight_source *s)
{
    struct weight_source tied[W_COUNT];
    const size_t first = l->plan->n_row;
    enum q_code rc = Q_OK;
    scale_outputs(s);
    for (uint32_t i = 0; i < DEST_COUNT && !rc; i++) {
        const struct dest *d = &dests[i];
        struct load_row r = {.dest = (enum load_dest)i, .of = at};
        const struct weight_source *from = s;
        if (d->of != of || !is_of_stage(l, d->role) ||
            (of != OF_MODEL && !arch_wants(l->finder->config, d->when, at.layer)))
            continue;
        if (d->role == ROLE_LOGITS && !s[W_LM_HEAD].present) {
            memcpy(tied, s, sizeof tied);
            tied[W_LM_HEAD] = s[W_EMBED];
            from = tied;
            r.tied = pipeline_stage_has_embedding(&l->options->stage);
        }
        if (is_wanted(l->plan, first, d, from))
            rc = add_row(l, &r, from);
    }
    return rc ? rc : check_read(l, first, s);
}

/* One launch for all experts of a layer knows one form of each matrix: what one of them cannot be,
 * none is. Rows from `first` on. */
static FALLIBLE join_experts(struct lister *l, size_t first, enum load_dest dest)
{
    struct load_plan *p = l->plan;
    struct load_form all = {0};
    bool any = false;
    for (size_t i = first; i < p->n_row; i++) {
        const struct load_row *r = &p->rows[i];
        const struct load_case c = {
            .options = l->options,
            .config = l->finder->config,
            .role = dests[dest].role,
            .parts = load_plan_sources(p, r),
            .n = r->n_source,
            .interleaved = is_interleaved(l, &dests[dest]),
        };
        if (r->dest != dest)
            continue;
        const struct load_form one = load_form_of(&c);
        load_form_join(&all, &one, !any);
        any = true;
    }
    for (size_t i = first; i < p->n_row; i++) {
        struct load_row *r = &p->rows[i];
        if (r->dest != dest)
            continue;
        set_form(r, &all);
        if (is_interleaved(l, &dests[dest]) &&
            (!r->form.gated || !load_form_alike(&r->form, load_plan_sources(p, r), r->n_source)))
            return q_fail(l->e, Q_UNSUPPORTED,
                          "layer %u: gate and up of expert %u are stored in two ways, which a "
                          "device does not multiply together; use --device cpu",
                          r->of.layer, r->of.expert);
    }
    return Q_OK;
}

static FALLIBLE list_experts(struct lister *l, uint32_t layer, struct weight_source *s)
{
    const size_t first = l->plan->n_row;
    struct arch_place at = {.layer = layer};
    enum q_code rc;
    for (; at.expert < l->finder->config->moe.n_expert; at.expert++)
        if ((rc = weight_finder_find_expert(s, l->finder, at, l->e)) ||
            (rc = add_rows(l, OF_EXPERT, at, s)))
            return rc;
    if (!l->options->device)
        return Q_OK;
    if ((rc = join_experts(l, first, DEST_EXPERT_GATE_UP)) ||
        (rc = join_experts(l, first, DEST_EXPERT_UP)))
        return rc;
    return join_experts(l, first, DEST_EXPERT_DOWN);
}

static FALLIBLE list_all(struct lister *l)
{
    struct weight_source s[W_COUNT];
    const struct model_config *c = l->finder->config;
    enum q_code rc = weight_finder_find(s, l->finder, WEIGHT_FINDER_MODEL, l->e);
    if (rc || (rc = add_rows(l, OF_MODEL, (struct arch_place){0}, s)) ||
        (rc = list_own(l, false, 0)))
        return rc;
    for (uint32_t i = 0; i < c->n_layer; i++)
        if (pipeline_stage_has_layer(&l->options->stage, i) &&
            ((rc = weight_finder_find(s, l->finder, i, l->e)) ||
             (rc = add_rows(l, OF_LAYER, (struct arch_place){.layer = i}, s)) ||
             (rc = list_own(l, true, i)) || (s[W_ROUTER].present && (rc = list_experts(l, i, s)))))
            return rc;
    for (size_t i = 0; i < l->plan->n_row; i++)
        cut(l, &l->plan->rows[i]);
    l->plan->n_bytes = l->cutter.used;
    l->plan->n_host_bytes = l->host_cutter.used;
    return Q_OK;
}

enum q_code load_plan_new(struct load_plan **out, const struct weight_finder *f,
                          const struct load_options *o, struct q_err *e)
{
    struct load_plan *p = q_calloc(1, sizeof *p);
    if (!p)
        return q_fail(e, Q_NO_MEMORY, "out of memory for a plan of the weights");
    struct lister l = {.plan = p, .finder = f, .options = o, .e = e};
    p->arch = f->arch;
    p->files = f->files;
    p->n_unused = weight_finder_unused(&p->unused, f);
    enum q_code rc = weight_finder_check_inputs(f, e);
    if (!rc)
        rc = list_all(&l);
    if (rc)
        load_plan_free(p);
    else
        *out = p;
    return rc;
}

void load_plan_free(struct load_plan *p)
{
    if (!p)
        return;
    q_free(p->rows);
    q_free(p->sources);
    q_free(p);
}

/* NULL: it is another stage's. */
static struct load_row *row_of(const struct load_plan *p, enum load_dest dest)
{
    for (size_t i = 0; i < p->n_row; i++)
        if (p->rows[i].dest == dest)
            return &p->rows[i];
    return NULL;
}

void load_plan_place(struct load_plan *p, unsigned char *base)
{
    struct load_row *embedding = row_of(p, DEST_EMBED), *head = row_of(p, DEST_LM_HEAD);
    for (size_t i = 0; i < p->n_row; i++) {
        struct load_row *r = &p->rows[i];
        if (r->place == PLACE_REGION)
            r->form.data = base + r->at;
        else if (r->place == PLACE_FILE)
            r->form.data = load_plan_sources(p, r)->tensor->data;
        if (r->ordered && r->place == PLACE_REGION)
            r->form.order = (const uint32_t *)(const void *)(base + r->order_at);
    }
    if (embedding && head && embedding->place == PLACE_SHARED)
        embedding->form.data = head->form.data;
    if (embedding && head && head->place == PLACE_SHARED)
        head->form.data = embedding->form.data;
    p->table.data = embedding ? embedding->form.data : NULL;
}

void load_plan_place_host(struct load_plan *p, unsigned char *base)
{
    for (size_t i = 0; i < p->n_row; i++) {
        struct load_row *r = &p->rows[i];
        if (r->place != PLACE_HOST)
            continue;
        r->form.data = base + r->at;
        if (r->ordered)
            r->form.order = (const uint32_t *)(const void *)(base + r->order_at);
    }
}

bool load_plan_same_layout(const struct load_plan *a, const struct load_plan *b)
{
    bool same = a->n_row == b->n_row && a->n_bytes == b->n_bytes;
    for (size_t i = 0; i < a->n_row && same; i++) {
        const struct load_row *x = &a->rows[i], *y = &b->rows[i];
        same = x->dest == y->dest && x->own == y->own && x->place == y->place &&
               is_alike(&x->form, &y->form) && x->at == y->at && x->ordered == y->ordered &&
               x->order_at == y->order_at;
    }
    return same;
}

bool load_plan_same_scales(const struct load_plan *a, const struct load_plan *b)
{
    bool same = true;
    for (size_t i = 0; i < a->n_row && same; i++)
        same = a->rows[i].form.x_scale == b->rows[i].form.x_scale;
    return same;
}
