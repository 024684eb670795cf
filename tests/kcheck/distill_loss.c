/* SPDX-License-Identifier: Apache-2.0 */
#include "kcheck.h"
#include <math.h>

#define COLUMNS_MAX 400u

struct row { /* one row in f64 */
    uint32_t n, n_student, label;
    bool chosen[COLUMNS_MAX]; /* in K; all, when there is no top_k */
    double zt[COLUMNS_MAX], zs[COLUMNS_MAX], log_p[COLUMNS_MAX], log_q[COLUMNS_MAX];
    double grad[COLUMNS_MAX], kd, ce, sizes; /* sizes: of what makes up one element */
};

/* log softmax of the columns in `in` (NULL: all) of z * scale. */
static void log_softmax(double *out, const double *z, const bool *in, uint32_t n, double scale)
{
    double most = -INFINITY, sum = 0;
    for (uint32_t c = 0; c < n; c++)
        most = !in || in[c] ? fmax(most, z[c]) : most;
    for (uint32_t c = 0; c < n; c++)
        sum += !in || in[c] ? exp((z[c] - most) * scale) : 0;
    for (uint32_t c = 0; c < n; c++)
        out[c] = !in || in[c] ? (z[c] - most) * scale - log(sum) : -INFINITY;
}

static double times(double weight, double term)
{
    return weight == 0 ? 0 : weight * term;
}

/* D to r->kd and dD / dlog Q-logits to r->grad, from log P and log Q. */
static void divergence(const struct distill_loss_args *a, struct row *r)
{
    const double beta = (double)a->beta;
    double d = 0, g = 0;
    for (uint32_t c = 0; c < r->n; c++) {
        const double p = exp(r->log_p[c]), q = exp(r->log_q[c]);
        const double log_m = log(beta * p + (1 - beta) * q), ratio = r->log_q[c] - r->log_p[c];
        if (a->kind == DISTILL_FKL)
            d += times(p, -ratio);
        else if (a->kind == DISTILL_RKL)
            d += times(q, ratio);
        else
            d += times(beta * p, r->log_p[c] - log_m) + times((1 - beta) * q, r->log_q[c] - log_m);
        g += times(q, (1 - beta) * (r->log_q[c] - log_m));
    }
    for (uint32_t c = 0; c < r->n; c++) {
        const double p = exp(r->log_p[c]), q = exp(r->log_q[c]);
        const double log_m = log(beta * p + (1 - beta) * q);
        if (a->kind == DISTILL_FKL)
            r->grad[c] = q - p;
        else if (a->kind == DISTILL_RKL)
            r->grad[c] = times(q, r->log_q[c] - r->log_p[c] - d);
        else
            r->grad[c] = times(q, (1 - beta) * (r->log_q[c] - log_m) - g);
    }
    r->kd = d;
}

/* The columns of K by counting, for each, how many come before it. */
static void choose(const struct distill_loss_args *a, struct row *r, const uint32_t *ids)
{
    for (uint32_t c = 0; c < r->n; c++) {
        uint32_t before = 0;
        for (uint32_t o = 0; o < r->n && !ids; o++)
            before += r->zt[o] > r->zt[c] || (r->zt[o] == r->zt[c] && o < c);
        r->chosen[c] = !a->top_k || (!ids && before < a->top_k);
    }
    for (uint32_t j = 0; ids && j < a->top_k; j++)
        r->chosen[ids[j]] = true;
}

static void row_f64(const struct distill_loss_args *a, struct row *r)
{
    const double t = (double)a->temperature, t2 = a->t2 ? t * t : 1;
    const double kd = a->kd_weight * t2 / (t * a->n_position), ce = a->ce_weight / a->n_position;
    double log_all[COLUMNS_MAX];
    memset(r->grad, 0, sizeof r->grad);
    if (a->zt) {
        log_softmax(r->log_p, r->zt, r->chosen, r->n, 1 / t);
        log_softmax(r->log_q, r->zs, a->renorm && a->top_k ? r->chosen : NULL, r->n, 1 / t);
        divergence(a, r);
    }
    log_softmax(log_all, r->zs, NULL, r->n_student, 1);
    r->kd *= t2;
    r->ce = -log_all[r->label];
    r->sizes = fabs(kd) + fabs(ce);
    for (uint32_t c = 0; c < r->n_student; c++) {
        const double cap = a->soft_cap > 0 ? r->zs[c] / a->soft_cap : 0;
        r->grad[c] = kd * r->grad[c] + ce * (exp(log_all[c]) - (c == r->label));
        r->grad[c] *= 1 - cap * cap;
    }
}

