/* SPDX-License-Identifier: Apache-2.0 */
/* attention: against the reference, the reference against f64 over the plain keys and values,
 * and the tokens of each sequence in one chunk against the same tokens in other chunks, bit for
 * bit. Cache lanes that no token owns are NaN. attention_join: contexts split over any number of
 * threads against the same ones whole, bit for bit. */
#include "kcheck.h"
#include <math.h>
#include "kernels/tiling/attention_split.h"
#include "kernels/variants.h"

#define SEQ_MAX  4
#define DEEP_MAX 2300u /* positions: several splits */

struct attention_case {
    struct attention_args a;
    struct attention_seq seqs[SEQ_MAX];
    float *k[SEQ_MAX], *v[SEQ_MAX]; /* [tokens][n_kv_head][head_dim] as given to kv_store */
    uint32_t n_row;
    bool deep; /* few rows of contexts of several splits */
    bool wide; /* deep, of many KV heads with a row each */
};

static const uint32_t kv_dtypes[] = {DT_F32, DT_BF16, DT_I8};
static const uint32_t head_dims[] = {1, 7, 16, 32, 40, 64, 64, 80, 96, 128, 128, 160, 256};

/* As ALiBi has them: 1 to 2^-8; some heads have none. */
static float *slopes_of(struct kcheck *k, uint32_t n_head)
{
    float *slopes = kc_buf(k, n_head * sizeof *slopes);
    for (uint32_t h = 0; h < n_head; h++)
        slopes[h] = kc_chance(k, 10) ? 0 : exp2f(-(float)kc_range(k, 0, 80) / 10);
    return slopes;
}

static void choose_case(struct kcheck *k, struct attention_case *c)
{
    uint32_t n_kv_head = kc_range(k, 1, 3),
             group = kc_chance(k, 15) ? kc_range(k, 8, 30) : kc_range(k, 1, 7);
    uint32_t dim = kc_chance(k, 20) ? kc_range(k, 1, 200) : kc_pick(k, head_dims, 13);
    if (kc_chance(k, 10)) { /* heads side by side: a row each in decode */
        n_kv_head = kc_range(k, 2, 14);
        group = 1;
    }
    if (c->deep) {
        n_kv_head = kc_range(k, 1, 2);
        group = kc_range(k, 1, 4);
        dim = kc_chance(k, 20) ? kc_range(k, 1, 40) : kc_pick(k, head_dims, 6);
    }
    if (c->wide) {
        n_kv_head = kc_range(k, 8, 24);
        group = 1;
        dim = kc_pick(k, head_dims, 4);
    }
    c->a = (struct attention_args){
        .kv_dtype = (enum dtype)kc_pick(k, kv_dtypes, 3),
        .n_seq = kc_range(k, 0, c->deep ? 2 : SEQ_MAX),
        .n_head = n_kv_head * group,
        .n_kv_head = n_kv_head,
        .head_dim = dim,
        .scale = 1.0f / sqrtf((float)dim) * (kc_chance(k, 20) ? 8 : 1),
        .soft_cap = kc_chance(k, 25) ? 1.0f + 20 * fabsf((float)kc_range(k, 0, 100) / 100) : 0,
        .window = kc_chance(k, 30) ? kc_range(k, 1, 60) : 0,
        .both_ways = kc_chance(k, 15),
        .seqs = c->seqs,
    };
    if (kc_chance(k, 20))
        c->a.slopes = slopes_of(k, c->a.n_head);
    if (c->deep && c->a.window)
        c->a.window = kc_range(k, 1, DEEP_MAX);
    uint32_t length_max = c->deep ? DEEP_MAX : kc_chance(k, 20) ? 300 : 70;
    uint32_t rows_max = c->deep ? 3 : 40;
    for (uint32_t i = 0; i < c->a.n_seq; i++) {
        struct attention_seq *s = &c->seqs[i];
        uint32_t length = kc_range(k, 1, length_max);
        if (c->deep && kc_chance(k, 30)) /* rows on both sides of a split's end */
            length = ATTENTION_SPLIT * kc_range(k, 1, 4) + kc_range(k, 0, 2);
        if (c->wide)
            length = DEEP_MAX - kc_range(k, 0, 200);
        uint32_t most = length < rows_max ? length : rows_max;
        s->n_query = kc_chance(k, 40) ? 1 : kc_range(k, 0, most); /* decode, a chunk, or nothing */
        if (c->wide)
            s->n_query = 1;
        s->start = length - s->n_query;
        s->row = c->n_row;
        c->n_row += s->n_query;
        if (length > c->a.context_max)
            c->a.context_max = length;
    }
    kc_shape(k, "%s n_seq %u rows %u heads %u/%u dim %u context %u window %u%s%s cap %g",
             dtype_name(c->a.kv_dtype), c->a.n_seq, c->n_row, c->a.n_head, n_kv_head, dim,
             c->a.context_max, c->a.window, c->a.both_ways ? " both ways" : "",
             c->a.slopes ? " slopes" : "", (double)c->a.soft_cap);
}

