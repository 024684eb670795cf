/* SPDX-License-Identifier: Apache-2.0 */
/* Attention within segments of packed rows; formulas: ops_train.h. Source of the tiles:
 * arXiv:2205.14135.
 *
 * Order, all f32, of one row and head. Keys go in tiles of KERN_TRAIN_TILE rows of the segment,
 * ascending; in a tile with a key that is visible to the row:
 *   s[c]    one accumulator from +0, fused multiply-adds over d = 0, 1, …; * scale; slopes: a fused
 *           multiply-add of -slope and i - c; the soft cap
 *   m'      the larger of m (at first -inf) and the tile's largest s
 *   f       exp(m - m');   p[c] = exp(s[c] - m')
 *   total   total f + the tile's, one fused multiply-add; the tile's is 16 lanes from +0, lane l
 *   adds
 *           p of the positions c with c % 16 == l, ascending; folded by halves
 *   out     out f rounded, then fused multiply-adds over c ascending
 * At the end out = out * (1 / total), lse = m + log(total).
 * BF16: the terms of s and out in the order of ref/train_score.h; total adds p as it was before it
 * was rounded. */
#include <math.h>
#include "kernels/ref/element.h"
#include "kernels/ref/train_score.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

struct softmax {
    float most, total;
};

/* Keys begin … end - 1 of the row's segment, within one tile. */
static void tile(const struct train_row *r, struct softmax *m, float *out, struct range keys)
{
    const enum dtype compute = r->a->compute;
    float s[KERN_TRAIN_TILE], lane[16] = {0}, most = m->most;
    for (size_t c = keys.begin; c < keys.end; c++) {
        s[c % KERN_TRAIN_TILE] = train_score(r, c);
        most = fmaxf(most, s[c % KERN_TRAIN_TILE]);
    }
    const float f = expf(m->most - most);
    for (uint32_t d = 0; d < r->a->head_dim; d++)
        out[d] *= f;
    for (size_t i = keys.begin / 2 * 2; i < train_terms(compute, keys.end); i++) {
        const size_t c = train_term(compute, i);
        if (c < keys.begin || c >= keys.end)
            continue;
        const float p = expf(s[c % KERN_TRAIN_TILE] - most), *v = train_value(r, c);
        lane[c % 16] += p;
        for (uint32_t d = 0; d < r->a->head_dim; d++)
            out[d] = train_add(compute, p, v[d], out[d]);
    }
    m->total = fmaf(m->total, f, fold16(lane));
    m->most = most;
}

static void attend(const struct train_row *r)
{
    const struct attention_train_args *a = r->a;
    const size_t row = r->segment.row + r->i;
    float *out = a->out + row * a->out_stride + (size_t)r->head * a->head_dim;
    struct softmax m = {-INFINITY, 0};
    memset(out, 0, a->head_dim * sizeof *out);
    for (size_t c = train_first_key(r), end; c <= r->i; c = end) {
        end = (c / KERN_TRAIN_TILE + 1) * KERN_TRAIN_TILE;
        tile(r, &m, out, (struct range){c, end < r->i + 1 ? end : r->i + 1});
    }
    for (uint32_t d = 0; d < a->head_dim; d++)
        out[d] *= 1.0f / m.total;
    a->lse[row * a->n_head + r->head] = m.most + logf(m.total);
}

void attention_train_ref(const struct attention_train_args *a, const struct kern_exec *x)
{
    const struct range heads = split((size_t)a->n_segment * a->n_head, x);
    for (size_t n = heads.begin; n < heads.end; n++) {
        struct train_row r = {
            .a = a,
            .segment = a->segments[n / a->n_head],
            .head = (uint32_t)(n % a->n_head),
        };
        for (r.i = 0; r.i < r.segment.n_row; r.i++)
            attend(&r);
    }
}
