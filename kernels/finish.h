/* SPDX-License-Identifier: Apache-2.0 */
/* finish - what becomes of the finished sums of linear, linear_quant and linear_int4: + bias, + y,
 * or silu(gate) * up, as f32 or bf16. Private to kernels/; ref/finish.h is the definition,
 * wide/finish.h the same on 16 lanes. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_FINISH_H
#define QUIRE_KERNELS_FINISH_H
#include "kernels/ops.h"

struct finish { /* fields of the arguments, as there */
    void *y;
    size_t y_stride;
    enum dtype y_dtype;
    const float *bias;
    bool accumulate, gated;
};

/* Of any of the three kinds of arguments. */
#define FINISH_OF(args)                                                          \
    ((struct finish){(args)->y, (args)->y_stride, (args)->y_dtype, (args)->bias, \
                     (args)->accumulate != 0, (args)->w.gated != 0})

#endif
