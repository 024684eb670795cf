/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of ops_device.h: each against the operations that it fuses. */
#include "kcheck.h"
#include <string.h>
#include "kernels/ops/int8_layout.h"
#include "kernels/variants.h"

static const struct kern_exec alone = {.nth = 1};

struct norm_case {
    struct norm_rows_args a;
    float *x; /* as it was */
    size_t n_x;
    uint32_t n_src; /* rows of x */
};

static bool is_bytes(const struct norm_rows_args *a)
{
    return a->y_dtype == DT_I8 || a->y_dtype == DT_F8_E4M3;
}

static void make_norm(struct kcheck *k, struct norm_case *c)
{
    static const uint32_t types[] = {DT_F32, DT_BF16, DT_F16, DT_I8, DT_F8_E4M3};
    static const uint32_t adds[] = {DT_F32, DT_BF16};
    struct norm_rows_args *a = &c->a;
    *a = (struct norm_rows_args){
        .y_dtype = (enum dtype)kc_pick(k, types, 5),
        .n_col = kc_range(k, 1, 300),
        .eps = 1e-5f,
    };
    c->n_src = kc_range(k, 0, 7);
    a->x_stride = a->n_col + kc_range(k, 0, 9);
    a->y_stride = is_bytes(a) ? int8_k(a->n_col) : a->n_col + kc_range(k, 0, 5);
    if (a->y_dtype == DT_F8_E4M3 && kc_chance(k, 50))
        a->scale_stride = fp8_n_block(a->n_col) + kc_range(k, 0, 4);
    else if (kc_chance(k, 50)) /* of e4m3 alone */
        a->scale = (float)kc_range(k, 1, 100) / 2048;
    c->n_x = c->n_src * a->x_stride;
    c->x = kc_buf(k, c->n_x * sizeof *c->x);
    float *w = kc_buf(k, a->n_col * sizeof *w);
    uint32_t *rows = kc_buf(k, (c->n_src + 1) * sizeof *rows);
    kc_fill(k, c->x, c->n_x);
    kc_fill(k, w, a->n_col);
    a->w = w;
    a->rows = kc_chance(k, 50) ? rows : NULL;
    for (uint32_t i = 0; i < c->n_src; i++)
        if (!a->rows || kc_chance(k, 60))
            rows[a->n_row++] = i;
    if (kc_chance(k, 50)) {
        a->add_dtype = (enum dtype)kc_pick(k, adds, 2);
        a->add_stride = a->n_col + kc_range(k, 0, 3);
        void *add = kc_buf(k, c->n_src * a->add_stride * 4);
        kc_fill_dtype(k, add, a->add_dtype, c->n_src * a->add_stride);
        a->add = add;
    }
    kc_shape(k, "n_row %u of %u n_col %u %s%s", a->n_row, c->n_src, a->n_col,
             dtype_name(a->y_dtype), a->add ? " add" : "");
}

/* Row i by the fused operations one by one, into `y` (f32). */
static void plain_row(struct kcheck *k, const struct norm_case *c, uint32_t i, float *y)
{
    const struct norm_rows_args *a = &c->a;
    size_t r = a->rows ? a->rows[i] : i;
    float *x = kc_copy(k, c->x + r * a->x_stride, a->n_col * sizeof *x);
    for (uint32_t j = 0; a->add && j < a->n_col; j++)
        x[j] += kc_get(a->add, a->add_dtype, r * a->add_stride + j);
    struct rms_norm_args n = {
        .y = y,
        .y_dtype = DT_F32,
        .x = x,
        .w = a->w,
        .n_row = 1,
        .n_col = a->n_col,
        .x_stride = a->n_col,
        .y_stride = a->n_col,
        .eps = a->eps,
    };
    rms_norm_ref(&n, &alone);
}

static void check_int8(struct kcheck *k, const struct norm_rows_args *a, uint32_t i, const float *y)
{
    int8_t *q = kc_buf(k, a->y_stride);
    struct quant_row row;
    struct quant_rows_args to = {
        .q = q,
        .rows = &row,
        .x = y,
        .n_row = 1,
        .n_col = a->n_col,
        .x_stride = a->n_col,
        .q_stride = a->y_stride,
    };
    quant_rows_ref(&to, &alone);
    kc_same_bits(k, "q",
                 (struct kc_bits){(int8_t *)a->y + i * a->y_stride, q, DT_I8, int8_k(a->n_col)});
    kc_same_bits(k, "scale", (struct kc_bits){&a->quant[i].scale, &row.scale, DT_F32, 1});
    kc_near(k, "sum", a->quant[i].sum, row.sum, 0);
}

