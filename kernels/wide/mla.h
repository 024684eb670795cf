/* SPDX-License-Identifier: Apache-2.0 */
/* mla on 16 lanes. A few heads of a row at a time, since all of them read the same latents: scores,
 * then their exponentials, then the sum over positions, a few columns at a time.
 * Order: ref/mla.c. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_MLA_H
#define QUIRE_KERNELS_WIDE_MLA_H
#include <math.h>
#include "kernels/ops/ops_mla.h"
#include "kernels/wide/element.h"
#include "kernels/wide/exp.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

#define WIDE_MLA_COLUMNS \
    (VEC_SUMS / KERN_MLA_HEADS) /* vecs of the output that are summed at once */

struct wide_mla { /* some heads of one row */
    const struct mla_args *a;
    const struct attention_seq *s;
    const float *q;  /* of the first head */
    uint32_t n, end; /* heads, positions */
    float *p;        /* [n][stride] scores, then their exponentials */
    size_t stride;   /* a multiple of 16 */
};

INLINE const char *wide_mla_key(const struct wide_mla *m, uint32_t c)
{
    const size_t at = (size_t)m->s->blocks[c / KERN_BLOCK] * KERN_BLOCK + c % KERN_BLOCK;
    return (const char *)m->a->cache + at * m->a->n_key * (m->a->kv_dtype == DT_F32 ? 4 : 2);
}

INLINE void wide_mla_scores(const struct wide_mla *m, float max[KERN_MLA_HEADS])
{
    const uint32_t n_key = m->a->n_key, width = m->a->kv_dtype == DT_F32 ? 4 : 2;
    for (uint32_t h = 0; h < m->n; h++)
        max[h] = -INFINITY;
    for (uint32_t c = 0; c < m->end; c++) {
        const char *key = wide_mla_key(m, c);
        struct vec sums[KERN_MLA_HEADS];
        for (uint32_t h = 0; h < KERN_MLA_HEADS; h++)
            sums[h] = vec_set(0);
        for (uint32_t d = 0; d < n_key; d += 16) {
            const uint32_t n = n_key - d < 16 ? n_key - d : 16;
            const struct vec k = wide_element(key + (size_t)d * width, m->a->kv_dtype, n);
            for (uint32_t h = 0; h < m->n; h++)
                sums[h] = vec_fma(vec_load_n(m->q + (size_t)h * n_key + d, n), k, sums[h]);
        }
        for (uint32_t h = 0; h < m->n; h++) {
            const float x = vec_fold_add(sums[h]) * m->a->scale;
            m->p[h * m->stride + c] = x;
            max[h] = x > max[h] ? x : max[h];
        }
    }
}

/* Returns 1 / the sum. */
INLINE float wide_mla_exponentials(const struct wide_mla *m, uint32_t h, float max)
{
    float *p = m->p + h * m->stride;
    struct vec sum = vec_set(0);
    for (uint32_t c = 0; c < m->end; c += 16) {
        const uint32_t n = m->end - c < 16 ? m->end - c : 16;
        struct vec e = vec_exp(vec_sub(vec_load_n(p + c, n), vec_set(max)));
        e = vec_first(n, e, vec_set(0));
        vec_store_n(p + c, e, n);
        sum = vec_add(sum, e);
    }
    return 1.0f / vec_fold_add(sum);
}

INLINE void wide_mla_store(const struct wide_mla *m, size_t at, struct vec v, uint32_t n)
{
    if (m->a->out_dtype == DT_F32)
        vec_store_n((float *)m->a->out + at, v, n);
    else
        vec_store_bf16_n((uint16_t *)m->a->out + at, v, n);
}

/* n_vec vecs of columns from d on. out: of the first head. */
INLINE void wide_mla_values(const struct wide_mla *m, const float *inverse, size_t out, uint32_t d,
                            uint32_t n_vec)
{
    const uint32_t width = m->a->kv_dtype == DT_F32 ? 4 : 2, left = m->a->n_value - d;
    struct vec sums[KERN_MLA_HEADS][WIDE_MLA_COLUMNS];
    for (uint32_t h = 0; h < KERN_MLA_HEADS; h++)
        for (uint32_t v = 0; v < n_vec; v++)
            sums[h][v] = vec_set(0);
    for (uint32_t c = 0; c < m->end; c++) {
        const char *key = wide_mla_key(m, c) + (size_t)d * width;
        for (uint32_t v = 0; v < n_vec; v++) {
            const uint32_t n = left - 16 * v < 16 ? left - 16 * v : 16;
            const struct vec x = wide_element(key + 16 * (size_t)v * width, m->a->kv_dtype, n);
            for (uint32_t h = 0; h < m->n; h++)
                sums[h][v] = vec_fma(vec_set(m->p[h * m->stride + c]), x, sums[h][v]);
        }
    }
    for (uint32_t h = 0; h < m->n; h++)
        for (uint32_t v = 0; v < n_vec; v++)
            wide_mla_store(m, out + (size_t)h * m->a->n_value + d + 16 * v,
                           vec_mul(sums[h][v], vec_set(inverse[h])),
                           left - 16 * v < 16 ? left - 16 * v : 16);
}

INLINE void wide_mla_heads(const struct wide_mla *m, size_t out)
{
    float max[KERN_MLA_HEADS], inverse[KERN_MLA_HEADS];
    const uint32_t n_vec = (m->a->n_value + 15) / 16;
    wide_mla_scores(m, max);
    for (uint32_t h = 0; h < m->n; h++)
        inverse[h] = wide_mla_exponentials(m, h, max[h]);
    for (uint32_t v = 0; v < n_vec; v += WIDE_MLA_COLUMNS)
        if (n_vec - v >= WIDE_MLA_COLUMNS)
            wide_mla_values(m, inverse, out, 16 * v, WIDE_MLA_COLUMNS);
        else
            wide_mla_values(m, inverse, out, 16 * v, n_vec - v);
}

INLINE void wide_mla(const struct mla_args *a, const struct kern_exec *x)
{
    const uint32_t n_part = (a->n_head + KERN_MLA_HEADS - 1) / KERN_MLA_HEADS;
    for (uint32_t i = 0; i < a->n_seq; i++) {
        const struct attention_seq *s = &a->seqs[i];
        const struct range parts = split((size_t)s->n_query * n_part, x);
        for (size_t j = parts.begin; j < parts.end; j++) {
            const uint32_t token = (uint32_t)(j / n_part);
            const uint32_t head = (uint32_t)(j % n_part) * KERN_MLA_HEADS;
            const size_t row = s->row + token;
            const struct wide_mla m = {
                .a = a,
                .s = s,
                .q = a->q + row * a->q_stride + (size_t)head * a->n_key,
                .n = a->n_head - head < KERN_MLA_HEADS ? a->n_head - head : KERN_MLA_HEADS,
                .end = s->start + token + 1,
                .p = x->scratch,
                .stride = ((size_t)a->context_max + 15) / 16 * 16,
            };
            wide_mla_heads(&m, row * a->out_stride + (size_t)head * a->n_value);
        }
    }
}

#endif
#endif
