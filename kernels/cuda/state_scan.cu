/* SPDX-License-Identifier: Apache-2.0 */
/* state_scan: the selective scan of Mamba and Mamba 2; formula and order: ops_state.h.
 *
 * Idea: as state_delta.cu: a thread has a column of the state, from its sequence's first row to the last, so the state is
 *   read once and written once. What a row brings (b, c, the step, the decay of a head) is made by other warps, two rows
 *   at a time, while the columns go through the two rows before.
 * Shape: a block of three warps for 32 columns of one sequence: of one head, or, with a rate for each element of the
 *   state, of any. Warp 0: the columns, 128 elements of a head's in registers, or 16 with their rates; any other number
 *   in shared memory (32 KiB, with rates 64). Warps 1 and 2: a row each. Four rows in shared memory, 9.5 KiB.
 * Order: the reference's bits where expf and log1pf, which the steps take, have the host's.
 * Bytes: a sequence 8 n_head head_dim n_state; a row 4 (2 n_state + 3 of each column) a block. Limit: bytes / bandwidth
 *   (decode); a chain of n_state additions a row, or n_state exponentials (a prompt).
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/state.cuh"

#define ROWS     2u   /* that are made together, by a warp each */
#define OF_HEAD  128u /* elements of a column in registers: of a head's state */
#define OF_RATES 16u  /* with a rate each */

struct __align__(16) scan_row
{
    float b[KERN_SCAN_MAX], c[KERN_SCAN_MAX]; /* [n_state] */
    float by[WARP];                           /* a head's decay; by_state: less the step */
    float u[WARP], skip[WARP];                /* step x; skip x */
};
template <unsigned N, bool BY_STATE> struct scan_shared {
    struct scan_row rows[2][ROWS];
    float columns[N ? 1 : KERN_SCAN_MAX * WARP];
    float rates[N || !BY_STATE ? 1 : KERN_SCAN_MAX * WARP];
};

struct scan_place {
    uint32_t head, column; /* the thread's; of x and y */
    bool is_there;
};

static __device__ __forceinline__ struct scan_place place_of(const struct state_scan_args &a)
{
    const unsigned lane = threadIdx.x % WARP;
    if (a.by_state) {
        const uint32_t column = blockIdx.y * WARP + lane, last = a.n_head - 1;
        return {column < last ? column : last, column, column <= last};
    }
    const uint32_t n_slice = (a.head_dim + WARP - 1) / WARP, head = blockIdx.y / n_slice;
    const uint32_t within = blockIdx.y % n_slice * WARP + lane;
    return {head, head * a.head_dim + within, within < a.head_dim};
}

