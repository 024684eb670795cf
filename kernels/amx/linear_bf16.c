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

/* n <= BLOCK inputs of one row onto the sums of a panel. */
INLINE void few_block(__m512 sum[4], const uint16_t *x, const char *w, uint32_t n)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    __m512 even[4], odd[4];
    UNROLL
    for (int j = 0; j < 4; j++)
        even[j] = odd[j] = _mm512_setzero_ps();
    for (uint32_t k = 0; k < n; k += 2) {
        const __m512i *line = (const __m512i *)(const void *)(w + (size_t)k / 2 * LINE_BYTES);
        const __m512 x_even = _mm512_set1_ps(bf16_to_f32(x[k]));
        const __m512 x_odd = _mm512_set1_ps(k + 1 < n ? bf16_to_f32(x[k + 1]) : 0);
        UNROLL
        for (int j = 0; j < 4; j++) {
            __m512i v = _mm512_load_si512(line + j);
            _mm_prefetch((const char *)(line + j) + FEW_AHEAD_BYTES, _MM_HINT_T0);
            even[j] =
                _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(v, 16)), x_even, even[j]);
            odd[j] =
                _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(v, upper)), x_odd, odd[j]);
        }
    }
    UNROLL
    for (int j = 0; j < 4; j++)
        sum[j] = _mm512_add_ps(_mm512_add_ps(even[j], odd[j]), sum[j]);
}

/* A real call, so that none of its arithmetic can move past the switch of MXCSR. */
static __attribute__((noinline)) void few_panel(float *out, const uint16_t *x, const char *w,
                                                uint32_t n_in)
{
    __m512 sum[4];
    UNROLL
    for (int j = 0; j < 4; j++)
        sum[j] = _mm512_setzero_ps();
    for (uint32_t k = 0; k < n_in; k += BLOCK)
        few_block(sum, x + k, w + (size_t)k / 2 * LINE_BYTES, n_in - k < BLOCK ? n_in - k : BLOCK);
    UNROLL
    for (int j = 0; j < 4; j++)
        _mm512_store_ps(out + 16 * j, sum[j]);
}

static void linear_few(const struct linear_args *a, const struct kern_exec *x)
{
    const size_t panel_bytes = ((size_t)a->w.n_in + 1) / 2 * LINE_BYTES;
    const struct range panels = split((a->w.n_out + KERN_PANEL - 1) / KERN_PANEL, x);
    float *sum = x->scratch;
    for (size_t p = panels.begin; p < panels.end; p++)
        for (size_t row = 0; row < a->n_row; row++) {
            const uint32_t o = (uint32_t)p * KERN_PANEL, left = a->w.n_out - o;
            const unsigned before = _mm_getcsr();
            _mm_setcsr(before | FLUSH_SUBNORMAL);
            few_panel(sum, (const uint16_t *)a->x + row * a->x_stride,
                      (const char *)a->w.data + p * panel_bytes, a->w.n_in);
            _mm_setcsr(before);
            finish(a,
                   &(struct tiles_done){
                       .sum = sum, .row = row, .o = o, .n = left < KERN_PANEL ? left : KERN_PANEL},
                   1);
        }
}

void linear_amx(const struct linear_args *a, const struct kern_exec *x)
{
    if (a->x_dtype != DT_BF16) {
        linear_avx512(a, x);
        return;
    }
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
