/* SPDX-License-Identifier: Apache-2.0 */
/* codes_scaled_few - a tile of few rows of codes_scaled.h: codes as they are stored, by two planes
 * of x. Threads: the scratch is the thread's own. */
#ifndef QUIRE_KERNELS_WIDE_CODES_SCALED_FEW_H
#define QUIRE_KERNELS_WIDE_CODES_SCALED_FEW_H
#include "kernels/wide/codes_scaled.h"
#ifdef INTS

/* Bytes prefetched ahead by tiles that multiply longer than they read: then the prefetchers of a
 * processor that needs no others are late. */
#define SCALED_AHEAD 2048u

/* Outputs of a strip: as many sums as registers hold, two for each. */
INLINE int scaled_vecs(const int rows)
{
    if (INTS_STRIP == 4)
        return rows <= 3 ? 4 : 2;
    return rows <= 2 ? 2 : 1;
}

/* Lines are asked for in order: strips read parts of them, and prefetchers lose a stream with large
 * gaps. One row that reads whole lines needs it only where reading.def says so. */
INLINE void scaled_prefetch(const struct codes_block *b, const struct codes_tile *t,
                            const uint8_t *at, const int n_line)
{
    const bool whole = t->n_vec * INTS == (int)KERN_PANEL;
    if (t->strip > 0 || t->row > 0 || (whole && b->ahead == 0))
        return;
    for (size_t i = 0; i < (size_t)n_line * CODES_LINE; i += 64)
        __builtin_prefetch(at + b->ahead + i);
}

/* A group of bytes: two lines a step. */
INLINE void scaled_sums_bytes(struct codes_int_sums *low, struct codes_int_sums *high,
                              const struct codes_block *b, const struct codes_tile *t,
                              const uint8_t *at)
{
    const int16_t *x = b->x[t->row].n + t->group * b->form->group;
    const int16_t *const end = x + b->form->group;
    do {
        scaled_prefetch(b, t, at, 2);
        UNROLL
        for (int j = 0; j < t->n_vec; j++) {
            const uint8_t *from = at + (t->strip + (size_t)j * INTS) * 4;
            const ints w[2] = {codes_load(from), codes_load(from + CODES_LINE)};
            if (t->rows > 1)
                load_again();
            UNROLL
            for (int r = 0; r < t->rows; r++) {
                const struct codes_planes *p =
                    (const void *)((const char *)x + (size_t)r * sizeof *b->x);
                bytes_two(&low->v[r][j], w, codes_four(p->low[0]), codes_four(p->low[1]), 1);
                bytes_two(&high->v[r][j], w, codes_four(p->high[0]), codes_four(p->high[1]), 256);
            }
        }
        x += 8;
        at += 2 * CODES_LINE;
    } while (x < end);
}

/* 8 inputs of halves. */
INLINE void scaled_step_halves(struct codes_int_sums *low, struct codes_int_sums *high,
                               const struct codes_tile *t, const uint8_t *at,
                               const struct codes_planes *p)
{
    UNROLL
    for (int i = 0; i < 2; i++) {
        const struct codes_planes *of = p;
        ints w[KERN_PANEL / INTS];
        UNROLL
        for (int j = 0; j < t->n_vec; j++) {
            const ints v = codes_load(at + (t->strip + (size_t)j * INTS) * 4);
            w[j] = i ? ints_high(v) : ints_low(v);
        }
        UNROLL
        for (int r = 0; r < t->rows; r++) {
            const ints x_low = codes_four(of->low[i]), x_high = codes_four(of->high[i]);
            UNROLL
            for (int j = 0; j < t->n_vec; j++) {
                low->v[r][j] = bytes_dot(low->v[r][j], w[j], x_low);
                high->v[r][j] = bytes_dot(high->v[r][j], w[j], x_high);
            }
            of = (const void *)((const char *)of + sizeof(struct codes_inputs));
        }
    }
}

/* A group of halves, at most CODES_CHAIN inputs. */
INLINE void scaled_sums_halves(struct codes_int_sums *low, struct codes_int_sums *high,
                               const struct codes_block *b, const struct codes_tile *t,
                               const uint8_t *at)
{
    const int16_t *x = b->x[t->row].n + t->group * b->form->group;
    const int16_t *const end = x + b->form->group;
    do {
        scaled_prefetch(b, t, at, 1);
        scaled_step_halves(low, high, t, at, (const void *)x);
        x += 8;
        at += CODES_LINE;
    } while (x < end);
}

