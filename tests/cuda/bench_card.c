/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_bench [--library FILE] [--json] [--op NAME,…] [--ms N] [--small] [--once]: the kernels of
 * libquire-cuda.so on a card, at the shapes that models have, timed by the card's own clock.
 *
 * A row is an operation, its shape, the median and the best of several runs, and what it moved and
 * multiplied a second; a copy within the card's memory comes first, as a ceiling. Weights and
 * caches hold random numbers and are larger than the card's cache, so that a run reads memory.
 * --json: a row is a JSON object on a line, written when it is measured.
 * --small: shapes that the host emulation can do (libquire-fake-cuda.so), to try this program.
 * --once: each is launched once and not timed, for a profiler.
 * Exit status 0; 1 when the card failed; 2 for a wrong command line; 77 without a card. */
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/dtype.h"
#include "common/err.h"
#include "common/parse.h"
#include "kernels/device.h"

#define TIMES_MAX    64
#define RANDOM_BYTES ((size_t)4 << 20) /* of the host's; the card's numbers are copies of them */
#define ALLOCS_MAX   32

struct shape { /* of attention: sequences, context, heads, KV heads, head size, rows of each;
                * of products: rows, outputs, inputs; with groups also experts, and how many of them
                * a row takes */
    const char *op;
    enum dtype dtype; /* of the cache; of the weights */
    uint32_t n[6];
};

/* Llama-3-70B's heads are the "GQA 8" of the goal, Llama-3-8B's the usual ones. */
static const struct shape shapes[] = {
    {"copy", DT_U8, {1024}},
    {"attention", DT_BF16, {64, 4096, 64, 8, 128, 1}},
    {"attention", DT_F8_E4M3, {64, 4096, 64, 8, 128, 1}},
    {"attention", DT_I8, {64, 4096, 64, 8, 128, 1}},
    {"attention", DT_BF16, {64, 4096, 32, 8, 128, 1}},
    {"attention", DT_BF16, {1, 32768, 32, 8, 128, 1}},
    {"attention", DT_BF16, {1, 8192, 32, 8, 128, 8192}},
    {"attention", DT_F8_E4M3, {1, 8192, 32, 8, 128, 8192}},
    {"attention", DT_BF16, {4, 2048, 32, 8, 128, 2048}},
    {"linear", DT_BF16, {1, 28672, 4096}},
    {"linear", DT_BF16, {16, 28672, 4096}},
    {"linear", DT_BF16, {64, 28672, 4096}},
    {"linear", DT_BF16, {256, 28672, 4096}},
    {"linear", DT_BF16, {512, 6144, 4096}}, /* products of Llama-3-8B: q, k and v */
    {"linear", DT_BF16, {512, 4096, 4096}},
    {"linear", DT_BF16, {512, 28672, 4096}},
    {"linear", DT_BF16, {512, 4096, 14336}},
    {"linear", DT_BF16, {4096, 6144, 4096}},
    {"linear", DT_BF16, {4096, 28672, 4096}},
    {"linear", DT_BF16, {4096, 4096, 14336}},
    {"linear", DT_BF16, {8192, 8192, 8192}},
    {"linear_int8", DT_I8, {1, 28672, 4096}},
    {"linear_int8", DT_I8, {512, 28672, 4096}},
    {"linear_int8", DT_I8, {2048, 28672, 4096}},
    {"linear_int8", DT_I8, {4096, 28672, 4096}},
    {"linear_fp8", DT_F8_E4M3, {1, 28672, 4096}},
    {"linear_fp8", DT_F8_E4M3, {512, 28672, 4096}},
    {"linear_fp8", DT_F8_E4M3, {4096, 28672, 4096}},
    {"linear_fp8_block", DT_F8_E4M3, {1, 28672, 4096}},
    {"linear_fp8_block", DT_F8_E4M3, {512, 28672, 4096}},
    {"linear_fp8_block", DT_F8_E4M3, {4096, 28672, 4096}},
    {"linear_w4a8", DT_U8, {1, 28672, 4096}},
    {"linear_w4a8", DT_U8, {2048, 28672, 4096}},
    {"linear_w4a16", DT_U8, {1, 28672, 4096}},
    {"linear_w4a16", DT_U8, {16, 28672, 4096}},
    {"linear_w4a16", DT_U8, {2048, 28672, 4096}},
    {"linear_grouped", DT_BF16, {1, 1536, 2048, 128, 8}}, /* gate and up of Qwen3-30B-A3B */
    {"linear_grouped", DT_BF16, {32, 1536, 2048, 128, 8}},
    {"linear_grouped", DT_BF16, {256, 1536, 2048, 128, 8}},
    {"linear_grouped", DT_BF16, {512, 1536, 2048, 128, 8}},
    {"linear_grouped", DT_BF16, {4096, 1536, 2048, 128, 8}},
    {"linear_int8_grouped", DT_I8, {1, 1536, 2048, 128, 8}},
    {"linear_int8_grouped", DT_I8, {32, 1536, 2048, 128, 8}},
    {"linear_int8_grouped", DT_I8, {256, 1536, 2048, 128, 8}},
    {"linear_int8_grouped", DT_I8, {4096, 1536, 2048, 128, 8}},
    {"linear_fp8_grouped", DT_F8_E4M3, {1, 1536, 2048, 128, 8}},
    {"linear_fp8_grouped", DT_F8_E4M3, {32, 1536, 2048, 128, 8}},
    {"linear_fp8_grouped", DT_F8_E4M3, {256, 1536, 2048, 128, 8}},
    {"linear_fp8_grouped", DT_F8_E4M3, {512, 1536, 2048, 128, 8}},
    {"linear_fp8_grouped", DT_F8_E4M3, {4096, 1536, 2048, 128, 8}},
    {"linear_w4a16_grouped", DT_U8, {1, 1536, 2048, 128, 8}},
    {"linear_w4a16_grouped", DT_U8, {32, 1536, 2048, 128, 8}},
    {"linear_w4a16_grouped", DT_U8, {256, 1536, 2048, 128, 8}},
    {"linear_w4a16_grouped", DT_U8, {4096, 1536, 2048, 128, 8}},
    {"linear_grouped", DT_BF16, {32, 2048, 768, 128, 8}}, /* down */
    {"linear_w4a16_grouped", DT_U8, {1, 2048, 768, 128, 8}},
    {"linear_w4a16_grouped", DT_U8, {32, 2048, 768, 128, 8}},
};
static const struct shape small_shapes[] = {
    {"copy", DT_U8, {1}},
    {"attention", DT_BF16, {2, 20, 2, 1, 64, 1}},
    {"attention", DT_F8_E4M3, {2, 20, 2, 1, 64, 1}},
    {"attention", DT_I8, {1, 20, 2, 1, 64, 20}},
    {"linear", DT_BF16, {2, 128, 64}},
    {"linear_int8", DT_I8, {2, 128, 64}},
    {"linear_fp8", DT_F8_E4M3, {2, 128, 64}},
    {"linear_fp8_block", DT_F8_E4M3, {2, 128, 192}},
    {"linear_w4a8", DT_U8, {2, 128, 128}},
    {"linear_w4a16", DT_U8, {2, 128, 128}},
    {"linear_grouped", DT_BF16, {3, 64, 64, 4, 2}},
    {"linear_int8_grouped", DT_I8, {3, 64, 64, 4, 2}},
    {"linear_fp8_grouped", DT_F8_E4M3, {3, 64, 64, 4, 2}},
    {"linear_w4a16_grouped", DT_U8, {3, 64, 128, 4, 2}},
};

