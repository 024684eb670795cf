/* SPDX-License-Identifier: Apache-2.0 */
/* noop_worker - what a worker of zero cost answers; for tests and benchmarks alone. */
#ifndef QUIRE_TESTS_BENCH_NOOP_WORKER_H
#define QUIRE_TESTS_BENCH_NOOP_WORKER_H
#include <stdint.h>

#define NOOP_VOCAB   32000u
#define NOOP_LEN_MAX 4096u

/* The token at a position of a sequence: nothing but these two decides. */
static inline uint32_t noop_token(uint64_t seed, uint32_t position)
{
    uint64_t h = (seed + position) * UINT64_C(0x9e3779b97f4a7c15);
    return 3 + (uint32_t)(h >> 40) % (NOOP_VOCAB - 3); /* never bos or eos */
}

#endif