static void check_e4m3(struct kcheck *k, const struct norm_rows_args *a, uint32_t i, const float *y)
{
    const size_t n_scale = a->scales ? fp8_n_block(a->n_col) : 1;
    uint8_t *q = kc_buf(k, a->y_stride);
    float *scales = kc_buf(k, n_scale * sizeof *scales);
    struct quant_row row;
    if (a->scales)
        quant_rows_fp8_block_ref(&(struct quant_rows_fp8_block_args){q, scales, y, 1, a->n_col,
                                                                     a->n_col, a->y_stride,
                                                                     n_scale},
                                 &alone);
    else
        quant_rows_fp8_ref(
            &(struct quant_rows_fp8_args){q, &row, y, 1, a->n_col, a->n_col, a->y_stride, a->scale},
            &alone);
    const float *got = a->scales ? a->scales + i * a->scale_stride : &a->quant[i].scale;
    kc_same_bits(k, "e4m3",
                 (struct kc_bits){(uint8_t *)a->y + i * a->y_stride, q, DT_I8, int8_k(a->n_col)});
    kc_same_bits(k, "scales",
                 (struct kc_bits){got, a->scales ? scales : &row.scale, DT_F32, n_scale});
    if (!a->scales)
        kc_near(k, "sum", a->quant[i].sum, 0, 0);
}

static void check_norm_row(struct kcheck *k, const struct norm_case *c, uint32_t i)
{
    const struct norm_rows_args *a = &c->a;
    float *y = kc_buf(k, a->n_col * sizeof *y);
    plain_row(k, c, i, y);
    size_t at = i * a->y_stride;
    if (!is_bytes(a)) {
        float *got = kc_buf(k, a->n_col * sizeof *got);
        for (uint32_t j = 0; j < a->n_col; j++) {
            got[j] = kc_get(a->y, a->y_dtype, at + j);
            if (a->y_dtype != DT_F32)
                y[j] = a->y_dtype == DT_F16 ? f16_to_f32(f32_to_f16(y[j]))
                                            : bf16_to_f32(f32_to_bf16(y[j]));
        }
        kc_compare(k, "y", &(struct kc_array){got, DT_F32, 1, a->n_col, a->n_col},
                   &(struct kc_array){y, DT_F32, 1, a->n_col, a->n_col});
        return;
    }
    if (a->y_dtype == DT_I8)
        check_int8(k, a, i, y);
    else
        check_e4m3(k, a, i, y);
}

void kcheck_norm_rows(struct kcheck *k)
{
    struct norm_case c;
    make_norm(k, &c);
    struct norm_rows_args *a = &c.a;
    a->x = kc_copy(k, c.x, c.n_x * sizeof *c.x);
    a->y = kc_buf(k, a->n_row * a->y_stride * 4);
    a->quant = kc_buf(k, a->n_row * sizeof *a->quant);
    a->scales = a->scale_stride ? kc_buf(k, a->n_row * a->scale_stride * sizeof(float)) : NULL;
    kc_run(k, k->variant, a, kc_range(k, 1, 4));
    for (uint32_t i = 0; i < a->n_row; i++)
        check_norm_row(k, &c, i);
}

void kbench_norm_rows(struct kc_bench *b)
{
    const uint32_t n_row = 512, n_col = 896;
    float *x = kc_buf(b->k, n_row * n_col * sizeof *x), *w = kc_buf(b->k, n_col * sizeof *w);
    struct norm_rows_args a = {
        .y = kc_buf(b->k, n_row * n_col * 2),
        .y_dtype = DT_BF16,
        .x = x,
        .w = w,
        .n_row = n_row,
        .n_col = n_col,
        .x_stride = n_col,
        .y_stride = n_col,
        .eps = 1e-6f,
    };
    kc_fill(b->k, x, n_row * n_col);
    kc_fill(b->k, w, n_col);
    kc_print_bytes(b, "512 x 896 -> bf16", kc_time(b, &a), n_row * (double)n_col * 6);
}

