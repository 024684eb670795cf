/* SPDX-License-Identifier: Apache-2.0 */
/* codes_ints - linear_codes of values that are whole numbers, on registers of int32 sums; formula,
 * order and layout: ops_codes.h.
 *
 *     for row blocks of at most KERN_LINEAR_ROWS    W is read once per block
 *       for panels of this thread                   one contiguous stream of memory
 *         for blocks of KERN_CODES_X inputs         x is rounded once for all panels, if it fits
 *           for groups                              scales and mins to f32
 *             for tiles of rows                     sums of integers, times the scale onto the part
 *           sum += unit * part
 *
 * Products are of 16 bits by 16 bits, neighbours added: codes are unpacked to pairs of 16 bits by a
 * shift and a mask. For few rows that is done in registers, a strip of outputs at a time; for more
 * each group is unpacked once into the first-level cache for all tiles.
 *
 * The including file defines the names of ints.h, INTS_STRIP (as linear_int8.h) and
 * pairs_dot(sum, w, x): sum + 2 products of int16 in each int32; and for products of halves, 0 … 15,
 * by int8: bytes_dot(sum, w, x) of at most CODES_CHAIN inputs, and bytes_sum(sum): its int32.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_CODES_INTS_H
#define QUIRE_KERNELS_WIDE_CODES_INTS_H
#include <string.h>
#include "kernels/ops/codes_x.h"
#include "kernels/reading.h"
#include "kernels/tiling/codes_scratch.h"
#include "kernels/tiling/linear_tile_loop.h"
#include "kernels/wide/codes_values.h"
#include "kernels/wide/linear_strip.h"
#ifdef INTS

#define CODES_LINE       (4 * KERN_PANEL) /* bytes: 4 of each output */
#define CODES_TILE       6                /* rows */
#define CODES_PLANE_ROWS 2                /* that are multiplied by planes */
#define CODES_CHAIN      32u              /* inputs of a group that are */
#define CODES_WIDE_ROWS  2                /* of which registers hold the sums of 4 * INTS outputs */

/* How stored codes become codes above their zero, which are multiplied: pairs of bytes, of halves of
 * bytes, and of these by a table, by x of 16 bits; or halves by two planes of x. */
enum codes_form { CODES_OF_BYTES, CODES_OF_HALVES, CODES_OF_TABLE, CODES_OF_PLANES, CODES_FORMS };

struct codes_block { /* of a panel: KERN_CODES_X inputs, or what is left */
    const struct packed_codes *form;
    struct codes_ints_scratch *s;
    const struct codes_inputs *x; /* [n_row] */
    const uint8_t *supers, *groups;
    const uint8_t *table; /* [16] codes of CODES_OF_TABLE */
    size_t ahead;         /* bytes that are prefetched ahead */
    uint32_t n, n_row;    /* n: inputs */
    bool first;           /* of the panel: sums begin with 0 */
};
struct codes_tile { /* constants where they are inlined, but for the strip and the group */
    int rows, n_vec;
    uint32_t row, strip; /* first row; first output */
    uint32_t group;
};
struct codes_int_sums {
    ints v[CODES_TILE][KERN_PANEL / INTS];
};

/* ---- x ---- */

/* What is added to values of a kind, so that codes are not negative. */
INLINE int32_t codes_zero(enum kern_codes kind)
{
    return kind == KERN_CODES_HALVES ? 0 : kind == KERN_CODES_SIGNED ? 8 : (int)CODES_BYTES_ZERO;
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
    const float zero = (float)codes_zero((enum kern_codes)c->kind);
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
        x = vec_if_nan(x, vec_set(0), x);
        vec_store_i16(to->n + k, x);
        sum = vec_add(sum, x);
        if ((k + 16) % c->group)
            continue;
        to->sum[k / c->group] = vec_fold_add(sum);
        to->start[k / c->group] = -(int32_t)(zero * to->sum[k / c->group]);
        sum = vec_set(0);
    }
}

/* ---- sums of a group ---- */

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

/* x of two planes, n = 256 high + low, both int8: of the inputs in the low and in the high halves of
 * the bytes of a line. */
struct codes_planes {
    int8_t low[2][4], high[2][4];
};