/* scan_exp of wide/state_scan.h. */
static __device__ __forceinline__ float scan_exp(float x)
{
    const float above = x < -87.0f ? -87.0f : x, y = above > 88.0f ? 88.0f : above;
    const float shifted = y * 0x1.715476p+0f + 0x1.8p+23f, n = shifted - 0x1.8p+23f;
    const float r = (y - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    float q = 0x1.6a23dp-10f;
    q = q * r + 0x1.123a2p-7f;
    q = q * r + 0x1.5558f2p-5f;
    q = q * r + 0x1.555492p-3f;
    q = q * r + 0x1.fffffcp-2f;
    const uint32_t power = (__float_as_uint(shifted) - 0x4b400000u + 127u) << 23;
    return (q * (r * r) + r + 1.0f) * __uint_as_float(power);
}

static __device__ __forceinline__ float step_of(const struct state_scan_args &a, uint32_t row,
                                                uint32_t head)
{
    const float x = a.step[row * a.step_stride + head] + a.step_bias[head];
    const float soft = x > 20.0f ? x : log1pf(expf(x));
    const float above = soft < a.step_min ? a.step_min : soft;
    return above > a.step_max ? a.step_max : above;
}

/* By a warp: what the columns need of a row. */
template <bool BY_STATE>
static __device__ __forceinline__ void prepare(struct scan_row *to, const struct state_scan_args &a,
                                               uint32_t row, const struct scan_place &p)
{
    const unsigned lane = threadIdx.x % WARP;
    const size_t group =
        row * a.b_stride + (BY_STATE ? 0 : p.head / (a.n_head / a.n_group) * a.n_state);
    for (uint32_t i = lane; i < a.n_state; i += WARP) {
        to->b[i] = a.b[group + i];
        to->c[i] = a.c[group + i];
    }
    const float step = step_of(a, row, p.head);
    const float x = p.is_there ? a.x[row * a.x_stride + p.column] : 0;
    to->by[lane] = BY_STATE ? -step : scan_exp(-step * scan_exp(a.log_rate[p.head]));
    to->u[lane] = step * x;
    to->skip[lane] = a.skip[p.head] * x;
}

/* S = decay S + b (step x); y = c S + skip x. */
template <unsigned N, bool BY_STATE>
static __device__ __forceinline__ void
step(state_column<N> &s, state_column<N> &rates, const struct scan_row *r,
     const struct state_scan_args &a, uint32_t row, const struct scan_place &p)
{
    const float by = r->by[threadIdx.x], u = r->u[threadIdx.x];
    const uint32_t n = N ? N : a.n_state;
    float sum = 0;
#pragma unroll(N ? N : 8)
    for (uint32_t i = 0; i < n; i++) {
        const float decay = BY_STATE ? scan_exp(by * rates[i]) : by;
        s[i] = s[i] * decay + r->b[i] * u;
        sum += r->c[i] * s[i];
    }
    if (p.is_there)
        a.y[row * a.y_stride + p.column] = sum + r->skip[threadIdx.x];
}

template <unsigned N>
static __device__ __forceinline__ void take_rates(state_column<N> &rates,
                                                  const struct state_scan_args &a, uint32_t head)
{
    const uint32_t n = N ? N : a.n_state;
#pragma unroll(N ? N : 8)
    for (uint32_t i = 0; i < n; i++)
        rates[i] = scan_exp(a.log_rate[(size_t)head * a.n_state + i]);
}

/* Blocks at once: with rates ptxas spills for more of them; without, it spills unless it chooses (0). */
template <unsigned N, bool BY_STATE>
static __global__ void __launch_bounds__((1 + ROWS) * WARP, BY_STATE ? 3 : 0)
    state_scan_kernel(const struct state_scan_args a)
{
    await_inputs();
    SHARED_MEMORY(shared, struct scan_shared<N, BY_STATE>);
    const struct scan_place p = place_of(a);
    const size_t head = (size_t)p.head * a.n_state * a.head_dim;
    const struct state_place at = {
        BY_STATE ? p.column : head + (p.column - p.head * a.head_dim),
        BY_STATE ? a.n_head : a.head_dim,
        a.n_state,
        p.is_there,
    };
    const uint32_t mine = threadIdx.x / WARP - 1; /* of ROWS rows the one that this warp makes */
    const bool prepares = threadIdx.x >= WARP;
    state_column<N> s(shared.columns);
    state_column<N> rates(shared.rates); /* not used where a head has one */
    struct state_sequence q;
    if (!state_sequence_of(&q, a.states))
        return;
    struct state_cursor cursor = state_cursor_at(a.states, q);
    if (!prepares) {
        state_load(s, a.states, a.states.parts[q.part].from, at);
        if constexpr (BY_STATE)
            take_rates<N>(rates, a, p.head);
    } else if (q.first + mine < q.last) {
        prepare<BY_STATE>(&shared.rows[0][mine], a, q.first + mine, p);
    }
    __syncthreads();
    for (uint32_t first = q.first, i = 0; first < q.last; first += ROWS, i = 1 - i) {
        for (uint32_t row = first; !prepares && row < q.last && row < first + ROWS; row++) {
            step<N, BY_STATE>(s, rates, &shared.rows[i][row - first], a, row, p);
            state_pass(&cursor, s, a.states, q, row, at);
        }
        if (prepares && first + ROWS + mine < q.last)
            prepare<BY_STATE>(&shared.rows[1 - i][mine], a, first + ROWS + mine, p);
        __syncthreads();
    }
    if (!prepares)
        state_store(s, a.states, a.states.parts[q.part].state, at);
}

template <unsigned N, bool BY_STATE>
static void launch_scan(const struct state_scan_args *a, const struct kern_exec *x)
{
    const uint32_t n_slice =
        BY_STATE ? div_up(a->n_head, WARP) : a->n_head * div_up(a->head_dim, WARP);
    launch(state_scan_kernel<N, BY_STATE>, dim3(a->states.n_part, n_slice), (1 + ROWS) * WARP,
           sizeof(struct scan_shared<N, BY_STATE>), x, *a);
}

extern "C" void state_scan_cuda(const struct state_scan_args *a, const struct kern_exec *x)
{
    if (!a->states.n_part || !a->n_head)
        return;
    if (a->by_state && a->n_state == OF_RATES)
        launch_scan<OF_RATES, true>(a, x);
    else if (a->by_state)
        launch_scan<0, true>(a, x);
    else if (a->n_state == OF_HEAD)
        launch_scan<OF_HEAD, false>(a, x);
    else
        launch_scan<0, false>(a, x);
}
