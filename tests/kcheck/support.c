/* SPDX-License-Identifier: Apache-2.0 */
#include "kcheck.h"
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include "common/mem.h"
#include "error_map.h"
#include "kernels/tiling/share.h"

/* With the address sanitizer the guards may not even be read. */
#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#define FORBID(p, n) __asan_poison_memory_region(p, n)
#define ALLOW(p, n)  __asan_unpoison_memory_region(p, n)
#else
#define FORBID(p, n) ((void)(p), (void)(n))
#define ALLOW(p, n)  ((void)(p), (void)(n))
#endif

#define GUARD_BYTES 256  /* before and after; four vectors of the widest kind */
#define FILL        0xff /* NaN in every float type: visible when a kernel computes with it */
#define PRINTED_MAX 20   /* failures printed in full */
#define WRONG_MAX   3    /* of them, wrong elements of one array; the others are on its map */
#define MAP_BYTES   4096

uint64_t kc_rnd(struct kcheck *k)
{
    uint64_t z = k->rng += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t kc_range(struct kcheck *k, uint32_t low, uint32_t high)
{
    return low + (uint32_t)((kc_rnd(k) >> 32) * ((uint64_t)high - low + 1) >> 32);
}

bool kc_chance(struct kcheck *k, uint32_t percent)
{
    return kc_range(k, 0, 99) < percent;
}

uint32_t kc_pick(struct kcheck *k, const uint32_t *choices, uint32_t n)
{
    return choices[kc_range(k, 0, n - 1)];
}

float kc_f32(struct kcheck *k)
{
    static const float special[] = {NAN,   INFINITY, -INFINITY, 0.0f,    -0.0f, 1e-40f, -3e-42f,
                                    1e38f, -3e38f,   1e-37f,    FLT_MIN, 88.0f, -88.0f, -104.0f};
    if (k->specials && kc_chance(k, 2))
        return special[kc_range(k, 0, sizeof special / sizeof *special - 1)];
    return (float)(int32_t)(kc_rnd(k) >> 32) * 0x1p-31f * k->scale;
}

void kc_fill(struct kcheck *k, float *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        p[i] = kc_f32(k);
}

void kc_fill_dtype(struct kcheck *k, void *p, enum dtype dtype, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float f = kc_f32(k);
        uint16_t h = dtype == DT_F16 ? f32_to_f16(f) : f32_to_bf16(f);
        if (dtype == DT_F32)
            memcpy((char *)p + 4 * i, &f, 4);
        else
            memcpy((char *)p + 2 * i, &h, 2);
    }
}

