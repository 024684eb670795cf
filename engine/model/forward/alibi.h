/* SPDX-License-Identifier: Apache-2.0 */
/* alibi - slopes of attention with linear biases. Threads: pure functions. */
#ifndef QUIRE_ENGINE_MODEL_FORWARD_ALIBI_H
#define QUIRE_ENGINE_MODEL_FORWARD_ALIBI_H
#include <math.h>
#include <stdint.h>

/* Slopes of heads 1 … n: 2^(-8 i / n) for a power of 2; else those of the power of 2 below n, then
 * every second one of twice that power. Source: arXiv:2108.12409 and its authors' code. */
static inline float alibi_slope(uint32_t head, uint32_t n)
{
    uint32_t below = 1;
    while (2 * below <= n)
        below *= 2;
    return head < below ? (float)exp2(-8.0 * (head + 1) / below)
                        : (float)exp2(-4.0 * (2 * (head - below) + 1) / below);
}

#endif
