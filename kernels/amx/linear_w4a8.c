/* SPDX-License-Identifier: Apache-2.0 */
/* linear_w4a8 by TDPBSSD; formula and order: ops_int4.h.
 *
 *     for blocks of rows whose x fits half of the second-level cache
 *       for panels of this thread
 *         for slices of K                unpacked once for the block, zeros taken off
 *           for units: 32 rows x half the panel, the last 16 or fewer x all of it
 *             for the slice's groups, some at a time
 *               their sums by tiles, as tiles.h, stored
 *               the sums before these: acc += scale * sum, group after group
 *
 * Unpacked weights q - zero are -16 … 15, so a group's sum is d[g] itself, and each sum needs one
 * multiply-add in f32. These take about as long as the tile instructions; they are done one
 * iteration later, so that both overlap. */
#include "kernels/amx/tile.h"
#include "kernels/avx512/ints.h"
#include "kernels/tiling/int4_scratch.h"
#include "kernels/tiling/stream.h"
#include "kernels/variants.h"
#include "kernels/wide/epilogue.h"

#define FEW         6u   /* rows that AVX-512 unpacks in registers; the bits are the same */
#define FEW_K       256u /* inputs of a slice, 16 KiB in the first-level cache, where rows … */
#define FEW_REUSE   64u  /* … up to this many use it once or twice */
#define LINE        256u /* bytes of a panel's line: 64 outputs x 4 of K */
#define AT_A_TIME   256u /* inputs whose sums are added at a time, at most */
#define BLOCK_BYTES ((size_t)5 << 18) /* of x: most of a 2 MiB cache */

struct unit {
    float *acc; /* [n_row][width] */
    size_t row; /* its first */
    uint32_t n_row;
    uint32_t from, width; /* outputs from … from + width - 1 of the panel */
    uint32_t o;           /* the first of them in y */
    bool first, last;     /* slice: acc starts; the sums are finished */
};

struct sums { /* of some groups, which wait to be added */
    struct unit of;
    int32_t (*sum)[INT4_TILES_SUMS];  /* [n_group][n_row][width] */
    const float (*scale)[KERN_PANEL]; /* of the groups */
    uint32_t n_group;                 /* 0: nothing waits */
    bool first, last;                 /* of K */
};

struct slice_loop {
    const struct linear_int8_args *a;
    struct int4_tiles_scratch *s;
    struct stream weights; /* that this thread reads */
    struct range rows;     /* the block */
    uint32_t o;            /* the panel's first output */
    uint32_t slice;        /* inputs of one, at most */
    uint32_t k, n_k;       /* the slice */
    uint32_t most;         /* groups at a time */
    uint32_t step;         /* bytes of K in a tile: 64, or 32 where that is the group */
    uint32_t low, high;    /* rows the tiles are set up for */
    uint32_t odd;          /* which half of s->sum was taken last */
    struct sums wait;
};

/* high 0: units of a whole panel. */
static void set_up(struct slice_loop *t, uint32_t low, uint32_t high)
{
    if (low == t->low && high == t->high)
        return;
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        bool of_w = i >= 6 || (!high && i == 5), x_sum = i == 4 || (high && i == 5);
        bool lower = high && (i == 2 || i == 3 || i == 5);
        c.row_bytes[i] = (uint16_t)(x_sum ? t->step : 64);
        c.rows[i] = (uint8_t)(of_w ? t->step / 4 : lower ? high : low);
    }
    tile_configure(&c);
    t->low = low;
    t->high = high;
}

