/* SPDX-License-Identifier: Apache-2.0 */
/* codes_ints_block - KERN_CODES_X inputs of a panel of codes_ints.h, by the number of rows and the
 * form of codes, each its own function; and their parts onto the sums.
 * Threads: the scratch is the thread's own. */
#ifndef QUIRE_KERNELS_WIDE_CODES_INTS_BLOCK_H
#define QUIRE_KERNELS_WIDE_CODES_INTS_BLOCK_H
#include <string.h>
#include "kernels/wide/codes_ints_group.h"
#ifdef INTS

typedef void codes_block_fn(const struct codes_block *b);
typedef void codes_rows_fn(const struct codes_block *b, uint32_t row, uint32_t group);

/* n_row is `rows`. */
INLINE void codes_block_packed(const struct codes_block *block, const int rows,
                               const enum codes_form form)
{
    const struct codes_block b = *block;
    const uint8_t *at = b.groups;
    for (uint32_t g = 0; g < b.n / b.form->group; g++, at += codes_group_bytes(b.form)) {
        codes_open(&b, at);
        codes_group(&b, (struct codes_tile){.rows = rows, .group = g}, at, true, form);
    }
}

INLINE void codes_unpack_group(const struct codes_block *b, const uint8_t *at,
                               const enum codes_form form)
{
    const int n_pair = codes_line_pairs(form);
    for (uint32_t pair = 0; pair < b->form->group / 2; pair += (uint32_t)n_pair, at += CODES_LINE)
        for (uint32_t o = 0; o < KERN_PANEL; o += INTS) {
            const ints v = codes_load(at + (size_t)o * 4);
            UNROLL
            for (int i = 0; i < n_pair; i++)
                ints_store((int32_t *)(void *)b->s->w[pair + (uint32_t)i][o],
                           codes_pairs(v, i, b->table, form));
        }
}

#define PACKED(name, form, rows)                                          \
    static void codes_packed_##name##_##rows(const struct codes_block *b) \
    {                                                                     \
        codes_block_packed(b, rows, form);                                \
    }
#define PACKED_ALL(name, form)                                                        \
    PACKED(name, form, 1)                                                             \
    PACKED(name, form, 2)                                                             \
    PACKED(name, form, 3)                                                             \
    PACKED(name, form, 4)                                                             \
    PACKED(name, form, 5)                                                             \
    PACKED(name, form, 6)                                                             \
    static void codes_pairs_of_##name(const struct codes_block *b, const uint8_t *at) \
    {                                                                                 \
        codes_unpack_group(b, at, form);                                              \
    }
#define PACKED_ROW(name)                                                              \
    {                                                                                 \
        codes_packed_##name##_1, codes_packed_##name##_2, codes_packed_##name##_3,    \
            codes_packed_##name##_4, codes_packed_##name##_5, codes_packed_##name##_6 \
    }
#define UNPACKED(n)                                                                              \
    static void codes_unpacked_##n(const struct codes_block *b, uint32_t row, uint32_t g)        \
    {                                                                                            \
        const struct codes_block local = *b;                                                     \
        codes_group(&local, (struct codes_tile){.rows = n, .row = row, .group = g}, NULL, false, \
                    CODES_OF_BYTES);                                                             \
    }
PACKED_ALL(bytes, CODES_OF_BYTES)
PACKED_ALL(halves, CODES_OF_HALVES)
PACKED_ALL(table, CODES_OF_TABLE)
PACKED(planes, CODES_OF_PLANES, 1)
PACKED(planes, CODES_OF_PLANES, 2)
UNPACKED(3)
UNPACKED(4)
UNPACKED(5)
UNPACKED(6)
static codes_block_fn *const codes_packed[CODES_FORMS][CODES_TILE] = {
    [CODES_OF_BYTES] = PACKED_ROW(bytes),
    [CODES_OF_HALVES] = PACKED_ROW(halves),
    [CODES_OF_TABLE] = PACKED_ROW(table),
    [CODES_OF_PLANES] = {codes_packed_planes_1, codes_packed_planes_2},
};
static void (*const codes_unpack_groups[CODES_FORMS])(const struct codes_block *,
                                                      const uint8_t *) = {
    [CODES_OF_BYTES] = codes_pairs_of_bytes,
    [CODES_OF_HALVES] = codes_pairs_of_halves,
    [CODES_OF_TABLE] = codes_pairs_of_table,
};
/* of more than CODES_TILE rows; tiles of equal size, so none has fewer than 3 */
static codes_rows_fn *const codes_unpacked[CODES_TILE + 1] = {
    NULL, NULL, NULL, codes_unpacked_3, codes_unpacked_4, codes_unpacked_5, codes_unpacked_6};
#undef PACKED
#undef PACKED_ALL
#undef PACKED_ROW
#undef UNPACKED

INLINE void codes_block_rows(const struct codes_block *b, enum codes_form form)
{
    memset(b->s->part, 0, b->n_row * sizeof b->s->part[0]);
    const uint32_t n_tile = (b->n_row + CODES_TILE - 1) / CODES_TILE;
    const uint8_t *at = b->groups;
    if (b->n_row <= CODES_TILE) {
        codes_packed[form][b->n_row - 1](b);
        return;
    }
    for (uint32_t g = 0; g < b->n / b->form->group; g++, at += codes_group_bytes(b->form)) {
        codes_open(b, at);
        codes_unpack_groups[form](b, at);
        for (uint32_t i = 0; i < n_tile; i++) {
            const uint32_t row = b->n_row * i / n_tile, end = b->n_row * (i + 1) / n_tile;
            codes_unpacked[end - row](b, row, g);
        }
    }
}

/* The parts onto the sums. */
INLINE void codes_join(const struct codes_block *b)
{
    for (uint32_t r = 0; r < b->n_row; r++) {
        const floats unit = floats_set(b->x[r].unit);
        float *sum = b->s->sum[r];
        UNROLL
        for (uint32_t j = 0; j < KERN_PANEL; j += INTS)
            floats_store(sum + j, floats_fma(unit, floats_load(b->s->part[r] + j),
                                             b->first ? floats_set(0) : floats_load(sum + j)));
    }
}

#endif
#endif
