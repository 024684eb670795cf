/* SPDX-License-Identifier: Apache-2.0 */
/* A relation is a product of queries and keys whose rows become distributions: scores of a head (q
 * and k), or of values with themselves (v and v). That is what the head of a model is, with keys as
 * its matrix and positions as tokens, so its kernels compute it:
 *
 *     keys of the sequence, packed as a matrix            once a relation
 *     tile of rows   z = scale q Kᵀ, of both models       panels of K
 *                    z -> KL of each row, its gradient    distill_loss over the columns seen
 *                    dq = z K, dK += zᵀ q                 row_product.h
 *
 * All threads of the team go through all relations and tiles together, with barriers between. */
#include "engine/distill/attention_loss.h"
#include <math.h>
#include <string.h>
#include "common/mem.h"
#include "engine/distill/row_product.h"
#include "engine/distill/row_share.h"
#include "engine/model/forward/alibi.h"

#define TILE ATTENTION_LOSS_ROWS

enum { TEACHER, STUDENT, MODELS };

struct model_memory {
    float *keys;    /* [n_row_max, n_dim] of the relation, without gaps */
    void *packed;   /* the same as a matrix */
    float *tile;    /* [TILE, n_dim] queries, scaled */
    float *z;       /* [TILE, n_row_max] */
    uint32_t n_dim; /* the most of any relation */
};

struct attention_loss {
    struct attention_options o;
    const struct kern_table *kern;
    struct team *team;
    uint32_t n_thread, n_row_max, n_value; /* n_value: relations of values */
    size_t z_stride, slice_stride, scratch_bytes;
    struct region memory;
    struct model_memory models[MODELS];
    void *columns;          /* the student's keys, transposed, as a matrix */
    void *packed_tile;      /* its tile as a matrix */
    void *slices;           /* [n_thread] (row_product.h) */
    float *d_tile;          /* [TILE, n_dim] gradients of queries */
    float *d_keys;          /* [n_row_max, n_dim] */
    double *kl, *unused;    /* [TILE] of a row; its cross-entropy, which is not asked for */
    uint32_t *agree;        /* likewise */
    unsigned char *scratch; /* [n_thread] */
};

struct side { /* a model's part of a relation, from the sequence's first row on */
    const float *q, *k;
    size_t q_stride, k_stride;
    uint32_t n_dim;
    float scale, soft_cap, slope;
};
struct relation {
    struct side sides[MODELS];
    struct train_segment of;
    double weight; /* of a row's KL in the loss, without N */
    float *dq, *dk;
    size_t dq_stride, dk_stride;
};
struct pass { /* a thread's */
    struct attention_loss *l;
    const struct attention_pair *pair;
    struct kern_exec x, mine;
};
struct call {
    struct attention_loss *l;
    const struct attention_pair *pair;
    struct attention_sums *sums;
};

static bool has_gradient(const struct pass *p)
{
    return p->pair->dq != NULL;
}

/* ---- keys ---- */

static void copy_keys(const struct pass *p, const struct side *s, struct model_memory *m,
                      uint32_t n)
{
    const struct row_share rows = row_share_of(n, &p->x);
    for (uint32_t i = rows.begin; i < rows.end; i++)
        memcpy(m->keys + (size_t)i * s->n_dim, s->k + i * s->k_stride, s->n_dim * sizeof *m->keys);
}

static void pack_keys(const struct pass *p, const struct side *s, const struct model_memory *m,
                      uint32_t n)
{
    const struct pack_args a = {
        .dst = m->packed,
        .dst_dtype = DT_F32,
        .src = m->keys,
        .src_dtype = DT_F32,
        .n_out = n,
        .n_in = s->n_dim,
        .n_out_total = n,
    };
    p->l->kern->pack(&a, &p->x);
}

static void pack_columns(const struct pass *p, void *dst, const float *src, uint32_t n_dim,
                         uint32_t n)
{
    const struct pack_columns_args a = {
        .dst = dst,
        .dst_dtype = DT_F32,
        .src = src,
        .src_dtype = DT_F32,
        .n_out = n_dim,
        .n_in = n,
        .src_stride = n_dim,
    };
    p->l->kern->pack_columns(&a, &p->x);
}

