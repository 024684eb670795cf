/* SPDX-License-Identifier: Apache-2.0 */
/* linear, linear_int8 and linear_fp8, plain and grouped: the choice of a kernel, and the kernels for cases that the
 * tiles do not support: f32, rows that are not multiples of 16 bytes.
 *
 *     x and W                              up to 16 rows   more
 *     bf16, f16, int8 or e4m3, both of one few             cuBLASLt where the tuner found it faster (tune.h),
 *     type, rows of 16-byte pieces                         else many; deterministic: many
 *     f32 and bf16 or f16, not gated       mixed           mixed
 *     f32, other rows                      any             any
 * On compute capability 9.0 linear_sm90a.cu (wgmma) has many's place, where it held its trial (trial_linear.h).
 * few and many: linear_tiles.cu; mixed: linear_mixed.cu. 4-bit weights: linear_w4.cu, few and many of its own.
 *
 * any_kernel, any_groups_kernel: for tiny models and odd shapes; not optimized.
 *   Shape: a thread an output of one row, 128 a block. No shared memory.
 *   Order: k ascending, one fma each, from +0: that of ref/linear.c with f32 x, so the bits of the CPU.
 *   Bytes: W once for each row, from L2 at best. FLOP: 2 n_row n_out n_in.
 *   Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/groups.cuh"
#include "kernels/cuda/linear.cuh"

#define THREADS  128u
#define FEW_ROWS 16u /* up to which linear_tiles.cu reads W at bandwidth; of groups on average */

/* ---- any ---- */
struct any_in {
    const void *x, *w;
    size_t x_stride;
    enum dtype x_dtype, w_dtype;
    uint32_t n_in;
};

static __device__ __forceinline__ size_t element_bytes(enum dtype dtype)
{
    return dtype == DT_F32 ? 4 : dtype == DT_I8 || dtype == DT_F8_E4M3 ? 1 : 2;
}

template <bool PICKED>
static __device__ __forceinline__ float any_dot(const struct any_in &in, const struct linear_out &f,
                                                uint32_t row, uint32_t o)
{
    const size_t at_x = row * in.x_stride, at_w = (size_t)o * in.n_in;
    if (in.x_dtype == DT_I8) {
        int sum = 0;
        for (uint32_t k = 0; k < in.n_in; k++)
            sum += ((const int8_t *)in.x)[at_x + k] * ((const int8_t *)in.w)[at_w + k];
        return scaled<false, PICKED>(f, sum, row, o);
    }
    float sum = 0;
    if (in.x_dtype == DT_F8_E4M3) {
        for (uint32_t k = 0; k < in.n_in; k++)
            sum = fmaf(e4m3_value(((const uint8_t *)in.x)[at_x + k]),
                       e4m3_value(((const uint8_t *)in.w)[at_w + k]), sum);
        return scaled<true, PICKED>(f, sum, row, o);
    }
    for (uint32_t k = 0; k < in.n_in; k++)
        sum = fmaf(load_as(in.x, in.x_dtype, at_x + k), load_as(in.w, in.w_dtype, at_w + k), sum);
    return sum;
}

static __global__ void __launch_bounds__(THREADS)
    any_kernel(const struct any_in in, const struct linear_out out)
{
    await_inputs();
    const uint32_t o = blockIdx.y * THREADS + threadIdx.x, row = blockIdx.x;
    if (o >= out.n_out || (out.gated && o / KERN_GATE_INTERLEAVE % 2))
        return; /* gated: the thread of gate has up too */
    const float sum = any_dot<false>(in, out, row, o);
    if (out.gated)
        epilogue_gated(out, row, o, sum, any_dot<false>(in, out, row, o + KERN_GATE_INTERLEAVE));
    else
        epilogue(out, row, o, sum);
}

static void any(const struct any_in *in, const struct linear_out *out, const struct kern_exec *x)
{
    /* rows first: of the other two dimensions a grid has 65535 at most */
    launch(any_kernel, dim3(out->n_row, div_up(out->n_out, THREADS)), THREADS, 0, x, *in, *out);
}

