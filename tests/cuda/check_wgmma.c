/* SPDX-License-Identifier: Apache-2.0 */
/* Products by wgmma (linear_sm90a.cu), of one matrix and with groups: the numbers of the kernels by
 * mma.sync, which check_linear.c and check_fp8.c hold to the reference; int8 to the bit. A row has
 * the same bits among few and many others, in tall tiles and flat ones, alone and in a group. */
#include "check.h"
#include <math.h>
#include <string.h>
#include "kernels/cuda/layout.h"
#include "kernels/cuda/trial_linear.h"

CUDA_CALL(linear)
CUDA_CALL(linear_int8)
CUDA_CALL(linear_fp8)
CUDA_CALL(linear_fp8_block)

static void no_reference(const void *args, const struct kern_exec *x)
{
    (void)args;
    (void)x;
}
#define WGMMA_CALL(op)                                                           \
    static void launch_##op##_wgmma(const void *args, const struct kern_exec *x) \
    {                                                                            \
        op##_wgmma_trial(args, x);                                               \
    }                                                                            \
    static void call_##op##_wgmma(const void *args, const struct kern_exec *x)   \
    {                                                                            \
        if (x->ith == 0)                                                         \
            cuda_run_sm90(launch_##op##_wgmma, args);                            \
    }
WGMMA_CALL(linear)
WGMMA_CALL(linear_int8)
WGMMA_CALL(linear_fp8)
WGMMA_CALL(linear_fp8_block)
WGMMA_CALL(linear_grouped)
WGMMA_CALL(linear_int8_grouped)
WGMMA_CALL(linear_fp8_grouped)
WGMMA_CALL(linear_fp8_block_grouped)

struct wgmma_case {
    struct linear_args a; /* n_row: places */
    const struct quant_row *rows;
    const float *x_scales; /* a.w.blocks: [n_x][blocks_stride()] */
    uint32_t n_x, n_col;
    bool positive; /* e4m3, nothing cancels: what 14 bits do to a long sum shows */
    struct groups g;
};

static bool is_bytes(enum dtype dtype)
{
    return dtype == DT_I8 || dtype == DT_F8_E4M3;
}

static void fill(struct kcheck *k, const struct wgmma_case *c, void *p, size_t n)
{
    const enum dtype dtype = c->a.w.dtype;
    if (!is_bytes(dtype))
        kc_fill_dtype(k, p, dtype, n);
    for (size_t i = 0; i < n && dtype == DT_I8; i++)
        ((int8_t *)p)[i] = (int8_t)((int)kc_range(k, 0, 254) - 127);
    for (size_t i = 0; i < n && dtype == DT_F8_E4M3; i++) {
        const uint32_t sign = !c->positive && kc_chance(k, 50) ? 0x80u : 0;
        ((uint8_t *)p)[i] = (uint8_t)(kc_range(k, c->positive ? 0x38 : 0, 0x48) | sign);
    }
}

static void make_arrays(struct kcheck *k, struct wgmma_case *c)
{
    struct linear_args *a = &c->a;
    const uint32_t n_matrix = c->g.n_group ? c->g.n_group : 1;
    const size_t n_w = (size_t)a->w.n_out * a->w.n_in, n_x = c->n_x * a->x_stride;
    struct quant_row *rows = kc_buf(k, c->n_x * sizeof *rows);
    const uint32_t n_block = blocks_stride(a->w.n_in);
    float *x_scales = kc_buf(k, (size_t)c->n_x * n_block * sizeof *x_scales);
    c->g.w_stride = align16(cuda_matrix_bytes(&a->w));
    unsigned char *w = kc_buf(k, n_matrix * c->g.w_stride);
    void *x = kc_buf(k, n_x * (is_bytes(a->w.dtype) ? 1 : 2));
    float *bias = kc_buf(k, a->w.n_out * sizeof *bias);
    kc_fill(k, bias, a->w.n_out);
    fill(k, c, x, n_x);
    for (uint32_t e = 0; e < n_matrix; e++) {
        unsigned char *one = w + e * c->g.w_stride;
        fill(k, c, one, n_w);
        const uint32_t n_group = (a->w.n_out + KERN_GATE_INTERLEAVE - 1) / KERN_GATE_INTERLEAVE;
        const size_t n_scale = a->w.blocks ? (size_t)n_group * n_block : a->w.n_out;
        for (size_t o = 0; is_bytes(a->w.dtype) && o < n_scale; o++) {
            const float scale = (float)(1 + (o + e) % 5) / 512;
            memcpy(one + int8_scales_at(a->w.n_out, a->w.n_in) + o * sizeof scale, &scale,
                   sizeof scale);
        }
    }
    for (size_t i = 0; i < (size_t)c->n_x * n_block; i++)
        x_scales[i] = (float)(1 + i % 3) / 256;
    for (uint32_t i = 0; i < c->n_x; i++)
        rows[i] = (struct quant_row){.scale = (float)(1 + i % 3) / 256};
    a->w.data = w;
    a->x = x;
    a->bias = !c->g.n_group && kc_chance(k, 50) ? bias : NULL;
    c->rows = rows;
    c->x_scales = x_scales;
}

/* Tiles are 128 rows x 256 outputs (e4m3 128), or 64 x 256; a slice of K is 128 bytes. e4m3 in
 * blocks comes up as often as plain. */
static void make_shape(struct kcheck *k, struct wgmma_case *c)
{
    static const uint32_t types[] = {DT_BF16, DT_F16, DT_I8, DT_F8_E4M3, DT_F8_E4M3};
    struct linear_args *a = &c->a;
    k->specials = false;
    a->w.dtype = (enum dtype)kc_pick(k, types, 5);
    a->w.blocks = a->w.dtype == DT_F8_E4M3 && kc_chance(k, 50);
    a->x_dtype = a->w.dtype;
    a->w.gated = kc_chance(k, 40);
    const bool wide = kc_chance(k, 20);
    a->w.n_out = kc_range(k, 1, wide ? 520 : 150);
    if (a->w.gated)
        a->w.n_out = (a->w.n_out + 31) / 32 * 32;
    a->w.n_in = 8 * (is_bytes(a->w.dtype) ? 2 : 1) * kc_range(k, 1, wide ? 16 : 40);
    a->y_dtype = kc_chance(k, 60) ? DT_F32 : kc_chance(k, 70) ? DT_BF16 : DT_F16;
    a->x_stride = a->w.n_in + 16 * kc_range(k, 0, 2);
    c->n_col = a->w.gated ? a->w.n_out / 2 : a->w.n_out;
    a->y_stride = kc_chance(k, 70) ? (c->n_col + 7) / 8 * 8 : c->n_col + kc_range(k, 0, 3);
}

static void *old_y(struct kcheck *k, const struct wgmma_case *c, uint32_t n_row)
{
    float *y = kc_buf(k, n_row * c->a.y_stride * sizeof *y);
    for (size_t i = 0; i < n_row * c->a.y_stride; i++)
        y[i] = (float)(i % 17) / 8 - 1;
    return y;
}

/* The arguments of products of bytes. */
static struct linear_fp8_args as_quant(const struct wgmma_case *c, const struct linear_args *a)
{
    return (struct linear_fp8_args){
        {
            .y = a->y,
            .y_dtype = a->y_dtype,
            .x = a->x,
            .rows = c->rows,
            .w = a->w,
            .bias = a->bias,
            .n_row = a->n_row,
            .x_stride = a->x_stride,
            .y_stride = a->y_stride,
            .accumulate = a->accumulate,
        },
    };
}

static struct linear_fp8_block_args as_blocks(const struct wgmma_case *c,
                                              const struct linear_args *a)
{
    return (struct linear_fp8_block_args){
        .y = a->y,
        .y_dtype = a->y_dtype,
        .x = a->x,
        .x_scales = c->x_scales,
        .w = a->w,
        .bias = a->bias,
        .n_row = a->n_row,
        .x_stride = a->x_stride,
        .scale_stride = blocks_stride(a->w.n_in),
        .y_stride = a->y_stride,
        .accumulate = a->accumulate,
    };
}

static void *run(struct kcheck *k, const struct wgmma_case *c, struct linear_args a, bool wgmma)
{
    a.y = old_y(k, c, a.n_row);
    const struct linear_fp8_args q = as_quant(c, &a);
    const struct linear_fp8_block_args b = as_blocks(c, &a);
    const struct kern_exec alone = {.nth = 1};
    if (a.w.blocks)
        (wgmma ? call_linear_fp8_block_wgmma : call_linear_fp8_block)(&b, &alone);
    else if (a.w.dtype == DT_I8)
        (wgmma ? call_linear_int8_wgmma : call_linear_int8)(&q.by, &alone);
    else if (a.w.dtype == DT_F8_E4M3)
        (wgmma ? call_linear_fp8_wgmma : call_linear_fp8)(&q, &alone);
    else
        (wgmma ? call_linear_wgmma : call_linear)(&a, &alone);
    return a.y;
}

static const char *row_of(const struct wgmma_case *c, const void *y, uint32_t row)
{
    return (const char *)y + row * c->a.y_stride * (c->a.y_dtype == DT_F32 ? 4 : 2);
}

/* Sums of floats in another order; of e4m3 with 14 bits of the 128 numbers of a slice. */
static double bound_of(const struct wgmma_case *c, double want)
{
    const double y = c->a.y_dtype == DT_F32 ? 0 : fabs(want) * 0x1p-7;
    const double e4m3 = 16 * (5.0 / 512) * (3.0 / 256) * 0x1p-13; /* of the largest product */
    if (c->positive) /* no bias, nothing that was there */
        return fabs(want) * 0x1p-11 + y;
    return c->a.w.n_in * (c->a.w.dtype == DT_F8_E4M3 ? e4m3 : 0x1p-18) * (1 + fabs(want)) + y;
}

static void near_known(struct kcheck *k, const struct wgmma_case *c, const void *got,
                       const void *known)
{
    for (uint32_t i = 0; i < c->a.n_row; i++) {
        const char *g = row_of(c, got, i), *w = row_of(c, known, i);
        if (c->a.w.dtype == DT_I8)
            kc_same_bits(k, "y", (struct kc_bits){g, w, c->a.y_dtype, c->n_col});
        for (uint32_t o = 0; c->a.w.dtype != DT_I8 && o < c->n_col; o++) {
            const double want = (double)kc_get(w, c->a.y_dtype, o);
            kc_near(k, "y", (double)kc_get(g, c->a.y_dtype, o), want, bound_of(c, want));
        }
    }
}

static void check_linear_wgmma(struct kcheck *k)
{
    static const uint32_t rows[] = {1, 17, 63, 64, 65, 100, 128, 129, 150, 260};
    struct wgmma_case c = {.n_col = 0};
    make_shape(k, &c);
    c.a.n_row = c.n_x = kc_pick(k, rows, 10);
    c.a.accumulate = !c.a.w.gated && c.a.y_dtype == DT_F32 && kc_chance(k, 40);
    make_arrays(k, &c);
    kc_shape(k, "%s%s n_row %u n_out %u n_in %u%s%s", dtype_name(c.a.w.dtype),
             c.a.w.blocks ? " in blocks" : "", c.a.n_row, c.a.w.n_out, c.a.w.n_in,
             c.a.w.gated ? " gated" : "", c.a.accumulate ? " onto y" : "");
    const void *y = run(k, &c, c.a, true);
    near_known(k, &c, y, run(k, &c, c.a, false));
    for (uint32_t n = c.a.n_row / 3; n; n /= 5) { /* among fewer rows, by other tiles */
        struct linear_args fewer = c.a;
        fewer.n_row = n;
        const void *other = run(k, &c, fewer, true);
        for (uint32_t i = 0; i < n; i++)
            kc_same_bits(
                k, "fewer rows",
                (struct kc_bits){row_of(&c, other, i), row_of(&c, y, i), c.a.y_dtype, c.n_col});
    }
}

/* Sums that are long and only grow: with 14 bits for all of one, and not for 128 numbers of it at a
 * time, it would be 2^-9 short. */
static void check_linear_wgmma_long(struct kcheck *k)
{
    struct wgmma_case c = {.positive = true};
    struct linear_args *a = &c.a;
    k->specials = false;
    a->w.dtype = a->x_dtype = DT_F8_E4M3;
    a->y_dtype = DT_F32;
    a->w.n_out = c.n_col = kc_range(k, 1, 40);
    a->w.n_in = 2048;
    a->x_stride = a->w.n_in;
    a->y_stride = c.n_col;
    a->n_row = c.n_x = kc_chance(k, 50) ? 66 : 20;
    a->w.blocks = kc_chance(k, 50);
    make_arrays(k, &c);
    a->bias = NULL;
    kc_shape(k, "e4m3%s, all positive, n_row %u n_out %u n_in %u", a->w.blocks ? " in blocks" : "",
             a->n_row, a->w.n_out, a->w.n_in);
    near_known(k, &c, run(k, &c, c.a, true), run(k, &c, c.a, false));
}

/* ---- groups ---- */
static void make_groups(struct kcheck *k, struct wgmma_case *c)
{
    const uint32_t most = kc_chance(k, 30) ? 160 : 12;
    c->g.n_group = kc_range(k, 1, most > 12 ? 2 : 8);
    uint32_t *starts = kc_buf(k, (c->g.n_group + 1) * sizeof *starts);
    starts[0] = 0;
    for (uint32_t e = 0; e < c->g.n_group; e++)
        starts[e + 1] = starts[e] + (kc_chance(k, 40) ? 0 : kc_range(k, 1, most));
    const uint32_t n = starts[c->g.n_group];
    c->a.n_row = n + kc_range(k, 0, 9); /* room that is not used */
    uint32_t *rows = kc_buf(k, (n + 1) * sizeof *rows);
    c->n_x = kc_range(k, 1, 40);
    for (uint32_t p = 0; p < n; p++)
        rows[p] = kc_range(k, 0, c->n_x - 1);
    c->g.starts = starts;
    c->g.rows = kc_chance(k, 60) ? rows : NULL;
    if (!c->g.rows)
        c->n_x = c->a.n_row + 1;
}

static void *run_groups(struct kcheck *k, const struct wgmma_case *c)
{
    struct linear_args a = c->a;
    a.y = old_y(k, c, a.n_row + 1);
    const struct linear_grouped_args floats = {a, c->g};
    const struct linear_fp8_grouped_args bytes = {{as_quant(c, &a).by, c->g}};
    const struct linear_fp8_block_grouped_args blocks = {as_blocks(c, &a), c->g};
    const struct kern_exec alone = {.nth = 1};
    if (a.n_row == 0)
        return a.y;
    if (a.w.blocks)
        call_linear_fp8_block_grouped_wgmma(&blocks, &alone);
    else if (a.w.dtype == DT_I8)
        call_linear_int8_grouped_wgmma(&bytes.as, &alone);
    else if (a.w.dtype == DT_F8_E4M3)
        call_linear_fp8_grouped_wgmma(&bytes, &alone);
    else
        call_linear_grouped_wgmma(&floats, &alone);
    return a.y;
}

static void check_linear_grouped_wgmma(struct kcheck *k)
{
    struct wgmma_case c = {.n_col = 0};
    make_shape(k, &c);
    make_groups(k, &c);
    make_arrays(k, &c);
    const uint32_t n = c.g.starts[c.g.n_group];
    kc_shape(k, "%s%s %u groups, %u places of %u rows, n_out %u n_in %u%s%s",
             dtype_name(c.a.w.dtype), c.a.w.blocks ? " in blocks" : "", c.g.n_group, n, c.n_x,
             c.a.w.n_out, c.a.w.n_in, c.a.w.gated ? " gated" : "", c.g.rows ? " picked" : "");
    const void *y = run_groups(k, &c), *before = old_y(k, &c, c.a.n_row + 1);
    for (uint32_t p = 0, e = 0; p < n; p += 1 + n / 3) {
        struct linear_args one = c.a;
        struct wgmma_case of_one = c;
        const uint32_t row = c.g.rows ? c.g.rows[p] : p;
        while (c.g.starts[e + 1] <= p)
            e++;
        one.n_row = 1;
        one.w.data = (const char *)c.a.w.data + e * c.g.w_stride;
        one.x = (const char *)c.a.x + row * c.a.x_stride * (is_bytes(c.a.w.dtype) ? 1 : 2);
        of_one.rows += row;
        of_one.x_scales += row * blocks_stride(one.w.n_in);
        kc_same_bits(
            k, "place",
            (struct kc_bits){row_of(&c, y, p), run(k, &of_one, one, true), c.a.y_dtype, c.n_col});
    }
    for (uint32_t p = n; p < c.a.n_row; p++)
        kc_same_bits(
            k, "past the last place",
            (struct kc_bits){row_of(&c, y, p), row_of(&c, before, p), c.a.y_dtype, c.n_col});
}

const struct cuda_check cuda_checks_wgmma[] = {
    {"linear_wgmma", no_reference, call_linear_wgmma, 0, check_linear_wgmma, 6},
    {"linear_wgmma_long", no_reference, call_linear_fp8_wgmma, 0, check_linear_wgmma_long, 2},
    {"linear_grouped_wgmma", no_reference, call_linear_grouped_wgmma, 0, check_linear_grouped_wgmma,
     3},
    {0},
};
