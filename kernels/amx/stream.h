/* SPDX-License-Identifier: Apache-2.0 */
/* stream - the order in which a thread asks memory for the weights it will read; private to
 * kernels/amx.
 *
 * What a core fetches of one contiguous stream is bounded by its prefetcher, which follows a page
 * so far and begins anew in the next one. Eight streams have eight pages under way. So while a
 * thread reads a window of memory from first byte to last, it asks for the next window by turns
 * from its eight pages, 256 bytes each:
 *
 *     window  |page 0|page 1| … |page 7|      asked for: 0 of page 0, 0 of page 1, … 0 of page 7,
 *                                                        256 of page 0, 256 of page 1, …
 *
 * One thread of a Sapphire Rapids guest reads 9.5-11 GB/s by prefetching one stream 2 KiB ahead and
 * 12.3-14.7 this way (16 to 64 KiB a window, 4 to 16 pages: the same), into tiles 8 and 12.5; both
 * threads at once gain as much (medians and best of 9, a busy machine, 2026-11). Windows begin at
 * multiples of their size; the first one of a matrix nobody asks for.
 *
 * Threads: pure functions. */
#ifndef QUIRE_KERNELS_AMX_STREAM_H
#define QUIRE_KERNELS_AMX_STREAM_H
#include <immintrin.h>
#include <stdint.h>
#include "kernels/unroll.h"

#define STREAM_WINDOW 0x8000u
#define STREAM_UNIT   256u /* bytes asked for of one page at a time */

/* The line of the next window whose turn it is when the line of p is read. */
INLINE const char *stream_next(const char *p)
{
    const uintptr_t a = (uintptr_t)p, whole = a / STREAM_WINDOW * STREAM_WINDOW;
    const uintptr_t page = a / STREAM_UNIT % 8, unit = a % STREAM_WINDOW / STREAM_UNIT / 8;
    return (const char *)(whole + STREAM_WINDOW + page * 4096 + unit * STREAM_UNIT +
                          a % STREAM_UNIT);
}

/* n lines from p on are read, all of one unit: asks for as many into the second-level cache, unless
 * they lie behind `end`. */
INLINE void stream_ask(const char *p, const uint32_t n, const char *end)
{
    const char *next = stream_next(p);
    for (uint32_t i = 0; next < end && i < n; i++)
        _mm_prefetch(next + (size_t)i * 64, _MM_HINT_T1);
}

#endif
