/* SPDX-License-Identifier: Apache-2.0 */
/* distill_rows - the rows of distill_loss; the loops over columns are the variant's.
 *
 * Definitions: ops_distill.h; the terms of the sums and of the gradient: ref/distill_loss.c. A row
 * is gone through for its maxima, for its sums, and once more to write the gradient over it; top_k
 * gathers K into scratch, where the same loops run over it. Private to kernels/, compiled into each
 * variant. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_TILING_DISTILL_ROWS_H
#define QUIRE_KERNELS_TILING_DISTILL_ROWS_H
#include <math.h>
#include <string.h>
#include "kernels/tiling/distill_pair.h"
#include "kernels/tiling/split.h"

/* Largest zt and Zt; largest zs and Zs. */
static inline void distill_sum_t(const struct distill_row *r, struct distill_pair *p)
{
    p->mt = r->loops->most(p->zt, p->n);
    p->sum_t = r->loops->sum_exp(p->zt, p->n, p->mt, p->inverse);
    p->pt = (float)(1 / p->sum_t);
}

static inline void distill_sum_s(const struct distill_row *r, struct distill_pair *p)
{
    const bool known = p->zs == r->zs && p->n == p->n_all && p->inverse == 1.0f; /* same terms */
    p->ms = known ? p->ce_most : r->loops->most(p->zs, p->n);
    p->sum_s = known ? p->ce_sum : r->loops->sum_exp(p->zs, p->n, p->ms, p->inverse);
    p->ps = (float)(1 / p->sum_s);
}

/* D of p, whose sums are known; p is then what its gradient is written by. */
static inline double distill_divergence(const struct distill_row *r, struct distill_pair *p)
{
    const double logs = log(p->sum_s) - log(p->sum_t), beta = (double)r->a->beta;
    double d, sums[2];
    p->c = (float)logs;
    p->slope = (enum distill_slope)r->a->kind;
    if (r->a->kind == DISTILL_FKL)
        return r->loops->sum_cross(p) / p->sum_t + logs;
    if (r->a->kind == DISTILL_RKL) {
        d = r->loops->sum_cross(p) / p->sum_s - logs;
        p->off = (float)d;
        return d;
    }
    p->log_beta = (float)log(beta);
    p->log_rest = (float)log1p(-beta);
    p->logit = (float)(log(beta) - log1p(-beta));
    r->loops->sum_mixed(p, sums);
    p->off = (float)sums[1];
    p->weight = (float)(1 - beta) * p->weight;
    return beta * sums[0] + (1 - beta) * sums[1];
}

/* K to chosen->ids, ascending, and both rows' values there; returns how many. */
static inline uint32_t distill_choose(const struct distill_row *r)
{
    const struct distill_loss_args *a = r->a;
    const uint32_t n_common = distill_common(a);
    struct top_k top = {.items = r->chosen->items, .k = a->top_k < n_common ? a->top_k : n_common};
    uint32_t n = a->top_k;
    if (!a->ids) {
        r->loops->offer(&top, r->zt, n_common);
        top_k_sort(&top);
        n = top.n;
    }
    for (uint32_t j = 0; j < n; j++) {
        r->chosen->ids[j] = a->ids ? a->ids[r->i * a->zt_stride + j] : top.items[j].id;
        r->chosen->teacher[j] = a->ids ? r->zt[j] : top.items[j].value;
        r->chosen->student[j] = r->zs[r->chosen->ids[j]];
    }
    return n;
}

/* D with P over the n columns of K; chosen->slopes is what they get besides the slope of `all`. */
static inline double distill_chosen(const struct distill_row *r, struct distill_pair *all,
                                    uint32_t n)
{
    struct distill_pair p = *all;
    double d;
    p.zt = r->chosen->teacher;
    p.zs = r->chosen->slopes;
    p.n = p.n_all = n;
    p.ce_weight = p.cap = 0;
    memcpy(p.zs, r->chosen->student, n * sizeof *p.zs);
    distill_sum_t(r, &p);
    if (r->a->renorm) {
        distill_sum_s(r, &p);
        d = distill_divergence(r, &p);
        all->slope = SLOPE_NONE;
    } else {
        distill_sum_s(r, all);
        p.ms = all->ms;
        p.sum_s = all->sum_s;
        d = distill_divergence(r, &p); /* of forward KL; the sum is over K alone */
        p.slope = SLOPE_P;
        all->slope = SLOPE_Q;
    }
    r->loops->write(&p);
    return d;
}