/* The sums of a group, times its scale, onto s->products; `first`: of the chunk. */
INLINE void scaled_group(const struct codes_block *b, struct codes_tile t, const uint8_t *at,
                         const bool first, const enum codes_form form)
{
    const int8_t *scales = (const int8_t *)at + b->scales_at;
    t.n_vec = scaled_vecs(t.rows);
    for (t.strip = 0; t.strip < KERN_PANEL; t.strip += (uint32_t)(t.n_vec * INTS)) {
        struct codes_int_sums low, high;
        UNROLL
        for (int r = 0; r < t.rows; r++)
            UNROLL
        for (int j = 0; j < t.n_vec; j++)
            low.v[r][j] = high.v[r][j] = ints_set(0);
        if (form == CODES_OF_BYTE_PLANES)
            scaled_sums_bytes(&low, &high, b, &t, at);
        else
            scaled_sums_halves(&low, &high, b, &t, at);
        UNROLL
        for (int j = 0; j < t.n_vec; j++) {
            const ints scale = ints_load_i8(scales + t.strip + j * INTS);
            UNROLL
            for (int r = 0; r < t.rows; r++) {
                int32_t *onto = b->s->products[r] + t.strip + j * INTS;
                ints sum = form == CODES_OF_BYTE_PLANES
                               ? bytes_two_sum(low.v[r][j], high.v[r][j])
                               : bytes_planes_sum(low.v[r][j], high.v[r][j]);
                sum = ints_add(sum, ints_set(b->x[t.row + (uint32_t)r].start[t.group]));
                sum = ints_mul(sum, scale);
                ints_store(onto, first ? sum : ints_add(sum, ints_load(onto)));
            }
        }
    }
}

/* Sums of a row's x times the mins of a block. */
INLINE ints scaled_mins(const struct codes_block *b, const uint32_t row, uint32_t o)
{
    const uint32_t n_group = KERN_CODES_X / b->form->group;
    const int8_t *min = (const int8_t *)b->groups + b->scales_at + KERN_PANEL + o;
    const int32_t *x = b->x[row].all;
    ints sum = ints_set(0);
    for (uint32_t g = 0; g < n_group; g++, min += b->group_bytes)
        sum = ints_add(sum, ints_mul(ints_load_i8(min), ints_set(x[g])));
    return sum;
}

INLINE void scaled_join_few(const struct codes_block *b, uint32_t row, const int rows,
                            const bool has_min)
{
    for (uint32_t r = row; r < row + (uint32_t)rows; r++)
        for (uint32_t o = 0; o < KERN_PANEL; o += INTS)
            scaled_join(b, r, o, has_min ? scaled_mins(b, r, o) : ints_set(0), has_min);
}

/* A tile of a block. */
INLINE void scaled_few(const struct codes_block *block, uint32_t row, const int rows,
                       const enum codes_form form)
{
    struct codes_block b = *block;
    const uint32_t group = b.form->group, chunk = codes_chunk(b.form);
    const size_t bytes = b.group_bytes;
    const uint8_t *at = b.groups;
    struct codes_tile t = {.rows = rows, .row = row};
    if (b.n_row > 2 && b.ahead == 0)
        b.ahead = SCALED_AHEAD;
    /* what is read at the end is asked for in order: prefetchers lose a stream with large gaps */
    for (const uint8_t *line = b.supers; line < b.groups; line += 64)
        __builtin_prefetch(line);
    for (uint32_t k = 0; k < KERN_CODES_X; k += chunk) {
        for (uint32_t i = 0; i < chunk; i += group, at += bytes, t.group++) {
            if (i == 0)
                scaled_group(&b, t, at, true, form);
            else
                scaled_group(&b, t, at, false, form);
            if (b.form->has_min)
                __builtin_prefetch(at + bytes - 64);
        }
        for (int r = 0; r < rows; r++)
            UNROLL
        for (uint32_t o = 0; o < KERN_PANEL; o += INTS)
            scaled_part(b.s->part[row + (uint32_t)r] + o, ints_load(b.s->products[r] + o), k == 0);
    }
    if (b.form->has_min)
        scaled_join_few(&b, row, rows, true);
    else
        scaled_join_few(&b, row, rows, false);
}

#endif
#endif
