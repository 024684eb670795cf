/* SPDX-License-Identifier: Apache-2.0 */
/* Each place is computed by the plain product of one row. */
#include "kernels/ref/element.h"
#include "kernels/variants.h"

struct place {  /* arguments that differ between the types */
    size_t row; /* of x */
    size_t w;   /* bytes from expert 0's matrix */
};

static struct place place_of(const struct groups *g, uint32_t expert, uint32_t at)
{
    return (struct place){g->rows ? g->rows[at] : at, expert * g->w_stride};
}

/* Of floats. */
static struct linear_args floats_of(const struct linear_grouped_args *a, uint32_t expert,
                                    uint32_t p)
{
    const struct place at = place_of(&a->of, expert, p);
    struct linear_args one = a->by;
    one.n_row = 1;
    one.w.data = (const char *)one.w.data + at.w;
    one.x = (const char *)one.x + at.row * one.x_stride * (dtype_bits(one.x_dtype) / 8);
    one.y = (char *)one.y + p * one.y_stride * (dtype_bits(one.y_dtype) / 8);
    return one;
}

void linear_grouped_ref(const struct linear_grouped_args *a, const struct kern_exec *x)
{
    for (uint32_t e = 0; e < a->of.n_group; e++)
        for (uint32_t p = a->of.starts[e]; p < a->of.starts[e + 1]; p++) {
            const struct linear_args one = floats_of(a, e, p);
            linear_ref(&one, x);
        }
}

void linear_w4a16_grouped_ref(const struct linear_w4a16_grouped_args *a, const struct kern_exec *x)
{
    for (uint32_t e = 0; e < a->as.of.n_group; e++)
        for (uint32_t p = a->as.of.starts[e]; p < a->as.of.starts[e + 1]; p++) {
            const struct linear_w4a16_args one = {floats_of(&a->as, e, p)};
            linear_w4a16_ref(&one, x);
        }
}

/* Of bytes with a scale a row. */
static struct linear_int8_args quant_of(const struct linear_int8_grouped_args *a, uint32_t expert,
                                        uint32_t p)
{
    const struct place at = place_of(&a->of, expert, p);
    struct linear_int8_args one = a->by;
    one.n_row = 1;
    one.w.data = (const char *)one.w.data + at.w;
    one.x += at.row * one.x_stride;
    one.rows += at.row;
    one.y = (char *)one.y + p * one.y_stride * (dtype_bits(one.y_dtype) / 8);
    return one;
}

void linear_int8_grouped_ref(const struct linear_int8_grouped_args *a, const struct kern_exec *x)
{
    for (uint32_t e = 0; e < a->of.n_group; e++)
        for (uint32_t p = a->of.starts[e]; p < a->of.starts[e + 1]; p++) {
            const struct linear_int8_args one = quant_of(a, e, p);
            linear_int8_ref(&one, x);
        }
}

void linear_fp8_grouped_ref(const struct linear_fp8_grouped_args *a, const struct kern_exec *x)
{
    for (uint32_t e = 0; e < a->as.of.n_group; e++)
        for (uint32_t p = a->as.of.starts[e]; p < a->as.of.starts[e + 1]; p++) {
            const struct linear_fp8_args one = {quant_of(&a->as, e, p)};
            linear_fp8_ref(&one, x);
        }
}

void linear_fp8_block_grouped_ref(const struct linear_fp8_block_grouped_args *a,
                                  const struct kern_exec *x)
{
    for (uint32_t e = 0; e < a->of.n_group; e++)
        for (uint32_t p = a->of.starts[e]; p < a->of.starts[e + 1]; p++) {
            const struct place at = place_of(&a->of, e, p);
            struct linear_fp8_block_args one = a->by;
            one.n_row = 1;
            one.w.data = (const char *)one.w.data + at.w;
            one.x += at.row * one.x_stride;
            one.x_scales += at.row * one.scale_stride;
            one.y = (char *)one.y + p * one.y_stride * (dtype_bits(one.y_dtype) / 8);
            linear_fp8_block_ref(&one, x);
        }
}

void linear_w4a8_grouped_ref(const struct linear_w4a8_grouped_args *a, const struct kern_exec *x)
{
    for (uint32_t e = 0; e < a->as.of.n_group; e++)
        for (uint32_t p = a->as.of.starts[e]; p < a->as.of.starts[e + 1]; p++) {
            const struct linear_w4a8_args one = {.by = quant_of(&a->as, e, p)};
            linear_w4a8_ref(&one, x);
        }
}