static struct {
    const char *library, *op;
    int64_t ms;
    bool small, json, once;
    const struct device_table *t;
    struct device *d;
    struct device_stream *s;
    struct device_event *from, *to;
    void *allocs[ALLOCS_MAX];
    uint32_t n_alloc;
    void *host; /* [RANDOM_BYTES] of random bf16, -1 … 1 */
    struct kern_exec x;
} b = {.ms = 100};

static void need(enum q_code rc, const struct q_err *e)
{
    if (!rc)
        return;
    fprintf(stderr, "cuda_bench: %s\n", e->message);
    exit(rc == Q_NOT_FOUND ? 77 : 1);
}

static void *device_memory(size_t n, const char *what)
{
    struct q_err e = Q_ERR_INIT;
    void *p = NULL;
    Q_ASSERT(b.n_alloc < ALLOCS_MAX);
    need(b.t->alloc(b.d, &p, n ? n : 1, what, &e), &e);
    return b.allocs[b.n_alloc++] = p;
}

static void settle(void)
{
    struct q_err e = Q_ERR_INIT;
    need(b.t->sync(b.s, &e), &e);
    need(b.t->check(b.d, &e), &e);
}

static void *random_bf16(size_t n, const char *what)
{
    char *p = device_memory(n * 2, what);
    for (size_t at = 0; at < n * 2; at += RANDOM_BYTES)
        b.t->copy(b.s, p + at, b.host, n * 2 - at < RANDOM_BYTES ? n * 2 - at : RANDOM_BYTES);
    return p;
}

/* As f32 there are n / 2 of them, small and finite: the high half is a bf16 of -1 … 1. */
static void *random_f32(size_t n, const char *what)
{
    return random_bf16(2 * n, what);
}

