/* SPDX-License-Identifier: Apache-2.0 */
/* linear_w4a8 on AVX2, which has no dot product of bytes; formula and order: ops_int4.h.
 *
 * vpmaddubsw multiplies bytes and adds neighbours in 16 bits. A product is at most 15 * 128, so the
 * sum of 16 of them still fits: a chain of CHAIN = 32 inputs, of which each half of an output's
 * int32 has 16, is summed in 16 bits and widened once. That takes 2.2 instructions for 32 products,
 * and widening each sum of two takes 3. The sums are exact, so no bit depends on it.
 *
 *     for chains of the group       1 KiB of weights as they are stored
 *       for strips of outputs       rows x n_vec registers of sums
 *         4 lines of 8 inputs       unpacked in registers, or taken from p->s->bytes
 *         p->s->sum += the sums
 *     p->s->acc += scale * (sum - zero * sum of x)
 *
 * Up to INT4_FEW rows, each tile unpacks for itself, in registers. For more, the group is unpacked
 * once, into L1. Threads: as ops.h. */
#include "kernels/avx2/ints.h"
#include "kernels/variants.h"
#include "kernels/wide/int4_group.h"

#define CHAIN       32u
#define CHAIN_READS 2     /* rows that are read for longer than they are multiplied, at most */
#define CHAIN_FAR   8192u /* bytes */
#define STRIPS      ((int)KERN_PANEL / (INTS * INTS_STRIP)) /* of a panel, for most tiles */

struct chain { /* sums in 16 bits */
    ints v[LINEAR_TILE][KERN_PANEL / INTS];
};

/* Four inputs of every row, k and on, by w; first: the sums begin with them. */
INLINE void chain_step(struct chain *c, struct int4_tile t, const ints *w,
                       const struct int4_rows *x, int k, const bool first)
{
    UNROLL
    for (int r = 0; r < t.rows; r++) {
        const ints four = int4_four(x->x + x->at[r] + k);
        UNROLL
        for (int j = 0; j < t.n_vec; j++) {
            const ints two = _mm256_maddubs_epi16(w[j], four);
            c->v[r][j] = first ? two : _mm256_add_epi16(c->v[r][j], two);
            /* else gcc 12 adds the products of several steps to each other first, and spills */
            __asm__("" : "+x"(c->v[r][j]));
        }
    }
}

/* What a line prefetches. Tiles that multiply longer than they read prefetch some groups ahead,
 * into the second-level cache, on a processor that needs none for one row (int4_ahead). Whole
 * groups: else no line prefetches the one that scales and zeros of a further group are in. */
struct chain_ahead {
    size_t bytes;
    bool is_far;
};

INLINE struct chain_ahead chain_ahead(const struct int4_part *p, int rows)
{
    const size_t group = int4_group_bytes(p->a->w.group);
    struct chain_ahead ahead = {int4_ahead(rows, 0), false};
    if (rows > CHAIN_READS && ahead.bytes == 0)
        ahead = (struct chain_ahead){(CHAIN_FAR / group + 1) * group, true};
    return ahead;
}

/* 8 inputs of every row by a line as it is stored. */
INLINE void chain_line(struct chain *c, struct int4_tile t, const uint8_t *w,
                       const struct int4_rows *x, struct chain_ahead ahead, const bool first)
{
    ints v[KERN_PANEL / INTS];
    if (ahead.is_far)
        linear_prefetch_far((const char *)w + ahead.bytes, (size_t)(t.n_vec * INTS) * 4,
                            t.n_vec * INTS * 4 / 64);
    else
        linear_prefetch((const char *)w + ahead.bytes, (size_t)(t.n_vec * INTS) * 4,
                        t.n_vec * INTS * 4 / 64);
    UNROLL
    for (int j = 0; j < t.n_vec; j++)
        v[j] = ints_low(int4_load(w + j * INTS * 4));
    chain_step(c, t, v, x, 0, first);
    UNROLL
    for (int j = 0; j < t.n_vec; j++)
        v[j] = ints_high(int4_load(w + j * INTS * 4));
    chain_step(c, t, v, x, 4, false);
}

INLINE void chain_zero(struct chain *c, struct int4_tile t)
{
    UNROLL
    for (int r = 0; r < t.rows; r++)
        UNROLL
    for (int j = 0; j < t.n_vec; j++)
        c->v[r][j] = ints_set(0);
}

