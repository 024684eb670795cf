/* SPDX-License-Identifier: Apache-2.0 */
/* Mixtures of experts, except the products (linear.cu, linear_w4.cu): moe_route, moe_group_rows, moe_combine,
 * moe_add_shared, moe_add_bias, moe_weigh, permute_cols. Definitions: ops_moe.h.
 *
 * route: the n_used best scores of a row, as weights. A lane has groups l and l + 32.
 *   Shape: a warp a row, 4 rows a block. Lane l has scores l, l + 32, … of at most 1024; a bit of its word
 *     says that one is taken. The best is taken n_used times, by (score, number), lanes by halves, so ties
 *     and NaN are the reference's to the letter. No shared memory. A sparse mixer takes one more loop over all
 *     scores for each of the taken.
 *   Order: the sum of exp is of each lane's ascending, then of lanes by halves: it depends on n_expert only.
 *   Bytes: 4 n_expert a row from memory, n_used + 1 times more from L1; 8 n_used written.
 * moe_group_rows: places sorted by expert, without atomics.
 *   Shape: a block of 256 threads an expert. A thread counts in its range of all places those of the expert
 *     and of experts before it; the latter's sum is the start of its own, a scan over the block gives each thread's
 *     start, and a second pass writes them. Shared: 160 bytes, a word or two a warp.
 *   Bytes: the places twice a block, from L2: 2048 rows x 8 of 128 experts are 2 x 8 MiB.
 * combine: y += weighted rows of the experts.
 *   Shape: as rows.cu, a block of 256 threads for 1024 columns of a row. No shared memory.
 *   Order: a column's experts ascending, one fma each.
 *   Bytes: 4 n_used + 8 a column. FLOP: 2 n_used a column. Limit: bytes / bandwidth.
 * moe_add_shared: y += a share of x, of an expert that all rows use. Shape as combine. Bytes: 12 a column.
 * moe_add_bias: y += its expert's bias. Shape as combine, each thread searches its place's expert. Bytes: 12 a column.
 * moe_weigh: rows times the weights of their places. Shape: as combine, a block a place and 1024 columns. Bytes: a
 *   row in and out for each place.
 * permute_cols: rows in the order of an expert's inputs.
 *   Shape: a block of 256 threads a row; a thread makes 16 bytes of the result at a time. No shared memory:
 *     numbers are picked from L1, where a row of 28 KiB fits.
 *   Bytes: the row in and out, its order (4 a column) from L2. Limit: bytes / bandwidth, or picking: up to 32
 *     pieces of 32 bytes of L1 for a warp's load.
 *
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/groups.cuh"

#define THREADS    256u
#define WARPS      (THREADS / WARP)
#define ROUTE_ROWS 4u /* warps of a block */

/* ---- route ---- */

struct best {
    float score;
    uint32_t id; /* UINT32_MAX: none */
};

static __device__ __forceinline__ bool comes_before(struct best a, struct best b)
{
    return a.id != UINT32_MAX &&
           (b.id == UINT32_MAX || a.score > b.score || (a.score == b.score && a.id < b.id));
}

static __device__ __forceinline__ struct best warp_best(struct best v)
{
#pragma unroll
    for (unsigned half = WARP / 2; half; half /= 2) {
        struct best other;
        other.score = __shfl_xor_sync(ALL_LANES, v.score, half);
        other.id = __shfl_xor_sync(ALL_LANES, v.id, half);
        if (comes_before(other, v))
            v = other;
    }
    return v;
}

static __device__ __forceinline__ float score_at(const float *x, uint32_t j)
{
    const float v = x[j];
    return v != v ? -INFINITY : v;
}

static __device__ __forceinline__ float weight_of(float score, float max)
{
    return max == -INFINITY ? 0 : expf(score - max);
}

static __device__ __forceinline__ float sigmoid_at(const float *x, uint32_t j)
{
    return 1.0f / (1.0f + expf(-score_at(x, j)));
}

struct soft { /* of a row's softmax */
    float max, sum;
};

