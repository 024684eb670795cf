/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic peaks: a loop of nothing but one multiply-add instruction on independent
 * accumulators. */
#include "kcheck.h"
#include "common/clock.h"

#ifdef __x86_64__
#include <immintrin.h>

#define N_ACC  12 /* covers latency 4-6 x 2 per cycle, and fits 16 registers */
#define N_ITER 1000000u

typedef float peak_fn(void);

/* The empty asm makes x new in every turn, so that nothing is hoisted out of the loop. */
__attribute__((target("avx2,fma"))) static float peak_fma256(void)
{
    __m256 acc[N_ACC], x = _mm256_set1_ps(0.5f);
    for (int j = 0; j < N_ACC; j++)
        acc[j] = x;
    for (uint32_t i = 0; i < N_ITER; i++) {
        __asm__ volatile("" : "+x"(x));
        for (int j = 0; j < N_ACC; j++)
            acc[j] = _mm256_fmadd_ps(x, x, acc[j]);
    }
    for (int j = 1; j < N_ACC; j++)
        acc[0] = _mm256_add_ps(acc[0], acc[j]);
    return _mm256_cvtss_f32(acc[0]);
}

__attribute__((target("avx512f"))) static float peak_fma512(void)
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

__attribute__((target("avx512f,avx512bf16"))) static float peak_bf16(void)
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

struct peak {
    peak_fn *fn;
    float sink[TEAM_THREADS_MAX * 16];
};

static void peak_run(void *arg, uint32_t ith, uint32_t nth)
{
    struct peak *p = arg;
    (void)nth;
    p->sink[ith * 16] = p->fn();
}

void kc_peaks(struct kc_bench *b)
{
    static const struct {
        const char *name;
        uint32_t caps, flop; /* per instruction */
        peak_fn *fn;
    } peaks[KC_PEAKS] = {
        {"f32 fma, 8 lanes", CAP_AVX2, 16, peak_fma256},
        {"f32 fma, 16 lanes", CAP_AVX512, 32, peak_fma512},
        {"bf16 dot product, 32 lanes", CAP_AVX512_BF16, 64, peak_bf16},
    };
    static struct peak p;
    for (int i = 0; i < KC_PEAKS; i++) {
        if ((kern_caps_machine() & peaks[i].caps) != peaks[i].caps)
            continue;
        p.fn = peaks[i].fn;
        double s = kc_time_team(b->team, peak_run, &p).best;
        b->gflops[i] = (double)N_ACC * N_ITER * peaks[i].flop * team_size(b->team) / s * 1e-9;
        printf("peak, %s, %u threads: %.0f GFLOP/s\n", peaks[i].name, team_size(b->team),
               b->gflops[i]);
    }
}
#else
void kc_peaks(struct kc_bench *b)
{
    (void)b;
}
#endif