static void load_keys(const struct pass *p, const struct relation *r)
{
    struct attention_loss *l = p->l;
    const uint32_t n = r->of.n_row, n_dim = r->sides[STUDENT].n_dim;
    const struct row_share rows = row_share_of(n, &p->x);
    for (uint32_t i = 0; i < MODELS; i++)
        copy_keys(p, &r->sides[i], &l->models[i], n);
    team_barrier(l->team);
    for (uint32_t i = 0; i < MODELS; i++)
        pack_keys(p, &r->sides[i], &l->models[i], n);
    if (has_gradient(p)) {
        pack_columns(p, l->columns, l->models[STUDENT].keys, n_dim, n);
        memset(l->d_keys + (size_t)rows.begin * n_dim, 0,
               (size_t)(rows.end - rows.begin) * n_dim * sizeof *l->d_keys);
    }
    team_barrier(l->team);
}

/* ---- a tile ---- */

static void load_tile(const struct pass *p, const struct side *s, const struct model_memory *m,
                      struct row_share tile)
{
    const struct row_share rows = row_share_of(tile.end - tile.begin, &p->x);
    for (uint32_t i = rows.begin; i < rows.end; i++) {
        const float *from = s->q + (tile.begin + i) * s->q_stride;
        float *to = m->tile + (size_t)i * s->n_dim;
        for (uint32_t c = 0; c < s->n_dim; c++)
            to[c] = from[c] * s->scale;
    }
}

static void multiply(const struct pass *p, const struct side *s, const struct model_memory *m,
                     uint32_t n_row, uint32_t n)
{
    const struct linear_args a = {
        .y = m->z,
        .y_dtype = DT_F32,
        .x = m->tile,
        .x_dtype = DT_F32,
        .w = {.data = m->packed, .n_out = n, .n_in = s->n_dim, .dtype = DT_F32},
        .n_row = n_row,
        .x_stride = s->n_dim,
        .y_stride = p->l->z_stride,
    };
    p->l->kern->linear(&a, &p->x);
}

/* What else the scores of row i have, of columns from `seen` on. */
static void finish_scores(const struct pass *p, const struct side *s, float *z,
                          struct row_share seen)
{
    for (uint32_t c = seen.begin; c < seen.end && s->slope != 0; c++)
        z[c] -= s->slope * (float)(seen.end - 1 - c);
    const struct soft_cap_args a = {
        .x = z + seen.begin,
        .n_row = 1,
        .n_col = seen.end - seen.begin,
        .x_stride = p->l->z_stride,
        .cap = s->soft_cap,
    };
    if (s->soft_cap > 0)
        p->l->kern->soft_cap(&a, &p->mine);
}

/* The columns that both models see of row i. */
static struct row_share seen_of(const struct attention_options *o, uint32_t i)
{
    const uint32_t a = o->teacher.window, b = o->student.window;
    const uint32_t window = !a || (b && b < a) ? b : a;
    return (struct row_share){window && i + 1 > window ? i + 1 - window : 0, i + 1};
}

/* Row i of the sequence, `at` of the tile: its KL; z of the student becomes the gradient. */
static void compare_row(const struct pass *p, const struct relation *r, uint32_t i, uint32_t at)
{
    static const int32_t any_label = 0;
    struct attention_loss *l = p->l;
    const struct row_share seen = seen_of(&l->o, i);
    const uint32_t n = seen.end - seen.begin;
    float *zs = l->models[STUDENT].z + at * l->z_stride;
    float *zt = l->models[TEACHER].z + at * l->z_stride;
    finish_scores(p, &r->sides[STUDENT], zs, seen);
    finish_scores(p, &r->sides[TEACHER], zt, seen);
    const struct distill_loss_args a = {
        .zs = zs + seen.begin,
        .zt = zt + seen.begin,
        .labels = &any_label,
        .zs_stride = l->z_stride,
        .zt_stride = l->z_stride,
        .n_row = 1,
        .n_student = n,
        .n_teacher = n,
        .kind = DISTILL_FKL,
        .temperature = 1,
        .soft_cap = r->sides[STUDENT].soft_cap,
        .kd_weight = r->weight,
        .n_position = p->pair->n_position,
        .kd = l->kl + at,
        .ce = l->unused + at,
        .agree = l->agree + at,
    };
    l->kern->distill_loss(&a, &p->mine);
    memset(zs, 0, seen.begin * sizeof *zs);
    memset(zs + seen.end, 0, (r->of.n_row - seen.end) * sizeof *zs);
}

static void compare_rows(const struct pass *p, const struct relation *r, struct row_share tile)
{
    struct attention_loss *l = p->l;
    const int32_t *labels = p->pair->batch->labels + r->of.row;
    const struct row_share rows = row_share_of(tile.end - tile.begin, &p->x);
    for (uint32_t at = rows.begin; at < rows.end; at++) {
        l->kl[at] = 0;
        if (labels[tile.begin + at] >= 0)
            compare_row(p, r, tile.begin + at, at);
        else
            memset(l->models[STUDENT].z + at * l->z_stride, 0, r->of.n_row * sizeof(float));
    }
}