/* w: the strip's part of the chain's first line, as it is stored. The loop over lines is not
 * unrolled: then gcc moves loads, and memory is read more slowly. */
INLINE void chain_packed(struct chain *c, struct int4_tile t, const uint8_t *w, struct int4_rows x,
                         struct chain_ahead ahead)
{
    const uint8_t *end = w + CHAIN / 8 * LINE;
    if (t.rows > CHAIN_READS) {
        chain_line(c, t, w, &x, ahead, true);
        w += LINE;
        x.x += 8;
    } else {
        chain_zero(c, t);
    }
    for (; w < end; w += LINE, x.x += 8)
        chain_line(c, t, w, &x, ahead, false);
}

/* w: the strip's part of the chain's first line in p->s->bytes. */
INLINE void chain_bytes(struct chain *c, struct int4_tile t, const uint8_t *w,
                        const struct int4_rows *x)
{
    chain_zero(c, t);
    UNROLL
    for (int k = 0; k < (int)CHAIN; k += 4, w += LINE) {
        ints v[KERN_PANEL / INTS];
        UNROLL
        for (int j = 0; j < t.n_vec; j++)
            v[j] = int4_load(w + j * INTS * 4);
        chain_step(c, t, v, x, k, false);
    }
}

/* Onto the int32 sums of the group. */
INLINE void chain_store(const struct int4_part *p, struct int4_tile t, const struct chain *c,
                        const bool first)
{
    const ints ones = _mm256_set1_epi16(1);
    UNROLL
    for (int r = 0; r < t.rows; r++)
        UNROLL
    for (int j = 0; j < t.n_vec; j++) {
        int32_t *sum = &p->s->sum[r][t.strip] + j * INTS;
        const ints four = _mm256_madd_epi16(c->v[r][j], ones);
        ints_store(sum, first ? four : ints_add(ints_load(sum), four));
    }
}

/* What each chain of a tile that reads p->s->bytes prefetches of the next group. */
INLINE struct linear_next next_part(const struct int4_part *p, uint32_t row)
{
    const uint32_t n_tile = (p->n_row + LINEAR_TILE - 1) / LINEAR_TILE;
    const uint32_t i_tile = (row * n_tile + p->n_row - 1) / p->n_row;
    const size_t n_chain = (size_t)p->a->w.group / CHAIN * STRIPS;
    struct linear_next next = {.step = int4_group_bytes(p->a->w.group) / (n_chain * n_tile) + 1};
    next.p = (const char *)p->next + i_tile * n_chain * next.step;
    return next;
}

INLINE void tile_sums(const struct int4_part *p, uint32_t row, struct int4_tile t,
                      const bool packed)
{
    struct linear_next next = next_part(p, row);
    struct int4_rows x = int4_rows(p, row, t.rows);
    const struct chain_ahead ahead = chain_ahead(p, t.rows);
    if (packed && ahead.is_far) {
        const char *scales = (const char *)p->w + int4_scales_at(p->a->w.group) + ahead.bytes;
        linear_prefetch_far(scales, 3 * 64, 3);
    }
    for (uint32_t k = 0; k < p->a->w.group; k += CHAIN, x.x += CHAIN)
        for (t.strip = 0; t.strip < KERN_PANEL; t.strip += (uint32_t)(t.n_vec * INTS)) {
            struct chain c;
            if (packed) {
                chain_packed(&c, t, p->w + (size_t)k / 8 * LINE + (size_t)t.strip * 4, x, ahead);
            } else {
                linear_prefetch(next.p, next.step, 2);
                next.p += next.step;
                chain_bytes(&c, t, p->s->bytes + (size_t)k / 4 * LINE + (size_t)t.strip * 4, &x);
            }
            if (k == 0)
                chain_store(p, t, &c, true);
            else
                chain_store(p, t, &c, false);
        }
}

/* Scales and zeros of the group to f32. */
INLINE void open_group(const struct int4_part *p)
{
    const uint8_t *scales = p->w + int4_scales_at(p->a->w.group);
    for (uint32_t o = 0; o < KERN_PANEL; o += INTS) {
        floats_store(p->s->scale + o, floats_load_f16((const uint16_t *)(const void *)scales + o));
        floats_store(p->s->zero + o, floats_load_i8((const int8_t *)scales + INT4_ZEROS_AT + o));
    }
}

