/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic peaks: a loop of one multiply-add instruction on independent accumulators. The
 * instructions are written as assembly, so that their measurement does not depend on compiler flags
 * or on the kernels' caps; each is preceded by a check of the machine. */
#include <string.h>
#include "kernels/bench/roofline.h"
#include "kernels/kern.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <immintrin.h>

#define N_ACC  12 /* covers latency 4-6 x 2 per cycle, and fits 16 registers */
#define N_ITER 400000u

typedef float peak_fn(void);

/* One iteration: INSTRUCTION(acc[j]) for each accumulator. The asm is volatile: nothing is
 * hoisted. */
#define ITERATION(INSTRUCTION)            \
    for (uint32_t i = 0; i < N_ITER; i++) \
        for (int j = 0; j < N_ACC; j++) { \
            INSTRUCTION;                  \
        }

__attribute__((target("avx2,fma"))) static float peak_f32_8(void)
{
    __m256 acc[N_ACC], x = _mm256_set1_ps(0.5f);
    for (int j = 0; j < N_ACC; j++)
        acc[j] = x;
    for (uint32_t i = 0; i < N_ITER; i++) {
        __asm__ volatile("" : "+x"(x)); /* x is new in every iteration */
        for (int j = 0; j < N_ACC; j++)
            acc[j] = _mm256_fmadd_ps(x, x, acc[j]);
    }
    for (int j = 1; j < N_ACC; j++)
        acc[0] = _mm256_add_ps(acc[0], acc[j]);
    return _mm256_cvtss_f32(acc[0]);
}

__attribute__((target("avx512f"))) static float peak_f32_16(void)
{
    __m512 acc[N_ACC], x = _mm512_set1_ps(0.5f);
    for (int j = 0; j < N_ACC; j++)
        acc[j] = x;
    for (uint32_t i = 0; i < N_ITER; i++) {
        __asm__ volatile("" : "+v"(x));
        for (int j = 0; j < N_ACC; j++)
            acc[j] = _mm512_fmadd_ps(x, x, acc[j]);
    }
    for (int j = 1; j < N_ACC; j++)
        acc[0] = _mm512_add_ps(acc[0], acc[j]);
    return _mm512_cvtss_f32(acc[0]);
}

__attribute__((target("avx512f,avx512bf16"))) static float peak_bf16_32(void)
{
    __m512 acc[N_ACC];
    __m512i x = _mm512_set1_epi32(0x3f003f00); /* 0.5, 0.5 */
    for (int j = 0; j < N_ACC; j++)
        acc[j] = _mm512_setzero_ps();
    for (uint32_t i = 0; i < N_ITER; i++) {
        __asm__ volatile("" : "+v"(x));
        for (int j = 0; j < N_ACC; j++)
            acc[j] = _mm512_dpbf16_ps(acc[j], (__m512bh)x, (__m512bh)x);
    }
    for (int j = 1; j < N_ACC; j++)
        acc[0] = _mm512_add_ps(acc[0], acc[j]);
    return _mm512_cvtss_f32(acc[0]);
}

__attribute__((target("avx2"))) static float peak_i8_avx2(void)
{
    __m256i acc[N_ACC], x = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
    for (int j = 0; j < N_ACC; j++)
        acc[j] = _mm256_setzero_si256();
    for (uint32_t i = 0; i < N_ITER; i++)
        for (int j = 0; j < N_ACC; j++) {
            __asm__ volatile("" : "+x"(x)); /* the products of each accumulator are its own */
            __m256i p = _mm256_madd_epi16(_mm256_maddubs_epi16(x, x), ones);
            acc[j] = _mm256_add_epi32(acc[j], p);
        }
    for (int j = 1; j < N_ACC; j++)
        acc[0] = _mm256_add_epi32(acc[0], acc[j]);
    return (float)_mm256_cvtsi256_si32(acc[0]);
}

/* The same instruction under two encodings: {vex} is AVX-VNNI. */
__attribute__((target("avx2"))) static float peak_i8_vnni32(void)
{
    __m256i acc[N_ACC], x = _mm256_set1_epi8(1);
    for (int j = 0; j < N_ACC; j++)
        acc[j] = _mm256_setzero_si256();
    ITERATION(__m256i sum = acc[j]; /* an element of an array would stay in memory */
              __asm__ volatile("%{vex%} vpdpbusd %1, %1, %0"
                               : "+x"(sum)
                               : "x"(x));
              acc[j] = sum)
    for (int j = 1; j < N_ACC; j++)
        acc[0] = _mm256_add_epi32(acc[0], acc[j]);
    return (float)_mm256_cvtsi256_si32(acc[0]);
}