/* p of ops_moe.h. */
static __device__ __forceinline__ float share_of(const struct moe_route_args &a, const float *x,
                                                 uint32_t j, struct soft s)
{
    if (a.sigmoid)
        return sigmoid_at(x, j);
    return s.sum > 0 ? weight_of(score_at(x, j), s.max) / s.sum : 0;
}

/* c of ops_moe.h. */
static __device__ __forceinline__ float choice_at(const struct moe_route_args &a, const float *x,
                                                  uint32_t j, struct soft s)
{
    return a.bias ? share_of(a, x, j, s) + a.bias[j] : score_at(x, j);
}

/* Its largest choice, or the sum of its two largest. */
static __device__ __forceinline__ float group_value(const struct moe_route_args &a, const float *x,
                                                    uint32_t group, struct soft s)
{
    const uint32_t n = a.n_expert / a.n_group;
    float first = -INFINITY, second = -INFINITY;
    for (uint32_t j = group * n; j < (group + 1) * n; j++) {
        const float c = choice_at(a, x, j, s);
        second = c > first ? first : c > second ? c : second;
        first = c > first ? c : first;
    }
    return a.sigmoid && n > 1 ? first + second : first;
}

/* The groups whose experts may be chosen, a bit each, the same in all lanes. A lane has two. */
static __device__ __forceinline__ uint64_t choose_groups(const struct moe_route_args &a,
                                                         const float *x, struct soft s)
{
    const uint32_t lane = threadIdx.x % WARP;
    uint64_t chosen = 0;
    float values[2] = {0, 0};
    if (a.n_group < 2)
        return ~0ull;
    for (uint32_t i = 0, g = lane; g < a.n_group; i++, g += WARP)
        values[i] = group_value(a, x, g, s);
    for (uint32_t k = 0; k < a.n_group_used; k++) {
        struct best mine = {0, UINT32_MAX};
        for (uint32_t i = 0, g = lane; g < a.n_group; i++, g += WARP) {
            const struct best its = {values[i], g};
            if (!(chosen >> g & 1) && comes_before(its, mine))
                mine = its;
        }
        chosen |= 1ull << warp_best(mine).id;
    }
    return chosen;
}

/* The n_used best of a row: bit i of a lane's word is its score number i. */
static __device__ __forceinline__ uint32_t take(const struct moe_route_args &a, const float *x,
                                                struct soft s)
{
    const uint32_t lane = threadIdx.x % WARP;
    const uint64_t groups = choose_groups(a, x, s);
    const uint32_t of_group = a.n_group > 1 ? a.n_expert / a.n_group : a.n_expert;
    uint32_t taken = 0;
    for (uint32_t k = 0; k < a.n_used; k++) {
        struct best mine = {0, UINT32_MAX};
        for (uint32_t i = 0, j = lane; j < a.n_expert; i++, j += WARP) {
            const struct best its = {choice_at(a, x, j, s), j};
            if (!(taken >> i & 1) && (groups >> j / of_group & 1) && comes_before(its, mine))
                mine = its;
        }
        const struct best found = warp_best(mine);
        if (found.id % WARP == lane)
            taken |= 1u << found.id / WARP;
    }
    return taken;
}

/* The share of a taken expert by a sparse mixer, the lanes together: of all experts near it that were not taken
 * before it. */
static __device__ __forceinline__ float mixer_share(const struct moe_route_args &a, const float *x,
                                                    uint32_t taken, struct best its)
{
    const float m = its.score;
    float sum = 0;
    for (uint32_t i = 0, j = threadIdx.x % WARP; j < a.n_expert; i++, j += WARP) {
        const struct best other = {score_at(x, j), j};
        const float most = fabsf(other.score) > m ? fabsf(other.score) : m;
        const bool before = (taken >> i & 1) && comes_before(other, its);
        if (!before && !((m - other.score) / most > a.mixer))
            sum += weight_of(other.score, m);
    }
    sum = warp_sum(sum);
    return sum > 0 ? 1 / sum : 0;
}