/* Unit u of row i alone, by rms_norm. */
static void check_unit(struct kcheck *k, const struct norm_units_args *a, const float *before,
                       uint32_t i, uint32_t u)
{
    const size_t at = (size_t)u * a->unit, y_at = i * a->y_stride + at;
    float *want = kc_buf(k, a->unit * sizeof *want), *got = kc_buf(k, a->unit * sizeof *got);
    const struct rms_norm_args one = {
        .y = want,
        .y_dtype = DT_F32,
        .x = before + i * a->x_stride + at,
        .w = a->w + (a->apart ? at : 0),
        .n_row = 1,
        .n_col = a->unit,
        .eps = a->eps,
    };
    rms_norm_ref(&one, &alone);
    for (uint32_t c = 0; c < a->unit; c++) {
        got[c] = kc_get(a->y, a->y_dtype, y_at + c);
        if (a->y_dtype == DT_BF16)
            want[c] = bf16_to_f32(f32_to_bf16(want[c]));
    }
    kc_compare(k, "y", &(struct kc_array){got, DT_F32, 1, a->unit, a->unit},
               &(struct kc_array){want, DT_F32, 1, a->unit, a->unit});
    kc_drop(k, 2);
}

void kcheck_norm_units(struct kcheck *k)
{
    static const uint32_t types[] = {DT_F32, DT_BF16};
    struct norm_units_args a = {
        .y_dtype = (enum dtype)kc_pick(k, types, k->variant->tolerance ? 1 : 2),
        .n_row = kc_range(k, 0, 5),
        .n_unit = kc_range(k, 1, 6),
        .unit = kc_chance(k, 20) ? kc_range(k, 200, 400) : kc_range(k, 1, 70),
        .eps = 1e-5f,
        .apart = kc_chance(k, 50),
    };
    const size_t n_col = (size_t)a.n_unit * a.unit;
    a.x_stride = n_col + kc_range(k, 0, 9);
    a.y_stride = n_col + kc_range(k, 0, 9);
    const bool in_place = a.y_dtype == DT_F32 && kc_chance(k, 50);
    float *x = kc_buf(k, a.n_row * a.x_stride * sizeof *x), *w = kc_buf(k, n_col * sizeof *w);
    kc_shape(k, "n_row %u units %u of %u %s%s%s", a.n_row, a.n_unit, a.unit, dtype_name(a.y_dtype),
             a.apart ? " apart" : "", in_place ? " in place" : "");
    kc_fill(k, x, a.n_row * a.x_stride);
    kc_fill(k, w, n_col);
    a.x = kc_copy(k, x, a.n_row * a.x_stride * sizeof *x);
    a.w = w;
    a.y = in_place ? (void *)(uintptr_t)a.x : kc_buf(k, a.n_row * a.y_stride * sizeof *x);
    a.y_stride = in_place ? a.x_stride : a.y_stride;
    kc_run(k, k->variant, &a, kc_range(k, 1, 4));
    for (uint32_t i = 0; i < a.n_row; i++)
        for (uint32_t u = 0; u < a.n_unit; u++)
            check_unit(k, &a, x, i, u);
}

void kbench_norm_units(struct kc_bench *b)
{
    const uint32_t n_row = 64, n_unit = 32, unit = 128;
    const size_t n = (size_t)n_row * n_unit * unit;
    float *x = kc_buf(b->k, n * sizeof *x), *w = kc_buf(b->k, unit * sizeof *w);
    const struct norm_units_args a = {
        .y = x,
        .y_dtype = DT_F32,
        .x = x,
        .w = w,
        .n_row = n_row,
        .n_unit = n_unit,
        .unit = unit,
        .x_stride = (size_t)n_unit * unit,
        .y_stride = (size_t)n_unit * unit,
        .eps = 1e-6f,
    };
    kc_fill(b->k, x, n);
    kc_fill(b->k, w, unit);
    kc_print_bytes(b, "64 x 32 x 128", kc_time(b, &a), (double)n * 8);
}

struct qkv_case {
    struct qkv_epilogue_args a;
    size_t n_x, cache_bytes;
};

