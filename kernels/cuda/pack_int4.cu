/* SPDX-License-Identifier: Apache-2.0 */
/* pack_int4: groups of weights as 4 bits with a scale and a zero; the formula and bits of ref/pack_int4.c, in the
 * layout of layout.h.
 *
 * Shape: a warp a group, 4 a block. Lanes l and l + 16 do the same: columns l, l + 16, … of the group, so
 *   that the error is summed in the 16 sums of the reference, folded by halves. No shared memory.
 * Bytes: the source, again from L1 for each of KERN_INT4_TRIES fits, and n_in / 2 + 3 n_in / group an output;
 *   it runs once, at load.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/layout.h"

#define GROUPS    4u
#define MOST      15.0f
#define RANGE_MAX 900000.0f /* int4_fit.h: INT4_RANGE_MAX */
#define BAD_SCALE 0x7e00    /* f16 NaN */

struct fit {
    float scale, inverse, zero;
    uint16_t stored;
};

static __device__ __forceinline__ float weight(const struct pack_int4_args &a, size_t i)
{
    const uint8_t *b =
        (const uint8_t *)a.src + i * (a.src_dtype == DT_F32 ? 4 : 2); /* any alignment */
    const uint32_t low = b[0] | (uint32_t)b[1] << 8;
    if (a.src_dtype == DT_F32)
        return __uint_as_float(low | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24);
    return a.src_dtype == DT_F16 ? f16_value((uint16_t)low) : bf16_value((uint16_t)low);
}

/* int4_fit() of int4_fit.h. */
static __device__ __forceinline__ bool fit_to(struct fit *f, float low, float high, int attempt)
{
    const float part = 1.0f - 0.04f * (float)attempt;
    f->stored = f16_of((high - low) * part / MOST);
    f->scale = f16_value(f->stored);
    if (!(f->scale > 0))
        return false;
    f->inverse = 1.0f / f->scale;
    f->zero = rintf(-low * part * f->inverse);
    f->zero = f->zero > MOST ? MOST : f->zero;
    return true;
}

static __device__ __forceinline__ float clamp_code(float q)
{
    return q < 0 ? 0 : q > MOST ? MOST : q;
}

static __device__ __forceinline__ float error_of(const struct pack_int4_args &a, size_t from,
                                                 const struct fit &f)
{
    float sum = 0;
    for (uint32_t k = threadIdx.x % 16; k < a.group; k += 16) {
        const float w = weight(a, from + k), q = clamp_code(rintf(w * f.inverse) + f.zero);
        const float d = fmaf(-f.scale, q - f.zero, w);
        sum = fmaf(d, d, sum);
    }
#pragma unroll
    for (unsigned half = 8; half; half /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, half);
    return sum;
}

/* The group's fit; scale 0: all zeros; stored BAD_SCALE: not numbers. */
static __device__ __forceinline__ struct fit best_fit(const struct pack_int4_args &a, size_t from)
{
    struct fit best = {0, 0, 0, 0}, f;
    float low = 0, high = 0, zeros = 0, least = INFINITY;
    for (uint32_t k = threadIdx.x % 16; k < a.group; k += 16) {
        const float w = weight(a, from + k);
        low = w < low ? w : low;
        high = w > high ? w : high;
        zeros = fmaf(w, 0, zeros);
    }
#pragma unroll
    for (unsigned half = 8; half; half /= 2) {
        const float l = __shfl_xor_sync(ALL_LANES, low, half);
        const float h = __shfl_xor_sync(ALL_LANES, high, half);
        low = l < low ? l : low;
        high = h > high ? h : high;
        zeros += __shfl_xor_sync(ALL_LANES, zeros, half);
    }
    if (zeros != 0 || !(high - low < RANGE_MAX)) {
        best.stored = BAD_SCALE;
        return best;
    }
    for (int t = 0; t < KERN_INT4_TRIES; t++) {
        if (!fit_to(&f, low, high, t))
            continue; /* of all lanes alike */
        const float error = error_of(a, from, f);
        if (error >= least)
            continue;
        best = f;
        least = error;
    }
    return best;
}

static __device__ __forceinline__ uint8_t value(const struct pack_int4_args &a, size_t at,
                                                const struct fit &f)
{
    if (a.q)
        return a.q[at];
    return f.scale > 0 ? (uint8_t)clamp_code(rintf(weight(a, at) * f.inverse) + f.zero)
                       : (uint8_t)0;
}

static __global__ void __launch_bounds__(GROUPS *WARP)
    pack_int4_kernel(const struct pack_int4_args a)
{
    await_inputs();
    const uint32_t n_group = a.n_in / a.group, lane = threadIdx.x % WARP;
    const size_t i = (size_t)blockIdx.x * GROUPS + threadIdx.x / WARP;
    if (i >= (size_t)a.n_out * n_group)
        return;
    const size_t row = i / n_group, o = a.row_start + row, from = row * a.n_in;
    const uint32_t g = (uint32_t)(i % n_group), k0 = g * a.group;
    struct fit f = {1, 1, 0, 0};
    if (a.q) { /* integers that are there already */
        f.stored = a.scales[row * n_group + g];
        f.zero = (float)a.zeros[row * n_group + g];
    } else {
        f = best_fit(a, from + k0);
    }
    uint8_t *to = (uint8_t *)a.dst + o * int4_row_bytes(a.n_in);
    /* byte b of word (t, j) of a block: inputs 32 j + 8 t + b and + 4; the last group has the padding */
    const uint32_t end =
        g + 1 < n_group ? k0 + a.group : (a.n_in + INT4_BLOCK - 1) / INT4_BLOCK * INT4_BLOCK;
    for (uint32_t n = lane; n < (end - k0) / 2; n += WARP) {
        const uint32_t k = k0 + n / 4 * 8 + n % 4, in_block = k % INT4_BLOCK;
        const uint32_t at = (in_block % 32 / 8 * 4 + in_block / 32) * 4 + n % 4;
        const bool there = k < k0 + a.group;
        const uint8_t low = there ? value(a, from + k, f) : 0;
        const uint8_t high = there ? value(a, from + k + 4, f) : 0;
        to[k / INT4_BLOCK * INT4_BLOCK_BYTES + at] = (uint8_t)(low | high << 4);
    }
    if (lane == 0) {
        uint8_t *dst = (uint8_t *)a.dst;
        ((uint16_t *)(dst + int4_scales_from(a.n_out_total, a.n_in)))[o * n_group + g] = f.stored;
        dst[int4_zeros_from(a.n_out_total, a.n_in, a.group) + o * n_group + g] = (uint8_t)f.zero;
    }
}

extern "C" void pack_int4_cuda(const struct pack_int4_args *a, const struct kern_exec *x)
{
    if (a->n_out && a->n_in)
        launch_packer(pack_int4_kernel,
                      dim3(div_up((size_t)a->n_out * (a->n_in / a->group), GROUPS)), GROUPS * WARP,
                      0, x, *a);
}