/* The n of a row to planes, in place. */
static void codes_split(struct codes_inputs *x, uint32_t n)
{
    const __m128i order = _mm_setr_epi8(0, 8, 2, 10, 4, 12, 6, 14, -1, -1, -1, -1, -1, -1, -1, -1);
    for (uint32_t k = 0; k < n; k += 8) {
        __m128i *at = (__m128i *)(void *)(x->n + k);
        const __m128i all = _mm_load_si128(at);
        const __m128i above = _mm_srai_epi16(_mm_add_epi16(all, _mm_set1_epi16(128)), 8);
        _mm_store_si128(
            at, _mm_unpacklo_epi64(_mm_shuffle_epi8(all, order), _mm_shuffle_epi8(above, order)));
    }
}

INLINE ints codes_four(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    return ints_set(four);
}

/* Halves of one or two rows, in groups of at most CODES_CHAIN: fewer shifts and masks than by pairs,
 * and two products for one. */
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

/* ---- a group ---- */

/* An array of scales or mins to f32; supers: d or dmin. */
INLINE void codes_open_array(float *to, const struct packed_codes *c, const uint8_t *at,
                             const float *supers)
{
    if (c->scales == KERN_SCALES_BY_256)
        for (uint32_t o = 0; o < KERN_PANEL; o += 16)
            vec_store(to + o, vec_mul(vec_load(supers + o), vec_load_i8((const int8_t *)at + o)));
    else if (c->scales == KERN_SCALES_F16)
        for (uint32_t o = 0; o < KERN_PANEL; o += 16)
            vec_store(to + o, vec_load_f16((const uint16_t *)(const void *)at + o));
    else
        memcpy(to, at, KERN_PANEL * sizeof *to);
}

/* Scales and mins of a group. */
INLINE void codes_open(const struct codes_block *b, const uint8_t *at)
{
    const uint8_t *scales = at + codes_scales_at(b->form);
    const float *supers = (const float *)(const void *)b->supers;
    __builtin_prefetch(scales + b->ahead);
    codes_open_array(b->s->scale, b->form, scales, supers);
    if (b->form->has_min)
        codes_open_array(b->s->min, b->form, scales + codes_mins_at(b->form), supers + KERN_PANEL);
}

/* Through memory: gcc 12 spills sums inside the loop over inputs when the arithmetic follows it. */
INLINE void codes_add(const struct codes_block *b, const struct codes_tile *t, const bool has_min)
{
    const size_t group = t->group;
    for (uint32_t r = 0; r < (uint32_t)t->rows; r++) {
        float *part = b->s->part[t->row + r];
        const floats all = floats_set(b->x[t->row + r].sum[group]);
        UNROLL
        for (uint32_t o = 0; o < KERN_PANEL; o += INTS) {
            load_again(); /* else gcc 12 loads all of them first, and spills */
            floats onto = floats_load(part + o);
            if (has_min)
                onto = floats_fma(floats_load(b->s->min + o), all, onto);
            floats_store(part + o, floats_fma(floats_load(b->s->scale + o),
                                              ints_floats(ints_load(b->s->products[r] + o)), onto));
        }
    }
}

INLINE void codes_group(const struct codes_block *b, struct codes_tile t, const uint8_t *at,
                        const bool packed, const enum codes_form form)
{
    t.n_vec = t.rows == 1 ? (int)KERN_PANEL / INTS : t.rows <= CODES_WIDE_ROWS ? 4 : INTS_STRIP;
    if (form == CODES_OF_PLANES) /* two sums of each */
        t.n_vec = t.rows == 1 || INTS_STRIP == 4 ? 4 : 2;
    for (t.strip = 0; t.strip < KERN_PANEL; t.strip += (uint32_t)(t.n_vec * INTS)) {
        struct codes_int_sums s;
        UNROLL
        for (int r = 0; r < t.rows; r++)
            UNROLL
        for (int j = 0; j < t.n_vec; j++)
            s.v[r][j] = ints_set(b->x[t.row + (uint32_t)r].start[t.group]);
        if (form == CODES_OF_PLANES)
            codes_sums_planes(&s, b, &t, at);
        else if (packed)
            codes_sums_packed(&s, b, &t, at, form);
        else
            codes_sums_unpacked(&s, b, &t);
        UNROLL
        for (int r = 0; r < t.rows; r++)
            UNROLL
        for (int j = 0; j < t.n_vec; j++)
            ints_store(b->s->products[r] + t.strip + j * INTS, s.v[r][j]);
    }
    if (b->form->has_min)
        codes_add(b, &t, true);
    else
        codes_add(b, &t, false);
}

