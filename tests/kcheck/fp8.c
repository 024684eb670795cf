/* SPDX-License-Identifier: Apache-2.0 */
/* quant_rows_fp8, pack_fp8 and linear_fp8: every variant against the reference, the reference
 * against f64 and against the list of e4m3's values made here a second time. */
#include <math.h>
#include <string.h>
#include "kernels/variants.h"
#include "product.h"

#define ROUND 64u /* bytes a row is padded to */

static const struct kern_exec alone = {.nth = 1};

/* By the definition: 2^-9 steps below 2^-6, then eight steps a power of two. */
static double value_of(uint8_t b)
{
    const uint32_t size = b & 0x7f;
    const double v = size < 8 ? size * 0x1p-9 : (1 + size % 8 / 8.0) * exp2((double)(size / 8) - 7);
    return b & 0x80 ? -v : v;
}

/* Half the distance to the next value, of those of a vector with this scale. */
static double half_step(double x, double scale)
{
    const double size = scale > 0 ? fabs(x) / scale : 0;
    return scale * (size < 0x1p-6 ? 0x1p-10 : exp2(floor(log2(size)) - 4)) * 1.00001;
}

/* ---- rows ---- */
/* A scale that is given stands for rows that are finite; others are zeros times NaN. */
static void check_given(struct kcheck *k, const struct quant_rows_fp8_args *a, uint32_t i)
{
    bool finite = true;
    for (uint32_t c = 0; c < a->n_col; c++)
        finite = finite && isfinite(a->x[i * a->x_stride + c]);
    if (finite) {
        kc_same_bits(k, "given", (struct kc_bits){&a->rows[i].scale, &a->scale, DT_F32, 1});
        return;
    }
    kc_near(k, "not finite", isnan(a->rows[i].scale), 1, 0);
    for (uint32_t c = 0; c < a->n_col; c++)
        kc_near(k, "q of a row that is not finite", value_of(a->q[i * a->q_stride + c]), 0, 0);
}

void kcheck_quant_rows_fp8(struct kcheck *k)
{
    const uint32_t n_row = kc_range(k, 0, 9), n_col = kc_range(k, 1, kc_chance(k, 50) ? 40 : 700);
    const size_t x_stride = n_col + kc_range(k, 0, 7);
    const size_t q_stride = (n_col + ROUND - 1) / ROUND * ROUND + ROUND * kc_range(k, 0, 1);
    float *x = kc_buf(k, n_row * x_stride * sizeof *x);
    for (uint32_t i = 0; i < n_row; i++) {
        k->scale = kc_chance(k, 10) ? 0x1p-102f : kc_chance(k, 10) ? 0x1p+100f : 1;
        kc_fill(k, x + i * x_stride, n_col);
        if (kc_chance(k, 10))
            memset(x + i * x_stride, 0, n_col * sizeof *x);
    }
    k->scale = 1;
    kc_shape(k, "n_row %u n_col %u", n_row, n_col);
    struct quant_rows_fp8_args want = {
        .q = kc_buf(k, n_row * q_stride),
        .rows = kc_buf(k, n_row * sizeof *want.rows),
        .x = x,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = x_stride,
        .q_stride = q_stride,
        .scale = kc_chance(k, 40) ? (float)kc_range(k, 1, 100) / 8192 : 0,
    };
    struct quant_rows_fp8_args got = want;
    got.q = kc_copy(k, want.q, n_row * q_stride);
    got.rows = kc_buf(k, n_row * sizeof *got.rows);
    kc_run(k, k->ref, &want, 1);
    kc_run(k, k->variant, &got, kc_range(k, 1, 5));
    kc_same_bits(k, "q", (struct kc_bits){got.q, want.q, DT_I8, n_row * q_stride});
    for (uint32_t i = 0; i < n_row; i++) {
        kc_same_bits(k, "scale",
                     (struct kc_bits){&got.rows[i].scale, &want.rows[i].scale, DT_F32, 1});
        kc_near(k, "sum", got.rows[i].sum, 0, 0);
        if (want.scale > 0)
            check_given(k, &want, i);
        for (uint32_t c = 0; !k->specials && c < n_col; c++) {
            const double scale = (double)want.rows[i].scale;
            const double most = want.scale > 0 ? 448 * scale : INFINITY;
            const double is = fmax(fmin((double)x[i * x_stride + c], most), -most);
            kc_near(k, "q", value_of(want.q[i * q_stride + c]) * scale, is,
                    half_step(is, scale) + 0x1p-100);
        }
        for (uint32_t c = n_col; c < (n_col + ROUND - 1) / ROUND * ROUND; c++)
            kc_near(k, "padding", want.q[i * q_stride + c], 0, 0);
    }
}

