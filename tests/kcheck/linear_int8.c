/* SPDX-License-Identifier: Apache-2.0 */
/* linear_int8: every variant against the reference, the reference against sums in 64 bits, and
 * rows of a batch against the same rows alone. */
#include <math.h>
#include "kernels/variants.h"
#include "product.h"

static size_t round_up(size_t n)
{
    return (n + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
}

/* Weights and activations as pack_int8 and quant_rows make them; some rows and outputs at their
 * extremes, where sums are largest. */
static void make_case(struct kcheck *k, struct linear_int8_args *a)
{
    static const uint32_t rows[] = {0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 16, 17, 40, 97, 200};
    uint32_t n_row = kc_pick(k, rows, 17), n_out = kc_product_outputs(k, 330);
    uint32_t most = 4000000u / ((n_row + 1) * n_out);
    uint32_t n_in = kc_range(k, 1, kc_chance(k, 60) ? 150 : most > 3000 ? 3000 : most + 64);
    size_t n_w = (size_t)n_out * n_in, x_stride = round_up(n_in) + KERN_INT8_K * kc_range(k, 0, 1);
    float *w = kc_buf(k, n_w * sizeof *w), *x = kc_buf(k, (size_t)n_row * n_in * sizeof *x);
    kc_fill(k, w, n_w);
    kc_fill(k, x, (size_t)n_row * n_in);
    bool extreme = kc_chance(k, 20);
    for (size_t i = 0; extreme && i < n_w; i++)
        w[i] = kc_chance(k, 90) ? -1 : 1;
    for (size_t i = 0; extreme && i < (size_t)n_row * n_in; i++)
        x[i] = kc_chance(k, 90) ? 1 : -1;
    void *data = kc_buf(k, packed_int8_bytes(n_out, n_in));
    struct pack_int8_args p = {
        .dst = data,
        .src = w,
        .src_dtype = DT_F32,
        .n_out = n_out,
        .n_in = n_in,
        .n_out_total = n_out,
    };
    pack_int8_ref(&p, &(struct kern_exec){.nth = 1});
    for (uint32_t o = 0; extreme && o < n_out; o++) { /* as a checkpoint has them */
        int8_t *own = kc_chance(k, 5) && k->n_buf < 20 ? kc_buf(k, n_in) : NULL;
        if (own) {
            memset(own, -128, n_in);
            kern_int8_set(
                &(struct packed){.data = data, .n_out = n_out, .n_in = n_in, .dtype = DT_I8}, o,
                own, 0.01f);
        }
    }
    struct quant_rows_args q = {
        .q = kc_buf(k, n_row * x_stride),
        .rows = kc_buf(k, n_row * sizeof *q.rows),
        .x = x,
        .n_row = n_row,
        .n_col = n_in,
        .x_stride = n_in,
        .q_stride = x_stride,
    };
    quant_rows_ref(&q, &(struct kern_exec){.nth = 1});
    *a = (struct linear_int8_args){
        .x = q.q,
        .rows = q.rows,
        .w = {.data = data, .n_out = n_out, .n_in = n_in, .dtype = DT_I8},
        .n_row = n_row,
        .x_stride = x_stride,
        .y_stride = n_out + kc_range(k, 0, 7),
        .accumulate = kc_chance(k, 40),
    };
    a->bias = kc_product_bias(k, n_out);
    kc_shape(k, "n_row %u [%u,%u]%s%s", n_row, n_out, n_in, a->bias ? " bias" : "",
             a->accumulate ? " accumulate" : "");
}

/* y against sums in 64 bits over the bytes; the layout is written out a second time. */
static void near_f64(struct kcheck *k, const struct kc_product *p, const float *y,
                     const float *before)
{
    const struct linear_int8_args *a = p->args;
    const size_t n_k = round_up(a->w.n_in), panel_bytes = n_k * 64 + 256;
    for (uint32_t i = 0; i < a->n_row; i += 1 + a->n_row / 3)
        for (uint32_t o = 0; o < a->w.n_out; o++) {
            const uint8_t *panel = (const uint8_t *)a->w.data + o / 64 * panel_bytes;
            int64_t sum = 0;
            float scale;
            memcpy(&scale, panel + n_k * 64 + 4 * (size_t)(o % 64), 4);
            for (uint32_t j = 0; j < a->w.n_in; j++)
                sum += a->x[i * a->x_stride + j] *
                       (panel[(size_t)(j / 4) * 256 + (size_t)(o % 64) * 4 + j % 4] - 128);
            double want = (double)sum * scale * a->rows[i].scale, size = fabs(want);
            double bias = a->bias ? a->bias[o] : 0;
            double old = a->accumulate ? before[i * a->y_stride + o] : 0;
            kc_near(k, "y", y[i * a->y_stride + o], want + bias + old,
                    (4 * size + 2 * fabs(bias) + 2 * fabs(old)) * 0x1p-24 + 0x1p-120);
        }
}

static const void *row_alone(const struct kc_product *p, uint32_t i, float *y)
{
    const struct linear_int8_args *a = p->args;
    static struct linear_int8_args one;
    one = *a;
    one.n_row = 1;
    one.x = a->x + i * a->x_stride;
    one.rows = a->rows + i;
    one.y = y;
    return &one;
}

void kcheck_linear_int8(struct kcheck *k)
{
    struct linear_int8_args a;
    make_case(k, &a);
    kc_product_check(k, &(struct kc_product){
                            .args = &a,
                            .y = &a.y,
                            .y_dtype = &a.y_dtype,
                            .accumulate = &a.accumulate,
                            .gated = &a.w.gated,
                            .act = &a.w.act,
                            .n_row = a.n_row,
                            .n_out = a.w.n_out,
                            .y_stride = a.y_stride,
                            .definition = k->ref,
                            .row = row_alone,
                            .near = near_f64,
                        });
}
