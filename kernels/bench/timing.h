/* SPDX-License-Identifier: Apache-2.0 */
/* timing - how long a call by a whole team takes, over and over.
 * Threads: the team's owner. */
#ifndef QUIRE_KERNELS_BENCH_TIMING_H
#define QUIRE_KERNELS_BENCH_TIMING_H
#include "common/team.h"

/* Of one call. Rates and ceilings are both taken of the best, so that their ratio means something
 * on a machine that does other work too; the median is for the reader. */
struct bench_seconds {
    double best, median;
};
/* Calls fn once to touch the pages, then 5 to 41 times for about `budget_us`. A team of one is
 * timed by its own CPU time, which is right on a busy machine too. */
struct bench_seconds bench_time(struct team *t, team_fn *fn, void *arg, int64_t budget_us);

#endif
