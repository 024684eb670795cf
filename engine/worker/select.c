/* SPDX-License-Identifier: Apache-2.0 */
/* Radix selection. Weights are floats >= 0, whose bit patterns have the order of unsigned integers.
 * The key of an item is the distance of its bits to those of the least possible weight. A pass adds
 * the measure of every item to the bucket of the key's top 11 bits; a scan of the buckets from the
 * top finds the bucket in which the limit is crossed; the next passes resolve the next 11 bits
 * within that bucket:
 *
 *     bits of w - least   |30 ... 20|19 ... 9|8 ... 0|      at most three passes; only
 *                                                           the first fills many buckets
 *
 * A sort of 150k values takes ten times as long, and a quickselect is quadratic on some inputs. Few
 * items are compared one by one: those above a bound if they reach the limit, as a few large
 * weights mostly do; else those between two bounds, estimated from a sample of the row, that should
 * enclose the limit. If they do not enclose it, all items are compared. Passes over the row are
 * kernels (ops_row.h), which sum in the same order on every machine. */
#include "engine/worker/select.h"
#include <math.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define LANES       16u   /* independent partial results of one pass; combined in ascending order */
#define BUCKET_BITS 11u   /* of SAMPLE_BUCKETS */
#define CUT_FEW     4096u /* maximum number of items compared one by one */
#define SAMPLE_STEP 61u   /* columns: a prime, so that no pattern of the vocabulary is a sample's */

typedef float four __attribute__((vector_size(16)));
typedef uint32_t four_whole __attribute__((vector_size(16)));
typedef int32_t four_bits __attribute__((vector_size(16))); /* -1 where a comparison holds */

static inline four load_four(const float *x)
{
    four v;
    memcpy(&v, x, sizeof v);
    return v;
}

static inline bool any_bit(four_bits m)
{
#ifdef __SSE2__
    return _mm_movemask_epi8((__m128i)m) != 0;
#else
    uint64_t half[2];
    memcpy(half, &m, sizeof half);
    return (half[0] | half[1]) != 0;
#endif
}

/* The largest of x[0..n); sets *bad when one is NaN. */
static float max_of(const float *x, uint32_t n, bool *bad)
{
    const four least = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    four lane[LANES / 4] = {least, least, least, least};
    four_bits nan = {0};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES / 4; j++) {
            const four v = load_four(x + i + 4 * j);
            const four_bits above = v > lane[j];
            lane[j] = (four)((above & (four_bits)v) | (~above & (four_bits)lane[j]));
            nan |= ((four_bits)v & 0x7fffffff) > 0x7f800000; /* beyond infinity */
        }
    float best = -INFINITY;
    *bad |= any_bit(nan);
    for (; i < n; i++) {
        best = x[i] > best ? x[i] : best;
        *bad |= isnan(x[i]);
    }
    for (uint32_t j = 0; j < LANES; j++) {
        float v = lane[j / 4][j % 4];
        best = v > best ? v : best;
    }
    return best;
}

/* One pass over the row, chunk by chunk, and one over the first chunk that has the largest. */
bool select_best(const float *x, uint32_t n, uint32_t *best)
{
    float max = -INFINITY;
    bool bad = false;
    uint32_t at = 0;
    for (uint32_t start = 0; start < n; start += SAMPLE_CHUNK) {
        uint32_t left = n - start;
        float here = max_of(x + start, left < SAMPLE_CHUNK ? left : SAMPLE_CHUNK, &bad);
        if (here > max) {
            max = here;
            at = start;
        }
    }
    if (bad || max == -INFINITY)
        return false;
    while (x[at] != max)
        at++;
    *best = at;
    return true;
}

/* Whether one of n values, a multiple of four, is above `least`. */
static inline bool any_above(const float *x, const uint32_t n, float least)
{
    const four limit = {least, least, least, least};
    four_bits any = {0};
    for (uint32_t j = 0; j < n; j += 4)
        any |= load_four(x + j) > limit;
    return any_bit(any);
}

static bool worse(struct row_item a, struct row_item b)
{
    return a.value < b.value || (a.value == b.value && a.id > b.id);
}

/* The heap's root is the worst item kept. */
static void sift_down(struct row_item *h, uint32_t n, uint32_t i)
{
    struct row_item moving = h[i];
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && worse(h[child + 1], h[child]))
            child++;
        if (!worse(h[child], moving))
            break;
        h[i] = h[child];
        i = child;
    }
    h[i] = moving;
}

