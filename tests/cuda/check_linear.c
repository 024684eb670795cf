/* SPDX-License-Identifier: Apache-2.0 */
/* linear, linear_int8, linear_w4a8 with what their packers write: small integers and f32 x
 * against the reference bit for bit, bf16 and f16 against f64; and each row's bits among few and
 * many others. */
#include "check.h"
#include <math.h>
#include <string.h>
#include "kernels/cuda/layout.h"
#include "kernels/ops/int8_layout.h"
#include "kernels/variants.h"

CUDA_CALL(pack)
CUDA_CALL(pack_int8)
CUDA_CALL(pack_int4)
CUDA_CALL(linear)
CUDA_CALL(linear_int8)
CUDA_CALL(linear_w4a8)
CUDA_CALL(linear_w4a16)
REF_CALL(linear)
REF_CALL(linear_int8)
REF_CALL(linear_w4a8)
REF_CALL(linear_w4a16)

static const struct kern_exec alone = {.nth = 1};

struct product_case {
    uint32_t n_row, n_out, n_in, gated;
    size_t x_stride, y_stride;
    enum dtype y_dtype;
    float *plain;        /* W */
    float *x, *bias, *y; /* y: as it was */
    int accumulate;
    uint32_t n_col; /* of y */
};

static void make_product(struct kcheck *k, struct product_case *c, uint32_t in_unit)
{
    static const uint32_t rows[] = {1, 1, 2, 3, 5, 8, 9, 13, 16, 17, 40, 140};
    *c = (struct product_case){.n_row = kc_pick(k, rows, 12), .gated = kc_chance(k, 30)};
    c->n_out = c->gated ? 32 * kc_range(k, 1, 5) : kc_range(k, 1, 150);
    c->n_in = in_unit * kc_range(k, 1, (kc_chance(k, 25) ? 2600 : 300) / in_unit);
    if (c->n_row > 20)
        c->n_in = in_unit * kc_range(k, 1, 600 / in_unit);
    c->y_dtype = kc_chance(k, 60) ? DT_F32 : kc_chance(k, 50) ? DT_BF16 : DT_F16;
    c->accumulate = !c->gated && c->y_dtype == DT_F32 && kc_chance(k, 40);
    c->n_col = c->gated ? c->n_out / 2 : c->n_out;
    c->x_stride = (c->n_in + 63) / 64 * 64;
    c->y_stride = c->n_col + kc_range(k, 0, 7);
    c->plain = kc_buf(k, (size_t)c->n_out * c->n_in * 4);
    c->x = kc_buf(k, c->n_row * c->x_stride * 4);
    c->bias = kc_buf(k, c->n_out * 4);
    c->y = kc_buf(k, c->n_row * c->y_stride * 4);
    k->specials = false;
    kc_fill(k, c->plain, (size_t)c->n_out * c->n_in);
    kc_fill(k, c->x, c->n_row * c->x_stride);
    kc_fill(k, c->bias, c->n_out);
    kc_fill(k, c->y, c->n_row * c->y_stride);
    if (kc_chance(k, 40))
        c->bias = NULL;
    kc_shape(k, "n_row %u n_out %u n_in %u%s%s", c->n_row, c->n_out, c->n_in,
             c->gated ? " gated" : "", c->accumulate ? " onto y" : "");
}

static void *old_y(struct kcheck *k, const struct product_case *c)
{
    return kc_copy(k, c->y, c->n_row * c->y_stride * 4);
}

static void same_rows(struct kcheck *k, const char *what, const struct product_case *c,
                      const void *got, const void *want, uint32_t n_row)
{
    size_t element = dtype_bits(c->y_dtype) / 8;
    for (uint32_t i = 0; i < n_row; i++)
        kc_same_bits(k, what,
                     (struct kc_bits){(const char *)got + i * c->y_stride * element,
                                      (const char *)want + i * c->y_stride * element, c->y_dtype,
                                      c->n_col});
}

