/* SPDX-License-Identifier: Apache-2.0 */
/* quant_rows_fp8_block, pack_fp8_block, linear_fp8_block and linear_fp8_block_grouped: every
 * variant against the reference; the reference against f64, against quant_rows_fp8 of 128 columns,
 * and against its layout written out a second time. */
#include <math.h>
#include <string.h>
#include "kernels/ops/e4m3.h"
#include "kernels/variants.h"
#include "product.h"

#define ROUND      64u  /* bytes a row is padded to */
#define BLOCK      128u /* columns that share a scale */
#define INTERLEAVE 16u  /* outputs that do */

static const struct kern_exec alone = {.nth = 1};

static uint32_t n_block_of(uint32_t n)
{
    return (n + BLOCK - 1) / BLOCK;
}

/* ---- rows ---- */
void kcheck_quant_rows_fp8_block(struct kcheck *k)
{
    const uint32_t n_row = kc_range(k, 0, 5), n_col = kc_range(k, 1, kc_chance(k, 50) ? 140 : 1100);
    const size_t x_stride = n_col + kc_range(k, 0, 7);
    const size_t q_stride = (n_col + ROUND - 1) / ROUND * ROUND + ROUND * kc_range(k, 0, 1);
    const uint32_t n_block = n_block_of(n_col);
    const size_t stride = (n_block + 3) / 4 * 4 + 4 * (size_t)kc_range(k, 0, 1);
    float *x = kc_buf(k, n_row * x_stride * sizeof *x);
    for (uint32_t i = 0; i < n_row; i++) {
        k->scale = kc_chance(k, 10) ? 0x1p-102f : kc_chance(k, 10) ? 0x1p+100f : 1;
        kc_fill(k, x + i * x_stride, n_col);
        if (kc_chance(k, 20))
            memset(x + i * x_stride, 0, (n_col < 200 ? n_col : 200) * sizeof *x);
    }
    k->scale = 1;
    kc_shape(k, "n_row %u n_col %u", n_row, n_col);
    struct quant_rows_fp8_block_args want = {
        .q = kc_buf(k, n_row * q_stride),
        .scales = kc_buf(k, n_row * stride * sizeof(float)),
        .x = x,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = x_stride,
        .q_stride = q_stride,
        .scale_stride = stride,
    };
    struct quant_rows_fp8_block_args got = want;
    got.q = kc_copy(k, want.q, n_row * q_stride);
    got.scales = kc_copy(k, want.scales, n_row * stride * sizeof(float));
    kc_run(k, k->ref, &want, 1);
    kc_run(k, k->variant, &got, kc_range(k, 1, 5));
    kc_same_bits(k, "q", (struct kc_bits){got.q, want.q, DT_I8, n_row * q_stride});
    kc_same_bits(k, "scales", (struct kc_bits){got.scales, want.scales, DT_F32, n_row * stride});
    for (uint32_t i = 0; i < n_row; i++)
        for (uint32_t b = 0; b < n_block; b++) { /* a block is a row of its own */
            uint8_t part[BLOCK];
            struct quant_row row;
            const uint32_t n = n_col - b * BLOCK < BLOCK ? n_col - b * BLOCK : BLOCK;
            const struct quant_rows_fp8_args one = {
                part, &row, x + i * x_stride + b * BLOCK, 1, n, n, BLOCK, 0};
            quant_rows_fp8_ref(&one, &alone);
            kc_same_bits(k, "block",
                         (struct kc_bits){want.q + i * q_stride + b * BLOCK, part, DT_I8, n});
            kc_same_bits(k, "scale of a block",
                         (struct kc_bits){&want.scales[i * stride + b], &row.scale, DT_F32, 1});
        }
}

void kbench_quant_rows_fp8_block(struct kc_bench *b)
{
    (void)b; /* a device's: tests/gpu */
}

/* ---- matrices ---- */
static size_t panel_bytes(uint32_t n_in)
{
    return (size_t)((n_in + ROUND - 1) / ROUND * ROUND) * 64 + (size_t)n_block_of(n_in) * 16;
}

static uint8_t byte_at(const struct packed *w, uint32_t o, uint32_t k)
{
    return ((const uint8_t *)w->data)[o / 64 * panel_bytes(w->n_in) + (size_t)(k / 4) * 256 +
                                      (size_t)(o % 64) * 4 + k % 4];
}

static float scale_at(const struct packed *w, uint32_t o, uint32_t k)
{
    const uint32_t n_block = n_block_of(w->n_in);
    float f;
    memcpy(&f,
           (const uint8_t *)w->data + (o / 64 + 1) * panel_bytes(w->n_in) - (size_t)n_block * 16 +
               4 * (size_t)(o % 64 / INTERLEAVE * n_block + k / BLOCK),
           4);
    return f;
}

