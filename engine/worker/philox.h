/* SPDX-License-Identifier: Apache-2.0 */
/* philox - the counter-based random generator that sampling draws from.
 *
 * philox(key, counter) is a pure function, so a draw depends only on the request's seed and the
 * token's position: a replayed, batched or preempted request draws the same numbers. Source: Salmon
 * et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011), Philox 4x32 with 10 rounds.
 * Threads: pure functions. */
#ifndef QUIRE_ENGINE_WORKER_PHILOX_H
#define QUIRE_ENGINE_WORKER_PHILOX_H
#include <stdint.h>

#define PHILOX_ROUNDS 10

static inline void philox(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u; /* golden ratio */
        k1 += 0xBB67AE85u; /* sqrt(3) - 1 */
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The draw for the token at `position` of a request: uniform in [0, 1), 53 random bits. */
static inline double philox_uniform(uint64_t seed, uint32_t position)
{
    const uint32_t counter[4] = {position, 0, 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t r[4];
    philox(r, counter, key);
    uint64_t bits = ((uint64_t)r[0] << 32 | r[1]) >> 11;
    return (double)bits * 0x1p-53;
}

#endif
