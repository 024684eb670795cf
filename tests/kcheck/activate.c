/* SPDX-License-Identifier: Apache-2.0 */
#include "kcheck.h"
#include <math.h>
#include <string.h>

static double act_f64(enum kern_act act, double z)
{
    const double u = sqrt(2 / M_PI) * (z + 0.044715 * z * z * z);
    switch (act) {
    case KERN_GELU:
        return z / 2 * erfc(-z / sqrt(2));
    case KERN_GELU_TANH:
        return z / (1 + exp(-2 * u));
    case KERN_GELU_QUICK:
        return z / (1 + exp(-1.702 * z));
    case KERN_RELU:
        return fmax(z, 0);
    case KERN_RELU2:
        return fmax(z, 0) * fmax(z, 0);
    case KERN_IDENTITY:
        return z;
    default:
        return z / (1 + exp(-z));
    }
}

/* The larger of what is added up is what roundings are relative to. */
static double xielu_f64(const struct activate_args *a, double z, double *largest)
{
    const double beta = KERN_XIELU_BETA * z;
    const double p = log1p(exp(*a->positive)), n = KERN_XIELU_BETA + log1p(exp(*a->negative));
    const double curve = z > 0 ? p * z * z : n * (expm1(z) - z);
    *largest = fmax(fabs(beta), fmax(fabs(curve), n * fmin(-z, 1)));
    return beta + curve;
}

/* An exponent of up to 88 is rounded three times, which e^… multiplies by it; below that y is 0
 * instead of less than 1e-34. */
static void near_f64(struct kcheck *k, const struct activate_args *a, const void *y)
{
    if (a->y_dtype != DT_F32 || k->specials)
        return;
    for (uint32_t i = 0; i < a->n_row; i++)
        for (uint32_t c = 0; c < a->n_col; c++) {
            const double limit = a->limit > 0 ? a->limit : INFINITY;
            const double z = fmin(a->x[i * a->x_stride + c], limit);
            const double other = a->gated ? a->x[i * a->x_stride + a->n_col + c] : 1;
            const double up = a->limit > 0 ? fmin(fmax(other, -limit), limit) + 1 : other;
            double largest = 0, want = act_f64(a->act, z) * up;
            if (a->act == KERN_XIELU)
                want = xielu_f64(a, z, &largest);
            const double exponent = fmin(z < 0 ? z * z * 2 + 8 : 8, 270);
            kc_near(k, "y", ((const float *)y)[i * a->y_stride + c], want,
                    (fabs(want) * exponent + 4 * largest) * 0x1p-24 + 1e-34);
        }
}

static const float *kc_number(struct kcheck *k)
{
    float *x = kc_buf(k, sizeof *x);
    *x = (float)kc_range(k, 0, 400) / 16 - 4;
    return x;
}

void kcheck_activate(struct kcheck *k)
{
    static const uint32_t types[] = {DT_F32, DT_BF16, DT_F16}; /* the last on devices */
    const bool is_cuda = strcmp(k->variant->name, "cuda") == 0;
    const uint32_t n_row = kc_range(k, 0, 6), n_col = kc_range(k, 1, 300);
    const enum dtype y_dtype = (enum dtype)kc_pick(k, types, is_cuda ? 3 : 2);
    const int gated = kc_chance(k, 50);
    const float limit = gated && kc_chance(k, 50) ? (float)kc_range(k, 1, 20) / 2 : 0;
    const uint32_t n_in = gated ? 2 * n_col : n_col;
    const size_t x_stride = n_in + kc_range(k, 0, 9), y_stride = n_col + kc_range(k, 0, 9);
    const size_t element = dtype_bits(y_dtype) / 8, n = n_row * y_stride;
    const enum kern_act act = (enum kern_act)kc_range(k, 0, gated ? KERN_ACTS - 1 : KERN_XIELU);
    kc_shape(k, "act %d%s limit %g n_row %u n_col %u -> %s", (int)act, gated ? " gated" : "",
             (double)limit, n_row, n_col, dtype_name(y_dtype));
    float *x = kc_buf(k, n_row * x_stride * sizeof *x);
    const float wide = kc_chance(k, 30) ? 110.0f : 8.0f;
    for (size_t i = 0; i < n_row * x_stride; i++)
        x[i] = kc_f32(k) * wide;
    void *got = kc_buf(k, n * element), *want = kc_buf(k, n * element);
    struct activate_args a = {
        .act = act,
        .gated = gated,
        .limit = limit,
        .positive = kc_number(k),
        .negative = kc_number(k),
        .y = want,
        .y_dtype = y_dtype,
        .x = x,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = x_stride,
        .y_stride = y_stride,
    };
    kc_run(k, k->ref, &a, 1);
    near_f64(k, &a, want);
    a.y = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    near_f64(k, &a, got);
    kc_compare(k, "y", &(struct kc_array){got, y_dtype, n_row, n_col, y_stride},
               &(struct kc_array){want, y_dtype, n_row, n_col, y_stride});
    a.y = want;
    kc_same_as_sibling(k, &a, (struct kc_bits){want, got, y_dtype, n});
    for (uint32_t i = 0; i < n_row; i++) {
        struct activate_args one = a;
        one.n_row = 1;
        one.x = x + i * x_stride;
        one.y = kc_buf(k, n_col * element);
        kc_run(k, k->variant, &one, kc_range(k, 1, 5));
        kc_same_bits(k, "row alone",
                     (struct kc_bits){one.y, (char *)got + i * y_stride * element, y_dtype, n_col});
    }
}

void kbench_activate(struct kc_bench *b)
{
    const uint32_t n_row = 256, n_col = 4864;
    struct activate_args a = {
        .act = KERN_GELU_TANH,
        .gated = 1,
        .y_dtype = DT_BF16,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = 2 * n_col,
        .y_stride = n_col,
    };
    float *x = kc_buf(b->k, (size_t)n_row * n_col * 8);
    kc_fill(b->k, x, (size_t)n_row * n_col * 2);
    a.x = x;
    a.y = kc_buf(b->k, (size_t)n_row * n_col * 2);
    kc_print_bytes(b, "gelu tanh, 256 x 4864 -> bf16", kc_time(b, &a), n_row * (double)n_col * 10);
}
