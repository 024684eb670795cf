/* SPDX-License-Identifier: Apache-2.0 */
/* A Feistel network (Luby and Rackoff, 1988) permutes the numbers of 2k bits, the smallest 4^k that
 * is not below n; a number outside of 0 … n - 1 goes through it again until it is inside (cycle
 * walking), which takes fewer than four passes on the mean and keeps it a permutation. */
#include "engine/distill/sequence_order.h"

#define ROUNDS 6u

/* The finalizer of SplitMix64 (Steele, Lea and Flood, 2014). */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

uint64_t sequence_order_at(const struct sequence_order *o, uint64_t place)
{
    const uint64_t key = mix(mix(o->seed) ^ o->epoch);
    uint32_t half = 1; /* bits */
    while (half < 32 && 1ull << 2 * half < o->n)
        half++;
    const uint64_t mask = (1ull << half) - 1;
    do {
        uint64_t left = place >> half, right = place & mask;
        for (uint32_t i = 0; i < ROUNDS; i++) {
            const uint64_t next = left ^ (mix(key ^ mix(right << 8 | i)) & mask);
            left = right;
            right = next;
        }
        place = left << half | right;
    } while (place >= o->n);
    return place;
}
