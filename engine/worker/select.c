/* SPDX-License-Identifier: Apache-2.0 */
/* Radix selection. Weights are floats >= 0, whose bit patterns order as unsigned integers. A pass
 * puts the measure of every item into the bucket of its top 11 bits; walking the buckets from the
 * top finds the one in which the limit is crossed; the next 11 and the last 10 bits are resolved
 * among that bucket's items alone:
 *
 *     bits of w   |31 ... 21|20 ... 10|9 ... 0|      three passes, of which only the first touches
 * many buckets
 *
 * A sort of 150k values takes ten times as long, and a quickselect has inputs on which it is
 * quadratic. Passes over the row are written in vectors of four: a compiler may not turn them
 * into vectors by itself, since a comparison with a NaN could trap. */
#include "engine/worker/select.h"
#include <math.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define LANES   16u      /* independent partial results of one pass; combined in ascending order */
#define EXP_MIN (-87.0f) /* exp below this is no normal float */

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

bool select_max(const float *x, uint32_t n, float *max)
{
    bool bad = false;
    *max = max_of(x, n, &bad);
    return !bad && *max != -INFINITY;
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

static bool worse(struct sample_item a, struct sample_item b)
{
    return a.value < b.value || (a.value == b.value && a.id > b.id);
}

/* The heap's root is the worst item kept. */
static void sift_down(struct sample_item *h, uint32_t n, uint32_t i)
{
    struct sample_item moving = h[i];
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

uint32_t select_top(const float *x, uint32_t n, uint32_t k, struct sample_item *items)
{
    uint32_t n_kept = 0, i = 0;
    for (; i < n && n_kept < k; i++)
        if (x[i] == x[i])
            items[n_kept++] = (struct sample_item){x[i], i};
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
            items[0] = (struct sample_item){x[i], i};
            sift_down(items, n_kept, 0);
        }
    }
    for (uint32_t left = n_kept; left > 1;
         left--) { /* take the worst to the end, again and again */
        struct sample_item worst = items[0];
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
    float y = x < EXP_MIN ? EXP_MIN : x;
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
    return x < EXP_MIN ? 0.0f : e;
}

/* exp_inline of each: operation for operation the same, so the same bits. */
static inline four exp_four(four x)
{
    const four_bits low = x < EXP_MIN;
    const four least = {EXP_MIN, EXP_MIN, EXP_MIN, EXP_MIN};
    const four y = (four)((low & (four_bits)least) | (~low & (four_bits)x));
    const four round = y * 1.44269504f + 12582912.0f;
    const four n = round - 12582912.0f;
    const four scale = (four)(((four_whole)round - 0x4B400000u + 127u) << 23);
    const four r = y - n * 0.693359375f + n * 2.12194440e-4f;
    four p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    return (four)(~low & (four_bits)((p * r * r + r + 1.0f) * scale));
}

float select_exp(float x)
{
    return exp_inline(x);
}

void select_weights(float *x, uint32_t n, float max, float temperature, float w_min)
{
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const four w = exp_four((load_four(x + i) - max) / temperature);
        const four kept = (four)((four_bits)w & ~(w < w_min));
        memcpy(x + i, &kept, sizeof kept);
    }
    for (; i < n; i++) {
        float w = exp_inline((x[i] - max) / temperature);
        x[i] = w < w_min ? 0.0f : w;
    }
}

typedef float two_f32 __attribute__((vector_size(8)));
typedef double two_f64 __attribute__((vector_size(16)));

/* x[0] and x[1]; gcc 12 converts a vector one by one if it is not told the instruction. */
static inline two_f64 load_two(const float *x)
{
#ifdef __SSE2__
    return (two_f64)_mm_cvtps_pd(
        _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)x)));
#else
    two_f32 v;
    memcpy(&v, x, sizeof v);
    return __builtin_convertvector(v, two_f64);
#endif
}

static double sum_chunk(const float *w, uint32_t n)
{
    two_f64 lane[LANES / 2] = {{0}};
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES / 2; j++)
            lane[j] += load_two(w + i + 2 * j);
    double sum = 0;
    for (; i < n; i++)
        sum += (double)w[i];
    for (uint32_t j = 0; j < LANES; j++)
        sum += lane[j / 2][j % 2];
    return sum;
}

double select_sum(const float *w, struct sample_scratch *s)
{
    double total = 0;
    for (uint32_t start = 0, c = 0; start < s->n_vocab; start += SAMPLE_CHUNK, c++) {
        uint32_t n = s->n_vocab - start < SAMPLE_CHUNK ? s->n_vocab - start : SAMPLE_CHUNK;
        s->chunk_sums[c] = sum_chunk(w + start, n);
        total += s->chunk_sums[c];
    }
    return total;
}

