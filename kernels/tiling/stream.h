/* SPDX-License-Identifier: Apache-2.0 */
/* stream - the order of a thread's software prefetches of weights; private to kernels/.
 *
 * The bandwidth of one contiguous stream is bounded by the core's hardware prefetcher, which runs a
 * limited distance ahead and restarts at every page. Eight streams have eight pages in flight. So
 * while a thread reads a window of memory from first byte to last, it prefetches the next window,
 * 256 bytes at a time, from its eight page-sized parts in rotation:
 *
 *     window  |part 0|part 1| … |part 7|      order: 0 of part 0, 0 of part 1, … 0 of part 7,
 *                                                        256 of part 0, 256 of part 1, …
 *
 * tests/bench/README.md (kernels: eight streams) has the gain over one stream; two threads at once
 * gain as much, and windows of 16 to 256 KiB in 4 to 16 parts are alike.
 *
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_STREAM_H
#define QUIRE_KERNELS_TILING_STREAM_H
#include <stddef.h>
#include <stdint.h>
#include "kernels/tiling/unroll.h"

#define STREAM_WINDOW ((size_t)32 << 10)
#define STREAM_PARTS  8u
#define STREAM_UNIT   ((size_t)256) /* bytes prefetched from one part at a time */

struct stream { /* a thread's range of a matrix */
    const char *begin, *end;
};

/* The offset in the next window to prefetch while offset `at` of this window is read. */
INLINE size_t stream_offset(size_t at)
{
    const size_t part = at / STREAM_UNIT % STREAM_PARTS, unit = at / STREAM_UNIT / STREAM_PARTS;
    return part * (STREAM_WINDOW / STREAM_PARTS) + unit * STREAM_UNIT + at % STREAM_UNIT;
}

/* Prefetch n lines of a unit into the second-level cache, up to the end of the range. */
INLINE void stream_prefetch_lines(const struct stream *s, size_t at, const uint32_t n)
{
    const char *p = s->begin + at;
    for (uint32_t i = 0; p < s->end && i < n; i++)
        __builtin_prefetch(p + (size_t)i * 64, 0, 2);
}

/* n lines from p on, all of one unit, are read now: prefetch as many of the next window. p may be
 * less than a window before the beginning. */
INLINE void stream_prefetch(const struct stream *s, const char *p, const uint32_t n)
{
    const size_t at = (size_t)(p - s->begin + (ptrdiff_t)STREAM_WINDOW);
    stream_prefetch_lines(s, at / STREAM_WINDOW * STREAM_WINDOW + stream_offset(at % STREAM_WINDOW),
                          n);
}

/* Prefetch the first window. */
INLINE void stream_open(const struct stream *s)
{
    for (size_t at = 0; at < STREAM_WINDOW; at += STREAM_UNIT)
        stream_prefetch_lines(s, stream_offset(at), STREAM_UNIT / 64);
}

#endif
