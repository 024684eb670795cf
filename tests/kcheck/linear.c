/* SPDX-License-Identifier: Apache-2.0 */
/* linear: every pair of types against the reference, the reference against f64 sums over the
 * unpacked matrix, and rows of a batch against the same rows alone. */
#include <float.h>
#include <math.h>
#include "kernels/variants.h"
#include "product.h"

struct linear_case {
    struct linear_args a; /* first member: the arguments of a call */
    const void *plain;    /* W row-major, dtype of a.w */
    size_t x_element, n_x;
};

static const struct {
    enum dtype w, x;
} types[] = {{DT_F32, DT_F32}, {DT_F16, DT_F32}, {DT_BF16, DT_F32}, {DT_BF16, DT_BF16}};

/* Pack with the reference (kcheck_pack holds the variants to it). */
static struct packed packed_of(struct kcheck *k, const void *plain, enum dtype t, uint32_t n_out,
                               uint32_t n_in)
{
    void *data = kc_buf(k, packed_bytes(t, n_out, n_in));
    struct pack_args p = {
        .dst = data,
        .dst_dtype = t,
        .src = plain,
        .src_dtype = t,
        .n_out = n_out,
        .n_in = n_in,
        .n_out_total = n_out,
    };
    pack_ref(&p, &(struct kern_exec){.nth = 1});
    return (struct packed){.data = data, .n_out = n_out, .n_in = n_in, .dtype = t};
}

static void make_case(struct kcheck *k, struct linear_case *c)
{
    static const uint32_t rows[] = {0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 40, 97, 200};
    uint32_t t = kc_range(k, 0, 3), n_row = kc_pick(k, rows, 16),
             n_out = kc_product_outputs(k, 330);
    uint32_t n_in_max =
        4000000u / ((n_row + 1) * n_out); /* keeps the reference under some milliseconds */
    n_in_max = n_in_max > 3000 ? 3000 : n_in_max < 40 ? 40 : n_in_max;
    uint32_t n_in = kc_chance(k, 60) ? kc_range(k, 1, 40) : kc_range(k, 1, n_in_max);
    size_t w_element = dtype_bits(types[t].w) / 8, x_stride = n_in + kc_range(k, 0, 7);
    void *plain = kc_buf(k, (size_t)n_out * n_in * w_element);
    k->scale = kc_chance(k, 10) ? 0x1p+100f : 1;
    kc_fill_dtype(k, plain, types[t].w, (size_t)n_out * n_in);
    *c = (struct linear_case){.plain = plain, .x_element = dtype_bits(types[t].x) / 8};
    c->a = (struct linear_args){
        .x_dtype = types[t].x,
        .n_row = n_row,
        .x_stride = x_stride,
        .y_stride = n_out + kc_range(k, 0, 7),
        .accumulate = kc_chance(k, 40),
    };
    c->a.w = packed_of(k, plain, types[t].w, n_out, n_in);
    /* exactly to the last element: reading x past the end of its last row is caught by asan */
    c->n_x = n_row ? (n_row - 1) * x_stride + n_in : 0;
    char *x = kc_buf(k, c->n_x * c->x_element);
    k->scale = kc_chance(k, 20) ? 0x1p-127f : 1; /* subnormal x: bf16 x bf16 takes it for 0 */
    for (uint32_t i = 0; i < n_row; i++)         /* between rows NaN stays */
        kc_fill_dtype(k, x + i * x_stride * c->x_element, types[t].x, n_in);
    k->scale = 1;
    c->a.x = x;
    c->a.bias = kc_product_bias(k, n_out);
    kc_shape(k, "%s x %s n_row %u [%u,%u]%s%s", dtype_name(types[t].x), dtype_name(types[t].w),
             n_row, n_out, n_in, c->a.bias ? " bias" : "", c->a.accumulate ? " accumulate" : "");
}

static void call_tiles(const void *args, const struct kern_exec *x)
{
    linear_ref_tiles(args, x);
}

static bool is_tiles(const struct kcheck *k, const struct linear_case *c)
{
    return k->variant->caps & CAP_AMX_BF16 && c->a.x_dtype == DT_BF16;
}

/* The reference for this case and variant: bf16 x bf16 by tiles has its own. */
static const struct kc_variant *definition(const struct kcheck *k, const struct linear_case *c)
{
    static const struct kc_variant tiles = {
        .op = "linear",
        .name = "ref_tiles",
        .call = call_tiles,
    };
    return is_tiles(k, c) ? &tiles : k->ref;
}

/* An operand as the arithmetic sees it: bf16 x bf16 takes subnormals for zero. */
static double operand(const struct linear_args *a, const void *p, enum dtype t, size_t i)
{
    double f = kc_get(p, t, i);
    return a->x_dtype == DT_BF16 && fabs(f) < FLT_MIN ? 0 : f;
}

/* y against a sum in f64 over the row-major matrix; some rows are enough. */
static void near_f64(struct kcheck *k, const struct kc_product *p, const float *y,
                     const float *before)
{
    const struct linear_case *c = p->args;
    const struct linear_args *a = &c->a;
    for (uint32_t i = 0; i < a->n_row; i += 1 + a->n_row / 3)
        for (uint32_t o = 0; o < a->w.n_out; o++) {
            double sum = a->bias ? a->bias[o] : 0, size = fabs(sum);
            for (uint32_t j = 0; j < a->w.n_in; j++) {
                double product = operand(a, a->x, a->x_dtype, i * a->x_stride + j) *
                                 operand(a, c->plain, a->w.dtype, (size_t)o * a->w.n_in + j);
                sum += product;
                size += fabs(product);
            }
            double old = a->accumulate ? before[i * a->y_stride + o] : 0;
            kc_near(k, "y", y[i * a->y_stride + o], sum + old,
                    ((size + fabs(old)) * 0x1p-24 + FLT_MIN) * (a->w.n_in + 2));
        }
}

static const void *row_alone(const struct kc_product *p, uint32_t i, float *y)
{
    const struct linear_case *c = p->args;
    static struct linear_args one;
    one = c->a;
    one.n_row = 1;
    one.x = (const char *)c->a.x + i * c->a.x_stride * c->x_element;
    one.y = y;
    return &one;
}

void kcheck_linear(struct kcheck *k)
{
    struct linear_case c;
    make_case(k, &c);
    kc_product_check(k, &(struct kc_product){
                            .args = &c,
                            .y = &c.a.y,
                            .y_dtype = &c.a.y_dtype,
                            .accumulate = &c.a.accumulate,
                            .gated = &c.a.w.gated,
                            .act = &c.a.w.act,
                            .n_row = c.a.n_row,
                            .n_out = c.a.w.n_out,
                            .y_stride = c.a.y_stride,
                            .definition = definition(k, &c),
                            .sibling = !is_tiles(k, &c),
                            .row = row_alone,
                            .near = near_f64,
                        });
}
