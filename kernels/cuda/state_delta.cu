/* SPDX-License-Identifier: Apache-2.0 */
/* state_delta: the gated delta rule; formula and order: ops_state.h.
 *
 * Idea: columns of a head's state are independent of one another, and a column's sums go over keys in ascending order,
 *   so a thread has a column, from its sequence's first row to the last. The state is read once and written once,
 *   however many rows there are. What all columns of a row share (q and k of length 1, decay, beta) is made by a second
 *   warp, a row ahead of the first.
 * Shape: a block of two warps for 32 columns of one head of values of one sequence. Warp 0: the columns, 128 keys in
 *   registers (any other number in shared memory, 32 KiB); lines of a state are read by the whole warp, 128 bytes each.
 *   Warp 1: lanes 0 … 15 sum q's squares, the others k's. Two rows in shared memory, 4.3 KiB.
 * Order: the reference's bits where expf and log1pf have the host's.
 * Bytes: a sequence and head 8 key_dim value_dim, a row of it 4 (2 key_dim value_dim / 32 + 2 value_dim). Limit: bytes /
 *   bandwidth (decode); two chains of key_dim additions a row (a prompt).
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/state.cuh"

#define LANES    16u  /* partial sums of squares */
#define KEYS_FEW 128u /* that a column in registers has */

struct __align__(16) delta_row
{
    float q[KERN_DELTA_MAX], k[KERN_DELTA_MAX]; /* [key_dim] */
    float v[WARP];                              /* of the block's columns */
    float decay, beta;
};
template <unsigned KEYS> struct delta_shared {
    struct delta_row rows[2];
    float columns[KEYS ? 1 : KERN_DELTA_MAX * WARP];
};

struct delta_place {
    uint32_t head, column; /* of values; the thread's, within the head */
    bool is_there;
};

static __device__ __forceinline__ struct delta_place place_of(const struct state_delta_args &a)
{
    const uint32_t n_slice = (a.value_dim + WARP - 1) / WARP;
    const uint32_t column = blockIdx.y % n_slice * WARP + threadIdx.x % WARP;
    return {blockIdx.y / n_slice, column, column < a.value_dim};
}

static __device__ float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

/* By the second warp: what the columns need of a row. */
static __device__ __forceinline__ void prepare(struct delta_row *to,
                                               const struct state_delta_args &a, uint32_t row,
                                               const struct delta_place &p)
{
    const unsigned lane = threadIdx.x % WARP, half = lane / LANES;
    const uint32_t n_key = a.n_key_head * a.key_dim;
    const uint32_t group = p.head / (a.n_value_head / a.n_key_head);
    const float *x = a.x + row * a.x_stride, *gates = a.gates + row * a.gate_stride;
    const float *from = x + half * n_key + (size_t)group * a.key_dim;
    float *unit = half ? to->k : to->q, sum = 0;
    if (p.is_there)
        to->v[lane] = x[2 * (size_t)n_key + (size_t)p.head * a.value_dim + p.column];
    for (uint32_t i = lane % LANES; i < a.key_dim; i += LANES)
        sum += from[i] * from[i];
#pragma unroll
    for (unsigned other = LANES / 2; other; other /= 2)
        sum += __shfl_xor_sync(ALL_LANES, sum, other);
    const float inverse = 1.0f / sqrtf(sum + 1e-6f);
    const float scale = half ? 1.0f : 1.0f / sqrtf((float)a.key_dim);
    for (uint32_t i = lane % LANES; i < a.key_dim; i += LANES)
        unit[i] = from[i] * inverse * scale;
    if (lane == 0) {
        to->beta = a.beta_max / (1.0f + expf(-gates[p.head]));
        to->decay = expf(-expf(a.log_rate[p.head]) *
                         softplus(gates[a.n_value_head + p.head] + a.rate_bias[p.head]));
    }
}

/* S *= decay; S += k (beta (v - k S)); y = q S. */
template <unsigned KEYS>
static __device__ __forceinline__ void step(state_column<KEYS> &s, const struct delta_row *r,
                                            const struct state_delta_args &a, uint32_t row,
                                            const struct delta_place &p)
{
    const float v = p.is_there ? r->v[threadIdx.x] : 0;
    const uint32_t n = KEYS ? KEYS : a.key_dim;
    float sum = 0, y = 0;
#pragma unroll(KEYS ? KEYS : 8)
    for (uint32_t i = 0; i < n; i++) {
        s[i] *= r->decay;
        sum += s[i] * r->k[i];
    }
    const float change = (v - sum) * r->beta;
    __syncwarp(); /* k is read again: with the column it is more than all registers */
#pragma unroll(KEYS ? KEYS : 8)
    for (uint32_t i = 0; i < n; i++) {
        s[i] += r->k[i] * change;
        y += s[i] * r->q[i];
    }
    if (p.is_there)
        a.y[row * a.y_stride + (size_t)p.head * a.value_dim + p.column] = y;
}

template <unsigned KEYS>
static __global__ void __launch_bounds__(2 * WARP)
    state_delta_kernel(const struct state_delta_args a)
{
    await_inputs();
    SHARED_MEMORY(shared, struct delta_shared<KEYS>);
    const struct delta_place p = place_of(a);
    const size_t head = (size_t)p.head * a.key_dim * a.value_dim;
    const struct state_place at = {head + p.column, a.value_dim, a.key_dim, p.is_there};
    const bool prepares = threadIdx.x >= WARP;
    state_column<KEYS> s(shared.columns);
    struct state_sequence q;
    if (!state_sequence_of(&q, a.states))
        return;
    struct state_cursor cursor = state_cursor_at(a.states, q);
    if (prepares)
        prepare(&shared.rows[0], a, q.first, p);
    else
        state_load(s, a.states, a.states.parts[q.part].from, at);
    __syncthreads();
    for (uint32_t row = q.first; row < q.last; row++) {
        const uint32_t i = (row - q.first) % 2;
        if (!prepares) {
            step(s, &shared.rows[i], a, row, p);
            state_pass(&cursor, s, a.states, q, row, at);
        } else if (row + 1 < q.last) {
            prepare(&shared.rows[1 - i], a, row + 1, p);
        }
        __syncthreads();
    }
    if (!prepares)
        state_store(s, a.states, a.states.parts[q.part].state, at);
}

extern "C" void state_delta_cuda(const struct state_delta_args *a, const struct kern_exec *x)
{
    const dim3 grid(a->states.n_part, a->n_value_head * div_up(a->value_dim, WARP));
    if (!grid.x || !grid.y)
        return;
    if (a->key_dim == KEYS_FEW)
        launch(state_delta_kernel<KEYS_FEW>, grid, 2 * WARP, sizeof(struct delta_shared<KEYS_FEW>),
               x, *a);
    else
        launch(state_delta_kernel<0>, grid, 2 * WARP, sizeof(struct delta_shared<0>), x, *a);
}
