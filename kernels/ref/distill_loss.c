/* SPDX-License-Identifier: Apache-2.0 */
/* The loss of distillation; definitions: ops_distill.h.
 *
 * Terms, all f32, with mt, ms the row's largest zt and zs of the n columns and i = 1 / temperature:
 *     a = (zt - mt) * i, b = (zs - ms) * i;  Zt = sum e^a, Zs = sum e^b
 *     P = e^a * f32(1 / Zt), Q = e^b * f32(1 / Zs);  c = f32(log Zs - log Zt)
 * so that log P - log Q = (a - b) + c.
 *     fkl   A = sum e^a (a - b);  D = A / Zt + (log Zs - log Zt);  dD/db = Q - P
 *     rkl   A = sum e^b (b - a);  D = A / Zs - (log Zs - log Zt);  dD/db = Q (((b - a) - c) - D)
 *     jsd   with d = (a - b) + c, h = d + logit beta, t = log(1 + e^-|h|):
 *           x = log Q - log M = h > 0 ? (-log beta - d) - t : -log(1 - beta) - t
 *           D = beta sum P (x + d) + (1 - beta) G, G = sum Q x;  dD/db = (1 - beta) Q (x - G)
 *           (what M changes by itself cancels: beta P / M + (1 - beta) Q / M = 1)
 * A term whose first factor is 0 is 0, so that -inf in zt is no NaN. Written is
 *     dD/db * f32(kd_weight * t2 / (N T)) + (e^(zs - max) * f32(1 / Z)) * f32(ce_weight / N)
 * times 1 - (zs / soft_cap)^2; then the second weight is taken off at the label, and K's columns
 * get their part, each times its own factor of the cap. The loop over rows is
 * tiling/distill_rows.h. */
#include "kernels/tiling/distill_rows.h"
#include "kernels/variants.h"

static double fold(double lane[16])
{
    for (uint32_t half = 8; half; half /= 2)
        for (uint32_t l = 0; l < half; l++)
            lane[l] += lane[l + half];
    return lane[0];
}

static float most(const float *row, uint32_t n)
{
    float m = -INFINITY;
    for (uint32_t c = 0; c < n; c++)
        m = row[c] > m ? row[c] : m;
    return m;
}

static uint32_t first_equal(const float *row, uint32_t n, float value)
{
    for (uint32_t c = 0; c < n; c++)
        if (row[c] == value)
            return c;
    return 0;
}

static double sum_exp(const float *row, uint32_t n, float high, float inverse)
{
    double lane[16] = {0};
    for (uint32_t c = 0; c < n; c++)
        lane[c % 16] += (double)expf((row[c] - high) * inverse);
    return fold(lane);
}

static float product(float weight, float term)
{
    return weight == 0 ? 0 : weight * term;
}

static double sum_cross(const struct distill_pair *p)
{
    double lane[16] = {0};
    for (uint32_t c = 0; c < p->n; c++) {
        const float a = (p->zt[c] - p->mt) * p->inverse, b = (p->zs[c] - p->ms) * p->inverse;
        lane[c % 16] +=
            (double)(p->slope == SLOPE_RKL ? product(expf(b), b - a) : product(expf(a), a - b));
    }
    return fold(lane);
}

/* log(1 + u), 0 <= u <= 1: 2 atanh(u / (2 + u)), the series up to the 15th power; what is left out
 * is below 2^-29 of it. */
static float log_1p(float u)
{
    const float s = u / (2.0f + u), s2 = s * s;
    float p = 1.0f / 15;
    p = fmaf(p, s2, 1.0f / 13);
    p = fmaf(p, s2, 1.0f / 11);
    p = fmaf(p, s2, 1.0f / 9);
    p = fmaf(p, s2, 1.0f / 7);
    p = fmaf(p, s2, 1.0f / 5);
    p = fmaf(p, s2, 1.0f / 3);
    p = fmaf(p, s2, 1.0f);
    return (s + s) * p;
}

/* x above. */
static float log_ratio(const struct distill_pair *p, float d)
{
    const float h = d + p->logit, t = log_1p(expf(-fabsf(h)));
    return h > 0 ? (-p->log_beta - d) - t : -p->log_rest - t;
}

static void sum_mixed(const struct distill_pair *p, double sums[2])
{
    double of_t[16] = {0}, of_s[16] = {0};
    for (uint32_t c = 0; c < p->n; c++) {
        const float a = (p->zt[c] - p->mt) * p->inverse, b = (p->zs[c] - p->ms) * p->inverse;
        const float d = (a - b) + p->c, x = log_ratio(p, d);
        of_t[c % 16] += (double)product(expf(a) * p->pt, x + d);
        of_s[c % 16] += (double)product(expf(b) * p->ps, x);
    }
    sums[0] = fold(of_t);
    sums[1] = fold(of_s);
}

static void offer(struct top_k *top, const float *row, uint32_t n)
{
    for (uint32_t c = 0; c < n; c++)
        top_k_offer(top, row[c], c);
}

/* dD/db of column c < p->n. */
static float slope(const struct distill_pair *p, uint32_t c)
{
    if (p->slope == SLOPE_NONE)
        return 0;
    const float b = (p->zs[c] - p->ms) * p->inverse, q = expf(b) * p->ps;
    if (p->slope == SLOPE_Q)
        return q;
    const float a = (p->zt[c] - p->mt) * p->inverse;
    switch (p->slope) {
    case SLOPE_RKL:
        return product(q, ((b - a) - p->c) - p->off);
    case SLOPE_JSD:
        return product(q, log_ratio(p, (a - b) + p->c) - p->off);
    case SLOPE_P:
        return -(expf(a) * p->pt);
    default:
        return q - expf(a) * p->pt;
    }
}

static void write_slopes(const struct distill_pair *p)
{
    for (uint32_t c = 0; c < p->n_all; c++) {
        const float z = p->zs[c], t = z / p->cap;
        float g = c < p->n ? p->weight * slope(p, c) : 0;
        if (p->ce_weight != 0)
            g += p->ce_weight * (expf(z - p->ce_most) * p->ce_p);
        p->zs[c] = p->cap > 0 ? g * (1.0f - t * t) : g;
    }
}

void distill_loss_ref(const struct distill_loss_args *a, const struct kern_exec *x)
{
    static const struct distill_loops loops = {
        .most = most,
        .first_equal = first_equal,
        .sum_exp = sum_exp,
        .sum_cross = sum_cross,
        .sum_mixed = sum_mixed,
        .offer = offer,
        .write = write_slopes,
    };
    distill_rows(a, x, &loops);
}
