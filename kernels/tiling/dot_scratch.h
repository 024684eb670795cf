/* SPDX-License-Identifier: Apache-2.0 */
/* dot_scratch - a thread's scratch of attention by dot-product instructions
 * (avx512/attention_dot.h). Private to kernels/. Threads: pure functions. */
#ifndef QUIRE_KERNELS_TILING_DOT_SCRATCH_H
#define QUIRE_KERNELS_TILING_DOT_SCRATCH_H
#include "kernels/tiling/attention_split.h"

#define DOT_TILE  256u /* positions of the online softmax, a multiple of 64; changes bits */
#define DOT_ROWS  64u  /* (token, head) rows that share K and V */
#define DOT_GROUP 64u  /* positions scored at once */

/* Row lengths are head_dim rounded up. K is only copied when it is int8. */
struct dot_scratch {
    float *s;     /* [DOT_ROWS][DOT_TILE] scores */
    float *sum;   /* [DOT_ROWS][dim] */
    uint16_t *p;  /* [DOT_ROWS][DOT_TILE] bf16 weights */
    uint16_t *q;  /* [DOT_ROWS][dim] bf16 */
    uint16_t *v;  /* [DOT_TILE / 2][dim][2] bf16, pairs of positions */
    uint16_t *k;  /* [DOT_GROUP / KERN_BLOCK][dim / 2][KERN_BLOCK][2] bf16 */
    float *max;   /* [DOT_ROWS] of the split's scores so far */
    float *total; /* [DOT_ROWS] of the split's weights so far */
    float *parts; /* [DOT_ROWS] partial results of the splits so far */
    uint32_t dim; /* head_dim rounded up to 32 */
};

static inline size_t dot_scratch_bytes(uint32_t head_dim)
{
    const size_t dim = partial_dim(head_dim);
    return DOT_ROWS * (DOT_TILE * 6 + dim * 6 + 8 + partial_stride(head_dim) * 4) +
           (DOT_TILE + DOT_GROUP) * dim * 2;
}

/* Divide `base` (64-byte aligned, dot_scratch_bytes) among the members. */
static inline void dot_scratch_cut(struct dot_scratch *r, void *base, uint32_t head_dim)
{
    const size_t dim = partial_dim(head_dim);
    float *f = base;
    r->dim = (uint32_t)dim;
    r->s = f;
    r->sum = r->s + DOT_ROWS * DOT_TILE;
    r->max = r->sum + DOT_ROWS * dim;
    r->total = r->max + DOT_ROWS;
    r->parts = r->total + DOT_ROWS;
    r->p = (uint16_t *)(r->parts + DOT_ROWS * partial_stride(head_dim));
    r->q = r->p + DOT_ROWS * DOT_TILE;
    r->v = r->q + DOT_ROWS * dim;
    r->k = r->v + DOT_TILE * dim;
}

#endif
