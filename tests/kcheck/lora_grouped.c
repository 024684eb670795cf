/* SPDX-License-Identifier: Apache-2.0 */
/* lora_shrink_grouped, lora_expand_grouped: against lora_shrink and lora_expand of each adapter's
 * rows, a row alone against the row among rows of other adapters, and nothing written to rows or
 * columns without an adapter. */
#include "kcheck.h"
#include <string.h>
#include "kernels/variants.h"

#define SLOTS_MAX 4u
#define ROWS_MAX  24u
#define PRODUCTS  2u

static const struct kern_exec alone = {.nth = 1};

struct grouped_case {
    struct lora_slots of;
    struct lora_slot_factors factors[SLOTS_MAX]; /* as they lie in the slots */
    uint32_t rows[SLOTS_MAX][ROWS_MAX], n_row_of[SLOTS_MAX];
    uint32_t n_slot, n_row, n_in, n_out;
    uint32_t n_rank; /* sum of an adapter's ranks at most */
};

static size_t lines(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Parts of an adapter in its slot, from byte `at` on; returns where they end. */
static size_t choose_parts(struct kcheck *k, struct grouped_case *c, struct lora_slot_factors *f,
                           size_t at)
{
    const size_t element = dtype_bits(c->of.dtype) / 8;
    const uint32_t n_part = kc_range(k, 0, KERN_LORA_PARTS);
    uint32_t col = 0, ranks = 0;
    *f = (struct lora_slot_factors){.n_in = c->n_in};
    for (uint32_t i = 0; i < n_part && col < c->n_out; i++) {
        struct lora_slot_part *p = &f->parts[f->n_part++];
        p->col = kc_range(k, col, c->n_out - 1);
        p->n_out = kc_range(k, 1, c->n_out - p->col);
        p->rank = kc_range(k, 1, kc_chance(k, 7) ? 100 : 10);
        p->scale = kc_f32(k);
        p->a = at;
        p->b = at + lines((size_t)p->rank * c->n_in * element);
        at = p->b + lines(lora_b_size(p->rank, p->n_out) * element);
        col = p->col + p->n_out;
        ranks += p->rank;
    }
    c->n_rank = ranks > c->n_rank ? ranks : c->n_rank;
    return at;
}

/* Rows of the same adapter in tiles that are full or not, and tiles that are not used. */
static void make_tiles(struct kcheck *k, struct grouped_case *c)
{
    struct lora_row_tile *tiles = kc_buf(k, (2 * ROWS_MAX + 1) * sizeof *tiles);
    uint32_t *rows = kc_buf(k, ROWS_MAX * sizeof *rows), n = 0;
    c->of.n_tile = 0;
    for (uint32_t s = 0; s < c->n_slot; s++)
        for (uint32_t at = 0, size; at < c->n_row_of[s]; at += size) {
            const uint32_t left = c->n_row_of[s] - at;
            size = kc_range(k, 1, KERN_LORA_ROWS);
            size = size < left ? size : left;
            tiles[c->of.n_tile++] = (struct lora_row_tile){s, n, size};
            memcpy(rows + n, c->rows[s] + at, size * sizeof *rows);
            n += size;
            if (kc_chance(k, 20))
                tiles[c->of.n_tile++] = (struct lora_row_tile){0};
        }
    tiles[c->of.n_tile++] = (struct lora_row_tile){0};
    c->of.tiles = tiles;
    c->of.rows = rows;
}

static void make_case(struct kcheck *k, struct grouped_case *c)
{
    static const uint32_t dtypes[] = {DT_F32, DT_F16, DT_BF16};
    const size_t head = lines(PRODUCTS * sizeof(struct lora_slot_factors));
    *c = (struct grouped_case){
        .n_slot = kc_range(k, 1, SLOTS_MAX),
        .n_row = kc_range(k, 1, ROWS_MAX),
        .n_in =
            kc_chance(k, 50) ? 8 * kc_range(k, 1, kc_chance(k, 20) ? 270 : 20) : kc_range(k, 1, 60),
        .n_out = kc_chance(k, 30) ? kc_range(k, 1, 2300) : 4 * kc_range(k, 1, 40),
        .of = {.dtype = (enum dtype)kc_pick(k, dtypes, 3), .product = kc_range(k, 0, 1)},
    };
    k->specials = false;
    for (uint32_t s = 0; s < c->n_slot; s++) {
        const size_t end = choose_parts(k, c, &c->factors[s], head);
        c->of.bytes = end > c->of.bytes ? end : c->of.bytes;
    }
    unsigned char *data = kc_buf(k, c->n_slot * c->of.bytes);
    for (uint32_t s = 0; s < c->n_slot; s++) {
        unsigned char *slot = data + s * c->of.bytes;
        kc_fill_dtype(k, slot + head, c->of.dtype,
                      (c->of.bytes - head) / (dtype_bits(c->of.dtype) / 8));
        memset(slot, 0, head);
        memcpy(slot + c->of.product * sizeof *c->factors, &c->factors[s], sizeof *c->factors);
    }
    c->of.data = data;
    for (uint32_t r = 0; r < c->n_row; r++) {
        const uint32_t s = kc_range(k, 0, c->n_slot);
        if (s < c->n_slot)
            c->rows[s][c->n_row_of[s]++] = r;
    }
    make_tiles(k, c);
    kc_shape(k, "%u rows of %u slots, %u to %u, ranks to %u, %s", c->n_row, c->n_slot, c->n_in,
             c->n_out, c->n_rank, dtype_name(c->of.dtype));
}

/* The adapter of a slot as lora_shrink and lora_expand take it. */
static struct lora_factors plain_of(const struct grouped_case *c, uint32_t s)
{
    const unsigned char *slot = c->of.data + s * c->of.bytes;
    const struct lora_slot_factors *f = &c->factors[s];
    struct lora_factors to = {.dtype = c->of.dtype, .n_in = f->n_in, .n_part = f->n_part};
    for (uint32_t i = 0; i < f->n_part; i++) {
        const struct lora_slot_part *p = &f->parts[i];
        to.parts[i] =
            (struct lora_part){slot + p->a, slot + p->b, p->rank, p->col, p->n_out, p->scale};
    }
    return to;
}

/* Row r alone in a tile; false: it has no adapter. */
static bool one_row(struct kcheck *k, const struct grouped_case *c, uint32_t r,
                    struct lora_slots *to)
{
    struct lora_row_tile tile = {SLOTS_MAX, 0, 1};
    for (uint32_t s = 0; s < c->n_slot; s++)
        for (uint32_t i = 0; i < c->n_row_of[s]; i++)
            if (c->rows[s][i] == r)
                tile.slot = s;
    *to = c->of;
    to->rows = kc_copy(k, &r, sizeof r);
    to->tiles = kc_copy(k, &tile, sizeof tile);
    to->n_tile = 1;
    return tile.slot < SLOTS_MAX;
}

static void plain_shrink(const struct grouped_case *c, const struct lora_shrink_grouped_args *a)
{
    for (uint32_t s = 0; s < c->n_slot; s++) {
        const struct lora_factors f = plain_of(c, s);
        const struct lora_group group = {&f, c->rows[s], c->n_row_of[s]};
        const struct lora_shrink_args one = {
            .t = a->t,
            .x = a->x,
            .x_dtype = a->x_dtype,
            .groups = &group,
            .n_group = 1,
            .x_stride = a->x_stride,
            .t_stride = a->t_stride,
        };
        lora_shrink_ref(&one, &alone);
    }
}

void kcheck_lora_shrink_grouped(struct kcheck *k)
{
    static const uint32_t dtypes[] = {DT_F32, DT_F16, DT_BF16};
    struct grouped_case c;
    make_case(k, &c);
    struct lora_shrink_grouped_args a = {
        .x_dtype = (enum dtype)kc_pick(k, dtypes, 3),
        .of = c.of,
        .n_rank = c.n_rank + kc_range(k, 0, 9),
        .x_stride = kc_chance(k, 60) ? (c.n_in + 63) / 64 * 64 : c.n_in + kc_range(k, 0, 5),
        .t_stride = c.n_rank + 1 + kc_range(k, 0, 5),
    };
    const size_t n_t = c.n_row * a.t_stride, n_x = c.n_row * a.x_stride;
    void *x = kc_buf(k, n_x * (dtype_bits(a.x_dtype) / 8));
    kc_fill_dtype(k, x, a.x_dtype, n_x);
    a.x = x;
    k->magnitude = 1 + c.n_in / 4.0; /* sums may cancel */
    float *want = a.t = kc_buf(k, n_t * sizeof *want);
    memset(want, 0, n_t * sizeof *want);
    plain_shrink(&c, &a);
    float *got = a.t = kc_buf(k, n_t * sizeof *got);
    memset(got, 0, n_t * sizeof *got);
    kc_run(k, k->variant, &a, kc_range(k, 1, 4));
    kc_compare(k, "t", &(struct kc_array){got, DT_F32, c.n_row, a.t_stride, a.t_stride},
               &(struct kc_array){want, DT_F32, c.n_row, a.t_stride, a.t_stride});
    float *one = a.t = kc_buf(k, n_t * sizeof *one);
    for (uint32_t r = 0; r < c.n_row; r += 1 + c.n_row / 4) {
        if (!one_row(k, &c, r, &a.of))
            continue;
        memset(one, 0, n_t * sizeof *one);
        kc_run(k, k->variant, &a, 1);
        kc_same_bits(
            k, "row alone",
            (struct kc_bits){one + r * a.t_stride, got + r * a.t_stride, DT_F32, a.t_stride});
    }
}

static void plain_expand(const struct grouped_case *c, const struct lora_expand_grouped_args *a)
{
    for (uint32_t s = 0; s < c->n_slot; s++) {
        const struct lora_factors f = plain_of(c, s);
        const struct lora_group group = {&f, c->rows[s], c->n_row_of[s]};
        const struct lora_expand_args one = {
            .y = a->y,
            .t = a->t,
            .groups = &group,
            .n_group = 1,
            .y_stride = a->y_stride,
            .t_stride = a->t_stride,
        };
        lora_expand_ref(&one, &alone);
    }
}

void kcheck_lora_expand_grouped(struct kcheck *k)
{
    struct grouped_case c;
    make_case(k, &c);
    struct lora_expand_grouped_args a = {
        .of = c.of,
        .n_col = c.n_out,
        .y_stride = c.n_out + kc_range(k, 0, 5),
        .t_stride = c.n_rank + 1 + kc_range(k, 0, 5),
    };
    const size_t n_t = c.n_row * a.t_stride, n_y = c.n_row * a.y_stride;
    float *t = kc_buf(k, n_t * sizeof *t), *before = kc_buf(k, n_y * sizeof *before);
    kc_fill(k, t, n_t);
    kc_fill(k, before, n_y);
    a.t = t;
    float *want = a.y = kc_copy(k, before, n_y * sizeof *want);
    plain_expand(&c, &a);
    float *got = a.y = kc_copy(k, before, n_y * sizeof *got);
    kc_run(k, k->variant, &a, kc_range(k, 1, 4));
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, c.n_row, a.y_stride, a.y_stride},
               &(struct kc_array){want, DT_F32, c.n_row, a.y_stride, a.y_stride});
    for (uint32_t r = 0; r < c.n_row; r += 1 + c.n_row / 4) {
        const float *other = before + r * a.y_stride;
        const bool has_one = one_row(k, &c, r, &a.of);
        if (has_one) {
            a.y = kc_copy(k, before, n_y * sizeof *a.y);
            kc_run(k, k->variant, &a, 1);
            other = a.y + r * a.y_stride;
        }
        kc_same_bits(k, has_one ? "row alone" : "row without an adapter",
                     (struct kc_bits){other, got + r * a.y_stride, DT_F32, a.y_stride});
    }
}

