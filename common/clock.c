/* SPDX-License-Identifier: Apache-2.0 */
#include "common/clock.h"
#include <stdio.h>
#include <time.h>

int64_t clock_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t clock_ms(void)
{
    return clock_us() / 1000;
}

int64_t clock_unix(void)
{
    return (int64_t)time(NULL);
}

void clock_iso8601(char *out, size_t size)
{
    struct timespec t;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    snprintf(out, size, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ", tm.tm_year + 1900, tm.tm_mon + 1,
             tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int)(t.tv_nsec / 1000000));
}

int64_t clock_gap_ms(int64_t *turn_ms, int64_t now_ms, int64_t late_ms)
{
    const int64_t gap_ms = *turn_ms ? now_ms - *turn_ms : 0;
    *turn_ms = now_ms;
    return gap_ms >= late_ms ? gap_ms : 0;
}

int64_t clock_skip_gap(int64_t since_ms, int64_t gap_ms, int64_t now_ms)
{
    if (!since_ms || !gap_ms)
        return since_ms;
    return gap_ms < now_ms - since_ms ? since_ms + gap_ms : now_ms;
}

int64_t clock_watch_since(struct clock_watch *w, int64_t job_ms, int64_t now_ms, int64_t late_ms)
{
    const int64_t gap_ms = clock_gap_ms(&w->turn_ms, now_ms, late_ms);
    if (w->job_ms != job_ms)
        w->job_ms = w->since_ms = job_ms;
    w->since_ms = clock_skip_gap(w->since_ms, gap_ms, now_ms);
    return w->since_ms;
}