static inline uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* The items of w above `least`, in order of id. */
static uint32_t gather(const float *w, uint32_t n, float least, struct sample_item *items)
{
    uint32_t n_item = 0, i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        if (!any_above(w + i, 2 * LANES, least))
            continue;
        for (uint32_t j = i; j < i + 2 * LANES; j += 4) {
            if (!any_above(w + j, 4, least))
                continue;
            for (uint32_t l = j; l < j + 4; l++) {
                items[n_item] = (struct sample_item){w[l], l};
                n_item += (uint32_t)(w[l] > least);
            }
        }
    }
    for (; i < n; i++)
        if (w[i] > least)
            items[n_item++] = (struct sample_item){w[i], i};
    return n_item;
}

struct cut {         /* a radix selection under way */
    uint32_t n_item; /* of s->items, which it selects from */
    enum select_measure measure;
    double limit;
    double before; /* measure of what lies above the bucket */
    uint32_t key;  /* bits of the edge found so far */
    bool reached;  /* the limit, by the items there are */
};

/* Measure the items into buckets by `width` of their bits from `shift` on, and find the bucket in
 * which the limit is reached (the lowest one that has items when none does). Adds its number to the
 * key. */
static void cut_bucket(struct cut *c, uint32_t shift, uint32_t width, struct sample_scratch *s)
{
    const uint32_t mask = (1u << width) - 1;
    memset(s->masses, 0, SAMPLE_BUCKETS * sizeof *s->masses);
    memset(s->bucket_counts, 0, SAMPLE_BUCKETS * sizeof *s->bucket_counts);
    for (uint32_t i = 0; i < c->n_item; i++) {
        const uint32_t b = float_bits(s->items[i].value) >> shift & mask;
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
        const struct sample_item item = s->items[i];
        s->items[n] = item;
        n += float_bits(item.value) >> shift == c->key >> shift;
    }
    c->n_item = n;
}

/* Weights that are cut whatever the others are. Those of at most (total - limit) / 2n have together
 * no more than half of what is cut by mass, so the edge lies above them; the other half is far more
 * than rounding takes. */
static float surely_cut(const float *w, enum select_measure measure, double limit,
                        struct sample_scratch *s)
{
    const double total = measure == SELECT_MASS ? select_sum(w, s) : 0;
    const double least = (total - limit) / (2.0 * s->n_vocab);
    return measure == SELECT_MASS && least > 0 ? (float)least : 0.0f;
}

/* The first pass: of the weights above bounds that lie between two of its buckets, so that the
 * buckets above are whole, then of all. Mostly a few large ones reach the limit. */
static void cut_first(struct cut *c, const float *w, uint32_t shift, uint32_t width,
                      struct sample_scratch *s)
{
    static const float bounds[] = {0x1p-4f, 0x1p-8f, 0x1p-12f};
    for (uint32_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
        const uint32_t below = float_bits(bounds[i]) - 1;
        float least;
        memcpy(&least, &below, sizeof least);
        c->n_item = gather(w, s->n_vocab, least, s->items);
        cut_bucket(c, shift, width, s);
        if (c->reached)
            return;
        c->before = 0;
        c->key = 0;
    }
    c->n_item = gather(w, s->n_vocab, surely_cut(w, c->measure, c->limit, s), s->items);
    cut_bucket(c, shift, width, s);
}

/* Zeroes what is below the edge. */
static void cut_below(float *w, uint32_t n, float edge)
{
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = i; j < i + LANES; j += 4) {
            const four v = load_four(w + j);
            const four kept = (four)((four_bits)v & (v >= edge));
            memcpy(w + j, &kept, sizeof kept);
        }
    for (; i < n; i++)
        w[i] = w[i] < edge ? 0.0f : w[i];
}

void select_cut(float *w, enum select_measure measure, double limit, struct sample_scratch *s)
{
    static const struct {
        uint32_t shift, width;
    } levels[] = {{21, 11}, {10, 11}, {0, 10}};
    struct cut c = {.measure = measure, .limit = limit};
    cut_first(&c, w, levels[0].shift, levels[0].width, s);
    for (uint32_t i = 1; i < 3; i++) {
        keep_bucket(&c, levels[i - 1].shift, s);
        cut_bucket(&c, levels[i].shift, levels[i].width, s);
    }
    float edge;
    memcpy(&edge, &c.key, sizeof edge);
    double own = measure == SELECT_COUNT ? 1.0 : (double)edge;
    bool first = true;
    cut_below(w, s->n_vocab, edge);
    for (uint32_t i = 0; i < c.n_item; i++) {
        if (s->items[i].value != edge)
            continue;
        if (first || c.before < limit) { /* equal weights: the lower ids stay */
            c.before += own;
            first = false;
        } else {
            w[s->items[i].id] = 0.0f;
        }
    }
}