/* ---- benchmarks: 8 rows of 8 adapters of rank 16 ---- */

struct bench {
    struct lora_row_tile tiles[8];
    uint32_t rows[8];
    struct lora_slots of;
};

static void make_bench(struct kcheck *k, struct bench *b, uint32_t n)
{
    const size_t head = lines(sizeof(struct lora_slot_factors)), factor = (size_t)16 * n * 2;
    b->of = (struct lora_slots){.bytes = head + 2 * factor, .dtype = DT_BF16, .n_tile = 8};
    unsigned char *data = kc_buf(k, 8 * b->of.bytes);
    const struct lora_slot_factors f = {n, 1, {{head, head + factor, 16, 0, n, 1}}};
    for (uint32_t i = 0; i < 8; i++) {
        memcpy(data + i * b->of.bytes, &f, sizeof f);
        kc_fill_dtype(k, data + i * b->of.bytes + head, DT_BF16, factor);
        b->tiles[i] = (struct lora_row_tile){i, i, 1};
        b->rows[i] = i;
    }
    b->of.data = data;
    b->of.tiles = b->tiles;
    b->of.rows = b->rows;
}

void kbench_lora_shrink_grouped(struct kc_bench *b)
{
    const uint32_t n = 2048;
    struct bench of;
    make_bench(b->k, &of, n);
    uint16_t *x = kc_buf(b->k, 8 * (size_t)n * sizeof *x);
    kc_fill_dtype(b->k, x, DT_BF16, 8 * (size_t)n);
    const struct lora_shrink_grouped_args a = {
        .t = kc_buf(b->k, 8 * 16 * sizeof *a.t),
        .x = x,
        .x_dtype = DT_BF16,
        .of = of.of,
        .n_rank = 16,
        .x_stride = n,
        .t_stride = 16,
    };
    kc_print_bytes(b, "8 rows of 8 adapters, 2048 to 16", kc_time(b, &a), 8 * 2.0 * n * 16);
}

void kbench_lora_expand_grouped(struct kc_bench *b)
{
    const uint32_t n = 2048;
    struct bench of;
    make_bench(b->k, &of, n);
    float *t = kc_buf(b->k, 8 * 16 * sizeof *t), *y = kc_buf(b->k, 8 * (size_t)n * sizeof *y);
    kc_fill(b->k, t, 8 * 16);
    kc_fill(b->k, y, 8 * (size_t)n);
    const struct lora_expand_grouped_args a = {
        .y = y,
        .t = t,
        .of = of.of,
        .n_col = n,
        .y_stride = n,
        .t_stride = 16,
    };
    kc_print_bytes(b, "8 rows of 8 adapters, 16 to 2048", kc_time(b, &a), 8 * 2.0 * n * 16);
}