struct drawn {
    struct distill_loss_args a;
    const float *zs; /* as they were */
    size_t n_zs;
};

static void draw_top_k(struct kcheck *k, struct distill_loss_args *a)
{
    const uint32_t n = a->n_teacher < a->n_student ? a->n_teacher : a->n_student;
    a->top_k = kc_chance(k, 50) ? kc_range(k, 1, n + 3) : kc_range(k, 1, 8);
    a->renorm = kc_chance(k, 50);
    if (!a->renorm)
        a->kind = DISTILL_FKL;
}

/* Ids of columns, ascending, as a file of a teacher has them. */
static const uint32_t *draw_ids(struct kcheck *k, struct distill_loss_args *a)
{
    const uint32_t n = a->n_teacher < a->n_student ? a->n_teacher : a->n_student;
    a->top_k = a->top_k < n ? a->top_k : n;
    a->zt_stride = a->top_k + kc_range(k, 0, 3);
    uint32_t *ids = kc_buf(k, a->n_row * a->zt_stride * sizeof *ids);
    for (uint32_t i = 0; i < a->n_row; i++) {
        uint32_t at = 0;
        for (uint32_t j = 0; j < a->top_k; j++, at++) {
            at += kc_range(k, 0, n - at - (a->top_k - j));
            ids[i * a->zt_stride + j] = at;
        }
    }
    return ids;
}

static void draw_logits(struct kcheck *k, float *p, size_t n, float size, bool ties)
{
    for (size_t i = 0; i < n; i++)
        p[i] = ties ? roundf(kc_f32(k) * 3) : kc_f32(k) * size;
}

static struct drawn draw(struct kcheck *k)
{
    const bool wide = kc_chance(k, 20), ties = kc_chance(k, 20);
    k->specials = false;
    k->scratch_bytes = kern_train_scratch_bytes(1);
    struct distill_loss_args a = {
        .n_row = kc_range(k, 0, 5),
        .n_student = kc_range(k, 1, COLUMNS_MAX - 50),
        .kind = (enum distill_kind)kc_range(k, 0, DISTILL_KINDS - 1),
        .temperature = kc_chance(k, 50) ? 1 : 0.5f + (float)kc_range(k, 0, 5),
        .beta = kc_chance(k, 50) ? 0.5f : 0.3f,
        .t2 = kc_chance(k, 50),
        .kd_weight = kc_chance(k, 10) ? 0 : 0.7,
        .ce_weight = kc_chance(k, 50) ? 0 : 0.5,
        .n_position = kc_range(k, 1, 100),
    };
    a.n_teacher = kc_chance(k, 60) ? a.n_student : kc_range(k, 1, COLUMNS_MAX);
    a.soft_cap = kc_chance(k, 30) ? (wide ? 60.0f : 10.0f) : 0; /* what zs stays below */
    a.zs_stride = a.n_student + kc_range(k, 0, 9);
    a.zt_stride = a.n_teacher + kc_range(k, 0, 9);
    if (kc_chance(k, 50))
        draw_top_k(k, &a);
    if (a.top_k && kc_chance(k, 40))
        a.ids = draw_ids(k, &a);
    struct drawn d = {.n_zs = a.n_row * a.zs_stride};
    float *zs = kc_buf(k, d.n_zs * sizeof *zs);
    float *zt = kc_buf(k, a.n_row * a.zt_stride * sizeof *zt);
    int32_t *labels = kc_buf(k, a.n_row * sizeof *labels);
    draw_logits(k, zs, d.n_zs, wide ? 60 : 5, ties);
    draw_logits(k, zt, a.n_row * a.zt_stride, wide ? 60 : 5, ties);
    for (uint32_t i = 0; i < a.n_row; i++) {
        labels[i] = kc_chance(k, 20) ? -100 : (int32_t)kc_range(k, 0, a.n_student - 1);
        if (kc_chance(k, 10) && !a.ids) /* a column that the teacher never takes */
            zt[i * a.zt_stride + kc_range(k, 0, a.n_teacher - 1)] =
                a.kind == DISTILL_RKL || a.n_teacher == 1 ? 0 : -INFINITY;
    }
    a.zt = kc_chance(k, 90) ? zt : NULL;
    a.labels = labels;
    a.kd = kc_buf(k, a.n_row * sizeof *a.kd);
    a.ce = kc_buf(k, a.n_row * sizeof *a.ce);
    a.agree = kc_buf(k, a.n_row * sizeof *a.agree);
    d.a = a;
    d.zs = zs;
    kc_shape(k, "%u rows, kind %d%s, V %u/%u T %g top_k %u%s%s cap %g", a.n_row, (int)a.kind,
             a.zt ? "" : " no teacher", a.n_teacher, a.n_student, (double)a.temperature, a.top_k,
             a.renorm ? " renorm" : "", a.ids ? " ids" : "", (double)a.soft_cap);
    return d;
}