uint32_t select_top(const float *x, uint32_t n, uint32_t k, struct row_item *items)
{
    uint32_t n_kept = 0, i = 0;
    Q_ASSERT(k <= SAMPLE_HEAP_MAX);
    for (; i < n && n_kept < k; i++)
        if (x[i] == x[i])
            items[n_kept++] = (struct row_item){x[i], i};
    if (n_kept == 0)
        return 0;
    for (uint32_t j = n_kept / 2; j-- > 0;)
        sift_down(items, n_kept, j);
    for (; i < n; i++) {
        while (i + LANES <= n && !any_above(x + i, LANES, items[0].value))
            i += LANES; /* most of the row, once the heap has seen a little of it */
        if (i == n)
            break;
        if (x[i] > items[0].value) { /* an equal value has a higher id than those kept: it loses */
            items[0] = (struct row_item){x[i], i};
            sift_down(items, n_kept, 0);
        }
    }
    for (uint32_t left = n_kept; left > 1;
         left--) { /* take the worst to the end, again and again */
        struct row_item worst = items[0];
        items[0] = items[left - 1];
        items[left - 1] = worst;
        sift_down(items, left - 1, 0);
    }
    return n_kept;
}

/* 2^n * P(r), x = n * ln 2 + r, |r| <= ln 2 / 2, with the minimax polynomial of the Cephes
 * library's expf. */
static inline float exp_inline(float x)
{
    union {
        float f;
        uint32_t u;
    } round, scale;
    float y = x < ROW_EXP_MIN ? ROW_EXP_MIN : x;
    round.f = y * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: the integer is in the low bits */
    float n = round.f - 12582912.0f;
    scale.u = (round.u - 0x4B400000u + 127u) << 23;
    float r = y - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float e = (p * r * r + r + 1.0f) * scale.f;
    return x < ROW_EXP_MIN ? 0.0f : e;
}

float select_exp(float x)
{
    return exp_inline(x);
}

static void pass(const struct row_pass_args *a, const struct sample_scratch *s)
{
    s->kern->row_pass(a, &(struct kern_exec){.nth = 1});
}

static double total_of(const struct sample_scratch *s)
{
    double total = 0;
    for (uint32_t c = 0; c * SAMPLE_CHUNK < s->n_vocab; c++)
        total += s->chunk_sums[c];
    return total;
}

bool select_max(const float *x, const struct sample_scratch *s, float *max)
{
    uint32_t bad;
    pass(
        &(struct row_pass_args){
            .kind = ROW_MAX,
            .x = (float *)(uintptr_t)x,
            .n_col = s->n_vocab,
            .n_found = &bad,
            .most = max,
        },
        s);
    return !bad && *max != -INFINITY;
}

double select_weights(float *x, float max, float temperature, float w_min, struct sample_scratch *s)
{
    pass(
        &(struct row_pass_args){
            .kind = ROW_WEIGHTS,
            .x = x,
            .n_col = s->n_vocab,
            .low = w_min,
            .high = max,
            .temperature = temperature,
            .sums = s->chunk_sums,
        },
        s);
    return total_of(s);
}

double select_sum(float *w, struct sample_scratch *s)
{
    pass(
        &(struct row_pass_args){
            .kind = ROW_KEEP,
            .x = w,
            .n_col = s->n_vocab,
            .sums = s->chunk_sums,
        },
        s);
    return total_of(s);
}

uint32_t select_rank(const float *x, uint32_t id, const struct sample_scratch *s)
{
    uint32_t n;
    pass(
        &(struct row_pass_args){
            .kind = ROW_RANK,
            .x = (float *)(uintptr_t)x,
            .n_col = s->n_vocab,
            .id = id,
            .high = x[id],
            .n_found = &n,
        },
        s);
    return n;
}

static inline uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

struct cut {         /* the state of a radix selection */
    uint32_t n_item; /* of s->items, which it selects from */
    enum select_measure measure;
    double limit;
    double before;  /* measure of the items above the bucket */
    uint32_t base;  /* bits of the least that an item may be */
    uint32_t shift; /* bits that the first pass leaves open */
    uint32_t key;   /* bits of the edge less base, found so far */
    bool reached;   /* the limit, by the items there are */
};

/* Measure the items into buckets by `width` of their bits from `shift` on, and find the bucket in
 * which the limit is reached (the lowest one that has items when none does). Adds its number to the
 * key. */
