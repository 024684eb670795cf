/* SPDX-License-Identifier: Apache-2.0 */
/* kv_store: the whole cache against the layout defined in ops.h; positions that no slot names must
 * not change. */
#include "kcheck.h"
#include <math.h>

struct shape {
    enum dtype t;
    uint32_t n_block, n_head, head_dim, even_dim; /* even_dim: head_dim rounded up for bf16 pairs */
};

static float rounded(float f, enum dtype t)
{
    return t == DT_F32 ? f : bf16_to_f32(f32_to_bf16(f));
}

static size_t k_place(const struct shape *s, uint32_t slot, uint32_t head, uint32_t d)
{
    size_t start = ((size_t)(slot / 16) * s->n_head + head) * 16 * s->even_dim;
    return start + (s->t == DT_F32 ? d * 16 + slot % 16 : (d / 2) * 32 + slot % 16 * 2 + d % 2);
}

static size_t v_place(const struct shape *s, uint32_t slot, uint32_t head, uint32_t d)
{
    size_t start = ((size_t)(slot / 16) * s->n_head + head) * 16 * s->even_dim;
    return start + slot % 16 * s->head_dim + d;
}

static void expect(const struct shape *s, const struct kv_store_args *a, float *want_k,
                   float *want_v)
{
    for (uint32_t i = 0; i < a->n_row; i++)
        for (uint32_t h = 0; h < s->n_head && a->slot[i] != KERN_NO_SLOT; h++) {
            for (uint32_t d = 0; d < s->head_dim; d++) {
                want_k[k_place(s, a->slot[i], h, d)] =
                    rounded(a->k[i * a->k_stride + h * s->head_dim + d], s->t);
                want_v[v_place(s, a->slot[i], h, d)] =
                    rounded(a->v[i * a->v_stride + h * s->head_dim + d], s->t);
            }
            if (s->even_dim != s->head_dim) /* ref/kv_store.c: the odd half is zeroed */
                want_k[k_place(s, a->slot[i], h, s->head_dim)] = 0;
        }
}

/* One vector as int8: bytes `step` apart, and its scale. */
static void expect_int8(int8_t *to, size_t step, float *scale, const float *x, uint32_t n)
{
    float most = 0;
    bool finite = true;
    for (uint32_t d = 0; d < n; d++) {
        finite &= isfinite(x[d]) != 0;
        most = fmaxf(most, fabsf(x[d]));
    }
    *scale = finite ? most / 127 : NAN;
    if (finite && most < 0x1p-100f)
        *scale = 0;
    for (uint32_t d = 0; d < n; d++)
        to[d * step] = *scale > 0 ? (int8_t)rintf(x[d] * (127 / most)) : 0;
}

/* kv_store into int8 caches that are filled with 0xff, byte for byte. */
static void check_int8(struct kcheck *k, const struct shape *s, const struct kv_store_args *a)
{
    size_t head = 16 * (size_t)s->head_dim + 16 * sizeof(float);
    size_t bytes = head * s->n_head * s->n_block;
    if (kern_kv_block_bytes(DT_I8, s->n_head, s->head_dim) * s->n_block != bytes)
        kc_fail(k, "kern_kv_block_bytes is not %zu", bytes / s->n_block);
    struct kv_store_args got = *a;
    char *want[2] = {kc_buf(k, bytes), kc_buf(k, bytes)};
    got.k_cache = kc_copy(k, want[0], bytes);
    got.v_cache = kc_copy(k, want[1], bytes);
    for (uint32_t i = 0; i < a->n_row; i++)
        for (uint32_t h = 0; h < s->n_head && a->slot[i] != KERN_NO_SLOT; h++) {
            char *key = want[0] + (a->slot[i] / 16 * s->n_head + h) * head;
            char *value = want[1] + (a->slot[i] / 16 * s->n_head + h) * head;
            uint32_t at = a->slot[i] % 16;
            expect_int8((int8_t *)key + at, 16, (float *)(void *)(key + 16 * s->head_dim) + at,
                        a->k + i * a->k_stride + (size_t)h * s->head_dim, s->head_dim);
            expect_int8((int8_t *)value + at * s->head_dim, 1,
                        (float *)(void *)(value + 16 * s->head_dim) + at,
                        a->v + i * a->v_stride + (size_t)h * s->head_dim, s->head_dim);
        }
    kc_run(k, k->variant, &got, kc_range(k, 1, 5));
    kc_same_bits(k, "int8 k", (struct kc_bits){got.k_cache, want[0], DT_I8, bytes});
    kc_same_bits(k, "int8 v", (struct kc_bits){got.v_cache, want[1], DT_I8, bytes});
}

