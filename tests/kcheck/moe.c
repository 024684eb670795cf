/* SPDX-License-Identifier: Apache-2.0 */
/* route and combine. */
#include "kcheck.h"
#include <math.h>
#include "kernels/variants.h"

/* --- route --- */

static float score(const float *x, uint32_t j)
{
    return isnan(x[j]) ? -INFINITY : x[j];
}

/* Does expert j come before expert i? */
static bool before(const float *x, uint32_t j, uint32_t i)
{
    return score(x, j) > score(x, i) || (score(x, j) == score(x, i) && j < i);
}

/* What the header says, by counting and in f64. */
static void plain_row(struct kcheck *k, const struct route_args *a, size_t row)
{
    const float *x = a->x + row * a->x_stride;
    const uint32_t *experts = a->experts + row * a->n_used;
    const float *weights = a->weights + row * a->n_used;
    double max = -INFINITY, sum = 0, taken = 0;
    uint32_t n = 0;
    for (uint32_t j = 0; j < a->n_expert; j++)
        max = fmax(max, score(x, j));
    for (uint32_t j = 0; j < a->n_expert; j++)
        sum += max == -INFINITY ? 0 : exp(score(x, j) - max);
    for (uint32_t j = 0; j < a->n_expert; j++) {
        uint32_t n_before = 0;
        for (uint32_t i = 0; i < a->n_expert; i++)
            n_before += before(x, i, j);
        if (n_before >= a->n_used)
            continue;
        if (n >= a->n_used || experts[n] != j)
            kc_fail(k, "row %zu: place %u has expert %u, not %u", row, n, experts[n], j);
        n++;
    }
    for (uint32_t i = 0; i < a->n_used; i++)
        taken += exp(score(x, experts[i]) - max) / sum;
    for (uint32_t i = 0; i < a->n_used && sum > 0 && isfinite(sum); i++) {
        const double p = exp(score(x, experts[i]) - max) / sum;
        const double want = a->renormalize ? p / taken : p;
        /* the difference to the largest is rounded before exp, and n_expert terms are added up */
        const double off = 2 * (a->n_expert + 16 + fabs(score(x, experts[i]) - max));
        kc_near(k, "weight", weights[i], want, want > 0 ? want * off * 0x1p-24 + 1e-37 : 1e-37);
    }
    for (uint32_t i = 0; i < a->n_used && sum == 0; i++)
        kc_near(k, "weight of nothing", weights[i], 0, 0);
}

void kcheck_route(struct kcheck *k)
{
    static const uint32_t counts[] = {1, 2, 4, 8, 60, 64, 128, 160, 256};
    struct route_args a = {.n_row = kc_range(k, 0, 6),
                           .n_expert = kc_pick(k, counts, sizeof counts / sizeof *counts),
                           .renormalize = kc_chance(k, 50)};
    a.n_used = kc_range(k, 1, a.n_expert < 12 ? a.n_expert : 12);
    a.x_stride = a.n_expert + kc_range(k, 0, 7);
    kc_shape(k, "n_row %u experts %u of %u%s", a.n_row, a.n_used, a.n_expert,
             a.renormalize ? " renormalized" : "");
    float *x = kc_buf(k, a.n_row * a.x_stride * sizeof *x);
    const bool ties = kc_chance(k, 30), wide = kc_chance(k, 20);
    for (size_t i = 0; i < a.n_row * a.x_stride; i++)
        x[i] = ties ? (float)kc_range(k, 0, 3) : kc_f32(k) * (wide ? 100.0f : 6.0f);
    const size_t n = (size_t)a.n_row * a.n_used;
    a.x = x;
    uint32_t *experts = a.experts = kc_buf(k, n * sizeof *experts);
    float *weights = a.weights = kc_buf(k, n * sizeof *weights);
    kc_run(k, k->ref, &a, 1);
    for (size_t i = 0; i < a.n_row; i++)
        plain_row(k, &a, i);
    a.experts = kc_buf(k, n * sizeof *experts);
    a.weights = kc_buf(k, n * sizeof *weights);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    for (size_t i = 0; i < n; i++)
        if (a.experts[i] != experts[i])
            kc_fail(k, "expert %zu is %u, not %u", i, a.experts[i], experts[i]);
    kc_compare(k, "weights", &(struct kc_array){a.weights, DT_F32, a.n_row, a.n_used, a.n_used},
               &(struct kc_array){weights, DT_F32, a.n_row, a.n_used, a.n_used});
    for (uint32_t i = 0; i < a.n_row; i++) { /* a row alone takes the same */
        struct route_args one = a;
        one.n_row = 1;
        one.x = x + i * a.x_stride;
        one.experts = kc_buf(k, a.n_used * sizeof *experts);
        one.weights = kc_buf(k, a.n_used * sizeof *weights);
        kc_run(k, k->variant, &one, 1);
        kc_same_bits(
            k, "row alone",
            (struct kc_bits){one.weights, a.weights + (size_t)i * a.n_used, DT_F32, a.n_used});
        kc_drop(k, 2);
    }
}