static __global__ void __launch_bounds__(THREADS)
    any_groups_kernel(const struct any_in all_in, const struct linear_out all_out,
                      const struct groups g)
{
    await_inputs();
    const uint32_t o = blockIdx.y * THREADS + threadIdx.x, place = blockIdx.x;
    if (o >= all_out.n_out || (all_out.gated && o / KERN_GATE_INTERLEAVE % 2) ||
        place >= g.starts[g.n_group])
        return;
    const size_t at = group_at(g, place) * g.w_stride;
    const uint32_t row = row_of_x(g, place);
    struct any_in in = all_in;
    struct linear_out out = all_out;
    in.w = (const char *)in.w + at;
    in.x = (const char *)in.x + row * in.x_stride * element_bytes(in.x_dtype);
    if (out.scales)
        out.scales = (const float *)((const char *)out.scales + at);
    in.x_stride = 0; /* the row of x, not the number of the place */
    const float sum = any_dot<true>(in, out, place, o);
    if (out.gated)
        epilogue_gated(out, place, o, sum, any_dot<true>(in, out, place, o + KERN_GATE_INTERLEAVE));
    else
        epilogue(out, place, o, sum);
}

static bool in_sixteens(const struct linear_in *in)
{
    return ((uintptr_t)in->x | (uintptr_t)in->w | in->x_bytes | in->row_bytes) % 16 == 0;
}

static void serve(enum form f, const struct linear_in *from, const struct linear_out *to,
                  const struct kern_exec *x, enum by by)
{
    struct linear_in in = *from;
    struct linear_out out = *to;
    if (by == BY_WGMMA_ALONE) {
        linear_wgmma(f, &in, &out, NULL, NULL, x, TRIAL_PATIENCE);
        return;
    }
    const uint32_t n = linear_lt(f, &in, &out, x);
    if (n == out.n_row)
        return;
    linear_skip(&in, &out, n);
    if (by == BY_WGMMA && out.n_row > FEW_ROWS && linear_wgmma(f, &in, &out, NULL, NULL, x, 0))
        return;
    if (f == FORM_BF16)
        linear_tiles_bf16(&in, &out, x);
    else if (f == FORM_F16)
        linear_tiles_f16(&in, &out, x);
    else if (f == FORM_E4M3)
        linear_tiles_fp8(&in, &out, x);
    else
        linear_tiles_i8(&in, &out, x);
}

static void product(const struct linear_args *a, const struct kern_exec *x, enum by by)
{
    const struct linear_out out = {a->y,     a->y_stride, a->y_dtype, a->bias,       NULL, NULL,
                                   a->n_row, a->w.n_out,  a->w.gated, a->accumulate, NULL};
    const struct linear_in in = {a->x, a->w.data, a->x_stride * 2, (size_t)a->w.n_in * 2};
    const struct linear_in floats = {a->x, a->w.data, a->x_stride * 4, (size_t)a->w.n_in * 2};
    const struct any_in slow = {a->x, a->w.data, a->x_stride, a->x_dtype, a->w.dtype, a->w.n_in};
    const bool mixed = a->x_dtype == DT_F32 && !a->w.gated && in_sixteens(&floats);
    if (a->n_row == 0)
        return;
    if (mixed && a->w.dtype == DT_BF16)
        linear_mixed_bf16(&floats, &out, x);
    else if (mixed && a->w.dtype == DT_F16)
        linear_mixed_f16(&floats, &out, x);
    else if (a->x_dtype != a->w.dtype || a->x_dtype == DT_F32 || !in_sixteens(&in))
        any(&slow, &out, x);
    else
        serve(a->x_dtype == DT_BF16 ? FORM_BF16 : FORM_F16, &in, &out, x, by);
}

THREE_WAYS(linear, linear_args, product(a, x, by))

static struct linear_out quant_out(const struct linear_int8_args *a)
{
    const struct linear_out out = {
        a->y,
        a->y_stride,
        a->y_dtype,
        a->bias,
        (const float *)((const char *)a->w.data + int8_scales_at(a->w.n_out, a->w.n_in)),
        a->rows,
        a->n_row,
        a->w.n_out,
        a->w.gated,
        a->accumulate,
        NULL};
    return out;
}

