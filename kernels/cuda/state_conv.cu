/* SPDX-License-Identifier: Apache-2.0 */
/* state_conv: a causal convolution of each column; formula and order: ops_state.h.
 *
 * Idea: a row needs the inputs of width - 1 rows before it and no output, so rows of a prompt are computed in tiles
 *   side by side. The state is those inputs, so its new value is written when all tiles have read the old one: by a
 *   second launch. A step of one row a sequence (a graph of decode) is one launch, in which a thread reads its
 *   column's state, computes, and writes it.
 * Shape: a block of 128 threads for 128 columns, a column a thread, so that neighbouring threads read neighbouring
 *   columns; of 64 rows of the step, of whichever sequences these are, or of one sequence. The window and the weights
 *   are in registers, the newest input last; no shared memory.
 * Order: from the bias, from the oldest row to the newest one, products rounded: the reference's bits.
 * Bytes a row and column: x 4 (pre, post: 4 more each), y 4; a tile reads width - 1 rows before it again. A
 *   sequence's state 8 (width - 1). Limit: bytes / bandwidth.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/state.cuh"

#define THREADS   128u
#define TILE_ROWS 64u
#define OLDEST    (KERN_CONV_MAX - 1) /* distance of the first place of a window from the newest row */

struct conv_sequence {
    uint32_t first; /* row of the step */
    uint32_t from;  /* the state before it */
};

/* The input `row`, counted from the sequence's first one; those before it are the state's. */
static __device__ __forceinline__ float
input_at(const struct state_conv_args &a, const struct conv_sequence &q, int64_t row, uint32_t c)
{
    if (row < 0 && q.from == KERN_STATE_ZERO)
        return 0;
    if (row < 0)
        return a.states
            .pool[q.from * a.states.stride + (size_t)(row + (int64_t)a.width - 1) * a.n_col + c];
    const size_t at = (q.first + (size_t)row) * a.x_stride + c;
    return a.pre ? a.x[at] * a.pre[at] : a.x[at];
}

/* y of rows `row` … end - 1, counted from the sequence's first one. */
static __device__ __forceinline__ void compute(const struct state_conv_args &a,
                                               const struct conv_sequence &q, uint32_t row,
                                               uint32_t end, uint32_t c)
{
    const float bias = a.bias ? a.bias[c] : 0;
    float u[KERN_CONV_MAX], w[KERN_CONV_MAX];
#pragma unroll
    for (uint32_t j = 0; j <= OLDEST; j++) { /* `back` rows before the newest one */
        const uint32_t back = OLDEST - j;
        w[j] = back < a.width ? a.w[(size_t)c * a.width + a.width - 1 - back] : 0;
        u[j] = back && back < a.width ? input_at(a, q, (int64_t)row - back, c) : 0;
    }
#pragma unroll 4
    for (; row < end; row++) {
        float sum = bias;
        u[OLDEST] = input_at(a, q, row, c);
#pragma unroll
        for (uint32_t j = 0; j <= OLDEST; j++)
            if (OLDEST - j < a.width)
                sum += w[j] * u[j];
#pragma unroll
        for (uint32_t j = 0; j < OLDEST; j++)
            u[j] = u[j + 1];
        const size_t at = q.first + (size_t)row;
        a.y[at * a.y_stride + c] = a.post ? sum * a.post[at * a.x_stride + c] : sum;
    }
}

/* The inputs that a state behind row end - 1 has, into a row of the pool, or two. */
static __device__ __forceinline__ void keep(const struct state_conv_args &a,
                                            const struct conv_sequence &q, uint32_t end,
                                            uint32_t to, uint32_t also, uint32_t c)
{
    float kept[OLDEST];
#pragma unroll
    for (uint32_t j = 0; j < OLDEST; j++)
        kept[j] = j + 1 < a.width ? input_at(a, q, (int64_t)end - a.width + 1 + j, c) : 0;
#pragma unroll
    for (uint32_t j = 0; j < OLDEST; j++)
        if (j + 1 < a.width) {
            const size_t at = (size_t)j * a.n_col + c;
            if (to != KERN_STATE_NONE)
                a.states.pool[to * a.states.stride + at] = kept[j];
            if (also != KERN_STATE_NONE)
                a.states.pool[also * a.states.stride + at] = kept[j];
        }
}