/* Block tables from a shuffled pool, then the tokens of each sequence by kv_store. */
static void fill_cache(struct kcheck *k, struct attention_case *c)
{
    uint32_t n_block = 0, blocks_max = (c->a.context_max + 15) / 16 * SEQ_MAX, n_used = 0;
    uint32_t *pool = kc_buf(k, (blocks_max + 1) * sizeof *pool);
    for (; n_block < blocks_max; n_block++) {
        uint32_t j = kc_range(k, 0, n_block);
        pool[n_block] = pool[j];
        pool[j] = n_block;
    }
    size_t bytes = kern_kv_block_bytes(c->a.kv_dtype, c->a.n_kv_head, c->a.head_dim) * n_block;
    void *k_cache = kc_buf(k, bytes), *v_cache = kc_buf(k, bytes);
    memset(k_cache, 0xff, bytes); /* NaN in the float types and in the scales of int8 */
    memset(v_cache, 0xff, bytes);
    c->a.k_cache = k_cache;
    c->a.v_cache = v_cache;
    for (uint32_t i = 0; i < c->a.n_seq; i++) {
        uint32_t length = c->seqs[i].start + c->seqs[i].n_query;
        size_t width = (size_t)c->a.n_kv_head * c->a.head_dim;
        uint32_t *slot = kc_buf(k, (length + 1) * sizeof *slot);
        c->seqs[i].blocks = pool + n_used;
        n_used += (length + 15) / 16;
        for (uint32_t t = 0; t < length; t++)
            slot[t] = c->seqs[i].blocks[t / 16] * 16 + t % 16;
        c->k[i] = kc_buf(k, length * width * sizeof(float));
        c->v[i] = kc_buf(k, length * width * sizeof(float));
        kc_fill(k, c->k[i], length * width);
        kc_fill(k, c->v[i], length * width);
        struct kv_store_args s = {
            .k_cache = k_cache,
            .v_cache = v_cache,
            .kv_dtype = c->a.kv_dtype,
            .k = c->k[i],
            .v = c->v[i],
            .k_stride = width,
            .v_stride = width,
            .slot = slot,
            .n_row = length,
            .n_kv_head = c->a.n_kv_head,
            .head_dim = c->a.head_dim,
        };
        kv_store_ref(&s, &(struct kern_exec){.nth = 1});
    }
}

/* Element d of a head's vector x as the cache has it. */
static double stored_value(const struct attention_case *c, const float *x, uint32_t d)
{
    float most = 0;
    if (c->a.kv_dtype == DT_F32)
        return x[d];
    if (c->a.kv_dtype == DT_BF16)
        return bf16_to_f32(f32_to_bf16(x[d]));
    for (uint32_t i = 0; i < c->a.head_dim; i++)
        most = fmaxf(most, fabsf(x[i]));
    return most > 0 ? (double)(most / 127) * rint((double)(x[d] * (127 / most))) : 0;
}

/* One (token, head) of sequence i in f64. The bound: every f32 score is off by at most (dim + 4)
 * ulp of its terms, the sums by their length; V is at most 1. */
