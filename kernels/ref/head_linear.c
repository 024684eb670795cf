/* SPDX-License-Identifier: Apache-2.0 */
/* Definition and order: ops_mla.h. */
#include <math.h>
#include "kernels/ops/ops_mla.h"
#include "kernels/ref/element.h"
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static float weight_at(const struct head_linear_args *a, uint32_t head, uint32_t row, uint32_t col)
{
    const size_t at = (size_t)head * a->w_rows + a->w_first + row;
    return element_f32(a->w, a->w_dtype, at * a->n_col + col);
}

static float dot(const struct head_linear_args *a, uint32_t head, uint32_t o, const float *x)
{
    float lane[16] = {0};
    for (uint32_t k = 0; k < a->n_col; k++)
        lane[k % 16] = fmaf(x[k], weight_at(a, head, o, k), lane[k % 16]);
    return fold16(lane);
}

static float column(const struct head_linear_args *a, uint32_t head, uint32_t o, const float *x)
{
    float sum = 0;
    for (uint32_t k = 0; k < a->n_w; k++)
        sum = fmaf(x[k], weight_at(a, head, k, o), sum);
    return sum;
}

static void multiply_head(const struct head_linear_args *a, size_t row, uint32_t head)
{
    const uint32_t n_out = a->transposed ? a->n_col : a->n_w;
    const uint32_t n_in = a->transposed ? a->n_w : a->n_col;
    const float *x = a->x + row * a->x_stride + (size_t)head * a->x_head;
    const size_t to = row * a->y_stride + (size_t)head * a->y_head;
    for (uint32_t o = 0; o < n_out; o++)
        element_set(a->y, a->y_dtype, to + o,
                    a->transposed ? column(a, head, o, x) : dot(a, head, o, x));
    for (uint32_t i = 0; i < a->n_kept; i++)
        element_set(a->y, a->y_dtype, to + n_out + i, x[n_in + i]);
}

void head_linear_ref(const struct head_linear_args *a, const struct kern_exec *x)
{
    const struct range pairs = split((size_t)a->n_row * a->n_head, x);
    for (size_t i = pairs.begin; i < pairs.end; i++)
        multiply_head(a, i / a->n_head, (uint32_t)(i % a->n_head));
}
