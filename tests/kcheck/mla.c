/* SPDX-License-Identifier: Apache-2.0 */
/* mla: against f64 over the latents as the cache has them, and the tokens of a sequence in one
 * chunk against the same tokens in other chunks, bit for bit; mla_store: against a search for the
 * nearest number. Cache slots that no token owns are NaN. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kcheck.h"
#include "kernels/ops/e4m3.h"
#include "kernels/variants.h"

#define SEQ_MAX 3

struct mla_case {
    struct mla_args a;
    struct attention_seq seqs[SEQ_MAX];
    uint32_t n_row;
};

static const struct kern_exec alone = {.nth = 1};

static void choose_case(struct kcheck *k, struct mla_case *c)
{
    static const uint32_t dtypes[] = {DT_F32, DT_BF16, DT_BF16, DT_F8_E4M3};
    const bool real = kc_chance(k, 50); /* DeepSeek's */
    const uint32_t n_value = real ? 512 : kc_range(k, 1, 100);
    c->a = (struct mla_args){
        .kv_dtype = (enum dtype)kc_pick(k, dtypes, 4),
        .n_seq = kc_range(k, 1, SEQ_MAX),
        .n_head = kc_chance(k, 25) ? kc_range(k, 17, 70) : kc_range(k, 1, 10),
        .n_key = real ? 576 : n_value + kc_range(k, 0, 40),
        .n_value = n_value,
        .out_dtype = kc_chance(k, 70) ? DT_F32 : DT_BF16,
    };
    c->a.scale = 1.0f / sqrtf((float)c->a.n_key) * (kc_chance(k, 30) ? 4 : 1);
    const uint32_t length_max = c->a.n_head < 5 && kc_chance(k, 60) ? 550 : 40;
    for (uint32_t i = 0; i < c->a.n_seq; i++) {
        struct attention_seq *s = &c->seqs[i];
        const uint32_t length = kc_range(k, 1, length_max), most = length < 5 ? length : 5;
        s->n_query = kc_chance(k, 60) ? 1 : kc_range(k, 0, most);
        s->start = length - s->n_query;
        s->row = c->n_row;
        c->n_row += s->n_query;
        if (length > c->a.context_max)
            c->a.context_max = length;
    }
    kc_shape(k, "%s n_seq %u rows %u heads %u %u/%u context %u", dtype_name(c->a.kv_dtype),
             c->a.n_seq, c->n_row, c->a.n_head, c->a.n_key, n_value, c->a.context_max);
}

static void fill_cache(struct kcheck *k, struct mla_case *c)
{
    const uint32_t blocks_max = (c->a.context_max + 15) / 16 * SEQ_MAX;
    uint32_t *pool = kc_buf(k, blocks_max * sizeof *pool), n_used = 0;
    void *cache = kc_buf(k, (size_t)blocks_max * 16 * c->a.n_key * 4);
    for (uint32_t n = 0; n < blocks_max; n++) {
        const uint32_t j = kc_range(k, 0, n);
        pool[n] = pool[j];
        pool[j] = n;
    }
    for (uint32_t i = 0; i < c->a.n_seq; i++) {
        const uint32_t length = c->seqs[i].start + c->seqs[i].n_query;
        uint32_t *slot = kc_buf(k, length * sizeof *slot);
        float *x = kc_buf(k, (size_t)length * c->a.n_key * sizeof *x);
        kc_fill(k, x, (size_t)length * c->a.n_key);
        c->seqs[i].blocks = pool + n_used;
        n_used += (length + 15) / 16;
        for (uint32_t t = 0; t < length; t++)
            slot[t] = c->seqs[i].blocks[t / 16] * 16 + t % 16;
        mla_store_ref(
            &(struct mla_store_args){
                .cache = cache,
                .kv_dtype = c->a.kv_dtype,
                .x = x,
                .x_stride = c->a.n_key,
                .slot = slot,
                .n_row = length,
                .n_key = c->a.n_key,
            },
            &alone);
    }
    c->a.cache = cache;
}

static double stored_value(const struct mla_args *a, const struct attention_seq *s, uint32_t t,
                           uint32_t d)
{
    const size_t at = ((size_t)s->blocks[t / 16] * 16 + t % 16) * a->n_key + d;
    if (a->kv_dtype == DT_F8_E4M3)
        return (double)e4m3_to_f32(((const uint8_t *)a->cache)[at]);
    return (double)kc_get(a->cache, a->kv_dtype, at);
}

/* Tensor cores take q and the weights in bf16: a score is off by 2^-9 of its terms (independent
 * roundings: of the root of their squares), a weight by 2^-9 of itself. Over e4m3 they take them in
 * f16: by 2^-12. */
static double bound_of(const struct kcheck *k, const struct mla_args *a, double terms,
                       double squares, double most)
{
    if (strcmp(k->variant->name, "cuda") == 0 && a->kv_dtype != DT_F32)
        return most * (12 * sqrt(squares) * (double)a->scale + 2) *
                   (a->kv_dtype == DT_F8_E4M3 ? 0x1p-12 : 0x1p-9) +
               1e-6;
    return most * (2 * terms * (double)a->scale * (a->n_key + 4) + 3000) * 0x1p-24;
}

