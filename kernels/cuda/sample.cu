/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling from rows of logits, and softmax_stats. Sampling is defined by engine/worker/sample.c: the same masks,
 * bias, penalties, truncation, ties and draw, so that the same logits give the same token on CPU and device. Equal
 * bits: adjusted logits, weights (select_exp's polynomial), the order and the sums of the short list, the sums of
 * chunks of 1024 and the scan over them. Not bit-equal: the mass for top_p without a top_k up to 1024 and
 * top_n_sigma's mean, whose sums the device computes in integers or in another fixed order; a token within 1e-8 of
 * the mass at the edge may be kept on one and cut on the other. Logprobs: sums of f64 in another fixed order.
 *
 * Shape: a block of 1024 threads a row, so a row's bits cannot depend on others; blocks take rows round
 *   robin, SAMPLE_BLOCKS at most, each with workspace of its own (8 bytes a logit: a copy of the row for
 *   logprobs, counts for penalties). A row of 152 k logits (600 KB) stays in L2 between the passes: greedy
 *   1 pass, temperature 3, top_k (up to 1024) 6, top_p 9; logprobs 4 more, the top of them 5 more.
 * Shared (struct sample_shared), 41 KiB: radix buckets 24, items 8, sums of chunks 4, a staged chunk 4,
 *   the rest 1. softmax_stats: the first and the second of these and some, 33 KiB.
 * Bytes: 4 a logit and pass, the first from memory. Limit: bytes / bandwidth, of L2 for most passes.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/select.cuh"
#include "kernels/cuda/workspace.h"
#include "kernels/cuda/philox.cuh"

#define CHUNK           1024u /* engine/worker/sample.h: SAMPLE_CHUNK */
#define CHUNKS_MAX      512u
#define SUM_LANES       16u
#define TEMPERATURE_MIN 0.01f
#define HEAP_MAX        1024u
#define SEEN_IN_PROMPT  (1u << 31)
#define BAD             UINT32_MAX
#define EMPTY           (UINT32_MAX - 1)
#define MASS_UNIT       0x1p44 /* weights are at most 1, a vocabulary at most 2^18: below 2^63 */

struct sample_shared {
    struct select_room room;
    double chunk_sums[CHUNKS_MAX];
    float stage[CHUNK];
    uint32_t token, n_kept;
    double total;
};

struct row_at { /* one row, as all threads of the block see it */
    float *x;
    uint32_t n;
    struct sample_row p;
    const uint32_t *history;
};

/* engine/worker/select.c, exp_inline, operation for operation. */
static __device__ __forceinline__ float weight_exp(float x)
{
    const float y = x < -87.0f ? -87.0f : x;
    const float round = y * 1.44269504f + 12582912.0f, n = round - 12582912.0f;
    const float scale = __uint_as_float((__float_as_uint(round) - 0x4B400000u + 127u) << 23);
    const float r = y - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const float e = (p * r * r + r + 1.0f) * scale;
    return x < -87.0f ? 0.0f : e;
}

/* ---- masks, bias, penalties ---- */
static __device__ __forceinline__ void apply_mask(const struct row_at &r, const uint32_t *bits)
{
    for (uint32_t i = threadIdx.x; i < r.n; i += SELECT_THREADS)
        if (!(bits[i / 32] >> i % 32 & 1))
            r.x[i] = -INFINITY;
    __syncthreads();
}

/* counts: [n], any content before. The thread that takes a token's count applies it. */
static __device__ __forceinline__ void penalize(const struct row_at &r, uint32_t *counts)
{
    for (uint32_t i = threadIdx.x; i < r.p.n_known; i += SELECT_THREADS)
        counts[r.history[i]] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < r.p.n_known; i += SELECT_THREADS)
        if (i < r.p.n_prompt)
            atomicOr(&counts[r.history[i]], SEEN_IN_PROMPT);
        else
            atomicAdd(&counts[r.history[i]], 1u);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < r.p.n_known; i += SELECT_THREADS) {
        const uint32_t id = r.history[i], seen = atomicExch(&counts[id], 0u);
        if (!seen)
            continue;
        float x = r.x[id];
        x = x > 0 ? x / r.p.repetition : x * r.p.repetition;
        const uint32_t n_output = seen & ~SEEN_IN_PROMPT;
        if (n_output)
            x = x - r.p.frequency * (float)n_output - r.p.presence;
        r.x[id] = x;
    }
    __syncthreads();
}

