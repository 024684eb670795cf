/* SPDX-License-Identifier: Apache-2.0 */
/* linear, linear_int8 and linear_fp8 by way of cuBLASLt (the fake one, fake_lt.h): the numbers of
 * our own kernels, for every end that a product has; int8 to the bit. And what the library refuses
 * is served by our own kernel, from the row on where it refused. */
#include "check.h"
#include <math.h>
#include <string.h>
#include "emu_lt.h"
#include "fake_lt.h"
#include "kernels/cuda/layout.h"

CUDA_CALL(linear)
CUDA_CALL(linear_int8)
CUDA_CALL(linear_fp8)

static void no_reference(const void *args, const struct kern_exec *x)
{
    (void)args;
    (void)x;
}

struct lt_case {
    struct linear_args a;
    struct linear_fp8_args q; /* of int8 and e4m3 */
    uint32_t n_col;
    struct lt_shape shape;
};

static bool is_bytes(const struct lt_case *c)
{
    return c->a.w.dtype == DT_I8 || c->a.w.dtype == DT_F8_E4M3;
}

/* n numbers of the case's type, none of them NaN. */
static void fill(struct kcheck *k, void *p, enum dtype dtype, size_t n)
{
    if (dtype != DT_I8 && dtype != DT_F8_E4M3)
        kc_fill_dtype(k, p, dtype, n);
    for (size_t i = 0; i < n && dtype == DT_I8; i++)
        ((int8_t *)p)[i] = (int8_t)((int)kc_range(k, 0, 254) - 127);
    for (size_t i = 0; i < n && dtype == DT_F8_E4M3; i++)
        ((uint8_t *)p)[i] = (uint8_t)(kc_range(k, 0, 0x48) | (kc_chance(k, 50) ? 0x80u : 0));
}

static void make_arrays(struct kcheck *k, struct lt_case *c)
{
    struct linear_args *a = &c->a;
    const size_t n_w = (size_t)a->w.n_out * a->w.n_in, n_x = a->n_row * a->x_stride;
    struct quant_row *rows = kc_buf(k, a->n_row * sizeof *rows);
    unsigned char *w = kc_buf(k, cuda_matrix_bytes(&a->w));
    void *x = kc_buf(k, n_x * (is_bytes(c) ? 1 : 2));
    float *bias = kc_buf(k, a->w.n_out * sizeof *bias);
    kc_fill(k, bias, a->w.n_out);
    fill(k, w, a->w.dtype, n_w);
    fill(k, x, a->w.dtype, n_x);
    for (uint32_t o = 0; is_bytes(c) && o < a->w.n_out; o++) {
        const float scale = (float)(1 + o % 5) / 512;
        memcpy(w + int8_scales_at(a->w.n_out, a->w.n_in) + o * sizeof scale, &scale, sizeof scale);
    }
    for (uint32_t i = 0; i < a->n_row; i++)
        rows[i] = (struct quant_row){.scale = (float)(1 + i % 3) / 256};
    a->w.data = w;
    a->x = x;
    a->bias = kc_chance(k, 50) ? bias : NULL;
    c->q.by = (struct linear_int8_args){
        .y_dtype = a->y_dtype,
        .x = x,
        .rows = rows,
        .w = a->w,
        .bias = a->bias,
        .n_row = a->n_row,
        .x_stride = a->x_stride,
        .y_stride = a->y_stride,
        .accumulate = a->accumulate,
    };
}

static void make_case(struct kcheck *k, struct lt_case *c)
{
    static const uint32_t rows[] = {17, 18, 31, 32, 33, 48, 70};
    static const struct {
        enum dtype dtype;
        enum lt_kind kind;
    } types[] = {
        {DT_I8, LT_KIND_I8},
        {DT_F8_E4M3, LT_KIND_E4M3},
        {DT_F16, LT_KIND_F16},
        {DT_BF16, LT_KIND_BF16},
    };
    struct linear_args *a = &c->a;
    const uint32_t type = kc_range(k, 0, 3);
    *c = (struct lt_case){.n_col = 0};
    k->specials = false;
    a->w.dtype = types[type].dtype;
    a->w.gated = kc_chance(k, 40);
    a->w.n_out = a->w.gated ? 32 * kc_range(k, 1, 3) : 4 * kc_range(k, 1, 30);
    a->w.n_in = 16 * kc_range(k, 1, 8);
    a->n_row = kc_pick(k, rows, 7);
    a->x_dtype = a->w.dtype;
    a->y_dtype = a->w.gated && kc_chance(k, 70) ? DT_BF16 : DT_F32;
    a->accumulate = !a->w.gated && kc_chance(k, 40);
    a->x_stride = a->w.n_in + 16 * kc_range(k, 0, 2);
    c->n_col = a->w.gated ? a->w.n_out / 2 : a->w.n_out;
    a->y_stride = (c->n_col + 7) / 8 * 8 + (kc_chance(k, 20) ? 1 : 0); /* odd: our own kernel */
    make_arrays(k, c);
    kc_shape(k, "%s n_row %u n_out %u n_in %u%s%s", dtype_name(a->w.dtype), a->n_row, a->w.n_out,
             a->w.n_in, a->w.gated ? " gated" : "", a->accumulate ? " onto y" : "");
    c->shape = (struct lt_shape){
        .kind = types[type].kind,
        .n_out = a->w.n_out,
        .n_in = a->w.n_in,
        .target = a->y_dtype == DT_F32 ? LT_TO_Y : LT_TO_SUMS,
        .has_bias = a->bias != NULL,
        .accumulate = a->accumulate,
        .gated = a->w.gated,
    };
    lt_shape_settle(&c->shape);
}

