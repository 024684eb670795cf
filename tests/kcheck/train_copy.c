/* SPDX-License-Identifier: Apache-2.0 */
/* transpose, convert and pack_columns: what moves numbers and rounds them. */
#include "kcheck.h"
#include <math.h>

static const uint32_t types[] = {DT_F32, DT_BF16};

static enum dtype draw_type(struct kcheck *k)
{
    return (enum dtype)kc_pick(k, types, 2);
}

/* x as y_dtype has it. */
static float rounded(float x, enum dtype y_dtype)
{
    return y_dtype == DT_BF16 ? bf16_to_f32(f32_to_bf16(x)) : x;
}

void kcheck_transpose(struct kcheck *k)
{
    struct transpose_args a = {
        .y_dtype = draw_type(k),
        .x_dtype = draw_type(k),
        .n_row = kc_range(k, 0, 200),
        .n_col = kc_range(k, 1, 150),
    };
    a.x_stride = a.n_col + kc_range(k, 0, 9);
    a.y_stride = a.n_row + kc_range(k, 0, 9);
    kc_shape(k, "%u x %u %s -> %s", a.n_row, a.n_col, dtype_name(a.x_dtype), dtype_name(a.y_dtype));
    const size_t n_x = a.n_row * a.x_stride, n_y = a.n_col * a.y_stride;
    void *x = kc_buf(k, n_x * dtype_bits(a.x_dtype) / 8);
    void *want = kc_buf(k, n_y * dtype_bits(a.y_dtype) / 8);
    void *got = kc_buf(k, n_y * dtype_bits(a.y_dtype) / 8);
    kc_fill_dtype(k, x, a.x_dtype, n_x);
    a.x = x;
    a.y = want;
    kc_run(k, k->ref, &a, 1);
    for (uint32_t i = 0; i < a.n_row && !k->specials; i++)
        for (uint32_t c = 0; c < a.n_col; c++)
            kc_near(k, "y", kc_get(want, a.y_dtype, c * a.y_stride + i),
                    rounded(kc_get(x, a.x_dtype, i * a.x_stride + c), a.y_dtype), 0);
    a.y = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "y", &(struct kc_array){got, a.y_dtype, a.n_col, a.n_row, a.y_stride},
               &(struct kc_array){want, a.y_dtype, a.n_col, a.n_row, a.y_stride});
}

void kbench_transpose(struct kc_bench *b)
{
    const uint32_t n_row = 2048, n_col = 4096;
    struct transpose_args a = {
        .x_dtype = DT_F32,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = n_col,
        .y_stride = n_row,
    };
    const double n = (double)n_row * n_col;
    float *x = kc_buf(b->k, (size_t)n * 4);
    kc_fill(b->k, x, (size_t)n);
    a.x = x;
    a.y = kc_buf(b->k, (size_t)n * 4);
    a.y_dtype = DT_F32;
    kc_print_bytes(b, "2048 x 4096 f32 -> f32", kc_time(b, &a), n * 8);
    a.y_dtype = DT_BF16;
    kc_print_bytes(b, "2048 x 4096 f32 -> bf16", kc_time(b, &a), n * 6);
}

void kcheck_convert(struct kcheck *k)
{
    struct convert_args a = {
        .y_dtype = draw_type(k),
        .x_dtype = draw_type(k),
        .n_row = kc_range(k, 0, 7),
        .n_col = kc_range(k, 1, 600),
    };
    a.x_stride = a.n_col + kc_range(k, 0, 9);
    a.y_stride = a.n_col + kc_range(k, 0, 9);
    kc_shape(k, "%u x %u %s -> %s", a.n_row, a.n_col, dtype_name(a.x_dtype), dtype_name(a.y_dtype));
    const size_t n_x = a.n_row * a.x_stride, n_y = a.n_row * a.y_stride;
    void *x = kc_buf(k, n_x * dtype_bits(a.x_dtype) / 8);
    void *want = kc_buf(k, n_y * dtype_bits(a.y_dtype) / 8);
    void *got = kc_buf(k, n_y * dtype_bits(a.y_dtype) / 8);
    kc_fill_dtype(k, x, a.x_dtype, n_x);
    a.x = x;
    a.y = want;
    kc_run(k, k->ref, &a, 1);
    for (uint32_t i = 0; i < a.n_row && !k->specials; i++)
        for (uint32_t c = 0; c < a.n_col; c++)
            kc_near(k, "y", kc_get(want, a.y_dtype, i * a.y_stride + c),
                    rounded(kc_get(x, a.x_dtype, i * a.x_stride + c), a.y_dtype), 0);
    a.y = got;
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_compare(k, "y", &(struct kc_array){got, a.y_dtype, a.n_row, a.n_col, a.y_stride},
               &(struct kc_array){want, a.y_dtype, a.n_row, a.n_col, a.y_stride});
}

