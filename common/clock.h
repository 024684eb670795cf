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

#endif