static void *sent(const void *host, size_t n, const char *what)
{
    void *p = device_memory(n, what);
    void *pinned = NULL;
    struct q_err e = Q_ERR_INIT;
    need(b.t->host_alloc(b.d, &pinned, n, what, &e), &e);
    memcpy(pinned, host, n);
    b.t->copy(b.s, p, pinned, n);
    settle();
    b.t->host_free(b.d, pinned);
    return p;
}

/* ---- timing ---- */
typedef void work_fn(const void *ctx);

static int compare_f64(const void *p, const void *q)
{
    const double x = *(const double *)p, y = *(const double *)q;
    return (x > y) - (x < y);
}

static double span_ms(work_fn *work, const void *ctx, uint32_t n)
{
    struct q_err e = Q_ERR_INIT;
    b.t->event_record(b.from, b.s);
    for (uint32_t i = 0; i < n; i++)
        work(ctx);
    b.t->event_record(b.to, b.s);
    need(b.t->event_wait(b.to, &e), &e);
    need(b.t->check(b.d, &e), &e);
    return (double)b.t->event_ms(b.from, b.to) / n;
}

/* A run is as many launches as take a millisecond, so that the gaps between runs do not count. */
static void measure(const char *op, const char *text, double bytes, double flop, work_fn *work,
                    const void *ctx)
{
    double ms[TIMES_MAX], spent = 0;
    uint32_t n = 0;
    if (b.once) {
        span_ms(work, ctx, 1);
        printf("%s %s\n", op, text);
        return;
    }
    span_ms(work, ctx, 1);
    const double once = span_ms(work, ctx, 1);
    const uint32_t launches = !b.small && once < 1 && once > 0.001 ? (uint32_t)(1 / once) + 1 : 1;
    for (; n < TIMES_MAX && (n < 5 || spent < (double)b.ms) && !(b.small && n == 2); n++) {
        ms[n] = span_ms(work, ctx, launches);
        spent += ms[n] * launches;
    }
    qsort(ms, n, sizeof *ms, compare_f64);
    const double median = ms[n / 2] > 0 ? ms[n / 2] : NAN;
    if (b.json)
        printf("{\"op\": \"%s\", \"shape\": \"%s\", \"median_ms\": %.6f, \"best_ms\": %.6f, "
               "\"bytes\": %.0f, \"flop\": %.0f}\n",
               op, text, ms[n / 2], ms[0], bytes, flop);
    else
        printf("%-12s %-48s %9.4f ms best %9.4f %8.2f TB/s %8.1f TFLOP/s\n", op, text, ms[n / 2],
               ms[0], bytes / median * 1e-9, flop / median * 1e-9);
}

/* ---- copy ---- */
struct copy {
    void *dst, *src;
    size_t n;
};

static void copy_once(const void *ctx)
{
    const struct copy *c = ctx;
    b.t->copy(b.s, c->dst, c->src, c->n);
}

static void bench_copy(const struct shape *s)
{
    char text[64];
    struct copy c = {.n = (size_t)s->n[0] << 20};
    c.src = random_bf16(c.n / 2, "the source of a copy");
    c.dst = device_memory(c.n, "the end of a copy");
    snprintf(text, sizeof text, "%u MiB", s->n[0]);
    measure("copy", text, 2.0 * (double)c.n, 0, copy_once, &c);
}

/* ---- attention ---- */
static void attend(const void *ctx)
{
    b.t->kern(b.d)->attention(ctx, &b.x);
}

/* K and V of every token: windows of the same random numbers, 64 apart. */
static void fill_cache(const struct attention_args *a, uint32_t n_slot)
{
    const size_t width = (size_t)a->n_kv_head * a->head_dim;
    uint32_t *slots = calloc(n_slot, sizeof *slots);
    Q_ASSERT(slots);
    for (uint32_t i = 0; i < n_slot; i++)
        slots[i] = i;
    float *kv = random_f32((size_t)n_slot * 64 + width, "keys and values");
    const struct kv_store_args store = {
        .k_cache = (void *)(uintptr_t)a->k_cache,
        .v_cache = (void *)(uintptr_t)a->v_cache,
        .kv_dtype = a->kv_dtype,
        .k = kv,
        .v = kv,
        .k_stride = 64,
        .v_stride = 64,
        .slot = sent(slots, n_slot * sizeof *slots, "slots"),
        .n_row = n_slot,
        .n_kv_head = a->n_kv_head,
        .head_dim = a->head_dim,
    };
    b.t->kern(b.d)->kv_store(&store, &b.x);
    settle();
    free(slots);
}

