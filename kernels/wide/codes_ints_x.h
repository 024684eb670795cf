/* SPDX-License-Identifier: Apache-2.0 */
/* codes_ints_x - x of codes_ints.h: rounded to integers with the sums of each group, and split into
 * two planes of int8 (formula: ops_codes.h).
 * Threads: each call writes the inputs that it is given. */
#ifndef QUIRE_KERNELS_WIDE_CODES_INTS_X_H
#define QUIRE_KERNELS_WIDE_CODES_INTS_X_H
#include <string.h>
#include "kernels/ops/codes_layout.h"
#include "kernels/ops/codes_x.h"
#include "kernels/wide/codes_ints_form.h"
#include "kernels/wide/vec.h"
#include "kernels/wide/linear_strip.h"
#ifdef INTS

/* What is added to values, so that codes are not negative. */
INLINE int32_t codes_zero(const struct packed_codes *c)
{
    return c->kind == KERN_CODES_HALVES   ? 0
           : c->kind == KERN_CODES_SIGNED ? 8
                                          : codes_bytes_zero(c);
}

INLINE struct vec codes_x_load(const struct linear_args *a, size_t at)
{
    return a->x_dtype == DT_BF16 ? vec_load_bf16((const uint16_t *)a->x + at)
                                 : vec_load((const float *)a->x + at);
}

/* n inputs of a row, from element `at` of x on. Sums of a group are below 2^24: exact in f32. */
static void codes_round(struct codes_inputs *to, const struct linear_args *a, size_t at, uint32_t n)
{
    const struct packed_codes *c = &a->w.codes;
    const int32_t zero = codes_zero(c);
    struct vec most = vec_set(0), zeros = vec_set(0), sum = vec_set(0);
    for (uint32_t k = 0; k < n; k += 16) {
        const struct vec x = codes_x_load(a, at + k);
        most = vec_max(vec_abs(x), most);
        zeros = vec_fma(x, vec_set(0), zeros); /* NaN where an x is not finite */
    }
    const struct codes_unit unit = codes_unit(vec_fold_add(zeros) == 0 ? vec_fold_max(most) : NAN);
    to->unit = unit.unit;
    for (uint32_t k = 0; k < n; k += 16) {
        struct vec x = vec_round(vec_mul(codes_x_load(a, at + k), vec_set(unit.inverse)));
        x = vec_max(vec_min(x, vec_set(CODES_X_MOST)), vec_set(-CODES_X_MOST));
        x = vec_if_nan(x, vec_set(0), x);
        vec_store_i16(to->n + k, x);
        sum = vec_add(sum, x);
        if ((k + 16) % c->group)
            continue;
        const uint32_t g = k / c->group;
        to->sum[g] = vec_fold_add(sum);
        to->all[g] = (int32_t)to->sum[g];
        to->start[g] = -zero * to->all[g];
        to->digits[g][0] = (int16_t)(to->all[g] & 255);
        to->digits[g][1] = (int16_t)(to->all[g] >> 8);
        sum = vec_set(0);
    }
}

/* Eight inputs of x as two planes, n = 256 high + low, both int8: those in the low halves of the
 * bytes of a line, and those in the high halves; or those of two lines of bytes. */
struct codes_planes {
    int8_t low[2][4], high[2][4];
};

/* The n of a row to planes, in place. */
static void codes_split(struct codes_inputs *x, uint32_t n, const bool bytes)
{
    const __m128i of_halves =
        _mm_setr_epi8(0, 8, 2, 10, 4, 12, 6, 14, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i of_bytes =
        _mm_setr_epi8(0, 4, 2, 6, 8, 12, 10, 14, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i order = bytes ? of_bytes : of_halves;
    for (uint32_t k = 0; k < n; k += 8) {
        __m128i *at = (__m128i *)(void *)(x->n + k);
        const __m128i all = _mm_load_si128(at);
        const __m128i above = _mm_srai_epi16(_mm_add_epi16(all, _mm_set1_epi16(128)), 8);
        _mm_store_si128(
            at, _mm_unpacklo_epi64(_mm_shuffle_epi8(all, order), _mm_shuffle_epi8(above, order)));
    }
}

#endif
#endif