static void near_f64(struct kcheck *k, const struct mla_args *a, uint32_t i, uint32_t token,
                     uint32_t head)
{
    static double p[1024];
    const struct attention_seq *s = &a->seqs[i];
    const uint32_t end = s->start + token + 1;
    const float *q = a->q + (s->row + token) * a->q_stride + (size_t)head * a->n_key;
    const size_t to = (s->row + token) * a->out_stride + (size_t)head * a->n_value;
    double max = -INFINITY, sum = 0, terms = 0, squares = 0;
    for (uint32_t t = 0; t < end; t++) {
        double f = 0, size = 0, square = 0;
        for (uint32_t d = 0; d < a->n_key; d++) {
            const double product = (double)q[d] * stored_value(a, s, t, d);
            f += product;
            size += fabs(product);
            square += product * product;
        }
        p[t] = f * (double)a->scale;
        max = fmax(max, p[t]);
        terms = fmax(terms, size);
        squares = fmax(squares, square);
    }
    for (uint32_t t = 0; t < end; t++)
        sum += p[t] = exp(p[t] - max);
    for (uint32_t d = 0; d < a->n_value; d += 3) {
        double want = 0, most = 0;
        for (uint32_t t = 0; t < end; t++) {
            want += p[t] / sum * stored_value(a, s, t, d);
            most = fmax(most, fabs(stored_value(a, s, t, d)));
        }
        kc_near(k, "out", (double)kc_get(a->out, a->out_dtype, to + d), want,
                bound_of(k, a, terms, squares, most) +
                    (a->out_dtype == DT_BF16 ? fabs(want) * 0x1p-8 : 0));
    }
}

static void rechunk(struct kcheck *k, const struct mla_case *c, void *out)
{
    for (uint32_t i = 0; i < c->a.n_seq; i++)
        for (uint32_t done = 0, n; done < c->seqs[i].n_query; done += n) {
            const uint32_t left = c->seqs[i].n_query - done;
            n = kc_chance(k, 50) ? 1 : kc_range(k, 1, left);
            struct attention_seq *s = kc_copy(k, &c->seqs[i], sizeof *s);
            s->row += done;
            s->start += done;
            s->n_query = n;
            struct mla_args a = c->a;
            a.out = out;
            a.seqs = s;
            a.n_seq = 1;
            kc_run(k, k->variant, &a, kc_range(k, 1, 4));
        }
}

void kcheck_mla(struct kcheck *k)
{
    struct mla_case c = {.n_row = 0};
    k->specials = false;
    choose_case(k, &c);
    fill_cache(k, &c);
    k->scratch_bytes = kern_mla_scratch_bytes(c.a.context_max, c.a.n_value);
    c.a.q_stride = (size_t)c.a.n_head * c.a.n_key + kc_range(k, 0, 3) * 2;
    c.a.out_stride = (size_t)c.a.n_head * c.a.n_value + kc_range(k, 0, 3) * 2;
    c.a.n_row = c.n_row;
    const size_t bytes = c.n_row * c.a.out_stride * 4;
    float *q = kc_buf(k, c.n_row * c.a.q_stride * sizeof *q);
    void *got = kc_buf(k, bytes), *again = kc_buf(k, bytes);
    kc_fill(k, q, c.n_row * c.a.q_stride);
    c.a.q = q;
    c.a.seqs = kc_copy(k, c.seqs, sizeof c.seqs);
    c.a.out = got;
    kc_run(k, k->variant, &c.a, kc_range(k, 1, 4));
    for (uint32_t i = 0; i < c.a.n_seq; i++)
        for (uint32_t h = 0; h < c.a.n_head && c.seqs[i].n_query; h += 1 + c.a.n_head / 3)
            near_f64(k, &c.a, i, kc_range(k, 0, c.seqs[i].n_query - 1), h);
    rechunk(k, &c, again);
    const size_t element = dtype_bits(c.a.out_dtype) / 8, width = (size_t)c.a.n_head * c.a.n_value;
    for (uint32_t r = 0; r < c.n_row; r++)
        kc_same_bits(k, "other chunks",
                     (struct kc_bits){(char *)got + r * c.a.out_stride * element,
                                      (char *)again + r * c.a.out_stride * element, c.a.out_dtype,
                                      width});
}

static int by_distance(const void *a, const void *b) /* of two magnitudes, to 0 */
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* The nearest number of e4m3, the even code of two: from all of them, sorted. */
static uint8_t nearest_e4m3(float x)
{
    static float all[127];
    if (all[126] == 0) {
        for (uint32_t i = 0; i < 127; i++)
            all[i] = i < 8 ? ldexpf((float)i, -9) : ldexpf((float)(8 + i % 8), (int)(i / 8) - 10);
        qsort(all, 127, sizeof *all, by_distance);
    }
    uint32_t i = 0;
    while (i < 126 && (fabsf(x) - all[i] > all[i + 1] - fabsf(x) ||
                       (fabsf(x) - all[i] == all[i + 1] - fabsf(x) && i % 2)))
        i++;
    return (uint8_t)(i | (signbit(x) ? 0x80 : 0));
}

