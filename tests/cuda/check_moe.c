/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts: which are taken, the sort, the sum; and products with groups, each place
 * against the plain product of its row, which check_linear.c holds to the reference. */
#include "check.h"
#include <string.h>
#include "kernels/cuda/layout.h"
#include "kernels/variants.h"

CUDA_CALL(moe_route)
CUDA_CALL(moe_combine)
CUDA_CALL(moe_group_rows)
CUDA_CALL(linear_grouped)
CUDA_CALL(linear_int8_grouped)
CUDA_CALL(linear_fp8_grouped)
CUDA_CALL(linear_w4a8_grouped)
CUDA_CALL(linear_w4a16_grouped)
CUDA_CALL(permute_cols)
CUDA_CALL(moe_add_bias)
CUDA_CALL(moe_add_shared)
CUDA_CALL(moe_weigh)
REF_CALL(moe_route)
REF_CALL(moe_combine)
REF_CALL(moe_group_rows)
REF_CALL(linear_grouped)
REF_CALL(linear_int8_grouped)
REF_CALL(linear_fp8_grouped)
REF_CALL(linear_w4a8_grouped)
REF_CALL(linear_w4a16_grouped)
REF_CALL(permute_cols)
REF_CALL(moe_add_bias)
REF_CALL(moe_add_shared)
REF_CALL(moe_weigh)
#ifndef QUIRE_CUDA_CARD
void linear_cuda(const struct linear_args *a, const struct kern_exec *x);
void linear_int8_cuda(const struct linear_int8_args *a, const struct kern_exec *x);
void linear_fp8_cuda(const struct linear_fp8_args *a, const struct kern_exec *x);
void linear_w4a8_cuda(const struct linear_w4a8_args *a, const struct kern_exec *x);
void linear_w4a16_cuda(const struct linear_w4a16_args *a, const struct kern_exec *x);
#else
#define cuda_with_e4m3(there) ((void)(there))
#endif

static void launch_one(const void *args, const struct kern_exec *x)
{
    CUDA_LAUNCH(linear)(args, x);
}
static void launch_one_quant(const void *args, const struct kern_exec *x)
{
    CUDA_LAUNCH(linear_int8)(args, x);
}
static void launch_one_e4m3(const void *args, const struct kern_exec *x)
{
    CUDA_LAUNCH(linear_fp8)(args, x);
}
static void launch_one_int4(const void *args, const struct kern_exec *x)
{
    CUDA_LAUNCH(linear_w4a8)(args, x);
}
static void launch_one_w4a16(const void *args, const struct kern_exec *x)
{
    CUDA_LAUNCH(linear_w4a16)(args, x);
}

#define SOME 12u /* places that are compared: each is a launch of its own */

struct groups_case {
    struct groups g;
    struct packed w;
    uint32_t n_place, n_x, n_col;
    size_t x_stride, y_stride; /* elements */
    enum dtype y_dtype;
};

/* So many places that each way of the launcher comes up: 8, 16, and more of a group on average. */
static void make_groups(struct kcheck *k, struct groups_case *c)
{
    static const uint32_t mosts[] = {2, 9, 20, 60};
    const uint32_t most = kc_pick(k, mosts, sizeof mosts / sizeof *mosts);
    *c = (struct groups_case){.g.n_group = kc_range(k, 1, most > 20 ? 3 : 20)};
    uint32_t *starts = kc_buf(k, (c->g.n_group + 1) * sizeof *starts);
    starts[0] = 0;
    for (uint32_t e = 0; e < c->g.n_group; e++)
        starts[e + 1] = starts[e] + (kc_chance(k, 30) ? 0 : kc_range(k, 1, most));
    c->n_place = starts[c->g.n_group];
    c->n_x = kc_range(k, 1, 9);
    uint32_t *rows = kc_buf(k, (c->n_place + 1) * sizeof *rows);
    for (uint32_t p = 0; p < c->n_place; p++)
        rows[p] = kc_range(k, 0, c->n_x - 1);
    c->g.starts = starts;
    c->g.rows = kc_chance(k, 60) ? rows : NULL;
    if (!c->g.rows)
        c->n_x = c->n_place;
    c->w.gated = kc_chance(k, 50);
    c->w.n_out = c->w.gated ? 32 * kc_range(k, 1, 5) : kc_range(k, 1, 150);
    c->w.n_in = (kc_chance(k, 80) ? 16 : 1) * kc_range(k, 1, most > 20 ? 12 : 80);
    c->n_col = c->w.gated ? c->w.n_out / 2 : c->w.n_out;
    c->x_stride = (c->w.n_in + 63) / 64 * 64;
    c->y_stride = c->n_col + kc_range(k, 0, 7);
    c->y_dtype = kc_chance(k, 70) ? DT_F32 : DT_BF16;
    kc_shape(k, "%u groups, %u places of %u rows, n_out %u n_in %u%s%s", c->g.n_group, c->n_place,
             c->n_x, c->w.n_out, c->w.n_in, c->w.gated ? " gated" : "", c->g.rows ? " picked" : "");
}