static __device__ __forceinline__ void adjust(const struct row_at &r, const struct sample_args &a,
                                              uint32_t *counts)
{
    if (r.p.mask != SAMPLE_NO_MASK)
        apply_mask(r, a.masks + (size_t)r.p.mask * ((a.n_vocab + 31) / 32));
    for (uint32_t i = threadIdx.x; i < r.p.n_bias; i += SELECT_THREADS) {
        const uint32_t id = a.bias_ids[r.p.bias_start + i];
        if (id < r.n)
            r.x[id] += a.bias[r.p.bias_start + i];
    }
    __syncthreads();
    if (r.p.repetition != 1.0f || r.p.presence != 0.0f || r.p.frequency != 0.0f)
        penalize(r, counts);
}

/* ---- a short list ---- */
/* items are sorted: weights, min_p, top_p, the draw; one thread, since the sums go one by one. */
static __device__ __forceinline__ uint32_t draw_list(const struct row_at &r, uint32_t n,
                                                     struct sample_shared &s)
{
    struct select_item *items = s.room.items;
    double sum = 0, total = 0;
    uint32_t n_kept = 0, n_left = 0;
    for (; n_kept < n; n_kept++) {
        const float w = items[n_kept].value;
        if (n_kept && (w < r.p.min_p || w == 0.0f))
            break;
        sum += (double)w;
    }
    const double limit = (double)r.p.top_p * sum;
    while (n_left < n_kept && (n_left == 0 || r.p.top_p >= 1.0f || total < limit))
        total += (double)items[n_left++].value;
    const double target = philox_uniform(r.p.seed, r.p.n_known) * total;
    sum = 0;
    for (uint32_t i = 0; i < n_left; i++) {
        sum += (double)items[i].value;
        if (sum > target)
            return items[i].id;
    }
    return items[n_left - 1].id;
}

static __device__ __forceinline__ uint32_t sample_list(const struct row_at &r, float max,
                                                       float temperature, struct sample_shared &s)
{
    const uint32_t n = top_of(r.x, r.n, r.p.top_k, &s.room);
    float w = 0;
    if (threadIdx.x < n)
        w = weight_exp((s.room.items[threadIdx.x].value - max) / temperature);
    __syncthreads();
    if (threadIdx.x < n)
        s.room.items[threadIdx.x].value = w;
    __syncthreads();
    if (threadIdx.x == 0)
        s.token = draw_list(r, n, s);
    __syncthreads();
    return s.token;
}

/* ---- the whole vocabulary ---- */
/* Sums of the chunks and of all. As select_sum: 16 lanes a chunk, the incomplete group of 16 first. */
static __device__ __forceinline__ double sum_chunks(const struct row_at &r, struct sample_shared &s)
{
    const uint32_t n_chunk = (r.n + CHUNK - 1) / CHUNK, lane = threadIdx.x % SUM_LANES;
    for (uint32_t base = 0; base < n_chunk; base += SELECT_THREADS / SUM_LANES) {
        const uint32_t c = base + threadIdx.x / SUM_LANES, start = c * CHUNK;
        const uint32_t n = c >= n_chunk ? 0 : r.n - start < CHUNK ? r.n - start : CHUNK;
        const uint32_t whole = n / SUM_LANES * SUM_LANES;
        double mine = 0, sum = 0;
        for (uint32_t i = lane; i < whole; i += SUM_LANES)
            mine += (double)r.x[start + i];
        for (uint32_t i = whole; i < n; i++)
            sum += (double)r.x[start + i];
        for (uint32_t j = 0; j < SUM_LANES; j++)
            sum += __shfl_sync(ALL_LANES, mine, threadIdx.x % WARP / SUM_LANES * SUM_LANES + j);
        if (lane == 0 && c < n_chunk)
            s.chunk_sums[c] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0;
        for (uint32_t c = 0; c < n_chunk; c++)
            total += s.chunk_sums[c];
        s.total = total;
    }
    __syncthreads();
    return s.total;
}

/* Weights behind the edge become 0. mass: of top_p; else a count. */
static __device__ __forceinline__ void cut_weights(const struct row_at &r, bool mass, double limit,
                                                   struct sample_shared &s)
{
    auto key = [](float w) { return __float_as_uint(w); };
    auto measure = [mass](float w) {
        return mass ? (unsigned long long)((double)w * MASS_UNIT) : 1ull;
    };
    const unsigned long long whole = (unsigned long long)ceil(mass ? limit * MASS_UNIT : limit);
    const struct radix edge = radix_edge(r.x, r.n, whole, key, measure, &s.room);
    const unsigned long long own = measure(__uint_as_float(edge.key));
    unsigned long long n_keep = 1; /* of those equal to the edge; the best item always stays */
    if (edge.before < whole && own)
        n_keep = (whole - edge.before + own - 1) / own;
    for (uint32_t i = threadIdx.x; i < r.n; i += SELECT_THREADS)
        if (key(r.x[i]) < edge.key)
            r.x[i] = 0;
    __syncthreads();
    if (edge.n_equal > n_keep)
        equals(
            r.x, r.n, edge.key, n_keep, key, [](uint32_t) {}, [&](uint32_t i) { r.x[i] = 0; },
            &s.room);
    __syncthreads();
}

