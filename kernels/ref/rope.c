/* SPDX-License-Identifier: Apache-2.0 */
/* a' = a*cos - b*sin, b' = b*cos + a*sin; every product and sum is rounded.   Source:
 * arXiv:2104.09864. */
#include "kernels/tiling/split.h"
#include "kernels/variants.h"

static void rotate_head(const struct rope_args *a, float *head, const float *cos_sin)
{
    uint32_t half = a->n_rot / 2;
    for (uint32_t j = 0; j < half; j++) {
        float *p = a->interleaved ? head + 2 * j : head + j;
        float *q = a->interleaved ? head + 2 * j + 1 : head + j + half;
        float c = cos_sin[2 * j], s = cos_sin[2 * j + 1];
        float u = *p, v = *q;
        *p = u * c - v * s;
        *q = v * c + u * s;
    }
}

void rope_ref(const struct rope_args *a, const struct kern_exec *x)
{
    struct range heads = split((size_t)a->n_row * a->n_head, x);
    for (size_t i = heads.begin; i < heads.end; i++) {
        size_t row = i / a->n_head, head = i % a->n_head;
        const float *cos_sin = a->table + (size_t)a->pos[row] * (a->n_rot / 2) * 2;
        rotate_head(a, a->x + row * a->x_stride + head * a->head_dim, cos_sin);
    }
}