/* By whatever emu_lt says; y is what it was before. */
static void *run(struct kcheck *k, struct lt_case *c)
{
    const size_t n = c->a.n_row * c->a.y_stride * sizeof(float);
    float *y = kc_buf(k, n);
    for (size_t i = 0; i < n / sizeof *y; i++)
        y[i] = (float)(i % 17) / 8 - 1;
    c->a.y = c->q.by.y = y;
    if (c->a.w.dtype == DT_I8)
        kc_run(k, &(struct kc_variant){"linear_int8", "lt", 0, 0, call_linear_int8}, &c->q.by, 1);
    else if (c->a.w.dtype == DT_F8_E4M3)
        kc_run(k, &(struct kc_variant){"linear_fp8", "lt", 0, 0, call_linear_fp8}, &c->q, 1);
    else
        kc_run(k, &(struct kc_variant){"linear", "lt", 0, 0, call_linear}, &c->a, 1);
    return y;
}

static void compare(struct kcheck *k, const struct lt_case *c, const void *got, const void *own)
{
    const size_t element = c->a.y_dtype == DT_F32 ? 4 : 2;
    for (uint32_t i = 0; i < c->a.n_row; i++) {
        const char *g = (const char *)got + i * c->a.y_stride * element;
        const char *w = (const char *)own + i * c->a.y_stride * element;
        if (c->a.w.dtype == DT_I8) {
            kc_same_bits(k, "y", (struct kc_bits){g, w, c->a.y_dtype, c->n_col});
            continue;
        }
        for (uint32_t o = 0; o < c->n_col; o++) {
            const double want = (double)kc_get(w, c->a.y_dtype, o);
            kc_near(k, "y", (double)kc_get(g, c->a.y_dtype, o), want,
                    c->a.w.n_in * 0x1p-18 * (1 + fabs(want)) +
                        (element == 2 ? fabs(want) * 0x1p-7 : 0));
        }
    }
}

static void check_linear_lt(struct kcheck *k)
{
    struct lt_case c;
    struct q_err e = Q_ERR_INIT;
    const uint32_t algo = kc_range(k, 0, FAKE_LT_ALGOS - 1);
    const uint32_t scales = kc_range(k, 0, 5); /* of e4m3: mostly the library's */
    make_case(k, &c);
    void *own = run(k, &c);
    /* most of the workspace is the library's: what it leaves cuts the rows of sums into pieces */
    const size_t leave = (size_t)c.a.w.n_out * 4 * kc_range(k, 17, 40);
    Q_ASSERT(!lt_open(&emu_lt, &fake_lt_api, ((size_t)8 << 20) - 1024 - leave, &e));
    fake_lt = (struct fake_lt){
        .n_algo = FAKE_LT_ALGOS,
        .n_object = fake_lt.n_object,
        .is_old = scales == 0,
        .no_scales = scales == 1,
    };
    struct lt_choice found[LT_CANDIDATES_MAX];
    const uint32_t n = lt_candidates(emu_lt, &c.shape, c.a.n_row, found);
    const bool both = c.shape.kind == LT_KIND_E4M3 && c.shape.target == LT_TO_Y && scales > 1;
    if (n != (both ? 2 : 1) * FAKE_LT_ALGOS)
        kc_fail(k, "the library offers %u algorithms", n);
    const struct lt_choice *choice = &found[both && kc_chance(k, 30) ? FAKE_LT_ALGOS + algo : algo];
    const bool ends = c.shape.target == LT_TO_Y && (c.shape.kind != LT_KIND_E4M3 || both);
    if (choice->by_sums != (!ends || choice >= found + FAKE_LT_ALGOS))
        kc_fail(k, "algorithm %u is%s by sums", algo, choice->by_sums ? "" : " not");
    lt_keep(emu_lt, &c.shape, lt_bucket(c.a.n_row), choice);
    compare(k, &c, run(k, &c), own);
    const bool served = choice->by_sums || c.a.y_stride % 4 == 0;
    if (served != (fake_lt.n_matmul > 0))
        kc_fail(k, "the library ran %llu products", (unsigned long long)fake_lt.n_matmul);
    fake_lt.refused = fake_lt.n_matmul > 1 ? 0 : 1u << algo;
    fake_lt.refused_from = 1; /* in the middle, where it takes pieces */
    fake_lt.n_matmul = 0;
    compare(k, &c, run(k, &c), own);
    fake_lt.refused = 0;
    fake_lt.refused_from = fake_lt.n_matmul = 0;
    compare(k, &c, run(k, &c), own);
    if (fake_lt.n_matmul)
        kc_fail(k, "%s", "what was refused once is asked for again");
    lt_close(emu_lt);
    emu_lt = NULL;
}

const struct cuda_check cuda_checks_lt[] = {
    {"linear_lt", no_reference, call_linear, 0, check_linear_lt, 12},
    {0},
};
