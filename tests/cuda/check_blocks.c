/* SPDX-License-Identifier: Apache-2.0 */
/* e4m3 with scales of blocks: rows as the reference quantizes them, bit for bit; products with what
 * pack_fp8_block writes, against the reference; each row's bits among few and many others, and
 * among those of other groups. */
#include "check.h"
#include <math.h>
#include <string.h>
#include "kernels/cuda/layout.h"
#include "kernels/variants.h"

CUDA_CALL(quant_rows_fp8_block)
CUDA_CALL(pack_fp8_block)
CUDA_CALL(linear_fp8_block)
CUDA_CALL(linear_fp8_block_grouped)
REF_CALL(quant_rows_fp8_block)
REF_CALL(linear_fp8_block)
REF_CALL(linear_fp8_block_grouped)

/* Tensor cores keep less than f32 of sums of e4m3: Hopper's about 14 bits. */
#ifdef QUIRE_CUDA_CARD
#define TOLERANCE             (1u << 13)
#define cuda_with_e4m3(there) ((void)(there))
#else
#define TOLERANCE 64u
#endif

static const struct kern_exec alone = {.nth = 1};

static uint32_t n_block_of(uint32_t n_in)
{
    return (n_in + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK;
}

/* In both layouts, in pieces that begin and end within turns; here NULL: in the first only. */
static void pack_both(struct kcheck *k, const struct packed *w, void *there, void *here)
{
    const uint32_t n_block = n_block_of(w->n_in);
    uint8_t *q = kc_buf(k, (size_t)w->n_out * w->n_in);
    float *scales = kc_buf(k, (size_t)w->n_out * n_block * sizeof *scales);
    for (size_t i = 0; i < (size_t)w->n_out * w->n_in; i++)
        q[i] = (uint8_t)(kc_range(k, 0, 0x60) | (kc_chance(k, 50) ? 0x80u : 0));
    for (uint32_t o = 0; o < w->n_out; o++)
        for (uint32_t b = 0; b < n_block; b++)
            scales[o * n_block + b] =
                o % KERN_GATE_INTERLEAVE
                    ? scales[o / KERN_GATE_INTERLEAVE * KERN_GATE_INTERLEAVE * n_block + b]
                    : (float)kc_range(k, 1, 99) / 4096;
    for (uint32_t done = 0, n; done < w->n_out; done += n) {
        n = kc_chance(k, 50) ? w->n_out - done : kc_range(k, 1, w->n_out - done);
        struct pack_fp8_block_args p = {
            .dst = there,
            .q = q + (size_t)done * w->n_in,
            .scales = scales + (size_t)done * n_block,
            .n_out = n,
            .n_in = w->n_in,
            .row_start = done,
            .n_out_total = w->n_out,
        };
        call_pack_fp8_block(&p, &alone);
        p.dst = here;
        if (here)
            pack_fp8_block_ref(&p, &alone);
    }
}

static void make_rows(struct kcheck *k, struct linear_fp8_block_args *a, uint32_t n_row)
{
    float *x = kc_buf(k, ((size_t)n_row * a->w.n_in + 1) * sizeof *x);
    kc_fill(k, x, (size_t)n_row * a->w.n_in);
    for (size_t i = 0; i < (size_t)n_row * a->w.n_in; i++)
        x[i] *= (float)(1 + i % a->w.n_in / KERN_FP8_BLOCK % 5);
    a->x_stride = (a->w.n_in + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
    a->scale_stride = blocks_stride(a->w.n_in);
    const struct quant_rows_fp8_block_args q = {
        .q = kc_buf(k, (n_row + 1) * a->x_stride),
        .scales = kc_buf(k, (n_row + 1) * a->scale_stride * sizeof(float)),
        .x = x,
        .n_row = n_row,
        .n_col = a->w.n_in,
        .x_stride = a->w.n_in,
        .q_stride = a->x_stride,
        .scale_stride = a->scale_stride,
    };
    quant_rows_fp8_block_ref(&q, &alone);
    a->x = q.q;
    a->x_scales = q.scales;
}

static void *old_y(struct kcheck *k, const struct linear_fp8_block_args *a)
{
    float *y = kc_buf(k, a->n_row * a->y_stride * sizeof *y);
    for (size_t i = 0; i < a->n_row * a->y_stride; i++)
        y[i] = (float)(i % 13) / 8 - 0.7f;
    return y;
}

static void make_product(struct kcheck *k, struct linear_fp8_block_args *a, uint32_t n_in)
{
    const bool gated = kc_chance(k, 30);
    *a = (struct linear_fp8_block_args){
        .w = {.n_in = n_in, .dtype = DT_F8_E4M3, .gated = gated, .blocks = 1},
    };
    a->w.n_out = gated ? 32 * kc_range(k, 1, 4) : kc_range(k, 1, 150);
    a->y_stride = (gated ? a->w.n_out / 2 : a->w.n_out) + kc_range(k, 0, 7);
    a->y_dtype = kc_chance(k, 70) ? DT_F32 : DT_BF16;
}

static void make_case(struct kcheck *k, struct linear_fp8_block_args *a)
{
    static const uint32_t rows[] = {1, 2, 5, 8, 9, 16, 17, 40, 130};
    const uint32_t n_row = kc_pick(k, rows, 9), unit = kc_chance(k, 85) ? 16 : 1;
    const uint32_t most = n_row < 20 && kc_chance(k, 35) ? 2400 : 600; /* 2048: a round of few */
    make_product(k, a, unit * kc_range(k, 1, most / unit));
    a->n_row = n_row;
    a->accumulate = !a->w.gated && a->y_dtype == DT_F32 && kc_chance(k, 40);
    if (kc_chance(k, 60)) {
        float *bias = kc_buf(k, a->w.n_out * sizeof *bias);
        kc_fill(k, bias, a->w.n_out);
        a->bias = bias;
    }
    make_rows(k, a, n_row);
    kc_shape(k, "n_row %u n_out %u n_in %u%s%s", n_row, a->w.n_out, a->w.n_in,
             a->w.gated ? " gated" : "", a->accumulate ? " onto y" : "");
}

static void check_linear_fp8_block(struct kcheck *k)
{
    struct linear_fp8_block_args got, want;
    k->specials = false;
    cuda_with_e4m3(kc_chance(k, 50));
    make_case(k, &got);
    want = got;
    void *there = kc_buf(k, cuda_matrix_bytes(&got.w));
    void *here = kc_buf(k, packed_fp8_block_bytes(got.w.n_out, got.w.n_in));
    pack_both(k, &got.w, there, here);
    got.w.data = there;
    want.w.data = here;
    got.y = old_y(k, &got);
    want.y = old_y(k, &got);
    kc_run(k, k->variant, &got, 1);
    kc_run(k, k->ref, &want, 1);
    const uint32_t n_col = got.w.gated ? got.w.n_out / 2 : got.w.n_out;
    k->magnitude = 4 * sqrt((double)got.w.n_in); /* sums may cancel; gated: a product of two */
    kc_compare(k, "y", &(struct kc_array){got.y, got.y_dtype, got.n_row, n_col, got.y_stride},
               &(struct kc_array){want.y, got.y_dtype, got.n_row, n_col, got.y_stride});
    const size_t element = got.y_dtype == DT_F32 ? 4 : 2;
    for (uint32_t n = 1; n < got.n_row; n = 2 * n + 1) { /* by other kernels */
        struct linear_fp8_block_args fewer = got;
        fewer.n_row = n;
        fewer.y = old_y(k, &got);
        kc_run(k, k->variant, &fewer, 1);
        for (uint32_t i = 0; i < n; i++)
            kc_same_bits(k, "fewer rows",
                         (struct kc_bits){(char *)fewer.y + i * got.y_stride * element,
                                          (char *)got.y + i * got.y_stride * element, got.y_dtype,
                                          n_col});
    }
}

/* So many places that each way of the launcher comes up: 8, 16, and more of a group on average. */
static void make_groups(struct kcheck *k, struct linear_fp8_block_grouped_args *a)
{
    static const uint32_t mosts[] = {2, 9, 20, 60};
    const uint32_t most = kc_pick(k, mosts, 4), n_group = kc_range(k, 1, most > 20 ? 3 : 20);
    uint32_t *starts = kc_buf(k, (n_group + 1) * sizeof *starts);
    starts[0] = 0;
    for (uint32_t e = 0; e < n_group; e++)
        starts[e + 1] = starts[e] + (kc_chance(k, 30) ? 0 : kc_range(k, 1, most));
    const uint32_t n_place = starts[n_group], n_x = kc_range(k, 1, 9);
    uint32_t *rows = kc_buf(k, (n_place + 1) * sizeof *rows);
    for (uint32_t p = 0; p < n_place; p++)
        rows[p] = kc_range(k, 0, n_x - 1);
    make_product(k, &a->by, (kc_chance(k, 80) ? 16 : 1) * kc_range(k, 1, most > 20 ? 12 : 40));
    a->by.n_row = n_place;
    a->of = (struct groups){
        .w_stride = align16(cuda_matrix_bytes(&a->by.w)),
        .n_group = n_group,
        .starts = starts,
        .rows = kc_chance(k, 60) ? rows : NULL,
    };
    make_rows(k, &a->by, a->of.rows ? n_x : n_place);
    char *w = kc_buf(k, n_group * a->of.w_stride);
    for (uint32_t e = 0; e < n_group; e++)
        pack_both(k, &a->by.w, w + e * a->of.w_stride, NULL);
    a->by.w.data = w;
    a->by.y = kc_buf(k, (n_place + 1) * a->by.y_stride * sizeof(float));
    kc_shape(k, "%u groups, %u places of %u rows, n_out %u n_in %u%s%s", n_group, n_place, n_x,
             a->by.w.n_out, a->by.w.n_in, a->by.w.gated ? " gated" : "",
             a->of.rows ? " picked" : "");
}

static void check_linear_fp8_block_grouped(struct kcheck *k)
{
    enum { SOME = 12 }; /* places that are compared: each is a launch of its own */
    struct linear_fp8_block_grouped_args a;
    k->specials = false;
    cuda_with_e4m3(kc_chance(k, 50));
    make_groups(k, &a);
    const uint32_t n_col = a.by.w.gated ? a.by.w.n_out / 2 : a.by.w.n_out;
    const size_t element = dtype_bits(a.by.y_dtype) / 8;
    void *want = kc_buf(k, n_col * 4);
    kc_run(k, k->variant, &a, 1);
    for (uint32_t p = 0, e = 0; p < a.by.n_row; p += 1 + a.by.n_row / SOME) {
        struct linear_fp8_block_args one = a.by;
        const uint32_t row = a.of.rows ? a.of.rows[p] : p;
        while (a.of.starts[e + 1] <= p)
            e++;
        one.w.data = (const char *)one.w.data + e * a.of.w_stride;
        one.x += row * one.x_stride;
        one.x_scales += row * one.scale_stride;
        one.y = want;
        one.n_row = 1;
        cuda_run(launch_linear_fp8_block, &one);
        kc_same_bits(k, "place",
                     (struct kc_bits){(const char *)a.by.y + p * a.by.y_stride * element, want,
                                      a.by.y_dtype, n_col});
    }
}

const struct cuda_check cuda_checks_blocks[] = {
    {"quant_rows_fp8_block", ref_quant_rows_fp8_block, call_quant_rows_fp8_block, 0,
     kcheck_quant_rows_fp8_block, 8},
    {"linear_fp8_block", ref_linear_fp8_block, call_linear_fp8_block, TOLERANCE,
     check_linear_fp8_block, 8},
    {"linear_fp8_block_grouped", ref_linear_fp8_block_grouped, call_linear_fp8_block_grouped, 0,
     check_linear_fp8_block_grouped, 4},
    {0},
};
