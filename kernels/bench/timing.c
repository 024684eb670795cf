/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/bench/timing.h"
#include <stdlib.h>
#include <time.h>
#include "common/clock.h"

#define TIMES_MIN 5
#define TIMES_MAX 41

static int compare_f64(const void *p, const void *q)
{
    double a = *(const double *)p, b = *(const double *)q;
    return (a > b) - (a < b);
}

struct bench_seconds bench_time(struct team *t, team_fn *fn, void *arg, int64_t budget_us)
{
    double s[TIMES_MAX];
    int n = 0;
    team_run(t, fn, arg);
    const clockid_t clock = team_size(t) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    for (int64_t start = clock_us();
         n < TIMES_MAX && (n < TIMES_MIN || clock_us() - start < budget_us); n++) {
        struct timespec a, b;
        clock_gettime(clock, &a);
        team_run(t, fn, arg);
        clock_gettime(clock, &b);
        s[n] = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    }
    qsort(s, (size_t)n, sizeof *s, compare_f64);
    return (struct bench_seconds){s[0], s[n / 2]};
}

double bench_once_us(struct team *t, team_fn *fn, void *arg)
{
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    team_run(t, fn, arg);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return 1e6 * (double)(b.tv_sec - a.tv_sec) + 1e-3 * (double)(b.tv_nsec - a.tv_nsec);
}
