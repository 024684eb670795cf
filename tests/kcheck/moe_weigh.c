/* SPDX-License-Identifier: Apache-2.0 */
/* moe_weigh: floats and bytes, from rows to places and in place. */
#include "kcheck.h"
#include <string.h>
#include "kernels/ops/ops_moe.h"

struct weigh_case {
    struct moe_weigh_args a;
    uint32_t n_place, n_x; /* rows of y; of x */
    size_t element;
    bool bytes;
};

static void make_places(struct kcheck *k, struct weigh_case *c)
{
    uint32_t *places = kc_buf(k, (c->n_place + 1) * sizeof *places);
    float *weights = kc_buf(k, (c->n_place + 1) * sizeof *weights);
    for (uint32_t i = 0; i < c->n_place; i++) { /* each place once */
        const uint32_t j = kc_range(k, 0, i);
        places[i] = places[j];
        places[j] = i;
    }
    kc_fill(k, weights, c->n_place);
    c->a.places = places;
    c->a.weights = weights;
}

static void make_scales(struct kcheck *k, struct weigh_case *c)
{
    struct moe_weigh_args *a = &c->a;
    struct quant_row *rows = kc_buf(k, (c->n_x + 1) * sizeof *rows);
    a->x_scale_stride = (a->n_col + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK + kc_range(k, 0, 3);
    a->y_scale_stride = a->x_scale_stride + kc_range(k, 0, 3);
    float *scales = kc_buf(k, (c->n_x + 1) * a->x_scale_stride * sizeof *scales);
    kc_fill(k, scales, c->n_x * a->x_scale_stride);
    for (uint32_t i = 0; i < c->n_x; i++)
        rows[i] = (struct quant_row){kc_f32(k), (int32_t)i};
    if (kc_chance(k, 50)) {
        a->x_scales = scales;
        a->y_scales = kc_buf(k, (c->n_place + 1) * a->y_scale_stride * sizeof *scales);
    } else {
        a->x_rows = rows;
        a->y_rows = kc_buf(k, (c->n_place + 1) * sizeof *rows);
    }
}

static void make_weigh(struct kcheck *k, struct weigh_case *c)
{
    static const uint32_t types[] = {DT_F32, DT_BF16, DT_F16, DT_I8, DT_F8_E4M3};
    struct moe_weigh_args *a = &c->a;
    *c = (struct weigh_case){
        .a =
            {
                .dtype = (enum dtype)kc_pick(k, types, 5),
                .n_row = kc_range(k, 0, 6),
                .n_col = kc_chance(k, 50) ? 16 * kc_range(k, 1, 90) : kc_range(k, 1, 300),
                .n_used = kc_range(k, 1, 4),
                .of_places = kc_chance(k, 40),
            },
    };
    c->bytes = a->dtype == DT_I8 || a->dtype == DT_F8_E4M3;
    c->element = c->bytes ? 1 : dtype_bits(a->dtype) / 8;
    c->n_place = a->n_row * a->n_used;
    c->n_x = a->of_places ? c->n_place : a->n_row;
    const uint32_t whole = (a->n_col + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
    a->x_stride = c->bytes ? whole : a->n_col + kc_range(k, 0, 5);
    a->y_stride = c->bytes ? whole + KERN_INT8_K * kc_range(k, 0, 1) : a->n_col + kc_range(k, 0, 5);
    kc_shape(k, "%s, %u rows of %u, %u places each%s", dtype_name(a->dtype), a->n_row, a->n_col,
             a->n_used, a->of_places ? ", in place" : "");
    k->specials = false;
    make_places(k, c);
    unsigned char *x = kc_buf(k, (c->n_x + 1) * a->x_stride * c->element);
    for (size_t i = 0; c->bytes && i < c->n_x * a->x_stride; i++)
        x[i] = (unsigned char)kc_range(k, 0, 255);
    if (!c->bytes)
        kc_fill_dtype(k, x, a->dtype, c->n_x * a->x_stride);
    a->x = x;
    if (c->bytes)
        make_scales(k, c);
}

/* Place p, made of row r of x as it was. */
static void check_place(struct kcheck *k, const struct weigh_case *c, const void *x, uint32_t i)
{
    const struct moe_weigh_args *a = &c->a;
    const uint32_t p = a->places[i], r = a->of_places ? p : i / a->n_used;
    const float w = a->weights[i];
    const char *y = (const char *)a->y + p * a->y_stride * c->element;
    const char *from = (const char *)x + r * a->x_stride * c->element;
    k->n_compared += a->n_col;
    if (c->bytes && memcmp(y, from, a->n_col) != 0)
        kc_fail(k, "place %u has other bytes than row %u", p, r);
    for (uint32_t j = 0; j < a->n_col && !c->bytes; j++) {
        const float v = kc_get(from, a->dtype, j) * w;
        const float want = a->dtype == DT_BF16  ? bf16_to_f32(f32_to_bf16(v))
                           : a->dtype == DT_F16 ? f16_to_f32(f32_to_f16(v))
                                                : v;
        kc_near(k, "y", (double)kc_get(y, a->dtype, j), (double)want, 0);
    }
    for (uint32_t b = 0; a->y_scales && b < (a->n_col + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK; b++)
        kc_near(k, "scale of a block", (double)a->y_scales[p * a->y_scale_stride + b],
                (double)(a->x_scales[r * a->x_scale_stride + b] * w), 0);
    if (a->y_rows)
        kc_near(k, "scale", (double)a->y_rows[p].scale, (double)(a->x_rows[r].scale * w), 0);
    if (a->y_rows && a->y_rows[p].sum != a->x_rows[r].sum)
        kc_fail(k, "place %u has the sum of row %d, not %u", p, a->y_rows[p].sum, r);
}

void kcheck_moe_weigh(struct kcheck *k)
{
    struct weigh_case c;
    make_weigh(k, &c);
    struct moe_weigh_args *a = &c.a;
    const void *x = kc_copy(k, a->x, (c.n_x + 1) * a->x_stride * c.element);
    a->y = kc_buf(k, (c.n_place + 1) * a->y_stride * c.element);
    if (a->of_places && kc_chance(k, 50)) { /* y is x */
        a->y = kc_copy(k, a->x, (c.n_x + 1) * a->x_stride * c.element);
        a->x = a->y;
        a->y_stride = a->x_stride;
    }
    kc_run(k, k->variant, a, kc_range(k, 1, 3));
    for (uint32_t i = 0; i < c.n_place; i++)
        check_place(k, &c, x, i);
}

void kbench_moe_weigh(struct kc_bench *b)
{
    (void)b; /* a device's: tests/gpu */
}
