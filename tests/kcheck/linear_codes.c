/* SPDX-License-Identifier: Apache-2.0 */
/* linear_codes: every variant against the reference, the reference against f64, rows of a batch
 * against the same rows alone; products of f32, of every kind, against `linear` with the matrix
 * that the codes stand for, products of integers against that matrix one input at a time: the same
 * bits. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "kernels/variants.h"
#include "product.h"

struct codes_case {
    struct linear_codes_args a; /* first member: the arguments of a call */
    float *w;                   /* [n_out, n_in] that it stands for */
    float *size;                /* of the two terms of w */
};

/* One output's numbers, and what they stand for. */
static void make_output(struct kcheck *k, const struct packed *w, uint32_t o, float *values,
                        float *size)
{
    const bool extreme = kc_chance(k, 10); /* the largest products, all of one sign */
    enum { IN_MAX = 1024 };
    static uint8_t q[IN_MAX];
    static float scales[IN_MAX], mins[IN_MAX], supers[IN_MAX], super_mins[IN_MAX];
    static int8_t parts[IN_MAX], part_mins[IN_MAX];
    const struct packed_codes *c = &w->codes;
    const uint32_t n_group = w->n_in / c->group;
    const bool by_256 = c->scales == KERN_SCALES_BY_256;
    kc_fill(k, supers, IN_MAX);
    kc_fill(k, super_mins, IN_MAX);
    for (uint32_t i = 0; i < IN_MAX; i++) { /* d and dmin are of f16, so scales are exact */
        supers[i] = f16_to_f32(f32_to_f16(supers[i]));
        super_mins[i] = f16_to_f32(f32_to_f16(super_mins[i]));
    }
    kc_fill(k, scales, n_group);
    kc_fill(k, mins, n_group);
    for (uint32_t i = 0; i < w->n_in; i++)
        q[i] = c->kind == KERN_CODES_SIX
                   ? (uint8_t)((int)kc_range(k, 0, 63) - 32)
                   : (uint8_t)kc_range(k, 0, c->kind == KERN_CODES_BYTES ? 255 : 15);
    for (uint32_t i = 0; extreme && i < w->n_in; i++)
        q[i] = c->kind == KERN_CODES_SIX      ? (uint8_t)-32
               : c->kind == KERN_CODES_BYTES  ? 128
               : c->kind == KERN_CODES_SIGNED ? 0
                                              : 15;
    for (uint32_t g = 0; g < n_group; g++) {
        parts[g] = (int8_t)((int)kc_range(k, 0, 255) - 128);
        part_mins[g] = (int8_t)((int)kc_range(k, 0, 255) - 128);
        if (extreme)
            parts[g] = part_mins[g] = -128;
        if (c->scales == KERN_SCALES_F16) {
            scales[g] = f16_to_f32(f32_to_f16(scales[g]));
            mins[g] = f16_to_f32(f32_to_f16(mins[g]));
        }
    }
    kern_codes_set(w, o,
                   &(struct codes_output){q, scales, mins, parts, part_mins, supers, super_mins});
    for (uint32_t i = 0; i < w->n_in; i++) {
        const uint32_t g = i / c->group;
        const float scale = by_256 ? supers[i / 256] * (float)parts[g] : scales[g];
        const float min = by_256 ? super_mins[i / 256] * (float)part_mins[g] : mins[g];
        const float value = kern_codes_value((enum kern_codes)c->kind, q[i]);
        values[i] = fmaf(scale, value, c->has_min ? min : 0);
        size[i] = fabsf(scale * value) + (c->has_min ? fabsf(min) : 0);
    }
}