static void multiply_back(const struct pass *p, const struct relation *r, uint32_t n_row)
{
    const struct attention_loss *l = p->l;
    const float *z = l->models[STUDENT].z;
    const uint32_t n_dim = r->sides[STUDENT].n_dim;
    const struct row_product product = {
        .kern = l->kern,
        .compute = DT_F32,
        .n = n_row,
        .n_in = n_dim,
        .n_out = r->of.n_row,
        .dy = z,
        .dy_rounded = z,
        .dy_stride = l->z_stride,
        .rounded_stride = l->z_stride,
        .w_columns = {.data = l->columns, .n_out = n_dim, .n_in = r->of.n_row, .dtype = DT_F32},
        .packed_h = l->packed_tile,
        .slices = l->slices,
        .slice_stride = l->slice_stride,
        .dh = l->d_tile,
        .w_grad = l->d_keys,
    };
    row_product_grad_input(&product, &p->x);
    row_product_grad_weight(&product, &p->x);
    team_barrier(l->team);
}

static void add_query_gradients(const struct pass *p, const struct relation *r,
                                struct row_share tile)
{
    const struct side *s = &r->sides[STUDENT];
    const struct row_share rows = row_share_of(tile.end - tile.begin, &p->x);
    for (uint32_t i = rows.begin; i < rows.end; i++) {
        const float *from = p->l->d_tile + (size_t)i * s->n_dim;
        float *to = r->dq + (tile.begin + i) * r->dq_stride;
        for (uint32_t c = 0; c < s->n_dim; c++)
            to[c] += s->scale * from[c];
    }
}

/* Returns the sum of the rows' KL. */
static double run_tile(const struct pass *p, const struct relation *r, struct row_share tile)
{
    struct attention_loss *l = p->l;
    const uint32_t n_row = tile.end - tile.begin;
    double sum = 0;
    for (uint32_t i = 0; i < MODELS; i++)
        load_tile(p, &r->sides[i], &l->models[i], tile);
    team_barrier(l->team);
    for (uint32_t i = 0; i < MODELS; i++)
        multiply(p, &r->sides[i], &l->models[i], n_row, r->of.n_row);
    if (has_gradient(p))
        pack_columns(p, l->packed_tile, l->models[STUDENT].tile, r->sides[STUDENT].n_dim, n_row);
    team_barrier(l->team);
    compare_rows(p, r, tile);
    team_barrier(l->team);
    for (uint32_t i = 0; i < n_row; i++)
        sum += l->kl[i];
    if (has_gradient(p)) {
        multiply_back(p, r, n_row);
        add_query_gradients(p, r, tile);
    }
    return sum;
}

static bool any_counts(const int32_t *labels, struct row_share rows)
{
    for (uint32_t i = rows.begin; i < rows.end; i++)
        if (labels[i] >= 0)
            return true;
    return false;
}

static double run_relation(const struct pass *p, const struct relation *r)
{
    const struct attention_loss *l = p->l;
    const int32_t *labels = p->pair->batch->labels + r->of.row;
    const uint32_t n = r->of.n_row, n_dim = r->sides[STUDENT].n_dim;
    const struct row_share rows = row_share_of(n, &p->x);
    double sum = 0;
    load_keys(p, r);
    for (uint32_t at = 0; at < n; at += TILE) {
        const struct row_share tile = {at, n - at < TILE ? n : at + TILE};
        if (any_counts(labels, tile))
            sum += run_tile(p, r, tile);
    }
    team_barrier(l->team);
    for (uint32_t i = rows.begin; i < rows.end && r->dk; i++)
        for (uint32_t c = 0; c < n_dim; c++)
            r->dk[i * r->dk_stride + c] += l->d_keys[(size_t)i * n_dim + c];
    team_barrier(l->team);
    return sum;
}

/* ---- the relations of a sequence ---- */

static const struct attention_shape *shape_of(const struct attention_loss *l, uint32_t model)
{
    return model == TEACHER ? &l->o.teacher : &l->o.student;
}

static const struct attention_rows *rows_of(const struct attention_pair *p, uint32_t model)
{
    return model == TEACHER ? &p->teacher : &p->student;
}

