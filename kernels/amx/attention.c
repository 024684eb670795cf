/* SPDX-License-Identifier: Apache-2.0 */
/* attention over bf16 or int8 K and V by TDPBF16PS, 16 rows x 16 positions x 32 dimensions an
 * instruction, where the heads are a multiple of 32 wide; else it is attention_avx512_bf16. Tiles
 * load a block of K directly, 32 dimensions each; V is converted to pairs by attention_dot.h.
 * Formula and order: attention_dot.h; the sums go by 32 (ref/linear_tiles.c).
 *
 *     tile 0 1 2 3   sums of 16 rows, four times 16 positions or columns
 *     tile 4         q or p of the rows          tile 5 6   K or V */
#define DOT_KV_ROWS 0u /* an item has one KV head */
#define DOT_AT      DOT_GROUP
#define DOT_STEP    32u
#include "kernels/avx512/attention_dot.h"
#include "kernels/variants.h"

#define TILE_ROWS 16u
#define STEP      DOT_STEP /* dimensions or positions an instruction sums */

/* The operand of LDTILECFG. Source: Intel SDM volume 1, chapter 18. */
struct tile_config {
    uint8_t palette, start_row, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static void tiles_setup(uint32_t n_row)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = (uint8_t)(i < 5 && n_row < TILE_ROWS ? n_row : TILE_ROWS);
    }
    __asm__ volatile("" ::"r"(&c) : "memory"); /* gcc 12 thinks 8 bytes of it are read */
    _tile_loadconfig(&c);
}

INLINE void scores_rows(const struct dot_item *d, const char *const k[DOT_BLOCKS], uint32_t row,
                        float *s)
{
    const uint16_t *q = d->room.q + (size_t)row * d->room.dim;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (uint32_t i = 0; i < d->room.dim; i += STEP) {
        const size_t at = (size_t)i / 2 * 64;
        _tile_loadd(4, q + i, d->room.dim * sizeof *q);
        _tile_loadd(5, k[0] + at, 64);
        _tile_loadd(6, k[1] + at, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(5, k[2] + at, 64);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(6, k[3] + at, 64);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 6);
    }
    _tile_stored(0, s, DOT_TILE * sizeof *s);
    _tile_stored(1, s + 16, DOT_TILE * sizeof *s);
    _tile_stored(2, s + 32, DOT_TILE * sizeof *s);
    _tile_stored(3, s + 48, DOT_TILE * sizeof *s);
}

static void dot_scores(const struct dot_item *d, const char *const k[DOT_BLOCKS], uint32_t n_block,
                       float *s)
{
    (void)n_block;
    for (uint32_t row = 0; row < d->it->n_row; row += TILE_ROWS)
        scores_rows(d, k, row, s + (size_t)row * DOT_TILE);
}

struct values {
    const uint16_t *p, *v;
    size_t v_bytes; /* between pairs of positions */
    float *sum;
    size_t sum_bytes;
    uint32_t n; /* positions */
};

INLINE void values_four(const struct values *t)
{
    _tile_loadd(0, t->sum, t->sum_bytes);
    _tile_loadd(1, t->sum + 16, t->sum_bytes);
    _tile_loadd(2, t->sum + 32, t->sum_bytes);
    _tile_loadd(3, t->sum + 48, t->sum_bytes);
    for (uint32_t c = 0; c < t->n; c += STEP) {
        const char *v = (const char *)t->v + c / 2 * t->v_bytes;
        _tile_loadd(4, t->p + c, DOT_TILE * sizeof *t->p);
        _tile_loadd(5, v, t->v_bytes);
        _tile_loadd(6, v + 64, t->v_bytes);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(5, v + 128, t->v_bytes);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(6, v + 192, t->v_bytes);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 6);
    }
    _tile_stored(0, t->sum, t->sum_bytes);
    _tile_stored(1, t->sum + 16, t->sum_bytes);
    _tile_stored(2, t->sum + 32, t->sum_bytes);
    _tile_stored(3, t->sum + 48, t->sum_bytes);
}

INLINE void values_two(const struct values *t)
{
    _tile_loadd(0, t->sum, t->sum_bytes);
    _tile_loadd(1, t->sum + 16, t->sum_bytes);
    for (uint32_t c = 0; c < t->n; c += STEP) {
        const char *v = (const char *)t->v + c / 2 * t->v_bytes;
        _tile_loadd(4, t->p + c, DOT_TILE * sizeof *t->p);
        _tile_loadd(5, v, t->v_bytes);
        _tile_loadd(6, v + 64, t->v_bytes);
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 6);
    }
    _tile_stored(0, t->sum, t->sum_bytes);
    _tile_stored(1, t->sum + 16, t->sum_bytes);
}

static void dot_values(const struct dot_item *d, const uint16_t *p, const uint16_t *v, uint32_t n)
{
    const size_t dim = d->room.dim;
    struct values t = {.v_bytes = dim * 4, .sum_bytes = dim * sizeof(float), .n = n};
    for (uint32_t row = 0; row < d->it->n_row; row += TILE_ROWS) {
        t.p = p + (size_t)row * DOT_TILE;
        uint32_t c = 0;
        for (; c < dim; c += 2 * STEP) {
            t.sum = d->room.sum + row * dim + c;
            t.v = v + 2 * (size_t)c;
            if (c + 2 * STEP <= dim)
                values_four(&t);
            else
                values_two(&t);
        }
    }
}

static void dot_tile(const struct dot_item *d, uint32_t first, struct pos_range range)
{
    dot_tile_pairs(d, first, range);
}

static void dot_begin(const struct dot_item *d)
{
    tiles_setup(d->it->n_row);
}

void attention_amx(const struct attention_args *a, const struct kern_exec *x)
{
    if (a->kv_dtype == DT_F32 || a->head_dim % STEP) {
        attention_avx512_bf16(a, x);
        return;
    }
    attention_dot(a, x);
    _tile_release();
}

void attention_join_amx(const struct attention_join_args *a, const struct kern_exec *x)
{
    attention_join_avx512_bf16(a, x);
}