void kbench_convert(struct kc_bench *b)
{
    const uint32_t n_row = 2048, n_col = 4096;
    const double n = (double)n_row * n_col;
    struct convert_args a = {
        .y_dtype = DT_BF16,
        .x_dtype = DT_F32,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = n_col,
        .y_stride = n_col,
    };
    float *x = kc_buf(b->k, (size_t)n * 4);
    kc_fill(b->k, x, (size_t)n);
    a.x = x;
    a.y = kc_buf(b->k, (size_t)n * 2);
    kc_print_bytes(b, "2048 x 4096 f32 -> bf16", kc_time(b, &a), n * 6);
}

/* The same panels as pack makes of the transpose. */
static void as_packed(struct kcheck *k, const struct pack_columns_args *a, const void *got)
{
    const size_t n = (size_t)a->n_out * a->n_in,
                 bytes = packed_bytes(a->dst_dtype, a->n_out, a->n_in);
    float *w = kc_buf(k, n * sizeof *w);
    for (uint32_t o = 0; o < a->n_out; o++)
        for (uint32_t i = 0; i < a->n_in; i++)
            w[(size_t)o * a->n_in + i] = kc_get(a->src, a->src_dtype, i * a->src_stride + o);
    const struct pack_args p = {
        .dst = kc_buf(k, bytes),
        .dst_dtype = a->dst_dtype,
        .src = w,
        .src_dtype = DT_F32,
        .n_out = a->n_out,
        .n_in = a->n_in,
        .n_out_total = a->n_out,
    };
    struct kern_table t;
    kern_table_cpu(&t, CAP_NONE);
    t.pack(&p, &(struct kern_exec){.nth = 1});
    kc_same_bits(k, "as pack of the transpose",
                 (struct kc_bits){got, p.dst, a->dst_dtype, bytes * 8 / dtype_bits(a->dst_dtype)});
}

void kcheck_pack_columns(struct kcheck *k)
{
    struct pack_columns_args a = {
        .dst_dtype = draw_type(k),
        .src_dtype = draw_type(k),
        .n_out = kc_range(k, 1, 200),
        .n_in = kc_range(k, 1, 100),
    };
    a.src_stride = a.n_out + kc_range(k, 0, 9);
    kc_shape(k, "W %u x %u %s -> %s", a.n_out, a.n_in, dtype_name(a.src_dtype),
             dtype_name(a.dst_dtype));
    const size_t n_src = a.n_in * a.src_stride, bytes = packed_bytes(a.dst_dtype, a.n_out, a.n_in);
    void *src = kc_buf(k, n_src * dtype_bits(a.src_dtype) / 8), *want = kc_buf(k, bytes);
    kc_fill_dtype(k, src, a.src_dtype, n_src);
    a.src = src;
    a.dst = want;
    kc_run(k, k->ref, &a, 1);
    as_packed(k, &a, want);
    a.dst = kc_buf(k, bytes);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    kc_same_bits(k, "panels",
                 (struct kc_bits){a.dst, want, a.dst_dtype, bytes * 8 / dtype_bits(a.dst_dtype)});
}

void kbench_pack_columns(struct kc_bench *b)
{
    const uint32_t n_out = 4096, n_in = 2048;
    const double n = (double)n_out * n_in;
    struct pack_columns_args a = {
        .src_dtype = DT_F32,
        .n_out = n_out,
        .n_in = n_in,
        .src_stride = n_out,
    };
    float *src = kc_buf(b->k, (size_t)n * 4);
    kc_fill(b->k, src, (size_t)n);
    a.src = src;
    a.dst = kc_buf(b->k, (size_t)n * 4);
    a.dst_dtype = DT_F32;
    kc_print_bytes(b, "2048 x 4096 f32 -> f32", kc_time(b, &a), n * 8);
    a.dst_dtype = DT_BF16;
    kc_print_bytes(b, "2048 x 4096 f32 -> bf16", kc_time(b, &a), n * 6);
}
