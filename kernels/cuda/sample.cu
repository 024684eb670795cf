/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling from rows of logits, as engine/worker/sample.c defines it: the same masks,
 * bias, penalties, truncation, ties and draw, so that the same logits give the same token on CPU and device. Equal
 * bits: adjusted logits, weights (select_exp's polynomial), the order and the sums of the short list, the sums of
 * chunks of 1024 and the scan over them. Not bit-equal: the mass for top_p without a top_k up to 1024 and
 * top_n_sigma's mean, whose sums the device computes in integers or in another fixed order; a token within 1e-8 of
 * the mass at the edge may be kept on one and cut on the other. Logprobs: sums of f64 in another fixed order.
 *
 * Three launches, 64 rows each: a row is cut into parts of 4096 logits, whatever the batch, so its bits cannot depend
 * on others. What needs the whole row at once is left to its last block, over what the parts left behind.
 *     adjust   a block a part   the copy for logprobs; mask, bias, penalties; the part's largest logit
 *     weigh    a block a part   by top_k (up to 1024): the part's best k. Else weights, their sums a chunk, and for the
 *                               edge of top_p (or a larger top_k) its first level. Logprobs: sum and best of the part
 *     draw     a block a row    the best k of the parts' or the edge's other two levels and the cut; the draw; the rank
 * Of 152 k logits that are 38 blocks for one row, more than a card has multiprocessors from 4 rows on. A block loads
 * its part once, into shared memory. Passes of one block over a row, of L2: greedy, temperature and top_k none
 * (top_k: over 38 k items), top_p 4, rank 1; with top_n_sigma 3 more, and then also weights and the best k (4) are
 * done there.
 * A row's workspace (workspace.h): struct sample_state, its copy, the parts' best items; 6.3 bytes a logit.
 * Shared: parts 49 KiB (radix buckets 24, items 8, the part 16), draw 41 KiB (with sums of chunks 4, a chunk 4).
 * Bytes: 4 a logit three times, the first from memory; limit: bytes / bandwidth, of L2 for the others.
 * Fraction of the limit: not measured on a card yet. */
#include "kernels/cuda/select.cuh"
#include "kernels/cuda/philox.cuh"
extern "C" {
#include "kernels/cuda/workspace.h"
}

#define CHUNK           1024u /* engine/worker/sample.h: SAMPLE_CHUNK */
#define PART_CHUNKS     (SAMPLE_PART / CHUNK)
#define CHUNKS_MAX      (SAMPLE_PARTS_MAX * PART_CHUNKS)
#define SUM_LANES       16u
#define TEMPERATURE_MIN 0.01f
#define SEEN_IN_PROMPT  (1u << 31)
#define BAD             UINT32_MAX
#define EMPTY           (UINT32_MAX - 1)
#define MASS_UNIT       0x1p44 /* weights are at most 1, a vocabulary at most 2^18: below 2^63 */

/* What is known of a row between the launches; of a row that is drawn from a list no buckets and no sums of chunks. */
struct sample_state {
    struct select_buckets buckets; /* the first level of the first edge */
    double chunk_sums[CHUNKS_MAX];
    double sum_exp[SAMPLE_PARTS_MAX]; /* of the copy, exp(x - its largest) */
    struct select_item best[SAMPLE_PARTS_MAX];
    float copy_most[SAMPLE_PARTS_MAX]; /* of the copy */
    uint32_t nan[SAMPLE_PARTS_MAX];
};
static_assert(sizeof(struct sample_state) <= SAMPLE_STATE_BYTES, "workspace.h");

struct row_at { /* one row, as all threads of the block see it */
    float *x;
    uint32_t n, n_part;
    struct sample_row p;
    const uint32_t *history;
    struct sample_state *state;
    float *copy; /* the logits of logprobs */
    struct select_item
        *list; /* [n_part][top_k], of a part the best first; values without a number behind them */
    struct select_item *tops; /* [n_part][n_top] of the copy */
};
struct part_at {
    uint32_t at, n;
};
enum sample_way {
    WAY_NONE,  /* a token that needs no draw, or none */
    WAY_LIST,  /* of the parts' best */
    WAY_DENSE, /* weights in place of logits */
    WAY_SIGMA, /* either, after a cut that needs sums over the row */
};
struct row_state {
    struct select_item best;
    float copy_most, temperature;
    uint32_t token; /* WAY_NONE */
    enum sample_way way;
};

/* In shared memory, because there are no registers for them. */
struct row_facts {
    struct row_at r;
    struct row_state y;
};
struct sample_shared { /* of draw */
    struct row_facts of;
    struct select_room room;
    double chunk_sums[CHUNKS_MAX];
    float stage[CHUNK];
    uint32_t token;
    double total;
};
struct part_shared {
    struct row_facts of;
    union {
        struct select_room room;
        uint32_t counts[SAMPLE_PART]; /* of penalties; the room is not used at that time */
    };
    float x[SAMPLE_PART];
};

struct sample_room { /* rows' workspaces, sample_row_bytes() each */
    char *first;
    size_t row_bytes;
};

static __device__ __forceinline__ struct row_at row_of(const struct sample_args &a, uint32_t row,
                                                       const struct sample_room &room)
{
    const uint32_t n_part = (a.n_vocab + SAMPLE_PART - 1) / SAMPLE_PART;
    char *own = room.first + row * room.row_bytes;
    struct row_at r = {};
    r.x = a.x + row * a.x_stride;
    r.n = a.n_vocab;
    r.n_part = n_part;
    r.p = a.rows[row];
    r.history = a.histories + (size_t)r.p.history * a.history_stride;
    r.state = (struct sample_state *)own;
    r.list = (struct select_item *)(own + SAMPLE_STATE_BYTES);
    r.tops = r.list + (size_t)n_part * SAMPLE_LIST_MAX;
    r.copy = (float *)(r.tops + (size_t)n_part * SAMPLE_TOP_MAX);
    if (r.p.flags & SAMPLE_KNOWN)
        r.copy = r.x;
    return r;
}
static __device__ __forceinline__ void begin_row(struct row_facts &of, const struct sample_args &a,
                                                 uint32_t row, const struct sample_room &room)
{
    if (threadIdx.x == 0)
        of.r = row_of(a, row, room);
    __syncthreads();
}
static __device__ __forceinline__ struct part_at part_of(const struct row_at &r)
{
    const uint32_t at = blockIdx.x * SAMPLE_PART, left = r.n - at;
    return {at, left < SAMPLE_PART ? left : SAMPLE_PART};
}
static __device__ __forceinline__ bool penalizes(const struct row_at &r)
{
    return r.p.repetition != 1.0f || r.p.presence != 0.0f || r.p.frequency != 0.0f;
}
static __device__ __forceinline__ bool adjusts(const struct row_at &r)
{
    return r.p.mask != SAMPLE_NO_MASK || r.p.n_bias || penalizes(r);
}

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

/* ---- adjust: masks, bias, penalties, the largest ---- */
/* Ids of the history that lie in the part; others, placeholders of items among them, are not counted. */
static __device__ __forceinline__ void penalize(const struct row_at &r, const struct part_at &part,
                                                struct part_shared &s)
{
    for (uint32_t i = threadIdx.x; i < SAMPLE_PART; i += SELECT_THREADS)
        s.counts[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < r.p.n_known; i += SELECT_THREADS) {
        const uint32_t id = r.history[i] - part.at;
        if (id < part.n && i < r.p.n_prompt)
            atomicOr(&s.counts[id], SEEN_IN_PROMPT);
        else if (id < part.n)
            atomicAdd(&s.counts[id], 1u);
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < part.n; i += SELECT_THREADS) {
        const uint32_t seen = s.counts[i], n_output = seen & ~SEEN_IN_PROMPT;
        float x = s.x[i];
        if (!seen)
            continue;
        x = x > 0 ? x / r.p.repetition : x * r.p.repetition;
        if (n_output)
            x = x - r.p.frequency * (float)n_output - r.p.presence;
        s.x[i] = x;
    }
    __syncthreads();
}

static __device__ __forceinline__ void adjust(const struct row_at &r, const struct sample_args &a,
                                              const struct part_at &part, struct part_shared &s)
{
    if (r.p.mask != SAMPLE_NO_MASK) {
        const uint32_t *bits = a.masks + (size_t)r.p.mask * ((a.n_vocab + 31) / 32) + part.at / 32;
        for (uint32_t i = threadIdx.x; i < part.n; i += SELECT_THREADS)
            if (!(bits[i / 32] >> i % 32 & 1))
                s.x[i] = -INFINITY;
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < r.p.n_bias; i += SELECT_THREADS) {
        const uint32_t id = a.bias_ids[r.p.bias_start + i] - part.at;
        if (id < part.n)
            s.x[id] += a.bias[r.p.bias_start + i];
    }
    __syncthreads();
    if (penalizes(r))
        penalize(r, part, s);
}

static __device__ __forceinline__ void load_part(float *to, const float *from, uint32_t n)
{
    each_of(
        n, [&](uint32_t i) { return from[i]; }, [&](uint32_t i, float v) { to[i] = v; });
    __syncthreads();
}
static __device__ __forceinline__ void store_part(float *to, const float *from, uint32_t n)
{
    for (uint32_t i = threadIdx.x; i < n; i += SELECT_THREADS)
        to[i] = from[i];
}

static __global__ void __launch_bounds__(SELECT_THREADS, 1)
    sample_adjust_kernel(const struct sample_args a, const struct sample_room room)
{
    await_inputs();
    SHARED_MEMORY(s, struct part_shared);
    begin_row(s.of, a, blockIdx.y, room);
    const struct row_at &r = s.of.r;
    const struct part_at part = part_of(r);
    const bool known = r.p.flags & SAMPLE_KNOWN, late = r.p.flags & SAMPLE_ADJUSTED;
    const bool copied = r.p.flags & SAMPLE_LOGPROB && !known, changes = !known && adjusts(r);
    bool nan;
    if (r.p.flags & SAMPLE_SKIP)
        return;
    load_part(s.x, r.x + part.at, part.n);
    struct select_item best = best_of(s.x, part.n, &nan, &s.room);
    float copy_most = best.value;
    if (copied && !(late && changes))
        store_part(r.copy + part.at, s.x, part.n);
    if (changes) {
        adjust(r, a, part, s);
        store_part(r.x + part.at, s.x, part.n);
        if (copied && late)
            store_part(r.copy + part.at, s.x, part.n);
        best = best_of(s.x, part.n, &nan, &s.room);
        copy_most = late ? best.value : copy_most;
    }
    for (uint32_t i = threadIdx.x; blockIdx.x == 0 && i < SELECT_BUCKETS; i += SELECT_THREADS) {
        r.state->buckets.mass[i] = 0;
        r.state->buckets.count[i] = 0;
    }
    if (threadIdx.x == 0) {
        r.state->best[blockIdx.x] = {best.value, part.at + best.id};
        r.state->nan[blockIdx.x] = nan;
        r.state->copy_most[blockIdx.x] = copy_most;
    }
}

/* ---- a row, from what the launch before left of its parts ---- */
/* By a warp. */
static __device__ __forceinline__ struct row_state state_of(const struct row_at &r)
{
    struct row_state y = {{-INFINITY, 0}, -INFINITY, r.p.temperature, r.p.token, WAY_NONE};
    bool nan = false;
    for (uint32_t i = threadIdx.x % WARP; i < r.n_part; i += WARP) {
        const struct select_item best = r.state->best[i];
        y.best = better(best, y.best) ? best : y.best;
        y.copy_most = fmaxf(y.copy_most, r.state->copy_most[i]);
        nan |= r.state->nan[i] != 0;
    }
#pragma unroll
    for (unsigned half = WARP / 2; half; half /= 2) {
        struct select_item other;
        other.value = __shfl_xor_sync(ALL_LANES, y.best.value, half);
        other.id = __shfl_xor_sync(ALL_LANES, y.best.id, half);
        y.best = better(other, y.best) ? other : y.best;
        y.copy_most = fmaxf(y.copy_most, __shfl_xor_sync(ALL_LANES, y.copy_most, half));
    }
    nan = __any_sync(ALL_LANES, nan);
    if (r.p.flags & SAMPLE_KNOWN)
        return y;
    y.token = y.best.id;
    if (nan || y.best.value == -INFINITY)
        y.token = nan ? BAD : EMPTY;
    else if (r.p.temperature != 0.0f && y.best.value != INFINITY)
        y.way = r.p.top_n_sigma > 0                         ? WAY_SIGMA
                : r.p.top_k && r.p.top_k <= SAMPLE_LIST_MAX ? WAY_LIST
                                                            : WAY_DENSE;
    if (y.temperature < TEMPERATURE_MIN)
        y.temperature = TEMPERATURE_MIN;
    return y;
}

/* state_of, for all threads of the block. */
static __device__ __forceinline__ void find_state(struct row_facts &of)
{
    if (threadIdx.x < WARP) {
        const struct row_state found = state_of(of.r);
        if (threadIdx.x == 0)
            of.y = found;
    }
    __syncthreads();
}

static __device__ __forceinline__ float weight_of(const struct row_at &r, const struct row_state &y,
                                                  float x)
{
    const float w = weight_exp((x - y.best.value) / y.temperature);
    return w < r.p.min_p ? 0.0f : w;
}

/* Weights behind an edge become 0: of a count of weights, or of their mass. */
enum cut { CUT_NONE, CUT_COUNT, CUT_MASS };
static __device__ __forceinline__ enum cut first_cut(const struct row_at &r)
{
    return r.p.top_k && r.p.top_k < r.n ? CUT_COUNT : r.p.top_p < 1.0f ? CUT_MASS : CUT_NONE;
}
static __device__ __forceinline__ uint32_t weight_key(float w)
{
    return __float_as_uint(w);
}
static __device__ __forceinline__ unsigned long long measure_of(enum cut by, float w)
{
    return by == CUT_MASS ? (unsigned long long)((double)w * MASS_UNIT) : 1ull;
}

/* Sums of the chunks of weights w[0..n). As select_sum: 16 lanes a chunk, the incomplete group of 16 first. */
static __device__ __forceinline__ void sum_chunks(const float *w, uint32_t n_all, double *sums)
{
    const uint32_t n_chunk = (n_all + CHUNK - 1) / CHUNK, lane = threadIdx.x % SUM_LANES;
    for (uint32_t base = 0; base < n_chunk; base += SELECT_THREADS / SUM_LANES) {
        const uint32_t c = base + threadIdx.x / SUM_LANES, start = c * CHUNK;
        const uint32_t n = c >= n_chunk ? 0 : n_all - start < CHUNK ? n_all - start : CHUNK;
        const uint32_t whole = n / SUM_LANES * SUM_LANES;
        double mine = 0, sum = 0;
#pragma unroll 8
        for (uint32_t i = lane; i < whole; i += SUM_LANES)
            mine += (double)w[start + i];
        for (uint32_t i = whole; i < n; i++)
            sum += (double)w[start + i];
        for (uint32_t j = 0; j < SUM_LANES; j++)
            sum += __shfl_sync(ALL_LANES, mine, threadIdx.x % WARP / SUM_LANES * SUM_LANES + j);
        if (lane == 0 && c < n_chunk)
            sums[c] = sum;
    }
}

/* ---- weigh ---- */
/* The part's weights, sums of its chunks, its share of the first level of the edge. */
static __device__ __forceinline__ void weigh_part(const struct row_at &r, const struct row_state &y,
                                                  const struct part_at &part, struct part_shared &s)
{
    const enum cut by = first_cut(r);
    for (uint32_t i = threadIdx.x; i < part.n; i += SELECT_THREADS) {
        const float w = weight_of(r, y, s.x[i]);
        s.x[i] = w;
        r.x[part.at + i] = w;
    }
    __syncthreads();
    sum_chunks(s.x, part.n, r.state->chunk_sums + blockIdx.x * PART_CHUNKS);
    if (by == CUT_NONE)
        return;
    radix_fill(
        {0, 0, 0}, 0, part.n, [&](uint32_t i) { return s.x[i]; }, weight_key,
        [by](float w) { return measure_of(by, w); }, &s.room);
    for (uint32_t i = threadIdx.x; i < SELECT_BUCKETS; i += SELECT_THREADS)
        if (s.room.buckets.count[i]) {
            atomicAdd(&r.state->buckets.mass[i], s.room.buckets.mass[i]);
            atomicAdd(&r.state->buckets.count[i], s.room.buckets.count[i]);
        }
}

/* to[0..k) = the best of s.x[0..n), which begin at id `at`; what is left over has no number. */
static __device__ __forceinline__ void
best_of_part(struct select_item *to, uint32_t k, const struct part_at &part, struct part_shared &s)
{
    const uint32_t n = top_of(
        part.n,
        [&](uint32_t i) -> struct select_item {
            return {s.x[i], part.at + i};
        },
        k, &s.room);
    if (threadIdx.x < k)
        to[threadIdx.x] =
            threadIdx.x < n ? s.room.items[threadIdx.x] : select_item{(float)NAN, UINT32_MAX};
    __syncthreads();
}

/* sum of exp(x - max) over the values of this thread; 1 where x is the max, 0 where it is NaN. */
static __device__ __forceinline__ double sum_exp(const float *x, uint32_t n, float max,
                                                 struct select_room *room)
{
    double sum = 0;
    each_of(
        n, [&](uint32_t i) { return x[i]; },
        [&](uint32_t, float v) {
            if (v == v)
                sum += (double)(v == max ? 1.0f : expf(v - max));
        });
    sum = sum_block(sum, room);
    return max == -INFINITY ? 0 : sum;
}

static __global__ void __launch_bounds__(SELECT_THREADS, 1)
    sample_weigh_kernel(const struct sample_args a, const struct sample_room room)
{
    await_inputs();
    SHARED_MEMORY(s, struct part_shared);
    begin_row(s.of, a, blockIdx.y, room);
    const struct row_at &r = s.of.r;
    const struct part_at part = part_of(r);
    const bool wanted = r.p.flags & SAMPLE_LOGPROB;
    if (r.p.flags & SAMPLE_SKIP)
        return;
    find_state(s.of);
    const struct row_state &y = s.of.y;
    if (wanted) { /* first: the copy of a known token's row is the row */
        load_part(s.x, r.copy + part.at, part.n);
        const double sum = sum_exp(s.x, part.n, y.copy_most, &s.room);
        if (threadIdx.x == 0)
            r.state->sum_exp[blockIdx.x] = sum;
        if (r.p.n_top)
            best_of_part(r.tops + blockIdx.x * r.p.n_top, r.p.n_top, part, s);
    }
    if (y.way != WAY_LIST && y.way != WAY_DENSE)
        return;
    __syncthreads();
    load_part(s.x, r.x + part.at, part.n);
    if (y.way == WAY_LIST)
        best_of_part(r.list + (size_t)blockIdx.x * r.p.top_k, r.p.top_k, part, s);
    else
        weigh_part(r, y, part, s);
}

/* ---- draw: a short list ---- */
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

/* Of the row, or of the parts' best. */
static __device__ __forceinline__ uint32_t sample_list(const struct row_at &r,
                                                       const struct row_state &y,
                                                       struct sample_shared &s)
{
    const bool whole = y.way == WAY_SIGMA;
    const uint32_t n = top_of(
        whole ? r.n : r.n_part * r.p.top_k,
        [&](uint32_t i) {
            return whole ? select_item{r.x[i], i} : r.list[i];
        },
        r.p.top_k, &s.room);
    float w = 0;
    if (threadIdx.x < n)
        w = weight_exp((s.room.items[threadIdx.x].value - y.best.value) / y.temperature);
    __syncthreads();
    if (threadIdx.x < n)
        s.room.items[threadIdx.x].value = w;
    __syncthreads();
    if (threadIdx.x == 0)
        s.token = draw_list(r, n, s);
    __syncthreads();
    return s.token;
}

/* ---- draw: the whole vocabulary ---- */
/* The sum of all, and of each chunk in s: as weigh left them, or of the row. */
static __device__ __forceinline__ double sum_row(const struct row_at &r, bool weighed,
                                                 struct sample_shared &s)
{
    const uint32_t n_chunk = (r.n + CHUNK - 1) / CHUNK;
    if (weighed)
        for (uint32_t c = threadIdx.x; c < n_chunk; c += SELECT_THREADS)
            s.chunk_sums[c] = r.state->chunk_sums[c];
    else
        sum_chunks(r.x, r.n, s.chunk_sums);
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

/* weighed: weigh has filled the first level's buckets. */
static __device__ __forceinline__ void cut_weights(const struct row_at &r, enum cut by,
                                                   double limit, bool weighed,
                                                   struct sample_shared &s)
{
    auto value = [&](uint32_t i) { return r.x[i]; };
    auto measure = [by](float w) { return measure_of(by, w); };
    const unsigned long long whole =
        (unsigned long long)ceil(by == CUT_MASS ? limit * MASS_UNIT : limit);
    for (uint32_t i = threadIdx.x; weighed && i < SELECT_BUCKETS; i += SELECT_THREADS) {
        s.room.buckets.mass[i] = r.state->buckets.mass[i];
        s.room.buckets.count[i] = r.state->buckets.count[i];
    }
    __syncthreads();
    const struct radix edge = radix_edge(r.n, value, whole, weight_key, measure, weighed, &s.room);
    const unsigned long long own = measure(__uint_as_float(edge.key));
    unsigned long long n_keep = 1; /* of those equal to the edge; the best item always stays */
    if (edge.before < whole && own)
        n_keep = (whole - edge.before + own - 1) / own;
    each_of(r.n, value, [&](uint32_t i, float w) {
        if (weight_key(w) < edge.key)
            r.x[i] = 0;
    });
    __syncthreads();
    if (edge.n_equal > n_keep)
        equals(
            r.n, value, edge.key, n_keep, weight_key, [](uint32_t) {},
            [&](uint32_t i) { r.x[i] = 0; }, &s.room);
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

static __device__ __forceinline__ uint32_t sample_dense(const struct row_at &r,
                                                        const struct row_state &y,
                                                        struct sample_shared &s)
{
    bool weighed = y.way == WAY_DENSE;
    if (!weighed)
        each_of(
            r.n, [&](uint32_t i) { return r.x[i]; },
            [&](uint32_t i, float v) { r.x[i] = weight_of(r, y, v); });
    __syncthreads();
    double total = 0;
    if (first_cut(r) == CUT_COUNT) {
        cut_weights(r, CUT_COUNT, r.p.top_k, weighed, s);
        weighed = false;
    }
    total = sum_row(r, weighed, s);
    if (r.p.top_p < 1.0f) {
        cut_weights(r, CUT_MASS, (double)r.p.top_p * total, weighed, s);
        total = sum_row(r, false, s);
    }
    return draw_dense(r, total, s);
}

/* Logits far below the largest become -inf. */
static __device__ __forceinline__ void cut_sigma(const struct row_at &r, float max,
                                                 struct select_room *room)
{
    double sum = 0, square = 0, n = 0;
    auto value = [&](uint32_t i) { return r.x[i]; };
    each_of(r.n, value, [&](uint32_t, float v) {
        if (v != -INFINITY) {
            sum += (double)v;
            n += 1;
        }
    });
    sum = sum_block(sum, room);
    n = sum_block(n, room);
    const double mean = sum / n;
    each_of(r.n, value, [&](uint32_t, float v) {
        if (v != -INFINITY) {
            const double d = (double)v - mean;
            square += d * d;
        }
    });
    square = sum_block(square, room);
    const double limit = (double)max - (double)r.p.top_n_sigma * sqrt(square / n);
    each_of(r.n, value, [&](uint32_t i, float v) {
        if ((double)v < limit)
            r.x[i] = -INFINITY;
    });
    __syncthreads();
}

static __device__ __forceinline__ uint32_t choose_token(const struct row_at &r,
                                                        const struct row_state &y,
                                                        struct sample_shared &s)
{
    if (y.way == WAY_NONE)
        return y.token;
    if (y.way == WAY_SIGMA)
        cut_sigma(r, y.best.value, &s.room);
    if (r.p.top_k && r.p.top_k <= SAMPLE_LIST_MAX)
        return sample_list(r, y, s);
    return sample_dense(r, y, s);
}

/* ---- draw: logprobs ---- */
static __device__ __forceinline__ void logprobs(const struct row_at &r, const struct row_state &y,
                                                const struct sample_args &a,
                                                struct sample_pick *pick, struct sample_shared &s)
{
    const float chosen = r.copy[pick->token];
    unsigned long long above = 0, all;
    double sum = 0;
    for (uint32_t i = 0; i < r.n_part; i++)
        sum += r.state->sum_exp[i];
    const double lse = (double)y.copy_most + log(sum);
    each_of(
        r.n, [&](uint32_t i) { return r.copy[i]; },
        [&](uint32_t i, float v) { above += v > chosen || (v == chosen && i < pick->token); });
    scan_block(above, &s.room, &all);
    pick->rank = 1 + (uint32_t)all;
    pick->logprob = (float)((double)chosen - lse);
    if (r.p.n_top)
        pick->n_top = top_of(
            r.n_part * r.p.n_top, [&](uint32_t i) { return r.tops[i]; }, r.p.n_top, &s.room);
    if (threadIdx.x < pick->n_top) {
        const size_t to = (size_t)blockIdx.x * SAMPLE_TOP_MAX + threadIdx.x;
        a.top_ids[to] = s.room.items[threadIdx.x].id;
        a.top_logprobs[to] = (float)((double)s.room.items[threadIdx.x].value - lse);
    }
}

static __global__ void __launch_bounds__(SELECT_THREADS, 1)
    sample_draw_kernel(const struct sample_args a, const struct sample_room room)
{
    await_inputs();
    SHARED_MEMORY(s, struct sample_shared);
    begin_row(s.of, a, blockIdx.x, room);
    const struct row_at &r = s.of.r;
    if (r.p.flags & SAMPLE_SKIP)
        return;
    find_state(s.of);
    const struct row_state &y = s.of.y;
    struct sample_pick pick = {choose_token(r, y, s), 0, 0, 0};
    __syncthreads();
    if (pick.token >= EMPTY) {
        pick.rank = pick.token; /* why */
        pick.token = BAD;
    } else if (r.p.flags & SAMPLE_LOGPROB) {
        logprobs(r, y, a, &pick, s);
    }
    if (threadIdx.x == 0)
        a.out[blockIdx.x] = pick;
}

extern "C" void sample_cuda(const struct sample_args *all, const struct kern_exec *x)
{
    struct sample_args a = *all;
    const struct sample_room room = {(char *)x->scratch, sample_row_bytes(all->n_vocab)};
    for (uint32_t n_left = all->n_vocab ? all->n_row : 0; n_left; n_left -= a.n_row) {
        a.n_row = n_left < SAMPLE_ROWS ? n_left : SAMPLE_ROWS;
        const dim3 parts(div_up(a.n_vocab, SAMPLE_PART), a.n_row);
        launch(sample_adjust_kernel, parts, SELECT_THREADS, sizeof(struct part_shared), x, a, room);
        launch(sample_weigh_kernel, parts, SELECT_THREADS, sizeof(struct part_shared), x, a, room);
        launch(sample_draw_kernel, dim3(a.n_row), SELECT_THREADS, sizeof(struct sample_shared), x,
               a, room);
        a.x += a.n_row * a.x_stride;
        a.rows += a.n_row;
        a.out += a.n_row;
        a.top_ids += (size_t)a.n_row * SAMPLE_TOP_MAX;
        a.top_logprobs += (size_t)a.n_row * SAMPLE_TOP_MAX;
    }
}
