/* SPDX-License-Identifier: Apache-2.0 */
/* A group of weights w of one output, low = min(0, w …), high = max(0, w …). For attempt t = 0 …
 * KERN_INT4_TRIES - 1 (int4_fit.h), part = 1 - 0.04 t:
 *     scale = f16((high - low) * part / 15)
 *     zero  = min(15, rint(-low * part / scale))      division: times the f32 of 1 / scale
 *     q     = rint(w / scale) + zero, cut to 0 … 15
 *     error = sum of (w - scale * (q - zero))^2, in 16 sums by column number, folded by halves
 * The first attempt with the least error is taken. A group with a NaN or an infinity, or with a
 * range that f16 cannot hold, has scale NaN: it propagates to the logits, where sampling reports
 * it. Threads, fused matrices and the padding of the last panel: as ref/pack.c. */
#include "kernels/kern.h"
#include "kernels/tiling/int4_fit.h"
#include "kernels/ref/panels.h"
#include "kernels/variants.h"

static float clamp_code(float q)
{
    return q < 0 ? 0 : q > INT4_MOST ? INT4_MOST : q;
}

static float error_of(const float *w, uint32_t n, const struct int4_fit *f)
{
    float sum[16] = {0};
    for (uint32_t k = 0; k < n; k++) {
        float q = clamp_code(rintf(w[k] * f->inverse) + f->zero);
        float d = fmaf(-f->scale, q - f->zero, w[k]);
        sum[k % 16] = fmaf(d, d, sum[k % 16]);
    }
    for (uint32_t half = 8; half > 0; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            sum[i] += sum[i + half];
    return sum[0];
}

static void fit_group(uint8_t *at, uint32_t lane, const float *w, uint32_t n)
{
    uint8_t q[INT4_GROUP_MAX] = {0};
    struct int4_group out = {.q = q};
    struct int4_fit best = {0}, f;
    float low = 0, high = 0, zeros = 0, least = INFINITY;
    for (uint32_t k = 0; k < n; k++) {
        low = w[k] < low ? w[k] : low;
        high = w[k] > high ? w[k] : high;
        zeros = fmaf(w[k], 0, zeros);
    }
    if (zeros != 0 || !(high - low < INT4_RANGE_MAX)) {
        out.scale = 0x7e00;
        int4_put(at, lane, n, &out);
        return;
    }
    for (int t = 0; t < KERN_INT4_TRIES; t++) {
        float error;
        if (!int4_fit(&f, low, high, t) || (error = error_of(w, n, &f)) >= least)
            continue;
        best = f;
        least = error;
    }
    for (uint32_t k = 0; best.scale > 0 && k < n; k++)
        q[k] = (uint8_t)clamp_code(rintf(w[k] * best.inverse) + best.zero);
    out.scale = best.stored;
    out.zero = (uint8_t)best.zero;
    int4_put(at, lane, n, &out);
}

/* Output o, from src row o - row_start; zeros when src has no such row. */
static void pack_row(const void *args, uint32_t o, bool present)
{
    const struct pack_int4_args *a = args;
    uint8_t *at = (uint8_t *)a->dst + o / KERN_PANEL * int4_panel_bytes(a->n_in, a->group);
    const size_t from = present ? (size_t)(o - a->row_start) * a->n_in : 0;
    for (uint32_t k = 0; k < a->n_in; k += a->group, at += int4_group_bytes(a->group)) {
        float w[INT4_GROUP_MAX] = {0};
        for (uint32_t i = 0; present && i < a->group; i++)
            w[i] = element_f32(a->src, a->src_dtype, from + k + i);
        fit_group(at, o % KERN_PANEL, w, a->group);
    }
}

static void set_rows(const struct pack_int4_args *a, const struct kern_exec *x)
{
    const struct packed w = {
        .data = a->dst,
        .n_out = a->n_out_total,
        .n_in = a->n_in,
        .dtype = DT_I8,
        .group = a->group,
    };
    const struct range rows = split(a->n_out, x);
    const uint32_t n_group = a->n_in / a->group;
    for (size_t i = rows.begin; i < rows.end; i++)
        kern_int4_set(&w, a->row_start + (uint32_t)i,
                      &(struct int4_output){a->q + i * a->n_in, a->scales + i * n_group,
                                            a->zeros + i * n_group});
}

void pack_int4_ref(const struct pack_int4_args *a, const struct kern_exec *x)
{
    if (a->q) {
        set_rows(a, x);
        return;
    }
    ref_pack(REF_PACK(a, pack_row), x);
}