/* The sequences' blocks, in an order that no reader can guess, and the plan. */
static void place(struct attention_args *a, const struct device_limits *l, uint32_t n_query)
{
    const uint32_t n_table = (l->context_max + KERN_BLOCK - 1) / KERN_BLOCK;
    const uint32_t n_block = n_table * a->n_seq;
    uint32_t *blocks = calloc(n_block, sizeof *blocks), seed = 1;
    struct attention_seq *seqs = calloc(a->n_seq, sizeof *seqs);
    struct q_err e = Q_ERR_INIT;
    void *plan;
    Q_ASSERT(blocks && seqs);
    for (uint32_t i = 0; i < n_block; i++) {
        const uint32_t j = (seed = seed * 1664525u + 1013904223u) % (i + 1);
        blocks[i] = blocks[j];
        blocks[j] = i;
    }
    const uint32_t *table = sent(blocks, n_block * sizeof *blocks, "block tables");
    for (uint32_t i = 0; i < a->n_seq; i++)
        seqs[i] = (struct attention_seq){
            .blocks = table + (size_t)i * n_table,
            .row = i * n_query,
            .n_query = n_query,
            .start = l->context_max - n_query,
        };
    a->seqs = sent(seqs, a->n_seq * sizeof *seqs, "sequences");
    need(b.t->host_alloc(b.d, &plan, b.t->plan_bytes(b.d, l), "a plan", &e), &e);
    a->plan = sent(plan, b.t->plan(b.d, plan, l, seqs, a->n_seq), "a plan");
    b.t->host_free(b.d, plan);
    free(blocks);
    free(seqs);
}

static void bench_attention(const struct shape *s)
{
    const uint32_t n_seq = s->n[0], context = s->n[1], n_query = s->n[5], n_row = n_seq * n_query;
    const size_t width = (size_t)s->n[2] * s->n[4];
    struct attention_args a = {
        .out_dtype = DT_BF16,
        .out_stride = width,
        .q_stride = width,
        .kv_dtype = s->dtype,
        .n_seq = n_seq,
        .n_head = s->n[2],
        .n_kv_head = s->n[3],
        .head_dim = s->n[4],
        .context_max = context,
        .scale = 1 / sqrtf((float)s->n[4]),
        .n_row = n_row,
    };
    const struct device_limits l = {
        .n_row_max = n_row,
        .n_seq_max = n_seq,
        .n_logit_max = 1,
        .context_max = context,
        .n_head = a.n_head,
        .n_kv_head = a.n_kv_head,
        .head_dim = a.head_dim,
        .hidden_size = (uint32_t)width,
        .intermediate_size = (uint32_t)width,
        .vocab_size = 32,
        .kv_dtype = a.kv_dtype,
    };
    const uint32_t n_block = (context + KERN_BLOCK - 1) / KERN_BLOCK * n_seq;
    const size_t cache = b.t->kv_block_bytes(a.kv_dtype, a.n_kv_head, a.head_dim) * n_block;
    char text[96];
    b.x.scratch_bytes = b.t->workspace_bytes(b.d, &l);
    b.x.scratch = device_memory(b.x.scratch_bytes, "workspace");
    a.q = random_f32((size_t)n_row * width, "queries");
    a.out = device_memory((size_t)n_row * width * 2, "results");
    a.k_cache = device_memory(cache, "keys");
    a.v_cache = device_memory(cache, "values");
    fill_cache(&a, n_block * KERN_BLOCK);
    place(&a, &l, n_query);
    snprintf(text, sizeof text, "%s %u x %u, %u of them new, heads %u/%u of %u",
             dtype_name(a.kv_dtype), n_seq, context, n_query, a.n_head, a.n_kv_head, a.head_dim);
    /* causal: token t of n sees context - n + t + 1 */
    const double seen = (double)n_row * (context - (n_query - 1) / 2.0);
    measure("attention", text, 2.0 * (double)cache + (double)n_row * (double)width * 6,
            4 * seen * (double)width, attend, &a);
}

/* ---- products ---- */
#define GROUP 128u /* inputs of 4-bit weights that share a scale */

/* Its numbers are all those of src. */
static void pack_matrix(const struct packed *w, void *to, const void *src)
{
    const struct kern_table *k = b.t->kern(b.d);
    const uint32_t n = w->n_out, m = w->n_in;
    const struct pack_args floats = {to, DT_BF16, src, DT_BF16, n, m, 0, n};
    const struct pack_int8_args bytes = {
        .dst = to,
        .src = src,
        .src_dtype = DT_BF16,
        .n_out = n,
        .n_in = m,
        .n_out_total = n,
    };
    const struct pack_fp8_args e4m3 = {
        .dst = to,
        .src = src,
        .src_dtype = DT_BF16,
        .n_out = n,
        .n_in = m,
        .n_out_total = n,
    };
    const struct pack_int4_args int4 = {
        .dst = to,
        .src = src,
        .src_dtype = DT_BF16,
        .n_out = n,
        .n_in = m,
        .group = w->group,
        .n_out_total = n,
    };
    if (w->group)
        k->pack_int4(&int4, &b.x);
    else if (w->dtype == DT_I8)
        k->pack_int8(&bytes, &b.x);
    else if (w->dtype == DT_F8_E4M3)
        k->pack_fp8(&e4m3, &b.x);
    else
        k->pack(&floats, &b.x);
}