static void near_f64(struct kcheck *k, const struct attention_case *c, uint32_t i, uint32_t token,
                     uint32_t head)
{
    const struct attention_args *a = &c->a;
    static double p[DEEP_MAX];
    const uint32_t g = head / (a->n_head / a->n_kv_head), dim = a->head_dim;
    const uint32_t pos = c->seqs[i].start + token, all = c->seqs[i].start + c->seqs[i].n_query;
    uint32_t begin = a->window && pos + 1 > a->window ? pos + 1 - a->window : 0, end = pos + 1;
    if (a->chunked && a->window)
        begin = pos - pos % a->window;
    if (a->both_ways)
        end = a->window && pos + a->window < all ? pos + a->window : all;
    const float *q = a->q + (c->seqs[i].row + token) * a->q_stride + (size_t)head * dim;
    const float *out =
        (const float *)a->out + (c->seqs[i].row + token) * a->out_stride + (size_t)head * dim;
    double max = -INFINITY, sum = 0, size = 0;
    for (uint32_t t = begin; t < end; t++) {
        double s = 0, terms = 0;
        for (uint32_t d = 0; d < dim; d++) {
            double product =
                q[d] * stored_value(c, c->k[i] + ((size_t)t * a->n_kv_head + g) * dim, d);
            s += product;
            terms += fabs(product);
        }
        s *= a->scale;
        if (a->slopes) {
            const double far = (double)a->slopes[head] * fabs((double)t - pos);
            s -= far;
            terms += far / a->scale;
        }
        p[t] = a->soft_cap > 0 ? a->soft_cap * tanh(s / a->soft_cap) : s;
        max = p[t] > max ? p[t] : max;
        size = terms * a->scale > size ? terms * a->scale : size;
    }
    for (uint32_t t = begin; t < end; t++)
        sum += p[t] = exp(p[t] - max);
    sum += a->sinks ? exp((double)a->sinks[head] - max) : 0;
    for (uint32_t d = 0; d < dim; d++) {
        double want = 0;
        for (uint32_t t = begin; t < end; t++)
            want += p[t] / sum * stored_value(c, c->v[i] + ((size_t)t * a->n_kv_head + g) * dim, d);
        kc_near(k, "out", out[d], want,
                (2 * size * (dim + 4) + 2.0 * (end - begin) + 16) * 0x1p-24);
    }
}

/* The same tokens in random chunks, some alone, spread over calls of their own with their own
 * thread counts; both ways, a sequence as a whole. */
static void rechunk(struct kcheck *k, const struct attention_case *c, float *out)
{
    for (uint32_t i = 0; i < c->a.n_seq; i++)
        for (uint32_t done = 0, n; done < c->seqs[i].n_query; done += n) {
            uint32_t left = c->seqs[i].n_query - done;
            n = c->a.both_ways ? left : kc_chance(k, 40) ? 1 : kc_range(k, 1, left);
            struct attention_seq s = c->seqs[i];
            s.row += done;
            s.start += done;
            s.n_query = n;
            struct attention_args a = c->a;
            a.out = out;
            a.seqs = &s;
            a.n_seq = 1;
            kc_run(k, k->variant, &a, kc_range(k, 1, 9));
        }
}

/* The variants by dot products round q and the softmax weights to bf16 (avx512/attention_dot.h). q
 * is given to them rounded; a weight is then off by 2^-9 of itself, and V is within 1: with the
 * tolerance's 32 * 2^-24 this makes 2^-8. */
#define ROUNDED 2048.0

static bool rounds(const struct kcheck *k, const struct attention_case *c)
{
    return c->a.kv_dtype != DT_F32 && (k->variant->caps & (CAP_AVX512_BF16 | CAP_AMX_BF16));
}

