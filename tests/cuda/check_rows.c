/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on rows. Those that tests/kcheck can check are in the table only. */
#include "check.h"
#include <math.h>
#include "kernels/ops/int8_layout.h"
#include "kernels/variants.h"

CUDA_CALL(embed)
CUDA_CALL(silu_mul)
CUDA_CALL(layer_norm)
CUDA_CALL(activate)
CUDA_CALL(add_rows)
CUDA_CALL(soft_cap)
CUDA_CALL(gate_rows)
CUDA_CALL(scatter)
CUDA_CALL(pool_rows)
CUDA_CALL(rms_norm)
CUDA_CALL(norm_units)
CUDA_CALL(norm_rows)
CUDA_CALL(quant_rows)
CUDA_CALL(rope)
REF_CALL(embed)
REF_CALL(silu_mul)
REF_CALL(layer_norm)
REF_CALL(activate)
REF_CALL(add_rows)
REF_CALL(soft_cap)
REF_CALL(gate_rows)
REF_CALL(scatter)
REF_CALL(pool_rows)
REF_CALL(rms_norm)
REF_CALL(norm_units)
REF_CALL(norm_rows)
REF_CALL(quant_rows)
REF_CALL(rope)

/* A packed table is row-major here (layout.h), so `packed` changes nothing. */
static void check_embed(struct kcheck *k)
{
    static const uint32_t types[] = {DT_F32, DT_F16, DT_BF16};
    const enum dtype t = (enum dtype)kc_pick(k, types, 3);
    const uint32_t n_vocab = kc_range(k, 1, 40), n_col = kc_range(k, 1, 300);
    const uint32_t n_row = kc_range(k, 0, 9);
    void *table = kc_buf(k, (size_t)n_vocab * n_col * dtype_bits(t) / 8);
    uint32_t *ids = kc_buf(k, (n_row + 1) * sizeof *ids);
    kc_fill_dtype(k, table, t, (size_t)n_vocab * n_col);
    for (uint32_t i = 0; i < n_row; i++)
        ids[i] = kc_chance(k, 10) ? KERN_NO_ROW : kc_range(k, 0, n_vocab - 1);
    const bool looked_up = kc_chance(k, 40);
    struct embed_args a = {
        .div = kc_range(k, 1, 5),
        .mod = looked_up ? kc_range(k, 1, n_vocab) : 0,
        .y = kc_buf(k, (size_t)n_row * n_col * 4),
        .table = table,
        .dtype = t,
        .ids = ids,
        .n_row = n_row,
        .n_col = n_col,
        .scale = 1.5f,
        .accumulate = kc_chance(k, 50),
    };
    kc_fill(k, a.y, (size_t)n_row * n_col);
    struct embed_args got = a;
    got.y = kc_copy(k, a.y, (size_t)n_row * n_col * 4);
    got.packed = kc_chance(k, 50);
    kc_shape(k, "%s n_row %u n_col %u", dtype_name(t), n_row, n_col);
    kc_run(k, k->ref, &a, 1);
    kc_run(k, k->variant, &got, 1);
    kc_compare(k, "y", &(struct kc_array){got.y, DT_F32, n_row, n_col, n_col},
               &(struct kc_array){a.y, DT_F32, n_row, n_col, n_col});
}

struct norm_case {
    struct norm_rows_args a;
    float *x; /* [n_src] as it was */
    uint32_t n_src;
};

static bool is_bytes(const struct norm_rows_args *a)
{
    return a->y_dtype == DT_I8 || a->y_dtype == DT_F8_E4M3;
}