static void multiply(const void *ctx)
{
    b.t->kern(b.d)->linear(ctx, &b.x);
}

static void multiply_quant(const void *ctx)
{
    b.t->kern(b.d)->linear_int8(ctx, &b.x);
}

static void multiply_int4(const void *ctx)
{
    b.t->kern(b.d)->linear_w4a8(ctx, &b.x);
}

static void multiply_w4a16(const void *ctx)
{
    b.t->kern(b.d)->linear_w4a16(ctx, &b.x);
}

static void show_product(const struct shape *s, const char *what, size_t weights, double x_bytes,
                         work_fn *work, const void *args)
{
    const double m = s->n[0], n = s->n[1], k = s->n[2];
    char text[96];
    snprintf(text, sizeof text, "%s %u x [%u, %u]", what, s->n[0], s->n[1], s->n[2]);
    measure(s->op, text, (double)weights + m * k * x_bytes + m * n * 4, 2 * m * n * k, work, args);
}

static void bench_linear(const struct shape *s)
{
    const uint32_t m = s->n[0], n = s->n[1], k = s->n[2];
    struct linear_args a = {
        .y_dtype = DT_F32,
        .x_dtype = DT_BF16,
        .w = {.n_out = n, .n_in = k, .dtype = DT_BF16},
        .n_row = m,
        .x_stride = k,
        .y_stride = n,
    };
    const size_t bytes = b.t->matrix_bytes(&a.w);
    void *w = device_memory(bytes, "weights");
    pack_matrix(&a.w, w, random_bf16((size_t)n * k, "a checkpoint's weights"));
    a.w.data = w;
    a.x = random_bf16((size_t)m * k, "activations");
    a.y = device_memory((size_t)m * n * 4, "results");
    show_product(s, "bf16", bytes, 2, multiply, &a);
}

/* int8 activations, and int8 or 4-bit weights. */
static void bench_quant(const struct shape *s)
{
    const bool int4 = s->dtype == DT_U8;
    const uint32_t m = s->n[0], n = s->n[1], k = s->n[2];
    struct linear_w4a8_args a = {
        .by =
            {
                .y_dtype = DT_F32,
                .w = {.n_out = n, .n_in = k, .dtype = DT_I8, .group = int4 ? GROUP : 0},
                .n_row = m,
                .x_stride = k,
                .y_stride = n,
            },
    };
    const size_t bytes = b.t->matrix_bytes(&a.by.w);
    void *w = device_memory(bytes, "weights"), *q = device_memory((size_t)m * k, "activations");
    struct quant_row *rows = device_memory(m * sizeof *rows, "scales");
    int16_t *sums = device_memory((size_t)m * k / KERN_INT8_SUM * 2, "sums");
    const struct quant_rows_args quant = {
        .q = q,
        .rows = rows,
        .sums = sums,
        .x = random_f32((size_t)m * k, "activations"),
        .n_row = m,
        .n_col = k,
        .x_stride = k,
        .q_stride = k,
    };
    pack_matrix(&a.by.w, w, random_bf16((size_t)n * k, "a checkpoint's weights"));
    b.t->kern(b.d)->quant_rows(&quant, &b.x);
    a.by.w.data = w;
    a.by.x = q;
    a.by.rows = rows;
    a.by.y = device_memory((size_t)m * n * 4, "results");
    a.sums = sums;
    show_product(s, int4 ? "int4" : "int8", bytes, 1, int4 ? multiply_int4 : multiply_quant,
                 int4 ? (const void *)&a : &a.by);
}

static void multiply_fp8(const void *ctx)
{
    b.t->kern(b.d)->linear_fp8(ctx, &b.x);
}