/* sample_draw over weights: the chunk by its sums, then one by one. */
static __device__ __forceinline__ uint32_t draw_dense(const struct row_at &r, double total,
                                                      struct sample_shared &s)
{
    const double target = philox_uniform(r.p.seed, r.p.n_known) * total;
    double sum = 0;
    uint32_t start = 0, last = BAD;
    for (uint32_t c = 0; start + CHUNK < r.n && sum + s.chunk_sums[c] <= target; c++) {
        sum += s.chunk_sums[c];
        start += CHUNK;
    }
    for (uint32_t from = start; from < r.n; from += CHUNK) {
        __syncthreads();
        s.stage[threadIdx.x] = from + threadIdx.x < r.n ? r.x[from + threadIdx.x] : 0;
        if (threadIdx.x == 0)
            s.token = BAD;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (uint32_t i = 0; i < CHUNK && s.token == BAD; i++) {
                if (s.stage[i] == 0.0f)
                    continue;
                sum += (double)s.stage[i];
                last = from + i;
                if (sum > target)
                    s.token = from + i;
            }
        }
        __syncthreads();
        if (s.token != BAD)
            return s.token;
    }
    if (threadIdx.x == 0) { /* rounding hid the crossing: the last with weight */
        for (uint32_t i = start; last == BAD && i-- > 0;)
            if (r.x[i] != 0.0f)
                last = i;
        s.token = last;
    }
    __syncthreads();
    return s.token;
}

static __device__ __forceinline__ uint32_t sample_dense(const struct row_at &r, float max,
                                                        float temperature, struct sample_shared &s)
{
    for (uint32_t i = threadIdx.x; i < r.n; i += SELECT_THREADS) {
        const float w = weight_exp((r.x[i] - max) / temperature);
        r.x[i] = w < r.p.min_p ? 0.0f : w;
    }
    __syncthreads();
    if (r.p.top_k && r.p.top_k < r.n)
        cut_weights(r, false, r.p.top_k, s);
    double total = sum_chunks(r, s);
    if (r.p.top_p < 1.0f) {
        cut_weights(r, true, (double)r.p.top_p * total, s);
        total = sum_chunks(r, s);
    }
    return draw_dense(r, total, s);
}

/* Logits far below the largest become -inf. */
static __device__ __forceinline__ void cut_sigma(const struct row_at &r, float max,
                                                 struct select_room *room)
{
    double sum = 0, square = 0, n = 0;
    for (uint32_t i = threadIdx.x; i < r.n; i += SELECT_THREADS)
        if (r.x[i] != -INFINITY) {
            sum += (double)r.x[i];
            n += 1;
        }
    sum = sum_block(sum, room);
    n = sum_block(n, room);
    const double mean = sum / n;
    for (uint32_t i = threadIdx.x; i < r.n; i += SELECT_THREADS)
        if (r.x[i] != -INFINITY) {
            const double d = (double)r.x[i] - mean;
            square += d * d;
        }
    square = sum_block(square, room);
    const double limit = (double)max - (double)r.p.top_n_sigma * sqrt(square / n);
    for (uint32_t i = threadIdx.x; i < r.n; i += SELECT_THREADS)
        if ((double)r.x[i] < limit)
            r.x[i] = -INFINITY;
    __syncthreads();
}

static __device__ __forceinline__ uint32_t choose_token(const struct row_at &r,
                                                        struct sample_shared &s)
{
    bool nan;
    const struct select_item best = best_of(r.x, r.n, &nan, &s.room);
    if (nan || best.value == -INFINITY)
        return nan ? BAD : EMPTY;
    if (r.p.temperature == 0.0f || best.value == INFINITY)
        return best.id;
    const float temperature = r.p.temperature < TEMPERATURE_MIN ? TEMPERATURE_MIN : r.p.temperature;
    if (r.p.top_n_sigma > 0)
        cut_sigma(r, best.value, &s.room);
    if (r.p.top_k && r.p.top_k <= HEAP_MAX)
        return sample_list(r, best.value, temperature, s);
    return sample_dense(r, best.value, temperature, s);
}

/* ---- logprobs ---- */
/* sum of exp(x - max): thread t has columns t, t + 1024, …; 1 where x is the max, 0 where it is NaN. */
static __device__ __forceinline__ double sum_exp(const float *x, uint32_t n, float max,
                                                 struct select_room *room)
{
    double sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += SELECT_THREADS)
        if (x[i] == x[i])
            sum += (double)(x[i] == max ? 1.0f : expf(x[i] - max));
    sum = sum_block(sum, room);
    return max == -INFINITY ? 0 : sum;
}