static uint32_t argmax(const double *z, const bool *in, uint32_t n)
{
    uint32_t at = UINT32_MAX;
    for (uint32_t c = 0; c < n; c++)
        if ((!in || in[c]) && (at == UINT32_MAX || z[c] > z[at]))
            at = c;
    return at;
}

static void load_row(const struct drawn *d, struct row *r, uint32_t i)
{
    const struct distill_loss_args *a = &d->a;
    const uint32_t *ids = a->ids ? a->ids + i * a->zt_stride : NULL;
    memset(r, 0, sizeof *r);
    r->n = a->n_teacher < a->n_student ? a->n_teacher : a->n_student;
    r->n_student = a->n_student;
    r->label = (uint32_t)a->labels[i];
    for (uint32_t c = 0; c < r->n_student; c++)
        r->zs[c] = (double)d->zs[i * a->zs_stride + c];
    for (uint32_t c = 0; c < r->n && a->zt && !ids; c++)
        r->zt[c] = (double)a->zt[i * a->zt_stride + c];
    for (uint32_t j = 0; ids && a->zt && j < a->top_k; j++)
        r->zt[ids[j]] = (double)a->zt[i * a->zt_stride + j];
    choose(a, r, ids);
}

/* Row i against f64. An exponent of size 120 / T is rounded three times, and its error multiplies
 * the probability; the logs of a ratio have the size of the exponents. */
static void near_row(struct kcheck *k, const struct drawn *d, uint32_t i)
{
    const struct distill_loss_args *a = &d->a;
    const float *got = a->zs + i * a->zs_stride;
    static struct row r; /* kcheck has one thread */
    if (a->labels[i] < 0) {
        for (uint32_t c = 0; c < a->n_student; c++)
            kc_near(k, "a row that does not count", got[c], 0, 0);
        kc_near(k, "kd", a->kd[i] + a->ce[i] + a->agree[i], 0, 0);
        return;
    }
    load_row(d, &r, i);
    row_f64(a, &r);
    const double t2 = a->t2 ? (double)a->temperature * (double)a->temperature : 1;
    kc_near(k, "kd", a->kd[i], r.kd, 1e-5 * r.kd + 2e-6 * t2);
    kc_near(k, "ce", a->ce[i], r.ce, 1e-6 * r.ce + 1e-6);
    for (uint32_t c = 0; c < a->n_student; c++)
        kc_near(k, "gradient", got[c], r.grad[c], r.sizes * 300 * 0x1p-24);
    const uint32_t same =
        a->zt && argmax(r.zt, a->top_k ? r.chosen : NULL, r.n) == argmax(r.zs, NULL, r.n);
    kc_near(k, "agree", a->agree[i], same, 0);
}

