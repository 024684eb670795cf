/* SPDX-License-Identifier: Apache-2.0 */
/* Timing: the ceilings of the machine first, then every variant as a fraction of them, all in
 * one run. */
#include "kcheck.h"
#include <sys/mman.h>
#include "common/clock.h"

#define TIMES_MAX  41
#define TIME_US    400000 /* spent on one measurement, about */
#define READ_BYTES ((size_t)512 << 20)

static int compare_f64(const void *p, const void *q)
{
    double a = *(const double *)p, b = *(const double *)q;
    return (a > b) - (a < b);
}

struct kc_seconds kc_time_team(struct team *t, team_fn *fn, void *arg)
{
    double s[TIMES_MAX];
    int n = 0;
    team_run(t, fn, arg); /* touches the pages */
    /* one thread waits for nobody: its own CPU time is right on a busy machine too */
    const clockid_t clock = team_size(t) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    for (int64_t start = clock_us(); n < TIMES_MAX && (n < 5 || clock_us() - start < TIME_US);
         n++) {
        struct timespec a, b;
        clock_gettime(clock, &a);
        team_run(t, fn, arg);
        clock_gettime(clock, &b);
        s[n] = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    }
    qsort(s, (size_t)n, sizeof *s, compare_f64);
    return (struct kc_seconds){s[0], s[n / 2]};
}

struct call {
    struct kc_bench *b;
    const void *args;
};

static void call_run(void *arg, uint32_t ith, uint32_t nth)
{
    const struct call *c = arg;
    struct kern_exec x = {.ith = ith,
                          .nth = nth,
                          .scratch = c->b->scratch[ith],
                          .scratch_bytes = kern_scratch_bytes(8192, 128, 256)};
    c->b->k->variant->call(c->args, &x);
}

struct kc_seconds kc_time(struct kc_bench *b, const void *args)
{
    struct call c = {b, args};
    return kc_time_team(b->team, call_run, &c);
}

static void print_line(struct kc_bench *b, const char *shape, struct kc_seconds s, const char *rest)
{
    printf("%-13s %-11s %-35s median %8.3f best %8.3f ms %s\n", b->k->variant->op,
           b->k->variant->name, shape, s.median * 1e3, s.best * 1e3, rest);
}

void kc_print_bytes(struct kc_bench *b, const char *shape, struct kc_seconds s, double bytes)
{
    char rest[64];
    double gbs = bytes / s.best * 1e-9;
    snprintf(rest, sizeof rest, "%7.1f GB/s    %5.2f of read", gbs, gbs / b->read_gbs);
    print_line(b, shape, s, rest);
}

void kc_print_flop(struct kc_bench *b, const char *shape, struct kc_seconds s, double flop)
{
    char rest[64];
    double gflops = flop / s.best * 1e-9, peak = b->gflops[b->i_peak];
    snprintf(rest, sizeof rest, "%7.1f GFLOP/s %5.2f of peak", gflops,
             peak > 0 ? gflops / peak : 0);
    print_line(b, shape, s, rest);
}

struct stream {
    const unsigned char *p;
    uint64_t sink[TEAM_THREADS_MAX * 8];
};

#define AHEAD \
    2048 /* bytes; without the prefetch one thread reads little more than half of what it can */

/* Sums one contiguous share per thread; eight independent sums so that adds do not bound it. */
static void stream_run(void *arg, uint32_t ith, uint32_t nth)
{
    struct stream *s = arg;
    const uint64_t *p = (const uint64_t *)(const void *)(s->p + READ_BYTES / nth / 64 * 64 * ith);
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < READ_BYTES / nth / 64; i++) {
        __builtin_prefetch((const char *)(p + i * 8) + AHEAD);
        for (int j = 0; j < 8; j++)
            sum[j] += p[i * 8 + (size_t)j];
    }
    for (int j = 1; j < 8; j++)
        sum[0] += sum[j];
    s->sink[ith * 8] = sum[0];
}

void *kc_map(size_t bytes, bool huge)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Q_ASSERT(p != MAP_FAILED);
    (void)madvise(p, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(p, 1, bytes);
    return p;
}

void kc_unmap(void *p, size_t bytes)
{
    munmap(p, bytes);
}

void kc_roofline(struct kc_bench *b)
{
    static struct stream s;
    for (int huge = 0; huge < 2; huge++) {
        void *p = kc_map(READ_BYTES, huge);
        s.p = p;
        double gbs = (double)READ_BYTES / kc_time_team(b->team, stream_run, &s).best * 1e-9;
        printf("read, one contiguous stream per thread, %u threads, %s pages: %.1f GB/s\n",
               team_size(b->team), huge ? "huge" : "small", gbs);
        b->read_gbs = gbs > b->read_gbs ? gbs : b->read_gbs;
        kc_unmap(p, READ_BYTES);
    }
    kc_peaks(b);
}