static void quantized(enum form f, const struct linear_int8_args *a, const struct kern_exec *x,
                      enum by by)
{
    const enum dtype dtype = f == FORM_I8 ? DT_I8 : DT_F8_E4M3;
    const struct linear_out out = quant_out(a);
    const struct linear_in in = {a->x, a->w.data, a->x_stride, a->w.n_in};
    const struct any_in slow = {a->x, a->w.data, a->x_stride, dtype, dtype, a->w.n_in};
    if (a->n_row == 0)
        return;
    if (in_sixteens(&in))
        serve(f, &in, &out, x, by);
    else
        any(&slow, &out, x);
}

THREE_WAYS(linear_int8, linear_int8_args, quantized(FORM_I8, a, x, by))

THREE_WAYS(linear_fp8, linear_fp8_args, quantized(FORM_E4M3, &a->by, x, by))

/* ---- groups ---- */

static void any_groups(const struct any_in *in, const struct linear_out *out,
                       const struct groups *g, const struct kern_exec *x)
{
    launch(any_groups_kernel, dim3(out->n_row, div_up(out->n_out, THREADS)), THREADS, 0, x, *in,
           *out, *g);
}

static void serve_groups(enum form f, const struct linear_in *in, const struct linear_out *out,
                         const struct groups *g, const struct kern_exec *x, enum by by)
{
    if (by == BY_WGMMA_ALONE) {
        linear_wgmma(f, in, out, g, NULL, x, TRIAL_PATIENCE);
        return;
    }
    if (by == BY_WGMMA && out->n_row > FEW_ROWS * g->n_group &&
        linear_wgmma(f, in, out, g, NULL, x, 0))
        return;
    if (f == FORM_BF16)
        linear_grouped_bf16(in, out, g, x);
    else if (f == FORM_F16)
        linear_grouped_f16(in, out, g, x);
    else if (f == FORM_E4M3)
        linear_grouped_fp8(in, out, g, x);
    else
        linear_grouped_i8(in, out, g, x);
}

static void product_groups(const struct linear_grouped_args *all, const struct kern_exec *x,
                           enum by by)
{
    const struct linear_args *a = &all->by;
    const struct linear_out out = {a->y,     a->y_stride, a->y_dtype, NULL, NULL, NULL,
                                   a->n_row, a->w.n_out,  a->w.gated, 0,    NULL};
    const struct linear_in in = {a->x, a->w.data, a->x_stride * 2, (size_t)a->w.n_in * 2};
    const struct any_in slow = {a->x, a->w.data, a->x_stride, a->x_dtype, a->w.dtype, a->w.n_in};
    if (a->n_row == 0)
        return;
    if (a->x_dtype != a->w.dtype || a->x_dtype == DT_F32 || !in_sixteens(&in) ||
        all->of.w_stride % 16)
        any_groups(&slow, &out, &all->of, x);
    else
        serve_groups(a->x_dtype == DT_BF16 ? FORM_BF16 : FORM_F16, &in, &out, &all->of, x, by);
}

THREE_WAYS(linear_grouped, linear_grouped_args, product_groups(a, x, by))

static void quantized_groups(enum form f, const struct linear_int8_grouped_args *all,
                             const struct kern_exec *x, enum by by)
{
    const struct linear_int8_args *a = &all->by;
    const enum dtype dtype = f == FORM_I8 ? DT_I8 : DT_F8_E4M3;
    struct linear_out out = quant_out(a);
    const struct linear_in in = {a->x, a->w.data, a->x_stride, a->w.n_in};
    const struct any_in slow = {a->x, a->w.data, a->x_stride, dtype, dtype, a->w.n_in};
    out.picked = all->of.rows;
    if (a->n_row == 0)
        return;
    if (!in_sixteens(&in) || all->of.w_stride % 16)
        any_groups(&slow, &out, &all->of, x);
    else
        serve_groups(f, &in, &out, &all->of, x, by);
}

THREE_WAYS(linear_int8_grouped, linear_int8_grouped_args, quantized_groups(FORM_I8, a, x, by))

THREE_WAYS(linear_fp8_grouped, linear_fp8_grouped_args, quantized_groups(FORM_E4M3, &a->as, x, by))
