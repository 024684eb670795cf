/* SPDX-License-Identifier: Apache-2.0 */
/* row_pass on 16 lanes; definitions: ops_row.h, ref/row_pass.c. The last columns of a row are an
 * incomplete vec, whose other lanes are ignored. Threads: as ops_row.h. */
#ifndef QUIRE_KERNELS_WIDE_ROW_PASS_H
#define QUIRE_KERNELS_WIDE_ROW_PASS_H
#include <math.h>
#include "kernels/ops/ops_row.h"
#include "kernels/wide/vec.h"
#ifdef VEC_SUMS

/* A multiplication and an addition, rounded separately as in the definition. */
INLINE struct vec row_step(struct vec p, struct vec r, float c)
{
    return vec_add(vec_mul(p, r), vec_set(c));
}

INLINE struct vec row_exp(struct vec x)
{
    const struct vec least = vec_set(ROW_EXP_MIN), round = vec_set(12582912.0f);
    const struct vec y = vec_max(x, least);
    const struct vec n = vec_sub(vec_add(vec_mul(y, vec_set(1.44269504f)), round), round);
    const struct vec r =
        vec_add(vec_sub(y, vec_mul(n, vec_set(0.693359375f))), vec_mul(n, vec_set(2.12194440e-4f)));
    struct vec p = row_step(vec_set(1.9875691500e-4f), r, 1.3981999507e-3f);
    p = row_step(p, r, 8.3334519073e-3f);
    p = row_step(p, r, 4.1665795894e-2f);
    p = row_step(p, r, 1.6666665459e-1f);
    p = row_step(p, r, 5.0000001201e-1f);
    p = vec_add(vec_add(vec_mul(vec_mul(p, r), r), r), vec_set(1.0f));
    return vec_if_above(least, x, vec_set(0), vec_scale(p, n));
}

/* The values of the pass for n <= 16 columns from c on, to be stored or summed. */
INLINE struct vec row_value(const struct row_pass_args *a, const enum row_pass_kind kind,
                            uint32_t c, uint32_t n)
{
    const struct vec zero = vec_set(0);
    struct vec v = n == 16 ? vec_load(a->x + c) : vec_load_n(a->x + c, n);
    if (kind == ROW_BETWEEN)
        return vec_if_above(v, vec_set(a->high), v, zero);
    if (kind == ROW_WEIGHTS)
        v = row_exp(vec_div(vec_sub(v, vec_set(a->high)), vec_set(a->temperature)));
    v = vec_if_above(vec_set(a->low), v, zero, v);
    if (n == 16)
        vec_store(a->x + c, v);
    else
        vec_store_n(a->x + c, v, n);
    return v;
}

/* A chunk of n columns from c on; its sum. */
INLINE double row_chunk(const struct row_pass_args *a, const enum row_pass_kind kind, uint32_t c,
                        uint32_t n)
{
    struct vec_f64 lanes = vec_f64_zero();
    double lane[16], sum = 0;
    float rest[16];
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        lanes = vec_f64_add(lanes, row_value(a, kind, c + i, 16));
    if (i < n)
        vec_store(rest, row_value(a, kind, c + i, n - i));
    for (uint32_t l = 0; i + l < n; l++)
        sum += (double)rest[l];
    vec_f64_store(lane, lanes);
    for (uint32_t l = 0; l < 16; l++)
        sum += lane[l];
    return sum;
}

INLINE void row_sums(const struct row_pass_args *a, const enum row_pass_kind kind)
{
    for (uint32_t c = 0; c < a->n_col; c += ROW_CHUNK)
        a->sums[c / ROW_CHUNK] =
            row_chunk(a, kind, c, a->n_col - c < ROW_CHUNK ? a->n_col - c : ROW_CHUNK);
}

INLINE void row_max(const struct row_pass_args *a)
{
    const struct vec least = vec_set(-INFINITY);
    struct vec most = least;
    uint32_t numbers = 0xffff, c = 0;
    for (; c + 16 <= a->n_col; c += 16) {
        const struct vec v = vec_load(a->x + c);
        most = vec_max(v, most); /* a NaN does not change it */
        numbers &= vec_equal_bits(v, v);
    }
    if (c < a->n_col) {
        const struct vec v = vec_load_n(a->x + c, a->n_col - c);
        most = vec_max(vec_first(a->n_col - c, v, least), most);
        numbers &= vec_equal_bits(v, v);
    }
    *a->most = vec_fold_max(most);
    *a->n_found = numbers != 0xffff;
}

/* Bits of the columns of a vec from c on with low < x <= high. */
INLINE uint32_t row_between_bits(const struct row_pass_args *a, uint32_t c, uint32_t n)
{
    const struct vec v = n == 16 ? vec_load(a->x + c) : vec_load_n(a->x + c, n);
    const uint32_t above = vec_above_bits(v, vec_set(a->low));
    return above & ~vec_above_bits(v, vec_set(a->high)) & ((1u << n) - 1);
}

INLINE void row_between(const struct row_pass_args *a)
{
    const struct vec low = vec_set(a->low);
    uint32_t n = 0;
    for (uint32_t c = 0; c < a->n_col && n < a->n_item; c += 16) {
        const uint32_t left = a->n_col - c;
        if (left >= 32 && !(vec_above_bits(vec_load(a->x + c), low) |
                            vec_above_bits(vec_load(a->x + c + 16), low))) {
            c += 16; /* the usual case: most columns are below */
            continue;
        }
        for (uint32_t bits = row_between_bits(a, c, left < 16 ? left : 16); bits;
             bits &= bits - 1) {
            const uint32_t at = c + (uint32_t)__builtin_ctz(bits);
            a->items[n++] = (struct row_item){a->x[at], at};
        }
    }
    *a->n_found = n < a->n_item ? n : a->n_item;
}

INLINE void row_rank(const struct row_pass_args *a)
{
    const struct vec value = vec_set(a->high);
    uint32_t n = 0;
    for (uint32_t c = 0; c < a->n_col; c += 16) {
        const uint32_t left = a->n_col - c, lanes = left < 16 ? (1u << left) - 1 : 0xffff;
        const struct vec v = left < 16 ? vec_load_n(a->x + c, left) : vec_load(a->x + c);
        uint32_t before = c + 16 <= a->id ? 0xffff : c < a->id ? (1u << (a->id - c)) - 1 : 0;
        before = before ? before & vec_equal_bits(v, value) : 0;
        n += (uint32_t)__builtin_popcount((vec_above_bits(v, value) | before) & lanes);
    }
    *a->n_found = n;
}

INLINE void wide_row_pass(const struct row_pass_args *args)
{
    const struct row_pass_args own = *args, *const a = &own; /* a local copy, which no store
                                                              * changes */
    switch (a->kind) {
    case ROW_MAX:
        row_max(a);
        break;
    case ROW_WEIGHTS:
        row_sums(a, ROW_WEIGHTS);
        break;
    case ROW_KEEP:
        row_sums(a, ROW_KEEP);
        break;
    case ROW_BETWEEN:
        row_between(a);
        if (a->sums)
            row_sums(a, ROW_BETWEEN);
        break;
    case ROW_RANK:
        row_rank(a);
        break;
    }
}

#endif
#endif