void kbench_quant_rows_fp8(struct kc_bench *b)
{
    enum { ROWS = 64, COLS = 896 };
    float *x = kc_buf(b->k, ROWS * COLS * sizeof *x);
    kc_fill(b->k, x, ROWS * COLS);
    struct quant_rows_fp8_args a = {
        .q = kc_buf(b->k, ROWS * COLS),
        .rows = kc_buf(b->k, ROWS * sizeof *a.rows),
        .x = x,
        .n_row = ROWS,
        .n_col = COLS,
        .x_stride = COLS,
        .q_stride = COLS,
    };
    kc_print_bytes(b, "64 x 896", kc_time(b, &a), 5.0 * ROWS * COLS);
}

/* ---- matrices ---- */
struct panels { /* of a packed matrix; the layout is written out a second time */
    const uint8_t *data;
    uint32_t n_in;
};

static size_t panel_bytes(uint32_t n_in)
{
    return (size_t)((n_in + 63) / 64 * 64) * 64 + 256;
}

static uint8_t byte_at(const struct panels *p, uint32_t o, uint32_t k)
{
    return p->data[o / 64 * panel_bytes(p->n_in) + (size_t)(k / 4) * 256 + (size_t)(o % 64) * 4 +
                   k % 4];
}

static double scale_at(const struct panels *p, uint32_t o)
{
    float f;
    memcpy(&f, p->data + (o / 64 + 1) * panel_bytes(p->n_in) - 256 + 4 * (size_t)(o % 64), 4);
    return (double)f;
}

void kcheck_pack_fp8(struct kcheck *k)
{
    static const uint32_t dtypes[] = {DT_F32, DT_F16, DT_BF16};
    const enum dtype from = (enum dtype)kc_pick(k, dtypes, 3);
    const uint32_t n_out = kc_range(k, 1, 150), n_in = kc_range(k, 1, 200);
    const size_t bytes = packed_int8_bytes(n_out, n_in), n = (size_t)n_out * n_in;
    char *src = (char *)kc_buf(k, n * (dtype_bits(from) / 8) + 1) + kc_range(k, 0, 1);
    uint8_t *q = kc_buf(k, n);
    float *scales = kc_buf(k, n_out * sizeof *scales);
    const bool is_there = kc_chance(k, 40);
    k->specials = false;
    kc_fill_dtype(k, src, from, n);
    kc_fill(k, scales, n_out);
    for (size_t i = 0; i < n; i++)
        q[i] = (uint8_t)kc_range(k, 0, 255);
    kc_shape(k, "%s [%u,%u]%s", dtype_name(from), n_out, n_in, is_there ? " as it is" : "");
    uint8_t *dst[2] = {kc_buf(k, bytes), kc_buf(k, bytes)};
    for (uint32_t v = 0; v < 2; v++)
        for (uint32_t done = 0, step; done < n_out; done += step) {
            step = kc_chance(k, 40) ? n_out - done : kc_range(k, 1, n_out - done);
            const struct pack_fp8_args a = {
                .dst = dst[v],
                .src = src + (size_t)done * n_in * (dtype_bits(from) / 8),
                .src_dtype = from,
                .n_out = step,
                .n_in = n_in,
                .row_start = done,
                .n_out_total = n_out,
                .q = is_there ? q + (size_t)done * n_in : NULL,
                .scales = scales + done,
            };
            kc_run(k, v ? k->variant : k->ref, &a, kc_range(k, 1, 5));
        }
    kc_same_bits(k, "packed", (struct kc_bits){dst[0], dst[1], DT_I8, bytes});
    const struct panels p = {dst[0], n_in};
    for (uint32_t o = 0; o < (n_out + 63) / 64 * 64; o++)
        for (uint32_t i = 0; i < (n_in + 63) / 64 * 64; i++) {
            const bool inside = o < n_out && i < n_in;
            const size_t at = (size_t)o * n_in + i;
            const double w = inside ? (double)kc_get(src, from, at) : 0, s = scale_at(&p, o);
            if (inside && is_there)
                kc_near(k, "byte", byte_at(&p, o, i), q[at], 0);
            else
                kc_near(k, "W", value_of(byte_at(&p, o, i)) * s, w,
                        inside ? half_step(w, s) + 0x1p-100 : 0);
        }
}

void kbench_pack_fp8(struct kc_bench *b)
{
    enum { OUT = 896, IN = 896 };
    const size_t bytes = packed_int8_bytes(OUT, IN);
    void *src = kc_buf(b->k, OUT * IN * 2);
    kc_fill_dtype(b->k, src, DT_BF16, OUT * IN);
    const struct pack_fp8_args a = {
        .dst = kc_buf(b->k, bytes),
        .src = src,
        .src_dtype = DT_BF16,
        .n_out = OUT,
        .n_in = IN,
        .n_out_total = OUT,
    };
    kc_print_bytes(b, "bf16 -> e4m3 [896,896]", kc_time(b, &a), (double)bytes + OUT * IN * 2.0);
}