static __device__ __forceinline__ void logprobs(const struct sample_args &a, uint32_t row,
                                                const float *raw, uint32_t n_top,
                                                struct sample_pick *pick, struct sample_shared &s)
{
    bool nan;
    const float chosen = raw[pick->token];
    const float max = best_of(raw, a.n_vocab, &nan, &s.room).value;
    const double lse = (double)max + log(sum_exp(raw, a.n_vocab, max, &s.room));
    unsigned long long above = 0, all;
    for (uint32_t i = threadIdx.x; i < a.n_vocab; i += SELECT_THREADS)
        above += raw[i] > chosen || (raw[i] == chosen && i < pick->token);
    scan_block(above, &s.room, &all);
    pick->rank = 1 + (uint32_t)all;
    pick->logprob = (float)((double)chosen - lse);
    pick->n_top = n_top ? top_of(raw, a.n_vocab, n_top, &s.room) : 0;
    if (threadIdx.x < pick->n_top) {
        const size_t to = (size_t)row * SAMPLE_TOP_MAX + threadIdx.x;
        a.top_ids[to] = s.room.items[threadIdx.x].id;
        a.top_logprobs[to] = (float)((double)s.room.items[threadIdx.x].value - lse);
    }
    __syncthreads();
}

static __device__ __forceinline__ void sample_one(const struct sample_args &a, uint32_t row,
                                                  float *raw, uint32_t *counts,
                                                  struct sample_shared &s)
{
    const struct row_at r = {a.x + row * a.x_stride, a.n_vocab, a.rows[row],
                             a.histories + (size_t)a.rows[row].history * a.history_stride};
    struct sample_pick pick = {r.p.token, 0, 0, 0};
    const bool wanted = r.p.flags & SAMPLE_LOGPROB, known = r.p.flags & SAMPLE_KNOWN;
    if (r.p.flags & SAMPLE_SKIP)
        return;
    for (unsigned turn = 0; turn < 2; turn++) { /* copy before or after the adjustments */
        const bool now = turn == (r.p.flags & SAMPLE_ADJUSTED ? 1u : 0u);
        if (turn && !known)
            adjust(r, a, counts);
        for (uint32_t i = threadIdx.x; wanted && !known && now && i < r.n; i += SELECT_THREADS)
            raw[i] = r.x[i];
        __syncthreads();
    }
    if (!known)
        pick.token = choose_token(r, s);
    __syncthreads();
    if (pick.token >= EMPTY) {
        pick.rank = pick.token; /* why */
        pick.token = BAD;
    } else if (wanted) {
        logprobs(a, row, known ? r.x : raw, r.p.n_top, &pick, s);
    }
    if (threadIdx.x == 0)
        a.out[row] = pick;
}

static __global__ void __launch_bounds__(SELECT_THREADS)
    sample_kernel(const struct sample_args a, float *workspace)
{
    await_inputs();
    SHARED_MEMORY(s, struct sample_shared);
    float *raw = workspace + (size_t)blockIdx.x * 2 * a.n_vocab;
    uint32_t *counts = (uint32_t *)(raw + a.n_vocab);
    for (uint32_t row = blockIdx.x; row < a.n_row; row += gridDim.x) {
        sample_one(a, row, raw, counts, s);
        __syncthreads();
    }
}

extern "C" void sample_cuda(const struct sample_args *a, const struct kern_exec *x)
{
    const unsigned n_block = a->n_row < SAMPLE_BLOCKS ? a->n_row : SAMPLE_BLOCKS;
    if (a->n_row && a->n_vocab)
        launch(sample_kernel, dim3(n_block), SELECT_THREADS, sizeof(struct sample_shared), x, *a,
               (float *)x->scratch);
}

static __global__ void __launch_bounds__(SELECT_THREADS)
    softmax_stats_kernel(const struct softmax_stats_args a)
{
    await_inputs();
    SHARED_MEMORY(s, struct select_room);
    const float *x = a.x + blockIdx.x * a.x_stride;
    bool nan;
    const struct select_item best = best_of(x, a.n_col, &nan, &s);
    const double sum = sum_exp(x, a.n_col, best.value, &s);
    if (threadIdx.x == 0) {
        a.max[blockIdx.x] = best.value;
        a.argmax[blockIdx.x] = best.id;
        a.sumexp[blockIdx.x] = sum;
    }
}

extern "C" void softmax_stats_cuda(const struct softmax_stats_args *a, const struct kern_exec *x)
{
    if (a->n_row)
        launch(softmax_stats_kernel, dim3(a->n_row), SELECT_THREADS, sizeof(struct select_room), x,
               *a);
}
