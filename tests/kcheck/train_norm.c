/* SPDX-License-Identifier: Apache-2.0 */
/* layer_norm_grad. That its formula is the derivative: tests/unit/test_train_kernels.c. */
#include "kcheck.h"
#include <math.h>

struct unit_sums {                               /* of a unit, in f64 */
    double mean, r, g, products;                 /* g, products: means over the columns */
    double x_size, g_size, product_size, spread; /* the same of absolute values, to bound errors */
};

static struct unit_sums sums_of(const struct layer_norm_grad_args *a, const float *x,
                                const float *dy)
{
    struct unit_sums s = {0};
    const double n = a->n_col;
    double squares = 0;
    for (uint32_t c = 0; c < a->n_col; c++) {
        s.mean += (double)x[c] / n;
        s.x_size += fabs((double)x[c]) / n;
    }
    for (uint32_t c = 0; c < a->n_col; c++) {
        const double d = x[c] - s.mean, g = (double)dy[c] * a->w[c];
        const double size = fabs((double)x[c]) + s.x_size;
        squares += d * d / n;
        s.g += g / n;
        s.products += g * d / n;
        s.g_size += fabs(g) / n;
        s.product_size += fabs(g) * size / n;
        s.spread += size * size / n;
    }
    s.r = 1 / sqrt(squares + (double)a->eps);
    s.spread = 1 + s.r * s.r * s.spread; /* rounding of d counts the more, the less x varies */
    return s;
}

/* The formula in f64. What is taken off may cancel, so bounds are of the terms. */
static void layer_norm_near(struct kcheck *k, const struct layer_norm_grad_args *a, size_t i,
                            const float *before)
{
    const size_t row = i / a->n_unit, at = i % a->n_unit * a->n_col;
    const float *x = a->x + row * a->x_stride + at, *dy = a->dy + row * a->dy_stride + at;
    const float *dx = a->dx + row * a->dx_stride + at;
    const struct unit_sums s = sums_of(a, x, dy);
    const double step = (4 * a->n_col + 32) * 0x1p-24;
    kc_near(k, "mean", a->mean[i], s.mean, s.x_size * step + 1e-37);
    kc_near(k, "r", a->r[i], s.r, s.r * s.spread * step);
    for (uint32_t c = 0; c < a->n_col; c++) {
        const double g = (double)dy[c] * a->w[c], d = x[c] - s.mean;
        const double old = a->accumulate ? before[row * a->dx_stride + at + c] : 0;
        const double want = old + s.r * (g - s.g - d * s.r * s.r * s.products);
        const double size = fabs((double)x[c]) + s.x_size;
        const double terms = fabs(g) + s.g_size + size * s.r * s.r * s.product_size;
        kc_near(k, "dx", dx[c], want, (fabs(old) + s.r * terms * s.spread) * step + 1e-37);
    }
}

void kcheck_layer_norm_grad(struct kcheck *k)
{
    k->specials = false;
    struct layer_norm_grad_args a = {
        .accumulate = kc_chance(k, 50),
        .n_row = kc_range(k, 0, 6),
        .n_unit = kc_chance(k, 50) ? 1 : kc_range(k, 2, 5),
        .n_col = kc_range(k, 1, 200),
        .eps = 1e-5f,
    };
    const uint32_t width = a.n_unit * a.n_col;
    const size_t n_unit = (size_t)a.n_row * a.n_unit;
    const bool in_place = !a.accumulate && kc_chance(k, 30);
    a.x_stride = width + kc_range(k, 0, 9);
    a.dy_stride = width + kc_range(k, 0, 9);
    a.dx_stride = in_place ? a.dy_stride : width + kc_range(k, 0, 9);
    kc_shape(k, "%u rows of %u x %u%s%s", a.n_row, a.n_unit, a.n_col, a.accumulate ? " added" : "",
             in_place ? " in place" : "");
    const size_t n_dx = a.n_row * a.dx_stride, n_dy = a.n_row * a.dy_stride;
    float *x = kc_buf(k, a.n_row * a.x_stride * sizeof *x), *dy = kc_buf(k, n_dy * sizeof *dy);
    float *w = kc_buf(k, a.n_col * sizeof *w), *before = kc_buf(k, n_dx * sizeof *before);
    kc_fill(k, x, a.n_row * a.x_stride);
    kc_fill(k, dy, n_dy);
    kc_fill(k, w, a.n_col);
    kc_fill(k, before, n_dx);
    const float *start = in_place ? dy : before;
    float *want = kc_copy(k, start, n_dx * sizeof *want),
          *got = kc_copy(k, start, n_dx * sizeof *got);
    a.x = x;
    a.w = w;
    a.dy = dy;
    a.dx = want;
    a.r = kc_buf(k, n_unit * sizeof *a.r);
    a.mean = kc_buf(k, n_unit * sizeof *a.mean);
    kc_run(k, k->ref, &a, 1);
    for (size_t i = 0; i < n_unit; i++)
        layer_norm_near(k, &a, i, before);
    const float *r = a.r, *mean = a.mean;
    a.r = kc_buf(k, n_unit * sizeof *a.r);
    a.mean = kc_buf(k, n_unit * sizeof *a.mean);
    a.dx = got;
    a.dy = in_place ? got : dy;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "dx", &(struct kc_array){got, DT_F32, a.n_row, width, a.dx_stride},
               &(struct kc_array){want, DT_F32, a.n_row, width, a.dx_stride});
    kc_same_bits(k, "r", (struct kc_bits){a.r, r, DT_F32, n_unit});
    kc_same_bits(k, "mean", (struct kc_bits){a.mean, mean, DT_F32, n_unit});
}

void kbench_layer_norm_grad(struct kc_bench *b)
{
    const uint32_t n_row = 2048, n_col = 1024;
    const size_t n = (size_t)n_row * n_col;
    struct layer_norm_grad_args a = {
        .n_row = n_row,
        .n_unit = 1,
        .n_col = n_col,
        .dx_stride = n_col,
        .dy_stride = n_col,
        .x_stride = n_col,
        .accumulate = 1,
        .eps = 1e-6f,
    };
    float *x = kc_buf(b->k, n * 4), *dy = kc_buf(b->k, n * 4), *w = kc_buf(b->k, n_col * 4);
    kc_fill(b->k, x, n);
    kc_fill(b->k, dy, n);
    kc_fill(b->k, w, n_col);
    a.x = x;
    a.dy = dy;
    a.w = w;
    a.dx = kc_copy(b->k, x, n * 4);
    a.r = kc_buf(b->k, n_row * 4);
    a.mean = kc_buf(b->k, n_row * 4);
    kc_print_bytes(b, "2048 x 1024, added", kc_time(b, &a), (double)n * 16);
}