/* e4m3 below 2^6 of either sign, and scales that differ from group to group, an output each. */
static void make_matrix(struct kcheck *k, struct pack_fp8_block_args *a, uint32_t n_out,
                        uint32_t n_in)
{
    const uint32_t n_block = n_block_of(n_in);
    uint8_t *q = kc_buf(k, (size_t)n_out * n_in);
    float *scales = kc_buf(k, (size_t)n_out * n_block * sizeof *scales);
    for (size_t i = 0; i < (size_t)n_out * n_in; i++)
        q[i] = (uint8_t)(kc_range(k, 0, 0x60) | (kc_chance(k, 50) ? 0x80u : 0));
    for (uint32_t o = 0; o < n_out; o++)
        for (uint32_t b = 0; b < n_block; b++)
            scales[o * n_block + b] = o % INTERLEAVE
                                          ? scales[o / INTERLEAVE * INTERLEAVE * n_block + b]
                                          : (float)kc_range(k, 1, 99) / 4096;
    *a = (struct pack_fp8_block_args){
        .q = q,
        .scales = scales,
        .n_out = n_out,
        .n_in = n_in,
        .n_out_total = n_out,
    };
}

void kcheck_pack_fp8_block(struct kcheck *k)
{
    const uint32_t n_out = kc_range(k, 1, 150), n_in = kc_range(k, 1, 400);
    const uint32_t n_block = n_block_of(n_in);
    const size_t bytes = packed_fp8_block_bytes(n_out, n_in);
    struct pack_fp8_block_args all;
    make_matrix(k, &all, n_out, n_in);
    kc_shape(k, "[%u,%u]", n_out, n_in);
    uint8_t *dst[2] = {kc_buf(k, bytes), kc_buf(k, bytes)};
    for (uint32_t v = 0; v < 2; v++)
        for (uint32_t done = 0, step; done < n_out; done += step) {
            struct pack_fp8_block_args a = all;
            step = kc_chance(k, 40) ? n_out - done : kc_range(k, 1, n_out - done);
            a.dst = dst[v];
            a.q += (size_t)done * n_in;
            a.scales += (size_t)done * n_block;
            a.n_out = step;
            a.row_start = done;
            kc_run(k, v ? k->variant : k->ref, &a, kc_range(k, 1, 5));
        }
    kc_same_bits(k, "packed", (struct kc_bits){dst[0], dst[1], DT_I8, bytes});
    const struct packed w = {.data = dst[0], .n_out = n_out, .n_in = n_in};
    for (uint32_t o = 0; o < (n_out + 63) / 64 * 64; o++)
        for (uint32_t i = 0; i < (n_in + ROUND - 1) / ROUND * ROUND; i++) {
            const bool inside = o < n_out && i < n_in;
            kc_near(k, "byte", byte_at(&w, o, i), inside ? all.q[(size_t)o * n_in + i] : 0, 0);
            if (inside)
                kc_near(k, "scale", (double)scale_at(&w, o, i),
                        (double)all.scales[o * n_block + i / BLOCK], 0);
        }
}

void kbench_pack_fp8_block(struct kc_bench *b)
{
    (void)b; /* a device's: tests/gpu */
}

/* ---- products ---- */
/* n_row rows of x as quant_rows_fp8_block makes them, whose blocks are of different sizes. */
static void make_rows(struct kcheck *k, struct linear_fp8_block_args *a, uint32_t n_row)
{
    const uint32_t n_in = a->w.n_in;
    float *x = kc_buf(k, ((size_t)n_row * n_in + 1) * sizeof *x);
    kc_fill(k, x, (size_t)n_row * n_in);
    for (size_t i = 0; i < (size_t)n_row * n_in; i++)
        x[i] *= (float)(1 + i % n_in / BLOCK % 5);
    a->x_stride = (n_in + ROUND - 1) / ROUND * ROUND;
    a->scale_stride = (n_block_of(n_in) + 3) / 4 * 4;
    const struct quant_rows_fp8_block_args q = {
        .q = kc_buf(k, (n_row + 1) * a->x_stride),
        .scales = kc_buf(k, (n_row + 1) * a->scale_stride * sizeof(float)),
        .x = x,
        .n_row = n_row,
        .n_col = n_in,
        .x_stride = n_in,
        .q_stride = a->x_stride,
        .scale_stride = a->scale_stride,
    };
    quant_rows_fp8_block_ref(&q, &alone);
    a->x = q.q;
    a->x_scales = q.scales;
}

static void make_case(struct kcheck *k, struct linear_fp8_block_args *a)
{
    static const uint32_t rows[] = {0, 1, 1, 2, 3, 5, 8, 17};
    const uint32_t n_out = kc_product_outputs(k, 150);
    const uint32_t n_in = kc_range(k, 1, kc_chance(k, 70) ? 300 : 900);
    struct pack_fp8_block_args p;
    make_matrix(k, &p, n_out, n_in);
    p.dst = kc_buf(k, packed_fp8_block_bytes(n_out, n_in));
    pack_fp8_block_ref(&p, &alone);
    *a = (struct linear_fp8_block_args){
        .w = {.data = p.dst, .n_out = n_out, .n_in = n_in, .dtype = DT_F8_E4M3, .blocks = 1},
        .n_row = kc_pick(k, rows, 8),
        .y_stride = n_out + kc_range(k, 0, 7),
        .accumulate = kc_chance(k, 40),
    };
    make_rows(k, a, a->n_row);
    a->bias = kc_product_bias(k, n_out);
    kc_shape(k, "n_row %u [%u,%u]%s%s", a->n_row, n_out, n_in, a->bias ? " bias" : "",
             a->accumulate ? " accumulate" : "");
}

