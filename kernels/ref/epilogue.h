/* SPDX-License-Identifier: Apache-2.0 */
/* epilogue - bias, old y, gating and rounding; formula: ops.h. Order of the steps, each rounded to
 * f32: + bias, + y; gated: + bias of both, then those of activate (ref/act.h).
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_REF_EPILOGUE_H
#define QUIRE_KERNELS_REF_EPILOGUE_H
#include "kernels/ops/epilogue.h"
#include "kernels/ref/act.h"
#include "kernels/ref/element.h"

/* The sums of n outputs of row `row` from o on, o a multiple of 2 * KERN_GATE_INTERLEAVE. */
static inline void ref_epilogue(const struct epilogue *f, const float *sum, size_t row, uint32_t o,
                                uint32_t n)
{
    const size_t at = row * f->y_stride + (f->gated ? o / 2 : o);
    float v[KERN_PANEL] = {0}; /* gated: n is a multiple of 2 * KERN_GATE_INTERLEAVE */
    for (uint32_t i = 0; i < n; i++) {
        v[i] = f->bias ? sum[i] + f->bias[o + i] : sum[i];
        if (f->accumulate)
            v[i] = v[i] + ((const float *)f->y)[at + i];
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c =
            i / (2 * KERN_GATE_INTERLEAVE) * KERN_GATE_INTERLEAVE + i % KERN_GATE_INTERLEAVE;
        if (!f->gated)
            element_set(f->y, f->y_dtype, at + i, v[i]);
        else if (i / KERN_GATE_INTERLEAVE % 2 == 0)
            element_set(f->y, f->y_dtype, at + c,
                        ref_act(f->act, v[i]) * v[i + KERN_GATE_INTERLEAVE]);
    }
}

#endif