/* This lane's share of expert number i of its own, if that is taken. */
template <bool MIXER>
static __device__ __forceinline__ float share_of_taken(const struct moe_route_args &a,
                                                       const float *x, uint32_t taken, uint32_t i,
                                                       struct soft s)
{
    const uint32_t lane = threadIdx.x % WARP;
    float mine = 0;
    if (!MIXER)
        return taken >> i & 1 ? share_of(a, x, i * WARP + lane, s) : 0;
    uint32_t all = __ballot_sync(ALL_LANES, taken >> i & 1);
    for (; all; all &= all - 1) {
        const uint32_t owner = (uint32_t)__ffs((int)all) - 1, j = i * WARP + owner;
        const struct best its = {score_at(x, j), j};
        const float share = mixer_share(a, x, taken, its);
        mine = lane == owner ? share : mine;
    }
    return mine;
}

/* Eight blocks a multiprocessor are enough: for more the compiler spills on sm_100. */
template <bool MIXER>
static __global__ void __launch_bounds__(ROUTE_ROWS *WARP, 8)
    moe_route_kernel(const struct moe_route_args a)
{
    await_inputs();
    const uint32_t lane = threadIdx.x % WARP, row = blockIdx.x * ROUTE_ROWS + threadIdx.x / WARP;
    if (row >= a.n_row)
        return; /* all of a warp */
    const float *x = a.x + row * a.x_stride;
    float max = -INFINITY, sum = 0, of_taken = 0;
    for (uint32_t j = lane; j < a.n_expert; j += WARP)
        max = score_at(x, j) > max ? score_at(x, j) : max;
#pragma unroll
    for (unsigned half = WARP / 2; half; half /= 2) {
        const float other = __shfl_xor_sync(ALL_LANES, max, half);
        max = other > max ? other : max;
    }
    for (uint32_t j = lane; j < a.n_expert; j += WARP)
        sum += weight_of(score_at(x, j), max);
    const struct soft s = {max, warp_sum(sum)};
    const uint32_t taken = take(a, x, s);
    for (uint32_t i = 0; i * WARP < a.n_expert; i++)
        of_taken += share_of_taken<MIXER>(a, x, taken, i, s);
    of_taken = warp_sum(of_taken);
    uint32_t before = row * a.n_used; /* where the taken of this round of 32 experts go */
    for (uint32_t i = 0; i * WARP < a.n_expert; i++) {
        const bool mine = taken >> i & 1;
        const uint32_t all = __ballot_sync(ALL_LANES, mine), j = i * WARP + lane;
        const float p = share_of_taken<MIXER>(a, x, taken, i, s);
        if (mine) {
            const uint32_t at = before + __popc(all & ((1u << lane) - 1));
            const float of_all = a.renormalize && of_taken > 0 ? p / of_taken : p;
            const float w = a.scale != 0 ? of_all * a.scale : of_all;
            a.experts[at] = j;
            a.weights[at] = a.scales ? w * a.scales[j] : w;
        }
        before += __popc(all);
    }
}

extern "C" void moe_route_cuda(const struct moe_route_args *a, const struct kern_exec *x)
{
    const dim3 grid(div_up(a->n_row, ROUTE_ROWS));
    if (a->n_row && a->mixer > 0)
        launch(moe_route_kernel<true>, grid, ROUTE_ROWS * WARP, 0, x, *a);
    else if (a->n_row)
        launch(moe_route_kernel<false>, grid, ROUTE_ROWS * WARP, 0, x, *a);
}

/* ---- moe_group_rows ---- */

struct group_shared {
    struct block_room<int> below;
    uint32_t warp[WARPS];
};

