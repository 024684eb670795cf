/* SPDX-License-Identifier: Apache-2.0 */
/* linear_w4a16: every variant against the reference, the reference against f64, and rows of a
 * batch against the same rows alone. */
#include <math.h>
#include <string.h>
#include "kernels/variants.h"
#include "product.h"

struct half_case {
    struct linear_w4a16_args a; /* first member: the arguments of a call */
    uint8_t *q;                 /* [n_out, n_in], as it went in */
    uint16_t *scales;           /* [n_out, n_in / group] */
    uint8_t *zeros;
};

static void make_weights(struct kcheck *k, struct half_case *c)
{
    const struct packed *w = &c->a.by.w;
    const uint32_t n_group = w->n_in / w->group;
    const size_t n = (size_t)w->n_out * w->n_in, n_scale = (size_t)w->n_out * n_group;
    c->q = kc_buf(k, n);
    c->scales = kc_buf(k, n_scale * sizeof *c->scales);
    c->zeros = kc_buf(k, n_scale);
    kc_fill_dtype(k, c->scales, DT_F16, n_scale);
    for (size_t i = 0; i < n; i++)
        c->q[i] = (uint8_t)kc_range(k, 0, 15);
    for (size_t i = 0; i < n_scale; i++)
        c->zeros[i] = (uint8_t)kc_range(k, 0, 16);
    memset((void *)(uintptr_t)w->data, 0, packed_int4_bytes(w->n_out, w->n_in, w->group));
    for (uint32_t o = 0; o < w->n_out; o++)
        kern_int4_set(w, o,
                      &(struct int4_output){c->q + (size_t)o * w->n_in,
                                            c->scales + (size_t)o * n_group,
                                            c->zeros + (size_t)o * n_group});
}

static void make_case(struct kcheck *k, struct half_case *c)
{
    static const uint32_t rows[] = {0, 1, 1, 1, 2, 3, 5, 8, 17}, groups[] = {32, 64, 128};
    const uint32_t n_row = kc_pick(k, rows, 9), n_out = kc_product_outputs(k, 100);
    const uint32_t group = kc_pick(k, groups, 3), n_in = group * kc_range(k, 1, 512 / group);
    const enum dtype x_dtype = kc_chance(k, 60) ? DT_BF16 : DT_F16;
    const size_t x_stride = n_in + 8 * kc_range(k, 0, 2);
    void *x = kc_buf(k, n_row * x_stride * 2);
    kc_fill_dtype(k, x, x_dtype, n_row * x_stride);
    *c = (struct half_case){
        .a.by =
            {
                .x = x,
                .x_dtype = x_dtype,
                .w =
                    {
                        .data = kc_buf(k, packed_int4_bytes(n_out, n_in, group)),
                        .n_out = n_out,
                        .n_in = n_in,
                        .dtype = DT_I8,
                        .group = group,
                    },
                .n_row = n_row,
                .x_stride = x_stride,
                .y_stride = n_out + kc_range(k, 0, 7),
                .accumulate = kc_chance(k, 40),
            },
    };
    make_weights(k, c);
    c->a.by.bias = kc_product_bias(k, n_out);
    kc_shape(k, "%s n_row %u [%u,%u] group %u%s%s", dtype_name(x_dtype), n_row, n_out, n_in, group,
             c->a.by.bias ? " bias" : "", c->a.by.accumulate ? " accumulate" : "");
}

/* y against sums in f64 of the weights as they went in. */
static void near_f64(struct kcheck *k, const struct kc_product *p, const float *y,
                     const float *before)
{
    const struct half_case *c = p->args;
    const struct linear_args *a = &c->a.by;
    const uint32_t n_in = a->w.n_in, group = a->w.group, n_group = n_in / group;
    for (uint32_t i = 0; i < a->n_row; i += 1 + a->n_row / 3)
        for (uint32_t o = 0; o < a->w.n_out; o++) {
            double want = 0, size = 0;
            for (uint32_t j = 0; j < n_in; j++) {
                const size_t g = (size_t)o * n_group + j / group;
                const double w = (double)kc_get(c->scales, DT_F16, g) *
                                 ((double)c->q[(size_t)o * n_in + j] - c->zeros[g]);
                const double term = w * (double)kc_get(a->x, a->x_dtype, i * a->x_stride + j);
                want += term;
                size += fabs(term);
            }
            const double bias = a->bias ? (double)a->bias[o] : 0;
            const double old = a->accumulate ? (double)before[i * a->y_stride + o] : 0;
            kc_near(k, "y", (double)y[i * a->y_stride + o], want + bias + old,
                    ((group + n_group + 3) * size + 2 * fabs(bias) + 2 * fabs(old)) * 0x1p-24 +
                        0x1p-120);
        }
}

static const void *row_alone(const struct kc_product *p, uint32_t i, float *y)
{
    const struct linear_w4a16_args *a = p->args;
    static struct linear_w4a16_args one;
    one = *a;
    one.by.n_row = 1;
    one.by.x = (const char *)a->by.x + i * a->by.x_stride * 2;
    one.by.y = y;
    return &one;
}

void kcheck_linear_w4a16(struct kcheck *k)
{
    struct half_case c;
    k->specials = false;
    make_case(k, &c);
    kc_product_check(k, &(struct kc_product){
                            .args = &c,
                            .y = &c.a.by.y,
                            .y_dtype = &c.a.by.y_dtype,
                            .accumulate = &c.a.by.accumulate,
                            .gated = &c.a.by.w.gated,
                            .n_row = c.a.by.n_row,
                            .n_out = c.a.by.w.n_out,
                            .y_stride = c.a.by.y_stride,
                            .definition = k->ref,
                            .row = row_alone,
                            .near = near_f64,
                        });
}

void kbench_linear_w4a16(struct kc_bench *b)
{
    enum { OUT = 896, IN = 896 };
    struct kcheck *k = b->k;
    const size_t bytes = packed_int4_bytes(OUT, IN, 128);
    void *w = kc_buf(k, bytes), *x = kc_buf(k, IN * 2), *y = kc_buf(k, OUT * 4);
    memset(w, 0, bytes);
    kc_fill_dtype(k, x, DT_BF16, IN);
    struct linear_w4a16_args a = {
        {
            .y = y,
            .x = x,
            .x_dtype = DT_BF16,
            .w = {.data = w, .n_out = OUT, .n_in = IN, .dtype = DT_I8, .group = 128},
            .n_row = 1,
            .x_stride = IN,
            .y_stride = OUT,
        },
    };
    kc_print_bytes(b, "bf16 1 x [896, 896]", kc_time(b, &a), (double)bytes);
}