/* The group's sums onto acc of the block's rows from `row` on. */
INLINE void add_group(const struct int4_part *p, struct int4_tile t, uint32_t row, const bool first)
{
    floats scale[KERN_PANEL / INTS], zero[KERN_PANEL / INTS];
    UNROLL
    for (int j = 0; j < t.n_vec; j++) {
        scale[j] = floats_load(p->s->scale + t.strip + j * INTS);
        zero[j] = floats_load(p->s->zero + t.strip + j * INTS);
    }
    for (uint32_t r = 0; r < (uint32_t)t.rows; r++) {
        const floats x = floats_set(p->x_sum[row + r]);
        const int32_t *sum = &p->s->sum[r][t.strip];
        float *acc = &p->s->acc[row + r][t.strip];
        UNROLL
        for (int j = 0; j < t.n_vec; j++) {
            const floats onto = first ? floats_set(0) : floats_load(acc + j * INTS);
            floats_store(acc + j * INTS,
                         ints_group(onto, ints_load(sum + j * INTS), scale[j], zero[j], x));
        }
    }
}

INLINE void group_tile(const struct int4_part *whole, uint32_t row, struct int4_tile t,
                       const bool packed)
{
    const struct int4_part p = *whole;
    tile_sums(&p, row, t, packed);
    t.n_vec = INTS_STRIP; /* so that scales and zeros fit registers */
    for (t.strip = 0; t.strip < KERN_PANEL; t.strip += (uint32_t)(t.n_vec * INTS))
        if (p.k == 0)
            add_group(&p, t, row, true);
        else
            add_group(&p, t, row, false);
}

/* Of few rows the strips are wider, so that memory is read in order. */
#define PACKED(n_row, vecs)                                             \
    static void packed_##n_row(const struct int4_part *p, uint32_t row) \
    {                                                                   \
        group_tile(p, row, (struct int4_tile){n_row, vecs, 0}, true);   \
    }
#define BYTES(n_row)                                                         \
    static void bytes_##n_row(const struct int4_part *p, uint32_t row)       \
    {                                                                        \
        group_tile(p, row, (struct int4_tile){n_row, INTS_STRIP, 0}, false); \
    }
PACKED(1, KERN_PANEL / INTS)
PACKED(2, 2 * INTS_STRIP)
PACKED(3, INTS_STRIP)
PACKED(4, INTS_STRIP)
PACKED(5, INTS_STRIP)
PACKED(6, INTS_STRIP)
BYTES(4)
BYTES(5)
BYTES(6)
#undef PACKED
#undef BYTES

typedef void tile_fn(const struct int4_part *p, uint32_t row);
static tile_fn *const packed_tiles[LINEAR_TILE + 1] = {NULL,     packed_1, packed_2, packed_3,
                                                       packed_4, packed_5, packed_6};
/* tiles of equal size: of more than INT4_FEW rows none has fewer than 4 */
static tile_fn *const bytes_tiles[LINEAR_TILE + 1] = {NULL,    NULL,    NULL,   NULL,
                                                      bytes_4, bytes_5, bytes_6};

static __attribute__((noinline)) void epilogue_rows(const struct int4_part *p, uint32_t row,
                                                    uint32_t n)
{
    for (uint32_t r = row; r < row + n; r++)
        int4_epilogue(p, r);
}

static void group_product(const struct int4_part *p)
{
    const uint32_t n_tile = (p->n_row + LINEAR_TILE - 1) / LINEAR_TILE;
    const bool packed = p->n_row <= INT4_FEW;
    open_group(p);
    if (!packed)
        int4_unpack(p);
    for (uint32_t i = 0; i < n_tile; i++) {
        const uint32_t begin = p->n_row * i / n_tile, end = p->n_row * (i + 1) / n_tile;
        if (int4_last(p)) {
            const struct epilogue f = EPILOGUE_OF(p->a);
            const struct range of = {p->row + begin, p->row + end};
            epilogue_prefetch(&f, of, p->o, int4_outputs(p));
        }
        (packed ? packed_tiles : bytes_tiles)[end - begin](p, begin);
        if (int4_last(p))
            epilogue_rows(p, begin, end - begin);
    }
}

void linear_w4a8_avx2(const struct linear_w4a8_args *a, const struct kern_exec *x)
{
    static const struct int4_kernel by = {.fn = group_product}; /* a group at a time */
    int4_tile_loop(a, x, &by);
}