static void make_qkv(struct kcheck *k, struct qkv_case *c)
{
    static const uint32_t types[] = {DT_F32, DT_BF16, DT_I8};
    const uint32_t n_block = 3, n_pos = 9;
    struct qkv_epilogue_args *a = &c->a;
    *a = (struct qkv_epilogue_args){
        .kv_dtype = (enum dtype)kc_pick(k, types, 3),
        .n_row = kc_range(k, 0, 6),
        .n_kv_head = kc_range(k, 1, 3),
        .head_dim = 2 * kc_range(k, 1, 40),
        .interleaved = kc_chance(k, 30),
        .eps = 1e-6f,
    };
    a->n_head = a->n_kv_head * kc_range(k, 1, 3);
    a->n_rot = kc_chance(k, 50) ? a->head_dim : 2 * kc_range(k, 1, a->head_dim / 2);
    a->x_stride = (size_t)(a->n_head + 2 * a->n_kv_head) * a->head_dim + kc_range(k, 0, 5);
    c->n_x = a->n_row * a->x_stride;
    c->cache_bytes = n_block * kern_kv_block_bytes(a->kv_dtype, a->n_kv_head, a->head_dim);
    float *table = kc_buf(k, (size_t)n_pos * a->n_rot * sizeof *table);
    float *norms = kc_buf(k, 3 * (size_t)a->head_dim * sizeof *norms);
    uint32_t *pos = kc_buf(k, (a->n_row + 1) * sizeof *pos);
    uint32_t *slot = kc_buf(k, (a->n_row + 1) * sizeof *slot);
    kc_fill(k, table, (size_t)n_pos * a->n_rot);
    kc_fill(k, norms, 3 * (size_t)a->head_dim);
    for (uint32_t i = 0; i < a->n_row; i++) {
        pos[i] = kc_range(k, 0, n_pos - 1);
        slot[i] = kc_chance(k, 20) ? KERN_NO_SLOT : 7 * i;
    }
    a->table = table;
    a->pos = pos;
    a->slot = slot;
    if (kc_chance(k, 50)) {
        a->q_norm = norms;
        a->k_norm = norms + a->head_dim;
    }
    if (kc_chance(k, 30))
        a->v_norm = norms + 2 * (size_t)a->head_dim;
    kc_shape(k, "n_row %u heads %u %u of %u rot %u %s", a->n_row, a->n_head, a->n_kv_head,
             a->head_dim, a->n_rot, dtype_name(a->kv_dtype));
}

/* The weights of head h's norm; NULL: it has none. */
static const float *norm_of(const struct qkv_epilogue_args *a, uint32_t h)
{
    return h < a->n_head ? a->q_norm : h < a->n_head + a->n_kv_head ? a->k_norm : a->v_norm;
}

static void plain_qkv(struct kcheck *k, const struct qkv_epilogue_args *a)
{
    const size_t q = (size_t)a->n_head * a->head_dim, kv = (size_t)a->n_kv_head * a->head_dim;
    for (uint32_t i = 0; i < a->n_row; i++)
        for (uint32_t h = 0; h < a->n_head + 2 * a->n_kv_head; h++) {
            float *head = a->x + i * a->x_stride + (size_t)h * a->head_dim;
            if (!norm_of(a, h))
                continue;
            struct rms_norm_args n = {
                .y = head,
                .y_dtype = DT_F32,
                .x = head,
                .w = norm_of(a, h),
                .n_row = 1,
                .n_col = a->head_dim,
                .eps = a->eps,
            };
            rms_norm_ref(&n, &alone);
        }
    struct rope_args rope = {
        .x = a->x,
        .x_stride = a->x_stride,
        .table = a->table,
        .pos = a->pos,
        .n_row = a->n_row,
        .n_head = a->n_head + a->n_kv_head,
        .head_dim = a->head_dim,
        .n_rot = a->n_rot,
        .interleaved = a->interleaved,
    };
    rope_ref(&rope, &alone);
    struct kv_store_args store = {
        .k_cache = a->k_cache,
        .v_cache = a->v_cache,
        .kv_dtype = a->kv_dtype,
        .k = a->x + q,
        .v = a->x + q + kv,
        .k_stride = a->x_stride,
        .v_stride = a->x_stride,
        .slot = a->slot,
        .n_row = a->n_row,
        .n_kv_head = a->n_kv_head,
        .head_dim = a->head_dim,
    };
    kv_store_ref(&store, &(struct kern_exec){.nth = 1});
    (void)k;
}