/* A gated product has an exp: not the same bits as the C library's. */
static void compare(struct kcheck *k, const struct product_case *c, const void *got,
                    const void *want)
{
    if (!c->gated) {
        same_rows(k, "y", c, got, want, c->n_row);
        return;
    }
    struct kc_variant v = *k->variant;
    const struct kc_variant *as_it_was = k->variant;
    v.tolerance = 8;
    k->variant = &v;
    kc_compare(k, "y", &(struct kc_array){got, c->y_dtype, c->n_row, c->n_col, c->y_stride},
               &(struct kc_array){want, c->y_dtype, c->n_row, c->n_col, c->y_stride});
    k->variant = as_it_was;
}

/* ---- linear ---- */
static double rounding_of(enum dtype dtype, double f)
{
    return dtype == DT_BF16 ? fabs(f) * 0x1p-8 : dtype == DT_F16 ? fabs(f) * 0x1p-11 + 0x1p-25 : 0;
}

static void near_f64(struct kcheck *k, const struct product_case *c, const struct linear_args *a)
{
    for (uint32_t i = 0; i < c->n_row; i++)
        for (uint32_t o = 0; !c->gated && o < c->n_out; o += 7) {
            double sum = 0, size = 0;
            for (uint32_t j = 0; j < c->n_in; j++) {
                double p = (double)kc_get(a->x, a->x_dtype, i * c->x_stride + j) *
                           (double)kc_get(a->w.data, a->w.dtype, (size_t)o * c->n_in + j);
                sum += p;
                size += fabs(p);
            }
            sum += c->bias ? (double)c->bias[o] : 0;
            sum += c->accumulate ? (double)c->y[i * c->y_stride + o] : 0;
            kc_near(k, "y", (double)kc_get(a->y, a->y_dtype, i * c->y_stride + o), sum,
                    (size + fabs(sum)) * c->n_in * 0x1p-22 + rounding_of(a->y_dtype, sum));
        }
}

static void check_linear(struct kcheck *k)
{
    static const struct {
        enum dtype x, w;
    } types[] = {
        {DT_BF16, DT_BF16}, {DT_BF16, DT_BF16}, {DT_F16, DT_F16},
        {DT_F32, DT_F32},   {DT_F32, DT_BF16},  {DT_F32, DT_F16},
    };
    struct product_case c;
    const uint32_t t = kc_range(k, 0, 5), unit = kc_chance(k, 80) ? 8 : 1;
    make_product(k, &c, unit);
    void *w = kc_buf(k, (size_t)c.n_out * c.n_in * 4), *x = kc_buf(k, c.n_row * c.x_stride * 4);
    for (size_t i = 0; i < c.n_row * c.x_stride; i++) {
        uint16_t h = types[t].x == DT_F16 ? f32_to_f16(c.x[i]) : f32_to_bf16(c.x[i]);
        if (types[t].x == DT_F32)
            memcpy((float *)x + i, &c.x[i], 4);
        else
            memcpy((uint16_t *)x + i, &h, 2);
    }
    struct pack_args pack = {
        .dst = w,
        .dst_dtype = types[t].w,
        .src = c.plain,
        .src_dtype = DT_F32,
        .n_out = c.n_out,
        .n_in = c.n_in,
        .n_out_total = c.n_out,
    };
    call_pack(&pack, &alone);
    struct linear_args a = {
        .y = old_y(k, &c),
        .y_dtype = c.y_dtype,
        .x = x,
        .x_dtype = types[t].x,
        .w = {.data = w, .n_out = c.n_out, .n_in = c.n_in, .dtype = types[t].w, .gated = c.gated},
        .bias = c.bias,
        .n_row = c.n_row,
        .x_stride = c.x_stride,
        .y_stride = c.y_stride,
        .accumulate = c.accumulate,
    };
    kc_run(k, k->variant, &a, 1);
    near_f64(k, &c, &a);
    const bool mixed =
        types[t].w != DT_F32 && c.n_in % 8 == 0 && !c.gated; /* an order of its own */
    if (types[t].x == DT_F32 && !mixed) {                    /* the order of the reference */
        struct linear_args want = a;
        pack.dst = kc_buf(k, packed_bytes(types[t].w, c.n_out, c.n_in));
        pack_ref(&pack, &alone);
        want.w.data = pack.dst;
        want.y = old_y(k, &c);
        kc_run(k, k->ref, &want, 1);
        compare(k, &c, a.y, want.y);
    }
    for (uint32_t n = 1; n < c.n_row; n = 2 * n + 1) { /* among fewer rows, by other kernels */
        struct linear_args fewer = a;
        fewer.n_row = n;
        fewer.y = old_y(k, &c);
        kc_run(k, k->variant, &fewer, 1);
        same_rows(k, "fewer rows", &c, fewer.y, a.y, n);
    }
}