/* Are the largest logits in the same column? */
static inline uint32_t distill_agrees(const struct distill_row *r, const struct distill_pair *all)
{
    const uint32_t n = r->a->ids ? r->a->top_k : all->n;
    const uint32_t t = r->loops->first_equal(r->zt, n, r->loops->most(r->zt, n));
    const uint32_t s = r->loops->first_equal(r->zs, all->n, r->loops->most(r->zs, all->n));
    return s == (r->a->ids ? r->a->ids[r->i * r->a->zt_stride + t] : t);
}

/* -log softmax(zs)[label]; p is then what its gradient is written by. */
static inline double distill_cross_entropy(const struct distill_row *r, struct distill_pair *p)
{
    const uint32_t label = (uint32_t)r->a->labels[r->i];
    p->ce_most = r->loops->most(r->zs, p->n_all);
    p->ce_sum = r->loops->sum_exp(r->zs, p->n_all, p->ce_most, 1.0f);
    p->ce_p = (float)(1 / p->ce_sum);
    p->ce_weight = (float)(r->a->ce_weight / r->a->n_position);
    return log(p->ce_sum) - (double)(r->zs[label] - p->ce_most);
}

static inline void distill_row(const struct distill_row *r)
{
    const struct distill_loss_args *a = r->a;
    const uint32_t label = (uint32_t)a->labels[r->i];
    const double t = (double)a->temperature, t2 = a->t2 ? t * t : 1;
    const float at_label = r->zs[label];
    uint32_t n = 0;
    struct distill_pair all = {
        .slope = SLOPE_NONE,
        .zt = r->zt,
        .zs = r->zs,
        .n = distill_common(a),
        .n_all = a->n_student,
        .inverse = 1.0f / a->temperature,
        .weight = (float)(a->kd_weight * t2 / (a->n_position * t)),
        .cap = a->soft_cap,
    };
    a->ce[r->i] = distill_cross_entropy(r, &all);
    a->kd[r->i] = 0;
    a->agree[r->i] = r->zt ? distill_agrees(r, &all) : 0;
    if (r->zt && a->top_k) {
        n = distill_choose(r);
        a->kd[r->i] = t2 * distill_chosen(r, &all, n);
    } else if (r->zt) {
        distill_sum_t(r, &all);
        distill_sum_s(r, &all);
        a->kd[r->i] = t2 * distill_divergence(r, &all);
    }
    r->loops->write(&all);
    if (all.ce_weight != 0)
        r->zs[label] -= all.ce_weight * distill_cap(a, at_label);
    for (uint32_t j = 0; j < n; j++)
        r->zs[r->chosen->ids[j]] += r->chosen->slopes[j] * distill_cap(a, r->chosen->student[j]);
}

static inline void distill_rows(const struct distill_loss_args *a, const struct kern_exec *x,
                                const struct distill_loops *loops)
{
    const struct range rows = split(a->n_row, x);
    for (size_t i = rows.begin; i < rows.end; i++) {
        const struct distill_row r = {
            .a = a,
            .loops = loops,
            .chosen = x->scratch,
            .zt = a->zt ? a->zt + i * a->zt_stride : NULL,
            .zs = a->zs + i * a->zs_stride,
            .i = (uint32_t)i,
        };
        if (a->labels[i] >= 0) {
            distill_row(&r);
            continue;
        }
        memset(r.zs, 0, a->n_student * sizeof *r.zs);
        a->kd[i] = a->ce[i] = 0;
        a->agree[i] = 0;
    }
}

#endif