static void cut_bucket(struct cut *c, uint32_t shift, uint32_t width, struct sample_scratch *s)
{
    const uint32_t mask = (1u << width) - 1;
    memset(s->masses, 0, (mask + 1) * sizeof *s->masses);
    memset(s->bucket_counts, 0, (mask + 1) * sizeof *s->bucket_counts);
    for (uint32_t i = 0; i < c->n_item; i++) {
        const uint32_t b = (float_bits(s->items[i].value) - c->base) >> shift & mask;
        s->masses[b] += c->measure == SELECT_COUNT ? 1.0 : (double)s->items[i].value;
        s->bucket_counts[b]++;
    }
    uint32_t found = 0;
    double above = c->before;
    c->reached = false;
    for (uint32_t b = mask + 1; b-- > 0 && !c->reached;) {
        if (!s->bucket_counts[b])
            continue;
        found = b;
        c->before = above;
        above += s->masses[b];
        c->reached = above >= c->limit;
    }
    c->key |= found << shift;
}

/* Only the items of the bucket that was found are of interest from here on. */
static void keep_bucket(struct cut *c, uint32_t shift, struct sample_scratch *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_item; i++) {
        const struct row_item item = s->items[i];
        s->items[n] = item;
        n += (float_bits(item.value) - c->base) >> shift == c->key >> shift;
    }
    c->n_item = n;
}

/* Bound below which weights are always cut. Weights of at most (total - limit) / 2n have together
 * at most half of the mass to cut, so the edge is above them; the other half is far more than the
 * rounding error. */
static float surely_cut(const struct cut *c, const struct sample_scratch *s)
{
    const double least = (total_of(s) - c->limit) / (2.0 * s->n_vocab);
    return c->measure == SELECT_MASS && least > 0 ? (float)least : 0.0f;
}

/* The first pass: items are above `low`, and `high` at most. */
static void cut_begin(struct cut *c, float low, float high, struct sample_scratch *s)
{
    c->base = float_bits(low) + 1;
    const uint32_t range = float_bits(high) - float_bits(low);
    const uint32_t n_bit = 32 - (uint32_t)__builtin_clz(range | 1);
    c->shift = n_bit > BUCKET_BITS ? n_bit - BUCKET_BITS : 0;
    c->key = 0;
    cut_bucket(c, c->shift, n_bit - c->shift, s);
}

/* The edge among the items. */
static float cut_edge(struct cut *c, struct sample_scratch *s)
{
    float edge;
    for (uint32_t shift = c->shift; shift;) {
        const uint32_t next = shift > BUCKET_BITS ? shift - BUCKET_BITS : 0;
        keep_bucket(c, shift, s);
        cut_bucket(c, next, shift - next, s);
        shift = next;
    }
    const uint32_t bits = c->base + c->key;
    memcpy(&edge, &bits, sizeof edge);
    return edge;
}

