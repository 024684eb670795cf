/* SPDX-License-Identifier: Apache-2.0 */
/* epilogue - bias, old y, gating and rounding on 16 lanes; order of the steps: ref/epilogue.h.
 * Threads: as ops.h. */
#ifndef QUIRE_KERNELS_WIDE_EPILOGUE_H
#define QUIRE_KERNELS_WIDE_EPILOGUE_H
#include "kernels/ops/epilogue.h"
#include "kernels/wide/activate.h"
#include "kernels/wide/silu.h"
#ifdef VEC_SUMS

INLINE void epilogue_store(const struct epilogue *f, struct vec v, size_t at, uint32_t n)
{
    if (f->y_dtype == DT_BF16)
        vec_store_bf16_n((uint16_t *)f->y + at, v, n);
    else if (n == 16)
        vec_store((float *)f->y + at, v);
    else
        vec_store_n((float *)f->y + at, v, n);
}

/* n <= 16 outputs that are not gated, from o on. */
INLINE void epilogue_plain(const struct epilogue *f, struct vec v, size_t row, uint32_t o,
                           uint32_t n)
{
    const size_t at = row * f->y_stride + o;
    const float *y = (const float *)f->y + at;
    if (f->bias)
        v = vec_add(v, n == 16 ? vec_load(f->bias + o) : vec_load_n(f->bias + o, n));
    if (f->accumulate)
        v = vec_add(v, n == 16 ? vec_load(y) : vec_load_n(y, n));
    epilogue_store(f, v, at, n);
}

/* What finished sums that are not gated need, of whole vectors. Constant where EPILOGUE_BY_KIND
 * calls `fn`, so that loops over rows have no branches. */
struct epilogue_kind {
    bool has_bias, has_y; /* has_y: + y as it was */
    enum dtype dtype;
};
#define EPILOGUE_KIND(bias, y, dtype) ((struct epilogue_kind){bias, y, dtype})
#define EPILOGUE_BY_KIND(f, fn, ...)                               \
    do {                                                           \
        const bool has_bias_ = (f)->bias;                          \
        if ((f)->accumulate && has_bias_)                          \
            fn(__VA_ARGS__, EPILOGUE_KIND(true, true, DT_F32));    \
        else if ((f)->accumulate)                                  \
            fn(__VA_ARGS__, EPILOGUE_KIND(false, true, DT_F32));   \
        else if ((f)->y_dtype == DT_BF16 && has_bias_)             \
            fn(__VA_ARGS__, EPILOGUE_KIND(true, false, DT_BF16));  \
        else if ((f)->y_dtype == DT_BF16)                          \
            fn(__VA_ARGS__, EPILOGUE_KIND(false, false, DT_BF16)); \
        else if (has_bias_)                                        \
            fn(__VA_ARGS__, EPILOGUE_KIND(true, false, DT_F32));   \
        else                                                       \
            fn(__VA_ARGS__, EPILOGUE_KIND(false, false, DT_F32));  \
    } while (0)

/* 16 outputs; the same steps as epilogue_plain. */
INLINE void epilogue_whole(void *y, struct vec v, struct vec bias, const struct epilogue_kind kind)
{
    if (kind.has_bias)
        v = vec_add(v, bias);
    if (kind.has_y)
        v = vec_add(v, vec_load(y));
    if (kind.dtype == DT_BF16)
        vec_store_bf16_n(y, v, 16);
    else
        vec_store(y, v);
}

/* Where y[row, o] is, and the bytes from row to row. */
INLINE char *epilogue_at(const struct epilogue *f, size_t row, uint32_t o, size_t *stride,
                         const struct epilogue_kind kind)
{
    const size_t element = kind.dtype == DT_BF16 ? 2 : 4;
    *stride = f->y_stride * element;
    return (char *)f->y + (row * f->y_stride + o) * element;
}

INLINE struct vec epilogue_bias(const struct epilogue *f, uint32_t o,
                                const struct epilogue_kind kind)
{
    return kind.has_bias ? vec_load(f->bias + o) : vec_set(0);
}

/* up *= act(gate). Apart, so that products by silu stay as small as they are. */
static __attribute__((noinline, cold)) void epilogue_act(enum kern_act act, struct vec gate,
                                                         struct vec *up)
{
    *up = vec_mul(vec_act(act, gate), *up);
}

/* The sums of n <= 32 outputs of row `row` from o on, a multiple of 32; 32 when they are gated. */
INLINE void epilogue_pair(const struct epilogue *f, struct vec a, struct vec b, size_t row,
                          uint32_t o, uint32_t n)
{
    if (!f->gated) {
        epilogue_plain(f, a, row, o, n < 16 ? n : 16);
        if (n > 16)
            epilogue_plain(f, b, row, o + 16, n - 16);
        return;
    }
    if (f->bias) {
        a = vec_add(a, vec_load(f->bias + o));
        b = vec_add(b, vec_load(f->bias + o + 16));
    }
    if (f->act == KERN_SILU)
        b = vec_silu_mul(a, b);
    else
        epilogue_act(f->act, a, &b);
    epilogue_store(f, b, row * f->y_stride + o / 2, 16);
}

#endif
#endif