/* ---- int8 and int4 ---- */
struct quantized {
    struct quant_rows_args q;
    struct linear_int8_args a, want;
};

static void quantize(struct kcheck *k, const struct product_case *c, struct quantized *z)
{
    z->q = (struct quant_rows_args){
        .q = kc_buf(k, c->n_row * c->x_stride),
        .rows = kc_buf(k, c->n_row * sizeof(struct quant_row)),
        .sums = kc_buf(k, c->n_row * c->x_stride / KERN_INT8_SUM * 2),
        .x = c->x,
        .n_row = c->n_row,
        .n_col = c->n_in,
        .x_stride = c->x_stride,
        .q_stride = c->x_stride,
    };
    quant_rows_ref(&z->q, &alone);
    z->a = (struct linear_int8_args){
        .y = old_y(k, c),
        .y_dtype = c->y_dtype,
        .x = z->q.q,
        .rows = z->q.rows,
        .w = {.n_out = c->n_out, .n_in = c->n_in, .dtype = DT_I8, .gated = c->gated},
        .bias = c->bias,
        .n_row = c->n_row,
        .x_stride = c->x_stride,
        .y_stride = c->y_stride,
        .accumulate = c->accumulate,
    };
    z->want = z->a;
    z->want.y = old_y(k, c);
}

static void check_linear_int8(struct kcheck *k)
{
    struct product_case c;
    struct quantized z;
    make_product(k, &c, kc_chance(k, 80) ? 16 : 1);
    quantize(k, &c, &z);
    void *got_w = kc_buf(k, cuda_matrix_bytes(&z.a.w)),
         *want_w = kc_buf(k, packed_int8_bytes(c.n_out, c.n_in));
    struct pack_int8_args p = {
        .dst = got_w,
        .src = c.plain,
        .src_dtype = DT_F32,
        .n_out = c.n_out,
        .n_in = c.n_in,
        .n_out_total = c.n_out,
    };
    call_pack_int8(&p, &alone);
    p.dst = want_w;
    pack_int8_ref(&p, &alone);
    z.a.w.data = got_w;
    z.want.w.data = want_w;
    kc_run(k, k->variant, &z.a, 1);
    kc_run(k, k->ref, &z.want, 1);
    compare(k, &c, z.a.y, z.want.y);
    struct linear_int8_args one = z.a;
    one.n_row = 1;
    one.y = old_y(k, &c);
    kc_run(k, k->variant, &one, 1);
    same_rows(k, "one row", &c, one.y, z.a.y, 1);
}

/* The matrix in both layouts. */
static void pack_both(struct kcheck *k, const struct product_case *c, struct packed *got,
                      struct packed *want)
{
    void *got_w = kc_buf(k, cuda_matrix_bytes(got));
    void *want_w = kc_buf(k, packed_int4_bytes(c->n_out, c->n_in, got->group));
    struct pack_int4_args p = {
        .dst = got_w,
        .src = c->plain,
        .src_dtype = DT_F32,
        .n_out = c->n_out,
        .n_in = c->n_in,
        .group = got->group,
        .n_out_total = c->n_out,
    };
    call_pack_int4(&p, &alone);
    p.dst = want_w;
    pack_int4_ref(&p, &alone);
    got->data = got_w;
    want->data = want_w;
}