static float just_below(float f) /* f > 0 */
{
    const uint32_t bits = float_bits(f) - 1;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Compare the items between two bounds, at most `most` of them. True if the edge is among them.
 * c->before already has the measure of the items above `high`. */
static bool cut_between(struct cut *c, float *w, float low, float high, uint32_t most,
                        struct sample_scratch *s)
{
    pass(
        &(struct row_pass_args){
            .kind = ROW_BETWEEN,
            .x = w,
            .n_col = s->n_vocab,
            .n_item = most,
            .low = low,
            .high = high,
            .items = s->items,
            .n_found = &c->n_item,
        },
        s);
    if (c->n_item == most)
        return false;
    cut_begin(c, low, high, s);
    return c->reached;
}

/* The edge at `limit` in a sample of the row, n items; 0: it has not so much. */
static float sample_edge(const float *w, enum select_measure measure, double limit,
                         struct sample_scratch *s)
{
    struct cut c = {.measure = measure, .limit = limit};
    for (uint32_t i = SAMPLE_STEP / 2; i < s->n_vocab; i += SAMPLE_STEP)
        if (w[i] > 0)
            s->items[c.n_item++] = (struct row_item){w[i], i};
    cut_begin(&c, 0, INFINITY, s);
    return c.reached ? cut_edge(&c, s) : 0;
}

/* Two bounds that probably enclose the edge: the edge of a sample of the row, plus and minus three
 * standard deviations of such a sample and a margin. */
static void estimate_bounds(const struct cut *c, const float *w, float *low, float *high,
                            struct sample_scratch *s)
{
    const bool count = c->measure == SELECT_COUNT;
    double n = 0, mass = 0, square = 0;
    for (uint32_t i = SAMPLE_STEP / 2; i < s->n_vocab; i += SAMPLE_STEP) {
        const double x = count ? 1 : (double)w[i];
        n += 1;
        mass += w[i] > 0 ? x : 0;
        square += x * x;
    }
    const double part = c->limit / (count ? s->n_vocab : total_of(s)); /* of the row */
    const double limit = part * (count ? n : mass);
    const double off = 3 * sqrt(part < 1 ? square * part * (1 - part) : 0) + 2;
    const float above = limit > off ? sample_edge(w, c->measure, limit - off, s) : 0;
    const float below = limit + off < mass ? sample_edge(w, c->measure, limit + off, s) : 0;
    *high = above > 0 ? above : INFINITY;
    *low = below > 0 ? just_below(below) : surely_cut(c, s);
}

/* The measure of the items above `high`. */
static double measure_above(const struct cut *c, float *w, float high, struct sample_scratch *s)
{
    double above = 0;
    uint32_t n = 0;
    struct row_pass_args a = {
        .kind = ROW_RANK,
        .x = w,
        .n_col = s->n_vocab,
        .high = high,
        .n_found = &n,
    };
    if (c->measure == SELECT_MASS) {
        a.kind = ROW_BETWEEN;
        a.low = INFINITY;
        a.items = s->items;
        a.sums = s->part_sums;
    }
    pass(&a, s);
    for (uint32_t i = 0; i * SAMPLE_CHUNK < s->n_vocab && a.sums; i++)
        above += a.sums[i];
    return a.sums ? above : n;
}

/* The first level: first the weights above a bucket boundary, if they are few (so that the buckets
 * above are complete); then the weights between two estimated bounds; then all. */
static void cut_first(struct cut *c, float *w, struct sample_scratch *s)
{
    static const float bounds[] = {0x1p-4f, 0x1p-8f, 0x1p-12f};
    float low, high;
    for (uint32_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        if (cut_between(c, w, just_below(bounds[i]), INFINITY, CUT_FEW, s))
            return;
        c->before = 0;
        if (c->n_item == CUT_FEW)
            break;
    }
    estimate_bounds(c, w, &low, &high, s);
    c->before = high < INFINITY ? measure_above(c, w, high, s) : 0;
    if (c->before < c->limit && cut_between(c, w, low, high, s->n_vocab + 1, s))
        return;
    c->before = 0;
    cut_between(c, w, surely_cut(c, s), INFINITY, s->n_vocab + 1, s);
}

static void sum_again(float *w, uint32_t chunk, struct sample_scratch *s)
{
    const uint32_t start = chunk * SAMPLE_CHUNK, left = s->n_vocab - start;
    pass(
        &(struct row_pass_args){
            .kind = ROW_KEEP,
            .x = w + start,
            .n_col = left < SAMPLE_CHUNK ? left : SAMPLE_CHUNK,
            .sums = s->chunk_sums + chunk,
        },
        s);
}

/* Of equal weights the lower ids stay. The sums of their chunks are made again. */
static void cut_equal(const struct cut *c, float *w, float edge, struct sample_scratch *s)
{
    const double own = c->measure == SELECT_COUNT ? 1.0 : (double)edge;
    double before = c->before;
    uint32_t stale = UINT32_MAX; /* chunk */
    bool first = true;
    for (uint32_t i = 0; i <= c->n_item; i++) {
        const uint32_t chunk = i < c->n_item ? s->items[i].id / SAMPLE_CHUNK : UINT32_MAX;
        if (stale != UINT32_MAX && chunk != stale) {
            sum_again(w, stale, s);
            stale = UINT32_MAX;
        }
        if (i == c->n_item || s->items[i].value != edge)
            continue;
        if (first || before < c->limit) {
            before += own;
            first = false;
        } else {
            w[s->items[i].id] = 0.0f;
            stale = chunk;
        }
    }
}

double select_cut(float *w, enum select_measure measure, double limit, struct sample_scratch *s)
{
    struct cut c = {.measure = measure, .limit = limit};
    cut_first(&c, w, s);
    const float edge = cut_edge(&c, s);
    pass(
        &(struct row_pass_args){
            .kind = ROW_KEEP,
            .x = w,
            .n_col = s->n_vocab,
            .low = edge,
            .sums = s->chunk_sums,
        },
        s);
    cut_equal(&c, w, edge, s);
    return total_of(s);
}