/* The sum over all previous threads. */
static __device__ __forceinline__ uint32_t before_me(uint32_t mine, struct group_shared &s)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    uint32_t upto = mine;
#pragma unroll
    for (unsigned n = 1; n < WARP; n *= 2) {
        const uint32_t other = __shfl_up_sync(ALL_LANES, upto, n);
        upto += lane >= n ? other : 0;
    }
    if (lane == WARP - 1)
        s.warp[warp] = upto;
    __syncthreads();
    uint32_t before = upto - mine;
    for (uint32_t w = 0; w < warp; w++)
        before += s.warp[w];
    return before;
}

static __global__ void __launch_bounds__(THREADS) group_kernel(const struct moe_group_rows_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct group_shared);
    const uint32_t n = a.n_row * a.n_used, expert = blockIdx.x;
    const uint32_t range = (n + THREADS - 1) / THREADS, from = threadIdx.x * range;
    const uint32_t end = from + range < n ? from + range : n;
    uint32_t mine = 0;
    int below = 0;
    for (uint32_t i = from; i < end; i++) {
        mine += a.experts[i] == expert;
        below += a.experts[i] < expert;
    }
    const uint32_t start = (uint32_t)block_reduce<BLOCK_SUM>(below, &s.below);
    uint32_t place = start + before_me(mine, s);
    for (uint32_t i = from; i < end; i++)
        if (a.experts[i] == expert) {
            a.rows[place] = i / a.n_used;
            a.places[i] = place++;
        }
    if (threadIdx.x == 0)
        a.starts[expert] = start;
    if (threadIdx.x == 0 && expert == 0)
        a.starts[a.n_expert] = n;
}

extern "C" void moe_group_rows_cuda(const struct moe_group_rows_args *a, const struct kern_exec *x)
{
    launch(group_kernel, dim3(a->n_expert), THREADS, sizeof(struct group_shared), x, *a);
}

/* ---- combine ---- */

#define COLUMNS (4 * THREADS)

static __global__ void __launch_bounds__(THREADS)
    moe_combine_kernel(const struct moe_combine_args a, bool four)
{
    await_inputs();
    const uint32_t c = blockIdx.y * COLUMNS + threadIdx.x * 4, n_used = a.n_used;
    const uint32_t *places = a.places + (size_t)blockIdx.x * n_used;
    const float *weights = a.weights ? a.weights + (size_t)blockIdx.x * n_used : nullptr;
    float *y = a.y + blockIdx.x * a.y_stride;
    if (four && c + 4 <= a.n_col) {
        float4 v = a.set ? make_float4(0, 0, 0, 0) : load4_as(y, DT_F32, c);
        for (uint32_t j = 0; j < n_used; j++) {
            const float4 x = load4_as(a.x + places[j] * a.x_stride, DT_F32, c);
            const float w = weights ? weights[j] : 1;
            v = make_float4(fmaf(w, x.x, v.x), fmaf(w, x.y, v.y), fmaf(w, x.z, v.z),
                            fmaf(w, x.w, v.w));
        }
        store4_as(y, DT_F32, c, v);
        return;
    }
    for (uint32_t i = c; i < c + 4 && i < a.n_col; i++) {
        float v = a.set ? 0 : y[i];
        for (uint32_t j = 0; j < n_used; j++)
            v = fmaf(weights ? weights[j] : 1, a.x[places[j] * a.x_stride + i], v);
        y[i] = v;
    }
}

extern "C" void moe_combine_cuda(const struct moe_combine_args *a, const struct kern_exec *x)
{
    const bool four = fours(a->y, DT_F32, a->y_stride) && fours(a->x, DT_F32, a->x_stride);
    if (a->n_row && a->n_col)
        launch(moe_combine_kernel, dim3(a->n_row, div_up(a->n_col, COLUMNS)), THREADS, 0, x, *a,
               four);
}

