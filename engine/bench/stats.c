/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/bench/stats.h"
#include <math.h>
#include <stdlib.h>
#include "common/mem.h"

enum q_code samples_add(struct samples *s, double x, struct q_err *e)
{
    enum q_code rc = q_grow(&s->x, &s->cap, s->n + 1, sizeof *s->x, SAMPLES_MAX, e);
    if (!rc)
        s->x[s->n++] = x;
    return rc;
}

void samples_release(struct samples *s)
{
    q_free(s->x);
    *s = (struct samples)SAMPLES_INIT;
}

static int compare_samples(const void *p, const void *q)
{
    double a = *(const double *)p, b = *(const double *)q;
    return (a > b) - (a < b);
}

void samples_sort(struct samples *s)
{
    if (s->n)
        qsort(s->x, s->n, sizeof *s->x, compare_samples);
}

double samples_percentile(const struct samples *s, double percent)
{
    if (!s->n)
        return NAN;
    double at = percent / 100 * (double)(s->n - 1);
    size_t below = (size_t)at;
    if (below + 1 >= s->n)
        return s->x[s->n - 1];
    return s->x[below] + (at - (double)below) * (s->x[below + 1] - s->x[below]);
}

double samples_median(const struct samples *s)
{
    return samples_percentile(s, 50);
}

double samples_mean(const struct samples *s)
{
    double sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->x[i];
    return s->n ? sum / (double)s->n : NAN;
}

double samples_std(const struct samples *s)
{
    double mean = samples_mean(s), sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += (s->x[i] - mean) * (s->x[i] - mean);
    return s->n ? sqrt(sum / (double)s->n) : NAN;
}
