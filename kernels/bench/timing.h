/* SPDX-License-Identifier: Apache-2.0 */
/* timing - repeated timing of a function that a whole team runs. Threads: the team's owner. */
#ifndef QUIRE_KERNELS_BENCH_TIMING_H
#define QUIRE_KERNELS_BENCH_TIMING_H
#include "common/team.h"

/* Seconds of one call. Rates and ceilings both use the best time, so that their ratio is meaningful
 * on a busy machine; the median is printed for information. */
struct bench_seconds {
    double best, median;
};
/* Calls fn once to touch the pages, then 5 to 41 times for about `budget_us`. A team of one is
 * timed by its CPU time, which is accurate on a busy machine too. */
struct bench_seconds bench_time(struct team *t, team_fn *fn, void *arg, int64_t budget_us);

/* Microseconds of one call, by the clock. */
double bench_once_us(struct team *t, team_fn *fn, void *arg);

#endif
