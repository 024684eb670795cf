/* SPDX-License-Identifier: Apache-2.0 */
/* linear_int4: every variant against the reference, the reference against f64, and rows of a batch
 * against the same rows alone. */
#include "kcheck.h"
#include <math.h>
#include "kernels/variants.h"

struct int4_case {
    struct linear_int4_args a;
    size_t n_y;
    uint8_t *q;       /* [n_out, n_in], as it went in */
    uint16_t *scales; /* [n_out, n_in / group] */
    uint8_t *zeros;
};

static size_t round_up(size_t n)
{
    return (n + KERN_QUANT_K - 1) / KERN_QUANT_K * KERN_QUANT_K;
}

/* Any weights at all, and some at their extremes, where sums are largest. */
static void make_weights(struct kcheck *k, struct int4_case *c)
{
    const struct packed *w = &c->a.w;
    const uint32_t n_group = w->n_in / w->group;
    const size_t n = (size_t)w->n_out * w->n_in, n_scale = (size_t)w->n_out * n_group;
    const bool extreme = kc_chance(k, 20);
    const uint8_t zero = kc_chance(k, 50) ? 0 : 16;
    c->q = kc_buf(k, n);
    c->scales = kc_buf(k, n_scale * sizeof *c->scales);
    c->zeros = kc_buf(k, n_scale);
    kc_fill_dtype(k, c->scales, DT_F16, n_scale);
    for (size_t i = 0; i < n; i++)
        c->q[i] = extreme ? (zero ? 0 : 15) : (uint8_t)kc_range(k, 0, 15);
    for (size_t i = 0; i < n_scale; i++)
        c->zeros[i] = extreme ? zero : (uint8_t)kc_range(k, 0, 16);
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
                                    11, 12, 16, 17, 32, 33, 40, 97, 200};
    static const uint32_t groups[] = {32, 64, 128};
    uint32_t n_row = kc_pick(k, rows, 19), n_out = kc_range(k, 1, 200);
    uint32_t group = kc_pick(k, groups, 3);
    uint32_t n_in = group * kc_range(k, 1, 1 + 400000u / ((n_row + 1) * n_out) % 9);
    size_t x_stride = round_up(n_in) + KERN_QUANT_K * kc_range(k, 0, 1);
    float *x = kc_buf(k, (size_t)n_row * n_in * sizeof *x);
    kc_fill(k, x, (size_t)n_row * n_in);
    for (size_t i = 0; kc_chance(k, 5) && i < (size_t)n_row * n_in; i++)
        x[i] = kc_chance(k, 90) ? 1 : -1;
    struct quant_rows_args q = {.q = kc_buf(k, n_row * x_stride),
                                .rows = kc_buf(k, n_row * sizeof *q.rows),
                                .sums =
                                    kc_buf(k, n_row * x_stride / KERN_QUANT_SUM * sizeof *q.sums),
                                .x = x,
                                .n_row = n_row,
                                .n_col = n_in,
                                .x_stride = n_in,
                                .q_stride = x_stride};
    quant_rows_ref(&q, &(struct kern_exec){.nth = 1});
    *c = (struct int4_case){.a = {.x = q.q,
                                  .rows = q.rows,
                                  .sums = q.sums,
                                  .w = {.data = kc_buf(k, packed_int4_bytes(n_out, n_in, group)),
                                        .n_out = n_out,
                                        .n_in = n_in,
                                        .dtype = DT_I8,
                                        .group = group},
                                  .n_row = n_row,
                                  .x_stride = x_stride,
                                  .y_stride = n_out + kc_range(k, 0, 7),
                                  .accumulate = kc_chance(k, 40)}};
    make_weights(k, c);
    c->n_y = n_row ? (n_row - 1) * c->a.y_stride + n_out : 0;
    if (kc_chance(k, 50)) {
        float *bias = kc_buf(k, n_out * sizeof *bias);
        kc_fill(k, bias, n_out);
        c->a.bias = bias;
    }
    kc_shape(k, "n_row %u [%u,%u] group %u%s%s", n_row, n_out, n_in, group,
             c->a.bias ? " bias" : "", c->a.accumulate ? " accumulate" : "");
}

/* y against sums in f64 of the weights as they went in. */
static void near_f64(struct kcheck *k, const struct int4_case *c, const float *y,
                     const float *before)
{
    const struct linear_int4_args *a = &c->a;
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

/* Row i of the batch, run alone and with any number of threads, has the same bits. */
static void rows_alone(struct kcheck *k, const struct int4_case *c, const float *batch,
                       const float *before)
{
    const struct linear_int4_args *a = &c->a;
    float *y = kc_buf(k, a->w.n_out * sizeof *y);
    for (uint32_t i = 0; i < a->n_row; i += 1 + a->n_row / 9) {
        struct linear_int4_args one = *a;
        one.n_row = 1;
        one.x = a->x + i * a->x_stride;
        one.rows = a->rows + i;
        one.sums = a->sums + i * a->x_stride / KERN_QUANT_SUM;
        one.y = y;
        memcpy(y, before + i * a->y_stride, a->w.n_out * sizeof *y);
        kc_run(k, k->variant, &one, kc_range(k, 1, 9));
        kc_same_bits(k, "row alone",
                     (struct kc_bits){y, batch + i * a->y_stride, DT_F32, a->w.n_out});
    }
}

void kcheck_linear_int4(struct kcheck *k)
{
    struct int4_case c;
    make_case(k, &c);
    float *before = kc_buf(k, c.n_y * sizeof *before);
    kc_fill(k, before, c.n_y);
    float *want = kc_copy(k, before, c.n_y * sizeof *want),
          *got = kc_copy(k, before, c.n_y * sizeof *got);
    c.a.y = want;
    kc_run(k, k->ref, &c.a, 1);
    if (!k->specials)
        near_f64(k, &c, want, before);
    c.a.y = got;
    kc_run(k, k->variant, &c.a, kc_range(k, 1, 9));
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, c.a.n_row, c.a.w.n_out, c.a.y_stride},
               &(struct kc_array){want, DT_F32, c.a.n_row, c.a.w.n_out, c.a.y_stride});
    rows_alone(k, &c, got, before);
}