void kbench_route(struct kc_bench *b)
{
    const uint32_t n_row = 512, n_expert = 128, n_used = 8;
    float *x = kc_buf(b->k, (size_t)n_row * n_expert * sizeof *x);
    kc_fill(b->k, x, (size_t)n_row * n_expert);
    const struct route_args a = {.x = x,
                                 .x_stride = n_expert,
                                 .n_row = n_row,
                                 .n_expert = n_expert,
                                 .n_used = n_used,
                                 .renormalize = 1,
                                 .experts = kc_buf(b->k, (size_t)n_row * n_used * 4),
                                 .weights = kc_buf(b->k, (size_t)n_row * n_used * 4)};
    kc_print_bytes(b, "512 x 8 of 128", kc_time(b, &a), n_row * (double)n_expert * 4);
}

/* --- combine --- */

struct combine_case {
    struct combine_args a;
    float *y; /* as it was */
    size_t n_y;
};

static void make_combine(struct kcheck *k, struct combine_case *c)
{
    struct combine_args *a = &c->a;
    *a = (struct combine_args){
        .n_row = kc_range(k, 0, 6), .n_col = kc_range(k, 1, 600), .n_used = kc_range(k, 1, 8)};
    a->y_stride = a->n_col + kc_range(k, 0, 9);
    a->x_stride = a->n_col + kc_range(k, 0, 9);
    kc_shape(k, "n_row %u n_col %u of %u", a->n_row, a->n_col, a->n_used);
    const uint32_t n = a->n_row * a->n_used;
    uint32_t *places = kc_buf(k, n * sizeof *places);
    float *x = kc_buf(k, n * a->x_stride * sizeof *x), *weights = kc_buf(k, n * sizeof *weights);
    for (uint32_t i = 0; i < n; i++)
        places[i] = kc_range(k, 0, n - 1);
    kc_fill(k, x, n * a->x_stride);
    kc_fill(k, weights, n);
    a->x = x;
    a->places = places;
    a->weights = weights;
    c->n_y = a->n_row * a->y_stride;
    c->y = kc_buf(k, c->n_y * sizeof *c->y);
    kc_fill(k, c->y, c->n_y);
}

void kcheck_combine(struct kcheck *k)
{
    struct combine_case c;
    make_combine(k, &c);
    struct combine_args a = c.a;
    float *want = kc_copy(k, c.y, c.n_y * sizeof *want),
          *got = kc_copy(k, c.y, c.n_y * sizeof *got);
    a.y = want;
    kc_run(k, k->ref, &a, 1);
    for (uint32_t i = 0; i < a.n_row && !k->specials; i++)
        for (uint32_t col = 0; col < a.n_col; col++) {
            double sum = c.y[i * a.y_stride + col], most = fabs(sum);
            for (uint32_t j = i * a.n_used; j < (i + 1) * a.n_used; j++) {
                const double v = (double)a.weights[j] * a.x[a.places[j] * a.x_stride + col];
                sum += v;
                most += fabs(v);
            }
            kc_near(k, "y", want[i * a.y_stride + col], sum, most * a.n_used * 0x1p-24 + 1e-37);
        }
    a.y = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    const size_t n_row = a.n_row, n_col = a.n_col;
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, n_row, n_col, a.y_stride},
               &(struct kc_array){want, DT_F32, n_row, n_col, a.y_stride});
    for (uint32_t i = 0; i < a.n_row; i++) {
        struct combine_args one = a;
        one.n_row = 1;
        one.places += (size_t)i * a.n_used;
        one.weights += (size_t)i * a.n_used;
        one.y = kc_copy(k, c.y + i * a.y_stride, n_col * sizeof *one.y);
        kc_run(k, k->variant, &one, kc_range(k, 1, 5));
        kc_same_bits(k, "row alone", (struct kc_bits){one.y, got + i * a.y_stride, DT_F32, n_col});
    }
}

void kbench_combine(struct kc_bench *b)
{
    const uint32_t n_row = 128, n_used = 8, n_col = 2048, n = n_row * n_used;
    uint32_t *places = kc_buf(b->k, n * sizeof *places);
    float *x = kc_buf(b->k, (size_t)n * n_col * sizeof *x);
    float *weights = kc_buf(b->k, n * sizeof *weights);
    for (uint32_t i = 0; i < n; i++)
        places[i] = i * 7 % n;
    kc_fill(b->k, x, (size_t)n * n_col);
    kc_fill(b->k, weights, n);
    float *y = kc_buf(b->k, (size_t)n_row * n_col * sizeof *y);
    kc_fill(b->k, y, (size_t)n_row * n_col);
    const struct combine_args a = {y, n_col, x, n_col, places, weights, n_row, n_col, n_used};
    kc_print_bytes(b, "128 x 2048 of 8", kc_time(b, &a), n * (double)n_col * 4);
}