/* Snapshots of a sequence, and last its own state, which the former may be made of. */
static __device__ __forceinline__ void keep_all(const struct state_conv_args &a,
                                                const struct state_sequence &q, uint32_t c)
{
    const struct state_part *parts = a.states.parts;
    const struct conv_sequence of = {q.first, parts[q.part].from};
    uint32_t end = 0;
    for (uint32_t i = q.part; i < q.end; i++) {
        end += parts[i].n_row;
        const bool is_last = i + 1 == q.end;
        if (is_last || parts[i].to != KERN_STATE_NONE)
            keep(a, of, end, parts[i].to, is_last ? parts[i].state : KERN_STATE_NONE, c);
    }
}

/* All of a sequence. */
static __global__ void __launch_bounds__(THREADS, 4)
    state_conv_kernel(const struct state_conv_args a)
{
    await_inputs();
    const uint32_t c = blockIdx.y * THREADS + threadIdx.x;
    struct state_sequence q;
    if (!state_sequence_of(&q, a.states) || c >= a.n_col)
        return;
    compute(a, {q.first, a.states.parts[q.part].from}, 0, q.last - q.first, c);
    keep_all(a, q, c);
}

/* The states alone. */
static __global__ void __launch_bounds__(THREADS, 4)
    state_conv_keep_kernel(const struct state_conv_args a)
{
    await_inputs();
    const uint32_t c = blockIdx.y * THREADS + threadIdx.x;
    struct state_sequence q;
    if (state_sequence_of(&q, a.states) && c < a.n_col)
        keep_all(a, q, c);
}

/* The last part that begins at `row` or before. */
static __device__ __forceinline__ uint32_t part_of(const struct state_rows &s, uint32_t row)
{
    uint32_t low = 0, high = s.n_part;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (s.parts[middle].n_row && s.parts[middle].row <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Rows of the step, whose states stay as they are. */
static __global__ void __launch_bounds__(THREADS, 4)
    state_conv_rows_kernel(const struct state_conv_args a)
{
    await_inputs();
    const struct state_rows &s = a.states;
    const uint32_t c = blockIdx.y * THREADS + threadIdx.x;
    uint32_t row = blockIdx.x * TILE_ROWS;
    const uint32_t end = row + TILE_ROWS;
    if (c >= a.n_col)
        return;
    for (uint32_t i = part_of(s, row); i < s.n_part && s.parts[i].n_row && row < end; i++) {
        const uint32_t stop = s.parts[i].row + s.parts[i].n_row;
        uint32_t first = i;
        while (state_follows(s, first))
            first--;
        const struct conv_sequence q = {s.parts[first].row, s.parts[first].from};
        if (row < stop)
            compute(a, q, row - q.first, (stop < end ? stop : end) - q.first, c);
        row = row < stop ? stop : row;
    }
}

extern "C" void state_conv_cuda(const struct state_conv_args *a, const struct kern_exec *x)
{
    const uint32_t n_part = a->states.n_part, n_row = a->states.n_row;
    const dim3 sequences(n_part, div_up(a->n_col, THREADS));
    if (!n_part || !a->n_col)
        return;
    if (n_row <= n_part) {
        launch(state_conv_kernel, sequences, THREADS, 0, x, *a);
        return;
    }
    launch(state_conv_rows_kernel, dim3(div_up(n_row, TILE_ROWS), sequences.y), THREADS, 0, x, *a);
    launch(state_conv_keep_kernel, sequences, THREADS, 0, x, *a);
}