/* As bf16 it is the same numbers, rounded. */
static void rounded_out(struct kcheck *k, const struct attention_case *c, const float *out)
{
    const size_t n = c->n_row * c->a.out_stride;
    uint16_t *want = kc_buf(k, n * sizeof *want), *got = kc_buf(k, n * sizeof *got);
    struct attention_args a = c->a;
    for (size_t i = 0; i < n; i++)
        if (i % a.out_stride < (size_t)a.n_head * a.head_dim)
            want[i] = f32_to_bf16(out[i]);
    a.out = got;
    a.out_dtype = DT_BF16;
    kc_run(k, k->variant, &a, kc_range(k, 1, 9));
    kc_same_bits(k, "rounded", (struct kc_bits){want, got, DT_BF16, n});
}

static float *sinks_of(struct kcheck *k, uint32_t n_head)
{
    float *sinks = kc_buf(k, n_head * sizeof *sinks);
    for (uint32_t h = 0; h < n_head; h++) /* some heads' sinks take all, some nothing */
        sinks[h] = (float)kc_range(k, 0, 60) / 10 - 3 + (kc_chance(k, 10) ? 120 : 0);
    return sinks;
}

void kcheck_attention(struct kcheck *k)
{
    struct attention_case c = {.deep = kc_chance(k, 3)};
    choose_case(k, &c);
    fill_cache(k, &c);
    k->scratch_bytes = kern_scratch_bytes(c.a.context_max, c.a.n_head, c.a.head_dim);
    size_t width = (size_t)c.a.n_head * c.a.head_dim;
    c.a.q_stride = width + kc_range(k, 0, 9);
    c.a.out_stride = width + kc_range(k, 0, 9);
    float *q = kc_buf(k, c.n_row * c.a.q_stride * sizeof *q);
    size_t out_bytes = c.n_row * c.a.out_stride * sizeof(float);
    float *want = kc_buf(k, out_bytes), *got = kc_buf(k, out_bytes), *again = kc_buf(k, out_bytes);
    const bool round = rounds(k, &c);
    kc_fill(k, q, c.n_row * c.a.q_stride);
    for (size_t i = 0; round && i < c.n_row * c.a.q_stride; i++)
        q[i] = bf16_to_f32(f32_to_bf16(q[i]));
    if (kc_chance(k, 25))
        c.a.sinks = sinks_of(k, c.a.n_head);
    c.a.q = q;
    c.a.out = want;
    kc_run(k, k->ref, &c.a, 1);
    for (uint32_t i = 0; i < c.a.n_seq && !k->specials; i++)
        if (c.seqs[i].n_query) {
            near_f64(k, &c, i, kc_range(k, 0, c.seqs[i].n_query - 1),
                     kc_range(k, 0, c.a.n_head - 1));
            near_f64(k, &c, i, c.seqs[i].n_query - 1, c.a.n_head - 1);
        }
    c.a.out = got;
    kc_run(k, k->variant, &c.a, kc_range(k, 1, 9));
    /* V is within 1 and the outputs may cancel; the cap multiplies the error of tanh, half an
     * ulp of 1 even in libm */
    k->magnitude = 1 + c.a.soft_cap / 4 + (round ? ROUNDED : 0);
    /* numbers near the largest: another order of a sum may overflow where this one does not */
    if (!round || !k->specials)
        kc_compare(k, "out", &(struct kc_array){got, DT_F32, c.n_row, width, c.a.out_stride},
                   &(struct kc_array){want, DT_F32, c.n_row, width, c.a.out_stride});
    c.a.out = want;
    if (!round)
        kc_same_as_sibling(k, &c.a, (struct kc_bits){want, got, DT_F32, c.n_row * c.a.out_stride});
    rechunk(k, &c, again);
    kc_same_bits(k, "other chunks", (struct kc_bits){again, got, DT_F32, c.n_row * c.a.out_stride});
    rounded_out(k, &c, got);
}

/* The attention that leaves the parts, of the same instruction set. */
static struct kern_table table;

static void call_attention(const void *args, const struct kern_exec *x)
{
    table.attention(args, x);
}

