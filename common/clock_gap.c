/* SPDX-License-Identifier: Apache-2.0 */
/* The part of clock.h that reads no clock: the simulator has its own, and uses this. */
#include "common/clock.h"

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