static __global__ void __launch_bounds__(THREADS)
    moe_add_shared_kernel(const struct moe_add_shared_args a, bool four)
{
    await_inputs();
    const uint32_t c = blockIdx.y * COLUMNS + threadIdx.x * 4;
    const float share = 1.0f / (1.0f + expf(-a.scores[blockIdx.x * a.score_stride]));
    const float *x = a.x + blockIdx.x * a.x_stride;
    float *y = a.y + blockIdx.x * a.y_stride;
    if (four && c + 4 <= a.n_col) {
        const float4 v = load4_as(y, DT_F32, c), w = load4_as(x, DT_F32, c);
        store4_as(y, DT_F32, c,
                  make_float4(fmaf(share, w.x, v.x), fmaf(share, w.y, v.y), fmaf(share, w.z, v.z),
                              fmaf(share, w.w, v.w)));
        return;
    }
    for (uint32_t i = c; i < c + 4 && i < a.n_col; i++)
        y[i] = fmaf(share, x[i], y[i]);
}

extern "C" void moe_add_shared_cuda(const struct moe_add_shared_args *a, const struct kern_exec *x)
{
    const bool four = fours(a->y, DT_F32, a->y_stride) && fours(a->x, DT_F32, a->x_stride);
    if (a->n_row && a->n_col)
        launch(moe_add_shared_kernel, dim3(a->n_row, div_up(a->n_col, COLUMNS)), THREADS, 0, x, *a,
               four);
}

/* ---- moe_add_bias ---- */

static __global__ void __launch_bounds__(THREADS)
    moe_add_bias_kernel(const struct moe_add_bias_args a)
{
    await_inputs();
    const uint32_t place = blockIdx.x, c = blockIdx.y * COLUMNS + threadIdx.x * 4;
    if (place >= a.of.starts[a.of.n_group])
        return;
    const size_t at = group_at(a.of, place) * a.of.w_stride;
    const float *bias = (const float *)(const void *)((const char *)a.bias + at);
    float *y = a.y + place * a.y_stride;
    for (uint32_t i = c; i < c + 4 && i < a.n_col; i++)
        y[i] += bias[i];
}

extern "C" void moe_add_bias_cuda(const struct moe_add_bias_args *a, const struct kern_exec *x)
{
    if (a->n_row && a->n_col)
        launch(moe_add_bias_kernel, dim3(a->n_row, div_up(a->n_col, COLUMNS)), THREADS, 0, x, *a);
}

/* ---- moe_weigh ---- */

/* Four elements of place p's row from c on. */
template <bool BYTES>
static __device__ __forceinline__ void weigh4(const struct moe_weigh_args &a, size_t to,
                                              size_t from, float weight)
{
    if (BYTES) {
        *(uint32_t *)(void *)((char *)a.y + to) =
            *(const uint32_t *)(const void *)((const char *)a.x + from);
        return;
    }
    const float4 v = load4_as(a.x, a.dtype, from);
    store4_as(a.y, a.dtype, to,
              make_float4(v.x * weight, v.y * weight, v.z * weight, v.w * weight));
}

template <bool BYTES>
static __device__ __forceinline__ void weigh1(const struct moe_weigh_args &a, size_t to,
                                              size_t from, float weight)
{
    if (BYTES)
        ((uint8_t *)a.y)[to] = ((const uint8_t *)a.x)[from];
    else
        store_as(a.y, a.dtype, to, load_as(a.x, a.dtype, from) * weight);
}

/* n_col: of bytes, with those that fill up a row. */
template <bool BYTES>
static __global__ void __launch_bounds__(THREADS)
    moe_weigh_kernel(const struct moe_weigh_args a, uint32_t n_col, bool four)
{
    await_inputs();
    const uint32_t i = blockIdx.x, p = a.places[i], r = a.of_places ? p : i / a.n_used;
    const uint32_t c = blockIdx.y * COLUMNS + threadIdx.x * 4;
    const size_t to = p * a.y_stride, from = r * a.x_stride;
    const float weight = a.weights[i];
    if (BYTES && blockIdx.y == 0) {
        const uint32_t n_block = a.y_scales ? (a.n_col + KERN_FP8_BLOCK - 1) / KERN_FP8_BLOCK : 0;
        if (a.y_rows && threadIdx.x == 0)
            a.y_rows[p] = {a.x_rows[r].scale * weight, a.x_rows[r].sum};
        for (uint32_t b = threadIdx.x; b < n_block; b += THREADS)
            a.y_scales[p * a.y_scale_stride + b] = a.x_scales[r * a.x_scale_stride + b] * weight;
    }
    if (BYTES && a.y == a.x)
        return;
    if (four && c + 4 <= n_col) {
        weigh4<BYTES>(a, to + c, from + c, weight);
        return;
    }
    for (uint32_t k = c; k < c + 4 && k < n_col; k++)
        weigh1<BYTES>(a, to + k, from + k, weight);
}