static void bench_e4m3(const struct shape *s)
{
    const uint32_t m = s->n[0], n = s->n[1], k = s->n[2];
    struct linear_fp8_args a = {
        {
            .y_dtype = DT_F32,
            .w = {.n_out = n, .n_in = k, .dtype = DT_F8_E4M3},
            .n_row = m,
            .x_stride = k,
            .y_stride = n,
        },
    };
    const size_t bytes = b.t->matrix_bytes(&a.by.w);
    void *w = device_memory(bytes, "weights");
    uint8_t *q = device_memory((size_t)m * k, "activations");
    struct quant_row *rows = device_memory(m * sizeof *rows, "scales");
    const struct quant_rows_fp8_args quant = {
        q, rows, random_f32((size_t)m * k, "activations"), m, k, k, k, 0};
    pack_matrix(&a.by.w, w, random_bf16((size_t)n * k, "a checkpoint's weights"));
    b.t->kern(b.d)->quant_rows_fp8(&quant, &b.x);
    a.by.w.data = w;
    a.by.x = (const int8_t *)q;
    a.by.rows = rows;
    a.by.y = device_memory((size_t)m * n * 4, "results");
    show_product(s, "e4m3", bytes, 1, multiply_fp8, &a);
}

static void multiply_fp8_block(const void *ctx)
{
    b.t->kern(b.d)->linear_fp8_block(ctx, &b.x);
}

/* Scales of 128 x 128 weights, and of 128 activations; random bytes for weights, NaN among them. */
static void bench_blocks(const struct shape *s)
{
    const uint32_t m = s->n[0], n = s->n[1], k = s->n[2], n_block = (k + 127) / 128;
    struct linear_fp8_block_args a = {
        .y_dtype = DT_F32,
        .w = {.n_out = n, .n_in = k, .dtype = DT_F8_E4M3, .blocks = 1},
        .n_row = m,
        .x_stride = k,
        .y_stride = n,
        .scale_stride = (n_block + KERN_FP8_FOUR - 1) / KERN_FP8_FOUR * KERN_FP8_FOUR,
    };
    const size_t bytes = b.t->matrix_bytes(&a.w);
    void *w = device_memory(bytes, "weights");
    const struct pack_fp8_block_args pack = {
        .dst = w,
        .q = random_bf16((size_t)n * k / 2, "a checkpoint's weights"),
        .scales = random_f32((size_t)n * n_block, "a checkpoint's scales"),
        .n_out = n,
        .n_in = k,
        .n_out_total = n,
    };
    const struct quant_rows_fp8_block_args quant = {
        .q = device_memory((size_t)m * k, "activations"),
        .scales = device_memory(m * a.scale_stride * sizeof(float), "scales"),
        .x = random_f32((size_t)m * k, "activations"),
        .n_row = m,
        .n_col = k,
        .x_stride = k,
        .q_stride = k,
        .scale_stride = a.scale_stride,
    };
    b.t->kern(b.d)->pack_fp8_block(&pack, &b.x);
    b.t->kern(b.d)->quant_rows_fp8_block(&quant, &b.x);
    a.w.data = w;
    a.x = quant.q;
    a.x_scales = quant.scales;
    a.y = device_memory((size_t)m * n * sizeof(float), "results");
    show_product(s, "e4m3 in blocks", bytes, 1, multiply_fp8_block, &a);
}

/* bf16 activations and 4-bit weights, as models computed in bfloat16 have them. */
static void bench_w4a16(const struct shape *s)
{
    const uint32_t m = s->n[0], n = s->n[1], k = s->n[2];
    struct linear_w4a16_args a = {
        .by =
            {
                .y_dtype = DT_F32,
                .x_dtype = DT_BF16,
                .w = {.n_out = n, .n_in = k, .dtype = DT_I8, .group = GROUP},
                .n_row = m,
                .x_stride = k,
                .y_stride = n,
            },
    };
    const size_t bytes = b.t->matrix_bytes(&a.by.w);
    char *w = device_memory(bytes, "weights");
    pack_matrix(&a.by.w, w, random_bf16((size_t)n * k, "a checkpoint's weights"));
    a.by.w.data = w;
    a.by.x = random_bf16((size_t)m * k, "activations");
    a.by.y = device_memory((size_t)m * n * 4, "results");
    show_product(s, "int4 by bf16", bytes, 2, multiply_w4a16, &a);
}

/* ---- products with the matrices of a mixture of experts ---- */
static void multiply_grouped(const void *ctx)
{
    b.t->kern(b.d)->linear_grouped(ctx, &b.x);
}

static void multiply_int8_grouped(const void *ctx)
{
    b.t->kern(b.d)->linear_int8_grouped(ctx, &b.x);
}

static void multiply_fp8_grouped(const void *ctx)
{
    b.t->kern(b.d)->linear_fp8_grouped(ctx, &b.x);
}

static void multiply_w4a16_grouped(const void *ctx)
{
    b.t->kern(b.d)->linear_w4a16_grouped(ctx, &b.x);
}

/* Places of rows that take n_used experts at even distances, from a random one on; returns how many
 * experts are taken at all. */