float kc_get(const void *p, enum dtype dtype, size_t i)
{
    float f;
    uint16_t h;
    if (dtype == DT_F32) {
        memcpy(&f, (const char *)p + 4 * i, 4);
        return f;
    }
    memcpy(&h, (const char *)p + 2 * i, 2);
    return dtype == DT_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

void *kc_buf(struct kcheck *k, size_t bytes)
{
    Q_ASSERT(k->n_buf < KC_BUFS_MAX);
    unsigned char *base = q_alloc(bytes + 2 * GUARD_BYTES + 64);
    Q_ASSERT(base);
    memset(base, FILL, bytes + 2 * GUARD_BYTES + 64);
    k->bufs[k->n_buf++] = (struct kc_buf){base, bytes};
    unsigned char *p = (unsigned char *)(((uintptr_t)base + GUARD_BYTES + 63) & ~(uintptr_t)63);
    FORBID(base, (size_t)(p - base));
    FORBID(p + bytes, 2 * GUARD_BYTES + 64 - (size_t)(p - base));
    return p;
}

void *kc_copy(struct kcheck *k, const void *p, size_t bytes)
{
    void *copy = kc_buf(k, bytes);
    memcpy(copy, p, bytes);
    return copy;
}

static bool guards_whole(const struct kc_buf *b)
{
    const unsigned char *p =
        (const unsigned char *)(((uintptr_t)b->base + GUARD_BYTES + 63) & ~(uintptr_t)63);
    const unsigned char *end = b->base + b->bytes + 2 * GUARD_BYTES + 64;
    bool whole = true;
    ALLOW(b->base, (size_t)(end - b->base));
    for (const unsigned char *q = b->base; q < end; q++)
        whole &= (q >= p && q < p + b->bytes) || *q == FILL;
    return whole;
}

void kc_drop(struct kcheck *k, uint32_t n)
{
    for (; n; n--) {
        const struct kc_buf *b = &k->bufs[--k->n_buf];
        if (!guards_whole(b))
            kc_fail(k, "buffer %u of %zu bytes: written outside", k->n_buf, b->bytes);
        q_free(b->base);
    }
}

void kc_end_case(struct kcheck *k)
{
    kc_drop(k, k->n_buf);
}

void kc_shape(struct kcheck *k, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(k->shape, sizeof k->shape, fmt, ap);
    va_end(ap);
}

void kc_fail(struct kcheck *k, const char *fmt, ...)
{
    va_list ap;
    if (k->n_failed++ >= PRINTED_MAX)
        return;
    printf("FAIL %s/%s %s: ", k->variant->op, k->variant->name, k->shape);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
}

/* What the threads of a call know of one another's panels: nothing, or that all have begun, so that
 * the first one takes the panels of those that it looks at. */
static struct kern_share *shares_of(struct kcheck *k, uint32_t nth, uint64_t product)
{
    if (!kc_chance(k, 30))
        return NULL;
    struct kern_share *shares = kc_buf(k, nth * sizeof *shares);
    for (uint32_t i = 0; i < nth; i++)
        shares[i].word = share_word(product, 0, 0);
    return shares;
}

void kc_run(struct kcheck *k, const struct kc_variant *v, const void *args, uint32_t nth)
{
    const uint32_t first = kc_range(k, 0, nth - 1), n_buf = k->n_buf;
    const uint64_t product = kc_rnd(k) >> 24;
    struct kern_share *shares = shares_of(k, nth, product);
    for (uint32_t i = 0; i < nth; i++) {
        struct kern_exec x = {
            .ith =
                (first + i) % nth, /* any order, so that one thread's work cannot feed another's */
            .nth = nth,
            .scratch = kc_buf(k, k->scratch_bytes),
            .scratch_bytes = k->scratch_bytes,
            .shares = shares,
            .product = product,
        };
        v->call(args, &x);
        kc_drop(k, 1);
    }
    kc_drop(k, shares != NULL);
    Q_ASSERT(k->n_buf == n_buf);
}

static bool equal_enough(float got, float want, double bound)
{
    if (isnan(got) || isnan(want))
        return isnan(got) && isnan(want);
    if (isinf(got) || isinf(want))
        return got == want;
    return fabs((double)got - want) <= bound;
}

static float row_scale(const struct kc_array *a, size_t row)
{
    float scale = 0;
    for (size_t c = 0; c < a->n_col; c++) {
        float f = fabsf(kc_get(a->p, a->dtype, row * a->stride + c));
        if (isfinite(f) && f > scale)
            scale = f;
    }
    return scale;
}

static void print_map(const struct error_map *m, const char *what, const struct kc_array *got)
{
    char text[MAP_BYTES];
    error_map_print(m, got->n_row, got->stride, text, sizeof text);
    printf("  %s [%zu,%zu]: %u elements are wrong; a mark is a block of %u rows x %u columns\n%s",
           what, got->n_row, got->n_col, m->n_wrong, ERROR_MAP_ROWS, ERROR_MAP_COLS, text);
}

void kc_compare(struct kcheck *k, const char *what, const struct kc_array *got,
                const struct kc_array *want)
{
    const bool shown = k->n_failed < PRINTED_MAX;
    struct error_map map = {0};
    for (size_t i = 0; i < got->n_row; i++) {
        double scale = k->variant->tolerance ? fmax(row_scale(want, i), k->magnitude) : 0;
        for (size_t c = 0; c < got->stride; c++) {
            if (c >= got->n_col && i + 1 == got->n_row)
                break; /* the last row may end at n_col */
            size_t at = i * got->stride + c;
            float g = kc_get(got->p, got->dtype, at), w = kc_get(want->p, want->dtype, at);
            double bound =
                c < got->n_col ? k->variant->tolerance * 0x1p-24 * (fabsf(w) + scale) : 0;
            if (bound > 0 && got->dtype == DT_BF16)
                bound += fabsf(w) * 0x1p-7; /* a last-bit difference can round to the neighbour */
            if (bound > 0 && got->dtype == DT_F16)
                bound += fabsf(w) * 0x1p-10 + 0x1p-24;
            k->n_compared++;
            if (equal_enough(g, w, bound))
                continue;
            error_map_add(&map, i, c);
            if (map.n_wrong <= WRONG_MAX)
                kc_fail(k, "%s[%zu,%zu] is %.9g (%a), wanted %.9g (%a) +- %.3g", what, i, c, g, g,
                        w, w, bound);
            else
                k->n_failed++;
        }
    }
    if (map.n_wrong > 1 && shown)
        print_map(&map, what, got);
}

static bool both_nan(const struct kc_bits *b, size_t i)
{
    if (b->dtype != DT_F32 && b->dtype != DT_BF16 && b->dtype != DT_F16)
        return false;
    return isnan(kc_get(b->a, b->dtype, i)) && isnan(kc_get(b->b, b->dtype, i));
}

void kc_same_bits(struct kcheck *k, const char *what, struct kc_bits bits)
{
    size_t size = dtype_bits(bits.dtype) / 8;
    k->n_compared++;
    for (size_t i = 0; i < bits.n; i++)
        if (memcmp((const char *)bits.a + i * size, (const char *)bits.b + i * size, size) != 0 &&
            !both_nan(&bits, i)) {
            kc_fail(k, "%s: bits differ at element %zu", what, i);
            return;
        }
}

void kc_same_as_sibling(struct kcheck *k, const void *args, struct kc_bits bits)
{
    if (!k->sibling)
        return;
    kc_run(k, k->sibling, args, kc_range(k, 1, 4));
    kc_same_bits(k, k->sibling->name, bits);
}

void kc_near(struct kcheck *k, const char *what, double got, double want, double bound)
{
    k->n_compared++;
    if (!isfinite(got) && !isfinite(want))
        return;
    if (!(fabs(got - want) <= bound))
        kc_fail(k, "%s is %.9g, computed in f64 %.9g +- %.3g", what, got, want, bound);
}