/* Head h of a model: its queries and the keys of its group. */
static struct side head_side(const struct pass *p, uint32_t model, uint32_t row, uint32_t h)
{
    const struct attention_shape *s = shape_of(p->l, model);
    const struct attention_rows *rows = rows_of(p->pair, model);
    const uint32_t group = (uint32_t)((uint64_t)h * s->n_kv_head / s->n_head);
    return (struct side){
        .q = rows->q + row * rows->q_stride + (size_t)h * s->head_dim,
        .k = rows->k + row * rows->kv_stride + (size_t)group * s->head_dim,
        .q_stride = rows->q_stride,
        .k_stride = rows->kv_stride,
        .n_dim = s->head_dim,
        .scale = s->scale,
        .soft_cap = s->soft_cap,
        .slope = s->slope_scale > 0 ? s->slope_scale * alibi_slope(h, s->n_head) : 0,
    };
}

static uint32_t value_columns(const struct attention_loss *l, uint32_t model)
{
    return l->n_value ? attention_kv_columns(shape_of(l, model)) / l->n_value : 0;
}

static struct side value_side(const struct pass *p, uint32_t model, uint32_t row, uint32_t i)
{
    const struct attention_rows *rows = rows_of(p->pair, model);
    const uint32_t n_dim = value_columns(p->l, model);
    const float *v = rows->v + row * rows->kv_stride + (size_t)i * n_dim;
    return (struct side){
        .q = v,
        .k = v,
        .q_stride = rows->kv_stride,
        .k_stride = rows->kv_stride,
        .n_dim = n_dim,
        .scale = 1 / sqrtf((float)n_dim),
    };
}

static double run_heads(const struct pass *p, const struct train_segment *of)
{
    const struct attention_shape *s = &p->l->o.student;
    const size_t q = attention_q_columns(s), kv = attention_kv_columns(s);
    double sum = 0;
    for (uint32_t h = 0; h < s->n_head && p->l->o.weight > 0; h++) {
        struct relation r = {
            .of = *of,
            .weight = p->l->o.weight / s->n_head,
            .dq_stride = q,
            .dk_stride = kv,
        };
        for (uint32_t i = 0; i < MODELS; i++)
            r.sides[i] = head_side(p, i, of->row, h);
        if (has_gradient(p)) {
            const uint32_t group = (uint32_t)((uint64_t)h * s->n_kv_head / s->n_head);
            r.dq = p->pair->dq + of->row * q + (size_t)h * s->head_dim;
            r.dk = p->pair->dk + of->row * kv + (size_t)group * s->head_dim;
        }
        sum += run_relation(p, &r);
    }
    return sum / s->n_head;
}

static double run_values(const struct pass *p, const struct train_segment *of)
{
    const size_t kv = attention_kv_columns(&p->l->o.student);
    const uint32_t n = p->l->n_value;
    double sum = 0;
    for (uint32_t i = 0; i < n && p->l->o.value_weight > 0; i++) {
        struct relation r = {
            .of = *of,
            .weight = p->l->o.value_weight / n,
            .dq_stride = kv,
            .dk_stride = kv,
        };
        for (uint32_t m = 0; m < MODELS; m++)
            r.sides[m] = value_side(p, m, of->row, i);
        if (has_gradient(p))
            r.dq = r.dk = p->pair->dv + of->row * kv + (size_t)i * r.sides[STUDENT].n_dim;
        sum += run_relation(p, &r);
    }
    return sum / n;
}

static void clear_rows(const struct pass *p, float *x, size_t n_col)
{
    const struct row_share rows = row_share_of(p->pair->batch->n_row, &p->x);
    memset(x + rows.begin * n_col, 0, (rows.end - rows.begin) * n_col * sizeof *x);
}

/* The sums are the same on all threads. */
static void run_batch(void *arg, uint32_t ith, uint32_t nth)
{
    const struct call *c = arg;
    struct attention_loss *l = c->l;
    const struct micro_batch *b = c->pair->batch;
    struct attention_sums sums = {0};
    struct pass p = {
        .l = l,
        .pair = c->pair,
        .x = row_exec(l->scratch, l->scratch_bytes, ith, nth),
    };
    p.mine = row_exec_alone(p.x);
    if (has_gradient(&p)) {
        clear_rows(&p, c->pair->dq, attention_q_columns(&l->o.student));
        clear_rows(&p, c->pair->dk, attention_kv_columns(&l->o.student));
        clear_rows(&p, c->pair->dv, attention_kv_columns(&l->o.student));
        team_barrier(l->team);
    }
    for (uint32_t i = 0; i < b->n_segment; i++) {
        const struct train_segment *of = &b->segments[i];
        if (!any_counts(b->labels, (struct row_share){of->row, of->row + of->n_row}))
            continue;
        sums.attention += run_heads(&p, of);
        sums.values += run_values(&p, of);
    }
    if (ith == 0)
        *c->sums = sums;
}

