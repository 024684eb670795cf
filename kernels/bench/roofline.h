/* SPDX-License-Identifier: Apache-2.0 */
/* roofline - the ceilings of this machine: memory bandwidth and arithmetic peaks.
 *
 * Bandwidth depends on the access pattern: memory is read in the four patterns in which a decoder
 * may read its weights, in small and in huge pages, and by every row of kernels/reading.def; the
 * fastest is the ceiling. A peak is measured by a loop of one instruction on independent
 * accumulators; the peak of a type is that of the fastest instruction that computes it, so that a
 * machine without a bf16 dot product has the peak of f32 for bf16. An operation is a multiplication
 * or an addition: a fused multiply-add of 16 lanes is 32.
 * Threads: the team's owner. */
#ifndef QUIRE_KERNELS_BENCH_ROOFLINE_H
#define QUIRE_KERNELS_BENCH_ROOFLINE_H
#include <stddef.h>
#include "kernels/bench/reading.h"

/* access patterns of the threads in one array */
enum roofline_read {
    READ_SHARES,      /* each its own contiguous half, third, … */
    READ_INTERLEAVED, /* the same, with the next 32 KiB prefetched in eight streams */
    READ_CHUNKS,      /* 64 KiB chunks, assigned round robin */
    READ_ROWS,        /* its share, in four rows of 1792 bytes at once */
    READ_COUNT
};
enum roofline_peak {
    PEAK_F32_8,     /* fused multiply-add, 8 lanes (AVX2) */
    PEAK_F32_16,    /* 16 lanes (AVX-512) */
    PEAK_BF16_32,   /* vdpbf16ps, 32 products */
    PEAK_I8_AVX2,   /* vpmaddubsw, vpmaddwd, vpaddd: 32 products in three instructions */
    PEAK_I8_VNNI32, /* vpdpbusd in 256 bits (AVX-VNNI) */
    PEAK_I8_VNNI64, /* vpdpbusd in 512 bits (AVX-512 VNNI) */
    PEAK_BF16_AMX,  /* tdpbf16ps, 16 x 16 x 32 products */
    PEAK_I8_AMX,    /* tdpbsud, 16 x 16 x 64 products */
    PEAK_COUNT
};

struct roofline_row {
    const char *name; /* "read, 64 KiB chunks, huge pages" */
    const char *unit; /* "GB/s", "GOP/s", or "us" (lower is better) */
    double best, median;
};
#define ROOFLINE_ROWS_MAX (2 * READ_COUNT + KERN_READINGS + PEAK_COUNT + 1)

struct roofline {
    uint32_t n_thread;
    double read_gb_s;                          /* the fastest access pattern */
    double peak_gop_s[PEAK_COUNT];             /* 0: the machine lacks the instruction */
    double fp32_gop_s, bf16_gop_s, int8_gop_s; /* the fastest for that type */
    double barrier_us; /* median; 0 with one thread. A layer that decodes has six of them */
    struct roofline_row rows[ROOFLINE_ROWS_MAX];
    uint32_t n_row;
    char reading[READING_TEXT_MAX]; /* what is taken for this machine: reading_describe */
    const char *reading_source;     /* "measured now"; NULL: not measured */
};

struct roofline_options {
    bool quick; /* only the fast access patterns, huge pages only, less time per row */
    void (*on_row)(void *ctx, const struct roofline_row *row); /* called for each result; may be
                                                                * NULL */
    void *ctx;
};
/* Measures bandwidth, peaks and the team's barrier. Takes about 6 seconds (quick: 2) and 512 MB of
 * memory (less if less is free). Errors: Q_NO_MEMORY. */
FALLIBLE roofline_measure(struct roofline *r, struct team *team, const struct roofline_options *o,
                          struct q_err *e);

/* Parts of roofline_measure (read.c, peak.c). */
struct roofline_memory {
    const char *data; /* [bytes], 64-byte aligned, written once */
    size_t bytes;
};
struct bench_seconds roofline_read_time(struct team *team, const struct roofline_memory *m,
                                        enum roofline_read how, const struct kern_reading *by,
                                        int64_t budget_us);
/* Operations per second / 1e9; best 0 when the machine lacks the instruction. */
struct roofline_row roofline_peak_row(struct team *team, enum roofline_peak which,
                                      int64_t budget_us);

#endif
