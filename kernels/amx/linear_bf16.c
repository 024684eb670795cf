/* SPDX-License-Identifier: Apache-2.0 */
/* linear with bf16 x and bf16 W by TDPBF16PS, 16 rows x 16 outputs x 32 inputs an instruction;
 * everything else is linear_avx512. Formula and order: ref/linear_tiles.c. The instruction takes
 * subnormals for zero and ignores MXCSR.
 *
 * One or two rows wait for memory, which reads one line after the other faster than it reads tiles:
 * they go through f32 multiply-adds in the order of the tile instruction, so with the same bits. */
#define TILES_DOT _tile_dpbf16ps
#include "kernels/amx/tiles_walk.h"
#include "kernels/variants.h"
#include "kernels/wide/finish.h"

static void finish(const void *args, const struct tiles_done *d, uint32_t n_row)
{
    const struct finish f = FINISH_OF((const struct linear_args *)args);
    for (uint32_t r = 0; r < n_row; r++)
        for (uint32_t i = 0; i < d->n; i += 32) {
            const float *sum = d->sum + (size_t)r * d->stride + i;
            finish_pair(&f, vec_load(sum), vec_load(sum + 16), d->row + r, d->o + i,
                        d->n - i < 32 ? d->n - i : 32);
        }
}

#define FEW             2u      /* rows */
#define FEW_AHEAD_BYTES 2048    /* kernels/README.md, "prefetch" */
#define FLUSH_SUBNORMAL 0x8040u /* MXCSR: FTZ and DAZ */
#define BLOCK           32u     /* inputs that a tile instruction sums before it adds them on */

struct few {           /* of one panel */
    const uint16_t *x; /* first row */
    size_t x_stride;
    const char *w;
    uint32_t n_in;
    float *sum; /* [rows][KERN_PANEL] */
};

/* Inputs k … of `rows` rows, n <= BLOCK of them, onto the sums of a panel. */
INLINE void few_block(__m512 sum[FEW][4], const struct few *t, uint32_t k, uint32_t n,
                      const int rows)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    const char *w = t->w + (size_t)k / 2 * LINE_BYTES;
    __m512 even[FEW][4], odd[FEW][4];
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < 4; j++)
        even[r][j] = odd[r][j] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 2) {
        const __m512i *line = (const __m512i *)(const void *)(w + (size_t)i / 2 * LINE_BYTES);
        UNROLL
        for (int j = 0; j < 4; j++) {
            const __m512i v = _mm512_load_si512(line + j);
            const __m512 w_even = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
            const __m512 w_odd = _mm512_castsi512_ps(_mm512_and_si512(v, upper));
            _mm_prefetch((const char *)(line + j) + FEW_AHEAD_BYTES, _MM_HINT_T0);
            UNROLL
            for (int r = 0; r < rows; r++) {
                const uint16_t *x = t->x + r * t->x_stride + k + i;
                const float x_odd = i + 1 < n ? bf16_to_f32(x[1]) : 0;
                even[r][j] = _mm512_fmadd_ps(w_even, _mm512_set1_ps(bf16_to_f32(*x)), even[r][j]);
                odd[r][j] = _mm512_fmadd_ps(w_odd, _mm512_set1_ps(x_odd), odd[r][j]);
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < 4; j++)
        sum[r][j] = _mm512_add_ps(_mm512_add_ps(even[r][j], odd[r][j]), sum[r][j]);
}

INLINE void few_rows(const struct few *t, const int rows)
{
    __m512 sum[FEW][4];
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < 4; j++)
        sum[r][j] = _mm512_setzero_ps();
    for (uint32_t k = 0; k < t->n_in; k += BLOCK)
        few_block(sum, t, k, t->n_in - k < BLOCK ? t->n_in - k : BLOCK, rows);
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
    for (int j = 0; j < 4; j++)
        _mm512_store_ps(t->sum + r * KERN_PANEL + 16 * j, sum[r][j]);
}

/* A real call, so that none of its arithmetic can move past the switch of MXCSR. */
static __attribute__((noinline)) void few_panel(const struct few *t, uint32_t n_row)
{
    if (n_row == 1)
        few_rows(t, 1);
    else
        few_rows(t, 2);
}

static void linear_few(const struct linear_args *a, const struct kern_exec *x)
{
    const size_t panel_bytes = ((size_t)a->w.n_in + 1) / 2 * LINE_BYTES;
    const struct range panels = split((a->w.n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    struct few t = {.x = a->x, .x_stride = a->x_stride, .n_in = a->w.n_in, .sum = x->scratch};
    for (size_t p = panels.begin; p < panels.end; p++) {
        const uint32_t o = (uint32_t)p * KERN_PANEL, left = a->w.n_out - o;
        const struct tiles_done d = {
            .sum = t.sum, .stride = KERN_PANEL, .o = o, .n = left < KERN_PANEL ? left : KERN_PANEL};
        const unsigned before = _mm_getcsr();
        t.w = (const char *)a->w.data + p * panel_bytes;
        _mm_setcsr(before | FLUSH_SUBNORMAL);
        few_panel(&t, a->n_row);
        _mm_setcsr(before);
        finish(a, &d, a->n_row);
    }
}

void linear_amx(const struct linear_args *a, const struct kern_exec *x)
{
    if (a->x_dtype != DT_BF16) {
        linear_avx512(a, x);
        return;
    }
    if (a->n_row == 0)
        return;
    if (a->n_row <= FEW) {
        linear_few(a, x);
        return;
    }
    const struct tiles_form f = {.x = a->x,
                                 .w = a->w.data,
                                 .x_bytes = a->x_stride * 2,
                                 .panel_bytes = ((size_t)a->w.n_in + 1) / 2 * LINE_BYTES,
                                 .k_bytes = (size_t)a->w.n_in * 2,
                                 .n_row = a->n_row,
                                 .n_out = a->w.n_out,
                                 .args = a,
                                 .y = FINISH_OF(a)};
    tiles_walk(&f, x, finish);
}
