/* SPDX-License-Identifier: Apache-2.0 */
/* e4m3: rows as the reference quantizes them, bit for bit; products with what pack_fp8 writes,
 * against the reference; and each row's bits among few and many others. */
#include "check.h"
#include <math.h>
#include <string.h>
#include "kernels/cuda/layout.h"
#include "kernels/variants.h"

CUDA_CALL(quant_rows_fp8)
CUDA_CALL(pack_fp8)
CUDA_CALL(linear_fp8)
REF_CALL(quant_rows_fp8)
REF_CALL(linear_fp8)

/* Tensor cores keep less than f32 of sums of e4m3: Hopper's about 14 bits. */
#ifdef QUIRE_CUDA_CARD
#define TOLERANCE             (1u << 13)
#define cuda_with_e4m3(there) ((void)(there))
#else
#define TOLERANCE 64u
#endif

static const struct kern_exec alone = {.nth = 1};

/* In both layouts; some matrices come as e4m3 with scales. */
static void pack_both(struct kcheck *k, struct packed *got, struct packed *want)
{
    const size_t n = (size_t)got->n_out * got->n_in;
    void *src = kc_buf(k, n * 4), *there = kc_buf(k, cuda_matrix_bytes(got));
    void *here = kc_buf(k, packed_int8_bytes(got->n_out, got->n_in));
    uint8_t *q = kc_buf(k, n);
    float *scales = kc_buf(k, got->n_out * sizeof *scales);
    const enum dtype from = kc_chance(k, 50) ? DT_F32 : DT_BF16;
    const bool is_there = kc_chance(k, 40);
    kc_fill_dtype(k, src, from, n);
    for (size_t i = 0; i < n; i++)
        q[i] = (uint8_t)(kc_range(k, 0, 0x60) | (kc_chance(k, 50) ? 0x80u : 0));
    for (uint32_t o = 0; o < got->n_out; o++)
        scales[o] = (float)kc_range(k, 1, 9) / 256;
    struct pack_fp8_args p = {
        .dst = there,
        .src = src,
        .src_dtype = from,
        .n_out = got->n_out,
        .n_in = got->n_in,
        .n_out_total = got->n_out,
        .q = is_there ? q : NULL,
        .scales = scales,
    };
    call_pack_fp8(&p, &alone);
    p.dst = here;
    pack_fp8_ref(&p, &alone);
    got->data = there;
    want->data = here;
}

static void make_rows(struct kcheck *k, struct linear_int8_args *a)
{
    float *x = kc_buf(k, (size_t)a->n_row * a->w.n_in * sizeof *x);
    struct quant_rows_fp8_args q = {
        .q = kc_buf(k, a->n_row * a->x_stride),
        .rows = kc_buf(k, a->n_row * sizeof *q.rows),
        .x = x,
        .n_row = a->n_row,
        .n_col = a->w.n_in,
        .x_stride = a->w.n_in,
        .q_stride = a->x_stride,
    };
    kc_fill(k, x, (size_t)a->n_row * a->w.n_in);
    quant_rows_fp8_ref(&q, &alone);
    a->x = (const int8_t *)q.q;
    a->rows = q.rows;
}

static void *old_y(struct kcheck *k, const struct linear_int8_args *a)
{
    float *y = kc_buf(k, a->n_row * a->y_stride * sizeof *y);
    for (size_t i = 0; i < a->n_row * a->y_stride; i++)
        y[i] = (float)(i % 13) / 8 - 0.7f;
    return y;
}

static void make_case(struct kcheck *k, struct linear_int8_args *a)
{
    static const uint32_t rows[] = {1, 2, 5, 8, 9, 16, 17, 40, 130};
    const bool gated = kc_chance(k, 30);
    const uint32_t unit = kc_chance(k, 80) ? 16 : 1;
    *a = (struct linear_int8_args){.n_row = kc_pick(k, rows, 9)};
    a->w.dtype = DT_F8_E4M3;
    a->w.gated = gated;
    a->w.n_out = gated ? 32 * kc_range(k, 1, 4) : kc_range(k, 1, 150);
    a->w.n_in = unit * kc_range(k, 1, (a->n_row < 20 && kc_chance(k, 25) ? 4700 : 400) / unit);
    a->x_stride = (a->w.n_in + 63) / 64 * 64;
    a->y_stride = (gated ? a->w.n_out / 2 : a->w.n_out) + kc_range(k, 0, 7);
    a->y_dtype = kc_chance(k, 70) ? DT_F32 : DT_BF16;
    a->accumulate = !gated && a->y_dtype == DT_F32 && kc_chance(k, 40);
    if (kc_chance(k, 60)) {
        float *bias = kc_buf(k, a->w.n_out * sizeof *bias);
        kc_fill(k, bias, a->w.n_out);
        a->bias = bias;
    }
    kc_shape(k, "n_row %u n_out %u n_in %u%s%s", a->n_row, a->w.n_out, a->w.n_in,
             gated ? " gated" : "", a->accumulate ? " onto y" : "");
}

static void check_linear_fp8(struct kcheck *k)
{
    struct linear_fp8_args got, want;
    k->specials = false;
    cuda_with_e4m3(kc_chance(k, 50));
    make_case(k, &got.by);
    make_rows(k, &got.by);
    want = got;
    pack_both(k, &got.by.w, &want.by.w);
    got.by.y = old_y(k, &got.by);
    want.by.y = old_y(k, &got.by);
    kc_run(k, k->variant, &got, 1);
    kc_run(k, k->ref, &want, 1);
    const uint32_t n_col = got.by.w.gated ? got.by.w.n_out / 2 : got.by.w.n_out;
    k->magnitude = 4 * sqrt((double)got.by.w.n_in); /* sums may cancel; gated: a product of two */
    kc_compare(k, "y",
               &(struct kc_array){got.by.y, got.by.y_dtype, got.by.n_row, n_col, got.by.y_stride},
               &(struct kc_array){want.by.y, got.by.y_dtype, got.by.n_row, n_col, got.by.y_stride});
    const size_t element = got.by.y_dtype == DT_F32 ? 4 : 2;
    for (uint32_t n = 1; n < got.by.n_row; n = 2 * n + 1) { /* by other kernels */
        struct linear_fp8_args fewer = got;
        fewer.by.n_row = n;
        fewer.by.y = old_y(k, &got.by);
        kc_run(k, k->variant, &fewer, 1);
        for (uint32_t i = 0; i < n; i++)
            kc_same_bits(k, "fewer rows",
                         (struct kc_bits){(char *)fewer.by.y + i * got.by.y_stride * element,
                                          (char *)got.by.y + i * got.by.y_stride * element,
                                          got.by.y_dtype, n_col});
    }
}

const struct cuda_check cuda_checks_fp8[] = {
    {"quant_rows_fp8", ref_quant_rows_fp8, call_quant_rows_fp8, 0, kcheck_quant_rows_fp8, 8},
    {"linear_fp8", ref_linear_fp8, call_linear_fp8, TOLERANCE, check_linear_fp8, 8},
    {0},
};