__attribute__((target("avx512f,avx512vnni"))) static float peak_i8_vnni64(void)
{
    __m512i acc[N_ACC], x = _mm512_set1_epi8(1);
    for (int j = 0; j < N_ACC; j++)
        acc[j] = _mm512_setzero_si512();
    ITERATION(__m512i sum = acc[j]; __asm__ volatile("vpdpbusd %1, %1, %0"
                                                     : "+v"(sum)
                                                     : "v"(x));
              acc[j] = sum)
    for (int j = 1; j < N_ACC; j++)
        acc[0] = _mm512_add_epi32(acc[0], acc[j]);
    return (float)_mm512_reduce_add_epi32(acc[0]);
}

/* Four tiles of sums in rotation, which hides their latency; N_ITER * N_ACC / 16 instructions. */
#define N_TILES (N_ITER * N_ACC / 64)

struct tile_config { /* the operand of LDTILECFG; Intel SDM volume 1, chapter 18 */
    uint8_t palette, start_row, unused[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

__attribute__((target("amx-tile"))) static void tiles_set(void)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 6; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("" ::"r"(&c) : "memory"); /* gcc 12 thinks 8 bytes of it are read */
    _tile_loadconfig(&c);                      /* and the tiles are zeros */
}

__attribute__((target("amx-tile,amx-bf16"))) static float peak_bf16_amx(void)
{
    tiles_set();
    for (uint32_t i = 0; i < N_TILES; i++) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 5);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_release();
    return 0;
}

__attribute__((target("amx-tile,amx-int8"))) static float peak_i8_amx(void)
{
    tiles_set();
    for (uint32_t i = 0; i < N_TILES; i++) {
        _tile_dpbsud(0, 4, 5);
        _tile_dpbsud(1, 4, 5);
        _tile_dpbsud(2, 4, 5);
        _tile_dpbsud(3, 4, 5);
    }
    _tile_release();
    return 0;
}

/* Source: Intel SDM volume 2, CPUID leaf 7. */
static bool has_leaf7(uint32_t subleaf, char reg, uint32_t bit)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, subleaf, &a, &b, &c, &d) && ((reg == 'a' ? a : c) >> bit & 1);
}

static bool machine_has(enum roofline_peak which)
{
    const uint32_t caps = kern_caps_machine(); /* the system saves the registers, too */
    switch (which) {
    case PEAK_F32_8:
    case PEAK_I8_AVX2:
        return caps & CAP_AVX2;
    case PEAK_F32_16:
        return caps & CAP_AVX512;
    case PEAK_BF16_32:
        return caps & CAP_AVX512_BF16;
    case PEAK_I8_VNNI32:
        return (caps & CAP_AVX2) && has_leaf7(1, 'a', 4);
    case PEAK_I8_VNNI64:
        return (caps & CAP_AVX512) && has_leaf7(0, 'c', 11);
    case PEAK_BF16_AMX:
        return caps & CAP_AMX_BF16;
    case PEAK_I8_AMX:
        return caps & CAP_AMX_INT8;
    default:
        return false;
    }
}

static const struct {
    const char *name;
    uint32_t n_op; /* per iteration and accumulator */
    peak_fn *fn;
} peaks[PEAK_COUNT] = {
    {"f32 multiply-add, 8 lanes", 16, peak_f32_8},
    {"f32 multiply-add, 16 lanes", 32, peak_f32_16},
    {"bf16 dot product, 32 products", 64, peak_bf16_32},
    {"int8 by vpmaddubsw, 32 products", 64, peak_i8_avx2},
    {"int8 dot product, 32 products", 64, peak_i8_vnni32},
    {"int8 dot product, 64 products", 128, peak_i8_vnni64},
    {"bf16 tiles", 2 * 16 * 16 * 32 / 16, peak_bf16_amx},
    {"int8 tiles", 2 * 16 * 16 * 64 / 16, peak_i8_amx},
};

struct turning {
    peak_fn *fn;
    float sink[TEAM_THREADS_MAX * 16];
};

static void peak_run(void *arg, uint32_t ith, uint32_t nth)
{
    struct turning *t = arg;
    (void)nth;
    t->sink[(size_t)ith * 16] = t->fn();
}

struct roofline_row roofline_peak_row(struct team *team, enum roofline_peak which,
                                      int64_t budget_us)
{
    static struct turning t;
    struct roofline_row row = {peaks[which].name, "GOP/s", 0, 0};
    if (!machine_has(which))
        return row;
    t.fn = peaks[which].fn;
    struct bench_seconds s = bench_time(team, peak_run, &t, budget_us);
    double giga = (double)N_ACC * N_ITER * peaks[which].n_op * team_size(team) * 1e-9;
    row.best = giga / s.best;
    row.median = giga / s.median;
    return row;
}
#else
struct roofline_row roofline_peak_row(struct team *team, enum roofline_peak which,
                                      int64_t budget_us)
{
    (void)team, (void)which, (void)budget_us;
    return (struct roofline_row){"", "GOP/s", 0, 0};
}
#endif
