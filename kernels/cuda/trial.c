/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/trial.h"
#include <math.h>
#include <string.h>

void trial_compare(struct trial_result *r, const float *want, const float *got, size_t n)
{
    double most = 0, difference = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t want_bits, got_bits;
        memcpy(&want_bits, &want[i], sizeof want_bits);
        memcpy(&got_bits, &got[i], sizeof got_bits);
        r->n_differ += want_bits != got_bits;
        most = fmax(most, fabs((double)want[i]));
        if (isfinite(got[i]) && isfinite(want[i]))
            difference = fmax(difference, fabs((double)want[i] - (double)got[i]));
        else
            r->worst = INFINITY;
    }
    r->n += (uint32_t)n;
    r->worst = fmax(r->worst, most > 0 ? difference / most : INFINITY);
}

void *trial_take(void *base, size_t *used, size_t n)
{
    void *p = base ? (char *)base + *used : NULL;
    *used += (n + 255) / 256 * 256;
    return p;
}

uint32_t trial_draw(uint64_t *rng)
{
    *rng ^= *rng << 13;
    *rng ^= *rng >> 7;
    *rng ^= *rng << 17;
    return (uint32_t)(*rng >> 32);
}

float trial_draw_f32(uint64_t *rng)
{
    return (float)(trial_draw(rng) >> 8) * 0x1p-23f - 1;
}