void kcheck_attention_join(struct kcheck *k)
{
    struct attention_case c = {.deep = true, .wide = kc_chance(k, 15)};
    const struct kc_variant attention = {.op = "attention", .call = call_attention};
    kern_table_cpu(&table, k->variant->caps);
    choose_case(k, &c);
    fill_cache(k, &c);
    k->scratch_bytes = kern_scratch_bytes(c.a.context_max, c.a.n_head, c.a.head_dim);
    c.a.q_stride = c.a.out_stride = (size_t)c.a.n_head * c.a.head_dim;
    const size_t n = c.n_row * c.a.out_stride;
    float *q = kc_buf(k, n * sizeof *q), *want = kc_buf(k, n * sizeof *want);
    kc_fill(k, q, n);
    c.a.q = q;
    c.a.out = want;
    kc_run(k, &attention, &c.a, 1);
    for (uint32_t i = 0; i < 2; i++) {
        struct attention_args a = c.a;
        const uint32_t nth = kc_range(k, 1, i ? 12 : 3), context = a.context_max;
        float *got = kc_buf(k, n * sizeof *got);
        a.n_part = kern_attention_parts(context, a.n_head, a.head_dim, nth);
        a.parts = kc_buf(k, a.n_part * sizeof *a.parts);
        a.out = got;
        kc_run(k, &attention, &a, nth);
        const bool split = kern_attention_splits(&a, nth);
        if (split)
            kc_run(k, k->variant, &(struct attention_join_args){&a}, nth);
        kc_same_bits(k, "split over threads", (struct kc_bits){got, want, DT_F32, n});
        if (!split && !c.wide && a.n_seq == 1 && a.seqs[0].n_query == 1 && nth > a.n_kv_head &&
            context > ATTENTION_SPLIT && (!a.window || a.window > ATTENTION_SPLIT))
            kc_fail(k, "%u threads: the one long context is not split", nth);
        if (!split && c.wide && a.kv_dtype == DT_BF16 && !a.window && a.n_seq == 1 && nth == 2)
            kc_fail(k, "2 threads: the one long context is divided by heads");
    }
}

struct bench_shape {
    const char *name;
    enum dtype kv_dtype;
    uint32_t n_seq, context, n_query; /* decode when n_query is 1, else one prompt */
    uint32_t n_head, n_kv_head;
};

/* A cache of n_block blocks with numbers of -1 … 1: realistic scores, because otherwise the timing
 * would be dominated by subnormal weights. */
static void *bench_cache(struct kcheck *k, enum dtype kv_dtype, uint32_t n_kv_head, uint32_t dim,
                         size_t n_block)
{
    size_t bytes = n_block * kern_kv_block_bytes(kv_dtype, n_kv_head, dim), head = 16 * dim + 64;
    char *cache = kc_buf(k, bytes);
    if (kv_dtype != DT_I8) {
        kc_fill_dtype(k, cache, kv_dtype, bytes / (dtype_bits(kv_dtype) / 8));
        return cache;
    }
    for (size_t i = 0; i < bytes; i++)
        cache[i] = (char)kc_rnd(k);
    for (size_t i = 0; i < bytes; i += head)
        for (uint32_t c = 0; c < 16; c++)
            ((float *)(void *)(cache + i + 16 * (size_t)dim))[c] = 1.0f / 127;
    return cache;
}

