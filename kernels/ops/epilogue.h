/* SPDX-License-Identifier: Apache-2.0 */
/* epilogue - the last steps on the sums of linear, linear_int8 and linear_w4a8: + bias, + y, or
 * act(gate) * up, as f32 or bf16. Private to kernels/; ref/epilogue.h is the definition,
 * wide/epilogue.h the same on 16 lanes. Threads: as ops.h. */
#ifndef QUIRE_KERNELS_OPS_EPILOGUE_H
#define QUIRE_KERNELS_OPS_EPILOGUE_H
#include "kernels/ops/ops_elementwise.h"
#include "kernels/tiling/split.h"

struct epilogue { /* fields of the same names as in the arguments */
    void *y;
    size_t y_stride;
    enum dtype y_dtype;
    const float *bias;
    bool accumulate, gated;
    enum kern_act act;
};

/* Of any of the three kinds of arguments. */
#define EPILOGUE_OF(args)                                                          \
    ((struct epilogue){(args)->y, (args)->y_stride, (args)->y_dtype, (args)->bias, \
                       (args)->accumulate != 0, (args)->w.gated != 0,              \
                       (enum kern_act)(args)->w.act})

/* Prefetch the cache lines of y to which outputs o … o + n - 1 of some rows will be written. A
 * thread's stores retire in order, so a store that misses the cache delays all later ones. */
static inline void epilogue_prefetch(const struct epilogue *f, struct range rows, uint32_t o,
                                     uint32_t n)
{
    const size_t element = f->y_dtype == DT_BF16 ? 2 : 4, columns = f->gated ? 2 : 1;
    for (size_t r = rows.begin; r < rows.end; r++) {
        const char *y = (const char *)f->y + (r * f->y_stride + o / columns) * element;
        for (size_t i = 0; i < n / columns * element; i += 64)
            __builtin_prefetch(y + i, 1);
    }
}

#endif
