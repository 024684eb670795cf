/* SPDX-License-Identifier: Apache-2.0 */
/* linear_w4a8: every variant against the reference, the reference against f64, and rows of a batch
 * against the same rows alone. */
#include <math.h>
#include "kernels/variants.h"
#include "product.h"

struct int4_case {
    struct linear_w4a8_args a; /* first member: the arguments of a call */
    uint8_t *q;                /* [n_out, n_in], as it went in */
    uint16_t *scales;          /* [n_out, n_in / group] */
    uint8_t *zeros;
};

static size_t round_up(size_t n)
{
    return (n + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
}

/* Any weights at all, and some at their extremes, where sums are largest. */
static void make_weights(struct kcheck *k, struct int4_case *c)
{
    const struct packed *w = &c->a.by.w;
    const uint32_t n_group = w->n_in / w->group;
    const size_t n = (size_t)w->n_out * w->n_in, n_scale = (size_t)w->n_out * n_group;
    const bool extreme = kc_chance(k, 20);
    const uint8_t zero = kc_chance(k, 50) ? 0 : 16;
    const uint32_t most = kc_chance(k, 50) ? 15 : 16; /* zeros of 16 are a case of their own */
    c->q = kc_buf(k, n);
    c->scales = kc_buf(k, n_scale * sizeof *c->scales);
    c->zeros = kc_buf(k, n_scale);
    kc_fill_dtype(k, c->scales, DT_F16, n_scale);
    for (size_t i = 0; i < n; i++)
        c->q[i] = extreme ? (zero ? 0 : 15) : (uint8_t)kc_range(k, 0, 15);
    for (size_t i = 0; i < n_scale; i++)
        c->zeros[i] = extreme ? zero : (uint8_t)kc_range(k, 0, most);
    memset((void *)(uintptr_t)w->data, 0, packed_int4_bytes(w->n_out, w->n_in, w->group));
    for (uint32_t o = 0; o < w->n_out; o++)
        kern_int4_set(w, o,
                      &(struct int4_output){c->q + (size_t)o * w->n_in,
                                            c->scales + (size_t)o * n_group,
                                            c->zeros + (size_t)o * n_group});
}

static void make_case(struct kcheck *k, struct int4_case *c)
{
    static const uint32_t rows[] = {0,  1,  1,  2,  3,  4,  5,  6,  7,  8,
                                    11, 12, 13, 16, 17, 32, 33, 40, 97, 200};
    static const uint32_t groups[] = {32, 64, 128};
    uint32_t n_row = kc_pick(k, rows, 20), n_out = kc_product_outputs(k, 200);
    uint32_t group = kc_pick(k, groups, 3);
    uint32_t n_in = group * kc_range(k, 1, 1 + 400000u / ((n_row + 1) * n_out) % 9);
    if (kc_chance(k, 4)) { /* more than a variant unpacks at a time */
        n_in = group * kc_range(k, 4200 / group, 9000 / group);
        n_out = n_out % 70 + 1;
    }
    size_t x_stride = round_up(n_in) + KERN_INT8_K * kc_range(k, 0, 1);
    float *x = kc_buf(k, (size_t)n_row * n_in * sizeof *x);
    kc_fill(k, x, (size_t)n_row * n_in);
    for (size_t i = 0; kc_chance(k, 5) && i < (size_t)n_row * n_in; i++)
        x[i] = kc_chance(k, 90) ? 1 : -1;
    struct quant_rows_args q = {
        .q = kc_buf(k, n_row * x_stride),
        .rows = kc_buf(k, n_row * sizeof *q.rows),
        .sums = kc_buf(k, n_row * x_stride / KERN_INT8_SUM * sizeof *q.sums),
        .x = x,
        .n_row = n_row,
        .n_col = n_in,
        .x_stride = n_in,
        .q_stride = x_stride,
    };
    quant_rows_ref(&q, &(struct kern_exec){.nth = 1});
    *c = (struct int4_case){
        .a.sums = q.sums,
        .a.by =
            {
                .x = q.q,
                .rows = q.rows,
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
    kc_shape(k, "n_row %u [%u,%u] group %u%s%s", n_row, n_out, n_in, group,
             c->a.by.bias ? " bias" : "", c->a.by.accumulate ? " accumulate" : "");
}

/* y against sums in f64 of the weights as they went in. */
static void near_f64(struct kcheck *k, const struct kc_product *p, const float *y,
                     const float *before)
{
    const struct int4_case *c = p->args;
    const struct linear_int8_args *a = &c->a.by;
    const uint32_t n_in = a->w.n_in, group = a->w.group, n_group = n_in / group;
    for (uint32_t i = 0; i < a->n_row; i += 1 + a->n_row / 3)
        for (uint32_t o = 0; o < a->w.n_out; o++) {
            double want = 0, size = 0;
            for (uint32_t j = 0; j < n_in; j++) {
                size_t g = (size_t)o * n_group + j / group;
                double w = kc_get(c->scales, DT_F16, g) *
                           ((double)c->q[(size_t)o * n_in + j] - c->zeros[g]);
                want += w * a->x[i * a->x_stride + j];
                size += fabs(w * a->x[i * a->x_stride + j]);
            }
            want *= a->rows[i].scale;
            size *= a->rows[i].scale;
            double bias = a->bias ? a->bias[o] : 0;
            double old = a->accumulate ? before[i * a->y_stride + o] : 0;
            kc_near(k, "y", y[i * a->y_stride + o], want + bias + old,
                    ((n_group + 3) * size + 2 * fabs(bias) + 2 * fabs(old)) * 0x1p-24 + 0x1p-120);
        }
}

static const void *row_alone(const struct kc_product *p, uint32_t i, float *y)
{
    const struct linear_w4a8_args *a = p->args;
    static struct linear_w4a8_args one;
    one = *a;
    one.by.n_row = 1;
    one.by.x = a->by.x + i * a->by.x_stride;
    one.by.rows = a->by.rows + i;
    one.sums = a->sums + i * a->by.x_stride / KERN_INT8_SUM;
    one.by.y = y;
    return &one;
}

void kcheck_linear_w4a8(struct kcheck *k)
{
    struct int4_case c;
    make_case(k, &c);
    kc_product_check(k, &(struct kc_product){
                            .args = &c,
                            .y = &c.a.by.y,
                            .y_dtype = &c.a.by.y_dtype,
                            .accumulate = &c.a.by.accumulate,
                            .gated = &c.a.by.w.gated,
                            .act = &c.a.by.w.act,
                            .n_row = c.a.by.n_row,
                            .n_out = c.a.by.w.n_out,
                            .y_stride = c.a.by.y_stride,
                            .definition = k->ref,
                            .row = row_alone,
                            .near = near_f64,
                        });
}