static void near_f64(struct kcheck *k, const struct kc_product *p, const float *y,
                     const float *before)
{
    const struct linear_fp8_block_args *a = p->args;
    for (uint32_t i = 0; i < a->n_row; i += 1 + a->n_row / 3)
        for (uint32_t o = 0; o < a->w.n_out; o++) {
            double sum = 0, size = 0;
            for (uint32_t j = 0; j < a->w.n_in; j++) {
                const double term = (double)e4m3_to_f32(a->x[i * a->x_stride + j]) *
                                    (double)a->x_scales[i * a->scale_stride + j / BLOCK] *
                                    (double)e4m3_to_f32(byte_at(&a->w, o, j)) *
                                    (double)scale_at(&a->w, o, j);
                sum += term;
                size += fabs(term);
            }
            const double bias = a->bias ? (double)a->bias[o] : 0;
            const double old = a->accumulate ? (double)before[i * a->y_stride + o] : 0;
            kc_near(k, "y", (double)y[i * a->y_stride + o], sum + bias + old,
                    ((BLOCK + a->w.n_in / BLOCK + 6) * size + 2 * fabs(bias) + 2 * fabs(old)) *
                            0x1p-24 +
                        0x1p-120);
        }
}

static const void *row_alone(const struct kc_product *p, uint32_t i, float *y)
{
    static struct linear_fp8_block_args one;
    one = *(const struct linear_fp8_block_args *)p->args;
    one.n_row = 1;
    one.x += i * one.x_stride;
    one.x_scales += i * one.scale_stride;
    one.y = y;
    return &one;
}

void kcheck_linear_fp8_block(struct kcheck *k)
{
    struct linear_fp8_block_args a;
    k->specials = false;
    make_case(k, &a);
    kc_product_check(k, &(struct kc_product){
                            .args = &a,
                            .y = &a.y,
                            .y_dtype = &a.y_dtype,
                            .accumulate = &a.accumulate,
                            .gated = &a.w.gated,
                            .n_row = a.n_row,
                            .n_out = a.w.n_out,
                            .y_stride = a.y_stride,
                            .definition = k->ref,
                            .row = row_alone,
                            .near = near_f64,
                        });
}

void kbench_linear_fp8_block(struct kc_bench *b)
{
    (void)b; /* a device's: tests/gpu */
}

/* Two groups and one without places; rows picked in descending order. */
void kcheck_linear_fp8_block_grouped(struct kcheck *k)
{
    enum { N = 7 };
    static const uint32_t starts[] = {0, 3, 3, N}, rows[N] = {4, 3, 3, 2, 1, 0, 0};
    const uint32_t n_out = kc_range(k, 1, 70), n_in = kc_range(k, 1, 200);
    const size_t bytes = packed_fp8_block_bytes(n_out, n_in);
    char *w = kc_buf(k, 3 * bytes);
    k->specials = false;
    for (uint32_t e = 0; e < 3; e++) {
        struct pack_fp8_block_args p;
        make_matrix(k, &p, n_out, n_in);
        p.dst = w + e * bytes;
        pack_fp8_block_ref(&p, &alone);
    }
    struct linear_fp8_block_grouped_args a = {
        .by =
            {
                .y = kc_buf(k, (size_t)N * n_out * sizeof(float)),
                .w = {.data = w, .n_out = n_out, .n_in = n_in, .dtype = DT_F8_E4M3, .blocks = 1},
                .n_row = N,
                .y_stride = n_out,
            },
        .of = {bytes, 3, starts, kc_chance(k, 60) ? rows : NULL},
    };
    make_rows(k, &a.by, N);
    kc_shape(k, "[%u,%u]%s", n_out, n_in, a.of.rows ? " picked" : "");
    float *want = kc_buf(k, n_out * sizeof *want);
    kc_run(k, k->variant, &a, kc_range(k, 1, 3));
    for (uint32_t i = 0; i < N; i++) {
        struct linear_fp8_block_args one = a.by;
        const uint32_t row = a.of.rows ? rows[i] : i;
        one.w.data = w + (i < 3 ? 0 : 2) * bytes;
        one.x += row * one.x_stride;
        one.x_scales += row * one.scale_stride;
        one.y = want;
        one.n_row = 1;
        linear_fp8_block_ref(&one, &alone);
        kc_same_bits(k, "place",
                     (struct kc_bits){(float *)a.by.y + (size_t)i * n_out, want, DT_F32, n_out});
    }
}

void kbench_linear_fp8_block_grouped(struct kc_bench *b)
{
    (void)b; /* a device's: tests/gpu */
}
