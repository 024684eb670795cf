/* SPDX-License-Identifier: Apache-2.0 */
/* reading - the choice of rows of kernels/reading.def for this machine: those of its processor,
 * else what an earlier measurement found, else a measurement of at most 50 ms whose result is kept
 * in the user's cache folder (quire/tune/reading-VENDOR-FAMILY-MODEL-CAPS-THREADS).
 * Threads: the team's owner. */
#ifndef QUIRE_KERNELS_BENCH_READING_H
#define QUIRE_KERNELS_BENCH_READING_H
#include "kernels/bench/timing.h"
#include "kernels/kern.h"
#include "kernels/reading.h"

enum reading_source {
    READING_OF_TABLE,    /* the processor has a row */
    READING_OF_FILE,     /* measured before */
    READING_OF_PROBE,    /* measured now, and kept if the cache folder can be written */
    READING_OF_NO_PROBE, /* less memory than READING_PROBE_BYTES: the default, which is not kept */
};
#define READING_PROBE_BYTES ((size_t)256 << 20) /* so that caches do not answer for memory */
#define READING_PROBE_US    50000               /* of all products */

struct reading_memory {
    const char *data; /* [bytes], 64-byte aligned */
    size_t bytes;
};
/* Choose and take readings (kern_read_by) for p, which is this machine's but in tests, and the
 * products of `kern`. m: packed weights, or any memory that was written; it is read as matrices of
 * each product. */
enum reading_source reading_choose(struct team *team, const struct kern_table *kern,
                                   const struct reading_memory *m, const struct kern_processor *p);
/* "measured now"; for logs and tables. */
const char *reading_source_text(enum reading_source s);
#define READING_TEXT_MAX 200
/* "floats prefetched 1 KiB ahead, int8 …": what is taken. */
void reading_describe(char out[READING_TEXT_MAX]);

#endif