static uint32_t expert_at(const struct groups *g, uint32_t place)
{
    uint32_t e = 0;
    while (g->starts[e + 1] <= place)
        e++;
    return e;
}

static void same_place(struct kcheck *k, const struct groups_case *c, const void *y, uint32_t p,
                       const void *want)
{
    const size_t element = dtype_bits(c->y_dtype) / 8;
    kc_same_bits(
        k, "place",
        (struct kc_bits){(const char *)y + p * c->y_stride * element, want, c->y_dtype, c->n_col});
}

static void check_linear_grouped(struct kcheck *k)
{
    static const uint32_t types[] = {DT_BF16, DT_BF16, DT_F16, DT_F32};
    struct groups_case c;
    make_groups(k, &c);
    const enum dtype t = (enum dtype)kc_pick(k, types, 4);
    c.w.dtype = t;
    c.g.w_stride = align16(cuda_matrix_bytes(&c.w));
    k->specials = false;
    const size_t element = dtype_bits(t) / 8;
    char *w = kc_buf(k, c.g.n_group * c.g.w_stride), *x = kc_buf(k, (c.n_x + 1) * c.x_stride * 4);
    for (uint32_t e = 0; e < c.g.n_group; e++) /* row-major is what packing gives (layout.h) */
        kc_fill_dtype(k, w + e * c.g.w_stride, t, (size_t)c.w.n_out * c.w.n_in);
    kc_fill_dtype(k, x, t, c.n_x * c.x_stride);
    c.w.data = w;
    const struct linear_grouped_args a = {
        .by =
            {
                .y = kc_buf(k, c.n_place * c.y_stride * 4),
                .y_dtype = c.y_dtype,
                .x = x,
                .x_dtype = t,
                .w = c.w,
                .n_row = c.n_place,
                .x_stride = c.x_stride,
                .y_stride = c.y_stride,
            },
        .of = c.g,
    };
    void *want = kc_buf(k, c.n_col * 4);
    kc_run(k, k->variant, &a, 1);
    for (uint32_t p = 0; p < c.n_place; p += 1 + c.n_place / SOME) {
        struct linear_args one = a.by;
        one.w.data = w + expert_at(&c.g, p) * c.g.w_stride;
        one.x = x + (c.g.rows ? c.g.rows[p] : p) * c.x_stride * element;
        one.y = want;
        one.n_row = 1;
        cuda_run(launch_one, &one);
        same_place(k, &c, a.by.y, p, want);
    }
}

/* A byte of either kind; e4m3 below 2^6, without NaN. */
static int8_t some_byte(struct kcheck *k, enum dtype as)
{
    if (as == DT_I8)
        return (int8_t)((int)kc_range(k, 0, 254) - 127);
    return (int8_t)(kc_range(k, 0, 0x60) | (kc_chance(k, 50) ? 0x80u : 0));
}

/* A matrix of bytes as it lies on a device: int8 or e4m3, then an output's scale each. */
static void make_matrix(struct kcheck *k, const struct packed *w, int8_t *to)
{
    for (size_t i = 0; i < (size_t)w->n_out * w->n_in; i++)
        to[i] = some_byte(k, w->dtype);
    kc_fill(k, (float *)(void *)(to + int8_scales_at(w->n_out, w->n_in)), w->n_out);
}

