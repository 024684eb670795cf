/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of attention_train; formulas: ops_train.h. Source: arXiv:2205.14135, appendix B.
 *
 * Order, all f32. s as ref/attention_train.c; p = exp(s - lse); delta: 16 lanes from +0, lane l
 * adds dout * out of the d with d % 16 == l by fused multiply-adds, folded by halves; dp: one
 * accumulator from +0, fused multiply-adds over d ascending; ds = p * (dp - delta), with a soft cap
 * times 1 - t t with t = s / soft_cap, then times scale, every step rounded. dq, dk and dv: one
 * accumulator each from +0, fused multiply-adds; dq over c ascending, dk and dv over the heads of
 * the group ascending, in each over i ascending. BF16: the terms of s, dp, dq, dk and dv in the
 * order of ref/train_score.h. */
#include <math.h>
#include <string.h>
#include "kernels/ref/element.h"
#include "kernels/ref/train_score.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

struct slopes { /* of one score: dv and dk are multiplied by p and ds */
    float p, ds;
};

struct gradient_row {
    struct train_row r;
    const float *dout;
    float lse, delta;
};

static struct slopes slopes_of(const struct gradient_row *g, size_t c)
{
    const struct attention_train_args *a = g->r.a;
    const float s = train_score(&g->r, c), p = expf(s - g->lse);
    const float dp = train_dot(a->compute, g->dout, train_value(&g->r, c), a->head_dim);
    float ds = p * (dp - g->delta);
    if (a->soft_cap > 0) {
        const float t = s / a->soft_cap;
        ds *= 1.0f - t * t;
    }
    return (struct slopes){p, ds * a->scale};
}

static void row_gradient(const struct attention_grad_args *a, const struct train_row *r)
{
    const size_t row = r->segment.row + r->i, at = (size_t)r->head * r->a->head_dim;
    const enum dtype compute = r->a->compute;
    const float *out = r->a->out + row * r->a->out_stride + at, *q = train_query(r);
    float *dq = a->dq + row * a->dq_stride + at, lane[16] = {0};
    struct gradient_row g = {
        .r = *r,
        .dout = a->dout + row * a->dout_stride + at,
        .lse = r->a->lse[row * r->a->n_head + r->head],
    };
    for (uint32_t d = 0; d < r->a->head_dim; d++)
        lane[d % 16] = fmaf(g.dout[d], out[d], lane[d % 16]);
    g.delta = fold16(lane);
    memset(dq, 0, r->a->head_dim * sizeof *dq);
    const size_t first = train_first_key(r);
    for (size_t n = first / 2 * 2; n < train_terms(compute, r->i + 1); n++) {
        const size_t c = train_term(compute, n);
        if (c < first || c > r->i)
            continue;
        const struct slopes s = slopes_of(&g, c);
        const float *k = train_key(r, c);
        float *dk = a->dk + train_key_at(r, a->dkv_stride, c);
        float *dv = a->dv + train_key_at(r, a->dkv_stride, c);
        for (uint32_t d = 0; d < r->a->head_dim; d++) {
            dq[d] = train_add(compute, s.ds, k[d], dq[d]);
            dk[d] = train_add(compute, s.ds, q[d], dk[d]);
            dv[d] = train_add(compute, s.p, g.dout[d], dv[d]);
        }
    }
}

/* All of a segment that has to do with one head of k and v. */
static void group(const struct attention_grad_args *a, struct train_segment segment,
                  uint32_t kv_head)
{
    const uint32_t n = a->of.n_head / a->of.n_kv_head, end = (kv_head + 1) * n;
    struct train_row r = {.a = &a->of, .segment = segment, .head = kv_head * n};
    for (size_t c = 0; c < segment.n_row; c++) {
        const size_t at = train_key_at(&r, a->dkv_stride, c);
        memset(a->dk + at, 0, a->of.head_dim * sizeof *a->dk);
        memset(a->dv + at, 0, a->of.head_dim * sizeof *a->dv);
    }
    for (; r.head < end; r.head++)
        for (size_t k = 0; k < train_terms(a->of.compute, segment.n_row); k++) {
            r.i = (uint32_t)train_term(a->of.compute, k);
            if (r.i < segment.n_row)
                row_gradient(a, &r);
        }
}

void attention_grad_ref(const struct attention_grad_args *a, const struct kern_exec *x)
{
    const struct range groups = split((size_t)a->of.n_segment * a->of.n_kv_head, x);
    for (size_t n = groups.begin; n < groups.end; n++)
        group(a, a->of.segments[n / a->of.n_kv_head], (uint32_t)(n % a->of.n_kv_head));
}