static void zero_sums(void)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* 17 to 32 rows, half a panel, one group. */
INLINE void sums_half(const struct slice_loop *t, const int8_t *x, const uint8_t *w, int32_t *sum)
{
    const size_t x_bytes = t->a->x_stride, w_bytes = (size_t)t->step / 4 * LINE;
    zero_sums();
    for (uint32_t k = 0; k < t->a->w.group; k += t->step, w += w_bytes) {
        const int8_t *x_soon = x + k + (size_t)SOON * t->step;
        _tile_loadd(6, w, LINE);
        tile_soon(x_soon, x_bytes);
        _tile_loadd(4, x + k, x_bytes);
        tile_soon(x_soon + TILE_ROWS * x_bytes, x_bytes);
        _tile_loadd(7, w + 64, LINE);
        _tile_dpbssd(0, 4, 6);
        tile_soon(w + SOON * w_bytes, LINE);
        tile_soon(w + SOON * w_bytes + 64, LINE);
        _tile_loadd(5, x + k + TILE_ROWS * x_bytes, x_bytes);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_stored(0, sum, LINE / 2);
    _tile_stored(1, sum + 16, LINE / 2);
    _tile_stored(2, sum + TILE_ROWS * 32, LINE / 2);
    _tile_stored(3, sum + TILE_ROWS * 32 + 16, LINE / 2);
}

/* Up to 16 rows, all of the panel. */
INLINE void sums_whole(const struct slice_loop *t, const int8_t *x, const uint8_t *w, int32_t *sum)
{
    zero_sums();
    for (uint32_t k = 0; k < t->a->w.group; k += t->step, w += (size_t)t->step / 4 * LINE) {
        _tile_loadd(4, x + k, t->a->x_stride);
        _tile_loadd(5, w, LINE);
        _tile_loadd(6, w + 64, LINE);
        _tile_dpbssd(0, 4, 5);
        _tile_loadd(7, w + 128, LINE);
        _tile_dpbssd(1, 4, 6);
        _tile_loadd(5, w + 192, LINE);
        _tile_dpbssd(2, 4, 7);
        _tile_dpbssd(3, 4, 5);
    }
    _tile_stored(0, sum, LINE);
    _tile_stored(1, sum + 16, LINE);
    _tile_stored(2, sum + 32, LINE);
    _tile_stored(3, sum + 48, LINE);
}

/* n_group multiply-adds onto each of a unit's acc, in ascending order. */
INLINE void add_groups(const struct sums *s, const uint32_t n_group)
{
    const struct unit *u = &s->of;
    for (uint32_t o = 0; o < u->width; o += 16) {
        __m512 scale[INT4_TILES_GROUPS];
        UNROLL
        for (uint32_t g = 0; g < n_group; g++)
            scale[g] = _mm512_load_ps(s->scale[g] + u->from + o);
        for (uint32_t i = o; i < u->n_row * u->width; i += u->width) {
            __m512 v = s->first ? _mm512_setzero_ps() : _mm512_load_ps(u->acc + i);
            UNROLL
            for (uint32_t g = 0; g < n_group; g++)
                v = _mm512_fmadd_ps(scale[g], _mm512_cvtepi32_ps(_mm512_load_si512(s->sum[g] + i)),
                                    v);
            _mm512_store_ps(u->acc + i, v);
        }
    }
}

/* Outputs o … o + n - 1 of a row whose sums are finished. */
static void epilogue(const struct linear_int8_args *a, const float *acc, size_t row, uint32_t o,
                     uint32_t n)
{
    const struct epilogue f = EPILOGUE_OF(a);
    const struct vec of_row = vec_set(a->rows[row].scale);
    for (uint32_t i = 0; i < n; i += 32)
        epilogue_pair(&f, vec_mul(vec_load(acc + i), of_row),
                      vec_mul(vec_load(acc + i + 16), of_row), row, o + i, n - i < 32 ? n - i : 32);
}

/* Add the pending sums to acc; `next` becomes pending. */
static void add_waiting(struct slice_loop *t, const struct sums *next)
{
    const struct sums s = t->wait;
    const struct unit *u = &s.of;
    const uint32_t n_out = t->a->w.n_out;
    t->wait = *next;
    if (s.n_group == 1)
        add_groups(&s, 1);
    else if (s.n_group == 2)
        add_groups(&s, 2);
    else if (s.n_group == 3)
        add_groups(&s, 3);
    else if (s.n_group == 4)
        add_groups(&s, 4);
    for (uint32_t r = 0; s.last && u->o < n_out && r < u->n_row; r++)
        epilogue(t->a, u->acc + (size_t)r * u->width, u->row + r, u->o,
                 n_out - u->o < u->width ? n_out - u->o : u->width);
}

/* A unit's part of the slice. */
static void run_unit(struct slice_loop *t, const struct unit *u)
{
    const uint32_t group = t->a->w.group, n_group = t->n_k / group;
    const bool whole = u->n_row <= TILE_ROWS;
    const struct epilogue y = EPILOGUE_OF(t->a);
    const int8_t *x = t->a->x + u->row * t->a->x_stride + t->k;
    const uint8_t *w = t->s->bytes + 4 * (size_t)u->from;
    set_up(t, whole ? u->n_row : TILE_ROWS, whole ? 0 : u->n_row - TILE_ROWS);
    for (uint32_t g = 0, n; g < n_group; g += n) {
        n = n_group - g < t->most ? n_group - g : t->most;
        struct sums s = {
            .of = *u,
            .sum = t->s->sum[t->odd ^= 1],
            .scale = t->s->scale + g,
            .n_group = n,
            .first = u->first && g == 0,
            .last = u->last && g + n == n_group,
        };
        if (u->last)
            epilogue_prefetch(&y,
                              (struct range){u->row + u->n_row * g / n_group,
                                             u->row + u->n_row * (g + n) / n_group},
                              u->o, u->width);
        for (uint32_t i = 0; i < n; i++, x += group, w += (size_t)group * KERN_PANEL)
            if (whole)
                sums_whole(t, x, w, s.sum[i]);
            else
                sums_half(t, x, w, s.sum[i]);
        add_waiting(t, &s);
    }
}

/* A group: q - zero as bytes, in the lines that tile registers load; scales as f32. */
static void unpack(const struct slice_loop *t, const uint8_t *w, uint8_t *to, float *scale)
{
    const uint32_t group = t->a->w.group;
    const uint8_t *scales = w + int4_scales_at(group), *zeros = scales + INT4_ZEROS_AT;
    __m512i zero[4];
    UNROLL
    for (int j = 0; j < 4; j++) {
        __m128i bytes = _mm_load_si128((const __m128i *)(const void *)(zeros + 16 * j));
        __m256i halves = _mm256_load_si256((const __m256i *)(const void *)(scales + 32 * j));
        zero[j] = _mm512_mullo_epi32(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(0x01010101));
        _mm512_store_ps(scale + 16 * j, _mm512_cvtph_ps(halves));
    }
    stream_prefetch(&t->weights, (const char *)scales, (INT4_ZEROS_AT + KERN_PANEL) / 64);
    for (uint32_t k = 0; k < group; k += 8, w += LINE, to += 2 * (size_t)LINE) {
        stream_prefetch(&t->weights, (const char *)w, LINE / 64);
        UNROLL
        for (int j = 0; j < 4; j++) {
            __m512i both = _mm512_load_si512(w + 64 * j);
            _mm512_store_si512(to + 64 * j, _mm512_sub_epi8(ints_low(both), zero[j]));
            _mm512_store_si512(to + LINE + 64 * j, _mm512_sub_epi8(ints_high(both), zero[j]));
        }
    }
}

/* The block of rows times the panel that starts at w. */
static void run_panel(struct slice_loop *t, const uint8_t *w)
{
    const uint32_t group = t->a->w.group, n_in = t->a->w.n_in;
    const size_t halves = t->rows.begin + rows_by_halves(t->rows.end - t->rows.begin);
    for (t->k = 0; t->k < n_in; t->k += t->n_k) {
        t->n_k = n_in - t->k < t->slice ? n_in - t->k : t->slice;
        add_waiting(t, &(struct sums){0}); /* it has scales where the new ones go */
        for (uint32_t g = 0; g < t->n_k / group; g++, w += int4_group_bytes(group))
            unpack(t, w, t->s->bytes + (size_t)g * group * KERN_PANEL, t->s->scale[g]);
        struct unit u = {.o = t->o, .width = KERN_PANEL / 2};
        u.first = t->k == 0;
        u.last = t->k + t->n_k == n_in;
        uint32_t i_unit = 0;
        for (u.from = 0; u.from < KERN_PANEL; u.from += u.width, u.o += u.width)
            for (u.row = t->rows.begin; u.row < halves; u.row += u.n_row) {
                u.n_row = (uint32_t)(halves - u.row < 32 ? halves - u.row : 32);
                u.acc = t->s->acc[u.first && u.last ? 0 : i_unit++];
                run_unit(t, &u);
            }
        u = (struct unit){
            .acc = t->s->acc[u.first && u.last ? 0 : i_unit],
            .row = halves,
            .n_row = (uint32_t)(t->rows.end - halves),
            .width = KERN_PANEL,
            .o = t->o,
            .first = u.first,
            .last = u.last,
        };
        if (u.n_row)
            run_unit(t, &u);
    }
}

void linear_w4a8_amx(const struct linear_w4a8_args *args, const struct kern_exec *x)
{
    const struct linear_int8_args *a = &args->by;
    const uint32_t group = a->w.group;
    if (a->n_row <= FEW) {
        linear_w4a8_avx512_vnni(args, x);
        return;
    }
    const struct range panels = split((a->w.n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    const size_t panel_bytes = int4_panel_bytes(a->w.n_in, group);
    const size_t fit = BLOCK_BYTES / a->w.n_in / 32 * 32;
    const size_t most = fit < INT4_TILES_ROWS ? fit : INT4_TILES_ROWS;
    const size_t block = rows_even(a->n_row, most ? most : 32);
    const char *w = a->w.data;
    struct slice_loop t = {
        .a = a,
        .s = x->scratch,
        .weights = {w + panels.begin * panel_bytes, w + panels.end * panel_bytes},
        .slice = a->n_row <= FEW_REUSE ? FEW_K : INT4_TILES_K,
        .step = group < 64 ? group : 64,
    };
    t.most = AT_A_TIME / group < INT4_TILES_GROUPS ? AT_A_TIME / group : INT4_TILES_GROUPS;
    stream_open(&t.weights);
    for (size_t row = 0; row < a->n_row; row += block) {
        t.rows = (struct range){row, a->n_row - row < block ? a->n_row : row + block};
        for (size_t p = panels.begin; p < panels.end; p++) {
            t.o = (uint32_t)p * KERN_PANEL;
            run_panel(&t, (const uint8_t *)a->w.data + p * panel_bytes);
        }
    }
    add_waiting(&t, &(struct sums){0});
    if (t.low)
        _tile_release();
}