/* One of 4 bits: two inputs a byte, then scales, then zeros. */
static void make_matrix_int4(struct kcheck *k, const struct packed *w, uint8_t *to)
{
    const size_t n_scale = (size_t)w->n_out * (w->n_in / w->group);
    const size_t from = int4_zeros_from(w->n_out, w->n_in, w->group);
    for (size_t i = 0; i < int4_scales_from(w->n_out, w->n_in); i++)
        to[i] = (uint8_t)kc_range(k, 0, 255);
    kc_fill_dtype(k, to + int4_scales_from(w->n_out, w->n_in), DT_F16, n_scale);
    for (size_t i = 0; i < n_scale; i++)
        to[from + i] = (uint8_t)kc_range(k, 0, 16);
}

/* Matrices of 4 bits have groups of inputs. */
static void make_group_size(struct kcheck *k, struct groups_case *c)
{
    static const uint32_t groups[] = {32, 64, 128};
    c->w.dtype = DT_I8;
    c->w.group = kc_pick(k, groups, 3);
    c->w.n_in = c->w.group * kc_range(k, 1, (c->n_place > 60 ? 400 : 2300) / c->w.group);
    c->x_stride = (c->w.n_in + 63) / 64 * 64;
}

static void make_matrices(struct kcheck *k, struct groups_case *c)
{
    c->g.w_stride = align16(cuda_matrix_bytes(&c->w));
    k->specials = false;
    char *w = kc_buf(k, c->g.n_group * c->g.w_stride);
    for (uint32_t e = 0; e < c->g.n_group; e++)
        if (c->w.group)
            make_matrix_int4(k, &c->w, (uint8_t *)w + e * c->g.w_stride);
        else
            make_matrix(k, &c->w, (int8_t *)w + e * c->g.w_stride);
    c->w.data = w;
}

/* Matrices and rows of bytes as they lie on a device; int4: with rows of int8. */
static void make_bytes(struct kcheck *k, struct groups_case *c, struct linear_int8_grouped_args *a,
                       enum dtype as, bool int4)
{
    make_groups(k, c);
    c->w.dtype = as;
    if (int4)
        make_group_size(k, c);
    make_matrices(k, c);
    int8_t *x = kc_buf(k, (c->n_x + 1) * c->x_stride);
    struct quant_row *rows = kc_buf(k, (c->n_x + 1) * sizeof *rows);
    memset(x, 0, (c->n_x + 1) * c->x_stride);
    for (uint32_t i = 0; i < c->n_x; i++) {
        rows[i] = (struct quant_row){.scale = kc_f32(k)};
        for (uint32_t j = 0; j < c->w.n_in; j++)
            x[i * c->x_stride + j] = some_byte(k, as);
    }
    *a = (struct linear_int8_grouped_args){
        .by =
            {
                .y = kc_buf(k, c->n_place * c->y_stride * 4),
                .y_dtype = c->y_dtype,
                .x = x,
                .rows = rows,
                .w = c->w,
                .n_row = c->n_place,
                .x_stride = c->x_stride,
                .y_stride = c->y_stride,
            },
        .of = c->g,
    };
}

static void check_bytes(struct kcheck *k, const struct groups_case *c,
                        const struct linear_int8_grouped_args *a)
{
    void *want = kc_buf(k, c->n_col * 4);
    for (uint32_t p = 0; p < c->n_place; p += 1 + c->n_place / SOME) {
        const uint32_t row = c->g.rows ? c->g.rows[p] : p;
        struct linear_fp8_args one = {a->by};
        one.by.w.data = (const char *)c->w.data + expert_at(&c->g, p) * c->g.w_stride;
        one.by.x = a->by.x + row * c->x_stride;
        one.by.rows = a->by.rows + row;
        one.by.y = want;
        one.by.n_row = 1;
        if (c->w.group)
            cuda_run(launch_one_int4, &(struct linear_w4a8_args){.by = one.by});
        else if (c->w.dtype == DT_I8)
            cuda_run(launch_one_quant, &one.by);
        else
            cuda_run(launch_one_e4m3, &one);
        same_place(k, c, a->by.y, p, want);
    }
}