static void bench_shape(struct kc_bench *b, const struct bench_shape *of)
{
    const uint32_t n_seq = of->n_seq, context = of->context, n_query = of->n_query;
    const uint32_t n_head = of->n_head, n_kv_head = of->n_kv_head, dim = 64, n_block = context / 16;
    struct kcheck *k = b->k;
    struct attention_seq *seqs = kc_buf(k, n_seq * sizeof *seqs);
    uint32_t *blocks = kc_buf(k, (size_t)n_seq * n_block * sizeof *blocks);
    size_t n_q = (size_t)n_seq * n_query * n_head * dim;
    float *q = kc_buf(k, n_q * 4), *out = kc_buf(k, n_q * 4);
    kc_fill(k, q, n_q);
    for (uint32_t i = 0; i < n_seq * n_block; i++)
        blocks[i] = i;
    for (uint32_t i = 0; i < n_seq; i++)
        seqs[i] = (struct attention_seq){blocks + (size_t)i * n_block, i * n_query, n_query,
                                         context - n_query};
    struct attention_args a = {
        .out = out,
        .q = q,
        .out_stride = n_head * dim,
        .q_stride = n_head * dim,
        .k_cache = bench_cache(k, of->kv_dtype, n_kv_head, dim, (size_t)n_seq * n_block),
        .v_cache = bench_cache(k, of->kv_dtype, n_kv_head, dim, (size_t)n_seq * n_block),
        .kv_dtype = of->kv_dtype,
        .seqs = seqs,
        .n_seq = n_seq,
        .n_head = n_head,
        .n_kv_head = n_kv_head,
        .head_dim = dim,
        .context_max = context,
        .scale = 0.125f,
    };
    struct bench_seconds s = kc_time(b, &a);
    double pairs = (double)n_seq * n_query * n_head * (context - n_query / 2.0);
    size_t block_bytes = kern_kv_block_bytes(of->kv_dtype, n_kv_head, dim);
    b->i_peak = k->variant->caps & CAP_AVX512 ? PEAK_F32_16 : PEAK_F32_8;
    if (n_query == 1)
        kc_print_bytes(b, of->name, s, 2.0 * n_seq * n_block * (double)block_bytes);
    else
        kc_print_flop(b, of->name, s, pairs * dim * 4);
}

void kbench_attention(struct kc_bench *b)
{
    static const struct bench_shape shapes[] = {
        {"decode bf16 16 x 2048, 14/2 x 64", DT_BF16, 16, 2048, 1, 14, 2},
        {"decode int8 16 x 2048, 14/2 x 64", DT_I8, 16, 2048, 1, 14, 2},
        {"decode f32 16 x 2048, 14/2 x 64", DT_F32, 16, 2048, 1, 14, 2},
        {"decode bf16 8 x 3072, 12/12 x 64", DT_BF16, 8, 3072, 1, 12, 12},
        {"decode int8 8 x 3072, 12/12 x 64", DT_I8, 8, 3072, 1, 12, 12},
        {"decode bf16 1 x 8192, 14/2 x 64", DT_BF16, 1, 8192, 1, 14, 2},
        {"decode bf16 1 x 32768, 14/2 x 64", DT_BF16, 1, 32768, 1, 14, 2},
        {"decode int8 1 x 32768, 14/2 x 64", DT_I8, 1, 32768, 1, 14, 2},
        {"prompt bf16 2048, 14/2 x 64", DT_BF16, 1, 2048, 2048, 14, 2},
        {"prompt int8 2048, 14/2 x 64", DT_I8, 1, 2048, 2048, 14, 2},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (shapes[i].n_query == 1 || b->k->variant->caps) /* the reference would take minutes */
            bench_shape(b, &shapes[i]);
}

/* The cost of the join for one long context. */
void kbench_attention_join(struct kc_bench *b)
{
    const uint32_t n_head = 14, n_kv_head = 1, dim = 64, context = 16384, nth = 8;
    const struct attention_seq seq = {.n_query = 1, .start = context - 1};
    struct attention_args a = {
        .seqs = &seq,
        .n_seq = 1,
        .n_head = n_head,
        .n_kv_head = n_kv_head,
        .head_dim = dim,
        .out_stride = n_head * dim,
        .context_max = context,
        .scale = 0.125f,
    };
    a.n_part = kern_attention_parts(context, n_head, dim, nth);
    a.parts = kc_buf(b->k, a.n_part * sizeof *a.parts);
    a.out = kc_buf(b->k, n_head * dim * sizeof(float));
    kc_fill(b->k, a.parts, a.n_part);
    const uint32_t n_split = context / ATTENTION_SPLIT;
    if (kern_attention_splits(&a, team_size(b->team)))
        kc_print_bytes(b, "1 x 16384, 14 x 64", kc_time(b, &(struct attention_join_args){&a}),
                       (double)n_split * n_head * (dim + 2) * sizeof(float));
}