static void compare_cache(struct kcheck *k, const char *what, const void *cache, enum dtype t,
                          const float *want, size_t n)
{
    float *got = kc_buf(k, n * sizeof *got);
    for (size_t i = 0; i < n; i++)
        got[i] = kc_get(cache, t, i);
    kc_compare(k, what, &(struct kc_array){got, DT_F32, 1, n, n},
               &(struct kc_array){want, DT_F32, 1, n, n});
}

void kcheck_kv_store(struct kcheck *k)
{
    static const uint32_t dtypes[] = {DT_F32, DT_BF16, DT_I8};
    struct shape s = {
        .t = (enum dtype)kc_pick(k, dtypes, 3),
        .n_block = kc_range(k, 1, 6),
        .n_head = kc_range(k, 1, 4),
        .head_dim = kc_range(k, 1, 140),
    };
    s.even_dim = s.t == DT_BF16 ? (s.head_dim + 1) / 2 * 2 : s.head_dim;
    uint32_t n_slot = s.n_block * 16, n_row = kc_range(k, 0, n_slot);
    size_t width = (size_t)s.n_head * s.head_dim, n = (size_t)n_slot * s.n_head * s.even_dim;
    size_t bytes = n * (dtype_bits(s.t) / 8);
    kc_shape(k, "%s n_row %u n_kv_head %u head_dim %u", dtype_name(s.t), n_row, s.n_head,
             s.head_dim);
    if (s.t != DT_I8 && kern_kv_block_bytes(s.t, s.n_head, s.head_dim) * s.n_block != bytes)
        kc_fail(k, "kern_kv_block_bytes is not %zu", bytes / s.n_block);
    struct kv_store_args a = {
        .kv_dtype = s.t,
        .k_stride = width + kc_range(k, 0, 5),
        .v_stride = width + kc_range(k, 0, 5),
        .n_row = n_row,
        .n_kv_head = s.n_head,
        .head_dim = s.head_dim,
    };
    float *key = kc_buf(k, n_row * a.k_stride * 4 + 4),
          *value = kc_buf(k, n_row * a.v_stride * 4 + 4);
    kc_fill(k, key, n_row * a.k_stride);
    kc_fill(k, value, n_row * a.v_stride);
    if (n_row && kc_chance(k, 30)) /* a token of zeros, or of next to nothing */
        for (size_t d = 0; d < width; d++)
            key[d] *= kc_chance(k, 50) ? 0.0f : 0x1p-110f;
    uint32_t *slot = kc_buf(k, n_slot * sizeof *slot);
    bool in_order =
        kc_chance(k, 50); /* a prompt fills a block slot by slot; a decode batch jumps about */
    for (uint32_t i = 0; i < n_slot; i++) {
        uint32_t j = in_order ? i : kc_range(k, 0, i);
        slot[i] = slot[j];
        slot[j] = i;
    }
    for (uint32_t i = 0; i < n_row && in_order; i++)
        if (kc_chance(k, 10)) /* a row that is in a shared block already */
            slot[i] = KERN_NO_SLOT;
    a.k = key;
    a.v = value;
    a.slot = slot;
    if (s.t == DT_I8) {
        check_int8(k, &s, &a);
        return;
    }
    a.k_cache = kc_buf(k, bytes);
    a.v_cache = kc_buf(k, bytes);
    float *want_k = kc_buf(k, n * sizeof *want_k), *want_v = kc_buf(k, n * sizeof *want_v);
    for (size_t i = 0; i < n; i++) { /* before the call */
        want_k[i] = kc_get(a.k_cache, s.t, i);
        want_v[i] = kc_get(a.v_cache, s.t, i);
    }
    expect(&s, &a, want_k, want_v);
    kc_run(k, k->variant, &a, kc_range(k, 1, 5));
    compare_cache(k, "k", a.k_cache, s.t, want_k, n);
    compare_cache(k, "v", a.v_cache, s.t, want_v, n);
}

void kbench_kv_store(struct kc_bench *b)
{
    static uint32_t slot[512];
    const uint32_t n_row = 512, n_head = 2, head_dim = 64;
    for (uint32_t i = 0; i < n_row; i++)
        slot[i] = i;
    struct kv_store_args a = {
        .kv_dtype = DT_BF16,
        .k_stride = n_head * head_dim,
        .v_stride = n_head * head_dim,
        .slot = slot,
        .n_row = n_row,
        .n_kv_head = n_head,
        .head_dim = head_dim,
    };
    size_t n = (size_t)n_row * n_head * head_dim;
    a.k = kc_buf(b->k, n * 4);
    a.v = kc_buf(b->k, n * 4);
    a.k_cache = kc_buf(b->k, n * 2);
    a.v_cache = kc_buf(b->k, n * 2);
    kc_print_bytes(b, "bf16 512 x 2 x 64", kc_time(b, &a), (double)n * 12);
}