static uint32_t sort_places(const struct shape *s, struct groups *g)
{
    const uint32_t n = s->n[0], n_expert = s->n[3], n_used = s->n[4];
    uint32_t *experts = calloc((size_t)n * n_used + n_expert, sizeof *experts);
    uint32_t *taken = experts + (size_t)n * n_used, n_taken = 0, seed = 1;
    Q_ASSERT(experts);
    for (uint32_t i = 0; i < n * n_used; i++) {
        if (i % n_used == 0)
            seed = seed * 1664525u + 1013904223u;
        experts[i] = ((seed >> 8) + i % n_used * (n_expert / n_used)) % n_expert;
        n_taken += !taken[experts[i]]++;
    }
    const struct moe_group_rows_args a = {
        .experts = sent(experts, (size_t)n * n_used * sizeof *experts, "choices"),
        .n_row = n,
        .n_used = n_used,
        .n_expert = n_expert,
        .starts = device_memory((n_expert + 1) * sizeof(uint32_t), "where experts start"),
        .rows = device_memory((size_t)n * n_used * sizeof(uint32_t), "rows of places"),
        .places = device_memory((size_t)n * n_used * sizeof(uint32_t), "places"),
    };
    b.t->kern(b.d)->moe_group_rows(&a, &b.x);
    settle();
    g->n_group = n_expert;
    g->starts = a.starts;
    g->rows = a.rows;
    free(experts);
    return n_taken;
}

/* All experts have the same numbers, each in its own place. */
static void *pack_experts(const struct packed *w, size_t stride, uint32_t n_expert)
{
    char *to = device_memory(n_expert * stride, "weights");
    const void *src = random_bf16((size_t)w->n_out * w->n_in, "a checkpoint's weights");
    for (uint32_t e = 0; e < n_expert; e++)
        pack_matrix(w, to + e * stride, src);
    return to;
}

/* m rows of activations as bytes with their scales. */
static void quantize_rows(struct linear_int8_args *a, uint32_t m, enum dtype as)
{
    const uint32_t k = a->w.n_in;
    const float *x = random_f32((size_t)m * k, "activations");
    struct quant_row *rows = device_memory(m * sizeof *rows, "scales");
    int8_t *q = device_memory((size_t)m * k, "activations");
    const struct quant_rows_args int8 = {
        .q = q,
        .rows = rows,
        .x = x,
        .n_row = m,
        .n_col = k,
        .x_stride = k,
        .q_stride = k,
    };
    const struct quant_rows_fp8_args e4m3 = {(uint8_t *)q, rows, x, m, k, k, k, 0};
    if (as == DT_I8)
        b.t->kern(b.d)->quant_rows(&int8, &b.x);
    else
        b.t->kern(b.d)->quant_rows_fp8(&e4m3, &b.x);
    a->x = q;
    a->rows = rows;
}

static void bench_groups(const struct shape *s)
{
    static const struct {
        enum dtype dtype; /* of the shape */
        const char *text;
        work_fn *bytes, *floats; /* one of them */
    } kinds[] = {
        {DT_BF16, "bf16", NULL, multiply_grouped},
        {DT_I8, "int8", multiply_int8_grouped, NULL},
        {DT_F8_E4M3, "e4m3", multiply_fp8_grouped, NULL},
        {DT_U8, "int4 by bf16", NULL, multiply_w4a16_grouped},
    };
    const uint32_t m = s->n[0], n = s->n[1], k = s->n[2], n_place = m * s->n[4];
    const bool int4 = s->dtype == DT_U8;
    struct packed w = {
        .n_out = n,
        .n_in = k,
        .dtype = int4 ? DT_I8 : s->dtype,
        .group = int4 ? GROUP : 0,
    };
    struct groups g = {.w_stride = (b.t->matrix_bytes(&w) + 63) / 64 * 64};
    const uint32_t n_taken = sort_places(s, &g);
    size_t i = 0;
    char text[96];
    while (kinds[i].dtype != s->dtype)
        i++;
    w.data = pack_experts(&w, g.w_stride, s->n[3]);
    float *y = device_memory((size_t)n_place * n * sizeof *y, "results");
    struct linear_int8_grouped_args bytes = {
        .by = {.y = y, .w = w, .n_row = n_place, .x_stride = k, .y_stride = n},
        .of = g,
    };
    struct linear_grouped_args floats = {
        .by = {.y = y, .x_dtype = DT_BF16, .w = w, .n_row = n_place, .x_stride = k, .y_stride = n},
        .of = g,
    };
    if (kinds[i].bytes)
        quantize_rows(&bytes.by, m, s->dtype);
    else
        floats.by.x = random_bf16((size_t)m * k, "activations");
    snprintf(text, sizeof text, "%s %u x [%u, %u], %u of %u experts a row", kinds[i].text, m, n, k,
             s->n[4], s->n[3]);
    measure(s->op, text,
            (double)n_taken * (double)g.w_stride + (double)m * k * (kinds[i].bytes ? 1 : 2) +
                (double)n_place * n * 4,
            2.0 * n_place * n * k, kinds[i].bytes ? kinds[i].bytes : kinds[i].floats,
            kinds[i].bytes ? (const void *)&bytes : &floats);
}