static void make_case(struct kcheck *k, struct codes_case *c)
{
    static const uint32_t rows[] = {0, 1, 1, 2, 3, 4, 5, 8, 17, 100}, groups[] = {16, 32, 64, 128};
    const uint32_t n_row = kc_pick(k, rows, 10), n_out = kc_product_outputs(k, 100);
    const bool by_ints = kc_chance(k, 50);
    const struct packed_codes codes = {
        .kind = (uint8_t)kc_range(k, KERN_CODES_BYTES,
                                  (by_ints ? KERN_CODES_INT_END : KERN_CODES_END) - 1),
        .scales = (uint8_t)kc_range(k, KERN_SCALES_F32, KERN_SCALES_BY_256),
        .has_min = kc_chance(k, 50),
        .group = (uint8_t)kc_pick(k, groups, 4),
        .by_ints = by_ints,
    };
    const uint32_t unit = codes.scales == KERN_SCALES_BY_256 ? KERN_CODES_SUPER : codes.group;
    const uint32_t n_in = unit * kc_range(k, 1, 512 / unit);
    const enum dtype x_dtype = kc_chance(k, 50) ? DT_BF16 : DT_F32;
    const size_t x_stride = n_in + 8 * kc_range(k, 0, 2);
    const size_t bytes = packed_codes_bytes(&codes, n_out, n_in);
    void *x = kc_buf(k, n_row * x_stride * 4);
    *c = (struct codes_case){
        .a.by =
            {
                .x = x,
                .x_dtype = x_dtype,
                .w =
                    {
                        .data = kc_buf(k, bytes),
                        .n_out = n_out,
                        .n_in = n_in,
                        .dtype = DT_F32,
                        .codes = codes,
                    },
                .n_row = n_row,
                .x_stride = x_stride,
                .y_stride = n_out + kc_range(k, 0, 7),
                .accumulate = kc_chance(k, 40),
            },
        .w = kc_buf(k, (size_t)n_out * n_in * sizeof(float)),
        .size = kc_buf(k, (size_t)n_out * n_in * sizeof(float)),
    };
    kc_fill_dtype(k, x, x_dtype, n_row * x_stride);
    if (by_ints && x_dtype == DT_F32 && kc_chance(k, 10)) /* rounded to the largest integer */
        for (size_t i = 0; i < n_row * x_stride; i++)
            ((float *)x)[i] = 0x1.fffffep0f;
    memset((void *)(uintptr_t)c->a.by.w.data, 0, bytes);
    for (uint32_t o = 0; o < n_out; o++)
        make_output(k, &c->a.by.w, o, c->w + (size_t)o * n_in, c->size + (size_t)o * n_in);
    c->a.by.bias = kc_product_bias(k, n_out);
    kc_shape(k, "%s n_row %u [%u,%u] kind %u scales %u%s group %u%s%s%s", dtype_name(x_dtype),
             n_row, n_out, n_in, codes.kind, codes.scales, codes.has_min ? " min" : "", codes.group,
             by_ints ? " by ints" : "", c->a.by.bias ? " bias" : "",
             c->a.by.accumulate ? " accumulate" : "");
}

/* Largest error of row i's input j that its rounding causes. */
static double rounding_of(const struct linear_args *a, uint32_t i, uint32_t j)
{
    double most = 0;
    if (!a->w.codes.by_ints)
        return 0;
    for (uint32_t k = j / KERN_CODES_X * KERN_CODES_X;
         k < a->w.n_in && k / KERN_CODES_X == j / KERN_CODES_X; k++)
        most = fmax(most, fabs((double)kc_get(a->x, a->x_dtype, i * a->x_stride + k)));
    return most * 0x1p-14 /* half of a unit, or a whole one near the largest integer */;
}

/* y against sums in f64 of the numbers that went in. */
static void near_f64(struct kcheck *k, const struct kc_product *p, const float *y,
                     const float *before)
{
    const struct codes_case *c = p->args;
    const struct linear_args *a = &c->a.by;
    const uint32_t n_in = a->w.n_in;
    for (uint32_t i = 0; i < a->n_row; i += 1 + a->n_row / 3)
        for (uint32_t o = 0; o < a->w.n_out; o++) {
            double want = 0, size = 0, rounding = 0, unit = 0;
            for (uint32_t j = 0; j < n_in; j++) {
                const double x = (double)kc_get(a->x, a->x_dtype, i * a->x_stride + j);
                const double of = (double)c->size[(size_t)o * n_in + j];
                unit = j % KERN_CODES_X ? unit : rounding_of(a, i, j);
                want += (double)c->w[(size_t)o * n_in + j] * x;
                size += of * fabs(x);
                rounding += of * unit;
            }
            const double bias = a->bias ? (double)a->bias[o] : 0;
            const double old = a->accumulate ? (double)before[i * a->y_stride + o] : 0;
            kc_near(k, "y", (double)y[i * a->y_stride + o], want + bias + old,
                    ((n_in + 3) * (size + rounding) + 2 * fabs(bias) + 2 * fabs(old)) * 0x1p-24 +
                        rounding + 0x1p-120);
        }
}

static const void *row_alone(const struct kc_product *p, uint32_t i, float *y)
{
    const struct linear_codes_args *a = p->args;
    static struct linear_codes_args one;
    one = *a;
    one.by.n_row = 1;
    one.by.x = (const char *)a->by.x + i * a->by.x_stride * (dtype_bits(a->by.x_dtype) / 8);
    one.by.y = y;
    return &one;
}

/* The variant with these codes, and the reference of linear with their f32. */
static void same_as_linear(struct kcheck *k, const struct codes_case *c)
{
    const uint32_t n_in = c->a.by.w.n_in, n_out = c->a.by.w.n_out, n_row = c->a.by.n_row;
    const struct kern_exec alone = {.nth = 1};
    void *data = kc_buf(k, packed_bytes(DT_F32, n_out, n_in));
    float *want = kc_buf(k, (size_t)n_row * n_out * sizeof *want);
    float *got = kc_buf(k, (size_t)n_row * n_out * sizeof *got);
    struct linear_codes_args by_codes = c->a;
    pack_ref(&(struct pack_args){data, DT_F32, c->w, DT_F32, n_out, n_in, 0, n_out}, &alone);
    by_codes.by.accumulate = 0;
    by_codes.by.y_dtype = DT_F32;
    by_codes.by.y_stride = n_out;
    by_codes.by.y = got;
    struct linear_args by_floats = by_codes.by;
    by_floats.w = (struct packed){.data = data, .n_out = n_out, .n_in = n_in, .dtype = DT_F32};
    by_floats.y = want;
    linear_ref(&by_floats, &alone);
    kc_run(k, k->variant, &by_codes, kc_range(k, 1, 3));
    kc_same_bits(k, "y by linear", (struct kc_bits){got, want, DT_F32, (size_t)n_row * n_out});
}