static void row_alone(struct kcheck *k, const struct drawn *d, uint32_t i)
{
    const struct distill_loss_args *a = &d->a;
    struct distill_loss_args one = *a;
    one.n_row = 1;
    one.zs = kc_copy(k, d->zs + i * a->zs_stride, a->n_student * sizeof *one.zs);
    one.zt = a->zt ? a->zt + i * a->zt_stride : NULL;
    one.ids = a->ids ? a->ids + i * a->zt_stride : NULL;
    one.labels = a->labels + i;
    one.kd = kc_buf(k, sizeof *one.kd);
    one.ce = kc_buf(k, sizeof *one.ce);
    one.agree = kc_buf(k, sizeof *one.agree);
    kc_run(k, k->variant, &one, 1);
    kc_same_bits(k, "row alone",
                 (struct kc_bits){one.zs, a->zs + i * a->zs_stride, DT_F32, a->n_student});
    kc_same_bits(k, "row alone, kd", (struct kc_bits){one.kd, a->kd + i, DT_F64, 1});
    kc_same_bits(k, "row alone, ce", (struct kc_bits){one.ce, a->ce + i, DT_F64, 1});
}

void kcheck_distill_loss(struct kcheck *k)
{
    struct drawn d = draw(k);
    struct distill_loss_args *a = &d.a;
    float *want = kc_copy(k, d.zs, d.n_zs * sizeof *want);
    float *got = kc_copy(k, d.zs, d.n_zs * sizeof *got);
    a->zs = want;
    kc_run(k, k->ref, a, kc_range(k, 1, 3));
    for (uint32_t i = 0; i < a->n_row; i++)
        near_row(k, &d, i);
    a->zs = got;
    kc_run(k, k->variant, a, kc_range(k, 1, 5));
    for (uint32_t i = 0; i < a->n_row; i++)
        near_row(k, &d, i);
    const double t = (double)a->temperature;
    k->magnitude = ((a->t2 ? t * t : 1) / t * a->kd_weight + a->ce_weight) / a->n_position;
    kc_compare(k, "gradient", &(struct kc_array){got, DT_F32, a->n_row, a->n_student, a->zs_stride},
               &(struct kc_array){want, DT_F32, a->n_row, a->n_student, a->zs_stride});
    for (uint32_t i = 0; i < a->n_row; i++)
        row_alone(k, &d, i);
    struct distill_loss_args other = *a;
    other.zs = kc_copy(k, d.zs, d.n_zs * sizeof *other.zs);
    kc_same_as_sibling(k, &other, (struct kc_bits){other.zs, got, DT_F32, d.n_zs});
}

void kbench_distill_loss(struct kc_bench *b)
{
    static const struct {
        enum distill_kind kind;
        uint32_t top_k;
        double ce_weight;
        const char *shape;
    } cases[] = {
        {DISTILL_FKL, 0, 0, "fkl, 64 x 32768"},
        {DISTILL_FKL, 0, 0.5, "fkl and ce, 64 x 32768"},
        {DISTILL_RKL, 0, 0, "rkl, 64 x 32768"},
        {DISTILL_JSD, 0, 0, "jsd, 64 x 32768"},
        {DISTILL_FKL, 64, 0, "fkl, top 64, 64 x 32768"},
    };
    enum { N_ROW = 64, N_COL = 32768 };
    const size_t n = (size_t)N_ROW * N_COL;
    static int32_t labels[N_ROW];
    static double kd[N_ROW], ce[N_ROW];
    static uint32_t agree[N_ROW];
    float *zt = kc_buf(b->k, n * sizeof *zt);
    kc_fill(b->k, zt, n);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct distill_loss_args a = {
            .zs = kc_copy(b->k, zt, n * sizeof *zt), /* its gradient the next time: as many steps */
            .zt = zt,
            .labels = labels,
            .zs_stride = N_COL,
            .zt_stride = N_COL,
            .n_row = N_ROW,
            .n_student = N_COL,
            .n_teacher = N_COL,
            .kind = cases[i].kind,
            .temperature = 1,
            .beta = 0.5f,
            .t2 = 1,
            .top_k = cases[i].top_k,
            .kd_weight = 1,
            .ce_weight = cases[i].ce_weight,
            .n_position = N_ROW,
            .kd = kd,
            .ce = ce,
            .agree = agree,
        };
        kc_print_bytes(b, cases[i].shape, kc_time(b, &a), (double)n * 12);
    }
}
