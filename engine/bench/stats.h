/* SPDX-License-Identifier: Apache-2.0 */
/* stats - samples and their statistics.
 *
 * Percentiles are interpolated linearly between the two nearest samples, the standard deviation is
 * that of the samples themselves (divided by n): both as numpy's defaults, so that figures
 * compare with those of other tools. Without samples every result is NaN. Threads: one owner. */
#ifndef QUIRE_ENGINE_BENCH_STATS_H
#define QUIRE_ENGINE_BENCH_STATS_H
#include <stddef.h>
#include "common/err.h"

#define SAMPLES_MAX ((size_t)1 << 28)

struct samples {
    double *x; /* [n] */
    size_t n, cap;
};
/* clang-format off */
#define SAMPLES_INIT {NULL, 0, 0}
/* clang-format on */
/* Errors: Q_NO_MEMORY, Q_TOO_LARGE. */
FALLIBLE samples_add(struct samples *s, double x, struct q_err *e);
void samples_release(struct samples *s);
void samples_sort(struct samples *s); /* before samples_percentile and samples_median */
double samples_percentile(const struct samples *s, double percent);
double samples_median(const struct samples *s);
double samples_mean(const struct samples *s);
double samples_std(const struct samples *s);

#endif