static void make_norm(struct kcheck *k, struct norm_case *c)
{
    static const uint32_t types[] = {DT_F32, DT_BF16, DT_F16, DT_I8, DT_F8_E4M3, DT_F8_E4M3};
    static const uint32_t adds[] = {DT_F32, DT_BF16};
    struct norm_rows_args *a = &c->a;
    *a = (struct norm_rows_args){
        .y_dtype = (enum dtype)kc_pick(k, types, 6),
        .add_dtype = (enum dtype)kc_pick(k, adds, 2),
        .n_col = kc_chance(k, 30) ? kc_range(k, 1, 40) : kc_range(k, 1, 2600),
        .eps = 1e-5f,
    };
    c->n_src = kc_range(k, 1, 5);
    a->x_stride = a->n_col + kc_range(k, 0, 9);
    a->add_stride = a->n_col + kc_range(k, 0, 3);
    a->y_stride = is_bytes(a) ? int8_k(a->n_col) : a->n_col + kc_range(k, 0, 5);
    if (a->y_dtype == DT_F8_E4M3 && kc_chance(k, 50))
        a->scale_stride = fp8_n_block(a->n_col) + kc_range(k, 0, 4);
    else if (kc_chance(k, 50)) /* of e4m3 alone */
        a->scale = (float)kc_range(k, 1, 100) / 2048;
    c->x = kc_buf(k, c->n_src * a->x_stride * sizeof(float));
    kc_fill(k, c->x, c->n_src * a->x_stride);
    float *w = kc_buf(k, a->n_col * sizeof *w);
    kc_fill(k, w, a->n_col);
    a->w = w;
    if (kc_chance(k, 50)) {
        void *add = kc_buf(k, c->n_src * a->add_stride * 4);
        kc_fill_dtype(k, add, a->add_dtype, c->n_src * a->add_stride);
        a->add = add;
    }
    uint32_t *rows = kc_buf(k, c->n_src * sizeof *rows);
    for (uint32_t i = 0; i < c->n_src; i++)
        if (kc_chance(k, 60))
            rows[a->n_row++] = i;
    if (kc_chance(k, 50))
        a->rows = rows;
    else
        a->n_row = c->n_src;
    kc_shape(k, "n_row %u of %u n_col %u %s%s", a->n_row, c->n_src, a->n_col,
             dtype_name(a->y_dtype), a->add ? " add" : "");
}

/* Runs `v` on a copy of x; y in a buffer of its own. */
static struct norm_rows_args run_norm(struct kcheck *k, const struct norm_case *c,
                                      const struct kc_variant *v, uint32_t n_row)
{
    struct norm_rows_args a = c->a;
    a.n_row = n_row;
    a.x = kc_copy(k, c->x, c->n_src * a.x_stride * sizeof(float));
    a.y = kc_buf(k, a.n_row * a.y_stride * 4);
    a.quant = kc_buf(k, a.n_row * sizeof *a.quant);
    a.scales = a.scale_stride ? kc_buf(k, a.n_row * a.scale_stride * sizeof(float)) : NULL;
    kc_run(k, v, &a, 1);
    return a;
}

static void quantize(const struct norm_rows_args *to, const struct norm_rows_args *from)
{
    const struct quant_rows_args int8 = {
        .q = to->y,
        .rows = to->quant,
        .x = from->y,
        .n_row = to->n_row,
        .n_col = to->n_col,
        .x_stride = from->y_stride,
        .q_stride = to->y_stride,
    };
    const struct quant_rows_fp8_args rows = {to->y,     to->quant,      from->y,      to->n_row,
                                             to->n_col, from->y_stride, to->y_stride, to->scale};
    const struct quant_rows_fp8_block_args blocks = {to->y,        to->scales,      from->y,
                                                     to->n_row,    to->n_col,       from->y_stride,
                                                     to->y_stride, to->scale_stride};
    const struct kern_exec alone = {.nth = 1};
    if (to->y_dtype == DT_I8)
        quant_rows_ref(&int8, &alone);
    else if (to->scales)
        quant_rows_fp8_block_ref(&blocks, &alone);
    else
        quant_rows_fp8_ref(&rows, &alone);
}

