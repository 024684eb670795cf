/* SPDX-License-Identifier: Apache-2.0 */
/* Reading memory in four access patterns. One function, compiled for each vector width, sums the
 * words in four independent accumulators, so that additions do not limit the rate. */
#include <stdint.h>
#include <string.h>
#include "kernels/bench/roofline.h"
#include "kernels/kern.h"
#include "kernels/tiling/stream.h"

#define CHUNK    ((size_t)64 << 10)
#define ROW      ((size_t)1792) /* a row of 896 bf16: hidden_size of Qwen2.5-0.5B */
#define N_STREAM 4u

/* 64 bytes; the compiler makes one, two or four registers of it. */
typedef uint64_t line_vec __attribute__((vector_size(64), may_alias));

struct span {
    const char *at[N_STREAM]; /* N_STREAM pointers 64-byte aligned; one stream: at[0] alone */
    size_t ahead;             /* bytes prefetched ahead of each */
    size_t bytes;             /* of each; a multiple of 256 (one stream) or 64 */
};
enum read_order { ONE_STREAM, ROWS_AT_ONCE, NEXT_INTERLEAVED };
typedef uint64_t span_fn(const struct span *s, enum read_order order);

INLINE uint64_t span_sum(const struct span *s, const enum read_order order)
{
    const size_t step = order == ROWS_AT_ONCE ? 64 : 64 * N_STREAM;
    const struct stream whole = {s->at[0], s->at[0] + s->bytes};
    line_vec sum[N_STREAM] = {{0}};
    for (size_t i = 0; i < s->bytes; i += step) {
        if (order == NEXT_INTERLEAVED)
            stream_prefetch(&whole, s->at[0] + i, N_STREAM);
        for (uint32_t j = 0; j < N_STREAM; j++) {
            const char *p = order == ROWS_AT_ONCE ? s->at[j] + i : s->at[0] + i + 64 * (size_t)j;
            if (order != NEXT_INTERLEAVED)
                __builtin_prefetch(p + s->ahead);
            sum[j] += *(const line_vec *)(const void *)p;
        }
    }
    uint64_t total = 0;
    for (uint32_t j = 0; j < N_STREAM; j++)
        for (uint32_t k = 0; k < 8; k++)
            total += sum[j][k];
    return total;
}

/* The order as a constant of three bodies. */
INLINE uint64_t span_any(const struct span *s, enum read_order order)
{
    if (order == ONE_STREAM)
        return span_sum(s, ONE_STREAM);
    return order == ROWS_AT_ONCE ? span_sum(s, ROWS_AT_ONCE) : span_sum(s, NEXT_INTERLEAVED);
}

static uint64_t span_plain(const struct span *s, enum read_order order)
{
    return span_any(s, order);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static uint64_t span_avx2(const struct span *s,
                                                          enum read_order order)
{
    return span_any(s, order);
}

__attribute__((target("avx512f"))) static uint64_t span_avx512(const struct span *s,
                                                               enum read_order order)
{
    return span_any(s, order);
}
#endif

static span_fn *span_of_machine(void)
{
#ifdef __x86_64__
    uint32_t caps = kern_caps_machine();
    if (caps & CAP_AVX512)
        return span_avx512;
    if (caps & CAP_AVX2)
        return span_avx2;
#endif
    return span_plain;
}

struct reading {
    const struct roofline_memory *memory;
    enum roofline_read how;
    size_t ahead;
    span_fn *span;
    uint64_t sink[TEAM_THREADS_MAX * 8]; /* a cache line a thread */
};

static uint64_t read_chunks(const struct reading *r, uint32_t ith, uint32_t nth)
{
    uint64_t sum = 0;
    for (size_t at = ith * CHUNK; at + CHUNK <= r->memory->bytes; at += nth * CHUNK) {
        const struct span s = {{r->memory->data + at}, r->ahead, CHUNK};
        sum += r->span(&s, ONE_STREAM);
    }
    return sum;
}

static uint64_t read_rows(const struct reading *r, const char *share, size_t bytes)
{
    uint64_t sum = 0;
    for (size_t at = 0; at + N_STREAM * ROW <= bytes; at += N_STREAM * ROW) {
        struct span s = {.ahead = r->ahead, .bytes = ROW};
        for (uint32_t j = 0; j < N_STREAM; j++)
            s.at[j] = share + at + j * ROW;
        sum += r->span(&s, ROWS_AT_ONCE);
    }
    return sum;
}

static void read_run(void *arg, uint32_t ith, uint32_t nth)
{
    struct reading *r = arg;
    size_t bytes = r->memory->bytes / nth / 4096 * 4096;
    const struct span share = {{r->memory->data + bytes * ith}, r->ahead, bytes};
    r->sink[(size_t)ith * 8] =
        r->how == READ_CHUNKS ? read_chunks(r, ith, nth)
        : r->how == READ_ROWS
            ? read_rows(r, share.at[0], bytes)
            : r->span(&share, r->how == READ_INTERLEAVED ? NEXT_INTERLEAVED : ONE_STREAM);
}

struct bench_seconds roofline_read_time(struct team *team, const struct roofline_memory *m,
                                        enum roofline_read how, const struct kern_reading *by,
                                        int64_t budget_us)
{
    static struct reading r;
    r.memory = m;
    r.how = how;
    r.ahead = by->ahead_bytes;
    r.span = span_of_machine();
    return bench_time(team, read_run, &r, budget_us);
}