void attention_loss_run(struct attention_loss *l, const struct attention_pair *p,
                        struct attention_sums *out)
{
    struct call c = {l, p, out};
    if (l->team)
        team_run(l->team, run_batch, &c);
    else
        run_batch(&c, 0, 1);
}

/* ---- life ---- */

FALLIBLE attention_loss_check(const struct attention_options *o, struct q_err *e)
{
    if (!(o->weight >= 0) || !(o->value_weight >= 0) || !attention_is_asked(o) ||
        !isfinite(o->weight + o->value_weight))
        return q_fail(e, Q_INVALID,
                      "weights %g of the attention and %g of the values: both must be 0 or more, "
                      "and one of them above 0",
                      o->weight, o->value_weight);
    if (o->weight > 0 && o->teacher.n_head != o->student.n_head)
        return q_fail(e, Q_INVALID,
                      "the teacher has %u attention heads and the student %u: distributions are "
                      "compared head by head, so expected equal numbers, or --attention-weight 0 "
                      "to compare the relations of values alone",
                      o->teacher.n_head, o->student.n_head);
    return Q_OK;
}

static uint32_t common_divisor(uint32_t a, uint32_t b)
{
    while (b) {
        const uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Run twice (region_cutter). */
static void cut(struct attention_loss *l, struct region_cutter *c)
{
    const size_t n = l->n_row_max, n_dim = l->models[STUDENT].n_dim;
    const uint32_t dim = l->models[STUDENT].n_dim;
    for (uint32_t i = 0; i < MODELS; i++) {
        struct model_memory *m = &l->models[i];
        m->keys = region_cut(c, n * m->n_dim, sizeof *m->keys);
        m->packed = region_cut(c, 1, packed_bytes(DT_F32, l->n_row_max, m->n_dim));
        m->tile = region_cut(c, (size_t)TILE * m->n_dim, sizeof *m->tile);
        m->z = region_cut(c, TILE * l->z_stride, sizeof *m->z);
    }
    l->columns = region_cut(c, 1, packed_bytes(DT_F32, dim, l->n_row_max));
    l->packed_tile = region_cut(c, 1, packed_bytes(DT_F32, dim, TILE));
    l->slices = region_cut(c, l->n_thread * ROW_PRODUCT_SLICE * l->slice_stride, sizeof(float));
    l->d_tile = region_cut(c, TILE * n_dim, sizeof *l->d_tile);
    l->d_keys = region_cut(c, n * n_dim, sizeof *l->d_keys);
    l->kl = region_cut(c, TILE, sizeof *l->kl);
    l->unused = region_cut(c, TILE, sizeof *l->unused);
    l->agree = region_cut(c, TILE, sizeof *l->agree);
    l->scratch = region_cut(c, l->n_thread, l->scratch_bytes);
}

static void set_sizes(struct attention_loss *l)
{
    l->n_thread = l->team ? team_size(l->team) : 1;
    l->n_value = common_divisor(l->o.teacher.n_kv_head, l->o.student.n_kv_head);
    l->z_stride = row_stride(l->n_row_max, 16);
    l->slice_stride = row_stride(TILE, 16);
    l->scratch_bytes = row_scratch_bytes();
    for (uint32_t i = 0; i < MODELS; i++) {
        const uint32_t head = shape_of(l, i)->head_dim, value = value_columns(l, i);
        l->models[i].n_dim = l->o.value_weight > 0 && value > head ? value : head;
    }
}

FALLIBLE attention_loss_new(struct attention_loss **out, const struct attention_options *o,
                            const struct kern_table *kern, struct team *team, uint32_t n_row_max,
                            struct q_err *e)
{
    struct region_cutter c = {0};
    enum q_code rc = attention_loss_check(o, e);
    if (rc)
        return rc;
    struct attention_loss *l = q_calloc(1, sizeof *l);
    if (!l)
        return q_fail(e, Q_NO_MEMORY, "out of memory for the loss of attention");
    l->o = *o;
    l->kern = kern;
    l->team = team;
    l->n_row_max = n_row_max;
    set_sizes(l);
    cut(l, &c);
    if ((rc = region_init(&l->memory, c.used, "scores of a tile of rows", e))) {
        q_free(l);
        return rc;
    }
    c = (struct region_cutter){.base = l->memory.data};
    cut(l, &c);
    *out = l;
    return Q_OK;
}

void attention_loss_free(struct attention_loss *l)
{
    if (!l)
        return;
    region_release(&l->memory);
    q_free(l);
}

uint64_t attention_loss_bytes(const struct attention_loss *l)
{
    return l ? l->memory.size : 0;
}