void kcheck_mla_store(struct kcheck *k)
{
    static const uint32_t dtypes[] = {DT_F32, DT_BF16, DT_F8_E4M3};
    const uint32_t n_row = kc_range(k, 0, 8), n_key = kc_range(k, 1, 600), n_slot = 32;
    const enum dtype dtype = (enum dtype)kc_pick(k, dtypes, 3);
    const size_t element = dtype_bits(dtype) / 8;
    char *cache = kc_buf(k, (size_t)n_slot * n_key * element);
    const char *before = kc_copy(k, cache, (size_t)n_slot * n_key * element);
    float *x = kc_buf(k, (n_row + 1) * (size_t)(n_key + 3) * sizeof *x);
    uint32_t *slot = kc_buf(k, (n_row + 1) * sizeof *slot);
    k->specials = false;
    k->scale = kc_chance(k, 50) ? 600 : 1.0f / 64; /* beyond e4m3's largest; its subnormals */
    kc_fill(k, x, n_row * (size_t)(n_key + 3));
    for (uint32_t i = 0; i < n_row; i++)
        slot[i] = kc_chance(k, 20) ? KERN_NO_SLOT : i * 4 + kc_range(k, 0, 3);
    kc_shape(k, "%s %u rows of %u", dtype_name(dtype), n_row, n_key);
    kc_run(k, k->variant, &(struct mla_store_args){cache, dtype, x, n_key + 3, slot, n_row, n_key},
           kc_range(k, 1, 4));
    for (uint32_t s = 0; s < n_slot; s++) {
        const float *from = NULL;
        for (uint32_t i = 0; i < n_row; i++)
            from = slot[i] == s ? x + i * (size_t)(n_key + 3) : from;
        for (uint32_t d = 0; d < n_key; d++) {
            const size_t at = (size_t)s * n_key + d;
            const uint8_t byte = from ? nearest_e4m3(from[d]) : 0;
            const uint16_t half = from ? f32_to_bf16(from[d]) : 0;
            const void *want = before + at * element;
            if (from)
                want = dtype == DT_F32    ? (const void *)(from + d)
                       : dtype == DT_BF16 ? (const void *)&half
                                          : &byte;
            if (memcmp(cache + at * element, want, element) != 0)
                kc_fail(k, "slot %u column %u: not the nearest of %g", s, d,
                        from ? (double)from[d] : 0);
            k->n_compared++;
        }
    }
}

void kbench_mla(struct kc_bench *b)
{
    enum { HEADS = 16, CONTEXT = 1024 };
    struct kcheck *k = b->k;
    uint32_t *blocks = kc_buf(k, CONTEXT / 16 * sizeof *blocks);
    void *cache = kc_buf(k, CONTEXT * 576 * 2);
    float *q = kc_buf(k, HEADS * 576 * 4), *out = kc_buf(k, HEADS * 512 * 4);
    kc_fill_dtype(k, cache, DT_BF16, CONTEXT * 576);
    kc_fill(k, q, HEADS * 576);
    for (uint32_t i = 0; i < CONTEXT / 16; i++)
        blocks[i] = i;
    const struct attention_seq seq = {blocks, 0, 1, CONTEXT - 1};
    struct mla_args a = {
        .out = out,
        .q = q,
        .out_stride = HEADS * 512,
        .q_stride = HEADS * 576,
        .cache = cache,
        .kv_dtype = DT_BF16,
        .seqs = &seq,
        .n_seq = 1,
        .n_head = HEADS,
        .n_key = 576,
        .n_value = 512,
        .context_max = CONTEXT,
        .scale = 0.07f,
        .n_row = 1,
    };
    b->i_peak = PEAK_F32_8;
    kc_print_flop(b, "decode bf16 1 x 1024, 16 x 576/512", kc_time(b, &a),
                  2.0 * HEADS * CONTEXT * (576 + 512));
}

void kbench_mla_store(struct kc_bench *b)
{
    enum { ROWS = 256 };
    struct kcheck *k = b->k;
    uint32_t *slot = kc_buf(k, ROWS * sizeof *slot);
    float *x = kc_buf(k, ROWS * 576 * 4);
    kc_fill(k, x, ROWS * 576);
    for (uint32_t i = 0; i < ROWS; i++)
        slot[i] = i;
    struct mla_store_args a = {kc_buf(k, ROWS * 576 * 2), DT_BF16, x, 576, slot, ROWS, 576};
    kc_print_bytes(b, "256 x 576 bf16", kc_time(b, &a), ROWS * 576 * 6.0);
}
