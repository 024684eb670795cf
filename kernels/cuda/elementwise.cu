/* SPDX-License-Identifier: Apache-2.0 */
/* activate, add_rows, soft_cap, gate_rows: elements of rows. No sums, so no order.
 *
 * Shape: a block of 256 threads for 1024 columns of one row, a column a thread at a time, so that
 *   neighbouring threads read neighbouring columns. No shared memory.
 * Bytes a column: activate 4 (gated: 8) + y's 2 or 4 and one exp (gelu: one erfc); add_rows 12; soft_cap 8
 *   and one tanh; gate_rows 12 and one exp. Limit: bytes / bandwidth (prefill), the launch (decode).
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/launch.cuh"

#define THREADS 256u
#define COLUMNS (4 * THREADS)

static dim3 grid_of(uint32_t n_row, uint32_t n_col)
{
    return dim3(n_row, div_up(n_col, COLUMNS));
}

/* fn(c) for this thread's columns. */
template <class F> static __device__ __forceinline__ void my_columns(uint32_t n_col, F fn)
{
    const uint32_t most = (blockIdx.y + 1) * COLUMNS, end = most < n_col ? most : n_col;
    for (uint32_t c = blockIdx.y * COLUMNS + threadIdx.x; c < end; c += THREADS)
        fn(c);
}

static __device__ __forceinline__ float sigmoid_times(float z, float exponent)
{
    return z / (1.0f + expf(-exponent));
}

/* The roundings of ref/activate.c. */
static __device__ float act_of(enum kern_act act, float z)
{
    const float positive = z < 0 ? 0 : z; /* NaN stays */
    switch (act) {
    case KERN_GELU:
        return 0.5f * z * erfcf(z * -0x1.6a09e6p-1f);
    case KERN_GELU_TANH:
        return sigmoid_times(z, z * fmaf(z * z, 0x1.2444f2p-4f, 0x1.988454p+0f));
    case KERN_GELU_QUICK:
        return sigmoid_times(z, 1.702f * z);
    case KERN_RELU:
        return positive;
    case KERN_RELU2:
        return positive * positive;
    case KERN_IDENTITY:
        return z;
    default:
        return sigmoid_times(z, z);
    }
}

static __device__ float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

static __device__ float plain_of(const struct activate_args &a, float z)
{
    if (a.act != KERN_XIELU)
        return act_of(a.act, z);
    const float p = softplus(*a.positive), n = KERN_XIELU_BETA + softplus(*a.negative);
    return fmaf(z, KERN_XIELU_BETA, z > 0 ? p * z * z : n * (expm1f(z) - z));
}

static __device__ float gated_of(const struct activate_args &a, float gate, float up)
{
    const float limit = a.limit, low = up < -limit ? -limit : up;
    if (!(limit > 0))
        return act_of(a.act, gate) * up;
    return act_of(a.act, gate > limit ? limit : gate) * ((low > limit ? limit : low) + 1.0f);
}

static __global__ void __launch_bounds__(THREADS) activate_kernel(const struct activate_args a)
{
    await_inputs();
    const float *gate = a.x + blockIdx.x * a.x_stride, *up = gate + a.n_col;
    my_columns(a.n_col, [&](uint32_t c) {
        const float y = a.gated ? gated_of(a, gate[c], up[c]) : plain_of(a, gate[c]);
        store_as(a.y, a.y_dtype, blockIdx.x * a.y_stride + c, y);
    });
}

extern "C" void activate_cuda(const struct activate_args *a, const struct kern_exec *x)
{
    if (a->n_row && a->n_col)
        launch(activate_kernel, grid_of(a->n_row, a->n_col), THREADS, 0, x, *a);
}

static __global__ void __launch_bounds__(THREADS) add_rows_kernel(const struct add_rows_args a)
{
    await_inputs();
    const float *from = a.x + blockIdx.x * a.x_stride;
    float *to = a.y + blockIdx.x * a.y_stride, scale = a.by ? a.scale * *a.by : a.scale;
    if (a.positions) {
        const float position = (float)(a.positions[blockIdx.x] + a.first);
        scale *= fmaf(a.growth, log1pf(floorf(position / a.length)), 1.0f);
    }
    my_columns(a.n_col, [&](uint32_t c) {
        const float v = scale * from[c];
        to[c] = a.set ? v : to[c] + v;
    });
}

extern "C" void add_rows_cuda(const struct add_rows_args *a, const struct kern_exec *x)
{
    if (a->n_row && a->n_col)
        launch(add_rows_kernel, grid_of(a->n_row, a->n_col), THREADS, 0, x, *a);
}

static __global__ void __launch_bounds__(THREADS) soft_cap_kernel(const struct soft_cap_args a)
{
    await_inputs();
    float *row = a.x + blockIdx.x * a.x_stride;
    my_columns(a.n_col, [&](uint32_t c) {
        const float x = row[c], low = x < -a.cap ? -a.cap : x; /* NaN stays */
        row[c] = !a.hard ? a.cap * tanhf(x / a.cap) : low > a.cap ? a.cap : low;
    });
}

extern "C" void soft_cap_cuda(const struct soft_cap_args *a, const struct kern_exec *x)
{
    if (a->n_row && a->n_col)
        launch(soft_cap_kernel, grid_of(a->n_row, a->n_col), THREADS, 0, x, *a);
}

/* y may be x: a thread reads its column before it writes it. */
static __global__ void __launch_bounds__(THREADS) gate_rows_kernel(const struct gate_rows_args a)
{
    await_inputs();
    const float *x = a.x + blockIdx.x * a.x_stride, *gate = a.gate + blockIdx.x * a.gate_stride;
    float *y = a.y + blockIdx.x * a.y_stride;
    my_columns(a.n_col, [&](uint32_t c) {
        const float g = gate[c], by_gate = a.by == KERN_GATE_SIGMOID ? x[c] : x[c] * g;
        y[c] = a.by == KERN_GATE_PRODUCT ? by_gate : sigmoid_times(by_gate, g);
    });
}

extern "C" void gate_rows_cuda(const struct gate_rows_args *a, const struct kern_exec *x)
{
    if (a->n_row && a->n_col)
        launch(gate_rows_kernel, grid_of(a->n_row, a->n_col), THREADS, 0, x, *a);
}