static void check_linear_int8_grouped(struct kcheck *k)
{
    struct groups_case c;
    struct linear_int8_grouped_args a;
    make_bytes(k, &c, &a, DT_I8, false);
    kc_run(k, k->variant, &a, 1);
    check_bytes(k, &c, &a);
}

static void check_linear_fp8_grouped(struct kcheck *k)
{
    struct groups_case c;
    struct linear_fp8_grouped_args a;
    cuda_with_e4m3(kc_chance(k, 50));
    make_bytes(k, &c, &a.as, DT_F8_E4M3, false);
    kc_run(k, k->variant, &a, 1);
    check_bytes(k, &c, &a.as);
}

static void check_linear_w4a8_grouped(struct kcheck *k)
{
    struct groups_case c;
    struct linear_w4a8_grouped_args a;
    make_bytes(k, &c, &a.as, DT_I8, true);
    kc_run(k, k->variant, &a, 1);
    check_bytes(k, &c, &a.as);
}

static void check_linear_w4a16_grouped(struct kcheck *k)
{
    const enum dtype t = kc_chance(k, 60) ? DT_BF16 : DT_F16;
    struct groups_case c;
    make_groups(k, &c);
    make_group_size(k, &c);
    make_matrices(k, &c);
    uint16_t *x = kc_buf(k, (c.n_x + 1) * c.x_stride * sizeof *x);
    kc_fill_dtype(k, x, t, c.n_x * c.x_stride);
    const struct linear_w4a16_grouped_args a = {
        .as =
            {
                .by =
                    {
                        .y = kc_buf(k, c.n_place * c.y_stride * 4),
                        .y_dtype = c.y_dtype,
                        .x = x,
                        .x_dtype = t,
                        .w = c.w,
                        .n_row = c.n_place,
                        .x_stride = c.x_stride,
                        .y_stride = c.y_stride,
                    },
                .of = c.g,
            },
    };
    void *want = kc_buf(k, c.n_col * 4);
    kc_run(k, k->variant, &a, 1);
    for (uint32_t p = 0; p < c.n_place; p += 1 + c.n_place / SOME) {
        struct linear_w4a16_args one = {a.as.by};
        one.by.w.data = (const char *)c.w.data + expert_at(&c.g, p) * c.g.w_stride;
        one.by.x = x + (c.g.rows ? c.g.rows[p] : p) * c.x_stride;
        one.by.y = want;
        one.by.n_row = 1;
        cuda_run(launch_one_w4a16, &one);
        same_place(k, &c, a.as.by.y, p, want);
    }
}

const struct cuda_check cuda_checks_moe[] = {
    {"moe_route", ref_moe_route, call_moe_route, 64, kcheck_moe_route, 40},
    {"moe_combine", ref_moe_combine, call_moe_combine, 0, kcheck_moe_combine, 30},
    {"moe_group_rows", ref_moe_group_rows, call_moe_group_rows, 0, kcheck_moe_group_rows, 20},
    {"linear_grouped", ref_linear_grouped, call_linear_grouped, 0, check_linear_grouped, 5},
    {"linear_int8_grouped", ref_linear_int8_grouped, call_linear_int8_grouped, 0,
     check_linear_int8_grouped, 3},
    {"linear_fp8_grouped", ref_linear_fp8_grouped, call_linear_fp8_grouped, 0,
     check_linear_fp8_grouped, 3},
    {"linear_w4a8_grouped", ref_linear_w4a8_grouped, call_linear_w4a8_grouped, 0,
     check_linear_w4a8_grouped, 4},
    {"linear_w4a16_grouped", ref_linear_w4a16_grouped, call_linear_w4a16_grouped, 0,
     check_linear_w4a16_grouped, 4},
    {"permute_cols", ref_permute_cols, call_permute_cols, 0, kcheck_permute_cols, 20},
    {"moe_add_bias", ref_moe_add_bias, call_moe_add_bias, 8, kcheck_moe_add_bias, 30},
    {"moe_weigh", ref_moe_weigh, call_moe_weigh, 0, kcheck_moe_weigh, 30},
    {"moe_add_shared", ref_moe_add_shared, call_moe_add_shared, 8, kcheck_moe_add_shared, 20},
    {0},
};