/* The bits of the two operations in sequence: of the same kernel's floats, quantized. */
static void check_bytes(struct kcheck *k, struct norm_case *c, const struct norm_rows_args *got)
{
    struct norm_rows_args want = *got;
    c->a.y_dtype = DT_F32;
    const struct norm_rows_args floats = run_norm(k, c, k->variant, got->n_row);
    c->a.y_dtype = got->y_dtype;
    want.y = kc_buf(k, got->n_row * got->y_stride);
    want.quant = kc_buf(k, got->n_row * sizeof *want.quant);
    want.scales = got->scales ? kc_buf(k, got->n_row * got->scale_stride * sizeof(float)) : NULL;
    quantize(&want, &floats);
    for (uint32_t i = 0; i < got->n_row; i++) {
        const size_t at = i * got->y_stride, scale = i * got->scale_stride;
        kc_same_bits(
            k, "bytes",
            (struct kc_bits){(char *)got->y + at, (char *)want.y + at, DT_I8, int8_k(got->n_col)});
        if (got->scales) {
            kc_same_bits(k, "scales",
                         (struct kc_bits){got->scales + scale, want.scales + scale, DT_F32,
                                          fp8_n_block(got->n_col)});
            continue;
        }
        kc_same_bits(k, "scale",
                     (struct kc_bits){&got->quant[i].scale, &want.quant[i].scale, DT_F32, 1});
        kc_near(k, "sum", got->quant[i].sum, want.quant[i].sum, 0);
    }
}

static void check_norm_rows(struct kcheck *k)
{
    struct norm_case c;
    make_norm(k, &c);
    struct norm_rows_args want = run_norm(k, &c, k->ref, c.a.n_row);
    struct norm_rows_args got = run_norm(k, &c, k->variant, c.a.n_row);
    const size_t element = dtype_bits(got.y_dtype) / 8;
    kc_same_bits(k, "x", (struct kc_bits){got.x, want.x, DT_F32, c.n_src * got.x_stride});
    if (is_bytes(&got))
        check_bytes(k, &c, &got);
    else if (got.y_dtype != DT_F16)
        kc_compare(k, "y",
                   &(struct kc_array){got.y, got.y_dtype, got.n_row, got.n_col, got.y_stride},
                   &(struct kc_array){want.y, got.y_dtype, got.n_row, got.n_col, got.y_stride});
    for (uint32_t n = 1; n < got.n_row; n++) { /* the bits of a row in a smaller batch */
        struct norm_rows_args some = run_norm(k, &c, k->variant, n);
        kc_same_bits(k, "fewer rows",
                     (struct kc_bits){(char *)some.y + (n - 1) * some.y_stride * element,
                                      (char *)got.y + (n - 1) * got.y_stride * element,
                                      got.y_dtype == DT_F16       ? DT_I16
                                      : got.y_dtype == DT_F8_E4M3 ? DT_I8
                                                                  : got.y_dtype,
                                      got.n_col});
    }
}

const struct cuda_check cuda_checks_rows[] = {
    {"embed", ref_embed, call_embed, 0, check_embed, 40},
    {"silu_mul", ref_silu_mul, call_silu_mul, 4, kcheck_silu_mul, 40},
    {"layer_norm", ref_layer_norm, call_layer_norm, 16, kcheck_layer_norm, 40},
    {"activate", ref_activate, call_activate, 8, kcheck_activate, 60},
    {"add_rows", ref_add_rows, call_add_rows, 0, kcheck_add_rows, 40},
    {"soft_cap", ref_soft_cap, call_soft_cap, 4, kcheck_soft_cap, 40},
    {"gate_rows", ref_gate_rows, call_gate_rows, 4, kcheck_gate_rows, 40},
    {"scatter", ref_scatter, call_scatter, 0, kcheck_scatter, 40},
    {"pool_rows", ref_pool_rows, call_pool_rows, 0, kcheck_pool_rows, 40},
    {"rms_norm", ref_rms_norm, call_rms_norm, 16, kcheck_rms_norm, 40},
    {"norm_units", ref_norm_units, call_norm_units, 16, kcheck_norm_units, 40},
    {"norm_rows", ref_norm_rows, call_norm_rows, 16, check_norm_rows, 60},
    {"quant_rows", ref_quant_rows, call_quant_rows, 0, kcheck_quant_rows, 40},
    {"rope", ref_rope, call_rope, 0, kcheck_rope, 40},
    {0},
};
