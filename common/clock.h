/* SPDX-License-Identifier: Apache-2.0 */
/* clock - monotonic time for durations, wall time for stamps. Threads: any. */
#ifndef QUIRE_COMMON_CLOCK_H
#define QUIRE_COMMON_CLOCK_H
#include <stddef.h>
#include <stdint.h>

int64_t clock_ms(void);   /* monotonic, milliseconds */
int64_t clock_us(void);   /* monotonic, microseconds; the same on all processes of one machine */
int64_t clock_unix(void); /* wall clock, seconds since 1970 */
void clock_iso8601(char *out, size_t size); /* "2026-01-02T03:04:05.678Z"; size >= 25 */

/* ---- loops that did not run (SIGSTOP, a frozen container, a suspended machine) ----
 * Such a loop has listened to no peer meanwhile: that time is no silence of theirs. */

/* Once a turn of a loop: the time since the turn before, if it is late_ms or more, else 0. turn_ms:
 * of the turn before, 0 = none; becomes now_ms. */
int64_t clock_gap_ms(int64_t *turn_ms, int64_t now_ms, int64_t late_ms);
/* Without the gap: since_ms later by it, not later than now_ms; 0 (never) stays 0. */
int64_t clock_skip_gap(int64_t since_ms, int64_t gap_ms, int64_t now_ms);

struct clock_watch { /* how long one job lasts without the gaps of the loop that looks at it */
    int64_t job_ms, since_ms, turn_ms;
};
/* Once a turn: job_ms is when the job began, 0 = there is none. When it would have begun without
 * the gaps; 0 = there is none. */
int64_t clock_watch_since(struct clock_watch *w, int64_t job_ms, int64_t now_ms, int64_t late_ms);

#endif