extern "C" void moe_weigh_cuda(const struct moe_weigh_args *a, const struct kern_exec *x)
{
    const bool bytes = a->dtype == DT_I8 || a->dtype == DT_F8_E4M3;
    const uint32_t n_col = bytes ? div_up(a->n_col, KERN_INT8_K) * KERN_INT8_K : a->n_col;
    const bool words = ((uintptr_t)a->y | (uintptr_t)a->x | a->y_stride | a->x_stride) % 4 == 0;
    const bool four =
        bytes ? words : fours(a->y, a->dtype, a->y_stride) && fours(a->x, a->dtype, a->x_stride);
    const dim3 grid(a->n_row * a->n_used, div_up(n_col, COLUMNS));
    if (!a->n_row || !a->n_col)
        return;
    if (bytes)
        launch(moe_weigh_kernel<true>, grid, THREADS, 0, x, *a, n_col, four);
    else
        launch(moe_weigh_kernel<false>, grid, THREADS, 0, x, *a, n_col, four);
}

/* ---- permute_cols ---- */

template <unsigned BYTES> struct element_of {
    typedef uint16_t type;
};
template <> struct element_of<1> {
    typedef uint8_t type;
};

/* 16 bytes of y, from c on. */
template <class T>
static __device__ __forceinline__ uint4 picked16(const T *x, const uint32_t *order, uint32_t c)
{
    uint32_t words[4] = {};
#pragma unroll
    for (unsigned i = 0; i < 16 / sizeof(T); i++)
        words[i * sizeof(T) / 4] |= (uint32_t)x[order[c + i]] << i * sizeof(T) % 4 * 8;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

template <unsigned BYTES>
static __global__ void __launch_bounds__(THREADS)
    permute_cols_kernel(const struct permute_cols_args a, bool whole)
{
    await_inputs();
    typedef typename element_of<BYTES>::type T;
    const uint32_t place = blockIdx.x, each = 16 / BYTES;
    if (a.of.n_group && place >= a.of.starts[a.of.n_group])
        return; /* all of a block */
    const size_t to = a.of.n_group ? group_at(a.of, place) * a.of.w_stride : 0;
    const uint32_t *order = (const uint32_t *)(const void *)((const char *)a.order + to);
    const uint32_t row = row_of_x(a.of, place);
    const T *x = (const T *)a.x + row * a.x_stride;
    T *y = (T *)a.y + place * a.y_stride;
    for (uint32_t c = threadIdx.x * each; whole && c < a.n_col; c += THREADS * each)
        *(uint4 *)(void *)(y + c) = picked16(x, order, c);
    for (uint32_t c = threadIdx.x; !whole && c < a.n_col; c += THREADS)
        y[c] = x[order[c]];
    if (a.y_rows && threadIdx.x == 0)
        a.y_rows[place] = a.x_rows[row];
}

extern "C" void permute_cols_cuda(const struct permute_cols_args *a, const struct kern_exec *x)
{
    const bool whole = ((uintptr_t)a->y | a->y_stride * a->element | a->n_col * a->element) % 16 ==
                       0; /* pieces of 16 bytes */
    if (!a->n_row || !a->n_col)
        return;
    if (a->element == 1)
        launch(permute_cols_kernel<1>, dim3(a->n_row), THREADS, 0, x, *a, whole);
    else
        launch(permute_cols_kernel<2>, dim3(a->n_row), THREADS, 0, x, *a, whole);
}