/* ---- products ---- */
static void make_case(struct kcheck *k, struct linear_fp8_args *args)
{
    static const uint32_t rows[] = {0, 1, 1, 2, 3, 5, 8, 17};
    const uint32_t n_row = kc_pick(k, rows, 8), n_out = kc_product_outputs(k, 150);
    const uint32_t n_in = kc_range(k, 1, kc_chance(k, 70) ? 150 : 900);
    const size_t n_w = (size_t)n_out * n_in, x_stride = (n_in + 63) / 64 * 64;
    float *w = kc_buf(k, n_w * sizeof *w), *x = kc_buf(k, (size_t)n_row * n_in * sizeof *x);
    kc_fill(k, w, n_w);
    kc_fill(k, x, (size_t)n_row * n_in);
    void *data = kc_buf(k, packed_int8_bytes(n_out, n_in));
    const struct pack_fp8_args p = {
        .dst = data,
        .src = w,
        .src_dtype = DT_F32,
        .n_out = n_out,
        .n_in = n_in,
        .n_out_total = n_out,
    };
    const struct quant_rows_fp8_args q = {
        .q = kc_buf(k, n_row * x_stride),
        .rows = kc_buf(k, n_row * sizeof *q.rows),
        .x = x,
        .n_row = n_row,
        .n_col = n_in,
        .x_stride = n_in,
        .q_stride = x_stride,
    };
    pack_fp8_ref(&p, &alone);
    quant_rows_fp8_ref(&q, &alone);
    args->by = (struct linear_int8_args){
        .x = (const int8_t *)q.q,
        .rows = q.rows,
        .w = {.data = data, .n_out = n_out, .n_in = n_in, .dtype = DT_F8_E4M3},
        .n_row = n_row,
        .x_stride = x_stride,
        .y_stride = n_out + kc_range(k, 0, 7),
        .accumulate = kc_chance(k, 40),
    };
    args->by.bias = kc_product_bias(k, n_out);
    kc_shape(k, "n_row %u [%u,%u]%s%s", n_row, n_out, n_in, args->by.bias ? " bias" : "",
             args->by.accumulate ? " accumulate" : "");
}

static void near_f64(struct kcheck *k, const struct kc_product *p, const float *y,
                     const float *before)
{
    const struct linear_int8_args *a = &((const struct linear_fp8_args *)p->args)->by;
    const struct panels w = {a->w.data, a->w.n_in};
    for (uint32_t i = 0; i < a->n_row; i += 1 + a->n_row / 3)
        for (uint32_t o = 0; o < a->w.n_out; o++) {
            const double scale = scale_at(&w, o) * (double)a->rows[i].scale;
            double sum = 0, size = 0;
            for (uint32_t j = 0; j < a->w.n_in; j++) {
                const double term = value_of((uint8_t)a->x[i * a->x_stride + j]) *
                                    value_of(byte_at(&w, o, j)) * scale;
                sum += term;
                size += fabs(term);
            }
            const double bias = a->bias ? (double)a->bias[o] : 0;
            const double old = a->accumulate ? (double)before[i * a->y_stride + o] : 0;
            kc_near(k, "y", (double)y[i * a->y_stride + o], sum + bias + old,
                    ((a->w.n_in + 4) * size + 2 * fabs(bias) + 2 * fabs(old)) * 0x1p-24 + 0x1p-120);
        }
}

static const void *row_alone(const struct kc_product *p, uint32_t i, float *y)
{
    const struct linear_fp8_args *a = p->args;
    static struct linear_fp8_args one;
    one = *a;
    one.by.n_row = 1;
    one.by.x = a->by.x + i * a->by.x_stride;
    one.by.rows = a->by.rows + i;
    one.by.y = y;
    return &one;
}

void kcheck_linear_fp8(struct kcheck *k)
{
    struct linear_fp8_args a;
    k->specials = false;
    make_case(k, &a);
    kc_product_check(k, &(struct kc_product){
                            .args = &a,
                            .y = &a.by.y,
                            .y_dtype = &a.by.y_dtype,
                            .accumulate = &a.by.accumulate,
                            .gated = &a.by.w.gated,
                            .n_row = a.by.n_row,
                            .n_out = a.by.w.n_out,
                            .y_stride = a.by.y_stride,
                            .definition = k->ref,
                            .row = row_alone,
                            .near = near_f64,
                        });
}

void kbench_linear_fp8(struct kc_bench *b)
{
    enum { OUT = 896, IN = 896 };
    struct kcheck *k = b->k;
    const size_t bytes = packed_int8_bytes(OUT, IN);
    void *w = kc_buf(k, bytes), *x = kc_buf(k, IN);
    struct quant_row *row = kc_buf(k, sizeof *row);
    memset(w, 0, bytes);
    memset(x, 0, IN);
    *row = (struct quant_row){.scale = 1};
    struct linear_fp8_args a = {
        {
            .y = kc_buf(k, OUT * 4),
            .x = x,
            .rows = row,
            .w = {.data = w, .n_out = OUT, .n_in = IN, .dtype = DT_F8_E4M3},
            .n_row = 1,
            .x_stride = IN,
            .y_stride = OUT,
        },
    };
    kc_print_bytes(b, "1 x [896, 896]", kc_time(b, &a), (double)bytes);
}