/* ---- a block of inputs ---- */

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
#define PACKED_ALL(name, form)                                                      \
    PACKED(name, form, 1)                                                           \
    PACKED(name, form, 2)                                                           \
    PACKED(name, form, 3)                                                           \
    PACKED(name, form, 4)                                                           \
    PACKED(name, form, 5)                                                           \
    PACKED(name, form, 6)                                                           \
    static void codes_unpack_##name(const struct codes_block *b, const uint8_t *at) \
    {                                                                               \
        codes_unpack_group(b, at, form);                                            \
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
    [CODES_OF_BYTES] = codes_unpack_bytes,
    [CODES_OF_HALVES] = codes_unpack_halves,
    [CODES_OF_TABLE] = codes_unpack_table,
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

/* ---- the product ---- */

INLINE enum codes_form codes_form_of(const struct packed_codes *c, uint32_t n_row)
{
    if (c->kind == KERN_CODES_BYTES)
        return CODES_OF_BYTES;
    if (c->kind != KERN_CODES_HALVES && c->kind != KERN_CODES_SIGNED)
        return CODES_OF_TABLE;
    return n_row <= CODES_PLANE_ROWS && c->group <= CODES_CHAIN ? CODES_OF_PLANES : CODES_OF_HALVES;
}

/* Rows of a block, such that their x is kept; blocks of about equal size. */
INLINE size_t codes_rows_block(size_t n_row, uint32_t n_block)
{
    size_t most = CODES_X_KEPT / n_block;
    most = most > KERN_LINEAR_ROWS ? KERN_LINEAR_ROWS : most ? most : 1;
    const size_t n = (n_row + most - 1) / most;
    return n ? (n_row + n - 1) / n : 1;
}

INLINE void codes_ints_product(const struct linear_args *a, const struct kern_exec *x)
{
    const struct packed_codes *form = &a->w.codes;
    const struct range panels = split((a->w.n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    const uint32_t n_in = a->w.n_in, n_block = (n_in + KERN_CODES_X - 1) / KERN_CODES_X;
    const size_t block = codes_rows_block(a->n_row, n_block);
    const bool kept = n_block <= CODES_X_KEPT;
    struct codes_ints_scratch *s = x->scratch;
    uint8_t table[16];
    for (uint32_t i = 0; i < 16; i++)
        table[i] = (uint8_t)(codes_ints[form->kind][i] + (int)CODES_BYTES_ZERO);
    for (size_t row = 0; row < a->n_row; row += block) {
        struct codes_block b = {
            .form = form,
            .s = s,
            .table = table,
            .ahead = kern_ahead(KERN_PRODUCT_INT4),
            .n_row = (uint32_t)(a->n_row - row < block ? a->n_row - row : block),
        };
        const enum codes_form how = codes_form_of(form, b.n_row);
        for (size_t panel = panels.begin; panel < panels.end; panel++) {
            const uint8_t *at = (const uint8_t *)a->w.data + panel * codes_panel_bytes(form, n_in);
            for (uint32_t i = 0; i < n_block; i++) {
                const uint32_t k = i * KERN_CODES_X;
                struct codes_inputs *in = s->x + (kept ? (size_t)i * b.n_row : 0);
                b.x = in;
                b.first = i == 0;
                b.n = n_in - k < KERN_CODES_X ? n_in - k : KERN_CODES_X;
                b.supers = at + codes_block_at(form, k / form->group);
                b.groups = b.supers + codes_supers_bytes(form);
                for (uint32_t r = 0; r < b.n_row && (!kept || panel == panels.begin); r++) {
                    codes_round(in + r, a, (row + r) * a->x_stride + k, b.n);
                    if (how == CODES_OF_PLANES)
                        codes_split(in + r, b.n);
                }
                codes_block_rows(&b, how);
                codes_join(&b);
            }
            for (uint32_t r = 0; r < b.n_row; r++)
                linear_epilogue(a, s->sum[r], row + r, (uint32_t)panel);
        }
    }
}

#endif
#endif
