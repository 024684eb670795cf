/* SPDX-License-Identifier: Apache-2.0 */
/* quant_rows: a row of f32 as int8 with one scale; the bits of ref/quant_rows.c, because integer sums and the
 * largest magnitude do not depend on an order.
 *
 * Shape: a block of 256 threads a row, two passes, the second from L1 or L2. In the second, warp w takes
 *   columns 32 w … 32 w + 31, then 32 (w + 8) …, so a sum of KERN_INT8_SUM = 32 neighbours is one warp sum.
 *   Shared: 256 bytes, a float and an int a warp.
 * Bytes: 4 + 1 a column, and 2 a sum of 32. Limit: bytes / bandwidth.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/int8.cuh"

#define THREADS 256u
static_assert(KERN_INT8_SUM == WARP, "a warp makes one sum of neighbours");

struct quant_shared {
    struct block_room<float> most;
    struct block_room<int> sum;
};

static __global__ void __launch_bounds__(THREADS) quant_rows_kernel(const struct quant_rows_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct quant_shared);
    const float *row = a.x + blockIdx.x * a.x_stride;
    int8_t *q = a.q + blockIdx.x * a.q_stride;
    const uint32_t n_k = (a.n_col + KERN_INT8_K - 1) / KERN_INT8_K * KERN_INT8_K;
    float most = 0;
    for (uint32_t c = threadIdx.x; c < a.n_col; c += THREADS)
        most = most_of(fabsf(row[c]), most);
    const struct int8_scale scale = int8_scale_for(block_reduce<BLOCK_MOST>(most, &s.most));
    int sum = 0;
    /* four at a time, as the compiler would, spill on sm_100 within the 32 registers that let a
     * multiprocessor have all its threads */
#pragma unroll 2
    for (uint32_t base = threadIdx.x / WARP * WARP; base < n_k; base += THREADS) {
        const uint32_t c = base + threadIdx.x % WARP;
        const uint32_t place = a.order && c < a.n_col ? a.order[c] : c;
        const int v = c < a.n_col ? int8_of(row[place], scale.inverse) : 0;
        const int part = warp_add(v);
        q[c] = (int8_t)v;
        sum += v;
        if (a.sums && threadIdx.x % WARP == 0)
            a.sums[(blockIdx.x * a.q_stride + base) / KERN_INT8_SUM] = (int16_t)part;
    }
    sum = block_reduce<BLOCK_SUM>(sum, &s.sum);
    if (threadIdx.x == 0) {
        a.rows[blockIdx.x].scale = scale.scale;
        a.rows[blockIdx.x].sum = sum;
    }
}

extern "C" void quant_rows_cuda(const struct quant_rows_args *a, const struct kern_exec *x)
{
    if (a->n_row)
        launch(quant_rows_kernel, dim3(a->n_row), THREADS, sizeof(struct quant_shared), x, *a);
}