/* ---- all ---- */
static const struct {
    const char *op;
    void (*bench)(const struct shape *s);
} ops[] = {
    {"copy", bench_copy},
    {"attention", bench_attention},
    {"linear", bench_linear},
    {"linear_int8", bench_quant},
    {"linear_w4a8", bench_quant},
    {"linear_fp8", bench_e4m3},
    {"linear_fp8_block", bench_blocks},
    {"linear_w4a16", bench_w4a16},
    {"linear_grouped", bench_groups},
    {"linear_int8_grouped", bench_groups},
    {"linear_fp8_grouped", bench_groups},
    {"linear_w4a16_grouped", bench_groups},
};

/* Is it in the list that was given? */
static bool is_wanted(const char *op)
{
    const size_t n = strlen(op);
    for (const char *at = b.op; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (!strncmp(at, op, n) && (at[n] == ',' || at[n] == '\0'))
            return true;
    }
    return !b.op;
}

static void run_shape(const struct shape *s)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (!strcmp(ops[i].op, s->op) && is_wanted(s->op))
            ops[i].bench(s);
    settle();
    while (b.n_alloc)
        b.t->release(b.d, b.allocs[--b.n_alloc]);
}

/* The note may have a driver's words in it. */
static void say_card(const struct device_props *p)
{
    char note[sizeof p->note];
    for (size_t i = 0; i < sizeof note; i++)
        note[i] = p->note[i] == '"' || p->note[i] == '\\' ? '\'' : p->note[i];
    printf("{\"card\": \"%s\", \"note\": \"%s\"}\n", p->name, note);
}

static void open_card(void)
{
    const struct device_options o = {0}; /* as an engine opens it, unless it is told otherwise */
    struct q_err e = Q_ERR_INIT;
    uint32_t seed = 1;
    need(device_library_open(&b.t, b.library, &e), &e);
    need(b.t->open(&b.d, &o, &e), &e);
    need(b.t->stream_new(b.d, &b.s, &e), &e);
    need(b.t->event_new(b.d, &b.from, &e), &e);
    need(b.t->event_new(b.d, &b.to, &e), &e);
    need(b.t->host_alloc(b.d, &b.host, RANDOM_BYTES, "random numbers", &e), &e);
    for (size_t i = 0; i < RANDOM_BYTES / 2; i++) {
        seed = seed * 1664525u + 1013904223u;
        ((uint16_t *)b.host)[i] = f32_to_bf16((float)(int32_t)seed * 0x1p-31f);
    }
    b.x = (struct kern_exec){.nth = 1, .stream = b.s};
    const struct device_props *p = b.t->props(b.d);
    if (b.json)
        say_card(p);
    else
        printf("%s\n%s%s", p->name, p->note, *p->note ? "\n" : "");
}

static void read_options(int argc, char **argv)
{
    static const struct option names[] = {
        {"library", required_argument, NULL, 'l'},
        {"json", no_argument, NULL, 'j'},
        {"op", required_argument, NULL, 'o'},
        {"ms", required_argument, NULL, 'm'},
        {"small", no_argument, NULL, 's'},
        {"once", no_argument, NULL, '1'},
        {NULL, 0, NULL, 0},
    };
    struct q_err e = Q_ERR_INIT;
    bool wrong = false;
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        if (c == 'l')
            b.library = optarg;
        else if (c == 'j')
            b.json = true;
        else if (c == 'o')
            b.op = optarg;
        else if (c == 's')
            b.small = true;
        else if (c == '1')
            b.once = true;
        else if (c != 'm' || parse_i64(&b.ms, optarg, 1, 60000, "--ms", &e))
            wrong = true;
    }
    if (wrong || optind != argc) {
        fprintf(stderr, "%s: options: --library FILE --json --op NAME,… --ms N --small --once %s\n",
                argv[0], e.message);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    b.library = getenv("QUIRE_CUDA_LIBRARY");
    read_options(argc, argv);
    open_card();
    const struct shape *all = b.small ? small_shapes : shapes;
    const size_t n = b.small ? sizeof small_shapes / sizeof *all : sizeof shapes / sizeof *all;
    for (size_t i = 0; i < n; i++)
        run_shape(&all[i]);
    return 0;
}
