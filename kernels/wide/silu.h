/* SPDX-License-Identifier: Apache-2.0 */
/* silu - silu(gate) * up on 16 lanes; formula: ref/silu_mul.c. Threads: pure functions. */
#ifndef QUIRE_KERNELS_WIDE_SILU_H
#define QUIRE_KERNELS_WIDE_SILU_H
#include "kernels/wide/exp.h"
#ifdef VEC_SUMS

INLINE struct vec vec_silu_mul(struct vec gate, struct vec up)
{
    const struct vec e = vec_exp(vec_sub(vec_set(0), gate));
    return vec_mul(vec_div(gate, vec_add(vec_set(1), e)), up);
}

#endif
#endif