static void check_linear_w4a8(struct kcheck *k)
{
    static const uint32_t groups[] = {32, 64, 128};
    const uint32_t group = kc_pick(k, groups, 3);
    struct product_case c;
    struct quantized z;
    make_product(k, &c, group);
    quantize(k, &c, &z);
    z.a.w.group = z.want.w.group = group;
    pack_both(k, &c, &z.a.w, &z.want.w);
    struct linear_w4a8_args got = {z.a, z.q.sums}, want = {z.want, z.q.sums};
    kc_run(k, k->variant, &got, 1);
    kc_run(k, k->ref, &want, 1);
    compare(k, &c, got.by.y, want.by.y);
    for (uint32_t n = 1; n < c.n_row; n = 2 * n + 1) { /* by other kernels */
        struct linear_w4a8_args fewer = got;
        fewer.by.n_row = n;
        fewer.by.y = old_y(k, &c);
        kc_run(k, k->variant, &fewer, 1);
        same_rows(k, "fewer rows", &c, fewer.by.y, got.by.y, n);
    }
}

static void check_linear_w4a16(struct kcheck *k)
{
    static const uint32_t groups[] = {32, 64, 128};
    const uint32_t group = kc_pick(k, groups, 3);
    const enum dtype x_dtype = kc_chance(k, 60) ? DT_BF16 : DT_F16;
    struct product_case c;
    make_product(k, &c, group);
    uint16_t *x = kc_buf(k, c.n_row * c.x_stride * 2);
    for (size_t i = 0; i < c.n_row * c.x_stride; i++)
        x[i] = x_dtype == DT_F16 ? f32_to_f16(c.x[i]) : f32_to_bf16(c.x[i]);
    struct linear_w4a16_args got = {
        {
            .y = old_y(k, &c),
            .y_dtype = c.y_dtype,
            .x = x,
            .x_dtype = x_dtype,
            .w =
                {
                    .n_out = c.n_out,
                    .n_in = c.n_in,
                    .dtype = DT_I8,
                    .group = group,
                    .gated = c.gated,
                },
            .bias = c.bias,
            .n_row = c.n_row,
            .x_stride = c.x_stride,
            .y_stride = c.y_stride,
            .accumulate = c.accumulate,
        },
    };
    struct linear_w4a16_args want = got;
    want.by.y = old_y(k, &c);
    pack_both(k, &c, &got.by.w, &want.by.w);
    kc_run(k, k->variant, &got, 1);
    kc_run(k, k->ref, &want, 1);
    k->magnitude = sqrt((double)c.n_in); /* sums may cancel; gated: a product of two */
    kc_compare(k, "y", &(struct kc_array){got.by.y, c.y_dtype, c.n_row, c.n_col, c.y_stride},
               &(struct kc_array){want.by.y, c.y_dtype, c.n_row, c.n_col, c.y_stride});
    for (uint32_t n = 1; n < c.n_row; n = 2 * n + 1) { /* by other kernels */
        struct linear_w4a16_args fewer = got;
        fewer.by.n_row = n;
        fewer.by.y = old_y(k, &c);
        kc_run(k, k->variant, &fewer, 1);
        same_rows(k, "fewer rows", &c, fewer.by.y, got.by.y, n);
    }
}

const struct cuda_check cuda_checks_linear[] = {
    {"linear", ref_linear, call_linear, 0, check_linear, 14},
    {"linear_int8", ref_linear_int8, call_linear_int8, 0, check_linear_int8, 10},
    {"linear_w4a8", ref_linear_w4a8, call_linear_w4a8, 0, check_linear_w4a8, 10},
    {"linear_w4a16", ref_linear_w4a16, call_linear_w4a16, 64, check_linear_w4a16, 10},
    {0},
};