void kcheck_qkv_epilogue(struct kcheck *k)
{
    struct qkv_case c;
    make_qkv(k, &c);
    struct qkv_epilogue_args *a = &c.a, want = c.a;
    a->x = kc_buf(k, c.n_x * sizeof *a->x);
    kc_fill(k, a->x, c.n_x);
    a->k_cache = kc_buf(k, c.cache_bytes);
    a->v_cache = kc_buf(k, c.cache_bytes);
    want.x = kc_copy(k, a->x, c.n_x * sizeof *a->x);
    want.k_cache = kc_copy(k, a->k_cache, c.cache_bytes);
    want.v_cache = kc_copy(k, a->v_cache, c.cache_bytes);
    plain_qkv(k, &want);
    kc_run(k, k->variant, a, kc_range(k, 1, 4));
    kc_same_bits(k, "x", (struct kc_bits){a->x, want.x, DT_F32, c.n_x});
    kc_same_bits(k, "K", (struct kc_bits){a->k_cache, want.k_cache, DT_I8, c.cache_bytes});
    kc_same_bits(k, "V", (struct kc_bits){a->v_cache, want.v_cache, DT_I8, c.cache_bytes});
}

void kbench_qkv_epilogue(struct kc_bench *b)
{
    static uint32_t zeros[512];
    const uint32_t n_row = 512, n_head = 14, n_kv = 2, head_dim = 64, n_col = 18 * head_dim;
    float *table = kc_buf(b->k, head_dim * sizeof *table);
    size_t cache_bytes = kern_kv_block_bytes(DT_BF16, n_kv, head_dim);
    kc_fill(b->k, table, head_dim);
    struct qkv_epilogue_args a = {
        .x = kc_buf(b->k, (size_t)n_row * n_col * 4),
        .x_stride = n_col,
        .table = table,
        .pos = zeros,
        .k_cache = kc_buf(b->k, cache_bytes),
        .v_cache = kc_buf(b->k, cache_bytes),
        .kv_dtype = DT_BF16,
        .slot = zeros,
        .n_row = 1,
        .n_head = n_head,
        .n_kv_head = n_kv,
        .head_dim = head_dim,
        .n_rot = head_dim,
    };
    kc_fill(b->k, a.x, (size_t)n_row * n_col);
    kc_print_bytes(b, "1 x 14 x 64", kc_time(b, &a), n_col * 8.0);
}

void kcheck_scatter(struct kcheck *k)
{
    uint32_t n_dst = kc_range(k, 1, 60), n = kc_range(k, 0, n_dst);
    uint32_t *dst = kc_buf(k, n_dst * sizeof *dst), *at = kc_buf(k, n_dst * sizeof *at);
    const uint32_t step = kc_range(k, 0, 3), n_value = n_dst * (step ? step : 1);
    uint32_t *value = kc_buf(k, n_value * sizeof *value), *from = kc_buf(k, n_dst * sizeof *from);
    struct scatter_args a = {
        .dst = dst,
        .at = kc_chance(k, 70) ? at : NULL,
        .value = value,
        .from = kc_chance(k, 50) ? from : NULL,
        .n = n,
        .step = step,
        .limit = kc_chance(k, 50) ? 1u << 31 : 0,
    };
    kc_shape(k, "%u of %u step %u%s%s", n, n_dst, step, a.at ? " at" : "", a.from ? " from" : "");
    memset(dst, 0, n_dst * sizeof *dst);
    for (uint32_t i = 0; i < n_value; i++)
        value[i] = (uint32_t)kc_rnd(k);
    for (uint32_t i = 0; i < n; i++) {
        at[i] = kc_chance(k, 10) ? KERN_NO_SLOT : n_dst - 1 - i;
        from[i] = kc_range(k, 0, n_value - 1);
    }
    kc_run(k, k->variant, &a, kc_range(k, 1, 4));
    for (uint32_t i = 0; i < n_dst; i++) {
        uint32_t v = i < n ? value[a.from ? from[i] : i * (step ? step : 1)] : 0;
        if ((a.limit && v >= a.limit) || (a.at && i < n && at[i] == KERN_NO_SLOT))
            v = 0;
        kc_near(k, "dst", dst[a.at ? n_dst - 1 - i : i], v, 0);
    }
}

void kbench_scatter(struct kc_bench *b)
{
    static uint32_t at[512], dst[512];
    for (uint32_t i = 0; i < 512; i++)
        at[i] = i;
    struct scatter_args a = {.dst = dst, .at = at, .value = at, .n = 512};
    kc_print_bytes(b, "512", kc_time(b, &a), 512 * 12.0);
}
