/* SPDX-License-Identifier: Apache-2.0 */
/* distill_loss on 16 lanes; definition and order: ref/distill_loss.c, the loop over rows:
 * tiling/distill_rows.h, exp: wide/exp.h. Lanes past the end of a row add +0 to the sums.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_DISTILL_LOSS_H
#define QUIRE_KERNELS_WIDE_DISTILL_LOSS_H
#include "kernels/tiling/distill_rows.h"
#include "kernels/wide/distill_terms.h"
#include "kernels/wide/softmax_stats.h"
#ifdef VEC_SUMS

static float distill_most(const float *row, uint32_t n)
{
    return wide_row_max(row, n);
}

static uint32_t distill_first_equal(const float *row, uint32_t n, float value)
{
    return wide_first_equal(row, n, value);
}

static double distill_sum_exp(const float *row, uint32_t n, float most, float inverse)
{
    struct vec_f64 sum = vec_f64_zero();
    for (uint32_t c = 0; c < n; c += 16) {
        const uint32_t lanes = distill_lanes(c, n);
        const struct vec z = distill_load(row + c, lanes);
        sum = distill_add(sum, vec_exp(distill_exponent(z, most, inverse)), lanes);
    }
    return vec_f64_fold_add(sum);
}

INLINE double distill_cross(const struct distill_pair *p, const bool reverse)
{
    struct vec_f64 sum = vec_f64_zero();
    for (uint32_t c = 0; c < p->n; c += 16) {
        const uint32_t lanes = distill_lanes(c, p->n);
        const struct vec a = distill_exponent(distill_load(p->zt + c, lanes), p->mt, p->inverse);
        const struct vec b = distill_exponent(distill_load(p->zs + c, lanes), p->ms, p->inverse);
        const struct vec term = reverse ? distill_product(vec_exp(b), vec_sub(b, a))
                                        : distill_product(vec_exp(a), vec_sub(a, b));
        sum = distill_add(sum, term, lanes);
    }
    return vec_f64_fold_add(sum);
}

static double distill_sum_cross(const struct distill_pair *p)
{
    return p->slope == SLOPE_RKL ? distill_cross(p, true) : distill_cross(p, false);
}

static void distill_sum_mixed(const struct distill_pair *p, double sums[2])
{
    struct vec_f64 of_t = vec_f64_zero(), of_s = vec_f64_zero();
    for (uint32_t c = 0; c < p->n; c += 16) {
        const uint32_t lanes = distill_lanes(c, p->n);
        const struct vec a = distill_exponent(distill_load(p->zt + c, lanes), p->mt, p->inverse);
        const struct vec b = distill_exponent(distill_load(p->zs + c, lanes), p->ms, p->inverse);
        const struct vec d = vec_add(vec_sub(a, b), vec_set(p->c)), x = distill_log_ratio(p, d);
        const struct vec t = vec_mul(vec_exp(a), vec_set(p->pt));
        const struct vec s = vec_mul(vec_exp(b), vec_set(p->ps));
        of_t = distill_add(of_t, distill_product(t, vec_add(x, d)), lanes);
        of_s = distill_add(of_s, distill_product(s, x), lanes);
    }
    sums[0] = vec_f64_fold_add(of_t);
    sums[1] = vec_f64_fold_add(of_s);
}

/* Most of a row is not above the least item that is in. */
static void distill_offer(struct top_k *top, const float *row, uint32_t n)
{
    uint32_t c = 0;
    for (; c < n && top->n < top->k; c++)
        top_k_offer(top, row[c], c);
    for (; c < n && !(top_k_least(top) >= -INFINITY); c++) /* NaN is in: anything is above */
        top_k_offer(top, row[c], c);
    for (; c < n; c += 16) {
        const struct vec v = wide_logits(row, c, n);
        for (uint32_t bits = vec_above_bits(v, vec_set(top_k_least(top))); bits; bits &= bits - 1) {
            const uint32_t at = c + (uint32_t)__builtin_ctz(bits);
            top_k_offer(top, row[at], at);
        }
    }
}

/* dD/db of up to 16 columns, zs of which is z. */
INLINE struct vec distill_slope(const struct distill_pair *p, const enum distill_slope slope,
                                struct vec z, uint32_t c, uint32_t lanes)
{
    const struct vec b = distill_exponent(z, p->ms, p->inverse);
    const struct vec q = vec_mul(vec_exp(b), vec_set(p->ps));
    if (slope == SLOPE_Q)
        return q;
    const struct vec a = distill_exponent(distill_load(p->zt + c, lanes), p->mt, p->inverse);
    const struct vec off = vec_set(p->off), log_z = vec_set(p->c);
    if (slope == SLOPE_RKL)
        return distill_product(q, vec_sub(vec_sub(vec_sub(b, a), log_z), off));
    if (slope == SLOPE_JSD)
        return distill_product(q,
                               vec_sub(distill_log_ratio(p, vec_add(vec_sub(a, b), log_z)), off));
    const struct vec t = vec_mul(vec_exp(a), vec_set(p->pt));
    return slope == SLOPE_P ? vec_sub(vec_set(0), t) : vec_sub(q, t);
}

/* Columns begin … end - 1. */
INLINE void distill_write_range(const struct distill_pair *p, const enum distill_slope slope,
                                uint32_t begin, uint32_t end)
{
    const bool with_ce = p->ce_weight != 0, capped = p->cap > 0;
    for (uint32_t c = begin; c < end; c += 16) {
        const uint32_t lanes = distill_lanes(c, end);
        const struct vec z = distill_load(p->zs + c, lanes);
        struct vec g = vec_set(0);
        if (slope != SLOPE_NONE)
            g = vec_mul(vec_set(p->weight), distill_slope(p, slope, z, c, lanes));
        if (with_ce) {
            const struct vec e = vec_exp(vec_sub(z, vec_set(p->ce_most)));
            g = vec_add(g, vec_mul(vec_set(p->ce_weight), vec_mul(e, vec_set(p->ce_p))));
        }
        if (capped) {
            const struct vec t = vec_div(z, vec_set(p->cap));
            g = vec_mul(g, vec_sub(vec_set(1.0f), vec_mul(t, t)));
        }
        distill_store(p->zs + c, g, lanes);
    }
}

/* A case each, so that no lane asks which it is. */
static void distill_write(const struct distill_pair *p)
{
    uint32_t n = p->n;
    switch (p->slope) {
    case SLOPE_FKL:
        distill_write_range(p, SLOPE_FKL, 0, n);
        break;
    case SLOPE_RKL:
        distill_write_range(p, SLOPE_RKL, 0, n);
        break;
    case SLOPE_JSD:
        distill_write_range(p, SLOPE_JSD, 0, n);
        break;
    case SLOPE_Q:
        distill_write_range(p, SLOPE_Q, 0, n);
        break;
    case SLOPE_P:
        distill_write_range(p, SLOPE_P, 0, n);
        break;
    case SLOPE_NONE:
        n = 0;
        break;
    }
    distill_write_range(p, SLOPE_NONE, n, p->n_all);
}

INLINE void wide_distill_loss(const struct distill_loss_args *a, const struct kern_exec *x)
{
    static const struct distill_loops loops = {
        .most = distill_most,
        .first_equal = distill_first_equal,
        .sum_exp = distill_sum_exp,
        .sum_cross = distill_sum_cross,
        .sum_mixed = distill_sum_mixed,
        .offer = distill_offer,
        .write = distill_write,
    };
    distill_rows(a, x, &loops);
}

#endif
#endif
