/* SPDX-License-Identifier: Apache-2.0 */
/* codes_ints_sums - sums of a group's products for codes_ints.h, in int32: of codes as they are
 * stored, by x of 16 bits or by its two planes; and of codes that are unpacked to scratch.
 * Threads: pure functions of the block and the tile. */
#ifndef QUIRE_KERNELS_WIDE_CODES_INTS_SUMS_H
#define QUIRE_KERNELS_WIDE_CODES_INTS_SUMS_H
#include "kernels/wide/codes_ints_x.h"
#ifdef INTS

INLINE ints codes_load(const void *p)
{
    return ints_load(p);
}

/* Codes of inputs 2 i and 2 i + 1 of a line, v, as it is stored. */
INLINE ints codes_pairs(ints v, int i, const uint8_t *table, const enum codes_form form)
{
    if (form == CODES_OF_HALVES)
        return ints_field(v, 4 * i, 0x000f000f);
    if (form == CODES_OF_TABLE)
        v = ints_lookup(table, i % 2 ? ints_high(v) : ints_low(v));
    return (form == CODES_OF_TABLE ? i / 2 : i) ? ints_second_bytes(v) : ints_field(v, 0, 0xff00ff);
}
INLINE int codes_line_pairs(const enum codes_form form)
{
    return form == CODES_OF_BYTES ? 2 : 4;
}

INLINE ints codes_two(const int16_t *x)
{
    int32_t two;
    memcpy(&two, x, sizeof two);
    return ints_set(two);
}

/* From the group as it is stored. */
INLINE void codes_sums_packed(struct codes_int_sums *s, const struct codes_block *b,
                              const struct codes_tile *t, const uint8_t *at,
                              const enum codes_form form)
{
    const int n_pair = codes_line_pairs(form);
    const int16_t *x = b->x[t->row].n + t->group * b->form->group;
    const int16_t *const end = x + b->form->group;
    for (; x < end; x += 2 * n_pair, at += CODES_LINE) {
        for (size_t i = 0; t->strip == 0 && i < CODES_LINE; i += 64)
            __builtin_prefetch(at + b->ahead + i);
        UNROLL
        for (int j = 0; j < t->n_vec; j++) {
            if (t->rows > 1)
                load_again(); /* else x of all rows and pairs is kept, and sums are spilled */
            const ints v = codes_load(at + (t->strip + (size_t)j * INTS) * 4);
            UNROLL
            for (int i = 0; i < n_pair; i++) {
                const ints w = codes_pairs(v, i, b->table, form);
                UNROLL
                for (int r = 0; r < t->rows; r++) {
                    const int16_t *from =
                        (const int16_t *)(const void *)((const char *)x + (size_t)r * sizeof *b->x);
                    s->v[r][j] = pairs_dot(s->v[r][j], w, codes_two(from + 2 * i));
                }
            }
        }
    }
}

INLINE ints codes_four(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    return ints_set(four);
}

/* Halves of one or two rows, in groups of at most CODES_CHAIN: fewer shifts and masks than by
 * pairs, and two products for one. */
INLINE void codes_sums_planes(struct codes_int_sums *s, const struct codes_block *b,
                              const struct codes_tile *t, const uint8_t *at)
{
    const int16_t *x = b->x[t->row].n + t->group * b->form->group;
    const int16_t *const end = x + b->form->group;
    struct codes_int_sums low, high;
    UNROLL
    for (int r = 0; r < t->rows; r++)
        UNROLL
    for (int j = 0; j < t->n_vec; j++)
        low.v[r][j] = high.v[r][j] = ints_set(0);
    do {
        for (size_t i = 0; t->strip == 0 && i < CODES_LINE; i += 64)
            __builtin_prefetch(at + b->ahead + i);
        UNROLL
        for (int j = 0; j < t->n_vec; j++) {
            const ints v = codes_load(at + (t->strip + (size_t)j * INTS) * 4);
            const ints w[2] = {ints_low(v), ints_high(v)};
            if (t->rows > 1)
                load_again();
            UNROLL
            for (int r = 0; r < t->rows; r++) {
                const struct codes_planes *from =
                    (const void *)((const char *)x + (size_t)r * sizeof *b->x);
                UNROLL
                for (int i = 0; i < 2; i++) {
                    low.v[r][j] = bytes_dot(low.v[r][j], w[i], codes_four(from->low[i]));
                    high.v[r][j] = bytes_dot(high.v[r][j], w[i], codes_four(from->high[i]));
                }
            }
        }
        x += 8;
        at += CODES_LINE;
    } while (x < end);
    UNROLL
    for (int r = 0; r < t->rows; r++)
        UNROLL
    for (int j = 0; j < t->n_vec; j++)
        s->v[r][j] = ints_add(
            s->v[r][j], ints_add(bytes_sum(low.v[r][j]), ints_times_256(bytes_sum(high.v[r][j]))));
}

/* From s->w. */
INLINE void codes_sums_unpacked(struct codes_int_sums *s, const struct codes_block *b,
                                const struct codes_tile *t)
{
    const int16_t *x = b->x[t->row].n + t->group * b->form->group;
    for (uint32_t pair = 0; pair < b->form->group / 2; pair++, x += 2) {
        ints w[KERN_PANEL / INTS];
        UNROLL
        for (int j = 0; j < t->n_vec; j++)
            w[j] = codes_load(b->s->w[pair][t->strip + (uint32_t)j * INTS]);
        UNROLL
        for (int r = 0; r < t->rows; r++) {
            const ints two = codes_two(
                (const int16_t *)(const void *)((const char *)x + (size_t)r * sizeof *b->x));
            UNROLL
            for (int j = 0; j < t->n_vec; j++)
                s->v[r][j] = pairs_dot(s->v[r][j], w[j], two);
        }
    }
}

#endif
#endif