/* One input that is not 0, of at most 14 bits: its products with the f32 of the codes. */
static void one_input(struct kcheck *k, const struct codes_case *c)
{
    const uint32_t n_in = c->a.by.w.n_in, n_out = c->a.by.w.n_out, at = kc_range(k, 0, n_in - 1);
    struct linear_codes_args one = c->a;
    float *x = kc_buf(k, n_in * sizeof *x), *want = kc_buf(k, n_out * sizeof *want);
    const int exponent = (int)kc_range(k, 0, 20) - 10;
    memset(x, 0, n_in * sizeof *x);
    x[at] = ldexpf(kc_chance(k, 50) ? 1 : -1, exponent);
    one.by.x = x;
    one.by.x_dtype = DT_F32;
    one.by.n_row = 1;
    one.by.accumulate = 0;
    one.by.bias = NULL;
    one.by.y_dtype = DT_F32;
    one.by.y_stride = n_out;
    one.by.y = kc_buf(k, n_out * sizeof(float));
    for (uint32_t o = 0; o < n_out; o++)
        want[o] = 0 + x[at] * c->w[(size_t)o * n_in + at];
    kc_run(k, k->variant, &one, kc_range(k, 1, 3));
    kc_same_bits(k, "y of one input", (struct kc_bits){one.by.y, want, DT_F32, n_out});
}

void kcheck_linear_codes(struct kcheck *k)
{
    struct codes_case c;
    k->specials = false;
    make_case(k, &c);
    if (c.a.by.w.codes.by_ints)
        one_input(k, &c);
    else if (c.a.by.x_dtype == DT_F32)
        same_as_linear(k, &c);
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

/* Forms of Q4_K, Q5_K, Q6_K, IQ4_XS, Q8_0, MXFP4 and nf4. */
void kbench_linear_codes(struct kc_bench *b)
{
    enum { BIG_OUT = 9728, BIG_IN = 4096 };
    static const struct {
        const char *name;
        struct packed_codes codes;
    } forms[] = {
        {"q4_k", {KERN_CODES_HALVES, KERN_SCALES_BY_256, 1, 32, 1}},
        {"q5_k", {KERN_CODES_SIX, KERN_SCALES_BY_256, 1, 32, 1}},
        {"q6_k", {KERN_CODES_SIX, KERN_SCALES_BY_256, 0, 16, 1}},
        {"iq4_xs", {KERN_CODES_NL, KERN_SCALES_BY_256, 0, 32, 1}},
        {"q8_0", {KERN_CODES_BYTES, KERN_SCALES_F16, 0, 32, 1}},
        {"mxfp4", {KERN_CODES_E2M1, KERN_SCALES_F32, 0, 32, 0}},
        {"nf4", {KERN_CODES_NF4, KERN_SCALES_F32, 0, 64, 0}},
    };
    static const uint32_t rows[] = {1, 2, 4, 16, 32, 512};
    if (!b->k->variant->caps)
        return; /* the reference would take minutes */
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++) {
        const size_t bytes = packed_codes_bytes(&forms[f].codes, BIG_OUT, BIG_IN);
        void *weights = kc_map(bytes, true);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const uint32_t n = rows[i];
            char shape[64];
            float *x = kc_buf(b->k, (size_t)n * BIG_IN * sizeof *x);
            kc_fill(b->k, x, (size_t)n * BIG_IN);
            struct linear_codes_args a = {
                {
                    .y = kc_buf(b->k, (size_t)n * BIG_OUT * sizeof(float)),
                    .x = x,
                    .w =
                        {
                            .data = weights,
                            .n_out = BIG_OUT,
                            .n_in = BIG_IN,
                            .codes = forms[f].codes,
                        },
                    .n_row = n,
                    .x_stride = BIG_IN,
                    .y_stride = BIG_OUT,
                },
            };
            snprintf(shape, sizeof shape, "%s %u x [%u,%u]", forms[f].name, n, BIG_OUT, BIG_IN);
            if (n < 32)
                kc_print_bytes(b, shape, kc_time(b, &a), (double)bytes);
            else
                kc_print_flop(b, shape, kc_time(b, &a), 2.0 * n * BIG_OUT * BIG_IN);
            kc_end_case(b->k);
        }
        kc_unmap(weights, bytes);
    }
}
